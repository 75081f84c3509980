"""The app: screens over a source, keys, pictures, and its way into a browser.

app         takes frames, shows screens, sends what is asked
several     what it does with several runs
keymap      which keys do what
palette     every action by its name
snapshot    pictures as SVG
web         the dashboard in a browser: `ddptop serve`
"""

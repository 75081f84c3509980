"""The app: screens over a source, keys, snapshots, and its way into a browser.

app         takes frames, shows screens, sends what is asked
several     what it does with several runs
keymap      which keys do what
palette     every action by its name
snapshot    the screen as an SVG file
web         the dashboard in a browser: `ddptop serve`
"""

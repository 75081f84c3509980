"""The app: screens over a source, keys, snapshots, and its way into a browser.

app         takes frames, shows screens; every action `app.…` of a key begins here
shown       the run that is shown, now or as the user holds it
acting      what is asked, done and told when a run is acted on
several     the list of runs, another run, a launch
keymap      which keys do what
palette     every action by its name
snapshot    the screen as an SVG file
web         the dashboard in a browser: `ddptop serve`
"""

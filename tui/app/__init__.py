"""The app: screens over a source, keys, snapshots, and its way into a browser.

app         takes frames, shows screens; every action `app.…` of a key begins here
shown       the run that is shown, now or as the user holds it
rhythm      when messages are taken in and frames painted
acting      which action asks first, does it and tells the outcome; the words of questions are in screens.dialogs
opening     the screens that open over the run, and the way back from them
several     the list of runs, another run, a launch
keys        which keys do what, the palette, and the hint what to press next
program     the app as a program: exit codes, and one line on an error of its own
snapshot    the screen as an SVG file
web         the dashboard in a browser: `ddptop serve`
"""

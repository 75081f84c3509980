"""The app: screens over a source, keys, snapshots, and its way into a browser.

app       frames in, screens out, and the moments of both; every action `app.…` of a key begins here
shown     the run that is shown, now or as the user holds it
acting    actions: the question before, the thread, the outcome; the words of questions are in `screens.dialogs`
several   the list of runs, another run, a launch
keys      the keys and their actions, the palette, and the hint for the next key
program   the app as a program: exit codes, and one line on an error of its own
snapshot  the screen as an SVG file
web       the dashboard in a browser: `ddptop serve`
"""

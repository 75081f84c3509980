"""Keys and what they do.

keymap      which keys do what, and the user's own
sections    who has keys, in the order of the help: all screens, dialogs and views
counting    the keys that type a number of steps
palette     every action by its name
hint        what to press next, said once
"""

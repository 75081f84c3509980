"""Keys and what they do.

keymap    the action of each key, and the user's own keys
sections  all screens, dialogs and views that have keys, in the order of the help
counting  the keys that type a number of steps
palette   every action by its name
hint      a hint for the next key, shown once
"""

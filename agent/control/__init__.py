"""The way to the observer of a run, for whoever acts on it, and what both sides know of an action.

caller      sockets to the observer, and the one way to have something done by it
deadline    the age at which a command is refused
listening   a socket that receives telemetry, bounded for each sender
wakeup      a wake-up between threads
events      what is said of a run, its words and its way to the relay
silence     when the observer of a run was heard, and since when it is not
"""

"""What acts on runs; knows no screen.

actions     which action is offered in which state
ending      ends a run, a rank or a process, or signals it
kill        an ending that is under way
consent     what it is meant for, and whether it may still begin
signals     the signals of this platform
actor       who acts
remedies    what to do where an action cannot be done
launch      checks a launch and starts it
"""

"""A word when something is wrong with a run, and one when it is over: a process beside the run, until its end.

conditions  the frames of a run as messages, each once
messages    one message, for programs and for people
targets     where messages go: a webhook, a command, a service that Apprise knows
delivery    the messages for one target, until they are delivered
notifier    the process
"""

"""The output of the ranks: its lines, the entries that they form, and several logs as one.

logfile   a log that others write, read from any place on
lines     one line: the rank that it names, its time, its level
entries   a line, or the lines of a traceback or a message, which stay together
merging   the entries of several logs in one order; identical ones of several ranks once
excerpt   the part of one log that is held, which can be moved through all of it
copies    copies of the logs of ranks on other hosts, kept up to date
stream    all of several logs from their beginnings
of_run    the logs of a run as they are written
matching  which entries are wanted: by level, and by words
"""

"""Where the lines of the ranks' logs come from.

excerpt   the part of one log that is held, which can be moved through all of it
reader    a thread that follows and searches one log, or the ends of all
copies    copies of the logs of ranks on other hosts, kept up to date
stream    all of several logs from their beginnings, for the command line
"""

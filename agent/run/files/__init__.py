"""Files and folders of ours among those of others.

private     owner and mode are checked, no link is followed
marks       the mark that says what is ours
presence    that somebody lives in a run directory
removal     takes a run directory away
masking     secrets, and where they are kept
sparse      log files whose middle is cut out
tail        the end of a log, and a log as it grows
database    what a damaged SQLite file raises
"""

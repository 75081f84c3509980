"""Safe access to the files of runs, in folders where others may write too.

settings_file  the path of the user's settings, for the observer and the dashboard
private   files opened, replaced and locked with checks of owner, mode and links
marks     the mark in each folder that ddptop has made
presence  the lock of a process on the run directory that it uses
removal   the removal of a run directory
masking   the secrets of a run, the file that stores them, and the mask that hides them in texts
sparse    log files whose middle is cut out
tail      the end of a log, as text, and what is added to it, in pieces for a copy
joins     the request that ranks join a run, and their answers
decoding  decoders of JSON
database  the exceptions of a damaged SQLite file
"""

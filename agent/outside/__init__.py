"""Training groups that nobody prepared, by what the system shows of their processes; no agent is asked.

groups     the groups among processes: ranks, launcher, program; pure
processes  the processes of this user that run Python, and what tells a rank from others
recorded   such a group as the records of an ordinary run
rights     the permission to look into a process, and what would give it

Nothing here writes, but what `recorded` is told to.
"""

"""The command line: `main` reads it, `verbs` carry it out.

view        a run as the dashboard or as lines
plain       a run as lines
status      `ps` as a table; `ps`, `status` and `events` as JSON
card        `status` as text
logs        `ddptop logs`
manual      the pages that `ddptop help` shows
foreign     the runs of other users, for root
parsing     the parser: help, and what it says of a wrong option
complaint   a problem, in one line
"""

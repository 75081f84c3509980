"""The command line: `main` reads it, `verbs` carry it out.

view        a run as the dashboard or as lines
output      what the verbs print, as lines or JSON
manual      the pages that `ddptop help` shows, a Markdown file for each topic; the README has what each is about
foreign     the runs of other users, for root
parsing     the parser: help, and what it says of a wrong option
completion  what a shell completes the command line with
complaint   a problem, in one line
"""

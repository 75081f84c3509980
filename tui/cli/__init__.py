"""The command line: `main` reads it, `verbs` carry it out.

main         the reading of the command line
verbs        the verbs, a module for each family
view         a run as the dashboard or as lines
output       the output of the verbs, as lines or JSON
elsewhere    verbs that are carried out on other machines
arguments    the command line as others see it
parsing      the parser: help, and problems in one line
completion   the completion of the command line in a shell

The folder `manual` has the pages that `ddptop help` shows, a Markdown file for each topic; the README lists them.
"""

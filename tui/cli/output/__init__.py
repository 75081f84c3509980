"""The output of the verbs.

plain       a run as lines, while it goes on
status      `ps` and `status`, also as JSON
card        `status` of one run, for people
logs        `ddptop logs`
stacks      `ddptop stacks`, also as JSON
html        `ddptop report --html`: a page for a browser
pages       `ddptop help`: the pages of the manual
"""

"""Words that messages have, and their meanings.

verdict_kinds  the kinds of verdicts, in words
mesh           places on a device mesh, and who works on the same samples
refusals       why an action was not carried out
"""

"""A run in words and numbers.

diagnosis   why a run stands or has ended: hang, stacks, report, and diagnoses on request
comparison  two runs compared, as lines, as Markdown and as JSON
sentences   what is said of a run, by its frame
documented  the JSON of events and verdicts
metrics     the numbers that can be drawn
"""

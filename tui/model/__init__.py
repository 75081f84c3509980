"""A run in words and numbers.

diagnosis  why a run stands or has ended: hang, stacks, report, and diagnoses on request
sentences  what is said of a run, by its frame
metrics    the numbers that can be drawn
"""

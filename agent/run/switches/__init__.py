"""What the environment asks the ranks of a run for, beside training.

checking    how often parameters are compared, and where
injection   the grammar of `--inject`
"""

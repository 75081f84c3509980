"""What the environment asks the ranks of a run for, beside training.

checking    how often parameters are compared, and where
recording   how many steps are recorded
injection   the grammar of `--inject`
"""

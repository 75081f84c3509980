"""Requests of the environment to the ranks of a run, beside training.

checking   the steps at which parameters are compared, and the parameters
recording  the number of steps that are recorded
thresholds  from where on something is said of a run
injection  the grammar of `--inject`
"""

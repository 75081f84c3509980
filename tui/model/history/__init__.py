"""The history of a run, in bounded memory: numbers out of `agent.observer.history`, and the newest steps.

history     all that the views look back on
asked       numbers that the observer or the run's file was asked for
stretches   tables of what was answered
"""

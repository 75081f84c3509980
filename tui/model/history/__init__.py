"""The history of a run, in bounded memory: numbers out of `agent.observer.record.history`, and the newest steps.

history    all that the views look back on
asked      numbers from the observer or from the run's file, requested as views need them
stretches  tables of the answers
"""

"""The history of a run, in bounded memory: numbers out of `agent.record.history`, and the newest steps.

history    all that the views look back on
asked      numbers from the observer or from the run's file, requested as views need them
first      the first question, sent before anybody looks
stretches  tables of the answers
columns    numbers over the steps as the columns of a plot
"""

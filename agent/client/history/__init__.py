"""The history of a run, in bounded memory: numbers and whole steps, by questions to the run's one record.

history    all that the views look back on
asked      questions to the observer or to the run's file, and what is in sight
numbers    numbers over the steps and over time
stretches  the tables of their answers
answers    answers for whoever waits for each before the next question
columns    numbers over the steps as the columns of a plot
steps      the newest steps as ranks have recorded them
"""

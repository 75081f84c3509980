"""What is asked of the observer, on one host and over all hosts of a run; `actions` carries out what ranks do together.

orders    the commands, and the endings and signals that carry them out
ending    an end of the run that somebody asks for, on all its hosts
spread    one command to several hosts at once, and the sum of the answers
others    the end of the run on the other hosts: reports, waiting, and the head's result
parts     the ends of the ranks on other hosts, as their observers report them
budget    the number of steps that the ranks record
watch     hosts that are lost or back, as events
far       the observers of other hosts, in the form that commands need
"""

"""Commands to the observer, on one host and over all hosts of a run.

orders    the commands, and what carries them out
ending    the end of the run that somebody asks for, on all its hosts
spread    one command to several hosts at once, and the sum of the answers
deciding  decisions that are asked for, here or on another host
mirror    the decisions of the head, copied to the other hosts
others    the end of the run on the other hosts: awaited, and told
parts     how the ranks of other hosts ended, as their observers tell it
budget    how many steps the ranks record
watch     hosts that are lost, or heard again
far       the observers of other hosts, as all of these know them
"""

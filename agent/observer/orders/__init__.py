"""Commands to the observer, on one host and over all hosts of a run.

orders    the commands, and the endings and signals that carry them out
far       the observers of other hosts, as the commands here know them
spread    a kill or a signal on several hosts at once, and the census of all of them
deciding  decisions that another host asks for
mirror    the decisions of the head, copied to the other hosts
watch     hosts that are not heard, told as they are noticed
"""

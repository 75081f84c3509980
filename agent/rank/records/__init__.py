"""What is written down of a step, and what is made of it.

stamps      what the training thread writes
meter       stamps in, `Step` records out
device_time moments on the device's own time line
device      memory and load
starvation  time without a core
health      numbers that are none any more
history     the last records, for those who join late
digest      records added up to summaries
"""

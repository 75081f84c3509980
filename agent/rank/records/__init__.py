"""The stamps of a step, and the records made of them.

stamps      the stamps that the training thread writes
cost        what the hooks cost the training thread
own_choice  how many steps are recorded until the run's observer chooses, and where steps become far longer
meter       makes `Step` records of stamps
device_time events on the device's own time line
device      memory and load
starvation  time without a core
health      losses and gradients that are not finite
history     the last records, for late subscribers
digest      makes summaries of records
"""

"""The stamps of a step, and the records made of them.

stamps       the stamps that the training thread writes
cost         the time that the hooks cost the training thread
own_rate     the number of steps that a rank records without its observer, or when its steps become far longer
sampling     the choice of the steps that are recorded or timed, the same on all ranks
meter        `Step` records, made of stamps, and the time without a core
device_time  the time of each phase on the device, by events on its own time line
device       memory and load
threads      the threads among which the rank divides its work
health       losses and gradients that are not finite
history      the last records, for late subscribers
digest       summaries, made of records
"""

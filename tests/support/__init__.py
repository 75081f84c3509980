"""What tests share; no test file imports from another one.

harness     the program as a user starts it, waiting for what it does, what /proc says
scripts     training scripts of real runs
supervised  launched runs
fakes       ranks, an observer and a relay in the process of a test, and groups of made-up records
screens     dashboards in process or in a pseudo-terminal, and the frames, sources and fleets that they show
sshd        another machine: a real sshd on the loopback
standing    a run with a clock of its own, whose ranks stand as a test says
hostile     values of an enemy
traces      folders of profiles, and a check of Chrome traces
values      made-up messages, steps, histories, inspections and reports
late        imports that take seconds, made when the tests of a module run
"""

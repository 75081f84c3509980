"""What tests share; no test file imports from another one.

harness     the program as a user starts it, waiting for what it does, what /proc says
processes   launched runs, ranks without torchrun, verbs, and an sshd, as real processes
fakes       ranks, an observer and a relay in the process of a test, and groups of made-up records
perfetto    Perfetto's trace processor, asked about a trace
screens     dashboards in process or in a pseudo-terminal, and the frames, sources and fleets that they show
values      made-up messages, steps, histories, inspections, reports and profiles, and values of an enemy
late        imports that take seconds, made when the tests of a module run
"""

"""What tests share; no test file imports from another one.

harness     the program as a user starts it, waiting for what it does, what /proc says
scripts     training scripts of real runs
supervised  launched runs
fakes       ranks, an observer and a relay in the process of a test, and groups of made-up records
screens     dashboards in process or in a pseudo-terminal, and the frames, sources and fleets that they show
hostile     values of an enemy; `wiretypes` of every type of the wire
inspections where made-up ranks stand
messages    messages of the kind that a test expects
late        imports that take seconds, made when the tests of a module run
"""

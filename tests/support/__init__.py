"""What tests share; no test file imports from another one.

harness     the program as a user starts it, waiting for what it does, what /proc says
scripts     training scripts of real runs
supervised  launched runs
dashboards  dashboards in process: wait for them, read them as text
terminal    a program in a pseudo-terminal
frames      frames and sources that stand still or move; `fleets` of several runs
hostile     values of an enemy; `wiretypes` of every type of the wire
messages    messages of the kind that a test expects
late        imports that take seconds, made when the tests of a module run
"""

"""What tests of the dashboard share.

dashboards  dashboards in process: wait for them, read them as text
terminal    a program in a pseudo-terminal
web         a site for a run, and what a browser does with it
frames      frames and sources that stand still or move
hosts       frames of runs over several hosts
fleets      several runs, and the launch dialog's programs
"""

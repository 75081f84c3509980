"""The memory of a run: what is written of it, and how much room that may take.

recorder    subscribes to every rank and writes
recording   the tables of the file, and how it is read
ring        keeps the file within its bytes
thinning    which steps stay when there is no room for all
floods      which events stay
logs        keeps the log files within their share
retention   which ended runs go when all together take too much; how much that is, is said in `tui.settings`
"""

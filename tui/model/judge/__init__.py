"""Who holds the group back, and whose memory grows.

evidence       records added up to blocks of steps
suspects       what each suspect costs
verdict        the one that is told
memory_growth  memory that does not settle
"""

"""What the program passes around, made up for tests.

wiretypes   every type of the wire, with hostile values
messages    messages of the kind that a test expects
steps       records of steps
recordings  all of a recording
histories   the history that an observer keeps, and an onlooker that asks it
inspections where ranks stand
reports     the report on a run that has ended
traces      folders of profiles, and a check of Chrome traces
hostile     values of an enemy
"""

"""Where the ranks stand, and what is found out about them on request.

stacks  the places at which the ranks stand, by a question to the observer
kinds   the diagnoses that are made and kept with a run, and the ranks of one where nobody says them
"""

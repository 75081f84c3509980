"""Programs that look on at runs by the client alone, and tell others of them.

None has a thread in a rank, a socket of its own at one, or a line in the observer.

export  the numbers of runs for other programs
notify  a word to people and programs when something is wrong with a run
"""

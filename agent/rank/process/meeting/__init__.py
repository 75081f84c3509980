"""How the observers of a run on several hosts find each other: by the store in which the training's own ranks meet.

meeting   when a rank takes part, where the store is, and what is told where there is none
exchange  the thread that passes on where the observer of rank 0's host listens
store     a connection of our own to the store
"""

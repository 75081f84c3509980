"""The rendezvous of the observers of a run on several hosts, by the store that the training's own ranks use.

meeting   the ranks that take part, the address of the store, and the reason where there is none
exchange  the thread that passes on the address of the observer of rank 0's host
store     a connection of our own to the store
"""

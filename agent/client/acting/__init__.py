"""What is done with a run by whoever looks on.

control     each action on a run, as a request to its observer
unobserved  a kill where there is no observer, and none starts
membership  the processes of a run, for a list from which a person chooses, and what a kill ends
kill        an ending that is under way: its target, the consent that it may begin, and the account of it
waiting     what an action waits for, and its cancellation
actor       the user who acts, for the events of a run
"""

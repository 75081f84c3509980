"""Why a run stands or has ended, in the words of the observer.

hang        what the verdict of a hang means for people
stacks      where the ranks stand, those at the same place together
report      the report on the end of a run, as lines
"""

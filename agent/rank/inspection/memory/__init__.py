"""The memory of a rank on demand: the objects that live at a step boundary, and those that came within some steps.

censuses  two censuses at the boundaries of the steps that the observer has chosen, and the comparison of both
objects   all objects of the process by kind, without running any code of theirs
holders   the named places that hold objects: a variable, an attribute
origins   the lines that made the objects of these steps, by Python's tracemalloc
resident  resident memory by its kind, as the system counts it
devices   the allocator's numbers and its history on an accelerator, and the last numbers before it is full
"""

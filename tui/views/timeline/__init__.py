"""One step of all ranks on one time axis.

timeline  the widget
spans     the arithmetic: phases and collectives on the axis
lines     title, axis, two lines a rank, legend and details, as lines
"""

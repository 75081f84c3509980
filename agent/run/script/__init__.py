"""What a rank's script is and says.

sources     the files of a program's functions: names, whose code it is, lines
stacks      stacks of its threads, made to fit into a message
last_output the line of its output that tells why its process ended
"""

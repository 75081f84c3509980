"""The script of a rank: its source and its words.

sources      the files of a program's functions: names, owners of the code, lines
stacks       stacks of the script's threads, made to fit into a message
last_output  the line of a process's output that best explains why the process ended
"""

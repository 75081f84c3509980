"""The manual: a page for each topic as Markdown, which `ddptop help TOPIC` shows and the README links.

benchmarks  what was measured of ddptop itself, and the command for each figure
control     hold a run, make steps, save, end it, start it again
json        every field of `--json`
keys        the views and every key
kubernetes  manifests for a PyTorchJob and for plain pods
limits      what ddptop does not do
many-machines  one run over several hosts, by hand or in Slurm
numbers     what each number is and how it is taken
report      why a run died: what is told, recognized and kept
remote      a run on another machine, over ssh or in Slurm
programs    launch a script or a program of the catalogue; what a script may say
security    what stays on the disk, what is removed, who is let in
settings    the settings file, colors, ASCII
verdicts    who is slow, what else is told, faults on purpose

Keys, options and settings in the pages are written by `tests/readme.py`.
"""

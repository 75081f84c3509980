"""The verbs of the command line, one module for each family: its options, and what it does.

Each has `add(verbs)`, which gives it its parsers, and names in them the function that carries
the verb out: `run(options) -> exit code`.  ZeroMQ, Textual, NumPy and torch are not imported
before that is called.

launch     `launch`, `restart`
slurm      `launch --slurm`
watching   `attach`, `watch`, `logs`
listing    `ps`, `status`, `events`, `report`, `programs`, `stacks`
control    `pause`, `step`, `resume`, `checkpoint`, `stop`, `checksum`, `kill`
diagnosis  `profile`, `probe`, `memory`
comparing  `compare`, `baseline`, `baselines`, `gate`, `keep`, `pack`
cleaning   `clean`
serving    `serve`
onlookers  `notify`, `export`
reference  `config`, `help`, `completion`
options    options that several verbs share
"""

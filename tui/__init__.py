"""The dashboard and the command line. Knows of the agent its client, the wire and text; never imports torch.

cli       the command line: verbs, `ps` and `status`, plain output
app       the app: one run or several, keys, palette, snapshots, the browser
screens   the contents of the terminal; `dialogs` are over it
views     the parts of screens: panels, table, heatmap, timeline, plot, stacks, runs
link      what the screens ask of runs
remote    verbs that are carried out on other machines, by ssh or srun
launch    the checks and the start of a launch
control   the rules by which actions are offered, signals
model     a run in words: sentences, diagnoses
drawing   lines, bars, colors, units

Each imports only what stands below it here; `control` and `model` do not know each other.

A new view is a folder in `views`, shown by `screens.run`.  A new number of a rank comes in a `RankFrame`
(`agent.wire.frames`, made by `agent.observer.model.framer`), and goes into `views.table.columns` and `model.metrics`.
A new action is a method of `link.source.Control`, done by `agent.client.acting`, or by `agent.observer.actions` where
all ranks do it, a row of `control.actions`, bound to a key in `screens.live` and to a verb in `cli.verbs`; `app.acting`
asks before and says the outcome.
A new launch option is an entry in `launch.options`, acted on in `launch.launch`.
A new setting goes into `agent.client.host.settings`.
"""

"""The dashboard and the command line. Knows the wire and the run directory; never imports torch.

cli       the command line: verbs, `ps` and `status`, plain output
app       the app: one run or several, keys, palette, snapshots, the browser
screens   the contents of the terminal; `dialogs` are over it
views     the parts of screens: panels, table, heatmap, timeline, plot, stacks, runs
link      the sources of frames: a run, the fleet, the machine
remote    verbs that are carried out on other machines, by ssh or srun
control   actions on runs: kill, signal, launch, and the rules by which they are offered
model     a run for the screens: frames, diagnosis, history, logs
drawing   lines, bars, colors, units
settings  the user's settings; the thresholds among them are fields of `agent.run.switches.thresholds`

Each imports only what stands below it here; `control` and `model` do not know each other.

A new view is a folder in `views`, shown by `screens.run`.  A new number of a rank comes in a `RankFrame`
(`agent.wire.frames`, made by `agent.observer.model.framer`), and goes into `views.table.columns` and `model.metrics`.
A new action is a method of `link.source.Control`, done by `control`, or by `agent.observer.actions` where all ranks do
it, a row of `control.actions`, bound to a key in `screens.live` and to a verb in `cli.verbs`; `app.acting` asks before
and says the outcome.  A new launch option is an entry in `control.launch.options`, acted on in `control.launch.launch`.
A new setting goes into `settings`.
"""

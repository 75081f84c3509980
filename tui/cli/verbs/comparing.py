"""`compare`, `baseline`, `baselines`, `gate`, `keep` and `pack`: runs beside each other, and runs that are kept."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptop.tui.cli.parsing import columns, complain
from ddptop.tui.cli.verbs.options import Verbs, add_verb, print_json

if TYPE_CHECKING:
    from ddptop.agent.client.comparison.compared import Comparison
    from ddptop.agent.client.comparison.gate import Limits
    from ddptop.agent.client.comparison.measured import Measured
    from ddptop.agent.client.runs import Run

_RUN: Final = "name of a run, its beginning or its last 4 digits; a kept run or a baseline; or a packed file"
_GATED: Final = {
    0: "all limits are kept",
    1: "a limit is exceeded, or a rank has died",
    2: "wrong options, or no such run",
    3: "the runs cannot be compared, or noise allows no answer",
}


def add(verbs: Verbs) -> None:
    compare = add_verb(
        verbs, "compare", "compare two runs, or a run with those before it",
        "Says whether the second run is faster or slower than the first, by how much, in which phase and on which "
        "ranks, and what noise allows to say; before that, what differs between them. With one run, it is compared "
        "with the last runs of its script.",
        """
        ddptop compare resnet-7f3a resnet-91c2
        ddptop compare resnet-91c2             # with those before it
        ddptop compare nightly resnet-91c2 --markdown
        """,
        {0: "compared", 1: "cannot be compared", 2: "wrong options, or no such run"},
    )  # fmt: skip
    compare.add_argument("run", metavar="A", help=_RUN)
    compare.add_argument("other", metavar="B", nargs="?", help="the run that is compared with A")
    compare.add_argument("--anyway", action="store_true", help="also runs of another world or another model")
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON: one object (see `ddptop help comparison`)")
    form.add_argument("--markdown", action="store_true", help="as Markdown, for a pull request")
    compare.set_defaults(carry=_compare)

    baseline = add_verb(
        verbs, "baseline", "keep a run under a name that later runs are compared with",
        "Keeps an ended run as a baseline; one of the same name is replaced.",
        "ddptop baseline resnet-7f3a nightly",
    )  # fmt: skip
    baseline.add_argument("run", metavar="RUN", help=_RUN)
    baseline.add_argument("name", metavar="NAME", help="name of the baseline")
    baseline.set_defaults(carry=_keep)

    baselines = add_verb(
        verbs, "baselines", "list the baselines and the kept runs",
        "Lists them with their run, its steps, size and place on the disk.", "ddptop baselines", {0: "printed"},
    )  # fmt: skip
    baselines.add_argument("--json", action="store_true", help="as JSON: a list of objects")
    baselines.set_defaults(carry=_baselines)

    gate = add_verb(
        verbs, "gate", "check a run against limits, with an exit code for CI",
        "Checks an ended run: that no rank has died, and that step time, memory and loss keep their limits. A limit "
        "counts as exceeded only where noise alone does not make such a change.",
        """
        ddptop gate resnet-91c2 --against nightly --step 5% --memory 10%
        ddptop gate resnet-91c2 --loss-at 500 2.1
        ddptop gate resnet-91c2 limits.toml --junit gate.xml
        """,
        _GATED,
    )  # fmt: skip
    gate.add_argument("run", metavar="RUN", help=_RUN)
    gate.add_argument("file", metavar="FILE", nargs="?", type=Path, help="limits as TOML (`ddptop help comparison`)")
    gate.add_argument("--against", metavar="NAME", help="a baseline, a kept run, a run, or a packed file")
    gate.add_argument("--step", metavar="5%", help="by so much the median step may be longer")
    gate.add_argument("--memory", metavar="10%", help="by so much the memory of the fullest rank may be larger")
    gate.add_argument(
        "--loss-at", metavar=("STEP", "LOSS"), nargs=2, action="append", help="the loss may not be above this; repeats"
    )
    gate.add_argument("--anyway", action="store_true", help="also against a run of another world or another model")
    gate.add_argument("--junit", metavar="FILE", type=Path, help="write the outcomes as JUnit XML, too")
    gate.add_argument("--markdown", action="store_true", help="print the outcomes as Markdown")
    gate.set_defaults(carry=_gate)

    keep = add_verb(
        verbs, "keep", "keep an ended run for good, packed",
        "Packs an ended run into the user's data directory, where no launch and no `clean` removes it.",
        "ddptop keep resnet-7f3a best-so-far",
    )  # fmt: skip
    keep.add_argument("run", metavar="RUN", help=_RUN)
    keep.add_argument("name", metavar="NAME", nargs="?", help="name to keep it under (default: that of the run)")
    keep.set_defaults(carry=_keep)

    pack = add_verb(
        verbs, "pack", "pack an ended run into a file, for another machine",
        "Writes a file that `attach`, `compare`, `gate` and `report` take in place of the name of a run.",
        "ddptop pack resnet-7f3a resnet.ddptop",
    )  # fmt: skip
    pack.add_argument("run", metavar="RUN", help=_RUN)
    pack.add_argument("file", metavar="FILE", type=Path, help="a new file, named *.ddptop")
    pack.set_defaults(carry=_keep)


def _read(run: Run) -> Measured:
    from ddptop.agent.client.acting.actor import who
    from ddptop.agent.client.comparison import reading

    return reading.read(run, who("shell"))


def _compare(options: argparse.Namespace) -> int:
    from ddptop.agent.client.comparison import compared
    from ddptop.agent.client.keeping import kept
    from ddptop.tui.model import comparison

    with contextlib.ExitStack() as opened:
        first = opened.enter_context(kept.meant(options.run))
        if options.other is None:
            found = compared.against(_before(first), _read(first))
        else:
            second = opened.enter_context(kept.meant(options.other))
            found = compared.compare(_read(first), _read(second), anyway=options.anyway)
    if options.json:
        print_json(comparison.as_json(found))
    else:
        print(comparison.markdown(found) if options.markdown else "\n".join(comparison.lines(found, columns())))
    return 1 if found.outcome == "other" else 0


def _before(run: Run) -> list[Measured]:
    """Return the newest runs of the same program before a run, the newest first, as far as they can be read."""
    from ddptop.agent.client import runs
    from ddptop.agent.client.comparison.compared import MOST_HISTORY

    record = run.record()
    found: list[Measured] = []
    for each in runs.listed():
        with contextlib.suppress(runs.RunDirError):
            had = each.record()
            if each.name != run.name and had.program == record.program and had.created_at_ns < record.created_at_ns:
                found.append(_read(each))
        if len(found) == 2 * MOST_HISTORY:
            break
    return found


def _keep(options: argparse.Namespace) -> int:
    from ddptop.agent.client.keeping import kept

    if options.verb == "pack" and options.file.suffix != kept.ENDING:
        return complain(f"pack: {str(options.file)!r}: give a name that ends in {kept.ENDING}", 2)
    with kept.meant(options.run) as run:
        if options.verb == "pack":
            kept.write(run, options.file)
            print(options.file)
        elif options.verb == "baseline":
            print(f"{options.name} is {run.name} now: {kept.keep(run, options.name, kept.BASELINE)}")
        else:
            print(kept.keep(run, options.name or run.name))
    return 0


def _baselines(options: argparse.Namespace) -> int:
    from ddptop.agent.client.keeping import kept
    from ddptop.agent.client.runs import RunDirError
    from ddptop.tui.drawing import units

    values = list[dict[str, object]]()
    rows: list[tuple[str, ...]] = [("NAME", "", "RUN", "PROGRAM", "RANKS", "SIZE", "KEPT AT")]
    for each in kept.files():
        try:
            with kept.opened(each.path) as run:
                record = run.record()
        except RunDirError as problem:
            complain(problem, 1)
            continue
        shown = {"name": each.name, "kind": each.kind, "run": record.run, "program": record.program}
        values.append({**shown, "world": record.world, "bytes": each.size, "at": each.at, "file": str(each.path)})
        rows.append((*shown.values(), f"×{record.world:,}", units.size(each.size).strip(), units.moment(each.at)))
    if options.json:
        print_json(values)
    elif values:
        print("\n".join(units.aligned(rows)))
    else:
        print("no baseline yet; `ddptop baseline RUN NAME` keeps one", file=sys.stderr)
    return 0


def _gate(options: argparse.Namespace) -> int:
    from ddptop.agent.client.comparison import gate

    names = ("against", "step", "memory", "loss_at", "anyway")
    given = {name: value for name in names if (value := getattr(options, name)) not in (None, False)}
    return judge(options.run, gate.read(options.file, given), junit=options.junit, markdown=options.markdown)


def judge(name: str | Run, limits: Limits, *, junit: Path | None = None, markdown: bool = False) -> int:
    """Judge a run by limits, print a line each, and return the exit code."""
    from ddptop.agent.client.comparison import gate
    from ddptop.agent.client.keeping import kept

    with contextlib.ExitStack() as opened:
        run = opened.enter_context(kept.meant(name)) if isinstance(name, str) else name
        measured, comparison = _read(run), None
        if limits.compares:
            comparison = beside(run, limits.against, measured, anyway=limits.anyway)
        outcomes = gate.judge(limits, measured, comparison)
    if junit is not None:
        try:
            junit.write_text(gate.junit(run.name, outcomes), encoding="utf-8")
        except OSError as problem:
            return complain(f"gate: {junit}: {problem.strerror}", 2)
    if markdown:
        print(gate.markdown(run.name, outcomes))
    else:
        width = max(len(each.name) for each in outcomes)
        for each in outcomes:
            print(f"{gate.WORDS[each.code]:<12} {each.name:<{width}}  {each.text}")
        if comparison is not None and comparison.outcome in ("slower", "faster"):
            print(f"{'':<12} {'':<{width}}  {comparison.verdict}")
    return gate.code(outcomes)


def beside(run: Run, name: str, measured: Measured | None = None, *, anyway: bool = False) -> Comparison:
    """Return a run compared with another one, under its name here: that of a baseline comes before all others."""
    from ddptop.agent.client.comparison import compared
    from ddptop.agent.client.keeping import kept

    with kept.against(name, run) as other:
        return compared.compare(replace(_read(other), name=name), measured or _read(run), anyway=anyway)

"""`pause`, `step`, `resume`, `checkpoint`, `stop`, by the same functions as the keys, and `checksum`: ask the ranks."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

from ddptop.tui.cli.complaint import complain
from ddptop.tui.cli.verbs.options import AWAITED, Verbs, add_run, add_verb, chosen, print_json

if TYPE_CHECKING:
    from ddptop.agent.control.waiting import Waiting
    from ddptop.tui.link.control import RunControl

MOST_STEPS: Final = 1_000_000


def add(verbs: Verbs) -> None:
    pause = add_verb(
        verbs, "pause", "pause all ranks at the same step, for as long as you like",
        "Holds all ranks after the same step, with no collective open, so that no timeout runs. `resume` lets them go.",
        """
        ddptop pause                     # the only live run
        ddptop pause resnet-7f --freeze  # at once, wherever the ranks are
        """,
        AWAITED,
    )  # fmt: skip
    pause.add_argument(
        "--freeze",
        action="store_true",
        help="stop the processes where they are instead (SIGSTOP), for a group without a common step: the timeout of "
        "an open collective keeps running; a longer freeze ends the run",
    )
    step = add_verb(
        verbs, "step", "from a pause, make all ranks do exactly K more steps",
        "Lets the ranks of a paused run do exactly K more steps; then they are paused again.",
        """
        ddptop step resnet-7f 10
        ddptop step 3                    # the only live run
        """,
        AWAITED,
    )  # fmt: skip
    resume = add_verb(
        verbs, "resume", "resume a paused run", "Resumes a run that is paused or frozen.", "ddptop resume resnet-7f"
    )
    checkpoint = add_verb(
        verbs, "checkpoint", "have all ranks save a checkpoint at the same step",
        "Has all ranks save a checkpoint after the same step, by the checkpoint function that the script registers; "
        "then the run goes on. Refused where the script registers none.",
        "ddptop checkpoint resnet-7f",
        AWAITED,
    )  # fmt: skip
    stop = add_verb(
        verbs, "stop", "end a run at a step, after a checkpoint where the script registers a checkpoint function",
        "Ends a run after a step that is the same on all ranks, with exit code 0. A checkpoint is saved before, where "
        "the script registers a checkpoint function.",
        """
        ddptop stop resnet-7f
        ddptop stop resnet-7f --no-checkpoint
        """,
        AWAITED,
    )  # fmt: skip
    stop.add_argument("--no-checkpoint", action="store_true", help="stop it without a checkpoint")
    checksum = add_verb(
        verbs, "checksum", "compare the parameters of the ranks at the end of a step",
        "Compares the parameters of all ranks at the end of the same step, by checksums that each rank computes; no "
        "rank is held. `launch --check-parameters K` compares them every K steps.",
        """
        ddptop checksum resnet-7f
        ddptop checksum resnet-7f --json
        """,
        {
            0: "equal, or none differ that DDP keeps the same",
            1: "they differ; refused, or nothing to compare",
            2: AWAITED[2],
            130: AWAITED[130],
        },
    )  # fmt: skip
    checksum.add_argument("--json", action="store_true", help="one JSON object")
    for verb in (pause, step, resume, checkpoint, stop, checksum):
        add_run(verb)
        verb.set_defaults(carry=_control)
    step.add_argument("steps", metavar="K", nargs="?", type=_steps, help="number of steps (1)")


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_STEPS:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of steps is 1 to {MOST_STEPS:,}")
    return int(text)


def _take_number_as_steps(options: argparse.Namespace) -> None:
    """Read `ddptop step 3` as three steps of the only live run, where no run is called 3.

    Raises:
        argparse.ArgumentTypeError: it is no number of steps.
    """
    from ddptop.agent.run import rundir

    if options.steps is None:
        alone = options.run
        if alone is not None and alone.isdecimal() and alone not in {run.name for run in rundir.runs()}:
            options.run, options.steps = None, _steps(alone)
        else:
            options.steps = 1


def _control(options: argparse.Namespace) -> int:
    from ddptop.agent.control.waiting import Waiting
    from ddptop.tui.control import remedies
    from ddptop.tui.control.actor import who
    from ddptop.tui.link.control import RunControl
    from ddptop.tui.link.source import Busy, Cancelled, Hung, Refused, Unholdable, Unsavable

    if options.verb == "step":
        try:
            _take_number_as_steps(options)
        except argparse.ArgumentTypeError as problem:
            return complain(f"step: {problem}", 2)
    directory = chosen(options.run)
    freeze = f"`ddptop pause {directory.name} --freeze` stops its processes where they are"
    line = _LiveLine("ctrl+c cancels", f"in another terminal: ddptop pause {directory.name} --freeze")
    try:
        try:
            with _sigterm_cancels():
                waiting = Waiting(line.show if sys.stderr.isatty() else _Lines(directory.name).show)
                control = RunControl(directory, directory.read(), who("shell"))
                if options.verb == "checksum":
                    return _compare(options, control, waiting, directory.name)
                done = _carry_out(options, control, waiting)
        finally:
            line.clear()
    except Cancelled as cancelled:
        print(f"{directory.name}: {options.verb} {cancelled}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        # After the wait, or before it: the ranks may have been told.
        print(
            f"{directory.name}: {options.verb} interrupted; see `ddptop status {directory.name}`",
            file=sys.stderr,
        )
        return 130
    except Busy as refusal:
        hint = f"`ddptop resume {directory.name}` cancels it"
        if isinstance(refusal, Unholdable):
            hint = f"{hint}, {freeze}"
        return complain(f"{options.verb} {directory.name}: {refusal}; {hint}", 1)
    except Unholdable as refusal:
        return complain(f"{options.verb} {directory.name}: {refusal}; {freeze}", 1)
    except Unsavable as refusal:
        what, *lines = remedies.to_save(directory.read().program)
        complain(f"{options.verb} {directory.name}: {refusal}; {what}", 1)
        for code in lines:
            print(f"    {code}", file=sys.stderr)
        return 1
    except Hung as refusal:
        what = f"`ddptop stacks {directory.name}` shows where each rank stands, `ddptop kill {directory.name}` ends it"
        return complain(f"{options.verb} {directory.name}: {refusal}; so it comes to no step: {what}", 1)
    except Refused as refusal:
        return complain(f"{options.verb} {directory.name}: {refusal}", 1)
    print(f"{directory.name}: {done}")
    return 0


def _compare(options: argparse.Namespace, control: RunControl, waiting: Waiting, run: str) -> int:
    from ddptop.tui.control import checksums

    found = control.checksums(waiting)
    if options.json:
        print_json(checksums.as_json(found, run))
    else:
        for line in checksums.lines(found):
            print(f"{run}: {line}")
    return int(checksums.differ(found) or not found.modules)


class _LiveLine:
    """One line on a terminal that says what a verb waits for; it is gone when the verb ends."""

    def __init__(self, *advice: str) -> None:
        self._advice = advice
        self._shown = ""

    def show(self, line: str) -> None:
        """Show this line now, with as many whole pieces of advice as fit; an empty one clears it."""
        if line == self._shown or not sys.stderr.isatty():
            return
        if not line:
            self.clear()
            return
        self._shown = line
        width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
        text = line[:width]
        for piece in self._advice:
            if len(text) + len(piece) + 3 > width:
                break
            text = f"{text} · {piece}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away, so that the outcome stands in its place."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = ""


class _Lines:
    """Lines for a log, one for each change of what a verb waits for."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._last = ""

    def show(self, line: str) -> None:
        """Write this line unless it is the last one again, or empty."""
        if line not in ("", self._last):
            self._last = line
            print(f"{self._run}: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _sigterm_cancels() -> Iterator[None]:
    """Let SIGTERM do what ctrl+c does: end the wait, so that the ranks go on."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _carry_out(options: argparse.Namespace, control: RunControl, waiting: Waiting) -> str:
    match options.verb:
        case "pause":
            return control.freeze() if options.freeze else control.pause(waiting)
        case "step":
            return control.step(options.steps, waiting)
        case "resume":
            return control.resume()
        case "checkpoint":
            return control.checkpoint(waiting)
        case _:
            return control.stop(waiting, checkpoint=not options.no_checkpoint)

"""`pause`, `step`, `resume`, `checkpoint`, `stop`, `leave`, `kill`, by the functions of the keys, and `checksum`."""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

from ddptop.tui.cli.parsing import as_called, complain, whole
from ddptop.tui.cli.verbs.options import (
    AWAITED,
    RUN_HELP,
    LiveLine,
    Verbs,
    add_remote,
    add_run,
    add_verb,
    chosen,
    print_json,
    seconds,
)

if TYPE_CHECKING:
    from ddptop.agent.client.acting.control import RunControl
    from ddptop.agent.client.acting.kill import Aim
    from ddptop.agent.client.acting.waiting import Waiting
    from ddptop.agent.client.runs import Record, Run

_steps: Final = whole(1, 1_000_000)
"""Reads a number of steps."""


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
    leave = add_verb(
        verbs, "leave", "take the agent out of a job that it has joined",
        "Takes the agent out of the ranks that it has joined by `attach --join`: every function of torch is the very "
        "object that it was, and the run is seen from outside again.",
        "ddptop leave 4711",
        AWAITED,
    )  # fmt: skip
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
    checksum.set_defaults(printing=_compare)
    for verb in (pause, step, resume, checkpoint, stop, leave, checksum):
        add_run(verb)
        verb.set_defaults(carry=carry_out)
    step.add_argument("steps", metavar="K", nargs="?", type=_steps, help="number of steps (1)")
    _add_kill(verbs)


def _take_number_as_steps(options: argparse.Namespace) -> None:
    """Read `ddptop step 3` as three steps of the only live run, where no run is called 3.

    Raises:
        argparse.ArgumentTypeError: it is no number of steps.
    """
    from ddptop.agent.client import runs

    if options.steps is None:
        alone = options.run
        if alone is not None and alone.isdecimal() and alone not in {run.name for run in runs.listed()}:
            options.run, options.steps = None, _steps(alone)
        else:
            options.steps = 1


def carry_out(options: argparse.Namespace) -> int:
    """Have the ranks do what a verb asks, and print what comes of it, or what its own `printing` says."""
    from ddptop.agent.client.acting.actor import who
    from ddptop.agent.client.acting.control import RunControl
    from ddptop.agent.client.acting.waiting import Waiting
    from ddptop.tui.control import actions
    from ddptop.tui.link.source import Busy, Cancelled, Hung, Refused, Unholdable, Unsavable

    if options.verb == "step":
        try:
            _take_number_as_steps(options)
        except argparse.ArgumentTypeError as problem:
            return complain(f"step: {problem}", 2)
    run = chosen(options.run)
    freeze = f"`ddptop pause {run.name} --freeze` stops its processes where they are"
    line = LiveLine("ctrl+c cancels", f"in another terminal: ddptop pause {run.name} --freeze")
    try:
        try:
            with _sigterm_cancels():
                waiting = Waiting(line.show if sys.stderr.isatty() else _Lines(run.name).show)
                control = RunControl.of(run, who("shell"))
                if (printing := getattr(options, "printing", None)) is not None:
                    return int(printing(options, control, waiting, run.name))
                done = _done(options, control, waiting)
        finally:
            line.clear()
    except Cancelled as cancelled:
        print(f"{run.name}: {options.verb} {cancelled}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        # After the wait, or before it: the ranks may have got the command.
        print(
            as_called(f"{run.name}: {options.verb} interrupted; see `ddptop status {run.name}`"),
            file=sys.stderr,
        )
        return 130
    except Busy as refusal:
        hint = f"`ddptop resume {run.name}` cancels it"
        if isinstance(refusal, Unholdable):
            hint = f"{hint}, {freeze}"
        return complain(f"{options.verb} {run.name}: {refusal}; {hint}", 1)
    except Unholdable as refusal:
        return complain(f"{options.verb} {run.name}: {refusal}; {freeze}", 1)
    except Unsavable as refusal:
        what, *lines = actions.to_save(run.record().program)
        complain(f"{options.verb} {run.name}: {refusal}; {what}", 1)
        for code in lines:
            print(f"    {code}", file=sys.stderr)
        return 1
    except Hung as refusal:
        what = f"`ddptop stacks {run.name}` shows where each rank stands, `ddptop kill {run.name}` ends it"
        return complain(f"{options.verb} {run.name}: {refusal}; so it comes to no step: {what}", 1)
    except Refused as refusal:
        return complain(f"{options.verb} {run.name}: {refusal}", 1)
    print(f"{run.name}: {done}")
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


class _Lines:
    """Lines for a log, one for each change of what a verb waits for, but none for each step of the ranks."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._last = ""

    def show(self, line: str) -> None:
        """Write this line unless it is empty, or the last one again but for the step that a rank is at."""
        same = re.sub(r" at step [\d,]+$", "", line)
        if same not in ("", self._last):
            self._last = same
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


def _done(options: argparse.Namespace, control: RunControl, waiting: Waiting) -> str:
    match options.verb:
        case "pause":
            return control.freeze() if options.freeze else control.pause(waiting)
        case "step":
            return control.step(options.steps, waiting)
        case "resume":
            return control.resume()
        case "checkpoint":
            return control.checkpoint(waiting)
        case "attach":
            return control.join(waiting)
        case "leave":
            return control.leave(waiting)
        case _:
            return control.stop(waiting, checkpoint=not options.no_checkpoint)


_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL where neither the caller nor a record of the run says how many."""


def _add_kill(verbs: Verbs) -> None:
    kill = add_verb(
        verbs, "kill", "kill a run and everything that belongs to it",
        "Sends SIGTERM to all processes of a run, then SIGKILL to what is left, and proves that nothing is left.",
        """
        ddptop kill resnet-7f                # all of it
        ddptop kill resnet-7f --rank 2       # one rank; the others will fail
        ddptop kill resnet-7f --grace 30     # with time to save
        ddptop kill resnet-7f --signal USR1  # a signal to the ranks
        """,
        {0: "ended, or signal sent", 1: "refused, or something is left", 2: "wrong options, or no such run"},
    )  # fmt: skip
    kill.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_remote(kill)
    part = kill.add_mutually_exclusive_group()
    part.add_argument(
        "--rank", type=int, metavar="N", help="end this rank only; the others fail at their next collective"
    )
    part.add_argument("--pid", type=int, metavar="P", help="end this process only; it must be one of the run's")
    kill.add_argument(
        "--grace", type=seconds, default=None, metavar="S", help="seconds between SIGTERM and SIGKILL (5)"
    )
    kill.add_argument(
        "--signal",
        type=_signal,
        metavar="NAME",
        help="send only this signal: STOP, CONT and KILL go to all processes meant, others to the ranks",
    )
    kill.set_defaults(carry=_kill)


def _signal(text: str) -> int:
    from ddptop.tui.control import signals

    try:
        return signals.parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from problem


def _kill(options: argparse.Namespace) -> int:
    from ddptop.agent.client.acting.actor import who
    from ddptop.agent.client.acting.control import RunControl
    from ddptop.agent.client.acting.kill import process_of
    from ddptop.agent.client.runs import RunDirError
    from ddptop.agent.wire.vocabulary.refusals import Refused

    try:
        run = chosen(options.run)
    except RunDirError:
        if (done := _kill_unrecorded(options)) is None:
            raise
        print(f"{options.run}: {done}")
        return 0
    aim: Aim = options.rank
    if options.pid is not None:
        aim = process_of(options.pid)
        if aim is None:
            return complain(f"kill {run.name}: there is no process {options.pid}", 1)
    try:
        done = _end(options, RunControl.of(run, who("shell")), run.record(), aim)
    except Refused as refusal:
        return complain(f"kill {run.name}: {refusal}{_restart_of(run)}", 1)
    print(f"{run.name}: {done}")
    return 0


def _kill_unrecorded(options: argparse.Namespace) -> str | None:
    """End a whole run whose folder or record was lost while it lived; return the outcome, None where there is none."""
    from ddptop.agent.client import runs
    from ddptop.agent.client.acting.unobserved import kill_unrecorded

    if (options.rank, options.pid, options.signal) != (None, None, None):
        return None
    try:
        run = runs.named(options.run)
    except runs.RunDirError:
        return None
    grace_s = _GRACE_S if options.grace is None else options.grace
    return kill_unrecorded(run, grace_s, lambda line: print(line, file=sys.stderr))


def _restart_of(run: Run) -> str:
    """Return a clause on the restart of an ended run that is alive; empty where there is none."""
    from ddptop.agent.client import runs
    from ddptop.agent.wire.frames import ENDED

    # Removed under our eyes, none is known.
    with contextlib.suppress(runs.RunDirError):
        record = run.record()
        stem, number = _numbered(run.name)
        for other in runs.live() if record.state in ENDED else ():
            its_stem, its_number = _numbered(other.name)
            if its_stem == stem and its_number > number and other.record().program == record.program:
                return f"; its restart {other.name} is running"
    return ""


def _numbered(name: str) -> tuple[str, int]:
    """Return `resnet-7f3a` and 2 for `resnet-7f3a.2`; a run that was not restarted is the first."""
    stem, _, number = name.rpartition(".")
    return (stem, int(number)) if stem and number.isdecimal() else (name, 1)


def _end(options: argparse.Namespace, control: RunControl, record: Record, aim: Aim) -> str:
    from ddptop.agent.wire.frames import ENDED
    from ddptop.tui.control import signals

    if options.signal is not None:
        warning = signals.warning(options.signal, record.world)
        if warning:
            print(warning, file=sys.stderr)
        return control.signal(options.signal, aim)
    if record.state not in ENDED:
        print(control.victims(aim), file=sys.stderr)
    grace_s = record.grace_s if options.grace is None else options.grace
    return control.kill(grace_s, aim, lambda line: print(line, file=sys.stderr))

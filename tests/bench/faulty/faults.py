"""The fault matrix: is the right rank, class and line told of each way to hang or to die, and how soon?

    python tests/bench/faulty/faults.py [--faults sleep,kill] [--worlds 2,4] [--starts launch,spawn,hand,plain]
                                 [--techniques ddp,allreduce,fsdp,mesh] [--json FILE]
    python tests/bench/faulty/faults.py --healthy 120

Each program in `faulty/programs/` writes down, when its fault begins, the rank, the class and the line that are right.
The run is watched as by a user, with `ddptop watch --json` and `ddptop report --json`, and ended by `ddptop kill`.
Seconds are from the fault to the first line of `watch` that is right in rank and class; a line comes four times a
second.  Live word and report agree where they blame the same ranks.  A false alarm is a hang that is told before the
fault, or of which another rank is said to be the cause.

Of a fault that is none, a rank that prepares something for half a minute, nobody is to be accused: rank and class are
right where no hang is told, and `said` is what the run was said to do.

`--healthy MINUTES` trains without a fault: a first step of 20 s, evaluations of a minute, saves of half a minute,
pauses, uneven tails, and a machine under load.  Every hang that is told there is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faulty import cases, grading, wellness
from faulty.cases import Case
from faulty.grading import Grade
from faulty.runs import START_S, Watched, command, watched
from support.harness import until

SETTLING_S: Final = 2.0
"""Seconds for which a right verdict is watched on: it must not change its mind."""
ENDING_S: Final = 20.0
"""Seconds that a run may take to end after its first cause is told."""
PLAIN_AT: Final = 500
"""Step at which the fault begins in a job that nobody prepared: it has to be found, and seen to train, before."""
PLAIN_S: Final = 30.0
"""Seconds that it may take longer there: nobody tells of a step, and looks come every few seconds."""
STEPS: Final = 110
"""Of a training in which nothing is wrong."""
DISK: Final = 6 << 20
"""Bytes of the disk that gets full."""
HEAD: Final = (
    f"{'fault':<20} {'technique':<9} {'world':>5}  {'start':<6}  rank  class  line  {'seconds':>7}  alarms  agree  said"
)


def once(case: Case, folder: Path) -> Grade:
    """Make one run, and return how right what was said of it is."""
    note = folder / "note"
    arguments = [case.kind.name, "--note", str(note), "--technique", case.technique, "--folder", str(folder / "r")]
    if case.kind.steps is not None:
        arguments += ["--steps", str(case.kind.steps), "--at", str(case.kind.steps)]
    if case.start == cases.PLAIN:
        arguments += ["--at", str(PLAIN_AT)]
    if case.kind.healthy:
        arguments += ["--steps", str(STEPS)]
    if case.kind.timeout_s is not None:
        arguments += ["--timeout", str(case.kind.timeout_s)]
    base = folder / "r"
    base.mkdir(mode=0o700)
    # The surroundings may add to the arguments.
    with _surroundings(case, base, arguments):
        started_by = command(case.start, case.world, case.kind.program, tuple(arguments))
        with watched(base, started_by, plain=case.start == cases.PLAIN) as run:
            until(note.exists, "the fault begins", START_S)
            right = json.loads(note.read_text())
            _follow(run, case, right)
            if case.kind.killed:
                run.kill()
            report = run.report()
    return grading.grade(right, run.lines, report, case.world)


def _follow(run: Watched, case: Case, right: grading.Note) -> None:
    """Read the lines until the fault is told and the saying has settled, or the run is over, or patience ends."""
    deadline = right["at"] + case.kind.patience_s + (PLAIN_S if case.start == cases.PLAIN else 0)
    told = False
    while time.time() < deadline and not run.over:
        line = run.next_line(1.0)
        if line is None or line["at"] < right["at"] or told:
            continue
        if case.kind.dies:
            if line["cause"]:
                told, deadline = True, time.time() + ENDING_S
        elif not case.kind.healthy and grading.is_told(right, line, case.world):
            told, deadline = True, time.time() + SETTLING_S


@contextmanager
def _surroundings(case: Case, base: Path, arguments: list[str]) -> Iterator[None]:
    """Make the disk that gets full, or the port that is in use."""
    if case.kind.name == "disk":
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", str(base)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(base)], check=True)
    elif case.kind.name == "port":
        with socket.create_server(("127.0.0.1", 0)) as taken:
            arguments += ["--port", str(taken.getsockname()[1])]
            yield
    else:
        yield


def row(case: Case, grade: Grade) -> str:
    """Return a row of the table."""
    line = "–" if grade.line is None else _right(grade.line)
    seconds = "–" if grade.seconds is None else f"{grade.seconds:.1f}"
    return (
        f"{case.kind.name:<20} {case.technique:<9} {case.world:>5}  {case.start:<6}  {_right(grade.rank):<4}  "
        f"{_right(grade.kind):<5}  {line:<4}  {seconds:>7}  {len(grade.alarms):>6}  "
        f"{_right(grade.agrees):<5}  {grade.said}"
    )


def _right(value: bool) -> str:
    return "yes" if value else "NO"


def matrix(given: argparse.Namespace) -> None:
    """Print the table."""
    print(HEAD, flush=True)
    grades: list[tuple[Case, Grade]] = []
    for case in cases.chosen(given.faults, given.techniques, given.worlds, given.starts):
        with tempfile.TemporaryDirectory(prefix="df-", dir="/tmp") as folder:
            try:
                grade = once(case, Path(folder))
            except AssertionError as problem:
                grade = Grade(said=f"not measured: {problem}")
        grades.append((case, grade))
        print(row(case, grade), flush=True)
        for alarm in grade.alarms:
            print(f"    false alarm: {alarm}", flush=True)
        if given.json is not None:
            # After each case: a matrix of hours may be ended before its end.
            told = [
                {"fault": case.kind.name, "technique": case.technique, "world": case.world, "start": case.start}
                | asdict(grade)
                for case, grade in grades
            ]
            given.json.write_text(json.dumps(told, indent=1))
    lines = [grade.line for _, grade in grades if grade.line is not None]
    seconds = sorted(grade.seconds for _, grade in grades if grade.seconds is not None)
    middle = "–" if not seconds else f"{seconds[len(seconds) // 2]:.1f} s, at most {seconds[-1]:.1f} s"
    print(
        f"{len(grades)} cases: rank right {sum(grade.rank for _, grade in grades)}, "
        f"class right {sum(grade.kind for _, grade in grades)}, "
        f"line right {sum(lines)} of {len(lines)}, "
        f"live word and report agree {sum(grade.agrees for _, grade in grades)}, "
        f"false alarms {sum(len(grade.alarms) for _, grade in grades)}, told after {middle}"
    )


def healthy(given: argparse.Namespace) -> None:
    """Print what was told of healthy trainings."""
    for start in given.starts:
        for world in given.worlds:
            technique = (given.techniques or ["ddp"])[0]
            print(f"healthy, {technique}, {world} ranks, {start}", flush=True)
            with tempfile.TemporaryDirectory(prefix="df-", dir="/tmp") as folder:
                found = wellness.look(given.healthy, world, start, technique, Path(folder))
            phases = ", ".join(f"{count} x {name}" for name, count in found.phases.items())
            others = ", ".join(f"{count} x {kind}" for kind, count in found.told.items() if kind != "hang") or "none"
            print(f"{found.seconds / 60:.0f} min, {found.state}: {len(found.alarms)} false alarms")
            print(f"  phases: {phases}\n  other verdicts: {others}")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [kind.name for kind in cases.KINDS]
    parser.add_argument("--faults", type=_among(known), default=[], metavar="A,B", help=f"of {', '.join(known)}")
    parser.add_argument("--worlds", type=lambda text: [int(each) for each in text.split(",")], default=[2])
    parser.add_argument(
        "--starts",
        type=_among([*cases.STARTS, cases.PLAIN]),
        default=["launch"],
        help=f"of {', '.join(cases.STARTS)}; {cases.PLAIN}: torchrun by hand without the agent",
    )
    parser.add_argument(
        "--techniques", type=_among(cases.TECHNIQUES), default=[],
        help=f"of {', '.join(cases.TECHNIQUES)}; without it the first that a fault applies to",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="where all of it is written besides")
    parser.add_argument("--healthy", type=float, metavar="MINUTES", help="train without a fault instead")
    given = parser.parse_args()
    if given.healthy is None:
        matrix(given)
    else:
        healthy(given)


def _among(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        found = text.split(",")
        for each in found:
            if each not in known:
                raise argparse.ArgumentTypeError(f"{each!r}: give some of {', '.join(known)}, with commas between")
        return found

    return read


if __name__ == "__main__":
    main()

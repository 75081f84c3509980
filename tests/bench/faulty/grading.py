"""What was said of a run, by `ddptop watch --json` and `ddptop report --json`, and whether it is right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

Line = Mapping[str, Any]
"""An object of `watch --json`."""
Note = Mapping[str, Any]
"""What a program wrote of its fault: `training.Training.note`."""
_RANK: Final = re.compile(r"\branks? (\d+)\b")
_PLACE: Final = re.compile(r"([^\s/:(]+\.py):(\d+)")


@dataclass(frozen=True)
class Saying:
    """One thing that was said to be wrong."""

    ranks: tuple[int, ...]
    """Those that are blamed; empty where it is none or all."""
    kind: str | None
    """Class of a hang or kind of a cause; None where only a text is there."""
    where: str
    text: str
    hangs: bool = False
    """Whether it is said that the run hangs."""


@dataclass
class Grade:
    """Whether the right was said, and when."""

    rank: bool = False
    kind: bool = False
    line: bool | None = None
    """None: there is none to name."""
    seconds: float | None = None
    """From the fault to the first saying that names the right rank and is not of another class."""
    agrees: bool = True
    """Whether the report blames the ranks that were blamed last while the run lived."""
    alarms: list[str] = field(default_factory=list)
    """Hangs that were told before the fault, or of which another rank was said to be the cause; each once, however
    its figures change."""
    said: str = ""


def sayings(line: Line) -> list[Saying]:
    """Return what a line says to be wrong."""
    found = []
    for verdict in line["verdicts"]:
        rank = () if verdict["rank"] is None else (verdict["rank"],)
        hang = verdict.get("hang")
        if verdict["kind"] == "hang" and hang is not None:
            ranks = tuple(hang["ranks"]) or rank
            found.append(Saying(ranks, hang["class"], hang["where"] or "", verdict["text"], hangs=True))
        elif verdict["kind"] == "health":
            found.append(Saying(rank, "nan", "", verdict["text"]))
    if line["cause"]:
        found.append(by_text(line["cause"]))
    if line["orphaned"]:
        found.append(Saying((), "launcher", "", "the launcher is gone, its ranks still run"))
    return found


def by_text(cause: str) -> Saying:
    """Return what the line of a cause says, without a report."""
    if re.match(r"(torchrun|the launcher|the program) (was killed|received)", cause):
        return Saying((), "launcher", "", cause)
    return Saying(_ranks(cause), None, " ".join(":".join(each) for each in _PLACE.findall(cause)), cause)


def reported(report: Mapping[str, Any]) -> Saying | None:
    """Return the cause that a report tells; None where it tells none."""
    cause, rank, hang = report["cause"], report["cause_rank"], report.get("hang")
    if report.get("state") == "killed" and hang is not None:
        return Saying(tuple(hang["hang"]["ranks"]), hang["hang"]["class"], hang["hang"]["where"] or "", hang["text"])
    if not cause:
        return None
    if rank is None:
        return replace(by_text(cause), kind=by_text(cause).kind or report["kind"])
    where = next((each["where"] for each in report["ranks"] if each["rank"] == rank), None)
    return Saying((rank,), report["kind"], where or by_text(cause).where, cause)


def grade(note: Note, lines: Sequence[Line], report: Mapping[str, Any] | None, world: int) -> Grade:
    """Return how right what was said of a run is.

    What is said at last counts: of a hang the verdict, of a death the report; where there is none, the cause in words.

    Args:
        note: what the program wrote of its fault.
        lines: the objects of `watch --json`, in order.
        report: the object of `report --json`; None where there is none.
        world: number of ranks.
    """
    found = Grade(line=None if note["line"] is None else False)
    alarms: dict[tuple[object, ...], str] = {}
    last: Saying | None = None
    live: dict[bool, Saying] = {}
    for line in lines:
        begun, now = line["at"] >= note["at"], sayings(line)
        right = [said for said in now if begun and _right_rank(note, said, world)]
        for said in now:
            # One that blames nobody, although somebody is to blame, is not right, but no alarm either.
            if said.hangs and (not begun or said.ranks) and said not in right:
                alarms.setdefault((said.ranks, said.kind, begun), said.text)
        if begun and now:
            last = (right or now)[0]
            live |= {said.hangs: said for said in now if said.hangs or said.text == line["cause"]}
        if found.seconds is None and any(_right_kind(note, said) is not False for said in right):
            found.seconds = line["at"] - note["at"]
    found.alarms = list(alarms.values())
    if not note["kinds"]:
        standing = [each["text"] for line in lines for each in line["verdicts"] if each["kind"] == "standing"]
        found.rank = found.kind = not found.alarms and last is None
        found.said = standing[-1] if last is None and standing else "" if last is None else last.text
        return found
    told = report and reported(report)
    last = told or last
    if told:
        found.agrees = all(set(said.ranks) == set(told.ranks) for said in live.values())
    if last is not None:
        found.said = last.text
        found.rank = _right_rank(note, last, world)
        found.kind = _right_kind(note, last) or re.search(note["says"], last.text) is not None
        if note["line"] is not None:
            found.line = note["line"] in {":".join(each) for each in _PLACE.findall(last.where)}
    return found


def is_told(note: Note, line: Line, world: int) -> bool:
    """Say whether a line names the right rank and class."""
    return any(_right_rank(note, said, world) and _right_kind(note, said) for said in sayings(line))


def _right_rank(note: Note, said: Saying, world: int) -> bool:
    right: Sequence[int] = note["ranks"]
    if not note["kinds"]:
        # Nothing is wrong.
        return False
    if not right:
        return not said.ranks
    if len(right) == world:
        # All of them: it is right to name none, or any.
        return True
    return bool(said.ranks) and set(said.ranks) <= set(right)


def _right_kind(note: Note, said: Saying) -> bool | None:
    """Return whether the class is right, None where none was said."""
    return None if said.kind is None else said.kind in note["kinds"]


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(number) for number in _RANK.findall(text)[:1]))

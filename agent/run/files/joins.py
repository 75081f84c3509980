"""The files by which ranks that run already join a run: one request by the observer, an answer of each rank, the step.

They lie in a folder of their own for each request, and only as long as ranks may join by it.  A rank whose request is
gone, or too old, does not join: it may come out of native code hours later, when nobody expects it.  It runs the script
then, which stays for that: Python prints a traceback into the output of the training where it finds none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from ddptop.agent.run.files import decoding, marks, private
from ddptop.agent.wire.incoming import Line, cleaned

FOLDER: Final = "join"
REQUEST: Final = "request.json"
SCRIPT: Final = "script.py"
_STEP: Final = "step.json"
MOST_KEPT: Final = 64
"""Newest boundaries that a rank tells of."""

_Kind = TypeVar("_Kind")


class Request(msgspec.Struct, frozen=True):
    """The wish that ranks join; `opening.arrival` reads it without msgspec, which may not be there."""

    until: float
    """By the monotonic clock, which all processes of a machine share."""
    package: str
    """The folder of `ddptop.agent`."""
    libraries: dict[str, str]
    """By name, the folders of the packages that it needs, for ranks that have none of their own."""
    version: str
    ranks: dict[str, int]
    """By pid."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of one rank so far."""

    state: Literal["came", "waits", "joined", "refused"]
    """`came`: its main thread has run our script; `waits`: the agent is there and counts the boundaries of steps."""
    why: Line = ""
    first: int = 0
    """Number of the first of these boundaries, as this rank counts them."""
    boundaries: list[dict[str, int]] = []
    """Of each, the sequence number of every process group by its name: the same step has the same on all ranks."""


class Step(msgspec.Struct, frozen=True):
    """The boundary at which all ranks join."""

    at: dict[str, int]
    """By rank, its number as the rank counts them."""
    steps: int = 0
    """Steps that they had counted before they left last: they count on from there."""


def begin(run: Path, request: Request) -> Path:
    """Write a request, and the script that each rank is to run; return their folder, which all else is given."""
    forget(run)
    folder = marks.owned_folder(run / FOLDER) / os.urandom(8).hex()
    folder.mkdir(mode=0o700, parents=True)
    arrival = os.path.join(request.package, "rank", "opening", "arrival.py")
    script = (
        f"with open({arrival!r}) as _file:\n    _names = {{'__name__': 'ddptop_arrival'}}\n"
        f"    exec(compile(_file.read(), {arrival!r}, 'exec'), _names)\n_names['arrive']({str(folder / REQUEST)!r})\n"
    )
    private.write(folder / SCRIPT, script.encode())
    private.replace(folder / REQUEST, msgspec.json.encode(request))
    return folder


def run_of(folder: Path) -> Path:
    """Return the directory of the run that a request is for."""
    return folder.parent.parent


def forget(run: Path) -> None:
    """Take all requests back: no rank joins from now on that has not begun to."""
    for each in marks.owned_folder(run / FOLDER).glob("*/*"):
        if each.name != SCRIPT:
            each.unlink(missing_ok=True)


def answers(folder: Path, ranks: list[int]) -> dict[int, Answer]:
    """Return the newest answers, by rank."""
    found = ((rank, _read(folder / f"{rank}.json", Answer)) for rank in ranks)
    return {rank: answer for rank, answer in found if answer is not None}


def answer(folder: Path, rank: int, answer: Answer) -> None:
    """Answer; raises `OSError` where the request is gone."""
    private.replace(folder / f"{rank}.json", msgspec.json.encode(answer))


def is_wanted(folder: Path) -> bool:
    """Say whether the request still stands."""
    return (folder / REQUEST).exists()


def choose(folder: Path, step: Step) -> None:
    """Say at which boundary all join."""
    private.replace(folder / _STEP, msgspec.json.encode(step))


def chosen(folder: Path) -> Step | None:
    """Return the boundary at which all join; None where none was chosen yet."""
    return _read(folder / _STEP, Step)


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    try:
        return cleaned(decoding.of(kind).decode(private.read(path)))
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None

"""The files by which ranks that run already join a run: one request by the observer, an answer of each rank, the step.

They lie in a folder of the run directory while ranks join, and only then.  A rank whose request is gone, or too old,
does not join: it may come out of native code hours later, when nobody expects it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from ddptop.agent.run.files import decoding, marks, private
from ddptop.agent.wire.incoming import Label, Line, cleaned

FOLDER: Final = "join"
REQUEST: Final = "request.json"
SCRIPT: Final = "script.py"
_STEP: Final = "step.json"
MOST_KEPT: Final = 64
"""Newest boundaries that a rank tells of."""

_Kind = TypeVar("_Kind")


class Request(msgspec.Struct, frozen=True):
    """The wish that ranks join; `opening.arrival` reads it without msgspec, which may not be there."""

    token: Label
    until: float
    """By the monotonic clock, which all processes of a machine share."""
    package: str
    """The folder of `ddptop.agent`."""
    libraries: dict[str, str]
    """By name, the folders of the packages that it needs, for ranks that have none of their own."""
    version: str
    directory: str
    """Of the run."""
    ranks: dict[str, int]
    """By pid."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of one rank so far."""

    token: Label
    state: Literal["came", "waits", "joined", "refused"]
    """`came`: its main thread has run our script; `waits`: the agent is there and counts the boundaries of steps."""
    why: Line = ""
    first: int = 0
    """Number of the first of these boundaries, as this rank counts them."""
    boundaries: list[dict[str, int]] = []
    """Of each, the sequence number of every process group by its name: the same step has the same on all ranks."""


class Step(msgspec.Struct, frozen=True):
    """The boundary at which all ranks join."""

    token: Label
    at: dict[str, int]
    """By rank, its number as the rank counts them."""
    steps: int = 0
    """Steps that they had counted before they left last: they count on from there."""


def begin(run: Path, request: Request, script: str) -> Path:
    """Ask the ranks; return the path of the script that each is to run."""
    folder = marks.owned_folder(run / FOLDER)
    forget(run)
    folder.mkdir(mode=0o700)
    private.write(folder / SCRIPT, script.encode())
    private.replace(folder / REQUEST, msgspec.json.encode(request))
    return folder / SCRIPT


def forget(run: Path) -> None:
    """Take the request back: no rank joins from now on that has not begun to."""
    folder = marks.owned_folder(run / FOLDER)
    # First, so that no rank finds half of it.
    (folder / REQUEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def answers(run: Path, token: str, ranks: list[int]) -> dict[int, Answer]:
    """Return the newest answers to a request, by rank."""
    found = ((rank, _read(run / FOLDER / f"{rank}.json", Answer)) for rank in ranks)
    return {rank: answer for rank, answer in found if answer is not None and answer.token == token}


def answer(run: Path, rank: int, answer: Answer) -> None:
    """Answer; raises `OSError` where the request is gone."""
    private.replace(run / FOLDER / f"{rank}.json", msgspec.json.encode(answer))


def is_wanted(run: Path, token: str) -> bool:
    """Say whether the request still stands."""
    request = _read(run / FOLDER / REQUEST, Request)
    return request is not None and request.token == token


def choose(run: Path, step: Step) -> None:
    """Say at which boundary all join."""
    private.replace(run / FOLDER / _STEP, msgspec.json.encode(step))


def chosen(run: Path, token: str) -> Step | None:
    """Return the boundary at which all join; None where none was chosen yet."""
    step = _read(run / FOLDER / _STEP, Step)
    return step if step is not None and step.token == token else None


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    try:
        return cleaned(decoding.of(kind).decode(private.read(path)))
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None

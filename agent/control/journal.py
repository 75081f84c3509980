"""The journal of a run: actions, their authors and outcomes, as events that are recorded and shown at once.

The observer publishes and records them; where none lives, the acting process writes into the run's database itself,
and onlookers see the event when they open the run.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control import caller
from ddptop.agent.run import states
from ddptop.agent.run.files.database import DAMAGE
from ddptop.agent.run.files.private import is_plain
from ddptop.agent.run.identity import is_stopped, may_live
from ddptop.agent.run.rundir import Run, RunDir, RunDirError
from ddptop.agent.text import clean_line
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.refusals import Refused

_ANSWER_S: Final = 1.0
_BUSY_S: Final = 2.0
_LONGEST: Final = 400
"""Characters of an event's text that onlookers read; see `wire.Event`."""
_PAST: Final = {"freeze": "frozen", "resume": "resumed", "stop": "stopped"}
"""By action, the word that an outcome may begin with, which then says which action it is of."""
_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS events(at_ns INTEGER, payload BLOB)"


def sentence(action: str, outcome: str, who: str, *, refused: bool = False) -> str:
    """Return the text of an action's event: outcome first and actor last, because lists cut lines at their end.

    `checkpoint refused: no checkpoint function registered · ada (dashboard, pts/0)`. Of a long outcome the end goes.
    """
    said = action if not refused else f"{action} refused"
    text = f"{said}: {outcome}" if refused or outcome.partition(" ")[0].rstrip(":") != _PAST.get(action) else outcome
    actor = f" · {who}"
    return f"{clean_line(text, max(1, _LONGEST - len(actor)))}{actor}"


def note(directory: RunDir, event: wire.Event) -> None:
    """Record an event with the run and publish it to the onlookers, where that is possible; a failure is ignored."""
    with contextlib.suppress(OSError, RunDirError, Refused, zmq.ZMQError):
        run = directory.read()
        lives = may_live(run.observer) and not is_stopped(run.observer)
        if lives and caller.note(directory, event, _ANSWER_S):
            return
        if os.path.lexists(directory.database) and not is_plain(directory.database):
            return
        with (
            contextlib.suppress(*DAMAGE),
            contextlib.closing(sqlite3.connect(directory.database, timeout=_BUSY_S)) as connection,
        ):
            connection.execute(_SCHEMA)
            with connection:
                connection.execute("INSERT INTO events VALUES(?, ?)", (event.at_ns, wire.encode(event)))


def with_end(events: Iterable[wire.Event], run: Run) -> Iterator[wire.Event]:
    """Yield the events of a run, and its end by its record: on a full disk there was room for that alone."""
    is_told = run.ended_at_ns is None or run.state not in ENDED
    for event in events:
        is_told = is_told or event.text.startswith(f"run {run.state}")
        yield event
    if not is_told and run.ended_at_ns is not None:
        text, level = states.describe_end(run.state, run.cause)
        yield wire.Event(run.ended_at_ns, text, run.cause_rank, level)

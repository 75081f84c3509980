"""What a controller does with a group: the two-phase pause, resume. Pure: asks through `Asker`.

Key and shell verb both end here.  A function returns one line on what was done, or raises
`Refused` with the reason; a refused pause leaves no rank held.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Protocol

from ddptop.agent.wire import Command, Commit, Hold, Query, Reply, Resume
from ddptop.tui.source import Refused

ANSWER_S = 2.0
"""A rank's agent answers within milliseconds, also while its training thread is busy."""
PATIENCE_S = 60.0
"""How long a pause waits for the slowest rank to come to the step."""

_ids = count(1)


class Asker(Protocol):
    """A way to every rank of a run."""

    def ask(self, commands: Mapping[int, Command], timeout_s: float) -> dict[int, Reply]:
        """Send each rank its command and return the replies that came in time."""


def pause(
    asker: Asker,
    ranks: list[int],
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Hold all ranks at the same step boundary, no collective outstanding.

    Raises:
        Refused: some rank cannot be held; all go on.
    """
    started, token = clock(), secrets.token_hex(8)
    promises = asker.ask({rank: Hold(next(_ids), token) for rank in ranks}, ANSWER_S)
    promised = [rank for rank, reply in promises.items() if reply.done]
    steps = [reply.step for reply in promises.values() if reply.done and reply.step is not None]
    if len(promised) < len(ranks):
        _let_go(asker, promised)
        raise Refused(_refusal(ranks, promises))
    step = max(steps)
    commits = asker.ask({rank: Commit(next(_ids), token, step) for rank in ranks}, ANSWER_S)
    if not all(rank in commits and commits[rank].done for rank in ranks):
        _let_go(asker, ranks)
        raise Refused(_refusal(ranks, commits))
    pending = _await_held(asker, ranks, started + patience_s, clock, sleep)
    if pending:
        _let_go(asker, ranks)
        raise Refused(
            f"{_named(pending)} did not come to step {step} within {patience_s:.0f} s, so the run goes on; "
            f"is there an optimizer step in its loop?"
        )
    return f"held at step {step} in {(clock() - started) * 1e3:.0f} ms"


def _await_held(
    asker: Asker, ranks: list[int], deadline: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> list[int]:
    """Return the ranks that are not held by the deadline, or that went away."""
    nap = 0.002
    while True:
        replies = asker.ask({rank: Query(next(_ids)) for rank in ranks}, ANSWER_S)
        pending = [rank for rank in ranks if rank not in replies or not replies[rank].done]
        gone = [rank for rank in ranks if rank not in replies]
        if not pending or gone or clock() > deadline:
            return pending
        sleep(nap)
        nap = min(2 * nap, 0.1)


def resume(asker: Asker, ranks: list[int]) -> str:
    """Let all ranks go on.

    Raises:
        Refused: some rank does not answer, or none was held.
    """
    replies = asker.ask({rank: Resume(next(_ids)) for rank in ranks}, ANSWER_S)
    if len(replies) < len(ranks):
        raise Refused(_refusal(ranks, replies))
    if all(reply.text == "was not paused" for reply in replies.values()):
        raise Refused("not paused")
    return f"goes on from step {max(reply.step or 0 for reply in replies.values())}"


def _let_go(asker: Asker, ranks: list[int]) -> None:
    if ranks:
        asker.ask({rank: Resume(next(_ids)) for rank in ranks}, ANSWER_S)


def _refusal(ranks: list[int], replies: Mapping[int, Reply]) -> str:
    silent = [rank for rank in ranks if rank not in replies]
    if silent:
        return f"{_named(silent)} did not answer within {ANSWER_S:.0f} s; `ddptop ps` tells who is alive"
    rank, reply = next((rank, reply) for rank, reply in replies.items() if not reply.done)
    return reply.text if reply.text.startswith("already paused") else f"rank {rank}: {reply.text}"


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"

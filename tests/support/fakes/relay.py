"""A real relay for the fake ranks of a test, in the process of the test, as an observer of their run has it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import zmq

from ddptop.agent.observer.relay.relay import Relay
from ddptop.agent.observer.relay.verdicts import MakeJudge, judge_of
from ddptop.agent.run.rundir import Member, Run, RunDir

_LOOK_S = 0.05


@contextlib.contextmanager
def relayed(
    directory: RunDir,
    run: Run | None = None,
    judge: MakeJudge = judge_of,
    *,
    finish: bool = True,
) -> Iterator[Relay]:
    """Relay, record and judge for the ranks of a run directory, also those that come later, until the block ends.

    Commands to the run itself, such as `Kill`, wait in `relay.requests`: nobody carries them out.

    Args:
        directory: of the run, with its record.
        run: the record, where another one is meant.
        judge: instead of the usual one.
        finish: False leaves the verdicts open that go on, as an observer does that is lost.
    """
    stop = threading.Event()
    with zmq.Context() as context:
        relay = Relay(context, directory, run or directory.read(), judge)
        relay.start()
        looking = threading.Thread(target=_find_ranks, args=(directory, relay, stop), daemon=True)
        looking.start()
        try:
            yield relay
        finally:
            stop.set()
            looking.join()
            if finish:
                relay.finish()
            relay.close()


def _find_ranks(directory: RunDir, relay: Relay, stop: threading.Event) -> None:
    """Hand the relay the ranks as they come, as the observer's main thread does."""
    known: dict[int, Member] = {}
    while True:
        for rank, member in directory.members().items():
            if rank not in known or known[rank].process != member.process:
                known[rank] = member
                relay.follow(member)
        if stop.wait(_LOOK_S):
            return

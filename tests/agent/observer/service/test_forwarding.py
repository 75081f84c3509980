"""Commands on their way to ranks: what one asker does is no matter of the others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from support.fakes.ranks import ranks
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.observer.service import forwarding
from ddptop.agent.observer.service.forwarding import Forwarding
from ddptop.agent.run.rundir import RunDir


def test_one_asker_does_not_take_the_room_of_the_others(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that floods, what is beyond its room is answered at once; answered commands make room again."""
    monkeypatch.setattr(forwarding, "EACH", 4)
    directory = new_run(world=1)
    replies: list[tuple[bytes, int, bool]] = []
    refusals: list[str] = []

    def note(asker: bytes, _: int, reply: wire.Reply) -> None:
        replies.append((asker, reply.id, reply.done))
        if not reply.done:
            refusals.append(reply.text)

    def await_replies(count: int) -> None:
        def have_come() -> bool:
            passing.take()
            return len(replies) == count

        until(have_come, "the replies")

    service: Any = SimpleNamespace(answer=note)
    with ranks(directory, 1) as (rank,), zmq.Context() as context:
        passing = Forwarding(context, directory.owner, service, Elsewhere())
        try:
            passing.connect(0, directory.address(0, "cmd"))
            for number in range(6):
                passing.forward(b"flood", 0, wire.Resume(number))
            assert replies == [(b"flood", 4, False), (b"flood", 5, False)]
            assert refusals == ["too many commands wait; ask again"] * 2
            passing.forward(b"other", 0, wire.Resume(7))
            for _ in range(5):
                peer, command = rank.asked()
                rank.answer(peer, wire.Reply(command.id, True))
            await_replies(7)
            assert replies[-1] == (b"other", 7, True)
            passing.forward(b"flood", 0, wire.Resume(8))
            peer, command = rank.asked()
            rank.answer(peer, wire.Reply(command.id, True))
            await_replies(8)
            assert replies[-1] == (b"flood", 8, True)
            passing.forward(b"flood", 0, wire.Resume(9))
            passing.lose(0)
            assert replies[-1] == (b"flood", 9, False)
        finally:
            passing.close()

"""The agent joins ranks in the middle of their training, and leaves them; `tests/real` has it by Python 3.14 itself.

Here the script of the ranks executes what Python 3.14 would execute in their main threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.harness import until
from support.processes.unprepared import Unprepared

from ddptop.agent import wire
from ddptop.agent.observer.actions import join as joining
from ddptop.agent.observer.actions.action import Action, Turns
from ddptop.agent.observer.actions.join import chosen_at
from ddptop.agent.run.files.joins import Answer
from ddptop.agent.wire.vocabulary.refusals import Refused


class Job(Unprepared):
    """Two such ranks, and the way of an observer to them."""

    def __init__(self, folder: Path, steps: int = 0, *, by_hand: bool = False) -> None:
        """Start them."""
        super().__init__(folder, steps, by_hand=by_hand)
        self.context = zmq.Context()
        self.ranks = [0, 1]

    def are_at(self, step: int) -> bool:
        """Say whether both ranks have made so many steps since they have joined."""
        return all(self.send(rank, wire.Inspect(3, False)).step == step for rank in (0, 1))

    # In place of the observer's way to the ranks

    def send(self, rank: int, command: wire.Command) -> wire.Reply:
        """Send a command to a rank that has the agent."""
        with self.context.socket(zmq.DEALER) as asking:
            asking.linger = 0
            asking.connect(self.directory.address(rank, "cmd"))
            asking.send(wire.encode(command))
            assert asking.poll(60_000)
            reply = wire.read_answer(asking.recv())
            assert isinstance(reply, wire.Reply)
            return reply

    def tell(self, command: wire.Command, ranks: Any = None) -> None:
        """See `Ranks`."""
        for rank in self.ranks if ranks is None else ranks:
            self.send(rank, command)

    def ask(self, command: wire.Command, ranks: list[int] | None = None) -> Turns[dict[int, wire.Reply]]:
        """See `Ranks`."""
        yield 0.0
        return {rank: self.send(rank, command) for rank in (self.ranks if ranks is None else ranks)}

    def find(self) -> bool:
        """See `Ranks`."""
        return True

    def do(self, act: Callable[[Action], Turns[str]]) -> str:
        """Have an action done."""
        here: Any = self
        turns = act(Action(wire.Act(1, "join", "ada"), self.directory, here))
        while True:
            try:
                time.sleep(next(turns))
            except StopIteration as end:
                return str(end.value)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Two ranks that train until they are told to end."""
    monkeypatch.setattr(joining, "_ask", lambda *_: "")
    found = Job(tmp_path, by_hand=True)
    try:
        found.await_training()
        yield found
    finally:
        found.context.destroy(linger=0)
        found.close()


def test_a_rank_that_the_agent_has_left_is_as_it_was_and_has_trained_the_same(job: Job, tmp_path: Path) -> None:
    """Twice: torch's functions are the very objects they were, nothing is left open, and the parameters are those of
    the same training without the agent; both ranks join and count the same steps.
    """
    for number in (1, 2):
        assert "has joined 2 ranks" in job.do(joining.join)
        assert all(each.by_agent for each in job.directory.members().values())
        steps = [job.send(rank, wire.Hold(1, "hold", 60_000)) for rank in (0, 1)]
        assert all(each.done for each in steps)
        held = max(each.step or 0 for each in steps)
        for rank in (0, 1):
            assert job.send(rank, wire.Commit(2, "hold", held, 60_000)).done
        until(partial(job.are_at, held), "both to be held")
        with pytest.raises(Refused, match="resume the run first"):
            job.do(joining.leave)
        for rank in (0, 1):
            assert job.send(rank, wire.Resume(4)).done
        assert "has left 2 ranks" in job.do(joining.leave)
        assert job.look(number) == 2 * [[[], [], [], []]]
        assert not any(each.by_agent for each in job.directory.members().values())
    ended = job.end()
    plain = Unprepared(tmp_path, ended[0][0])
    try:
        assert plain.end() == ended
    finally:
        plain.close()


def answer(first: int, *numbers: int, group: str = "0") -> Answer:
    """The answer of a rank whose group had made so many calls at each boundary."""
    return Answer("token", "waits", first=first, boundaries=[{group: number} for number in numbers])


def test_ranks_join_at_the_boundary_at_which_their_groups_have_made_as_many_calls() -> None:
    """However many boundaries each has counted before; a rank of another group by one that is in both."""
    found = {0: answer(1, 5, 6, 8, 9), 1: answer(7, 6, 8, 9, 10)}
    assert chosen_at(found, [0, 1], 2) == {0: 7, 1: 12}
    found[2] = Answer("token", "waits", first=3, boundaries=[{"1": 4}, {"1": 5}, {"1": 6}])
    assert chosen_at(found, [0, 1, 2], 2) == {}
    both = [{"0": 8, "1": 4}, {"0": 9, "1": 5}, {"0": 10, "1": 6}]
    found[1] = Answer("token", "waits", first=8, boundaries=both)
    assert chosen_at(found, [0, 1, 2], 1) == {0: 6, 1: 11, 2: 6}


def test_ranks_whose_calls_say_nothing_of_their_step_do_not_join() -> None:
    """A group that makes no calls has the same number at each boundary: any two of them would seem to be the same."""
    assert chosen_at({0: answer(1, 5, 5, 5), 1: answer(1, 5, 5, 5)}, [0, 1], 1) == {}
    assert chosen_at({0: answer(1, 5, 6, 7), 1: answer(1, 8, 9, 10)}, [0, 1], 1) == {}

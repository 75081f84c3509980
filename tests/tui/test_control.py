"""The two-phase pause against ranks that behave badly: either all are held at one step, or none is."""

from __future__ import annotations

import pytest

from ddptop.agent.rank.gate import Gate, GateError
from ddptop.agent.wire import Commit, Hold, Query, Reply, Resume
from ddptop.tui import control
from ddptop.tui.source import Refused


class Group:
    """Ranks with real gates behind an `Asker` that loses what it is told to lose."""

    def __init__(self, steps: list[int]) -> None:
        self.gates = [Gate() for _ in steps]
        for gate, done in zip(self.gates, steps, strict=True):
            for _ in range(done):
                gate.boundary()
        self.deaf: set[tuple[int, type]] = set()
        """(rank, kind of command) that never arrives."""
        self.moving = True

    def ask(self, commands, timeout_s):
        if self.moving and any(isinstance(command, Query) for command in commands.values()):
            self._advance()
        answers = {
            rank: self._answer(rank, command)
            for rank, command in commands.items()
            if (rank, type(command)) not in self.deaf
        }
        return answers

    def _advance(self) -> None:
        """Let every rank go on to its limit, as the training threads would."""
        for gate in self.gates:
            while gate.limit is None or gate.completed < gate.limit:
                gate.completed += 1
                if gate.limit is None:
                    break
            gate.held = gate.limit is not None and gate.completed == gate.limit

    def _answer(self, rank: int, command) -> Reply:
        gate = self.gates[rank]
        try:
            match command:
                case Hold(id, token, lease):
                    return Reply(id, True, "", gate.promise(token, lease / 1000))
                case Commit(id, token, step):
                    gate.commit(token, step)
                    return Reply(id, True, "", step)
                case Resume(id):
                    text = "goes on" if gate.limit is not None else "was not paused"
                    gate.resume()
                    gate.held = False
                    return Reply(id, True, text, gate.completed)
            return Reply(command.id, gate.held, "", gate.completed)
        except GateError as refusal:
            return Reply(command.id, False, str(refusal), gate.completed)


def pause(group: Group) -> str:
    now = iter(range(10_000))
    return control.pause(group, list(range(len(group.gates))), clock=lambda: float(next(now)), sleep=lambda _: None)


def test_laggards_run_up_to_the_foremost():
    """Ranks a step apart are all held at the largest promise."""
    group = Group([4, 5, 4])
    assert pause(group).startswith("held at step 6 ")
    assert [(gate.completed, gate.held) for gate in group.gates] == [(6, True)] * 3


@pytest.mark.parametrize("kind", [Hold, Commit, Query])
def test_a_rank_that_does_not_answer_leaves_nobody_held(kind):
    """Whichever message is lost, the others are let go and the user is told who was silent."""
    group = Group([1, 1, 1])
    group.deaf.add((1, kind))
    with pytest.raises(Refused, match="rank 1 did not"):
        pause(group)
    assert [gate.limit for number, gate in enumerate(group.gates) if (number, Hold) not in group.deaf] == [None] * (
        2 if kind is Hold else 3
    )


def test_a_group_without_steps_is_told_so_and_goes_on():
    """A rank that never comes to the boundary is named, and all are let go."""
    group = Group([1, 1])
    group.moving = False
    with pytest.raises(Refused, match="did not come to step 2"):
        pause(group)
    assert [gate.limit for gate in group.gates] == [None, None]


def test_a_second_pause_does_not_undo_the_first():
    """Refused with the step at which the run is held, which it still is."""
    group = Group([1, 1])
    pause(group)
    with pytest.raises(Refused, match="already paused at step 2"):
        pause(group)
    assert [gate.limit for gate in group.gates] == [2, 2]
    assert control.resume(group, [0, 1]) == "goes on from step 2"
    with pytest.raises(Refused, match="not paused"):
        control.resume(group, [0, 1])

"""Which batches count as training, told from the stamps alone."""

from __future__ import annotations

from ddptop.agent.rank.hooks.batches import Batches
from ddptop.agent.rank.records.stamps import BACKWARD, DATA, FORWARD, OTHER, Take, Tape

TRAIN, HELD_OUT, SECOND = 1, 2, 3


def taped() -> Tape:
    now = iter(range(10**6))
    return Tape(lambda: next(now), lambda: 0)


def draw(tape: Tape, dataset: int, *, evaluation: bool = False) -> None:
    """One batch of four, and what is computed from it."""
    tape.draw(dataset, evaluation=evaluation)
    tape.drew(4)
    tape.turn(FORWARD)


def train(tape: Tape) -> None:
    tape.used(evaluation=False)
    tape.enter(BACKWARD)
    tape.settle()


def sorted_take(tape: Tape, batches: Batches) -> Take:
    tape.cut(1)
    take = tape.finished.popleft()
    batches.sort(take)
    return take


def count(take: Take, phase: int) -> int:
    return sum(mark == phase for _, mark in take.marks)


def test_batches_drawn_ahead_of_their_use_are_training():
    """Drawing all micro-batches of a step before the first pass over them makes no evaluation of them."""
    tape = taped()
    for _ in range(4):
        draw(tape, TRAIN)
    for _ in range(4):
        train(tape)
    take = sorted_take(tape, Batches())
    assert (count(take, DATA), take.samples) == (4, 16)


def test_several_loaders_may_feed_one_step():
    """A second loader, drawn from as often as the first, is as much a part of the training."""
    tape = taped()
    for _ in range(3):
        draw(tape, SECOND)
        draw(tape, TRAIN)
        train(tape)
    assert sorted_take(tape, Batches()).samples == 24


def test_an_evaluation_before_the_first_step_is_seen_by_its_number_of_batches():
    """Many batches that no backward pass followed are none of this step, with what was computed from them."""
    tape = taped()
    for _ in range(5):
        draw(tape, HELD_OUT)
    draw(tape, TRAIN)
    train(tape)
    take = sorted_take(tape, Batches())
    phases = [phase for _, phase in take.marks]
    assert set(phases[: phases.index(DATA)]) == {OTHER}
    assert FORWARD in phases[phases.index(DATA) :]
    assert (count(take, DATA), take.samples) == (1, 4)


def test_a_batch_drawn_after_backward_is_training_once_its_loader_is_known():
    """A loop that draws the next batch before the optimizer steps."""
    tape, batches = taped(), Batches()
    draw(tape, TRAIN)
    train(tape)
    sorted_take(tape, batches)
    for _ in range(3):
        draw(tape, TRAIN)
    assert sorted_take(tape, batches).samples == 12


def test_a_loader_used_for_both_is_told_apart_by_gradients():
    """The training data evaluated without gradients between two steps is no training."""
    tape, batches = taped(), Batches()
    draw(tape, TRAIN)
    train(tape)
    sorted_take(tape, batches)
    for _ in range(3):
        draw(tape, TRAIN, evaluation=True)
    draw(tape, TRAIN)
    tape.used(evaluation=True)
    draw(tape, TRAIN)
    train(tape)
    assert sorted_take(tape, batches).samples == 4


def test_a_step_that_never_ends_does_not_fill_the_memory():
    """Without a boundary, what is kept has a bound, and the phases still make up the time."""
    now = iter(range(10**6))
    tape = Tape(lambda: next(now), lambda: 0, room=100)
    for _ in range(1000):
        draw(tape, TRAIN)
        train(tape)
    take = tape._take
    assert max(len(take.marks), len(take.draws), len(take.losses)) <= 101
    assert take.marks[-1][1] == OTHER

"""Which start of a group is shown: by the records of its ranks, or by the word of more than half of them."""

from __future__ import annotations

import itertools

import pytest

from ddptop.agent import wire
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.rundir import Member, Process, Run

WORLD = 5
RUN = Run("toy-1", "id", "toy.py", (), WORLD, "gloo", "cpu", 10**9, True, max_restarts=2)


def hello(rank: int, generation: int) -> wire.Hello:
    """Return the greeting of a rank's process in a generation."""
    return wire.Hello(
        wire.PROTOCOL, "toy-1", "id", rank, rank, WORLD, 7, generation + 5, "h", "p", "0", "3", generation
    )


def members(generation: int) -> dict[int, Member]:
    """Return the records of all ranks of a generation."""
    return {
        rank: Member(rank, rank, WORLD, Process(100 + rank, 1.0), "host", generation, "", "", None)
        for rank in range(WORLD)
    }


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_greetings_that_came_before_the_record_are_taken_in_once_the_generation_begins(order: tuple[int, ...]) -> None:
    """A restart that no record tells of is believed from more than half of the ranks, and no word of theirs is lost."""
    store = Store(RUN)
    store.know_members(members(0))
    for number, rank in enumerate(order):
        assert store.generations.shown == 0, number
        store.apply(hello(rank, 1), 3.0)
    assert store.generations.shown == 1
    assert {rank for rank, model in store.ranks.items() if model.hello is not None} == set(order)
    assert [restart.generation for restart in store.generations.restarts] == [1]


def test_what_was_only_claimed_is_taken_back() -> None:
    """Where the records that are read later tell of an older generation, that one is shown again."""
    store = Store(RUN)
    store.apply(hello(0, 1), 3.0)
    assert (store.generations.shown, len(store.generations.restarts)) == (1, 1)
    store.know_members(members(0))
    assert (store.generations.shown, store.generations.newest, store.generations.restarts) == (0, 0, ())
    store.know_members(members(1))
    store.apply(hello(0, 1), 4.0)
    assert (store.generations.shown, store.generations.newest) == (1, 1)

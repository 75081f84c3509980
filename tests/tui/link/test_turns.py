"""Who is looked up in the process table, when not all are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.tui.link.turns import Turns


@settings(deadline=None, max_examples=100)
@given(ranks=st.sets(st.integers(0, 200), min_size=1, max_size=60), most=st.integers(1, 20))
def test_everybody_has_a_turn_and_nobody_a_second_one_before(ranks: set[int], most: int) -> None:
    """At most so many are taken at a time, and within as many times as that takes, each of them."""
    turns = Turns(most)
    taken: list[int] = []
    for _ in range(-(-len(ranks) // most)):
        now = ranks - turns.spared(ranks)
        assert len(now) <= most
        taken += now
    assert set(taken) == ranks
    assert len(taken) < len(ranks) + most


def test_who_comes_and_goes_keeps_nobody_from_a_turn() -> None:
    """Ranks that are heard again are left out, and the turn goes on behind the last one."""
    turns = Turns(2)
    assert turns.spared(range(6)) == {2, 3, 4, 5}
    assert turns.spared({0, 1, 4, 5}) == {0, 1}
    assert turns.spared(range(6)) == {2, 3, 4, 5}
    assert turns.spared({1}) == frozenset()

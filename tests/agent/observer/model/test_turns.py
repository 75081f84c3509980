"""Who is looked up in the process table, when not all are."""

from __future__ import annotations

import time
from collections.abc import Collection

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes.observers import observed

from ddptop.agent import wire
from ddptop.agent.end import survey
from ddptop.agent.observer.model.run_model import SURVEY_S, RunModel
from ddptop.agent.observer.model.situation import Supervision
from ddptop.agent.observer.model.turns import LOOKED_UP, Turns
from ddptop.agent.run.rundir import Member, Run, RunDir


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


def test_of_a_large_group_that_is_not_heard_some_are_looked_up_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them at first, when other processes have come, and while the observer is silent; else in turn."""
    world = LOOKED_UP + wire.EACH_RECORD
    now = 0.0
    looked_up: list[int] = []

    def look(directory: RunDir, members: dict[int, Member], heard: Collection[int]) -> survey.Survey:
        looked_up.append(world - len(heard))
        return survey.Survey(directory.read(), "running", True, False, members, tuple(range(world)), ())

    monkeypatch.setattr(survey, "look", look)
    with observed(Run("turns", "turns", "toy.py", (), world, "gloo", "cpu", 10**9, True)) as observer:
        directory = observer.directory
        model = RunModel(directory, directory.read(), clock=lambda: now)

        def surveys(count: int) -> list[int]:
            nonlocal now
            del looked_up[:]
            for _ in range(count):
                now += SURVEY_S
                model.look()
                model.survey()
            return looked_up

        def hear() -> None:
            model.store.supervise(Supervision("running"), time.time())

        assert surveys(1) == [world]
        hear()
        assert surveys(2) == [LOOKED_UP] * 2
        one = directory.members()[3]
        directory.write_member(msgspec.structs.replace(one, generation=1))
        hear()
        assert surveys(1) == [world]
        hear()
        assert surveys(1) == [LOOKED_UP]
        model.store.last_heard.at = time.time() - 60
        assert surveys(1) == [world]

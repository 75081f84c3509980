"""What of a run's frames is told, how often, and when it is over."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.settings import KINDS
from ddptop.agent.onlookers.notify.conditions import DEATH_S, REST_S, Conditions, speaks
from ddptop.agent.wire.hosts import HostFrame

NOW = 1_800_000_000.0
S = 10**9
HANG = wire.Verdict(
    1, "hang", "rank 2 has not entered all_reduce · 12 s", int((NOW - 12) * S), rank=2,
    hang=wire.Hang("not_entered", (2,), "train.py:31 main"),
)  # fmt: skip
SLOW = wire.Verdict(
    2, "slow_rank", "rank 1 is slow: backward, 30 ms", int(NOW * S), rank=1, line="train.py:9 f", host="node2"
)


def frame(*verdicts: wire.Verdict, **changes: Any) -> Frame:
    """Return a run with these verdicts."""
    usual = {"run": "r-1", "run_id": "id", "at": NOW, "state": "running", "program": "train.py", "world": 4, "step": 70}
    return Frame(**{**usual, **changes}, verdicts=verdicts)


def conditions(**changes: Any) -> Conditions:
    return Conditions(**{"kinds": KINDS, "slow_s": 300.0, "host": "node1", **changes})


def test_a_hang_is_told_once_and_once_more_when_it_is_over() -> None:
    """With who, class, line and the command, whatever becomes of its figures; it is over when it stays away."""
    told = conditions()
    (message,) = told.look(frame(HANG), NOW)
    assert (message.kind, message.kind_of, message.ranks, message.line) == (
        "hang",
        "not_entered",
        (2,),
        "train.py:31 main",
    )
    assert message.text == "rank 2 has not entered all_reduce"
    assert message.attach == "ddptop attach node1:r-1"
    assert all(
        each in message.body for each in ("rank 2", "not_entered", "train.py:31 main", "ddptop attach node1:r-1")
    )
    assert not told.look(frame(replace(HANG, text="rank 2 has not entered all_reduce · 17 s")), NOW + 5)
    assert not told.look(frame(), NOW + 10)
    # Back again as another verdict, before it was over.
    assert not told.look(frame(replace(HANG, number=3)), NOW + REST_S)
    assert not told.look(frame(), NOW + REST_S + 5)
    (over,) = told.look(frame(), NOW + 2 * REST_S)
    assert over.resolved
    assert over.id == message.id
    assert not told.look(frame(), NOW + 3 * REST_S)


def test_a_rank_is_told_of_when_it_was_slow_for_long() -> None:
    """One that is slow for less, or whose verdict is no news, is not."""
    told = conditions()
    assert not told.look(frame(SLOW, replace(SLOW, number=3, kind="input_bound")), NOW + 299)
    (message,) = told.look(frame(SLOW), NOW + 300)
    assert (message.kind, message.ranks, message.where, message.line) == ("slow", (1,), "node2", "train.py:9 f")
    told = conditions()
    told.look(frame(SLOW), NOW + 299)
    assert not told.look(frame(), NOW + 300)
    assert not told.look(frame(), NOW + 300 + REST_S)


def test_only_what_is_chosen_is_told() -> None:
    """Of the kinds in the settings."""
    told = conditions(kinds=("end",))
    assert not told.look(frame(HANG, cause="rank 1: exit code 1"), NOW)
    assert [each.kind for each in told.look(frame(state="failed"), NOW)] == ["end"]


def test_the_death_that_ends_the_run_is_told_by_the_end() -> None:
    """With its rank; after that nothing more comes."""
    told = conditions()
    dead = {"cause": "rank 1: ValueError: bad lr", "cause_rank": 1}
    assert not told.look(frame(**dead), NOW)
    (message,) = told.look(frame(**dead, state="failed"), NOW + 5)
    assert (message.kind, message.text, message.ranks) == ("end", "rank 1: ValueError: bad lr", (1,))
    assert not told.look(frame(**dead, state="failed"), NOW + 10)


def test_a_death_that_the_run_outlives_is_told() -> None:
    """By itself after some seconds, then that the group was restarted; also where no look has seen it dead."""
    told = conditions()
    dead = {"cause": "rank 1: exit code 1", "cause_rank": 1, "max_restarts": 3}
    told.look(frame(**dead), NOW)
    (message,) = told.look(frame(**dead, at=NOW + DEATH_S), NOW + DEATH_S)
    assert (message.kind, message.resolved) == ("death", False)
    (restart,) = told.look(frame(generation=1, max_restarts=3), NOW + DEATH_S + 5)
    assert (restart.resolved, restart.id) == (True, message.id)
    assert restart.text == "rank 1: exit code 1; restarted as a whole, the 1st time, at most 3 times"
    (again,) = told.look(frame(generation=2), NOW + DEATH_S + 10)
    assert (again.kind, again.resolved) == ("death", False)
    assert again.id != message.id


def test_a_host_that_is_not_heard_is_told_of_by_one_of_the_others() -> None:
    """The notifiers of all hosts see it, and that of the first host which is heard tells."""
    lost = HostFrame("node1", "silent", (0, 1), heard_at=NOW - 60)
    hosts = (lost, HostFrame("node2", "linked", (2, 3)), HostFrame("node3", "linked", (4, 5)))
    seen = frame(on_hosts=hosts)
    (message,) = conditions().look(seen, NOW)
    assert (message.kind, message.kind_of, message.where, message.ranks) == ("death", "host", "node1", (0, 1))
    assert speaks(seen, {2, 3})
    assert not speaks(seen, {4, 5})
    assert not speaks(frame(on_hosts=(replace(lost, state="linked"), *hosts[1:])), {2, 3})
    assert speaks(frame(), {0, 1})


def test_a_frame_of_before_says_nothing() -> None:
    """While the observer is not heard nobody knows whether a hang is over."""
    told = conditions()
    told.look(frame(HANG), NOW)
    assert not told.look(frame(unobserved_s=200.0), NOW + 200)
    assert not told.look(frame(HANG), NOW + 205)

"""Faults on purpose: what `--inject` accepts, and when an injection strikes."""

from __future__ import annotations

import pytest

from ddptop.agent.rank.hooks.injection import MESSAGE, Injector
from ddptop.agent.run.switches import injection
from ddptop.agent.run.switches.injection import Injection, InjectionError


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("rank=2,phase=backward,ms=30", Injection(2, "backward", 30)),
        ("ms=0.5, phase=comm ,rank=0", Injection(0, "comm", 0.5)),
        ("rank=1,phase=data,ms=5,every=10,from=120", Injection(1, "data", 5, 10, 120)),
        ("rank=1,phase=data,ms=150%", Injection(1, "data", of_step=1.5)),
        ("rank=1,crash,from=50", Injection(1, "crash", start=50)),
        ("rank=3,nan,every=2", Injection(3, "nan", every=2)),
        ("skip-collective,rank=1", Injection(1, "skip-collective")),
    ],
)
def test_what_is_understood(text, means):
    """Keys in any order; every= and from= may be left out."""
    assert injection.parse(text) == means


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "''"),
        ("rank=1", "phase=PHASE"),
        ("phase=data,ms=5", "rank=N"),
        ("rank=1,phase=data", "ms=N"),
        ("rank=1,phase=sideways,ms=5", "one of data, forward, backward, optimizer, comm"),
        ("rank=1,phase=data,ms=-5", "between 0 and"),
        ("rank=1,phase=data,ms=nan", "between 0 and"),
        ("rank=1,phase=data,ms=%", "a part of a usual step: ms=100%"),
        ("rank=-1,crash", "whole number"),
        ("rank=1.5,crash", "whole number"),
        ("rank=1,crash,from=0", "from 1 on"),
        ("rank=1,crash,every=5", "once"),
        ("rank=1,crash,hang", "one thing at a time"),
        ("rank=1,crash,ms=5", "one thing at a time"),
        ("rank=1,rank=2,nan", "twice"),
        ("rank=1,explode", "explode"),
        ("rank=4,nan", "ranks 0 to 3"),
    ],
)
def test_what_is_refused(text, says):
    """One line that quotes what was given and says what would do."""
    with pytest.raises(InjectionError) as refusal:
        injection.parse_all([text], world=4)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_environment_carries_several():
    """What the launch writes for its ranks is read back the same, and labels the run in one line."""
    environment = {"WORLD_SIZE": "4", injection.VARIABLE: "rank=2,phase=data,ms=30,from=9;rank=1,hang"}
    found = injection.from_environment(environment)
    assert found == (Injection(2, "data", 30, start=9), Injection(1, "hang"))
    assert injection.describe(found) == "rank 2: 30 ms more in data loading in each step from step 9; rank 1: hang"
    assert injection.from_environment({}) == ()


def test_a_delay_comes_once_a_step_at_its_steps():
    """However often the place is passed within a step, and only every so many steps from the first one on."""
    slept: list[tuple[int, float]] = []
    at = [0]

    def sleep(seconds: float) -> None:
        slept.append((at[0], seconds))

    injector = Injector(lambda: at[0], sleep)
    injector.order([Injection(0, "data", 20, every=3, start=4), Injection(0, "forward", 5, start=9)])
    for step in range(1, 12):
        at[0] = step
        for _ in range(3):
            injector.delay("data")
            injector.delay("forward")
    assert slept == [(4, 0.02), (7, 0.02), (9, 0.005), (10, 0.02), (10, 0.005), (11, 0.005)]


@pytest.mark.parametrize("usual_s", [0.01, 3.0])
@pytest.mark.parametrize("start", [1, 50])
def test_a_delay_can_be_as_long_as_a_step(usual_s, start):
    """A part of the steps before it, whatever those take; a longer one among them and its own length change nothing."""
    now = 0.0
    slept: dict[int, float] = {}

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if seconds:
            slept[step] = seconds

    injector = Injector(lambda: step, sleep, lambda: now)
    injector.order([injection.parse(f"rank=0,phase=backward,ms=200%,from={start}")])
    for step in range(1, 61):
        injector.delay("data")
        now += usual_s * (5 if step == 3 else 1)
        injector.delay("backward")
    assert list(slept) == list(range(max(start, 5), 61))
    assert list(slept.values()) == pytest.approx([2 * usual_s] * len(slept))


def test_a_crash_says_who_did_it():
    """At its step, not before, with a message that nobody looks for in the script."""
    now = 49
    injector = Injector(lambda: now)
    injector.order([Injection(0, "crash", start=50)])
    injector.strike()
    now = 50
    with pytest.raises(RuntimeError, match=MESSAGE):
        injector.strike()


def test_a_rank_that_leaves_stays_away():
    """Left-out collectives begin at a step and go on: the others wait for good."""
    at = iter(range(1, 6))
    injector = Injector(lambda: next(at))
    injector.order([Injection(0, "skip-collective", start=3)])
    assert [injector.has_left() for _ in range(5)] == [False, False, True, True, True]

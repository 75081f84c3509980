"""Round trips tell the difference of two clocks, and how far from the truth it may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddptop.agent.observer.hosts.link.peer import KEPT, Pings

DELAY = st.floats(min_value=0.00002, max_value=0.5)


class Time:
    """One true time, and two clocks that show it."""

    def __init__(self, ahead_s: float) -> None:
        self.now = 100.0
        self.ahead_s = ahead_s

    def own_ns(self) -> int:
        return int(1e9 * (1_000_000 + self.now))

    def other_ns(self) -> int:
        return int(1e9 * (1_000_000 + self.now + self.ahead_s))


def exchange(pings: Pings, time: Time, there_s: float, back_s: float) -> bool:
    at_ns = pings.ping(time.now, time.own_ns())
    time.now += there_s
    other_ns = time.other_ns()
    time.now += back_s
    return pings.pong(at_ns, other_ns, time.now)


@given(st.floats(-5000, 5000), st.lists(st.tuples(DELAY, DELAY), min_size=1, max_size=50))
def test_the_true_offset_is_never_further_away_than_the_error_that_is_told(
    ahead_s: float, delays: list[tuple[float, float]]
) -> None:
    """However unequal the two ways are."""
    time = Time(ahead_s)
    pings = Pings()
    for there_s, back_s in delays:
        assert exchange(pings, time, there_s, back_s)
        time.now += 1
    assert pings.offset_s is not None
    assert pings.offset_error_s is not None
    assert pings.rtt_s is not None
    # A microsecond for what floats and nanoseconds cannot say.
    assert abs(pings.offset_s - ahead_s) <= pings.offset_error_s + 1e-6
    assert abs(pings.rtt_s - min(map(sum, delays[-KEPT:]))) < 1e-6


def test_one_quick_round_trip_is_worth_more_than_many_slow_ones() -> None:
    time = Time(2.5)
    pings = Pings()
    for back_s in (0.3, 0.0001, 0.4, 0.2):
        exchange(pings, time, 0.0001, back_s)
    assert pings.offset_s is not None
    assert abs(pings.offset_s - 2.5) < 0.0002


def test_what_was_measured_more_than_thirty_pings_ago_counts_no_more() -> None:
    """Clocks drift."""
    time = Time(1.0)
    pings = Pings()
    exchange(pings, time, 0.0001, 0.0001)
    time.ahead_s = 3.0
    for _ in range(KEPT):
        exchange(pings, time, 0.01, 0.01)
    assert pings.offset_s is not None
    assert abs(pings.offset_s - 3.0) < 0.001


def test_pongs_that_nobody_asked_for_are_refused_and_change_nothing() -> None:
    time = Time(0.0)
    pings = Pings()
    at_ns = pings.ping(time.now, time.own_ns())
    assert not pings.pong(at_ns + 1, 0, time.now)
    assert pings.pong(at_ns, time.other_ns(), time.now)
    assert not pings.pong(at_ns, 0, time.now), "a second answer to the same ping"
    assert pings.rtt_s == 0


def test_a_host_that_never_answers_costs_no_memory() -> None:
    pings = Pings()
    first = pings.ping(0.0, 1)
    for number in range(1000):
        pings.ping(float(number), number + 2)
    assert not pings.pong(first, 0, 1000.0)
    assert pings.offset_s is None

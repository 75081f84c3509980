"""The hang in which a run came to its end, of all that were recorded."""

from __future__ import annotations

import pytest

from ddptop.agent import wire
from ddptop.agent.end import hung

S = 1_000_000_000


def hang(until_s: int | None, *, kind: str = "hang", of: str = "waiting", since_s: int = 100) -> wire.Verdict:
    """Return a verdict."""
    until = None if until_s is None else until_s * S
    return wire.Verdict(1, kind, "rank 1 hangs", since_s * S, until, hang=wire.Hang(of, (1,)))


@pytest.mark.parametrize(
    ("verdict", "ended_s", "told"),
    [
        (hang(None), None, True),
        (hang(130), None, False),
        (hang(None), 150, True),
        (hang(145), 150, True),
        (hang(155), 150, True),
        (hang(130), 150, False),
        (hang(None, since_s=151), 150, False),
        (hang(None, of="left_early", since_s=149), 150, False),
        (hang(None, of="left_early"), 150, True),
        (hang(None, kind="standing"), 150, False),
        (hang(None, of="gone"), 150, False),
    ],
)
def test_a_hang_counts_until_shortly_before_the_end(verdict: wire.Verdict, ended_s: int | None, told: bool) -> None:
    """One that is over for longer, that the end itself has made, or that is none, does not."""
    assert hung.at_the_end([verdict], None if ended_s is None else ended_s * S) == (verdict if told else None)


def test_the_last_of_several_counts() -> None:
    """A later verdict that is no hang does not hide it."""
    first, last = hang(143), hang(None, since_s=144)
    assert hung.at_the_end([first, last, hang(None, kind="standing", since_s=147)], 150 * S) == last
    assert hung.at_the_end([], 150 * S) is None


def test_the_newest_word_on_processes_that_wait_at_exit_counts() -> None:
    """Whatever was told after it; a hang of another kind is none."""
    old, new = (hang(None, of="at_exit", since_s=since_s) for since_s in (100, 120))
    assert hung.at_exit([old, new, hang(None, kind="standing", since_s=130)]) == new
    assert hung.at_exit([hang(None)]) is None


@pytest.mark.parametrize(
    ("cause", "same"),
    [
        ("rank 1 hangs", True),
        ("rank 1 hangs; then killed by alice", True),
        ("rank 1 hangs up", False),
        (None, False),
    ],
)
def test_a_hang_stays_the_cause_whoever_ended_what_was_left(cause: str | None, same: bool) -> None:
    """What a kill adds to a cause makes it no other one."""
    assert hang(None).is_the_cause(cause) is same

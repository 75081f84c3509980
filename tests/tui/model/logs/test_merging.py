"""The logs of several ranks as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.client.logs.entries import Entries, Entry
from ddptop.agent.client.logs.lines import read_line
from ddptop.agent.client.logs.logfile import RawLine
from ddptop.agent.client.logs.merging import AHEAD, merged, named


def log(texts: Sequence[str], rank: int, seen: Sequence[float] | None = None) -> list[Entry]:
    """Return a log with these lines, each seen at its moment or there before."""
    entries = Entries(rank)
    found = []
    for number, text in enumerate(texts):
        raw = RawLine(number, number + 1, text.encode())
        found += entries.add([read_line(raw, 2e9)], None if seen is None else seen[number])
    return found


def told(logs: Sequence[Sequence[Entry]], *, backwards: bool = False) -> list[str]:
    """Return what is shown: ranks and text."""
    found = list(merged([reversed(each) for each in logs] if backwards else logs, backwards=backwards))
    return [f"{named(each.logs)} {each.entry.lines[0].text}" for each in (reversed(found) if backwards else found)]


def test_what_ranks_print_alike_stands_once() -> None:
    """Also where one of them prints more before it, or the others print something of their own between."""
    logs = [
        log(["hello", "epoch 1", "loss 0.5", "epoch 2"], 0),
        log(["note", "more", "hello", "epoch 1", "epoch 2"], 1),
    ]
    assert told(logs) == ["1 note", "1 more", "0-1 hello", "0-1 epoch 1", "0 loss 0.5", "0-1 epoch 2"]
    assert told(logs, backwards=True) == told(logs)


def test_logs_of_different_length_are_lined_up_by_their_ends() -> None:
    """Of what a screen holds the beginnings are of no meaning; what is printed last stands together."""
    logs = [log([f"a {number}" for number in range(50)], 0), log(["b 48", "b 49"], 1)]
    assert told(logs, backwards=True)[-4:] == ["0 a 48", "1 b 48", "0 a 49", "1 b 49"]


def test_the_order_is_that_of_the_times() -> None:
    """Those in the lines, and those at which lines were seen; a line without one stays after the one before it."""
    one = ["2026-11-23T03:50:12Z INFO a", "plain", "2026-11-23T03:50:20Z INFO d"]
    other = ["2026-11-23T03:50:13Z INFO b", "2026-11-23T03:50:14Z INFO c"]
    assert [line[-1] for line in told([log(one, 0), log(other, 1)])] == ["a", "n", "b", "c", "d"]
    seen = [log(["x", "z"], 0, [5.0, 9.0]), log(["y"], 1, [7.0])]
    assert told(seen) == told(seen, backwards=True) == ["0 x", "1 y", "0 z"]


def test_the_same_text_at_another_time_is_another_line() -> None:
    """Alike are lines within moments of each other."""
    logs = [log(["saved", "x"], 0, [5.0, 6.0]), log(["saved"], 1, [60.0])]
    assert told(logs) == ["0 saved", "0 x", "1 saved"]
    soon = [log(["saved", "x"], 0, [5.0, 6.0]), log(["saved"], 1, [5.5])]
    assert told(soon) == ["0-1 saved", "0 x"]


_LINES = st.lists(
    st.sampled_from(["", "epoch", "epoch 1", "loss 1", "loss 2", "2026-11-23T03:50:12Z a", "done"]), max_size=20
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_LINES, max_size=5), st.booleans())
def test_every_log_is_whole_and_in_its_order(texts: list[list[str]], backwards: bool) -> None:
    """Whatever the logs are, and whichever way they are read, nothing is lost, doubled or put before another."""
    logs = [log(each, rank) for rank, each in enumerate(texts)]
    found = list(merged([reversed(each) for each in logs] if backwards else logs, backwards=backwards))
    for rank, each in enumerate(logs):
        mine = [one.entry.said for one in found if rank in one.logs]
        assert (mine[::-1] if backwards else mine) == [entry.said for entry in each]


def test_little_of_a_log_is_read_ahead() -> None:
    """However long the logs are, what is held of each is bounded."""
    read = [0, 0]

    def endless(rank: int) -> Iterator[Entry]:
        for number in range(100_000):
            read[rank] += 1
            yield from log([f"line {number} of {rank}"], rank)

    together = merged([endless(0), endless(1)])
    for _ in range(1000):
        next(together)
    assert max(read) <= 500 + AHEAD + 1


def test_hundreds_of_logs_are_one() -> None:
    """Lines that all ranks print stand once each, among those that each prints for itself."""
    logs = [
        log([text for step in range(8) for text in (f"epoch {step}", f"loss {rank} {step}")], rank)
        for rank in range(400)
    ]
    found = told(logs)
    assert [line for line in found if "epoch" in line] == [f"0-399 epoch {step}" for step in range(8)]
    assert len(found) == 8 * 401


def test_ranks_are_named_in_few_characters() -> None:
    """As stretches, and by their number where they have many parts."""
    assert [named(each) for each in ([3], [0, 1, 2, 3], [0, 2, 5], range(0, 1024, 2))] == [
        "3",
        "0-3",
        "0,2,5",
        "512 ranks",
    ]

"""One log, read once from its beginning, and then what is added."""

from __future__ import annotations

from pathlib import Path

from ddptop.agent.client.logs.excerpt import LogSource
from ddptop.agent.client.logs.stream import HOLD_S, LogStream


def test_a_clock_that_is_set_back_holds_nothing_up(tmp_path: Path) -> None:
    """Each line comes once, in the order written, also where the moment at which one was seen is yet to come."""
    path = tmp_path / "rank-0.log"
    path.write_text("")
    stream = LogStream(LogSource(str(path), 0))
    told: list[str] = []
    for number, now in enumerate((7200.0, 7200.1, 3600.0, 3600.1, 3600.1 + 2 * HOLD_S)):
        with path.open("a") as log:
            log.write(f"line {number}\n")
        told += [line.text for entry in stream.fresh(now) for line in entry.lines]
    assert told == [f"line {number}" for number in range(4)]
    assert [line.text for entry in stream.last() for line in entry.lines] == ["line 4"]

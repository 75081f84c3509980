"""Perfetto takes the trace that is made of those of the real torch.profiler."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support import perfetto
from support.values import traces


@pytest.mark.skipif(perfetto.NODE is None, reason="no node on this machine, which Perfetto's trace processor runs in")
def test_perfetto_takes_the_whole_trace(tmp_path: Path) -> None:
    """Its trace processor loses nothing, and shows a process for each rank, with all events and arrows there."""
    profile = tmp_path / "0001"
    traces.profile(profile)
    assert traces.merge(profile).returncode == 0
    trace_file = profile / "trace.json.gz"
    events = traces.read(trace_file)["traceEvents"]
    lost, processes, slices, arrows = perfetto.ask(
        trace_file,
        "select name from stats where value > 0 and severity in ('error', 'data_loss')",
        "select name from process where pid > 0 order by pid",
        "select name, ts, dur from slice",
        "select id from flow",
    )
    assert lost == []
    assert [each["name"] for each in processes] == ["rank 0 · node1", "rank 2 · node1"]
    begin = min(event["ts"] for event in events if event["ph"] == "X")
    wanted = Counter(
        (event["name"], round(1000 * (event["ts"] - begin)), round(1000 * event["dur"]))
        for event in events
        if event["ph"] == "X"
    )
    first = min(each["ts"] for each in slices)
    assert Counter((each["name"], each["ts"] - first, each["dur"]) for each in slices) == wanted
    assert len(arrows) == sum(event["ph"] == "s" for event in events)

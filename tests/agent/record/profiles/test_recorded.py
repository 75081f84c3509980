"""A profile of two ranks by the real torch.profiler: its trace, its sums, and the operator that was planted."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from support.values import traces

from ddptop.agent.record.profiles import operators, parts, trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "0001"
    traces.profile(folder)
    return folder


@pytest.fixture
def profile(recorded: Path, tmp_path: Path) -> Path:
    """The folder as an observer leaves it, to be changed."""
    return Path(shutil.copytree(recorded, tmp_path / "0001"))


def test_traces_of_the_profiler_become_one_sound_trace(profile: Path) -> None:
    """The format is kept, as an independent check of it says; every operator and arrow of both ranks is there once."""
    own = [traces.read(profile / f"rank-{number}.json.gz")["traceEvents"] for number in (traces.PEER, traces.CULPRIT)]
    assert traces.merge(profile).returncode == 0
    document = traces.read(profile / "trace.json.gz")
    assert traces.faults(document) == []
    names = [event for event in document["traceEvents"] if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in names] == ["rank 0 · node1", "rank 2 · node1"]
    for index, events in enumerate(own):
        wanted = Counter(event["name"] for event in events if event.get("cat") == "cpu_op")
        pid = names[index]["pid"]
        mine = [event for event in document["traceEvents"] if event["pid"] == pid]
        assert Counter(event["name"] for event in mine if event.get("cat") == "cpu_op") == wanted
        assert len([event for event in mine if event["ph"] == "s"]) == len([e for e in events if e["ph"] == "s"]) > 0
        assert [event["name"] for event in mine if event.get("cat") == "ddptop step"] == ["step 5", "step 6", "step 7"]
        assert [event["name"] for event in mine if event.get("cat") == "ddptop phase"] == ["data", "forward"] * 3


def test_only_the_trace_and_the_summary_remain(profile: Path) -> None:
    """The traces of the ranks are in the one trace; other files are left alone."""
    before = {path.name for path in profile.iterdir()}
    # Of a rank that has died after it had written its trace, and of one that died while it did.
    (profile / "rank-7.json.gz").touch()
    (profile / ".rank-8.json.gz").touch()
    assert traces.merge(profile).returncode == 0
    gone = {"rank-0.json.gz", "rank-2.json.gz"}
    assert {path.name for path in profile.iterdir()} == before - gone | {"trace.json.gz", "summary.json"}


def test_the_planted_operator_is_the_first_difference(profile: Path) -> None:
    """A sort of 200,000 numbers on rank 2, and of 100 on rank 0, in as many calls."""
    assert traces.merge(profile).returncode == 0
    found = json.loads((profile / "summary.json").read_text())
    assert (found["culprit"], found["peer"], found["accused"]) == (traces.CULPRIT, traces.PEER, True)
    assert (found["run"], found["steps"], found["ranks"]) == ("resnet-7f", [5, 7], [0, 2])
    first = found["operators"][0]
    assert first["name"] == "aten::sort"
    assert first["culprit_ms"] > traces.PLANTED_MS > 0.5 > first["peer_ms"]
    assert first["difference_ms"] == pytest.approx(first["culprit_ms"] - first["peer_ms"], abs=0.001)
    assert first["culprit_calls"] == first["peer_calls"] > 0
    assert (first["culprit_shapes"], first["peer_shapes"]) == (["[200000]"], ["[100]"])
    assert found["sentences"][0].startswith("aten::sort takes ")
    assert found["sentences"][0].endswith(" on rank 0, longest in calls of [200000] against [100]")


@pytest.mark.parametrize("number", [traces.PEER, traces.CULPRIT])
def test_own_times_are_those_of_the_profiler(recorded: Path, number: int) -> None:
    """torch.profiler's `self_cpu_time_total` of every operator, over all steps."""
    part = next(part for part in parts.read(recorded).ranks if part.rank == number)
    found = operators.of(trace.read(recorded, msgspec.structs.replace(part, phases=[])))
    wanted = json.loads((recorded / f"rank-{number}.averages").read_text())
    for name, each in found.items():
        if name != operators.BETWEEN and not name.startswith("Optimizer."):
            assert each.by_step.total() / 1000 == pytest.approx(wanted[name], abs=0.5), name
    assert len(found) > 20

"""`ddptop probe`: what it prints of a probe, and of those that are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from ddptop.agent.observer.judge.probe import NOTHING, Connection, Experiments, Probe, Rank
from ddptop.agent.observer.record import probes
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire import Facts
from ddptop.tui.cli.main import main
from ddptop.tui.link.control import RunControl

SAID = "rank 1 computes 38 % slower than the others, alone and together: its cores are shared (load 3.1, steal 20 %)"


def _probe(*sentences: str, world: int = 2) -> Probe:
    rates = {"compute": [100e9] * 3, "memory": [10e9] * 3, "disk_write": [5e8], "disk_read": [1e9]}
    made = Experiments(rates)
    facts = Facts(0.5, cores=2, which="0-1", threads=1, load=3.1, steal_percent=20.0)
    ranks = [Rank(each, "vm", made, made, facts=facts) for each in range(world)]
    connections = [Connection(0, 1, 1 << 20, [0.001] * 3, [0.0001] * 5)]
    return Probe(
        "probed-1", 5, 1_800_000_000.0, 3.1, list(sentences), ["a note"], ["a part: no time"], ranks, connections,
        [0.0002] * 5, [0.002] * 3, 1 << 20,
    )  # fmt: skip


@pytest.fixture
def run(runtime: object) -> Iterator[rundir.RunDir]:
    """A live run."""
    directory = rundir.create(Run("probed-1", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True))
    yield directory
    rundir.discard(directory)


@pytest.fixture
def verb(run: rundir.RunDir, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Run `ddptop probe`; returns the exit code."""

    def call(*words: str) -> object:
        monkeypatch.setattr(sys, "argv", ["ddptop", "probe", run.name, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return call


def test_it_prints_what_was_found_and_a_table(
    run: rundir.RunDir, verb: Callable[..., object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence first, what was left out, and lines that fit 80 columns."""
    folder = probes.keep(run.probes, _probe(SAID))
    monkeypatch.setattr(RunControl, "diagnose", lambda *_, **__: str(folder))
    assert verb() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("probe 0001: step 5, held for 3.1 s, ")
    assert lines[1:4] == [SAID, "a note", "left out: a part: no time"]
    assert lines[5:7] == [
        "rank  GFLOP/s  all  memory GB/s   all  write MB/s  read MB/s",
        "   0      100  100         10.0  10.0         500      1,000",
    ]
    assert "rank 0 to 1  1 MiB  1.05  1.00      0.10" in lines
    assert max(map(len, lines[4:])) <= 80


def test_a_table_of_many_ranks_has_the_slowest(run: rundir.RunDir, verb: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    made = _probe(NOTHING, world=100)
    made.ranks[77].alone = Experiments({"compute": [1e9]})
    folder = probes.keep(run.probes, made)
    monkeypatch.setattr(RunControl, "diagnose", lambda *_, **__: str(folder))
    assert verb() == 0
    said = capsys.readouterr().out
    assert "\n  77      1.0" in said
    assert "and 68 ranks that compute faster: probe.json" in said


def test_those_that_are_kept_are_listed_and_read_as_json(
    run: rundir.RunDir, verb: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest first; where there is none that is said."""
    assert verb("--list") == 0
    assert capsys.readouterr().err == "no probe is kept with this run\n"
    for sentence in (NOTHING, SAID):
        probes.keep(run.probes, _probe(sentence))
    (run.probes / "0003").mkdir()
    assert verb("--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["0002", "0001"]
    assert verb("--list", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["sentences"], second["sentences"]) == ([SAID], [NOTHING])
    assert first["ranks"][0]["facts"]["which"] == "0-1"


def test_a_probe_on_another_host_says_where(
    verb: Callable[..., object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunControl, "diagnose", lambda *_, **__: "/elsewhere/probes/0001")
    assert verb() == 1
    assert "/elsewhere/probes/0001 on the host of rank 0" in capsys.readouterr().err

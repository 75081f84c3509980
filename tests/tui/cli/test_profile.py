"""`ddptop profile`: what it asks the observer, and what it prints of a profile."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.values import traces
from support.values.traces import kineto, rank, spent, step

from ddptop.agent.observer.record.profiles.kept import Kept
from ddptop.agent.observer.record.profiles.summary import Difference, Summary
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.tui.cli.main import main
from ddptop.tui.link.control import RunControl
from ddptop.tui.model.diagnosis import profile


def _profile(folder: Path, number: str = "0001", ranks: int = 2, **more: Any) -> Path:
    """Make a profile in which rank 1 sorts more than the others."""
    documents = {}
    for each in range(ranks):
        us = 400 + 18_000 * (each == 1)
        phases = [[5, [[0, us * 1000, "forward"], [us * 1000, 100_000_000, "wait"]]]]
        sort = spent("aten::sort", 0, us)
        documents[each] = rank(each, phases=phases), kineto(step(5, 0, 100_000), sort, base=0)
    made = traces.write(folder / number, documents, run="r", **more)
    assert traces.merge(made).returncode == 0
    return made


@pytest.fixture
def run(runtime: Path) -> rundir.RunDir:
    """A live run of 12 ranks."""
    directory = rundir.create(Run("profiled-1", "id", "toy.py", (), 12, "gloo", "cpu", 10**9, True))
    directory.profiles.mkdir()
    return directory


@pytest.fixture(autouse=True)
def _away(run: rundir.RunDir) -> Any:
    yield
    rundir.discard(run)


@pytest.fixture
def verb(run: rundir.RunDir, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Run `ddptop profile`; returns the exit code."""

    def call(*words: str) -> object:
        monkeypatch.setattr(sys, "argv", ["ddptop", "profile", run.name, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return call


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), (3, tuple(range(8)), True)),
        (("--ranks", "culprit"), (3, None, True)),
        (("--ranks", "all", "--steps", "5"), (5, None, False)),
        (("--ranks", "0,2"), (3, (0, 2), False)),
        (("--ranks", "4-6,2"), (3, (2, 4, 5, 6), False)),
    ],
)
def test_the_ranks_that_are_named_are_asked_for(
    words: tuple[str, ...], asked: tuple[object, ...], run: rundir.RunDir, verb: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By itself the accused rank and an ordinary one, and where none is accused the first eight."""
    found: list[object] = []

    def asked_for(control: object, kind: str, waiting: object, *, steps: int, ranks: object, culprit: bool) -> str:
        found.append((kind, steps, ranks, culprit))
        return str(_profile(run.profiles))

    monkeypatch.setattr(RunControl, "diagnose", asked_for)
    assert verb(*words) == 0
    assert found == [("profile", *asked)]


def test_it_prints_sentences_a_table_and_the_trace(
    run: rundir.RunDir, verb: Callable[..., object], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    """And says which ranks were left out, and copies the trace packed or not, by the name of the file."""
    folder = _profile(run.profiles, ranks=8)
    monkeypatch.setattr(RunControl, "diagnose", lambda *given, **more: str(folder))
    assert verb("--out", str(tmp_path / "a.json.gz")) == 0
    assert verb("--out", str(tmp_path / "a.json")) == 0
    trace = folder / "trace.json.gz"
    assert (tmp_path / "a.json.gz").read_bytes() == trace.read_bytes()
    assert (tmp_path / "a.json").read_bytes() == gzip.decompress(trace.read_bytes())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("profile 0001: steps 5 to 7 of ranks 0-7, ")
    assert "no rank is accused: rank 1, which works longest" in lines[1]
    assert lines[2] == "aten::sort takes 18 ms a step on rank 1 and 0.4 ms on rank 4: 1 call against 1"
    table = [line.split() for line in lines[4:6]]
    assert table[0] == ["own", "ms", "a", "step", "rank", "1", "rank", "4", "more", "calls"]
    assert table[1] == ["aten::sort", "18.4", "0.40", "18.0", "1", "/", "1"]
    assert any(line.startswith(f"{trace} (") for line in lines)
    assert "open it at https://ui.perfetto.dev" in lines
    assert "ranks 8-11 left out: at most 8 are profiled unless --ranks names them" in lines


def test_the_table_fits_a_narrow_terminal() -> None:
    """Whatever the names and numbers; shapes have a line of their own, where the ranks have different ones."""
    long, shape = "autograd::engine::evaluate_function: " + "x" * 60, "[" + "64, " * 20 + "64]"
    operators = [
        Difference(long, 12_345.6, 1_234.5, 11_111.1, 1000, 1000, [shape], [shape[:20]]),
        Difference("aten::mm", 2.0, 1.0, 1.0, 3, 3, [], []),
    ]
    summary = Summary("r", (5, 7), [0, 1], 1, 0, 0.0, [], operators, 4)
    lines = profile.table(Kept("0001", Path("trace.json.gz"), 1, summary))
    assert max(map(len, lines)) <= 78
    assert [line.split()[0] for line in lines] == [
        "own",
        "engine:",
        "[64,",
        "aten::mm",
        "and",
    ]


def test_the_list_has_all_that_are_kept(
    run: rundir.RunDir, verb: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest first; one that is not complete is none. As JSON each has what its summary has."""
    _profile(run.profiles)
    _profile(run.profiles, "0002", culprit=1, peer=0)
    (run.profiles / "0003").mkdir()
    assert verb("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["0002", "0001"]
    assert lines[0].split("  ")[-1].startswith("aten::sort takes 18 ms a step on rank 1")
    assert verb("--list", "--json") == 0
    newest, _ = json.loads(capsys.readouterr().out)
    assert (newest["number"], newest["accused"], newest["steps"]) == ("0002", True, [5, 7])
    assert newest["operators"][0]["difference_ms"] == 18.0
    assert newest["trace"] == str(run.profiles / "0002" / "trace.json.gz")


def test_a_run_without_profiles_says_so(verb: Callable[..., object], capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("--list") == 0
    assert capsys.readouterr().err == "no profile is kept with this run\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--ranks", "two"), ("--ranks", "3-1"), ("--ranks", "0-9999999"), ("--steps", "0"), ("--steps", "51"),
        ("--out", "trace.txt"), ("--out", "/nowhere/trace.json"), ("--list", "--out", "trace.json"),
        ("--list", "--ranks", "0"), ("--list", "--steps", "3"),
    ],
)  # fmt: skip
def test_wrong_options_get_one_line(
    words: tuple[str, ...], verb: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is profiled."""
    assert verb(*words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_profile_on_another_host_says_where(
    verb: Callable[..., object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunControl, "diagnose", lambda *given, **more: "/elsewhere/profiles/0001")
    assert verb() == 1
    assert "/elsewhere/profiles/0001 on the host of rank 0" in capsys.readouterr().err

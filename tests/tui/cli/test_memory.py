"""`ddptop memory`: what it asks the observer, and what it prints of the memory of ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ddptop.agent.observer.record.memory import FILE, Censused, RankMemory
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire import MemoryUse, ObjectKind
from ddptop.tui.cli.main import main
from ddptop.tui.link.control import RunControl

MIB = 1 << 20
CAUSE = "train.py:52 made 3 more float32[64, 32, 256] in 3 steps (6 MiB), held by list `kept` of main()"
QUIET = "nothing grew in 3 steps"


@pytest.fixture
def run(runtime: Path) -> Iterator[rundir.RunDir]:
    """A live run of 12 ranks."""
    directory = rundir.create(Run("growing-1", "id", "toy.py", (), 12, "gloo", "cpu", 10**9, True))
    directory.memory.mkdir()
    yield directory
    rundir.discard(directory)


@pytest.fixture
def verb(run: rundir.RunDir, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Run `ddptop memory`; returns the exit code."""

    def call(*words: str) -> object:
        monkeypatch.setattr(sys, "argv", ["ddptop", "memory", run.name, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return call


def keep(run: rundir.RunDir, number: str = "0001", accused: int | None = 1) -> Path:
    """Keep censuses of which rank 1 grows."""
    leak = ObjectKind("tensor", "Tensor", "float32", (64, 32, 256), "cpu", 9, 18 * MIB, 3, 6 * MIB, "train.py:52")
    uses = {1: MemoryUse(5, 7, (leak,), 0, 18 * MIB, 6 * MIB), 0: MemoryUse(5, 7)}
    ranks = tuple(RankMemory(rank, "", CAUSE if rank else QUIET, use) for rank, use in uses.items())
    folder = run.memory / number
    folder.mkdir()
    (folder / FILE).write_bytes(msgspec.json.encode(Censused(run.name, 1.5e9, accused, ranks)))
    return folder


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), (3, tuple(range(8)), True)),
        (("--ranks", "culprit", "--steps", "1000"), (1000, None, True)),
        (("--ranks", "0,2"), (3, (0, 2), False)),
    ],
)
def test_the_ranks_that_are_named_are_asked_for(
    words: tuple[str, ...], asked: tuple[object, ...], run: rundir.RunDir, verb: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By itself the rank whose memory grows, and where no verdict says so the first eight."""
    found: list[object] = []

    def asked_for(control: object, kind: str, waiting: object, *, steps: int, ranks: object, culprit: bool) -> str:
        found.append((kind, steps, ranks, culprit))
        return str(keep(run))

    monkeypatch.setattr(RunControl, "diagnose", asked_for)
    assert verb(*words) == 0
    assert found == [("memory", *asked)]


def test_it_prints_sentences_and_a_table(
    run: rundir.RunDir, verb: Callable[..., object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the rank that grew most; where the observer is on another host, that is said."""
    folder = keep(run)
    monkeypatch.setattr(RunControl, "diagnose", lambda *given, **more: str(folder))
    assert verb() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("memory 0001: ranks 0-1 over steps 5 to 7, ")
    assert " ".join(each.strip() for each in lines[1:3]) == f"rank 1: {CAUSE}"
    assert lines[3] == f"rank 0: {QUIET}"
    assert any(each.split() == ["float32[64,", "32,", "256]", "9", "18", "MiB", "+3", "+6", "MiB"] for each in lines)
    (folder / FILE).unlink()
    assert verb() == 1
    assert "on the host of rank 0" in capsys.readouterr().err


def test_the_list_has_all_that_are_kept(
    run: rundir.RunDir, verb: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest first; one that is not complete is none. Without any it says so."""
    assert verb("--list") == 0
    assert capsys.readouterr().err == "no look at the memory is kept with this run\n"
    keep(run, accused=None)
    keep(run, "0002")
    (run.memory / "0003").mkdir()
    assert verb("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["0002", "0001"]
    assert lines[0].endswith(f"steps 5 to 7  ranks 0-1  {CAUSE}")
    assert verb("--list", "--json") == 0
    newest, older = json.loads(capsys.readouterr().out)
    assert (newest["number"], newest["accused"], older["accused"]) == ("0002", 1, None)
    assert newest["ranks"][0]["kinds"][0]["made"] == "train.py:52"


@pytest.mark.parametrize("words", [("--steps", "1001"), ("--list", "--ranks", "0"), ("--ranks", "x")])
def test_wrong_options_are_one_line(
    words: tuple[str, ...], verb: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    """And exit code 2, without asking anybody."""
    assert verb(*words) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("ddptop")

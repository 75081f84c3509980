"""`ddptop profile`, `probe` and `memory`: what they ask the observer, and what they print of a diagnosis."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.values import traces
from support.values.traces import kineto, rank, spent, step

from ddptop.agent.client import runs
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.diagnosis import kinds
from ddptop.agent.observer.judge.probe import NOTHING
from ddptop.agent.record import diagnoses as kept_diagnoses
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire import CENSUS_MS, Facts, MemoryUse, ObjectKind
from ddptop.agent.wire.diagnoses.kept import Censused, RankMemory
from ddptop.agent.wire.diagnoses.probed import Connection, Experiments, Probe, Rank
from ddptop.tui.cli.main import main
from ddptop.tui.model.diagnosis.kept import newest
from ddptop.tui.model.diagnosis.report import ReportLine, plain

MIB = 1 << 20


def shown(kind: str, run: rundir.RunDir) -> list[ReportLine]:
    """Return what a screen shows of the newest diagnosis of a kind."""
    return newest(kind, runs.Run(run).diagnoses(kind), run.read().world)


CAUSE = "train.py:52 made 3 more float32[64, 32, 256] in 3 steps (6 MiB), held by list `kept` of main()"
SLOW = "rank 1 computes 38 % slower than the others: its cores are shared (load 3.1, steal 20 %)"
SORT = "aten::sort takes 18 ms a step on rank 1 and 0.4 ms on rank"
FIRST = tuple(range(8))


def _profile(run: rundir.RunDir, number: str = "0001", ranks: int = 2, **more: Any) -> Path:
    """Keep a profile in which rank 1 sorts more than the others."""
    documents = {}
    for each in range(ranks):
        us = 400 + 18_000 * (each == 1)
        phases = [[5, [[0, us * 1000, "forward"], [us * 1000, 100_000_000, "wait"]]]]
        sort = spent("aten::sort", 0, us)
        documents[each] = rank(each, phases=phases), kineto(step(5, 0, 100_000), sort, base=0)
    made = traces.write(run.diagnoses("profile") / number, documents, run=run.name, **more)
    assert traces.merge(made).returncode == 0
    return made


def _probe(run: rundir.RunDir, number: str = "0001") -> Path:
    """Keep a probe of two ranks."""
    made = Experiments({"compute": [100e9] * 3, "memory": [10e9] * 3, "disk_write": [5e8], "disk_read": [1e9]})
    facts = Facts(0.5, cores=2, which="0-1", threads=1, load=3.1, steal_percent=20.0)
    ranks = [Rank(each, "vm", made, made, facts=facts) for each in range(2)]
    connections = [Connection(0, 1, MIB, [0.001] * 3, [0.0001] * 5)]
    folder = kept_diagnoses.new(run, "probe")
    kept_diagnoses.write(
        "probe",
        folder,
        Probe(
            run.name, 5, 1_800_000_000.0, 3.1, [SLOW, NOTHING], ["a note"], ["a part: no time"], ranks, connections,
            [0.0002] * 5, [0.002] * 3, MIB,
        ),
    )  # fmt: skip
    assert folder.name == number
    return folder


def _memory(run: rundir.RunDir, number: str = "0001") -> Path:
    """Keep censuses of eight ranks, of which rank 1 grows."""
    leak = ObjectKind("tensor", "Tensor", "float32", (64, 32, 256), "cpu", 9, 18 * MIB, 3, 6 * MIB, "train.py:52")
    sound = (RankMemory(rank, "", "nothing grew", MemoryUse(5, 7)) for rank in (0, *range(2, 8)))
    ranks = (RankMemory(1, "", CAUSE, MemoryUse(5, 7, (leak,), 0, 18 * MIB, 6 * MIB)), *sound)
    folder = run.diagnoses("memory") / number
    folder.mkdir()
    kept_diagnoses.write("memory", folder, Censused(run.name, 1.5e9, 1, ranks))
    return folder


KEEP: dict[str, Callable[..., Path]] = {"profile": _profile, "probe": _probe, "memory": _memory}
FOLDERS = {"profile": "profiles", "probe": "probes", "memory": "memory"}


@pytest.fixture
def run(runtime: Path) -> Iterator[rundir.RunDir]:
    """A live run of 12 ranks, without a diagnosis."""
    directory = rundir.create(Run("sick-1", "id", "toy.py", (), 12, "gloo", "cpu", 10**9, True))
    for folder in (directory.diagnoses("profile"), directory.diagnoses("memory")):
        folder.mkdir()
    yield directory
    rundir.discard(directory)


@pytest.fixture
def verb(run: rundir.RunDir, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Run a verb with this run; returns the exit code."""

    def call(name: str, *words: str) -> object:
        monkeypatch.setattr(sys, "argv", ["ddptop", name, run.name, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return call


@pytest.fixture
def asked(run: rundir.RunDir, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What the observer was asked for; it keeps a diagnosis of the kind and says in which folder."""
    found: list[tuple[object, ...]] = []

    def diagnose(
        _: object, kind: str, waiting: object, *, steps: int, ranks: object, culprit: bool, most_ms: int = CENSUS_MS[0]
    ) -> str:
        found.append((kind, steps, ranks, culprit, *([most_ms] if most_ms != CENSUS_MS[0] else [])))
        return str(KEEP[kind](run))

    monkeypatch.setattr(RunControl, "diagnose", diagnose)
    return found


def test_the_help_says_the_limits_of_the_messages() -> None:
    """They stand beside the verbs once more, because `--help` loads no message."""
    assert kinds.DIAGNOSES["memory"].held_ms == CENSUS_MS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("profile", (3, FIRST, True)),
        ("profile --ranks culprit", (3, None, True)),
        ("profile --ranks all --steps 5", (5, None, False)),
        ("profile --ranks 0,2", (3, (0, 2), False)),
        ("profile --ranks 4-6,2", (3, (2, 4, 5, 6), False)),
        ("probe", (1, FIRST, True)),
        ("memory", (3, FIRST, True)),
        ("memory --ranks culprit --steps 1000", (1000, None, True)),
        ("memory --ranks 0,2", (3, (0, 2), False)),
        ("memory --ranks 0,2 --limit 4.5", (3, (0, 2), False, 4_500)),
    ],
)
def test_the_ranks_that_are_named_are_asked_for(
    words: str, said: tuple[object, ...], verb: Callable[..., object], asked: list[tuple[object, ...]]
) -> None:
    """By itself those that a verdict points to, and where there is none the first eight."""
    assert verb(*words.split()) == 0
    assert asked == [(words.split()[0], *said)]


def test_a_profile_is_sentences_a_table_and_the_trace(
    run: rundir.RunDir, verb: Callable[..., object], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    """It says which ranks were left out, and copies the trace packed or not, by the name of the file."""
    folder = _profile(run, ranks=8)
    monkeypatch.setattr(RunControl, "diagnose", lambda *given, **more: str(folder))
    assert verb("profile", "--out", str(tmp_path / "a.json.gz")) == 0
    assert verb("profile", "--out", str(tmp_path / "a.json")) == 0
    trace = folder / "trace.json.gz"
    assert (tmp_path / "a.json.gz").read_bytes() == trace.read_bytes()
    assert (tmp_path / "a.json").read_bytes() == gzip.decompress(trace.read_bytes())
    (full := tmp_path / "full.json").symlink_to("/dev/full")
    assert verb("profile", "--out", str(full)) == 1
    output, errors = capsys.readouterr()
    assert errors.endswith(f"the trace is {trace}; it was not copied to {full}: No space left on device\n")
    lines = output.splitlines()
    assert lines[0].startswith("profile 0001: steps 5 to 7 of ranks 0-7, ")
    assert lines[2].startswith("compared:  no rank is accused: rank 1, which works longest")
    assert lines[3] == f"1:         {SORT} 4: 1 call against 1"
    assert lines[4] == "left out:  ranks 8-11: without --ranks at most 8 are looked at"
    assert lines[6].split() == ["own", "ms", "a", "step", "rank", "1", "rank", "4", "more", "calls"]
    assert lines[7].split() == ["aten::sort", "18.4", "0.40", "18.0", "1", "/", "1"]
    assert any(line.startswith(f"trace:     {trace} (") for line in lines)
    assert "view:      open it at https://ui.perfetto.dev" in lines


def test_a_probe_is_what_was_found_and_tables(
    verb: Callable[..., object], asked: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentences first, and what was left out."""
    assert verb("probe") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("probe 0001: step 5, held for 3.1 s, ")
    said = [f"found:     {SLOW}", f"found:     {NOTHING}", "also:      a note", "left out:  a part: no time"]
    assert lines[2:6] == said
    assert lines[7:9] == [
        "rank  GFLOP/s  together  write MB/s  read MB/s",
        "   0      100       100         500      1,000",
    ]
    assert "rank 0 to 1  1 MiB  1.05  1.00      0.10" in lines
    facts = next(line.split() for line in reversed(lines) if line.split()[:1] == ["0"])
    assert facts[:7] == ["0", "0-1", "1", "3.1", "20", "–", "none"]


def test_the_memory_is_sentences_and_a_table(
    verb: Callable[..., object], asked: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is of the rank that grew most."""
    assert verb("memory") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("memory 0001: ranks 0-7 over steps 5 to 7, ")
    assert lines[2:4] == [f"found:     rank 1: {CAUSE}", "found:     ranks 0, 2-7: nothing grew"]
    assert lines[4] == "left out:  ranks 8-11: without --ranks at most 8 are looked at"
    assert lines[6].startswith("what lives in rank 1 ")
    assert lines[7].split() == ["float32[64,", "32,", "256]", "9", "18", "MiB", "+3", "+6", "MiB"]


@pytest.mark.parametrize("kind", KEEP)
def test_a_screen_shows_what_the_verb_prints(
    kind: str, run: rundir.RunDir, verb: Callable[..., object], asked: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the newest one, which it reads from the run."""
    assert verb(kind) == 0
    assert "\n".join(map(plain, shown(kind, run))) == capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize(
    ("kind", "none", "ends"),
    [
        ("profile", "no profile is kept with this run", f"{SORT} 0: 1 call against 1"),
        ("probe", "no probe is kept with this run", f"step 5  {SLOW}"),
        ("memory", "no look at the memory is kept with this run", f"steps 5 to 7  ranks 0-7  rank 1: {CAUSE}"),
    ],
)
def test_the_list_has_all_that_are_kept(
    kind: str, none: str, ends: str, run: rundir.RunDir, verb: Callable[..., object],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The newest first; one that is not complete is none. Without any it says so."""
    assert verb(kind, "--list") == 0
    assert capsys.readouterr().err == f"{none}\n"
    assert shown(kind, run) == [ReportLine("", none)]
    KEEP[kind](run, "0001")
    KEEP[kind](run, "0002")
    (run.path / FOLDERS[kind] / "0003").mkdir()
    assert shown(kind, run)[0].text.startswith(f"{kind} 0002: ")
    assert verb(kind, "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["0002", "0001"]
    assert lines[0].endswith(ends)
    assert verb(kind, "--list", "--json") == 0
    assert [each["number"] for each in json.loads(capsys.readouterr().out)] == ["0002", "0001"]


def test_the_json_has_all_that_is_known(
    run: rundir.RunDir, verb: Callable[..., object], asked: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the lines have no room for, too."""
    found = {}
    for kind in KEEP:
        assert verb(kind, "--json") == 0
        found[kind] = json.loads(capsys.readouterr().out)
        assert (found[kind]["number"], found[kind]["run"]) == ("0001", run.name)
    assert found["profile"]["operators"][0]["difference_ms"] == 18.0
    assert found["profile"]["trace"] == str(run.diagnoses("profile") / "0001" / "trace.json.gz")
    assert found["probe"]["ranks"][0]["facts"]["which"] == "0-1"
    assert found["memory"]["ranks"][0]["kinds"][0]["made"] == "train.py:52"


@pytest.mark.parametrize(
    "words",
    [
        "profile --ranks two", "profile --ranks 3-1", "profile --ranks 0-9999999", "profile --steps 0",
        "profile --steps 51", "profile --out trace.txt", "profile --out /nowhere/trace.json",
        "profile --list --out trace.json", "profile --list --ranks 0", "profile --list --steps 3",
        "probe --ranks 0", "memory --steps 1001", "memory --list --ranks 0", "memory --ranks x",
    ],
)  # fmt: skip
def test_wrong_options_get_one_line(
    words: str, verb: Callable[..., object], asked: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    """And exit code 2, without asking anybody."""
    assert verb(*words.split()) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("ddptop")
    assert not asked


@pytest.mark.parametrize("kind", KEEP)
def test_a_diagnosis_on_another_host_says_where(
    kind: str, verb: Callable[..., object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that shows it there."""
    monkeypatch.setattr(RunControl, "diagnose", lambda *_, **__: "/elsewhere/0001")
    assert verb(kind) == 1
    assert f"/elsewhere/0001 on the host of rank 0; `ddptop {kind} sick-1 --list` there" in capsys.readouterr().err

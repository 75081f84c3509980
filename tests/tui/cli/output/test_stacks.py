"""`ddptop stacks`: a hang first, then the places of the ranks; the whole of it as JSON."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

import pytest
from msgspec.structs import replace
from support.screens.frames import NOW, StillInspector, frame, hung_frame
from support.values.inspections import hung, stopped

from ddptop.agent.client import look
from ddptop.agent.client import watch as live
from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.agent.client.frame import Frame
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.tui.cli.main import main
from ddptop.tui.cli.output import stacks

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def test_the_hang_comes_before_the_places() -> None:
    """With the time that is left; then each place, its ranks first, apart from the next by an empty line."""
    lines = stacks.text(hung_frame(), Stacks(NOW, hung(), {4: "no answer"}))
    assert lines[0].startswith("rank 1 hangs: it sleeps;")
    assert lines[1:8] == [
        "gloo's timeout in 1,742 s",
        "",
        "✗ rank 1  pid 4712 · step 1,203 · backward · process sleeping · 0% CPU",
        "    not in a collective; 1,203 calls in group 0, the last all_reduce 4 MiB",
        "  ▶ train.py:31 main      time.sleep(3600)",
        "    train.py:52 <module>  main()",
        "",
    ]
    assert lines[8:10] == ["● rank 4", "    no answer"]
    assert lines[11].startswith("● ranks 0, 2-3 (3)  step 1,203")
    assert stacks.text(frame(), Stacks(NOW, hung()))[0].startswith("● rank 1")


def test_lines_are_cut_at_the_width() -> None:
    """On a terminal, but for those of the hang; in a pipe all are whole."""
    hang, _, _, *places = stacks.text(hung_frame(), Stacks(NOW, hung()), 40)
    assert max(map(len, places)) == 40
    assert hang.endswith("12 s")
    assert max(map(len, stacks.text(hung_frame(), Stacks(NOW, hung())))) > 80


def test_the_json_has_all_that_was_told() -> None:
    """Nothing merged or folded, under the names of the manual; times in seconds, unknown is null."""
    taken = Stacks(NOW, (*hung(2), stopped(2)), {3: "no answer"})
    told = json.loads(json.dumps(stacks.as_json(hung_frame(), taken)))
    assert told.keys() == {"run", "at", "recorded", "hang", "places", "ranks", "missing"}
    assert (told["run"], told["at"], told["recorded"]) == ("resnet-7f3a", NOW, False)
    assert told["hang"]["class"] == "not_entered"
    assert told["hang"]["text"].startswith("rank 1 hangs")
    assert told["places"] == [[1], [2], [3], [0]]
    assert told["missing"] == [{"rank": 3, "reason": "no answer"}]
    waits, sleeps, outside = told["ranks"]
    assert waits["open"] == [
        {
            "op": "all_reduce",
            "group": "0",
            "number": 1204,
            "bytes": 4 << 20,
            "open_s": 12.0,
            "blocking": True,
            "sure": True,
            "form": None,
        }
    ]
    assert waits["groups"] == [
        {
            "group": "0",
            "calls": 1204,
            "ranks": [],
            "timeout_s": None,
            "recent": [{"op": "all_reduce", "bytes": 4 << 20, "form": None}],
        }
    ]
    assert sleeps["threads"] == [
        {
            "name": "MainThread", "main": True, "native_id": None, "left_out": 0, "holds_gil": None, "lock": None,
            "frames": [
                {"function": "main", "file": "train.py", "line": 31, "source": "time.sleep(3600)", "library": False},
                {"function": "<module>", "file": "train.py", "line": 52, "source": "main()", "library": False},
            ],
        }
    ]  # fmt: skip
    assert len(waits["threads"][0]["frames"]) == 6
    assert (outside["by"], outside["status"], outside["state"], outside["threads"]) == ("system", "stopped", None, [])
    assert outside["problem"].startswith("no stack: py-spy")
    assert stacks.as_json(frame(), taken)["hang"] is None


class Told:
    """A link to a run whose ranks stand still."""

    inspector = StillInspector(4)
    shown: Frame = hung_frame()

    def __init__(self, *_: Any) -> None:
        """Connect to nobody."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def told(monkeypatch: Patch) -> type[Told]:
    """A live run of four ranks, of which one never came."""
    rundir.create(Run("told", "told", "toy.py", (), 4, "gloo", "cpu", time.time_ns(), False, state="finished"))
    monkeypatch.setattr(Told, "inspector", StillInspector(4))
    monkeypatch.setattr(Told, "shown", hung_frame())
    Told.inspector.stacks = Stacks(NOW, hung())
    monkeypatch.setattr(live, "Watch", Told)
    monkeypatch.setattr(look, "heard", lambda links: [links[0].shown])
    return Told


def run(monkeypatch: Patch, *arguments: str) -> int:
    """Run the verb in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["ddptop", "stacks", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(str(ended.value.code))


def test_the_verb_asks_and_prints(told: type[Told], capsys: Captured, monkeypatch: Patch) -> None:
    """Of all ranks, or of some; with native frames where they are asked for."""
    assert run(monkeypatch, "told") == 0
    assert "time.sleep(3600)" in capsys.readouterr().out
    assert run(monkeypatch, "told", "--rank", "2", "--rank", "0", "--native") == 0
    out = capsys.readouterr().out
    assert "ranks 0, 2 (2)" in out
    assert "time.sleep" not in out
    assert told.inspector.asked == [False, True]
    assert run(monkeypatch, "told", "--json", "--rank", "1") == 0
    assert [each["rank"] for each in json.loads(capsys.readouterr().out)["ranks"]] == [1]


def test_what_cannot_be_is_one_line(told: type[Told], capsys: Captured, monkeypatch: Patch) -> None:
    """A rank that there is not is bad input; a refusal, and a run of which no rank tells anything, are failures."""
    assert run(monkeypatch, "told", "--rank", "4") == 2
    assert capsys.readouterr().err == "ddptop: run told has ranks 0 to 3, no rank 4\n"
    assert run(monkeypatch, "no-such-run") == 2
    told.inspector.stacks = Stacks(NOW, (), {0: "no answer"})
    assert run(monkeypatch, "told") == 1
    assert "no answer" in capsys.readouterr().out
    told.inspector.refusal = "its observer is gone"
    assert run(monkeypatch, "told") == 1
    assert capsys.readouterr().err == "ddptop: its observer is gone\n"


def test_a_hang_that_was_over_before_the_end_is_told_with_its_stacks() -> None:
    """Its verdict is of the record, as the stacks are: the cause is marked all the same."""
    verdict = hung_frame().verdict
    taken = Stacks(NOW, hung(), recorded=True, verdict=verdict)
    first, when, _, head, *_ = stacks.text(frame("failed"), taken)
    assert verdict is not None
    assert (first, head.startswith("✗ rank 1")) == (verdict.text, True)
    assert "the run is over (failed)" in when
    told = stacks.as_json(frame("failed"), taken)
    assert told["hang"]["text"] == verdict.text
    assert told["places"][0] == [1]


def test_an_ended_run_is_told_from_its_record(told: type[Told], capsys: Captured, monkeypatch: Patch) -> None:
    """No rank is asked; where nothing was recorded, that is the answer."""
    monkeypatch.setattr(told, "shown", frame("failed"))
    told.inspector.refusal = "run told is over (failed)"
    assert run(monkeypatch, "told") == 1
    assert "is over (failed)" in capsys.readouterr().err
    told.inspector.at_hang = Stacks(NOW, hung(), recorded=True)
    ended = replace(hung_frame(), state="killed")
    monkeypatch.setattr(told, "shown", ended)
    assert run(monkeypatch, "told") == 0
    hang, when, _, head, *rest = capsys.readouterr().out.splitlines()
    assert hang.startswith("rank 1 hangs")
    assert re.fullmatch(r"as recorded at [\d:]+, in the hang; the run is over \(killed\)", when)
    assert head.startswith("✗ rank 1")
    assert any("time.sleep(3600)" in line for line in rest)
    assert len(told.inspector.asked) == 1

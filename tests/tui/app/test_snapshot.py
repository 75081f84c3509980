"""Snapshots without a terminal and from the dashboard; runs as JSON lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from support.harness import ddptop
from support.harness import until as wait
from support.screens.dashboards import dashboard, seen, until
from support.screens.frames import EVIL, StillSource, frame, history_of

from ddptop.agent.client.host.settings import Look, Settings
from ddptop.agent.text import clean
from ddptop.tui.app import snapshot
from ddptop.tui.link.source import Refused


def text_of(svg: Path) -> str:
    """Return the text in a snapshot."""
    return "\n".join("".join(node.itertext()) for node in ElementTree.parse(svg).iter() if node.tag.endswith("text"))


def test_a_snapshot_of_an_ended_run(ended_run: str, tmp_path: Path) -> None:
    """The file is SVG of the size asked for and shows how the run ended; without a file it says why."""
    file = tmp_path / "out.svg"
    done = ddptop("attach", ended_run, "--screenshot", str(file), "--size", "100x20")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}\n", "")
    text = text_of(file)
    assert "FAILED" in text
    assert "bad\u00a0lr" in text
    assert len(re.findall(r'id="[^"]*-line-\d+"', file.read_text())) == 20 - 1
    done = ddptop("attach", ended_run, "--screenshot", "/proc/no/out.svg")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "/proc/no/out.svg" in done.stderr
    assert ddptop("attach", ended_run, "--screenshot", "x.svg", "--size", "1x1").returncode == 2


class LateWatch(StillSource):
    """A run whose history is read only after so many questions; None: never."""

    def __init__(self, late: int | None) -> None:
        self.history = history_of(2)
        self.history.kept.is_read = False
        # Nothing is known of what was answered before.
        self.history.asked.extent, self.history.asked.clock = None, time.monotonic
        super().__init__(replace(frame(world=2), history=self.history))
        self.late = late

    def poll_history(self) -> None:
        """Take in what is answered by now."""
        if self.late is not None:
            self.late -= 1
            self.history.kept.is_read = self.late < 0
        self.history.asked.ask_source()


@pytest.mark.parametrize("view", ["panels", "heatmap"])
def test_a_snapshot_waits_for_what_it_shows(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history comes after a while, and is in the picture; where it never comes, that is said instead."""
    monkeypatch.setattr(snapshot, "_whole", lambda link: link.frame())
    settings = Settings(look=Look(view=view))
    link: Any = LateWatch(30)
    assert "loading" not in snapshot.take(link, (120, 40), settings)
    assert link.late < 0
    monkeypatch.setattr(snapshot, "PATIENCE_S", 1.0)
    never: Any = LateWatch(None)
    with pytest.raises(Refused, match="history of resnet-7f3a was not there within 1 s"):
        snapshot.take(never, (120, 40), settings)


async def test_a_key_writes_what_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is in the current directory, its name is told; where it cannot be written the reason is."""
    folder = tmp_path / "x[b] [bold"
    folder.mkdir()
    monkeypatch.chdir(folder)
    async with dashboard(StillSource(frame(note=clean(EVIL)))).run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("S")
        await until(pilot, lambda: list(folder.glob("*.svg")) and "ddptop-resnet-7f3a-" in seen(pilot.app), "the file")
        await until(pilot, lambda: "RUNNING" in text_of(next(folder.glob("*.svg"))), "the picture")
        monkeypatch.setattr(Path, "cwd", lambda: Path("/proc/no"))
        await pilot.press("S")
        await until(pilot, lambda: "no snapshot" in seen(pilot.app), "the reason")


def test_a_run_as_json_lines(quiet_run: str, ended_run: str) -> None:
    """Each line is the object of `status --json`; it ends after so many, or with the run and its exit code."""
    done = ddptop("watch", quiet_run, "--json", "--interval", "0", "--count", "3")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr, len(lines)) == (0, "", 3)
    assert lines[0]["at"] < lines[1]["at"] < lines[2]["at"]
    now = json.loads(ddptop("status", quiet_run, "--json").stdout)
    assert {**lines[-1], "at": 0} == {**now, "at": 0}
    done = ddptop("watch", ended_run, "--json")
    assert done.returncode == 3
    assert [json.loads(line)["state"] for line in done.stdout.splitlines()] == ["failed"]
    assert ddptop("watch", ended_run, "--count", "1").returncode == 2


def test_a_reader_that_leaves_is_no_error(quiet_run: str) -> None:
    """When the pipe is closed the stream ends without a word."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ddptop.tui.cli.main", "watch", quiet_run, "--json", "--interval", "0.05"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["run"] == quiet_run
    process.stdout.close()
    wait(lambda: process.poll() is not None, "the end")
    with process.stderr:
        assert process.stderr.read() == b""

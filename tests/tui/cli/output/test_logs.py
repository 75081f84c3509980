"""`ddptop logs`: the logs of the ranks as one, what is wanted of them, and that there is nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.values.hostile import PIECES, marks

from ddptop.agent.client import runs
from ddptop.agent.client.logs.lines import Level
from ddptop.agent.client.logs.matching import ALL, Wanted
from ddptop.agent.client.sources import takeover
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.tui.cli.main import main
from ddptop.tui.cli.output import logs

pytestmark = pytest.mark.usefixtures("utc")


@pytest.fixture
def directory(runtime: Path) -> Iterator[RunDir]:
    """A run of two ranks that has ended, whose rank 0 has left half a line and rank 1 an empty log."""
    run = Run("quiet", "1", "x.py", (), 2, "gloo", "cpu", 1, True, state="finished", exit_code=0, ended_at_ns=2)
    made = rundir.create(run)
    made.rank_log(0).write_text("first\nhalf a line")
    made.rank_log(1).write_text("")
    yield made
    rundir.remove(made, "1")


def shown(directory: RunDir, *ranks: int, wanted: Wanted = ALL) -> tuple[list[str], list[str]]:
    """Return what is printed, and what is noted beside it."""
    printed: list[str] = []
    noted: list[str] = []
    logs.show(runs.Run(directory), ranks, follow=False, say=printed.append, note=noted.append, wanted=wanted)
    return printed, noted


def test_an_empty_log_is_told(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the output, so that a pipe gets nothing; of a live run, that nothing has come yet."""
    assert shown(directory, 1) == ([], ["rank 1 printed nothing"])
    assert shown(directory, 1, wanted=Wanted(text="x")) == ([], ["no line has that text"])
    assert shown(directory, 1, wanted=Wanted(Level.ERROR)) == ([], ["no line is of that level"])
    monkeypatch.setattr(takeover, "has_ended", lambda _: False)
    assert shown(directory, 1) == ([], ["rank 1 has printed nothing yet"])
    directory.rank_log(0).unlink()
    assert shown(directory) == ([], ["no rank has printed anything yet"])


def test_a_last_line_that_does_not_end_is_printed(directory: RunDir) -> None:
    """As the prompt or the progress bar at which a run came to its end."""
    assert shown(directory, 0) == (["first", "half a line"], [])
    assert shown(directory)[0] == ["       – [0] first", "       – [0] half a line"]


def test_several_logs_are_one(directory: RunDir) -> None:
    """By the time in the lines; what both ranks print stands once; a traceback stays together; torchrun is named."""
    told = "Traceback (most recent call last):\n  File 'x.py'\nOSError: no\n"
    directory.rank_log(0).write_text(
        f"begin\n2026-11-23 03:50:12,100 INFO epoch 1\n2026-11-23 03:50:14,500 INFO here\n{told}"
    )
    directory.rank_log(1).write_text(
        "begin\n2026-11-23 03:50:12,400 INFO epoch 1\n2026-11-23 03:50:13,500 WARNING slow\n"
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'x.py'\n[rank1]: OSError: other\n"
    )
    directory.torchrun_log.write_text("E1123 03:50:15.000000 4711 torch/distributed/elastic/x.py:9] failed\n")
    printed, noted = shown(directory)
    assert noted == []
    assert printed == [
        "       – [0-1] begin",
        "03:50:12 [0-1] 2026-11-23 03:50:12,100 INFO epoch 1",
        "03:50:13 [1] 2026-11-23 03:50:13,500 WARNING slow",
        "       – [1] Traceback (most recent call last):",
        "       – [1]   File 'x.py'",
        "       – [1] OSError: other",
        "03:50:14 [0] 2026-11-23 03:50:14,500 INFO here",
        "       – [0] Traceback (most recent call last):",
        "       – [0]   File 'x.py'",
        "       – [0] OSError: no",
        "03:50:15 [torchrun] E1123 03:50:15.000000 4711 torch/distributed/elastic/x.py:9] failed",
    ]
    assert shown(directory, wanted=Wanted(Level.WARNING, "SLOW"))[0] == [printed[2]]
    assert shown(directory, 0, wanted=Wanted(text="oserror"))[0] == told.splitlines()
    assert shown(directory, 1)[0][3] == "[rank1]: Traceback (most recent call last):"


def test_ranks_of_several_hosts_are_told_with_their_host(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the records of the ranks, wherever there is more than one."""
    members = {rank: SimpleNamespace(rank=rank, host=f"node-{'ab'[rank]}") for rank in (0, 1)}
    directory.rank_log(0).write_text("alike\nof a\n")
    directory.rank_log(1).write_text("alike\nof b\n")
    with monkeypatch.context() as patch:
        patch.setattr(takeover, "has_ended", lambda _: True)
        patch.setattr(RunDir, "members", lambda self: members)
        told = [line[9:] for line in shown(directory)[0]]
    assert told == ["[0-1 2 hosts] alike", "[0 node-a] of a", "[1 node-b] of b"]


def test_logs_are_followed_until_the_run_ends(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes has the time at which it was seen; what was there has none; ranks that print alike are told once."""
    looks = iter([False] * 9)
    printed: list[str] = []
    clock = [1_000_000.0]

    def has_ended(_: RunDir) -> bool:
        ended = next(looks, True)
        if not ended and clock[0] == 1_000_000.3:
            for rank in (0, 1):
                with directory.rank_log(rank).open("a") as log:
                    log.write("\nalike\n")
        return ended

    def sleep(seconds: float) -> None:
        clock[0] = round(clock[0] + seconds, 1)

    monkeypatch.setattr(takeover, "has_ended", has_ended)
    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=sleep, time=lambda: clock[0]))
    logs.show(runs.Run(directory), follow=True, say=printed.append, note=printed.append)
    assert printed[0] == "       – [0] first"
    assert sorted(printed[1:]) == ["13:46:40 [0-1] alike", "13:46:40 [0] half a line", "13:46:40 [1] "]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("--rank", "2"), "has ranks 0 to 1, no rank 2"), (("--grep", " "), "give the text to look for"),
     (("--level", "loud"), "--level")],
)  # fmt: skip
def test_bad_input_is_one_line(
    directory: RunDir, arguments: tuple[str, ...], told: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It says what is wrong; exit code 2."""
    monkeypatch.setattr(sys, "argv", ["ddptop", "logs", "quiet", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    errors = capsys.readouterr().err
    assert told in errors.splitlines()[-1]


def test_garbage_is_printed_as_text(directory: RunDir) -> None:
    """Bytes of any kind, and a line of a MiB, which comes in pieces: nothing a terminal would obey gets out."""
    directory.rank_log(0).write_bytes(
        "".join(PIECES).encode() + bytes(range(256)) * 20 + b"\n" + b"x" * (1 << 20) + b"\n"
    )
    for printed, _ in (shown(directory), shown(directory, 0)):
        assert not marks("\n".join(printed))
        assert sum(line.count("x") for line in printed) >= 1 << 20
        assert max(map(len, printed)) <= 70_000

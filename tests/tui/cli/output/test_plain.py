"""The run as lines: honest, one per interval, with a summary."""

from __future__ import annotations

import io
import itertools
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import EventLine, RankFrame
from ddptop.tui.cli.output import plain

if TYPE_CHECKING:
    from ddptop.tui.link.source import Source

RANK = RankFrame(
    rank=0,
    state="running",
    activity="forward",
    step=12,
    loss=1.5,
    step_ms=80.0,
    phases_ms={"data": 2.0, "forward": 78.0},
)
FRAME = Frame(
    run="toy-1", state="running", program="toy.py", world=1, at=0.0, step=12, total_steps=40, eta_s=70,
    step_ms=80.0, loss=1.5, samples_per_s=412.0, phases_ms=RANK.phases_ms, ranks=(RANK,), started_at=0.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time in which records may still come pass at once; a frame is due at each look."""
    moments = itertools.count(0.0, 0.01)
    quick = SimpleNamespace(**vars(time) | {"monotonic": lambda: next(moments), "sleep": lambda _: None})
    monkeypatch.setattr(plain, "time", quick)


class Film:
    """A source that shows one frame after another."""

    def __init__(self, *frames: Frame) -> None:
        self.frames = list(frames)

    def poll(self) -> None:
        self.current = self.frames.pop(0) if len(self.frames) > 1 else self.frames[0]

    def frame(self) -> Frame:
        return self.current


def test_a_line_says_all_and_marks_what_is_unknown():
    """Progress, loss, throughput, step time and phases, with a dash for what was not observed."""
    text = plain.line(FRAME)
    assert "step 12/40 30%" in text
    assert "loss 1.5" in text
    assert "loss ~1.5" in plain.line(replace(FRAME, is_loss_unsure=True))
    assert "412 samples/s  step" in text
    assert "  8,464 tokens/s  MFU 41.2%  step" in plain.line(replace(FRAME, tokens_per_s=8464.0, mfu=0.412))
    assert "80.0 ms (data 2.0, forward 78.0, backward –," in text


def test_a_line_does_not_hide_a_rank_behind_a_mean():
    """Where the ranks differ, their range stands there; where they are alike, the mean."""
    split = [{"data": 12.0, "forward": 30.0, "wait": 47.0}, {"data": 53.0, "forward": 31.0, "wait": 6.0}]
    means = {"data": 32.5, "forward": 30.5, "wait": 26.5}
    frame = replace(FRAME, phases_ms=means, ranks=tuple(replace(RANK, phases_ms=phases) for phases in split))
    assert "(data 12.0 to 53.0, forward 30.5, backward –, optimizer –, wait 6.0 to 47.0," in plain.line(frame)


def test_events_are_told_once_and_the_end_is_summed_up():
    """Every state change is one line, whatever the number of frames; the summary has the exit code."""
    event = EventLine(1.0, "paused: all ranks held at step 12", None, "info")
    held = replace(FRAME, state="paused", events=(event,))
    over = replace(held, state="failed", exit_code=1, cause="rank 0: ValueError: x", cause_rank=0, ended_at=65.0)
    out = io.StringIO()
    frames = [FRAME, held, held] + [over] * 100
    view = plain.PlainView(cast("Source", Film(*frames)), out, 0.0)
    assert view.follow(sleep=lambda _: None).state == "failed"
    text = out.getvalue()
    assert text.count("paused: all ranks held") == 1
    assert "toy-1 failed, exit code 1 after 01:05" in text
    assert "first cause: rank 0: ValueError: x" in text


def test_a_run_that_stands_is_told_again_when_that_has_lasted_twice_as_long():
    """A line at once and few later ones, whatever the interval; a step begins it anew, and none stops the clock."""

    def at(age: float, step: int) -> Frame:
        return replace(FRAME, step=step, stands=age > 2.0, ranks=(replace(RANK, step_age_s=age),))

    ages = [1.9, 2.1, 3.0, 4.1, 4.3, 8.0, 8.7]
    over = replace(FRAME, state="killed", ended_at=65.0)
    frames = [*(at(age, 12) for age in ages), at(0.1, 13), at(2.5, 13), *[over] * 100]
    out = io.StringIO()
    plain.PlainView(cast("Source", Film(*frames)), out, 3600.0).follow(sleep=lambda _: None)
    told = [line.partition("  ")[2] for line in out.getvalue().splitlines() if "no step for" in line]
    assert [line.rpartition("no step for ")[2] for line in told] == ["2 s", "4 s", "9 s", "2 s"]
    assert told[0].startswith("step 12/40 30%")


def test_a_hang_is_told_when_it_begins_and_when_it_ends():
    """By its event each; in between only when it has lasted twice as long, with the time until the timeout."""
    hang = wire.Hang("not_entered", (1,), timeout_at_ns=int(1742e9))
    verdict = wire.Verdict(3, "hang", "rank 1 hangs: it never came · 6 s", 0, hang=hang)
    begun = EventLine(1.0, verdict.text, 1, "error")
    over = EventLine(20.0, "over after 20 s: rank 1 hangs: it never came", 1, "info")

    def at(age: float, *verdicts: wire.Verdict, events: tuple[EventLine, ...] = ()) -> Frame:
        ranks = (replace(RANK, step_age_s=age),)
        return replace(FRAME, backend="gloo", stands=age > 2.0, ranks=ranks, verdicts=verdicts, events=events)

    ended = replace(FRAME, state="killed", ended_at=65.0, events=(begun, over))
    frames = [
        at(2.1), *(at(age, verdict, events=(begun,)) for age in (5.0, 9.9, 10.1)), at(0.1, events=(begun, over)),
        *[ended] * 100,
    ]  # fmt: skip
    out = io.StringIO()
    plain.PlainView(cast("Source", Film(*frames)), out, 3600.0).follow(sleep=lambda _: None)
    told = [line.partition("  ")[2] for line in out.getvalue().splitlines()]
    assert [line for line in told if "hangs" in line] == [
        verdict.text, f"step 12/40 30%  ETA 01:10  {verdict.text} · gloo's timeout in 1,742 s", over.text,
    ]  # fmt: skip
    does = f"ddptop stacks {FRAME.run} shows where each rank stands · ddptop kill {FRAME.run} ends it"
    assert (told.count(does), told.index(does)) == (1, told.index(verdict.text) + 1)
    assert sum("no step for" in line for line in told) == 1


def test_a_hang_before_the_first_step_is_told_again_too():
    """There is no step to count from: the begin of the hang is."""
    verdict = wire.Verdict(3, "hang", "rank 1 hangs: it never came", int(100e9), hang=wire.Hang("not_entered", (1,)))
    starting = replace(FRAME, state="starting", step=None, step_ms=None, ranks=(replace(RANK, state="starting"),))
    frames = [replace(starting, at=at, verdicts=(verdict,)) for at in (130.0, 150.0, 161.0, 190.0, 230.0)]
    over = replace(starting, at=231.0, state="killed", ended_at=231.0)
    out = io.StringIO()
    plain.PlainView(cast("Source", Film(*frames, *[over] * 100)), out, 3600.0).follow(sleep=lambda _: None)
    assert out.getvalue().count(f"step –  {verdict.text}") == 2


def test_a_verdict_begins_once_whatever_its_figures_are_at_the_end():
    """The record of an ended run has the figures of its end; another verdict at the same time is another line."""
    begun, other = (EventLine(95.0, f"rank {n} is slow: 9 ms", n, "warning", n) for n in (1, 2))
    ended = replace(begun, text="rank 1 is slow: 12 ms")
    frames = [replace(FRAME, at=100.0, events=(begun,)), replace(FRAME, at=101.0, events=(begun, other))]
    over = replace(FRAME, at=104.0, state="killed", ended_at=104.0, events=(ended, other))
    out = io.StringIO()
    plain.PlainView(cast("Source", Film(*frames, *[over] * 100)), out, 3600.0).follow(sleep=lambda _: None)
    assert [line.partition("  ")[2] for line in out.getvalue().splitlines() if "slow" in line] == [
        begun.text,
        other.text,
    ]


def test_times_never_go_back():
    """A verdict is known some seconds after it began: its line has the time of its telling; those of before theirs."""
    past = EventLine(50.0, "connected", None, "info")
    hang = EventLine(95.0, "rank 1 hangs", 1, "error")
    frames = [replace(FRAME, at=100.0, events=(past,)), replace(FRAME, at=101.0, step=13, events=(past,))]
    over = replace(FRAME, at=104.0, state="killed", ended_at=104.0, events=(past, hang))
    out = io.StringIO()
    plain.PlainView(cast("Source", Film(*frames, *[over] * 100)), out, 0.0).follow(sleep=lambda _: None)
    lines = {line.partition("  ")[2]: line.partition("  ")[0] for line in out.getvalue().splitlines()}
    stamps = list(lines.values())
    assert stamps == sorted(stamps)
    assert lines["rank 1 hangs"] == time.strftime("%H:%M:%S", time.localtime(104.0))
    assert lines["connected"] == time.strftime("%H:%M:%S", time.localtime(50.0))


def test_a_run_that_ended_closes_with_the_report_on_it():
    """Behind the summary, and only once."""
    over = replace(FRAME, state="failed", exit_code=1, cause="rank 0: ValueError: x", cause_rank=0, ended_at=65.0)
    out = io.StringIO()
    source = cast("Source", Film(*[FRAME] + [over] * 100))
    plain.PlainView(source, out, 0.0, lambda: ["kind: an exception", "to do: read it"]).follow(sleep=lambda _: None)
    assert out.getvalue().splitlines()[-2:] == ["kind: an exception", "to do: read it"]
    assert out.getvalue().count("to do: read it") == 1


def test_a_start_says_what_it_waits_for():
    """After a while, and again whenever it has waited for twice as long, with how long that is."""
    waiting = [
        replace(FRAME, state="starting", step=None, at=float(at), awaits="the rendezvous at node1:29400")
        for at in range(45)
    ]
    out = io.StringIO()
    ended = replace(FRAME, state="finished", at=45.0, exit_code=0)
    plain.PlainView(cast("Source", Film(*waiting, ended)), out, 60.0).follow(lambda seconds: None)
    told = [line.partition("  ")[2] for line in out.getvalue().splitlines() if "waits for" in line]
    ages = ("00:05", "00:10", "00:20", "00:40")
    assert told == [f"starting: waits for the rendezvous at node1:29400, for {age}" for age in ages]


def test_a_new_start_that_waits_is_told_at_once_each_time():
    """However long the first start has waited, and the one before: also in the second hour of a run."""
    waits = "1 of 2 hosts at the rendezvous node1:29400"
    waiting = [replace(FRAME, state="starting", step=None, at=float(at), awaits=waits) for at in range(100)]
    later = [
        replace(FRAME, at=float(at), awaits=waits if 200 <= at < 225 or 300 <= at < 312 else "")
        for at in range(100, 320)
    ]
    out = io.StringIO()
    ended = replace(FRAME, state="finished", at=320.0, exit_code=0)
    plain.PlainView(cast("Source", Film(*waiting, *later, ended)), out, 600.0).follow(lambda seconds: None)
    said = [
        line.split("  ", 1) for line in out.getvalue().splitlines() if line.endswith(f"a new start waits for {waits}")
    ]
    at = [int(stamp[3:5]) * 60 + int(stamp[6:8]) for stamp, _ in said]
    assert at == [200, 205, 210, 220, 300, 305, 310]

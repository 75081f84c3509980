"""Ranks without an agent, for which processes of this test stand in, and programs in the place of py-spy."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.harness import WAITING, started, until

from ddptop.agent import wire
from ddptop.agent.observer.inspection import dumps
from ddptop.agent.observer.sampling import sampling
from ddptop.agent.observer.sampling.sampling import Sampling
from ddptop.agent.run import identity
from ddptop.agent.run.records import Member, Run

TRAIN = "main (/u/train.py:28)"
TORCH = "/env/lib/python3.11/site-packages/torch"
RUN = Run("run", "id", "train.py", (), 2, None, None, 1, False, cwd="/u", outside=True)
WAITS = f"{TRAIN};barrier ({TORCH}/distributed/distributed_c10d.py:4900)"


class Bench:
    """The looks, and what has come of them."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.made = Sampling(RUN, lambda text, _: self.said.append(text), ())
        self.told: list[wire.Telemetry] = []

    def take(self) -> list[wire.Telemetry]:
        """Return all that has been published so far."""
        self.told += self.made.take()
        return self.told

    def sampled(self, rank: int = 0) -> list[wire.Sampled]:
        """Return the looks at a rank so far."""
        return [each for each in self.take() if isinstance(each, wire.Sampled) and each.rank == rank]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Looks that begin again at once, and go on until the end of the test."""
    monkeypatch.setattr("ddptop.agent.observer.sampling.sampling.WINDOW_S", 0.05)
    monkeypatch.setattr("ddptop.agent.observer.sampling.sampling._AGAIN_S", 0.05)
    made = Bench()
    yield made
    made.made.close()


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a program of these lines of a shell script started instead of py-spy."""

    def make(lines: str) -> None:
        file = tmp_path / "new"
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o700)
        file.rename(tmp_path / "py-spy")
        monkeypatch.setattr(dumps, "executable", lambda: str(tmp_path / "py-spy"))

    return make


def member(process: subprocess.Popen[str], rank: int = 0, log: Path | None = None, *, by_agent: bool = False) -> Member:
    """Return the record of a rank that this process is."""
    found = identity.identify(process.pid)
    assert found is not None
    return Member(rank, rank, 2, found, "host", 3, "", "", None if log is None else str(log), by_agent=by_agent)


def prints(*stacks: str) -> str:
    """Return the lines of a program that writes these stacks of the process that it is asked for."""
    return "\n".join(f'for pid; do :; done; echo "thread ($pid): MainThread;{stack}"' for stack in stacks)


def test_a_rank_is_told_of_as_if_it_had_published(bench: Bench, spy: Callable[[str], None], tmp_path: Path) -> None:
    """Who it is, that it lives, its memory and CPU; where its main thread is; and what its log says. Steps are not
    known, and are not said to be.
    """
    spy(prints(f"{TRAIN};backward ({TORCH}/autograd/__init__.py:395) 12", f"{TRAIN} 4"))
    (tmp_path / "log").write_text("iter 7: loss 2.5, time 3ms\n")
    with started(*WAITING) as process:
        bench.made.follow(member(process, log=tmp_path / "log"))
        until(lambda: [each for each in bench.sampled() if each.log_loss], "looks, and a line of the log")
        hello = next(each for each in bench.told if isinstance(each, wire.Hello))
        beat = next(each for each in bench.told if isinstance(each, wire.Beat))
        last = bench.sampled()[-1]
    assert (hello.rank, hello.pid, hello.generation, hello.run_id) == (0, process.pid, 3, "id")
    assert (beat.step, beat.step_at_ns, beat.seq, beat.device, beat.generation) == (0, None, 0, "cpu", 3)
    assert beat.memory_bytes is not None
    assert beat.cpu_percent is not None
    assert (last.looks, last.generation, last.problem) == (16, 3, "")
    assert last.shares["other"] == pytest.approx(0.25)
    assert sum(last.shares.values()) == pytest.approx(1)
    assert {line.where for line in last.lines} == {"train.py:28 main"}
    assert (last.log_step, last.log_loss) == (7, 2.5)
    assert last.cost_percent > 0


def test_of_a_rank_on_a_device_the_numbers_of_that_are_told(
    bench: Bench, spy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the driver, of the board that knows its process; and its main thread waits for nobody in a backward pass."""
    spy(prints(f"{TRAIN};backward ({TORCH}/autograd/__init__.py:395) 12"))
    with started(*WAITING) as process:
        boards = [
            SimpleNamespace(memory_of=lambda pid: None),
            SimpleNamespace(memory_of={process.pid: 3 << 30}.get, memory=(5 << 30, 80 << 30), load=70.0),
        ]
        monkeypatch.setattr(sampling, "boards", lambda: boards)
        monkeypatch.setattr(sampling, "_uses_device", lambda _: True)
        bench.made.follow(member(process))
        until(lambda: bench.sampled(), "looks")
        beat = next(each for each in bench.told if isinstance(each, wire.Beat))
    assert (beat.device, beat.memory_bytes, beat.memory_total_bytes) == ("cuda:1", 3 << 30, 80 << 30)
    assert beat.device_percent == 70
    assert bench.sampled()[-1].shares == {"backward": 1}


def test_a_rank_that_does_not_move_is_known_since_its_first_look(bench: Bench, spy: Callable[[str], None]) -> None:
    """With the line and the call that it waits in; one look elsewhere ends it."""
    spy(prints(f"{WAITS} 20"))
    with started(*WAITING) as process:
        bench.made.follow(member(process))
        first = until(lambda: [each for each in bench.sampled() if each.still_since_ns], "it stands")[0]
        later = until(lambda: bench.sampled()[2:], "it still stands")[-1]
        spy(prints(f"{WAITS} 20", f"{TRAIN} 1"))
        moved = until(lambda: [each for each in bench.sampled() if each.looks == 21], "it moves")[-1]
    assert first.still_since_ns == later.still_since_ns == first.at_ns - first.span_ns
    assert later.still_at == "train.py:28 main, in barrier"
    assert moved.still_since_ns is None


def test_a_rank_that_an_agent_has_joined_is_left_to_it(bench: Bench, spy: Callable[[str], None]) -> None:
    """From then on nothing is said in its place; of its neighbour it is."""
    spy(prints(f"{TRAIN} 20"))
    with started(*WAITING) as one, started(*WAITING) as other:
        bench.made.follow(member(one))
        bench.made.follow(member(other, 1))
        until(lambda: bench.sampled() and bench.sampled(1), "both are looked at")
        bench.made.follow(member(one, by_agent=True))
        until(lambda: len(bench.sampled(1)) > 2, "the window that was under way is over")
        before = len(bench.sampled())
        until(lambda: len(bench.sampled(1)) > 6, "the other is looked at")
    assert len(bench.sampled()) <= before + 1


def test_a_stopped_process_is_not_looked_at(bench: Bench, spy: Callable[[str], None]) -> None:
    """It stands because somebody wants it to: that is no hang, and its signs of life go on."""
    spy(prints(f"{WAITS} 20"))
    with started(*WAITING) as process:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: identity.is_stopped(identity.identify(process.pid)), "it is stopped")
        bench.made.follow(member(process))
        until(lambda: [each for each in bench.take() if isinstance(each, wire.Beat)][1:], "two signs of life")
        assert not bench.sampled()
        os.kill(process.pid, signal.SIGCONT)
        until(bench.sampled, "looks")


def test_without_looks_the_reason_is_said(bench: Bench, spy: Callable[[str], None], tmp_path: Path) -> None:
    """Where py-spy may not look, and where there is none: with what helps. The log is read all the same."""
    spy("echo 'Error: Permission denied (os error 13)' >&2; exit 1")
    (tmp_path / "log").write_text("iter 7: loss 2.5, time 3ms\n")
    with started(*WAITING) as process, pytest.MonkeyPatch.context() as patch:
        bench.made.follow(member(process, log=tmp_path / "log"))
        until(lambda: [each for each in bench.sampled() if each.log_step == 7], "a word on it")
        assert bench.sampled()[-1].problem.startswith("no stacks from outside: ")
        patch.setattr(dumps, "executable", lambda: None)
        until(lambda: bench.sampled()[-1].problem == dumps.MISSING, "another word")
        assert (bench.sampled()[-1].looks, bench.sampled()[-1].shares) == (0, {})


def test_looks_that_never_end_are_given_up(
    bench: Bench, spy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others begin in their place, again and again, and find what there is then."""
    monkeypatch.setattr("ddptop.agent.observer.sampling.looks._LATEST_S", 0.2)
    spy(f"exec {' '.join(WAITING)}")
    with started(*WAITING) as process:
        bench.made.follow(member(process))
        until(lambda: len([each for each in bench.take() if isinstance(each, wire.Beat)]) > 2, "three signs of life")
        assert not bench.sampled()
        spy(prints(f"{TRAIN} 20"))
        until(bench.sampled, "looks")
    assert not bench.said


def test_a_log_of_several_ranks_is_the_first_one_s(bench: Bench, spy: Callable[[str], None], tmp_path: Path) -> None:
    """Nobody knows which of them wrote a line."""
    spy(prints(f"{TRAIN} 20"))
    log = tmp_path / "log"
    log.write_text("iter 7: loss 2.5, time 3ms\n")
    with started(*WAITING) as one, started(*WAITING) as other:
        bench.made.follow(member(one, 0, log))
        bench.made.follow(member(other, 1, log))
        until(lambda: [each for each in bench.sampled(0) if each.log_step == 7] and bench.sampled(1)[2:], "all looks")
        assert not any(each.log_step for each in bench.sampled(1))


def test_looks_that_cost_much_are_rare(bench: Bench, spy: Callable[[str], None]) -> None:
    """A py-spy that takes some hundredths of a second of CPU each time takes no more of a core than it may."""
    spy(f"i=0; while [ $i -lt 12000 ]; do i=$((i+1)); done\n{prints(f'{TRAIN} 20')}")
    with started(*WAITING) as process:
        bench.made.follow(member(process))
        until(lambda: bench.sampled()[1:], "two windows")
        first, second = bench.sampled()[:2]
    assert second.at_ns - first.at_ns > 5e8
    assert first.cost_percent <= 2.6


def test_a_rank_whose_looks_cannot_be_read_costs_the_others_nothing(
    bench: Bench, spy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, and each window has the looks of its own."""
    take, taken = Sampling._take, []

    def failing(self: Sampling, rank: Any, found: Any) -> None:
        taken.append(found)
        if rank.member.rank == 0:
            raise RuntimeError("such a frame")
        take(self, rank, found)

    monkeypatch.setattr(Sampling, "_take", failing)
    spy(prints(f"{TRAIN} 20"))
    with started(*WAITING) as one, started(*WAITING) as other:
        bench.made.follow(member(one))
        bench.made.follow(member(other, 1))
        until(lambda: len(bench.sampled(1)) > 3, "looks at the other")
    assert bench.said == ["looks from outside: RuntimeError('such a frame')"]
    assert len(taken) == len({id(each) for each in taken})

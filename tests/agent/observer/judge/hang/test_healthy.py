"""Training that is healthy raises no alarm, whatever it does between its steps; and a hang after it is still told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes.standing import BARRIER, Run, Spot, called, in_library, in_user_code, waits

from ddptop.agent.observer.judge.standstill import UNSEEN_S

Part = Callable[[Run, float], None]
"""A stretch of a run's life, of so many seconds."""


def _moving(run: Run, *, cpu: float = 90.0, function: str = "evaluate") -> Spot:
    """Return a rank that computes: the frames of libraries are others each time."""
    name = ("conv.py", "linear.py", "container.py")[run.now_ns // 100_000_000 % 3]
    frames = in_library(f"torch/nn/modules/{name}", "forward", run.now_ns // 7 % 1000, function, 55)
    return Spot(frames, calls=run.calls, cpu=cpu, status="running")


def train(run: Run, seconds: float) -> None:
    """Make steps."""
    run.train(min(seconds, 20))


def all_evaluate(run: Run, seconds: float) -> None:
    """All ranks evaluate, without collectives."""
    run.spend(seconds, lambda rank, _: _moving(run))


def rank_0_evaluates(run: Run, seconds: float) -> None:
    """The others wait in a barrier meanwhile."""
    run.spend(seconds, lambda rank, at: waits(run.calls + 1, BARRIER, seconds=at) if rank else _moving(run))


def rank_0_saves(run: Run, seconds: float) -> None:
    """In one line of C all the time, which uses the CPU."""
    saves = in_library("torch/serialization.py", "_save", 1234, "save_checkpoint", 88)
    seconds = min(seconds, 30)
    run.spend(
        seconds,
        lambda rank, at: waits(run.calls + 1, BARRIER, seconds=at) if rank else Spot(saves, calls=run.calls, cpu=60.0),
    )


def rank_0_writes_to_a_slow_disk(run: Run, seconds: float) -> None:
    """In one line, without using the CPU."""
    saves = in_library("torch/serialization.py", "_save", 1234, "save_checkpoint", 88)
    disk = Spot(saves, calls=run.calls, cpu=1.0, status="disk-sleep")
    run.spend(min(seconds, 30), lambda rank, at: waits(run.calls + 1, BARRIER, seconds=at) if rank else disk)


def all_sleep_in_one_line(run: Run, seconds: float) -> None:
    """No rank is in a collective, and none moves: as in an evaluation by another program."""
    run.spend(seconds, lambda rank, _: Spot(in_user_code(70, "evaluate", "time.sleep(60)"), calls=run.calls))


def evaluates_with_collectives(run: Run, seconds: float) -> None:
    """Calls come and go, without steps."""

    def where(rank: int, at: float) -> Spot:
        calls = run.calls + int(at / 0.5) + 1
        return Spot(in_user_code(60), called(calls, seconds=at % 0.5), calls)

    run.spend(seconds, where)
    run.calls += int(seconds / 0.5) + 2


def loads_slowly(run: Run, seconds: float) -> None:
    """One rank waits for data workers, which compute; the others for the rank."""
    loads = in_library("torch/utils/data/dataloader.py", "_try_get_data", 1275)
    run.spend(
        seconds,
        lambda rank, at: (
            waits(run.calls + 1, seconds=at) if rank != 1 else Spot(loads, calls=run.calls, cpu=70.0, own_cpu=1.0)
        ),
    )


def rank_0_reads_a_large_pickle(run: Run, seconds: float) -> None:
    """In one call of C that holds the interpreter lock, so that its agent is silent; nobody can see its stack."""

    def where(rank: int, at: float) -> Spot:
        if rank:
            return waits(run.calls + 1, seconds=at)
        memory, moved = 500 + 40 * at, 1000 + 20 * at
        return Spot((), cpu=99.0, status="running", silent=True, memory=int(memory * 2**20), moved=int(moved * 2**20))

    run.spend(min(seconds, 60), where)


def compiles(run: Run, seconds: float) -> None:
    """All ranks compile in the middle of the training."""
    run.spend(seconds, lambda rank, _: Spot(in_library("torch/_dynamo/utils.py", "f", run.now_ns // 7 % 99), cpu=80.0))


def is_paused(run: Run, seconds: float) -> None:
    """Held at a step, perhaps with a checkpoint by us."""
    run.spend(seconds, lambda rank, _: Spot(state="paused", activity="held at step 7", calls=run.calls))


def has_a_rank_counted(run: Run, seconds: float) -> None:
    """Rank 0 is held for some work of ours, and the others wait for it in a collective."""
    held = Spot(state="held", activity="counting memory", calls=run.calls)
    run.spend(seconds, lambda rank, at: waits(run.calls + 1, seconds=at) if rank else held)


def goes_step_by_step(run: Run, seconds: float) -> None:
    """Held, and let go for one step each time."""
    for _ in range(3):
        run.spend(min(seconds, 10) / 3, lambda rank, _: Spot(state="paused", calls=run.calls))
        run.spend(0.2, lambda rank, _: _moving(run))
        run.make_step()


def is_frozen(run: Run, seconds: float) -> None:
    """SIGSTOP of all, on request."""
    run.frozen = True
    run.spend(seconds, lambda rank, _: Spot((), status="stopped", silent=True))
    run.frozen = False


def has_no_core(run: Run, seconds: float) -> None:
    """On a machine under load one rank is ready to run for seconds, and does not."""
    still = Spot(in_user_code(31), calls=run.calls, cpu=4.0, status="running")
    run.spend(min(seconds, 12), lambda rank, at: waits(run.calls + 1, seconds=at) if rank else still)


def hears_late(run: Run, seconds: float) -> None:
    """On a machine under load heartbeats come late, and the agents answer late."""

    def where(rank: int, _: float) -> Spot:
        spot = _moving(run)
        # It reads its data.
        spot.silent, spot.moved = True, run.now_ns // 1_000 * 20
        return spot

    run.spend(min(seconds, 3), where)


PARTS: tuple[Part, ...] = (
    train, all_evaluate, rank_0_evaluates, rank_0_saves, rank_0_writes_to_a_slow_disk, all_sleep_in_one_line,
    evaluates_with_collectives, loads_slowly, rank_0_reads_a_large_pickle, compiles, is_paused, goes_step_by_step,
    has_a_rank_counted, is_frozen, has_no_core, hears_late,
)  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(
    step_s=st.sampled_from([0.02, 0.3, 2.0]),
    first_s=st.floats(1, 90),
    parts=st.lists(st.tuples(st.sampled_from(PARTS), st.floats(0.5, 60)), min_size=1, max_size=6),
    world=st.sampled_from([2, 3]),
)
def test_no_healthy_training_is_told_to_hang(step_s, first_s, parts, world):
    """Compiled first steps, evaluations of 60 s, saves of 30 s, pauses and loaded machines, in any order."""
    run = Run(world, step_s)
    run.spend(first_s, lambda rank, _: Spot(in_library("torch/_dynamo/utils.py", "f", run.now_ns // 7 % 99), cpu=90.0))
    run.train(5 * step_s)
    for part, seconds in parts:
        part(run, seconds)
        run.train(3 * step_s)
    assert [finding.text for finding in run.hangs] == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_each_part_alone_is_no_hang_and_a_hang_after_it_is_told(part):
    """Whatever came before, a rank that sleeps elsewhere is told in time."""
    run = Run(2, 0.2)
    run.train(5)
    part(run, 60)
    run.train(5)
    assert run.hangs == []

    def where(rank: int, at: float) -> Spot:
        here = Spot(in_user_code(31, "another_function", "time.sleep(9)"), calls=run.calls)
        return here if rank else waits(run.calls + 1, seconds=at + 0.1)

    finding = run.until_told(3 * 0.2 + 5, where)
    assert (finding.kind, finding.rank) == ("hang", 1)


def test_one_look_is_not_enough():
    """A profiler stops the processes for a moment, in which they are seen."""
    run = Run(2, 0.2)
    run.train(5)

    def where(rank: int, at: float) -> Spot:
        if rank == 0:
            return waits(run.calls + 1, seconds=at)
        return Spot(in_user_code(), status="tracing-stop", by="py-spy") if len(run.asked) < 2 else _moving(run)

    run.spend(5, where)
    assert len(run.asked) > 1
    assert run.hangs == []


def test_a_loop_of_the_users_is_not_said_to_spin_at_once():
    """Two looks find it in its own lines; before the third it is done."""
    run = Run(2, 0.2)
    run.train(5)
    loop = Spot(in_user_code(), calls=run.calls, cpu=99.0, status="running")
    run.spend(3.5, lambda rank, at: loop if rank else waits(run.calls + 1, seconds=at))
    assert len(run.asked) == 2
    run.train(2)
    assert run.hangs == []


def test_as_long_as_steps_come_nobody_is_asked():
    """A healthy run costs no question, also where its steps are slow and unequal."""
    for step_s in (0.02, 1.0, 7.0):
        run = Run(2, step_s)
        run.train(max(20.0, 10 * step_s))
        assert run.asked == []


def test_a_run_that_is_held_is_not_looked_at_even_where_it_is_not_heard():
    """On a machine under load heartbeats stay away; the last one said that the rank is held."""
    run = Run(2, 0.2)
    run.train(5)
    is_paused(run, 3)
    run.spend(30, lambda rank, _: Spot(silent=True, by="agent"))
    assert run.asked == []


def test_where_a_rank_has_stood_before_and_gone_on_it_may_stand_again():
    """A wait for a server that takes three seconds, and later five."""
    run = Run(2, 0.2)

    def fetches(rank: int, at: float) -> Spot:
        here = Spot(in_library("socket.py", "recv", 1, "fetch", 12), calls=run.calls)
        return here if rank else waits(run.calls + 1, seconds=at + 0.1)

    for seconds in (2.9, 5.0):
        run.train(5)
        run.spend(seconds, fetches)
    assert len(run.asked) > 2
    assert run.hangs == []


def test_a_start_is_not_looked_at_for_a_while():
    """Imports and a rendezvous take their time."""
    run = Run(2, 0.2)
    run.spend(UNSEEN_S - 1, lambda rank, _: Spot(in_library("importlib.py", "load"), state="starting"))
    assert run.asked == []


def test_a_rank_that_works_is_told_in_grey_and_named_with_its_line():
    """Rank 0 saves, and the others wait: no alarm, and no secret."""
    run = Run(4, 0.2)
    run.train(5)
    rank_0_saves(run, 25)
    (_, finding), *more = run.told
    assert more == []
    assert (finding.kind, finding.rank, finding.urgent) == ("standing", 0, False)
    assert finding.hang is not None
    assert (finding.hang.kind, finding.hang.ranks) == ("working", (0,))
    assert finding.text.startswith("rank 0 saves a checkpoint (train.py:88 save_checkpoint); ranks 1, 2 and 3 wait · 1")


def test_all_that_evaluate_are_told_in_grey_and_nobody_is_accused():
    """No rank is in a collective."""
    run = Run(4, 0.2)
    run.train(5)
    all_evaluate(run, 25)
    ((_, finding),) = run.told
    assert finding.hang is not None
    assert (finding.kind, finding.hang.kind) == ("standing", "all_outside")
    assert finding.text.startswith("no step: no rank is in a collective, rank 0 evaluates (train.py:55 evaluate)")


def test_what_is_usual_for_a_run_is_not_told_again():
    """An evaluation of 30 s is told once; the next ones of the same length are not."""
    run = Run(2, 0.2)
    told = []
    for _ in range(3):
        run.train(5)
        run.told.clear()
        all_evaluate(run, 30)
        told.append(len(run.told))
    assert told == [1, 0, 0]


def test_a_rank_that_stops_to_work_hangs():
    """An evaluation that ends in a lock is told once nothing of it moves."""
    run = Run(2, 0.2)
    run.train(5)
    rank_0_evaluates(run, 20)
    stuck = Spot(in_library("threading.py", "wait", 320, "step"), calls=run.calls)
    began = run.now_ns

    def where(rank: int, _: float) -> Spot:
        since = (run.now_ns - began) / 1e9 + 20
        return waits(run.calls + 1, BARRIER, seconds=since) if rank else stuck

    finding = run.until_told(20, where)
    assert (finding.kind, finding.rank) == ("hang", 0)
    assert "it waits for a lock" in finding.text


def test_a_hang_is_over_at_the_next_step():
    """The finding goes, with the time of the step; the next hang is told again."""
    run = Run(2, 0.2)
    run.train(5)
    asleep = Spot(in_user_code(31, source="time.sleep(9)"), calls=run.calls)
    for _ in range(2):
        run.until_told(5.6, lambda rank, at: asleep if rank else waits(run.calls + 1, seconds=at + 0.1))
        run.make_step()
        asleep.calls = run.calls
        ended = run.now_ns
        run.spend(1.5, lambda rank, _: _moving(run))
        assert run.watch.finding(run.now_ns) is None
        assert run.watch.ceased_at_ns == ended
        run.told.clear()
        run.train(2)

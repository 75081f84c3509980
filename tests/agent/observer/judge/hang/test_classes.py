"""Who is named when a run hangs, and why: each class from what its ranks would answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.processes.standing import (
    ALL_REDUCE,
    BACKWARD,
    BARRIER,
    MAIN,
    REDUCE,
    Run,
    Spot,
    Where,
    called,
    in_library,
    in_user_code,
    waits,
)  # fmt: skip

from ddptop.agent.observer.inspection import dumps
from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.observer.judge.standstill import ENDED_S
from ddptop.agent.wire import Frame, GroupCalls, Hang, OpenCall, PastCall, Verdict

STEP_S = 0.2
SOON_S = 3 * STEP_S + 5


def trained(world: int = 4, **more: object) -> Run:
    """Return a run after some seconds of training."""
    run = Run(world, STEP_S, **more)  # type: ignore[arg-type]
    run.train(10)
    assert run.asked == []
    return run


def hang_of(finding: Verdict) -> Hang:
    """Return what is known of a hang."""
    assert finding.kind == "hang", finding
    assert finding.hang is not None
    return finding.hang


def told_now(run: Run) -> Verdict:
    """Return what is told at this moment."""
    finding = run.watch.finding(run.now_ns)
    assert finding is not None
    return finding


def stuck(culprit: Spot, run: Run, rank: int = 1) -> Where:
    """Return where the ranks stand: one at its place, the others in the next call."""
    culprit.calls = run.calls

    def where(each: int, since: float) -> Spot:
        return culprit if each == rank else waits(run.calls + 1, seconds=since + 0.1)

    return where


SLEEPS = in_user_code(31, source="time.sleep(1000)")
LOADER = (
    Frame("select", "selectors.py", 415, library=True),
    Frame("_try_get_data", "torch/utils/data/dataloader.py", 1275, library=True),
    *in_user_code(28),
)


@pytest.mark.parametrize(
    ("culprit", "kind", "says"),
    [
        (Spot(SLEEPS), "not_entered", "rank 1 hangs: it sleeps and never entered all_reduce 4 MiB"),
        (Spot(in_user_code(31), cpu=0.0), "not_entered", "rank 1 hangs: it never entered"),
        (Spot(in_user_code(31, source="result = compute()")), "waiting", "rank 1 hangs: it waits and never entered"),
        (Spot(in_user_code(31, source="with second:")), "waiting", "it waits for a lock"),
        (Spot(in_user_code(31), cpu=99.0, status="running"), "spinning", "it computes without end (99% CPU)"),
        (Spot(in_user_code(31), status="stopped", silent=True, by="py-spy"), "stopped", "it is stopped by SIGSTOP"),
        (Spot((), status="stopped", silent=True), "stopped", "it is stopped by SIGSTOP"),
        (Spot(SLEEPS, status="tracing-stop", silent=True), "stopped", "it is stopped by a debugger"),
        (
            Spot(in_user_code(31), silent=True, by="py-spy", holds_gil=True),
            "lock_held",
            "it holds the interpreter lock",
        ),
        (
            Spot((), silent=True, cpu=100.0, status="running"),
            "lock_held",
            "it computes, holding the interpreter lock; ranks 0, 2 and 3 wait in",
        ),
        (
            Spot((), silent=True, cpu=100.0, status="running", problem=dumps.MISSING),
            "lock_held",
            "it computes, holding the interpreter lock (install py-spy to see the line); ranks 0, 2 and 3 wait in",
        ),
        (Spot(LOADER, cpu=0.5), "data", "it waits for data"),
        (Spot(in_user_code(31, source="second.acquire()")), "waiting", "it waits for a lock"),
        (Spot(in_library("threading.py", "wait")), "waiting", "it waits for a lock"),
        (Spot(in_library("queue.py", "get")), "waiting", "it waits for a queue"),
        (Spot(in_library("socket.py", "readinto")), "waiting", "it waits for a socket"),
        (Spot(in_library("subprocess.py", "communicate")), "waiting", "it waits for another process"),
    ],
)
def test_a_rank_that_does_not_come_is_named_soon_with_its_class_and_line(culprit, kind, says):
    """Within three usual steps and five seconds: rank, class, line, and what the other three stand in."""
    run = trained()
    began_ns = run.now_ns
    finding = run.until_told(SOON_S, stuck(culprit, run))
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks, finding.rank) == (kind, (1,), 1)
    assert says in finding.text
    assert "all_reduce 4 MiB" in finding.text
    assert len(finding.text) <= 150
    assert hang.waiting == "all_reduce 4 MiB, default group, 3 of 4 ranks, train.py:40"
    if culprit.frames:
        line = next(frame for frame in culprit.frames if not frame.library)
        assert hang.where == f"{line.file}:{line.line} {line.function}"
        assert hang.where in finding.text
    assert finding.urgent
    # The call has been open since the last step, but for the first tick.
    assert hang.timeout_at_ns == pytest.approx(began_ns + 1800 * ONE, abs=0.3 * ONE)


@pytest.mark.parametrize(
    ("function", "swapped", "says", "least_s"),
    [
        ("main", None, "it waits for the disk", 30),
        ("main", 3 << 30, "it swaps, with 3.00 GiB on the swap device", 30),
        ("save_checkpoint", None, "it waits for the disk", 75),
    ],
)
def test_a_rank_that_waits_for_a_disk_is_at_work_at_first(function, swapped, says, least_s):
    """A disk may be slow; after half a minute it is told, and of a save as late as of any that stands in one line."""
    run = trained(2)
    frames = in_user_code(31, function, source="x = load()")
    culprit = Spot(frames, calls=run.calls, status="disk-sleep", swapped=swapped)
    began_ns = run.now_ns

    def where(rank: int, _: float) -> Spot:
        return culprit if rank else waits(run.calls + 1, seconds=(run.now_ns - began_ns) / ONE + 0.1)

    run.until_told(40, where)
    finding = run.until_told(80, where)
    assert [each.kind for _, each in run.told] == ["standing", "hang"]
    assert least_s <= (run.now_ns - began_ns) / ONE <= least_s + 10
    assert hang_of(finding).kind == "swapping"
    assert says in finding.text


@pytest.mark.parametrize(("still_at_s", "least", "most"), [(0, 0, SOON_S), (20, 20, 20 + 2 * SOON_S), (999, 120, 130)])
def test_a_rank_that_holds_the_lock_is_at_work_while_its_memory_moves(still_at_s, least, most):
    """It builds what it reads in one call of C. It is told once nothing moves any more, or after two minutes."""
    run = trained()
    began_ns = run.now_ns

    def where(rank: int, _: float) -> Spot:
        at = (run.now_ns - began_ns) / ONE
        if rank != 1:
            return waits(run.calls + 1, seconds=at + 0.1)
        memory = int(1e9 + 30e6 * min(at, still_at_s))
        return Spot((), silent=True, cpu=100.0, status="running", memory=memory, moved=4096)

    while not run.hangs:
        run.until_told(150, where)
    assert least <= (run.now_ns - began_ns) / ONE <= most
    assert hang_of(run.hangs[-1]).kind == "lock_held"


def test_where_all_but_one_wait_the_line_is_as_it_reads_best():
    """The whole line, as people get it."""
    run = trained()
    text = run.until_told(SOON_S, stuck(Spot(in_user_code(31), cpu=0.0), run)).text
    assert text.startswith(
        "rank 1 hangs: it never entered all_reduce 4 MiB, in which ranks 0, 2 and 3 wait · train.py:31 main · "
    )


def test_the_verdict_says_what_it_rests_on():
    """The record of collectives and stacks are sure; stacks alone are not."""
    run = trained()
    hang = hang_of(run.until_told(SOON_S, stuck(Spot(SLEEPS), run)))
    assert (hang.evidence, hang.sure) == ("record of collectives, stacks, CPU time", True)

    unseen = trained()

    def where(rank: int, since: float) -> Spot:
        return Spot(SLEEPS if rank == 1 else (ALL_REDUCE, MAIN), observed=False, groups=())

    hang = hang_of(unseen.until_told(SOON_S, where))
    assert (hang.kind, hang.ranks, hang.sure) == ("not_entered", (1,), False)
    assert hang.evidence == "stacks, CPU time"


def test_a_rank_that_is_not_observed_is_not_said_to_be_absent_for_sure():
    """Its calls are not all seen, so that it may have entered."""
    run = trained()
    hang = hang_of(run.until_told(SOON_S, stuck(Spot(SLEEPS, observed=False), run)))
    assert (hang.ranks, hang.sure) == ((1,), False)


@pytest.mark.parametrize("first", [True, False], ids=["once", "always"])
def test_a_rank_that_only_answers_late_is_not_accused(first):
    """It is seen from outside, where its calls are not known; who has not entered for sure is the cause."""
    run = trained()
    late = Spot((ALL_REDUCE, MAIN), by="py-spy")
    asked: list[int] = []

    def where(rank: int, since: float) -> Spot:
        if rank == 3:
            return Spot(SLEEPS, calls=run.calls)
        if rank == 2 and (not first or len(run.asked) > 1):
            asked.append(rank)
            return late
        return waits(run.calls + 1, seconds=since + 0.1)

    hang = hang_of(run.until_told(SOON_S, where))
    assert hang.ranks == (3,)
    assert asked
    # What its agent has told before holds.
    assert (", 3 of 4 ranks," in hang.waiting) == first


def test_a_rank_that_nobody_could_see_is_not_accused_for_two_minutes():
    """It sends heartbeats; on a machine that has no core for its agent, or for a look at it, there is no stack."""
    run = trained(2)
    unseen = Spot((), calls=run.calls)
    began_ns = run.now_ns
    hang = hang_of(run.until_told(130, stuck(unseen, run)))
    assert (run.now_ns - began_ns) / ONE >= 120
    assert (hang.kind, hang.ranks, hang.sure) == ("unknown", (1,), False)


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ((ALL_REDUCE, MAIN), "rank 1 hangs: it is stopped by SIGSTOP · train.py:31 main"),
        (
            (BACKWARD, MAIN),
            "rank 1 hangs: it is stopped by SIGSTOP; ranks 0, 2 and 3 wait in all_reduce 4 MiB · train.py:31 main",
        ),
        ((), "rank 1 hangs: it is stopped by SIGSTOP; ranks 0, 2 and 3 wait in all_reduce 4 MiB ·"),
    ],
    ids=["inside", "backward", "no stacks"],
)
def test_of_a_stopped_rank_it_is_not_said_that_it_never_entered(frames, says):
    """It may stand in the very collective: its calls are not known, at most its stack."""
    run = trained()
    finding = run.until_told(SOON_S, stuck(Spot(frames, status="stopped", silent=True, by="py-spy"), run))
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks, hang.sure) == ("stopped", (1,), True)
    assert finding.text.startswith(says)


def test_ranks_that_came_after_the_first_look_are_not_said_to_be_absent():
    """One is stopped in the collective and one answers late, both after they had told that they had not entered."""
    run = trained()

    def where(rank: int, since: float) -> Spot:
        if rank in (0, 3):
            return waits(run.calls + 1, seconds=since + 0.1)
        if len(run.asked) < 2:
            return Spot(in_user_code(30), calls=run.calls)
        if rank == 1:
            return Spot((ALL_REDUCE, MAIN), by="py-spy", status="stopped", silent=True)
        return Spot((ALL_REDUCE, MAIN), by="py-spy")

    finding = run.until_told(SOON_S, where)
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks) == ("stopped", (1,))
    assert finding.text.startswith("rank 1 hangs: it is stopped by SIGSTOP · train.py:31 main")


def test_a_rank_that_answers_late_from_within_the_collective_is_not_accused():
    """All are inside, one of them by its stack alone: the network, and not the rank."""
    run = trained()
    late = Spot((ALL_REDUCE, MAIN), by="py-spy")
    began_ns = run.now_ns

    def where(rank: int, _: float) -> Spot:
        return late if rank == 1 else waits(run.calls + 1, seconds=(run.now_ns - began_ns) / ONE)

    hang = hang_of(run.until_told(30, where))
    assert (hang.kind, hang.ranks, hang.sure) == ("all_inside", (), False)


def test_a_rank_whose_process_has_ended_after_its_script_left_early():
    """Its last sign of life says so."""
    run = trained(2)
    ended = Spot((), state="ended")
    run.spend(1.5, lambda rank, since: ended if rank else waits(run.calls + 1, seconds=since))
    run.watch.progress.lose(1)
    finding = run.until_told(SOON_S, stuck(Spot((), silent=True), run))
    assert hang_of(finding).kind == "left_early"
    assert finding.text.startswith("rank 1 has ended, and rank 0 waits for it in all_reduce 4 MiB")


def test_a_group_whose_agents_get_no_time_is_not_accused():
    """On a machine under load a rank neither answers nor beats, and its thread is ready to run."""
    run = trained(2)
    starved = Spot((), status="running", silent=True, cpu=8.0)
    run.spend(15, lambda rank, since: starved if rank else waits(run.calls + 1, seconds=since))
    assert run.hangs == []


def test_several_ranks_are_named_together():
    """Two that sleep, of four."""
    run = trained()

    def where(rank: int, since: float) -> Spot:
        return Spot(SLEEPS, calls=run.calls) if rank in (1, 3) else waits(run.calls + 1, seconds=since)

    finding = run.until_told(SOON_S, where)
    assert hang_of(finding).ranks == (1, 3)
    assert finding.text.startswith("ranks 1 and 3 hang: they sleep and never entered all_reduce 4 MiB")


def test_all_that_are_stopped_are_told_and_nobody_is_accused():
    """SIGSTOP of the whole group."""
    run = trained()
    finding = run.until_told(SOON_S, lambda rank, since: Spot((), status="stopped", silent=True))
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks, finding.rank) == ("stopped", (), None)
    assert finding.text.startswith("all ranks hang: they are stopped by SIGSTOP")


def test_a_rank_that_has_ended_left_early():
    """Its script is over, and the others wait in a collective for it."""
    run = trained()

    def where(rank: int, since: float) -> Spot:
        return Spot((), state="ended") if rank == 1 else waits(run.calls + 1, seconds=since)

    finding = run.until_told(SOON_S, where)
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks) == ("left_early", (1,))
    assert finding.text.startswith("rank 1 has ended, and ranks 0, 2 and 3 wait for it in all_reduce 4 MiB")


def test_a_rank_that_alone_makes_a_group_is_told_with_that_call():
    """By its stack alone, where its agent has not told of the group."""
    run = trained(2)
    frames = in_library("torch/distributed/distributed_c10d.py", "_new_group_with_tag")
    finding = run.until_told(SOON_S, stuck(Spot(frames), run))
    assert hang_of(finding).kind == "not_entered"
    assert "it waits in new_group and never entered all_reduce 4 MiB" in finding.text


def test_a_rank_that_has_left_by_an_exit_is_told_with_its_line():
    """`sys.exit(0)` on one rank: no failure, and yet the others wait for it."""
    run = trained()
    left = Spot((), state="ended", activity="its script has ended by sys.exit (train.py:9 main)")
    finding = run.until_told(SOON_S, lambda rank, since: left if rank == 1 else waits(run.calls + 1, seconds=since))
    assert finding.text.startswith("rank 1 has ended by sys.exit (train.py:9 main), and ranks 0, 2 and 3 wait for it")
    assert hang_of(finding).where == "train.py:9 main"


def test_a_rank_that_stands_in_an_exit_function_is_told_with_it():
    """Its script has ended, and its process has not: who waits for it waits as long."""
    run = trained(2)
    where = "the barrier of its exit function leave_together (train.py:8)"
    left = Spot((), state="ended", activity=f"its process stands in {where}")
    finding = run.until_told(SOON_S, lambda rank, since: left if rank == 1 else waits(run.calls + 1, seconds=since))
    assert finding.text.startswith(f"rank 1 has left its script and stands in {where}, and rank 0 waits for it in all_")
    assert hang_of(finding).ranks == (1,)


def test_a_rank_whose_process_is_gone_is_named():
    """The launcher has not ended the others."""
    run = trained(2)
    run.watch.progress.lose(1)
    finding = run.until_told(SOON_S, stuck(Spot((), silent=True), run))
    assert hang_of(finding).kind == "gone"
    assert finding.text.startswith("rank 1 is gone, and rank 0 waits for it in all_reduce 4 MiB")


def parted(run: Run, mine: PastCall, theirs: PastCall, odd: int = 1) -> Where:
    """Return where the ranks stand: all of them in the same number, one in another call."""
    before = (REDUCE, PastCall("all_reduce", 64), REDUCE, PastCall("all_reduce", 64))

    def where(rank: int, since: float) -> Spot:
        last = mine if rank == odd else theirs
        return waits(run.calls + 1, last, seconds=since, recent=(*before, last), line=50 if rank == odd else 40)

    return where


@pytest.mark.parametrize(("world", "odd"), [(2, 0), (2, 1), (4, 1)])
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (PastCall("broadcast", 4 << 20), "called broadcast 4 MiB"),
        (PastCall("all_reduce", 8 << 20), "called all_reduce 8 MiB"),
        (PastCall("all_reduce", 64), "called all_reduce 64 B"),
        (BARRIER, "called barrier"),
    ],
)
def test_another_collective_is_told_from_the_one_that_was_due(world, odd, call, says):
    """Of two ranks, too: what came before shows which was due; both lines are told, and a barrier is no other case."""
    run = trained(world)
    finding = run.until_told(SOON_S, parted(run, call, REDUCE, odd))
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks, hang.where) == ("mismatch", (odd,), "train.py:50 main")
    assert finding.text.startswith(f"rank {odd} {says} (train.py:50), rank")
    assert "all_reduce 4 MiB (train.py:40) as call " in finding.text
    assert ("is one call ahead" in finding.text) == (call == PastCall("all_reduce", 64))


def test_a_rank_that_evaluates_alone_is_told_and_not_the_one_that_waits_for_it_in_a_barrier():
    """Its evaluation calls a collective; with two ranks the calls alone would accuse the other one, for sure."""
    run = trained(2)
    parts = parted(run, REDUCE, BARRIER)

    def where(rank: int, since: float) -> Spot:
        spot = parts(rank, since)
        return replace(spot, frames=(ALL_REDUCE, *in_user_code(50, "evaluate"))) if rank == 1 else spot

    hang = hang_of(run.until_told(SOON_S, where))
    assert (hang.kind, hang.ranks, hang.where, hang.sure) == ("mismatch", (1,), "train.py:50 evaluate", False)


@pytest.mark.parametrize("others", [REDUCE, BARRIER])
def test_an_exception_on_its_way_is_told_before_the_calls_in_which_the_ranks_parted(others):
    """It came first: what handles it calls something else than the others, or stands somewhere."""
    raises: dict[str, Any] = {
        "exception": "ValueError: label 1000 is out of range",
        "raised_at": "data.py:12 __getitem__",
    }
    run = trained(2)
    parts = parted(run, BARRIER if others == REDUCE else REDUCE, others)

    def where(rank: int, since: float) -> Spot:
        spot = parts(rank, since)
        return replace(spot, **raises) if rank == 1 else spot

    finding = run.until_told(SOON_S, where)
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks, hang.where) == ("exception", (1,), "data.py:12 __getitem__")
    assert finding.text.startswith("rank 1 raised ValueError: label 1000 is out of range, and stands in ")
    assert "rank 0 waits" in finding.text
    # Of a rank that only waits for another one it is no news: the training may go on in there.
    run = trained(2)
    sleeps = stuck(Spot(SLEEPS), run)
    other = run.until_told(SOON_S, lambda rank, since: replace(sleeps(rank, since), **({} if rank else raises)))
    assert hang_of(other).kind == "not_entered"


def test_sizes_that_may_differ_are_no_mismatch():
    """An all-to-all of unequal shares does not complete: the network, and not the ranks."""
    run = trained(2)

    def where(rank: int, since: float) -> Spot:
        call = PastCall("all_to_all", 100 + rank)
        return waits(run.calls + 1, call, seconds=since, recent=(call,))

    finding = run.until_told(30, where)
    assert hang_of(finding).kind == "all_inside"


def test_all_inside_accuses_nobody_and_takes_its_time():
    """A collective that all have entered may be a slow one."""
    run = trained()
    began_ns = run.now_ns

    def where(rank: int, _: float) -> Spot:
        return waits(run.calls + 1, seconds=(run.now_ns - began_ns) / ONE)

    run.spend(15, where)
    assert run.told == []
    finding = run.until_told(15, where)
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks) == ("all_inside", ())
    assert finding.text.startswith("all ranks hang in all_reduce 4 MiB, which all have entered: network or backend")


def test_a_rank_ahead_by_a_step_is_not_the_cause():
    """The root of a broadcast goes on to the next call; the cause is who has entered neither."""
    run = trained(3)

    def where(rank: int, since: float) -> Spot:
        ahead = {0: 2, 1: 1}.get(rank)
        return Spot(SLEEPS, calls=run.calls) if ahead is None else waits(run.calls + ahead, seconds=since)

    assert hang_of(run.until_told(SOON_S, where)).ranks == (2,)


ROWS = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
COLUMNS = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}


def test_on_a_mesh_the_end_of_the_chain_is_named():
    """2 x 2: rank 3 sleeps, rank 2 waits for it along one axis, ranks 0 and 1 wait along others."""
    run = trained()

    def where(rank: int, since: float) -> Spot:
        row, column = ROWS[rank], COLUMNS[rank]
        names = f"row{row[0]}", f"column{column[0]}"
        # Ranks 0 and 1 have completed their row, and stand in the column; rank 2 stands in its row.
        calls = {0: (9, 9), 1: (9, 9), 2: (9, 8), 3: (8, 8)}[rank]
        known = tuple(GroupCalls(name, made, of) for name, made, of in zip(names, calls, (row, column), strict=True))
        if rank == 3:
            return Spot(SLEEPS, groups=known)
        open_call = called(9, group=names[0] if rank == 2 else names[1], seconds=since)
        return Spot((ALL_REDUCE, MAIN), open_call, groups=known)

    finding = run.until_told(SOON_S, where)
    hang = hang_of(finding)
    assert hang.ranks == (3,)
    # Nothing is known of the timeouts of other groups than the default one.
    assert hang.timeout_at_ns is None
    assert "(group " in finding.text


def test_opposite_orders_of_two_groups_are_a_mismatch():
    """Each waits for the other, in another group."""
    run = trained(2)

    def where(rank: int, since: float) -> Spot:
        mine, other = ("a", "b") if rank == 0 else ("b", "a")
        known = (GroupCalls(mine, 5, (0, 1)), GroupCalls(other, 4, (0, 1)))
        return Spot((ALL_REDUCE, MAIN), called(5, group=mine, seconds=since), groups=known)

    finding = run.until_told(SOON_S, where)
    assert hang_of(finding).kind == "mismatch"
    assert finding.text.startswith("both ranks wait for each other: rank 0 in all_reduce 4 MiB (group a), rank 1 in")


def on_a_mesh(rank: int, row: int, column: int, all_ranks: tuple[PastCall, ...] = (BARRIER,)) -> tuple[GroupCalls, ...]:
    """Return the calls of a rank of a mesh of 2 x 2."""
    recent = (REDUCE,) * 4
    return (
        GroupCalls(f"row{ROWS[rank][0]}", row, ROWS[rank], recent),
        GroupCalls(f"column{COLUMNS[rank][0]}", column, COLUMNS[rank], recent),
        GroupCalls("0", len(all_ranks), (), all_ranks),
    )


def test_who_has_left_out_a_call_is_named_where_all_wait_for_each_other():
    """On a mesh rank 1 goes on without its column: rank 3 waits for it there, 2 for 3, 0 for 2, and 1 for 0 at last."""
    run = trained()
    groups = {0: on_a_mesh(0, 10, 10), 1: on_a_mesh(1, 11, 8), 2: on_a_mesh(2, 10, 9), 3: on_a_mesh(3, 9, 9)}
    calls = {0: (10, "column0"), 1: (11, "row0"), 2: (10, "row2"), 3: (9, "column1")}
    ahead = {0: 1, 1: 2, 2: 1, 3: 0}

    def where(rank: int, since: float) -> Spot:
        number, group = calls[rank]
        frames = (ALL_REDUCE, Frame("main", "train.py", 40 + rank))
        return Spot(frames, called(number, group=group, seconds=since), groups=groups[rank], ahead=ahead[rank])

    finding = run.until_told(SOON_S + 2, where)
    assert (hang_of(finding).kind, hang_of(finding).ranks) == ("mismatch", (1,))
    said = "rank 1 went on without all_reduce 4 MiB (group column1), in which rank 3 waits; now all wait"
    assert finding.text.startswith(f"{said} · train.py:41 main")


def test_who_is_in_a_call_that_never_came_is_named_where_all_wait_for_each_other():
    """On a mesh rank 1 calls something of all ranks, of which the others know nothing."""
    run = trained()
    gather = PastCall("all_gather", 28)
    groups = {0: on_a_mesh(0, 9, 8), 2: on_a_mesh(2, 9, 9), 3: on_a_mesh(3, 9, 9)}
    groups[1] = on_a_mesh(1, 8, 8, (BARRIER, gather))
    calls = {0: (9, REDUCE, "row0"), 1: (2, gather, "0"), 2: (9, REDUCE, "column0"), 3: (9, REDUCE, "column1")}

    def where(rank: int, since: float) -> Spot:
        number, call, group = calls[rank]
        frames = (ALL_REDUCE, Frame("main", "train.py", 40 + rank))
        return Spot(frames, called(number, call, group=group, seconds=since), groups=groups[rank])

    finding = run.until_told(SOON_S, where)
    assert (hang_of(finding).kind, hang_of(finding).ranks) == ("mismatch", (1,))
    assert finding.text.startswith(
        "rank 1 entered all_gather 28 B, which others do not call; they wait for each other · train.py:41 main"
    )


@pytest.mark.parametrize("status", ["tracing-stop", "sleeping"])
def test_a_look_at_native_frames_changes_nothing_of_a_hang(status):
    """It stops each rank for a second or two, in which its agent does not answer: the age and the verdict go on."""
    run = trained(2)
    asleep = Spot(SLEEPS, calls=run.calls)
    looked_at = {0: Spot(status=status, silent=True), 1: Spot((), status=status, by="system", silent=True)}
    run.until_told(SOON_S, stuck(asleep, run))
    began_ns = told_now(run).since_at_ns

    def stands(rank: int, since: float) -> Spot:
        return stuck(asleep, run)(rank, since + 20)

    for where in (stands, lambda rank, since: looked_at[rank], stands):
        run.spend(6, where)
        finding = told_now(run)
        assert (hang_of(finding).kind, finding.rank, finding.since_at_ns) == ("not_entered", 1, began_ns)
    assert len(run.told) == 1


def test_of_a_run_that_hangs_nobody_is_accused_who_only_dies_first():
    """The timeout ends the ranks that waited, one after the other: the cause that was told stays until the end."""
    run = trained(4)
    where = stuck(Spot(SLEEPS), run)
    run.until_told(SOON_S, where)
    told_ns, gone = run.now_ns, run.watch.progress.gone

    def left(rank: int, _: float) -> Spot:
        return Spot(silent=True) if rank in gone else where(rank, SOON_S + (run.now_ns - told_ns) / ONE)

    for rank in (0, 2, 3):
        run.watch.progress.lose(rank)
        run.spend(8, left)
    run.watch.progress.lose(1)
    run.spend(2, left)
    finding = told_now(run)
    assert (hang_of(finding).kind, finding.rank) == ("not_entered", 1)
    assert len(run.told) == 1


def test_where_a_rank_is_gone_nothing_is_told_of_those_in_no_collective():
    """They end a moment later."""
    run = trained(2)
    run.watch.progress.lose(0)
    run.spend(30, lambda rank, since: Spot(SLEEPS, calls=run.calls, silent=rank == 0))
    assert run.told == []


def test_a_rank_that_is_gone_is_no_hang_as_long_as_the_end_of_the_run_may_follow():
    """Where one has failed, the launcher ends the others within seconds; by then nothing has been told."""
    run = trained(2)
    run.watch.progress.lose(1)
    where = stuck(Spot(silent=True), run)
    run.spend(ENDED_S - 1, where)
    assert run.told == []
    assert hang_of(run.until_told(2, lambda rank, since: where(rank, since + ENDED_S - 1))).kind == "gone"


def test_a_receive_waits_for_whoever_is_in_no_call():
    """Point-to-point calls have no number: who is in none of them is looked at."""
    run = trained(2)

    def where(rank: int, since: float) -> Spot:
        if rank == 1:
            return Spot(SLEEPS, calls=run.calls)
        return Spot((ALL_REDUCE, MAIN), OpenCall("recv", "0", 0, 64, int(since * ONE)), run.calls)

    finding = run.until_told(SOON_S, where)
    hang = hang_of(finding)
    # Which rank it receives from is not told.
    assert (hang.ranks, hang.sure) == ((1,), False)
    assert finding.text.startswith("rank 1 hangs: it sleeps; rank 0 waits in recv 64 B · train.py:31 main")


@pytest.mark.parametrize(("blocking", "sends"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize(
    ("op", "other", "missing"), [("recv", "send", "none sends"), ("send", "recv", "none receives")]
)
def test_ranks_that_all_receive_are_told_that_none_sends(op, other, missing, blocking, sends):
    """Soon, and not as a matter of the network; one that sends, or does something else meanwhile, is none of them.

    The same of ranks that all send.
    """
    run = trained(2)

    def where(rank: int, since: float) -> Spot:
        call = OpenCall(other if sends and rank else op, "0", 0, 64, int(since * ONE), blocking=blocking)
        return Spot((ALL_REDUCE, MAIN), call, run.calls)

    deadlock = blocking and not sends
    finding = run.until_told(SOON_S if deadlock else 40, where)
    assert hang_of(finding).kind == ("mismatch" if deadlock else "all_inside")
    if deadlock:
        assert finding.text.startswith(f"both ranks wait in {op} 64 B, and {missing} · train.py:31 main")
        assert hang_of(finding).ranks == ()


def test_a_receive_from_a_rank_that_is_gone_is_no_matter_of_the_network():
    """Nobody else is outside of all calls."""
    run = trained(2)
    run.watch.progress.lose(1)

    def where(rank: int, since: float) -> Spot:
        return Spot((ALL_REDUCE, MAIN), OpenCall("recv", "0", 0, 64, int(since * ONE)), run.calls)

    hang = hang_of(run.until_told(SOON_S, where))
    assert (hang.kind, hang.ranks) == ("gone", (1,))


def test_ranks_of_other_hosts_are_not_accused():
    """All ranks of this host are inside, and nothing is known of the others."""
    run = Run(4, STEP_S, everyone=False)
    run.watch.progress.met -= {2, 3}
    run.world = 2
    run.train(10)
    finding = run.until_told(40, lambda rank, since: waits(run.calls + 1, seconds=since))
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks, hang.sure) == ("all_inside", (), False)
    assert finding.text.startswith(
        "ranks 0 and 1 wait in all_reduce 4 MiB for ranks of other hosts, or for the network"
    )


def test_of_a_large_group_only_the_stacks_of_a_few_are_asked_for():
    """1,024 ranks: all are asked once without stacks, and then the cause and a few that wait."""
    run = Run(1024, STEP_S)
    run.train(3)
    finding = run.until_told(SOON_S, stuck(Spot(SLEEPS), run, rank=700))
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks, hang.where) == ("not_entered", (700,), "train.py:31 main")
    assert [len(ranks) for ranks in run.asked] == [1024, 5, 5]
    assert "in which 1,023 ranks wait" in finding.text


def test_of_a_large_group_all_that_have_not_come_are_counted():
    """Although only the stacks of a few of them are asked for."""
    run = Run(1024, STEP_S)
    run.train(3)

    def where(rank: int, since: float) -> Spot:
        return Spot(SLEEPS, calls=run.calls) if rank >= 1000 else waits(run.calls + 1, seconds=since)

    finding = run.until_told(SOON_S, where)
    assert hang_of(finding).ranks == tuple(range(1000, 1024))
    assert finding.text.startswith(
        "24 ranks hang: rank 1000 sleeps; they never entered all_reduce 4 MiB, in which 1,000"
    )


@pytest.mark.parametrize(
    ("missing", "gone", "says"),
    [
        ((2,), (), "rank 2 of 4 has not started: ranks 0, 1 and 3 wait for it in init_process_group (train.py:31)"),
        ((2, 3), (), "ranks 2 and 3 of 4 have not started: ranks 0 and 1 wait for them in init_process_group"),
        ((2, 3), (3,), "ranks 2 and 3 of 4 do not come: ranks 0 and 1 wait for them in init_process_group"),
    ],
)
def test_ranks_that_never_start_are_named_while_the_others_meet(missing, gone, says):
    """They have no process, or none any more; the others stand in the rendezvous."""
    run = Run(4, STEP_S)
    run.watch.progress.met -= {*missing}
    for rank in gone:
        run.watch.progress.lose(rank)
    meets = Spot(in_library("torch/distributed/rendezvous.py", "_env_rendezvous_handler"), state="starting", groups=())
    meets.activity = "rendezvous"

    def where(rank: int, since: float) -> Spot:
        return Spot((), silent=True) if rank in missing else meets

    finding = run.until_told(40, where)
    hang = hang_of(finding)
    assert (hang.kind, hang.ranks, hang.sure) == ("not_entered", missing, False)
    assert finding.text.startswith(says)


def test_a_rank_beyond_a_guessed_world_is_missed_by_the_word_of_those_that_have_come():
    """The script makes a group of more ranks than the launch has guessed and than it starts."""
    run = Run(2, STEP_S)
    run.watch.progress.meet(0, run.now_ns, world=3)
    meets = Spot(in_library("torch/distributed/rendezvous.py", "rendezvous"), state="starting", groups=())
    meets.activity = "rendezvous"
    finding = run.until_told(40, lambda rank, since: meets)
    said = "rank 2 of 3 has not started: ranks 0 and 1 wait for it in init_process_group (train.py:31)"
    assert finding.text.startswith(said)
    assert (hang_of(finding).kind, hang_of(finding).ranks) == ("not_entered", ())


def test_a_rendezvous_that_all_have_entered_is_told_without_a_culprit():
    """They look for each other at different addresses."""
    run = Run(2, STEP_S)
    meets = Spot(in_library("torch/distributed/rendezvous.py", "rendezvous"), state="starting", groups=())
    meets.activity = "rendezvous"
    finding = run.until_told(90, lambda rank, since: meets)
    assert hang_of(finding).ranks == ()
    assert "see MASTER_ADDR, MASTER_PORT and the world size" in finding.text


def test_before_the_first_step_a_hang_is_told_later():
    """A rank that is missing at the first collective."""
    run = Run(2, STEP_S)
    began_ns = run.now_ns

    def where(rank: int, _: float) -> Spot:
        since = (run.now_ns - began_ns) / ONE
        return Spot(SLEEPS, state="starting") if rank == 1 else waits(1, seconds=since, state="starting")

    run.spend(25, where)
    assert run.told == []
    assert hang_of(run.until_told(15, where)).ranks == (1,)


@pytest.mark.parametrize("stands", [True, False])
def test_unequal_sizes_are_a_mismatch_where_the_gather_does_not_complete(stands):
    """Both sizes and the line; some backends take unequal sizes, and then a later hang has another cause."""
    run = trained(2)
    unequal = PastCall("all_gather", 28), PastCall("all_gather", 16 << 10)

    def where(rank: int, since: float) -> Spot:
        number = run.calls + 1
        if stands:
            return waits(number, unequal[rank], seconds=since + 0.1, recent=(REDUCE, REDUCE, unequal[rank]))
        recent = (REDUCE, unequal[rank])
        if rank:
            return Spot(SLEEPS, calls=number, recent=recent)
        return waits(number + 1, seconds=since + 0.1, recent=(*recent, REDUCE))

    finding = run.until_told(SOON_S, where)
    if stands:
        assert hang_of(finding).kind == "mismatch"
        for said in ("all_gather 28 B", "all_gather 16 KiB", f"as call {run.calls + 1}", "train.py:40"):
            assert said in finding.text
    else:
        assert (hang_of(finding).kind, finding.rank) == ("not_entered", 1)


def test_a_thread_that_has_died_is_told_of_a_rank_that_waits_for_threads():
    """A queue that nobody fills any more; a rank that sleeps waits for no thread."""
    for frames, told in ((in_library("queue.py", "get"), True), (SLEEPS, False)):
        run = trained(2)
        finding = run.until_told(SOON_S, stuck(Spot(frames, dead_thread="thread prefetch died: KeyError: 7"), run))
        said = "it waits for a queue (its thread prefetch died: KeyError: 7) and never entered all_reduce"
        assert (said in finding.text) == told
        assert ("prefetch" in finding.text) == told

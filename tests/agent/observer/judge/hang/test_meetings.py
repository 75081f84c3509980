"""Ranks that meet others outside of collectives, and threads of a rank that wait for each other's locks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.processes.standing import ALL_REDUCE, REDUCE, Run, Spot, called, in_user_code, waits

from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.wire import Frame, GroupCalls, OpenCall

SOON_S = 6.0
SOCKET = in_user_code(10, "Tracker.__init__", "self.run_id = self.link.recv(64)")
C10D = "torch/distributed/distributed_c10d.py"


def trained(world: int = 3) -> Run:
    """Return a run after some seconds of training."""
    run = Run(world, 0.2)
    run.train(5)
    return run


def making(run: Run, since: float, ranks: tuple[int, ...], function: str = "new_group", **more: Any) -> Spot:
    """Return the place of a rank that makes a group, as its agent tells it."""
    inner = () if function == "new_group" else (Frame("new_group", C10D, 5000, library=True),)
    file = C10D if function == "new_group" else "torch/distributed/device_mesh.py"
    frames = (*inner, Frame(function, file, 900, library=True), *in_user_code(20))
    groups = GroupCalls("0", run.calls), GroupCalls("1", 0, ranks, timeout_s=10.0)
    call = OpenCall("new_group", "1", 0, 0, int(since * ONE), blocking=True)
    return Spot(frames, call, run.calls, groups=groups, **more)


@pytest.mark.parametrize("function", ["new_group", "init_device_mesh"])
def test_a_rank_that_does_not_come_to_make_a_group_is_named_and_who_waits_in_what(function):
    """Ranks 1 and 2 make a group while rank 0 waits for a socket; the timeout is the one that was given to it."""
    run = trained()
    began_ns = run.now_ns

    def where(rank: int, since: float) -> Spot:
        return making(run, since, (0, 1, 2), function) if rank else Spot(SOCKET, calls=run.calls)

    finding = run.until_told(SOON_S, where)
    hang = finding.hang
    assert hang is not None
    assert (finding.kind, hang.kind, hang.ranks, hang.sure) == ("hang", "waiting", (0,), True)
    said = f"rank 0 hangs: it waits for a socket and never entered {function}, in which ranks 1 and 2 wait"
    assert finding.text.startswith(f"{said} · train.py:10 Tracker.__init__")
    assert hang.waiting == f"{function}, 2 of 3 ranks, train.py:20"
    assert hang.timeout_of == "new_group"
    assert hang.timeout_at_ns == pytest.approx(began_ns + 10 * ONE, abs=0.3 * ONE)


def test_a_rank_that_is_no_member_of_a_group_that_is_made_is_not_accused():
    """Of three ranks, 1 and 2 make a group: rank 2 does not come, and rank 0, which stands elsewhere, need not."""
    run = trained()

    def where(rank: int, since: float) -> Spot:
        asleep = Spot(in_user_code(30 + rank, source="time.sleep(900)"), calls=run.calls)
        return making(run, since, (1, 2)) if rank == 1 else asleep

    hang = run.until_told(SOON_S, where).hang
    assert hang is not None
    assert hang.ranks == (2,)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ((Frame("split_group", C10D, 1, library=True), *in_user_code(20)), "split_group"),
        (in_user_code(20, source='store.wait(["ready"])'), "store.get"),
        (in_user_code(20, source='dist.distributed_c10d._get_default_store().get("ready")'), "store.get"),
    ],
)
@pytest.mark.parametrize("others", ["meet", "one reduces"])
def test_ranks_that_meet_by_the_store_wait_for_the_one_that_does_not(frames, said, others):
    """Also where another rank is in a collective meanwhile: nothing but their stacks shows that they wait."""
    run = trained()

    def where(rank: int, since: float) -> Spot:
        if rank == 0:
            return Spot(SOCKET, calls=run.calls)
        if rank == 2 and others == "one reduces":
            return waits(run.calls + 1, seconds=since)
        return Spot(frames, calls=run.calls)

    finding = run.until_told(SOON_S, where)
    assert (finding.kind, finding.rank) == ("hang", 0)
    assert "it waits for a socket" in finding.text
    if others == "meet":
        assert f"ranks 1 and 2 wait in {said}" in finding.text


def test_a_collective_of_objects_is_called_as_the_script_calls_it():
    """The bytes of its parts say nothing."""
    run = trained()
    frames = (ALL_REDUCE, Frame("all_gather_object", C10D, 2, library=True), *in_user_code(40))

    def where(rank: int, since: float) -> Spot:
        inside = replace(waits(run.calls + 1, seconds=since), frames=frames)
        return inside if rank else Spot(SOCKET, calls=run.calls)

    assert "never entered all_gather_object, in which ranks 1 and 2 wait" in run.until_told(SOON_S, where).text


def test_ranks_whose_threads_take_lock_and_group_in_another_order_are_told_with_both():
    """Each waits for the other under a lock of its own: holder, waiter and lines; nobody else waits."""
    run = trained(2)
    metrics, weights = called(1, REDUCE, group="1"), called(1, REDUCE, group="2")

    def where(rank: int, since: float) -> Spot:
        call = msgspec.structs.replace(weights if rank else metrics, open_ns=int(since * ONE))
        groups = GroupCalls("1", 1 - rank, (0, 1)), GroupCalls("2", rank, (0, 1))
        lock = "guard, which thread metrics holds (train.py:18 push)"
        return Spot(in_user_code(25, "sync_weights", "with guard:"), call, run.calls, groups=groups, lock=lock)

    finding = run.until_told(SOON_S, where)
    assert finding.text.startswith("both ranks wait for each other: rank 0 in all_reduce 4 MiB (group 1), rank 1 in ")
    assert "rank 0's MainThread waits for the lock guard, which thread metrics holds (train.py:18 push)" in finding.text
    assert finding.hang is not None
    assert finding.hang.waiting == ""


def test_a_lock_that_another_thread_of_the_rank_holds_is_told_with_its_holder():
    """Holder and line stand in the word of the rank that does not come."""
    run = trained(2)
    lock = "second, which thread other holds (train.py:66 other)"
    asleep = Spot(in_user_code(31, source="with second:"), calls=run.calls, lock=lock)
    finding = run.until_told(SOON_S, lambda rank, since: asleep if rank else waits(run.calls + 1, seconds=since))
    assert finding.text.startswith(f"rank 1 hangs: it waits for the lock {lock} and never entered all_reduce")

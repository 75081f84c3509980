"""Ranks that parted in a collective: who called what, by the stacks that they left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ddptop.agent import wire
from ddptop.agent.end import cause, kinds
from ddptop.agent.run.ends import Death
from ddptop.agent.run.rundir import Ended, Member, Process, RunDir

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
TIMEOUT = f"{GLOO}unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
CLOSED = f"{GLOO}pair.cc:561] Connection closed by peer [127.0.0.1]:36251."
TORCH = "/v/lib/python3.11/site-packages/torch/"
ENFORCE = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:464] op.preamble.length <= "
    "op.nbytes. 1000 vs 12. Received data size doesn't match expected size.\n"
)


def trace(function: str, line: int, file: str = "distributed/distributed_c10d.py") -> str:
    """Return a traceback from a line of the user's script into torch."""
    return (
        f'Traceback (most recent call last):\n  File "/home/ada/train.py", line {line}, in main\n    x\n'
        f'  File "{TORCH}{file}", line 4181, in {function}\n    work.wait()\nRuntimeError: x\n'
    )


def dump(function: str, line: int) -> str:
    """Return what faulthandler writes at the same place."""
    return (
        "Fatal Python error: Aborted\n\nThread 0x00007f834fe41b80 (most recent call first):\n"
        f'  File "{TORCH}distributed/distributed_c10d.py", line 4181 in {function}\n'
        f'  File "/home/ada/train.py", line {line} in main\n\nExtension modules: x (total: 1)\n'
    )


def member(rank: int, ended: Ended | None = None) -> Member:
    """Return a rank that has ended so."""
    return Member(rank, rank, 4, Process(100 + rank, 0.0), "host", 0, "", "", None, ended)


def failed(rank: int, error: str, traceback: str, at_ns: int = 10) -> Member:
    """Return a rank that failed with a traceback."""
    return member(rank, Ended(at_ns, 1, error, traceback))


def judged(*group: Member, deaths: tuple[Death, ...] = (), directory: RunDir | None = None) -> cause.FirstCause:
    """Return the judgement on a group."""
    members = {each.rank: each for each in group}
    seen = {death.rank: death for death in deaths}
    return cause.judge(len(group), members, 1, "", None, directory=directory, deaths=seen)


def test_another_collective_is_told_with_who_called_what() -> None:
    """The one that differs from the others is the cause, whoever noticed it first."""
    group = [failed(rank, TIMEOUT, trace("all_reduce", 10), rank) for rank in (0, 2, 3)]
    found = judged(failed(1, TIMEOUT, trace("broadcast", 9), 50), *group)
    assert found.cause == (
        "rank 1 called broadcast (train.py:9 main) where ranks 0, 2-3 called all_reduce (train.py:10 main)"
    )
    assert (found.rank, found.kind, found.state) == (1, "mismatch", "failed")


def test_another_order_is_a_mismatch_too() -> None:
    """The same call at another line; of two ranks none is the odd one, and none is marked."""
    found = judged(failed(0, TIMEOUT, trace("all_reduce", 10), 5), failed(1, TIMEOUT, trace("all_reduce", 30), 6))
    assert found.kind == "mismatch"
    assert found.cause is not None
    assert "train.py:10" in found.cause
    assert "train.py:30" in found.cause
    assert found.rank is None


def test_another_size_is_told_from_the_crash_of_gloo(tmp_path: Path) -> None:
    """The rank got SIGABRT; its line is in the dump, the sizes are in the last words before it."""
    log = RunDir(tmp_path).rank_log(1)
    log.parent.mkdir()
    log.write_text(f"epoch 1\n{ENFORCE}{dump('all_reduce', 12)}")
    reset = failed(0, f"{GLOO}pair.cc:545] Read error: Connection reset by peer.", trace("all_reduce", 12), 20)
    found = judged(reset, member(1), deaths=(Death(1, 30, -signal.SIGABRT),), directory=RunDir(tmp_path))
    assert (found.kind, found.rank) == ("mismatch", None)
    assert found.cause == (
        "ranks 0-1 called all_reduce (train.py:12 main) with sizes that do not match: "
        "1,000 bytes came where 12 were expected"
    )


def test_another_size_is_told_where_the_other_rank_has_gone_on(tmp_path: Path) -> None:
    """Less came to it than it expected, which gloo takes: it stands in its next call, which is no part of it."""
    log = RunDir(tmp_path).rank_log(1)
    log.parent.mkdir()
    log.write_text(ENFORCE + dump("all_gather", 32))
    on = failed(0, CLOSED, trace("_engine_run_backward", 40, "autograd/graph.py"), 20)
    found = judged(on, member(1), deaths=(Death(1, 30, -signal.SIGABRT),), directory=RunDir(tmp_path))
    assert (found.kind, found.rank) == ("mismatch", 1)
    assert found.cause == (
        "rank 1 called all_gather (train.py:32 main) with another size than its peers: "
        "1,000 bytes came where 12 were expected"
    )


def called(rank: int, number: int, *forms: str, line: int = 12) -> Member:
    """Return a rank that lost a peer in an all-reduce, with its newest calls."""
    recent = tuple(wire.PastCall("all_reduce", 4 * int(form[8:-1]), form) for form in forms)
    calls = wire.GroupCalls("0", number, (), recent)
    return member(rank, Ended(20 + rank, 1, CLOSED, trace("all_reduce", line), calls=calls))


@pytest.mark.parametrize("odd", [0, 2])
def test_of_three_the_one_with_another_size_is_named_with_type_and_shape(tmp_path: Path, odd: int) -> None:
    """In one line for all: what each called, of the one that gloo has ended, too; the victim is not marked."""
    log = RunDir(tmp_path).rank_log(1)
    log.parent.mkdir()
    log.write_text(ENFORCE + dump("all_reduce", 12))
    others = [called(rank, 9, "float32[1000]" if rank == odd else "float32[64]") for rank in (0, 2)]
    found = judged(*others, member(1), deaths=(Death(1, 10, -signal.SIGABRT),), directory=RunDir(tmp_path))
    usual = "ranks 1-2" if odd == 0 else "ranks 0-1"
    assert found.cause == f"rank {odd} called all_reduce float32[1000], {usual} float32[64] (train.py:12 main)"
    assert (found.kind, found.rank) == ("mismatch", odd)


@pytest.mark.parametrize(("form", "odd", "size"), [("float32[64]", 2, "a larger"), ("float32[8, 125]", 1, "a smaller")])
def test_the_odd_one_is_found_where_it_could_leave_no_record(tmp_path: Path, form: str, odd: int, size: str) -> None:
    """Torchrun ended rank 2 at once: the segments of gloo's ring show whose size is that of rank 0."""
    log = RunDir(tmp_path).rank_log(1)
    log.parent.mkdir()
    log.write_text(ENFORCE.replace("1000 vs 12", "668 vs 44") + dump("all_reduce", 12))
    seen = (Death(1, 10, -signal.SIGABRT), Death(2, 30, -signal.SIGTERM))
    recent = (wire.PastCall("all_reduce", 256 if odd == 2 else 4000, form),)
    end = Ended(20, 1, CLOSED, trace("all_reduce", 12), calls=wire.GroupCalls("0", 9, (), recent))
    found = judged(member(0, end), member(1), member(2), deaths=seen, directory=RunDir(tmp_path))
    others = "ranks 0-1" if odd == 2 else "ranks 0, 2"
    assert found.cause == (
        f"rank {odd} called all_reduce with {size} size than {others}, {form} (train.py:12 main): "
        "668 bytes came where 44 were expected"
    )
    assert found.rank == odd


def test_a_rank_that_has_left_out_a_call_is_told_as_one_call_ahead(tmp_path: Path) -> None:
    """Its lines are others: what it called comes after what was due, by its own calls before."""
    log = RunDir(tmp_path).rank_log(1)
    log.parent.mkdir()
    log.write_text(ENFORCE + dump("all_reduce", 20))
    small, large = "float32[64]", "float32[1000]"
    behind = called(0, 9, small, large, small, large, small, line=20)
    ahead = called(2, 9, small, large, small, large, large, line=22)
    found = judged(behind, ahead, member(1), deaths=(Death(1, 10, -signal.SIGABRT),), directory=RunDir(tmp_path))
    assert found.cause == (
        f"rank 2 called all_reduce {large} (train.py:22 main) where ranks 0-1 called all_reduce {small} "
        "(train.py:20 main): rank 2 is one call ahead"
    )
    assert found.rank == 2


@pytest.mark.parametrize(
    ("backend", "printed", "kind"),
    [(CLOSED, "", "mismatch"), ("DistBackendError: NCCL error", "", "aborted"), (CLOSED, "free(): bad\n", "aborted")],
)
def test_another_size_is_told_where_the_words_of_gloo_are_not_read(
    tmp_path: Path, backend: str, printed: str, kind: str
) -> None:
    """Of a job started by hand, which prints on a terminal: the dump has the call, the other rank names gloo.

    NCCL gives up so for other reasons, too, and what a rank has printed may name another one.
    """
    crash = RunDir(tmp_path).rank_crash(1)
    crash.parent.mkdir()
    crash.write_text(printed + dump("all_reduce", 31))
    lost = failed(0, backend, trace("all_reduce", 12), 20)
    found = judged(lost, member(1), deaths=(Death(1, 10, -signal.SIGABRT),), directory=RunDir(tmp_path))
    assert (found.kind, found.rank) == (kind, None if kind == "mismatch" else 1)
    assert found.cause is not None
    assert "train.py:31 main" in found.cause


def test_a_rank_that_left_early_is_told() -> None:
    """It finished, perhaps with the abort of torch at its exit; the other one still stood in a collective."""
    early, late = member(1, Ended(1, 0)), failed(0, CLOSED, trace("all_reduce", 24), 9)
    for deaths in ((), (Death(1, 8, -signal.SIGABRT),)):
        found = judged(early, late, deaths=deaths)
        assert found.cause == "rank 1 finished its script while rank 0 still stood in all_reduce (train.py:24 main)"
        assert (found.rank, found.kind) == (1, "left_early")


def test_a_rank_that_left_by_an_exit_is_told_with_its_line() -> None:
    """`sys.exit(0)`, whose line the rank has recorded."""
    early, late = member(1, Ended(1, 0, left_at="train.py:9 main")), failed(0, CLOSED, trace("all_reduce", 24), 9)
    assert judged(early, late).cause == (
        "rank 1 finished its script by sys.exit (train.py:9 main) while rank 0 still stood in "
        "all_reduce (train.py:24 main)"
    )


def test_a_rank_that_did_not_come_is_the_cause_of_a_timeout() -> None:
    """Torchrun ended it afterwards, so that it left nothing but its SIGTERM; DDP's own collectives are in backward."""
    stood = failed(0, TIMEOUT, trace("_engine_run_backward", 21, "autograd/graph.py"), 9)
    found = judged(stood, member(1), deaths=(Death(0, 9, 1), Death(1, 11, -signal.SIGTERM)))
    assert found.cause == "rank 1 did not come to backward (train.py:21 main), in which rank 0 waited until the timeout"
    assert (found.rank, found.kind) == (1, "collective_timeout")


def test_an_error_of_the_script_is_not_taken_for_a_mismatch() -> None:
    """The peers that lost it stood in a collective; nobody called a wrong one."""
    own = failed(1, "ValueError: bad", trace("forward", 3, "nn/modules/module.py"), 5)
    found = judged(own, failed(0, CLOSED, trace("all_reduce", 24), 9), failed(2, TIMEOUT, trace("all_reduce", 25), 8))
    assert (found.cause, found.rank, found.kind) == ("rank 1: ValueError: bad", 1, "exception")


@pytest.mark.parametrize(
    ("death", "says", "kind"),
    [
        (Death(1, 5, -signal.SIGKILL, True, "memory.events of its control group /job counts 1 kill more"),
         "was killed by SIGKILL (out of memory: the kernel counted a kill)", "host_memory"),
        (Death(1, 5, -signal.SIGKILL, False, "no out-of-memory kill by the kernel (/proc/vmstat)"),
         "was killed by SIGKILL (kill -9: the kernel counted no kill for memory)", "killed"),
        (Death(1, 5, -signal.SIGKILL), "was killed by SIGKILL (out of memory, or kill -9)", "killed"),
        (Death(1, 5, -signal.SIGSEGV), "was killed by SIGSEGV", "native_crash"),
        (Death(1, 5, 3), "exited with code 3 and no exception", "exit"),
    ],
)  # fmt: skip
def test_what_the_observer_saw_names_the_end_of_a_silent_rank(death: Death, says: str, kind: str) -> None:
    """Without a word of torchrun, as in a job that was started by hand; the peer that lost it came first."""
    others = (failed(0, CLOSED, trace("all_reduce", 24), 4), Death(0, 6, 1))
    found = cause.judge(2, {0: others[0], 1: member(1)}, None, deaths={0: others[1], 1: death})
    assert found.cause is not None
    assert found.cause.startswith(f"rank 1 {says}")
    assert (found.rank, found.kind) == (1, kind)
    text, level = cause.describe_end(member(1), death)
    assert text.startswith(f"rank 1 {says}")
    assert level == "error"


def test_exit_codes_that_only_the_system_knows_decide_how_a_run_ended() -> None:
    """A spawned rank does not know its own; all of them 0 is a run that has finished."""
    unknown = {rank: member(rank, Ended(1, None)) for rank in (0, 1)}
    fine = {rank: Death(rank, 2, 0) for rank in (0, 1)}
    assert cause.judge(2, unknown, None, deaths=fine).state == "finished"
    bad = {**fine, 1: Death(1, 2, 7)}
    found = cause.judge(2, unknown, None, deaths=bad)
    assert (found.state, found.rank, found.exit_code) == ("failed", 1, 7)
    assert cause.describe_end(unknown[1], bad[1]) == ("rank 1 exited with code 7 and no exception", "error")
    assert cause.describe_end(unknown[0], fine[0]) == ("rank 0 finished", "info")
    late = {rank: msgspec.structs.replace(each, ended=Ended(1, 0)) for rank, each in unknown.items()}
    harmless = cause.judge(2, late, None, deaths={**fine, 1: Death(1, 2, -signal.SIGABRT)})
    assert harmless.state == "finished"
    assert harmless.warning is not None
    assert "counted as finished" in harmless.warning
    ignored = cause.judge(2, late, 0, deaths={**fine, 1: Death(1, 2, -signal.SIGABRT)})
    assert (ignored.state, ignored.warning) == ("finished", harmless.warning)
    assert cause.judge(2, late, 0, deaths=fine).warning is None


def test_an_exception_that_came_before_a_lost_peer_is_told_instead_of_the_calls() -> None:
    """What a `finally` called after it is no cause, whatever the others called meanwhile."""
    closed = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer"
    own = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 9, in main\nValueError: bad label\n'
    both = f"{own}\nDuring handling of the above exception, another exception occurred:\n\n{trace('barrier', 12)}"
    found = judged(failed(0, closed, trace("all_reduce", 40)), failed(1, closed, both, 20))
    assert (found.rank, found.cause) == (1, "rank 1: ValueError: bad label")


def test_a_rank_that_leaves_without_a_word_is_told_by_its_exit_code() -> None:
    """By `os._exit(0)`, while another one stands in a collective and then loses it."""
    lost = failed(0, CLOSED, trace("all_reduce", 40))
    found = judged(lost, member(1), deaths=(Death(1, 5, 0), Death(0, 30, 1)))
    assert (found.rank, found.kind) == (1, "left_early")
    assert found.cause == "rank 1 exited with code 0 while rank 0 still stood in all_reduce (train.py:40 main)"


@pytest.mark.parametrize(("depth", "kind"), [(90, "recursion"), (3, "native_crash")])
def test_a_crash_of_a_function_that_calls_itself_is_a_recursion(tmp_path: Path, depth: int, kind: str) -> None:
    """Its dump has the innermost hundred frames."""
    frames = '  File "/home/ada/train.py", line 8 in __getattr__\n' * depth
    crash = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f834fe41b80 (most recent call first):\n"
    log = RunDir(tmp_path).rank_log(1)
    log.parent.mkdir()
    log.write_text(crash + frames)
    found = judged(member(1), deaths=(Death(1, 5, -signal.SIGSEGV),), directory=RunDir(tmp_path))
    assert (found.rank, found.kind) == (1, kind)


PRINTED = (
    'Traceback (most recent call last):\n  File "/home/ada/train.py", line 30, in load\n    x\n'
    "ValueError: scene 20 has no lanes\n"
)


def test_an_exception_that_a_rank_printed_before_it_left_belongs_to_its_end(new_run: Callable[..., RunDir]) -> None:
    """`traceback.print_exc(); return`: it is said with its line, and the advice is about it, not about batches."""
    directory = new_run(world=2)
    log = directory.rank_log(1)
    early, late = member(1, Ended(time.time_ns(), 0)), failed(0, CLOSED, trace("all_reduce", 24), 9)
    usual = judged(early, late, directory=directory).cause
    log.write_text(f"step 7\n{PRINTED}bye\n")
    found = judged(early, late, directory=directory)
    assert found.cause == (
        f"{usual}; before that it printed ValueError: scene 20 has no lanes (train.py:30 load), and went on"
    )
    assert (found.rank, found.kind) == (1, "left_early")
    assert "batches" not in kinds.advised(kinds.LEFT_EARLY, 9, None, cause=found.cause).advice
    # What it printed minutes before has nothing to do with that.
    os.utime(log, ns=(0, 0))
    assert judged(early, late, directory=directory).cause == usual

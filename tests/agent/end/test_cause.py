"""How a run ended, and why first."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

from ddptop.agent.end import cause, kinds
from ddptop.agent.end.cause import LostHost
from ddptop.agent.run.ends import Death
from ddptop.agent.run.rundir import Ended, Member, Process, RunDir
from ddptop.agent.text import clean_line
from ddptop.agent.wire import Hang, Verdict

SUMMARY = """
ddptop.agent FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:01
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 100)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 102)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 102
"""


def member(rank: int, code: int | None = None, error: str | None = None, at_ns: int = 0) -> Member:
    """Return a rank with pid 100 + rank that ended so, or left no word."""
    ended = None if code is None else Ended(at_ns, code, error)
    return Member(rank, rank, 3, Process(100 + rank, 0.0), "host", 0, "", "", None, ended)


def members(*all_of_them: Member) -> dict[int, Member]:
    """Return members by rank."""
    return {each.rank: each for each in all_of_them}


def test_a_torchrun_that_ended_before_any_rank_began_is_no_exception_in_the_script() -> None:
    """There is no traceback to be read, and no rank that only followed."""
    said = "torchrun: error: ambiguous option: --r=16 could match --role, --redirects"
    found = cause.judge(2, {}, 2, said)
    assert found.kind == kinds.LAUNCHER.name
    assert found.cause == "ambiguous option: --r=16 could match --role, --redirects"
    assert cause.judge(2, {}, 2, "ValueError: bad lr", leader="the program").kind == "exception"


def test_earliest_error_is_the_cause() -> None:
    """Of two ranks with errors of their own, the earlier one."""
    group = members(member(0, 1, "KeyError: 'b'", at_ns=20), member(1, 1, "ValueError: a", at_ns=10), member(2))
    judgement = cause.judge(3, group, 1, "", {2: 30})
    assert (judgement.state, judgement.rank, judgement.cause) == ("failed", 1, "rank 1: ValueError: a")


def test_ends_that_were_recorded_keep_their_order_for_an_observer_that_takes_over() -> None:
    """It sees all of them at one moment, and torchrun's own status is not known to it."""
    recorded = {0: Death(0, 20, -signal.SIGTERM), 1: Death(1, 10, -signal.SIGSEGV), 2: Death(2, 20, -signal.SIGTERM)}
    found = cause.judge(3, members(member(0), member(1), member(2)), None, "", {0: 90, 1: 90, 2: 90}, deaths=recorded)
    assert (found.state, found.rank) == ("failed", 1)
    told = cause.judge(3, members(member(0), member(1), member(2)), None, "", {0: 90, 1: 90, 2: 90})
    assert told.rank is None
    # Where nothing ended by SIGTERM, the times alone tell which came first.
    later = {rank: Death(rank, at_ns, -signal.SIGKILL) for rank, at_ns in ((0, 30), (1, 20), (2, 10))}
    assert (
        cause.judge(3, members(member(0), member(1), member(2)), None, "", {0: 90, 1: 90, 2: 90}, deaths=later).rank
        == 2
    )


def test_killed_rank_beats_peers_that_lost_it() -> None:
    """A peer may report its lost connection before the observer sees the death that broke it."""
    lost = "RuntimeError: [enforce fail at pair.cc:580] Connection closed by peer [127.0.0.1]:1234"
    group = members(member(0, 1, lost, at_ns=10), member(1, 1, lost, at_ns=11), member(2))
    seen = cause.judge(3, group, 1, "", {2: 12})
    assert seen.rank == 2
    named = cause.judge(3, group, 1, SUMMARY, {2: 12})
    assert named.cause == "rank 2 was killed by SIGKILL (out of memory, or kill -9)"


def test_ranks_that_torchrun_ended_are_not_the_cause() -> None:
    """A silent death that torchrun does not list as a failure was torchrun's own doing."""
    group = members(member(0), member(1, 1, "ConnectionResetError: Connection reset by peer", at_ns=50), member(2))
    only_rank_2 = SUMMARY.split("Root Cause")[1]
    assert cause.judge(3, group, 1, only_rank_2, {0: 1, 2: 60}).rank == 2


def test_lines_of_a_script_that_look_like_a_summary_name_nobody() -> None:
    """Only entries with the pid of that rank are torchrun's."""
    forged = SUMMARY.replace("pid: 102", "pid: 7").replace("pid: 100", "pid: 8")
    group = members(member(0, 1, "ValueError: a"), member(1), member(2))
    assert cause.judge(3, group, 1, forged).rank == 0


def test_abort_after_the_last_line_of_the_script_is_no_failure() -> None:
    """Torch sometimes aborts at interpreter exit; when every script had finished, so had the run."""
    group = members(member(0, 0), member(1, 0), member(2, 0))
    judgement = cause.judge(3, group, 1, SUMMARY.replace("-9", "-6"))
    assert (judgement.state, judgement.exit_code) == ("finished", 0)
    assert judgement.warning is not None
    assert "SIGABRT" in judgement.warning


def test_torchrun_that_never_had_ranks() -> None:
    """Without ranks, the last line of torchrun is the reason."""
    judgement = cause.judge(2, {}, 1, "usage: …\n/usr/bin/python: No module named torch\n\n")
    assert (judgement.state, judgement.exit_code) == ("failed", 1)
    assert judgement.cause == "/usr/bin/python: No module named torch"
    assert cause.judge(2, {}, -9).cause == "torchrun was killed by SIGKILL"


def test_a_rank_that_torchrun_took_along_is_not_the_cause() -> None:
    """Rank 0 was ended by TERM because rank 1 had failed, though that error looks like a lost peer's."""
    lost = "RuntimeError: Gloo connectFullMesh failed: timed out connecting: Connection refused"
    group = members(member(0), member(1, 1, lost, at_ns=5))
    log = "".join(f"rank : {n} (local_rank: {n})\n exitcode : {c} (pid: {100 + n})\n" for n, c in ((0, -15), (1, 1)))
    assert cause.judge(2, group, 1, log, {0: 9, 1: 5}).rank == 1


def test_before_a_restart_torchrun_tells_in_one_line() -> None:
    """Without a summary, the line on the first failure gives the signal; an earlier generation has other pids."""
    line = "failed (exitcode: -9) local_rank: 1 (pid: {}) of binary: python\n"
    group = members(member(0), member(1))
    told = cause.judge(2, group, 1, line.format(group[1].process.pid), {1: 4})
    assert told.cause == "rank 1 was killed by SIGKILL (out of memory, or kill -9)"
    assert cause.judge(2, group, 1, line.format(9999), {1: 4}).cause != told.cause


def test_torchrun_that_was_told_to_end() -> None:
    """The ranks it took along are not the cause; Python 3.10 and later spell the signal differently."""
    group = members(member(0), member(1), member(2))
    for spelling in ("15", "Signals.SIGTERM"):
        log = f"torch.distributed.elastic.multiprocessing.api.SignalException: Process 5 got signal: {spelling}\n"
        judgement = cause.judge(3, group, 1, log, {0: 1, 1: 2, 2: 3})
        assert (judgement.state, judgement.rank) == ("failed", None)
        assert judgement.cause == "torchrun received SIGTERM"


def test_ranks_that_ended_by_themselves_are_not_lost() -> None:
    """All have left word and none of a failure, but what they ended with nobody knows."""
    unknown = [Ended(0, None, None) for _ in (0, 1)]
    group = {rank: msgspec.structs.replace(member(rank, 0), ended=ended) for rank, ended in enumerate(unknown)}
    judgement = cause.judge(2, group, None)
    assert (judgement.state, judgement.exit_code, judgement.rank) == ("ended", None, None)
    assert cause.judge(2, {0: group[0], 1: member(1)}, None).state == "lost"
    stopped = msgspec.structs.replace(group[0], ended=msgspec.structs.replace(unknown[0], stopped_by="ada"))
    assert cause.judge(2, {0: stopped, 1: group[1]}, None).state == "stopped"


def test_without_a_witness_it_is_lost() -> None:
    """Nobody waited for torchrun and a rank left no word: nothing is claimed."""
    judgement = cause.judge(2, members(member(0, 0), member(1)), None)
    assert (judgement.state, judgement.rank, judgement.exit_code) == ("lost", None, None)


def test_hostile_text_becomes_one_clean_line() -> None:
    """No escape sequence, control character or direction mark gets through, and no wall of text."""
    text = clean_line("a\x1b[31mb\x1b]0;title\x07c\r\nd\x9b2Je\u202ef" + "x" * 500)
    assert text.startswith("abc defx")
    assert text.isprintable()
    assert len(text) == 300


@pytest.mark.parametrize(
    "log",
    [
        "failed (exitcode: 1) local_rank: 70000 (pid: 1)",
        "failed (exitcode: 99999999999) local_rank: 1 (pid: 1)",
        f"failed (exitcode: 1) local_rank: {'9' * 5000} (pid: 1)",
        f"rank : {'9' * 5000} (local_rank: 0)\n exitcode : 1 (pid: 1)",
        f"SignalException: Process 1 got signal: {'9' * 5000}",
    ],
    ids=["rank", "code", "endless rank", "endless rank in the summary", "endless signal"],
)
def test_numbers_that_cannot_be_are_no_summary(log: str) -> None:
    """A script prints into that log, too: whatever it says, the judgement is one that a record can hold."""
    judgement = cause.judge(2, {}, 1, log)
    assert judgement.state == "failed"
    assert judgement.rank is None
    assert judgement.exit_code is None or abs(judgement.exit_code) < 2**31


def test_the_first_of_deaths_that_were_seen_together_is_not_guessed() -> None:
    """Of ranks found dead in one look none is named, unless one of them was killed on request."""
    group = members(member(0), member(1), member(2, 0))
    unknown = cause.judge(3, group, 1, "", {0: 5, 1: 5})
    assert (unknown.rank, unknown.state) == (None, "failed")
    assert unknown.cause is not None
    assert unknown.cause.startswith("2 ranks exited without reporting a cause")
    asked = cause.judge(3, group, 1, "", {0: 5, 1: 5}, ended_on_request={1})
    assert asked.rank == 1
    assert cause.judge(3, group, 1, "", {0: 6, 1: 5}).rank == 1


def test_a_rank_that_leaves_without_an_exception_is_explained_by_its_output(tmp_path: Path) -> None:
    """The cause quotes the last line of its log that tells something, and nothing of torchrun's own log."""
    log = RunDir(tmp_path).rank_log(2)
    log.parent.mkdir()
    log.write_text("epoch 1\nfatal: no data at \x1b[31m/data\nlibrary: see the docs\n")
    for code, says in (("3", "exited with code 3"), ("-6", "was killed by SIGABRT")):
        group = members(member(0), member(1), member(2))
        judgement = cause.judge(3, group, 1, SUMMARY.replace("-9", code), {2: 4}, directory=RunDir(tmp_path))
        assert judgement.cause is not None
        assert judgement.cause.startswith(f"rank 2 {says}")
        assert judgement.cause.endswith("; last output: no data at /data")
    killed = cause.judge(3, group, 1, SUMMARY, {2: 4}, directory=RunDir(tmp_path))
    assert killed.cause == "rank 2 was killed by SIGKILL (out of memory, or kill -9)"


def test_a_rank_that_ends_before_its_agent_is_explained_by_the_log_of_torchrun() -> None:
    """What it printed stands there, before what torchrun says of the group."""
    torchrun = "E1123 00:21:21.8 2345 torch/distributed/elastic/multiprocessing/api.py:1002] failed\nTraceback\n====\n"
    log = f"ImportError: libcudart.so.12: cannot open\n{torchrun}{SUMMARY.replace('-9', '1')}"
    judgement = cause.judge(3, {}, 1, log)
    assert judgement.cause is not None
    assert judgement.cause.endswith("; last output: ImportError: libcudart.so.12: cannot open")


def test_a_rank_that_was_killed_on_request_is_no_warning() -> None:
    """It leaves no record behind, as one that ran out of memory does; but somebody asked for it."""
    silent = member(1)
    assert cause.describe_end(silent)[1] == "warning"
    text, level = cause.describe_end(silent, on_request=True)
    assert level == "info"
    assert "without reporting a cause" not in text


def _elsewhere(rank: int, code: int | None = None, error: str | None = None, at_ns: int = 0) -> Member:
    return msgspec.structs.replace(member(rank, code, error, at_ns), host="node2")


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.78.0.2]:31337"


def test_the_first_cause_may_be_on_another_host() -> None:
    """A rank there raised; those here lost the connection to it, and torchrun here knows of them alone."""
    group = members(
        member(0, 1, LOST, at_ns=10), member(1, 1, LOST, at_ns=11), _elsewhere(2, 1, "ValueError: a", at_ns=12)
    )
    log = "failed (exitcode: 1) local_rank: 0 (pid: 100)"
    found = cause.with_host(cause.judge(3, group, 1, log, elsewhere={2}), group)
    assert (found.state, found.rank, found.cause) == ("failed", 2, "rank 2 on node2: ValueError: a")


def test_torchruns_local_rank_is_a_rank_of_this_host() -> None:
    """On the second host local rank 0 is rank 2: what its torchrun says is not about rank 0."""
    here = msgspec.structs.replace(_elsewhere(2), local_rank=0)
    there = msgspec.structs.replace(member(0), process=here.process)
    found = cause.judge(
        3, members(there, here), 1, f"failed (exitcode: 7) local_rank: 0 (pid: {here.process.pid})", elsewhere={0}
    )
    assert (found.rank, found.exit_code) == (2, 7)


def test_a_host_that_is_gone_is_the_cause_of_lost_connections() -> None:
    """Its ranks have left no word, and the others have only noticed it."""
    group = members(member(0, 1, LOST, at_ns=30), member(1, 1, LOST, at_ns=31))
    found = cause.judge(4, group, 1, "", lost=[LostHost("node2", (2, 3), 20)])
    assert (found.state, found.cause, found.kind) == ("failed", "host node2 gone (ranks 2-3)", "host_gone")


def test_an_error_before_the_loss_of_a_host_is_the_cause() -> None:
    """The host went because of it, or after it."""
    group = members(member(0, 1, "ValueError: a", at_ns=10), member(1, 1, LOST, at_ns=31))
    found = cause.judge(4, group, 1, "", lost=[LostHost("node2", (2, 3), 20)])
    assert found.cause == "rank 0: ValueError: a"


def test_ranks_that_finished_accuse_no_host_that_fell_silent() -> None:
    """All that are heard have finished: of the others nothing is known, and that is said."""
    group = members(member(0, 0), member(1, 0))
    found = cause.judge(4, group, None, "", lost=[LostHost("node2", (2, 3), 20)])
    assert found.state == "ended"
    assert found.cause == "every rank that is heard has finished; node2 did not answer: 2 ranks unknown"


S = 1_000_000_000
TIMED_OUT = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 12000ms for recv operation"
PAIR_CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:580] Application timeout caused pair closure"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:2467"


def told(text: str, *ranks: int, kind: str = "not_entered", since_s: int = 80, generation: int = 0) -> Verdict:
    """Return the hang that was told while the run lived."""
    return Verdict(1, "hang", f"{text} · 14 s", since_s * S, None, hang=Hang(kind, ranks), generation=generation)


@pytest.mark.parametrize(
    ("verdict", "kind", "rank"),
    [
        (told("rank 1 hangs: it sleeps · train.py:31 main", 1), "collective_timeout", 1),
        (told("rank 0 entered barrier, ranks 1 and 2 all_reduce", 0, kind="mismatch"), "mismatch", 0),
        (told("rank 1 raised ValueError: a, and stands in barrier", 1, kind="exception"), "exception", 1),
        (told("ranks 1 and 2 hang: they wait for data", 1, 2, kind="data"), "collective_timeout", None),
    ],
)
@pytest.mark.parametrize("errors", [(TIMED_OUT, CLOSED), (CLOSED, PAIR_CLOSED), (CLOSED, CLOSED), (PAIR_CLOSED, None)])
def test_what_was_told_while_it_lived_is_the_cause_of_what_came_of_it(verdict, kind, rank, errors) -> None:
    """In the same words, whichever rank gave up first, and in the words of gloo; torchrun ended the others."""
    group = members(member(0, 1, errors[0], 94 * S), member(1, errors[1] and 1, errors[1], 94 * S + 1), member(2))
    seen = {2: Death(2, 96 * S, -signal.SIGTERM), 0: Death(0, 95 * S, 1)}
    found = cause.judge(3, group, 1, "", deaths=seen, hangs=[verdict])
    assert (found.cause, found.kind, found.rank) == (verdict.text.removesuffix(" · 14 s"), kind, rank)
    # It is not that of an earlier start of the group, and explains no end that has its own reason.
    other = cause.judge(3, group, 1, "", deaths=seen, hangs=[told("an old one", 1, generation=7)])
    assert "an old one" not in (other.cause or "")
    killed = cause.judge(3, group, 1, "", deaths={**seen, 2: Death(2, 93 * S, -signal.SIGKILL)}, hangs=[verdict])
    assert killed.cause == ("rank 2 was killed by SIGKILL (out of memory, or kill -9)")


@pytest.mark.parametrize(
    ("group", "function"), [("group 1", "new_group"), (r"group a\1", "new_group"), ("", "init_process_group")]
)
def test_what_a_rank_did_when_the_others_timed_out_is_the_cause_of_their_end(group: str, function: str) -> None:
    """It worked, which is no hang; the advice names the function that has set the timeout of their group."""
    text = "rank 0 works: it reads files, 67 MB/s (train.py:12 read_vectors); ranks 1 and 2 wait"
    verdict = Verdict(1, "standing", f"{text} · 38 s", 50 * S, None, hang=Hang("working", (0,), timeout_of=group))
    ranks = members(member(0), member(1, 1, TIMED_OUT, 94 * S), member(2, 1, TIMED_OUT, 95 * S))
    seen = {0: Death(0, 96 * S, -signal.SIGTERM)}
    found = cause.judge(3, ranks, 1, "", deaths=seen, hangs=[verdict])
    assert found.cause == f"{text[:-5]} waited until the timeout{f' of {group}' if group else ''}"
    assert (found.kind, found.rank) == ("collective_timeout", 0)
    assert f"`{function}(timeout" in kinds.advised(kinds.TIMEOUT, 60, None, 3, 1, found.cause or "").advice
    # Of an end by another reason it is none.
    lost = members(member(0), member(1, 1, CLOSED, 94 * S), member(2, 1, CLOSED, 95 * S))
    assert "reads files" not in (cause.judge(3, lost, 1, "", deaths=seen, hangs=[verdict]).cause or "")


def test_a_rank_that_was_killed_because_it_did_not_end_is_not_the_cause() -> None:
    """One that is stopped gets its SIGTERM never, and torchrun's SIGKILL half a minute later."""
    group = members(member(0, 1, TIMED_OUT, 94 * S), member(1))
    seen = {0: Death(0, 95 * S, 1), 1: Death(1, 125 * S, -signal.SIGKILL)}
    verdict = told("rank 1 hangs: it is stopped by SIGSTOP", 1, kind="stopped")
    assert cause.judge(2, group, 1, "", deaths=seen, hangs=[verdict]).cause == "rank 1 hangs: it is stopped by SIGSTOP"
    assert cause.judge(2, group, 1, "", deaths=seen).rank != 1 or "SIGKILL" not in str(
        cause.judge(2, group, 1, "", deaths=seen).cause
    )
    soon = {**seen, 1: Death(1, 95 * S + 1, -signal.SIGKILL)}
    assert "SIGKILL" in str(cause.judge(2, group, 1, "", deaths=soon).cause)


@pytest.mark.parametrize("code", [None, 143])
def test_a_sigterm_to_one_rank_is_the_cause_of_the_connection_that_others_lose(code: int | None) -> None:
    """Its process was gone first, though the others told their errors before; with torchrun's summary, too."""
    group = members(
        member(0, 1, CLOSED, at_ns=94 * S), member(1, code, "SystemExit: 143" if code else None, 94 * S), member(2)
    )
    seen = {1: Death(1, 94 * S + 1, code or -signal.SIGTERM)}
    live = cause.judge(3, group, None, "", deaths=seen)
    after = {**seen, 0: Death(0, 96 * S, 1), 2: Death(2, 97 * S, -signal.SIGTERM)}
    summary = "".join(
        f"rank : {rank} (local_rank: {rank})\n exitcode : {status} (pid: {100 + rank})\n"
        for rank, status in ((0, 1), (1, code or -15))
    )
    for end in (live, cause.judge(3, group, 1, "", deaths=after), cause.judge(3, group, 1, summary, deaths=after)):
        assert end.rank == 1
        assert "SIGTERM" in str(end.cause) or "143" in str(end.cause)


def test_an_exception_that_a_lost_peer_came_upon_is_the_cause() -> None:
    """In a `finally` the rank noticed later what had become of the others; what programs catch daily is none."""
    trace = (
        'Traceback (most recent call last):\n  File "train.py", line 8, in main\n    load(batch)\n'
        "ValueError: bad label\n"
        "\nDuring handling of the above exception, another exception occurred:\n\n"
        f'Traceback (most recent call last):\n  File "train.py", line 12, in main\n    dist.barrier()\n{CLOSED}\n'
    )

    def with_trace(text: str) -> dict[int, Member]:
        ended = Ended(95 * S, 1, CLOSED, text)
        return members(member(0, 1, CLOSED, 94 * S), msgspec.structs.replace(member(1), ended=ended))

    found = cause.judge(2, with_trace(trace), 1)
    assert (found.rank, found.cause, found.kind) == (1, "rank 1: ValueError: bad label", "exception")
    assert cause.judge(2, with_trace(trace.replace("ValueError: bad label", "StopIteration")), 1).rank == 0


def _together(number: int, *apart_ms: float) -> tuple[dict[int, Member], dict[int, Death]]:
    """Return ranks that all ended by a signal, each so many milliseconds after a moment."""
    group = members(*(member(rank) for rank in range(len(apart_ms))))
    deaths = {rank: Death(rank, 90 * S + int(ms * 1e6), -number) for rank, ms in enumerate(apart_ms)}
    return group, deaths


@pytest.mark.parametrize(
    ("number", "says", "kind"),
    [
        (signal.SIGHUP, "torchrun received SIGHUP: its terminal was closed", "hangup"),
        (signal.SIGINT, "torchrun received SIGINT", "interrupted"),
        (signal.SIGTERM, "torchrun received SIGTERM", "terminated"),
    ],
)
def test_a_signal_that_all_ranks_got_at_once_was_the_launchers(number: int, says: str, kind: str) -> None:
    """By hand nobody sees torchrun's log. One rank alone, or long before the others, got it by itself."""
    group, deaths = _together(number, 0, 20, 4)
    found = cause.judge(3, group, None, deaths=deaths)
    assert (found.cause, found.rank, found.kind, found.exit_code) == (says, None, kind, 128 + number)
    assert cause.judge(3, group, None, deaths={1: deaths[1]}).rank == 1
    assert cause.judge(3, group, None, deaths=deaths, ended_on_request=(0,)).rank == 0
    alone, death = _together(number, 0)
    assert cause.judge(1, alone, None, deaths=death).rank == 0
    group, deaths = _together(number, 9_000, 0, 9_001)
    assert cause.judge(3, group, None, deaths=deaths).rank == 1


def test_a_rank_that_torchrun_ends_after_another_one_makes_no_signal_to_torchrun() -> None:
    """It looks ten times a second, and its SIGTERM to the others comes after one to the first."""
    group, deaths = _together(signal.SIGTERM, 90, 0, 95)
    assert cause.judge(3, group, None, deaths=deaths).rank == 1


def test_an_interrupt_that_python_made_an_exception_of_is_the_launchers_too() -> None:
    """Each rank records it when its script gets to it."""
    python = members(*(member(rank, 130, "KeyboardInterrupt", (90 + rank) * S) for rank in range(2)))
    assert cause.judge(2, python, None).cause == "torchrun received SIGINT"


@pytest.mark.parametrize("spelling", ["1", "Signals.SIGHUP"])
def test_the_first_line_of_torchrun_on_a_signal_is_enough(spelling: str) -> None:
    """It comes before the ranks end, its last one seconds later. A run that was launched has no terminal to close."""
    log = f"W0101 00:00:00.0 5 torch/distributed/elastic/agent/server/api.py:753] Received {spelling} death signal, x\n"
    group, deaths = _together(signal.SIGHUP, 0, 9_000)
    for seen in ({0: deaths[0]}, deaths):
        found = cause.judge(2, group, None, log, deaths=seen)
        assert (found.cause, found.rank, found.kind) == ("torchrun received SIGHUP", None, "terminated")


def test_a_cause_is_open_only_while_others_may_get_the_same_signal() -> None:
    """A SIGKILL is said at once, and so is what torchrun has named, or what has ended all ranks."""
    group, deaths = _together(signal.SIGTERM, 0, 500)
    one = {0: deaths[0]}
    named = f"failed (exitcode: -15) local_rank: 0 (pid: {group[0].process.pid}) of binary: python\n"
    assert cause.judge(2, group, None, deaths=one).is_open
    assert not cause.judge(2, group, 1, deaths=one).is_open
    assert not cause.judge(2, group, None, deaths=deaths).is_open
    assert not cause.judge(2, group, None, named, deaths=one).is_open
    assert not cause.judge(2, group, None, deaths={0: Death(0, 90 * S, -signal.SIGKILL)}).is_open


def test_an_exit_is_told_with_its_line() -> None:
    """Of a rank on any host: its record has it. An error that was printed before has a line of its own."""
    left = Ended(9, 1, "SystemExit: 1", left_at="train.py:9 main")
    group = members(msgspec.structs.replace(member(1), ended=left), member(0))
    assert cause.judge(2, group, 1).cause == "rank 1: SystemExit: 1 · train.py:9 main"
    printed = msgspec.structs.replace(left, error="ValueError: x")
    group = members(msgspec.structs.replace(member(1), ended=printed), member(0))
    assert cause.judge(2, group, 1).cause == "rank 1: ValueError: x"

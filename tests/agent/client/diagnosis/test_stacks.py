"""The question where the ranks stand, through the observer: who is asked, how many at a time, what has none."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq
from support.fakes.observers import Observer, observed
from support.fakes.ranks import ranks
from support.fakes.relay import relayed
from support.harness import until
from support.values.inspections import absent, inspection

from ddptop.agent import wire
from ddptop.agent.client.diagnosis import stacks as asking
from ddptop.agent.client.diagnosis.stacks import MOST_ASKED, RunInspector, Stacks
from ddptop.agent.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Ended, Run
from ddptop.agent.wire.vocabulary.refusals import Unheard
from ddptop.tui.link.source import Refused

Answer = Callable[[int, wire.Inspect], wire.Reply | None]


def run_of(name: str, world: int, state: str = "running") -> Run:
    """Return the record of a run."""
    return Run(name, name, "toy.py", (), world, "gloo", "cpu", time.time_ns(), False, state=state)


def stands(rank: int, command: wire.Inspect) -> wire.Reply:
    """Answer as a rank does that waits in an all-reduce."""
    return wire.Reply(command.id, True, inspection=inspection(rank))


@contextmanager
def asked(inspector: RunInspector, **options: object) -> Iterator[list[Stacks | Exception]]:
    """Ask in a thread; the list has the answer once there is one."""
    answers: list[Stacks | Exception] = []

    def ask() -> None:
        try:
            answers.append(inspector.ask(**options))  # type: ignore[arg-type]
        except Refused as refusal:
            answers.append(refusal)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        thread.join()


def answered(observer: Observer, answer: Answer, *, keep: bool = False) -> list[tuple[int, wire.Inspect]]:
    """Answer the questions that have come, and return all of them; `keep` leaves them to be answered."""
    observer.turn()
    commands = []
    for sender, (to, payload) in observer.asked:
        command, rank = wire.read_command(payload), int(to)
        assert isinstance(command, wire.Inspect)
        commands.append((rank, command))
        if not keep and (reply := answer(rank, command)) is not None:
            observer.answer(sender, rank, reply)
    if not keep:
        observer.asked.clear()
    return commands


def stacks_of(observer: Observer, answer: Answer, **options: object) -> Stacks:
    """Ask an observer whose ranks answer so."""
    inspector = RunInspector(observer.directory, observer.directory.read())
    with asked(inspector, **options) as answers:
        until(lambda: answered(observer, answer) is not None and answers, "an answer")
    assert isinstance(answers[0], Stacks), answers
    return answers[0]


def test_each_rank_tells_where_it_stands() -> None:
    """As it was told, with the time of the question; how many have answered is told on the way."""
    heard: list[tuple[int, int]] = []
    with observed(run_of("each", 3)) as observer:
        found = stacks_of(observer, stands, heard=lambda *count: heard.append(count))
    assert found.inspections == tuple(inspection(rank) for rank in range(3))
    assert not found.unknown
    assert not found.recorded
    assert abs(found.at - time.time()) < 60
    assert heard == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_some_ranks_are_asked_for_native_frames() -> None:
    """Those alone, once each."""
    commands: list[tuple[int, bool]] = []

    def answer(rank: int, command: wire.Inspect) -> wire.Reply:
        commands.append((rank, command.native))
        return stands(rank, command)

    with observed(run_of("some", 4)) as observer:
        found = stacks_of(observer, answer, ranks=[3, 1, 3], native=True)
    assert sorted(commands) == [(1, True), (3, True)]
    assert {each.rank for each in found.inspections} == {1, 3}


def test_a_rank_of_which_nothing_comes_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The observer's word, a refusal, an answer without a place or of another rank, silence; an escape in none."""
    monkeypatch.setattr(asking, "PATIENCE_S", 0.3)
    replies: dict[int, Callable[[int], wire.Reply | None]] = {
        0: lambda number: wire.Reply(number, False, "rank 0 does not answer", refusal=Unheard.kind),
        1: lambda number: wire.Reply(number, False, "no stacks: \x1b[31mptrace_scope is 1\n"),
        2: lambda number: wire.Reply(number, True),
        3: lambda number: wire.Reply(number, True, inspection=absent(7)),
        4: lambda number: None,
        5: lambda number: wire.Reply(number + 1, True, inspection=inspection(5)),
    }
    with observed(run_of("none", 6)) as observer:
        found = stacks_of(observer, lambda rank, command: replies[rank](command.id))
    assert found.inspections == ()
    assert found.unknown == {
        0: "no answer", 1: "no stacks: ptrace_scope is 1", 2: "no answer", 3: "no answer",
        4: "no answer within 0 s", 5: "no answer within 0 s",
    }  # fmt: skip


def test_ranks_that_cannot_answer_are_not_asked() -> None:
    """One that has ended, one whose process is gone and one that has not come: with the reason, and at once."""
    with observed(run_of("gone", 4), present=3) as observer:
        members = observer.directory.members()
        end = Ended(time.time_ns(), 3, step=5, pid=os.getpid())
        dead = msgspec.structs.replace(members[2].process, started=1.0)
        observer.directory.write_member(msgspec.structs.replace(members[1], ended=end, process=dead))
        observer.directory.write_member(msgspec.structs.replace(members[2], process=dead))
        found = stacks_of(observer, stands)
    assert [each.rank for each in found.inspections] == [0]
    assert found.unknown == {1: "ended, exit code 3", 2: "process gone", 3: "not reported yet"}


def test_a_process_that_outlives_its_script_is_asked_where_it_stands() -> None:
    """It is not said to have ended: somebody looks here for what keeps it, also where it does not answer."""
    with observed(run_of("late", 2)) as observer:
        member = observer.directory.members()[1]
        end = Ended(time.time_ns(), 0, step=5, pid=os.getpid(), awaits="thread uploader (train.py:9)")
        observer.directory.write_member(msgspec.structs.replace(member, ended=end))
        late = stacks_of(observer, stands)
        silent = stacks_of(observer, lambda rank, command: stands(rank, command) if rank == 0 else wire.Reply(1, True))
    assert [each.rank for each in late.inspections] == [0, 1]
    waits = "its process waits at exit for thread uploader (train.py:9)"
    assert silent.unknown == {1: f"its script has ended; {waits}"}


def test_many_ranks_are_asked_some_at_a_time() -> None:
    """No more are under way than fit; each that answers makes room for the next."""
    world = MOST_ASKED + 10
    with observed(run_of("many", world)) as observer:
        inspector = RunInspector(observer.directory, observer.directory.read())
        with asked(inspector) as answers:
            until(lambda: len(answered(observer, stands, keep=True)) == MOST_ASKED, "as many as fit")
            until(lambda: answered(observer, stands) is not None and answers, "the answer")
    (found,) = answers
    assert isinstance(found, Stacks)
    assert len(found.inspections) == world


def test_a_question_that_is_cancelled_ends() -> None:
    """With what was known by then."""
    cancelled = threading.Event()
    with observed(run_of("cancelled", 2)) as observer:
        inspector = RunInspector(observer.directory, observer.directory.read())
        with asked(inspector, cancelled=cancelled.is_set) as answers:
            until(lambda: len(answered(observer, stands, keep=True)) == 2, "the questions")
            sender, (to, payload) = observer.asked[1]
            observer.answer(sender, int(to), stands(int(to), wire.Inspect(wire.read_command(payload).id)))
            cancelled.set()
            until(lambda: answers, "the end")
    (found,) = answers
    assert isinstance(found, Stacks)
    assert {each.rank for each in found.inspections} <= {1}


def test_without_a_socket_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files: a refusal with the reason, not an error that ends the dashboard."""

    def fails(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    with observed(run_of("full", 2)) as observer:
        monkeypatch.setattr(asking, "connect", fails)
        with pytest.raises(Refused, match="the ranks cannot be asked: Too many open files"):
            RunInspector(observer.directory, observer.directory.read()).ask()


def test_an_ended_run_and_one_whose_name_is_taken_are_not_asked() -> None:
    """Each with its reason."""
    over = run_of("over", 2, "failed")
    with pytest.raises(Refused, match="run over is over"):
        RunInspector(rundir.create(over), over).ask()
    with observed(run_of("taken", 2)) as observer:
        earlier = msgspec.structs.replace(observer.directory.read(), run_id="earlier")
        with pytest.raises(Refused, match="another run has its name"):
            RunInspector(observer.directory, earlier).ask()


def test_what_was_recorded_of_a_hang() -> None:
    """With the time at which the last rank was asked; nothing of before the time that is asked about."""
    run = run_of("recorded", 2, "failed")
    directory = rundir.create(run)
    inspector = RunInspector(directory, run)
    assert inspector.recorded(0.0) is None
    stood = (inspection(0), absent(1, at_ns=10**18 + 10**9))
    connection = recording.open_file(directory.database)
    with connection:
        for row in recording.inspection_rows(stood):
            connection.execute(*row)
    connection.close()
    assert inspector.recorded(1e9) == Stacks(1e9 + 1, stood, recorded=True)
    told = [
        wire.Verdict(number, kind, kind, number, 9, hang=wire.Hang("unknown", (1,)))
        for number, kind in enumerate(("hang", "hang", "standing"), 1)
    ]
    connection = recording.open_file(directory.database)
    with connection:
        for row in (row for verdict in told for row in recording.verdict_rows(verdict)):
            connection.execute(*row)
    connection.close()
    assert inspector.recorded(1e9) == Stacks(1e9 + 1, stood, recorded=True, verdict=told[1])
    assert inspector.recorded(1e9 + 2) is None


def test_the_question_passes_through_a_real_relay() -> None:
    """To fake ranks and back: numbers, ranks and the whole of what they tell."""
    run = msgspec.structs.replace(run_of("relayed", 2), observer=rundir.identify(os.getpid()))
    directory = rundir.create(run)
    try:
        with ranks(directory, 2) as fakes, relayed(directory):
            for fake in fakes:
                fake.meet(wire.TOPIC_BEAT)
            with asked(RunInspector(directory, run)) as answers:
                for fake in fakes:
                    fake.inspect(inspection(fake.rank))
                until(lambda: answers, "the answer")
    finally:
        # The record names this process as one to be ended with the run.
        shutil.rmtree(directory.path)
    (found,) = answers
    assert isinstance(found, Stacks)
    assert sorted(found.inspections, key=lambda each: each.rank) == [inspection(0), inspection(1)]

"""A run that stands, at the relay: who is asked, what is published, and what the record has of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq
from support.fakes.ranks import Rank, ranks
from support.fakes.relay import relayed
from support.harness import until
from support.processes.standing import Spot, in_user_code, waits

from ddptop.agent import wire
from ddptop.agent.observer.inspection import work
from ddptop.agent.observer.inspection.inspections import Inspections
from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.observer.model.situation import Supervision
from ddptop.agent.observer.relay import hanging
from ddptop.agent.observer.relay import relay as relay_module
from ddptop.agent.observer.relay.hanging import Hanging
from ddptop.agent.record.recording import read_inspections, read_verdicts
from ddptop.agent.run.rundir import Ended, Member, Process, RunDir

Then = Callable[[dict[int, wire.Inspection]], object]


class Asked(Inspections):
    """A hanging whose ranks answer when the test says so, and whose clock it sets."""

    def __init__(self, directory: RunDir) -> None:
        self.now_ns = 1_000 * ONE
        self.questions: list[tuple[tuple[int, ...], Then]] = []
        self.recorded: list[list[wire.Inspection]] = []
        self.findings: list[tuple[wire.Verdict | None, int | None]] = []
        recorder: Any = SimpleNamespace(inspect=self.recorded.append)
        self.hanging = Hanging(
            directory,
            directory.read(),
            self,
            recorder,
            lambda: self.now_ns,
        )
        self.step = 0
        for rank in range(2):
            self.hanging.meet(rank, 2)

    def ask(
        self, ranks: Collection[int], then: Then, *, stacks: bool, native: bool = False, asker: bytes = b""
    ) -> None:
        self.questions.append((tuple(ranks), then))

    def make_step(self) -> None:
        """Complete a step on both ranks."""
        self.step += 1
        for rank in range(2):
            self.hanging.note(_beat(rank, self.step, self.now_ns))
        self.hanging.note(wire.Summary(0, self.step, self.now_ns, self.step, 1, 1, ONE // 10, 0, 0, 0, 0, 0, 0))

    def spend(self, seconds: float) -> None:
        """Let time pass, with a turn at its end."""
        self.now_ns += int(seconds * ONE)
        self.hanging.turn()
        self.findings.append(self.hanging.finding())

    def answer(self, calls: int = 5) -> None:
        """Answer the oldest question: rank 1 sleeps, rank 0 waits for it."""
        _, then = self.questions.pop(0)
        then(_found(self.now_ns, calls))

    def hang(self) -> None:
        """Let the run stand until that is told."""
        self.spend(3)
        self.answer()
        self.spend(1)
        self.answer()
        self.spend(0.1)


def _beat(rank: int, step: int, at_ns: int) -> wire.Beat:
    return wire.Beat(rank, at_ns, "running", "forward", step, at_ns if step else None, step, timeout_s=1800.0)


def _found(at_ns: int, calls: int = 5) -> dict[int, wire.Inspection]:
    asleep = Spot(in_user_code(31, source="time.sleep(9)"), calls=calls)
    return {0: waits(calls + 1, seconds=60).inspection(0, 1, at_ns), 1: asleep.inspection(1, 1, at_ns)}


@pytest.fixture
def asked(new_run: Callable[..., RunDir]) -> Asked:
    """Return a hanging of two ranks that have made some steps."""
    found = Asked(new_run())
    for _ in range(3):
        found.now_ns += ONE // 10
        found.make_step()
    return found


def test_nobody_is_asked_while_steps_come(asked):
    """Nor a moment after the last one."""
    for _ in range(20):
        asked.spend(0.5)
        asked.make_step()
    asked.spend(1.5)
    assert asked.questions == []
    assert {finding for finding, _ in asked.findings} == {None}


def test_a_hang_is_told_and_its_inspections_are_recorded_once(asked):
    """Both ranks are asked twice, a moment apart; the record gets where they stand, with stacks."""
    asked.hang()
    finding, _ = asked.findings[-1]
    assert (finding.kind, finding.rank) == ("hang", 1)
    assert [each.rank for each in asked.recorded[0]] == [1, 0]
    assert all(each.threads for each in asked.recorded[0])
    for _ in range(3):
        asked.spend(6)
        asked.answer()
    assert len(asked.recorded) == 1
    assert asked.findings[-1][0].text.endswith(" · 22 s")


def test_the_next_step_ends_it_and_the_next_hang_is_recorded_anew(asked):
    """The judge gets None, and the time of the step; neither that nor the looks before it wait for the next second."""
    assert not asked.hanging.is_looking
    asked.hang()
    assert asked.hanging.is_looking
    asked.now_ns += ONE
    asked.make_step()
    ended = asked.now_ns
    assert asked.hanging.is_looking
    asked.spend(0.1)
    assert not asked.hanging.is_looking
    assert asked.findings[-1] == (None, ended)
    asked.hang()
    assert asked.findings[-1][0].kind == "hang"
    assert len(asked.recorded) == 2


def test_an_answer_that_comes_after_the_next_step_says_nothing(asked):
    """Ranks answer within two seconds: the run may have gone on by then."""
    asked.spend(3)
    asked.answer()
    asked.spend(1)
    asked.make_step()
    asked.spend(3)
    assert len(asked.questions) == 2
    asked.answer()
    asked.spend(1)
    # The second question still waits for its own answer.
    assert len(asked.questions) == 1
    assert asked.findings[-1][0] is None
    assert asked.recorded == []


def test_a_frozen_run_is_not_looked_at(asked, monkeypatch):
    """Somebody has stopped it on purpose; after that it has all the time again."""
    frozen = [True]
    monkeypatch.setattr(hanging, "frozen", lambda directory: frozen[0] or None)
    asked.spend(3)
    asked.spend(60)
    asked.spend(1.5)
    frozen.clear()
    frozen.append(False)
    asked.spend(1.5)
    assert asked.questions == []


def test_other_processes_begin_anew(asked):
    """After a restart of the group nothing is told of the one before, nor are its heartbeats heard."""
    asked.hang()
    asked.hanging.restart(1)
    asked.hanging.note(msgspec.structs.replace(_beat(0, 9, asked.now_ns), generation=0))
    asked.spend(3)
    assert asked.findings[-1][0] is None
    assert asked.questions == []
    # Each of the new processes is told by itself, and takes the place of an old one.
    for rank in range(2):
        asked.hanging.restart(1)
        asked.hanging.meet(rank, 2)
    asked.spend(25)
    ((ranks_asked, _),) = asked.questions
    assert ranks_asked == (0, 1)


def test_what_is_recorded_of_a_hang_is_bounded(asked, monkeypatch):
    """The cause comes first."""
    one = len(wire.encode(wire.Reply(0, True, inspection=_found(asked.now_ns)[1])))
    monkeypatch.setattr(hanging, "MOST_BYTES", one + 50)
    asked.hang()
    assert [[each.rank for each in found] for found in asked.recorded] == [[1]]


def _answer(made: list[Rank]) -> None:
    """Answer what fake ranks were asked: one waits for the other."""
    for rank in made:
        with contextlib.suppress(zmq.Again):
            while True:
                peer, payload = rank.cmd.recv_multipart(zmq.NOBLOCK)
                command = wire.read_command(payload)
                told = _found(time.time_ns())[rank.rank] if isinstance(command, wire.Inspect) else None
                rank.answer(peer, wire.Reply(command.id, True, inspection=told))


def test_over_the_sockets_a_hang_is_published_recorded_and_withdrawn(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict is in the record with what is known of the hang, beside where both ranks stood; a step ends it."""
    directory, began = new_run(world=2), time.time_ns()

    def recorded(step: int) -> list[wire.Verdict]:
        """Let the ranks live on after so many steps, and return what is recorded of hangs."""
        for rank in made:
            rank.publish(wire.TOPIC_BEAT, _beat(rank.rank, step, began + step))
        _answer(made)
        return [verdict for verdict in read_verdicts(directory.database) if verdict.kind == "hang"]

    # Both ranks are this process, which works.
    monkeypatch.setattr(work.Works, "measure", lambda *_: {})
    with ranks(directory, 2) as made, relayed(directory):
        for rank in made:
            rank.meet(wire.TOPIC_BEAT)
        summary = wire.Summary(0, 1, began, 1, 1, 1, ONE // 10, 0, 0, 0, 0, 0, 0)
        made[0].publish(wire.TOPIC_SUMMARY, summary)
        until(lambda: recorded(1), "the verdict")
        (verdict,) = recorded(1)
        assert (verdict.rank, verdict.until_at_ns) == (1, None)
        assert verdict.hang is not None
        assert (verdict.hang.kind, verdict.hang.where) == ("not_entered", "train.py:31 main")
        until(lambda: recorded(1) and read_inspections(directory.database), "the inspections")
        assert [each.rank for each in read_inspections(directory.database)] == [0, 1]
        until(lambda: recorded(2)[0].until_at_ns is not None, "the end of the hang")
        assert len(recorded(2)) == 1


def test_a_run_of_which_a_rank_has_failed_is_not_looked_at(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for their end then: once the observer knows the cause, no turn of the relay looks for a hang."""
    monkeypatch.setattr(relay_module, "EVERY_S", 0.1)
    directory = new_run(world=2)
    looks: list[int] = []
    seconds: list[int] = []
    with ranks(directory, 2), relayed(directory) as relay:
        judge = relay._judge_run

        def look() -> bool:
            looks.append(1)
            return False

        def turn(now_ns: int) -> None:
            seconds.append(len(looks))
            judge(now_ns)

        monkeypatch.setattr(relay._hanging, "turn", look)
        monkeypatch.setattr(relay, "_judge_run", turn)
        until(lambda: looks, "a look")
        relay.supervise(Supervision("running", cause="rank 0: ValueError"))
        before = len(seconds)
        until(lambda: len(seconds) >= before + 4, "three turns more")
    assert seconds[before + 1] == seconds[before + 3]


def test_processes_that_outlive_their_scripts_are_told_with_what_they_wait_for(new_run: Callable[..., RunDir]) -> None:
    """After some seconds, where no other rank works any more: a healthy process has ended by then."""
    directory = new_run()
    asked = Asked(directory)
    asked.make_step()
    ended = Ended(asked.now_ns, 0, awaits="thread uploader (train.py:9)")
    directory.write_member(Member(1, 1, 2, Process(7, 0.0), "host", 0, "", "", None, ended))
    for rank, state in ((1, "ended"), (0, "running")):
        asked.hanging.note(msgspec.structs.replace(_beat(rank, 2, asked.now_ns), state=state))
    asked.spend(6)
    assert not [finding for finding, _ in asked.findings if finding is not None]
    asked.hanging.note(msgspec.structs.replace(_beat(0, 2, asked.now_ns), state="ended"))
    asked.hanging.lose(0)
    asked.spend(1)
    finding = asked.findings[-1][0]
    assert finding is not None
    assert finding.hang is not None
    assert finding.text.startswith(
        "rank 1's script has finished; its process waits at exit for thread uploader (train.py:9) · "
    )
    assert (finding.hang.kind, finding.hang.ranks, finding.hang.where) == ("at_exit", (1,), "train.py:9")


def test_a_hang_is_told_with_what_the_rank_printed_that_left_the_others(new_run: Callable[..., RunDir]) -> None:
    """Once, however often it is looked at; what was printed long before its last step is of no concern."""
    directory = new_run(world=2)
    asked = Asked(directory)
    directory.write_member(Member(1, 1, 2, Process(7, 0.0), "host", 0, "", "", None))
    log = directory.rank_log(1)
    for printed_s, said in ((0, True), (-60, False)):
        asked.make_step()
        log.write_text('Traceback (most recent call last):\n  File "/a/train.py", line 3, in f\nKeyError: 7\n')
        at_ns = asked.now_ns + printed_s * ONE
        os.utime(log, ns=(at_ns, at_ns))
        asked.spend(11)
        asked.hang()
        asked.spend(6)
        asked.answer()
        finding = asked.findings[-1][0]
        assert finding is not None
        assert finding.text.count("; before that it printed KeyError: 7 (train.py:3 f), and went on · ") == said
        asked.now_ns += ONE


def test_a_rank_that_stands_at_its_exit_lingers_until_it_is_gone(asked: Asked) -> None:
    """One whose process ends in the usual way does not: nobody looks for a hang where a rank has failed."""
    said = "its process stands in the barrier of its exit function leave_together (train.py:8)"
    for activity, lingers in (("its script has ended by KeyError (train.py:9)", False), (said, True)):
        asked.hanging.note(msgspec.structs.replace(_beat(1, 3, asked.now_ns), state="ended", activity=activity))
        assert asked.hanging.lingers is lingers
    asked.hanging.lose(1)
    assert not asked.hanging.lingers

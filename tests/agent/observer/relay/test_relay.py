"""The relay between ranks and onlookers: what ranks publish arrives as sent, once, at everybody."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq
from support.fakes.onlookers import Onlooker
from support.fakes.ranks import Rank, beat, ranks, steps
from support.fakes.relay import relayed
from support.harness import DEADLINE_S, until
from support.values.messages import read_reply
from support.values.recordings import read_history

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.observer.model.situation import Supervision
from ddptop.agent.observer.relay import frames
from ddptop.agent.observer.relay import relay as relay_module
from ddptop.agent.observer.relay.intake import Intake
from ddptop.agent.observer.service import service
from ddptop.agent.record.inbox import Asked
from ddptop.agent.record.recorder import Recorder
from ddptop.agent.record.recording import read_events
from ddptop.agent.run.rundir import Process, RunDir
from ddptop.agent.wire.vocabulary.refusals import Unheard


@pytest.fixture
def onlooker() -> Iterator[Callable[..., Onlooker]]:
    """Make onlookers, in a context of their own."""
    made: list[Onlooker] = []
    with zmq.Context() as context:

        def make(directory: RunDir, *topics: bytes) -> Onlooker:
            made.append(Onlooker(context, directory, *topics))
            return made[-1]

        yield make
        for each in made:
            each.sub.close()
            each.cmd.close()


def _records(directory: RunDir, rank: int = 0) -> list[int]:
    return [
        each.seq
        for message in read_history(directory.database)
        if isinstance(message, wire.Steps) and message.rank == rank
        for each in message.steps
    ]


def test_records_and_events_arrive_as_they_were_sent(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker]
) -> None:
    """Byte for byte, records under the number of the rank; of a message that cannot be true nothing arrives."""
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory) as relay:
        for rank in group:
            rank.meet()
            rank.fill()
        looker = onlooker(directory, b"")
        expected = []
        until(looker.listen, "the subscription")
        for rank in group:
            number = rank.rank
            (payload,) = rank.publish(wire.TOPIC_STEPS, steps(number, 0, 1))
            expected.append((wire.topic_of(wire.TOPIC_STEPS, number), payload))
            rank.publish(wire.TOPIC_BEAT, beat(7, 7), b"noise", wire.encode(wire.Reply(9, True)))
            expected.append((wire.TOPIC_EVENT, rank.publish(wire.TOPIC_EVENT, wire.Event(number, "text", number))[0]))
        relay.events.say("its own word")
        looker.await_all(*expected)
        until(lambda: any(b"its own word" in payload for _, payload in looker.listen()), "the observer's own event")
        until(lambda: relay.refused == 6, "what cannot be true to be counted")
        assert not any(b"/00007" in topic or payload == b"noise" for topic, payload in looker.heard)
    assert _records(directory, 1) == [0, 1]


def test_a_cause_is_told_when_it_is_known(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not with the next frame, which is never due here."""
    monkeypatch.setattr(frames, "EVERY_S", 1e6)
    directory = new_run(world=1)
    with relayed(directory) as relay:
        looker = onlooker(directory, wire.TOPIC_RUN)
        until(looker.listen, "the first frame")
        relay.supervise(Supervision("running", cause="rank 0: ValueError: no"))
        until(lambda: looker.run_frame().cause == "rank 0: ValueError: no", "a frame with the cause")


def test_the_end_of_a_script_wakes_who_looks_after_the_run(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker]
) -> None:
    """At once, and no other sign of life does: whoever looks after the run reads why in the record of the rank."""
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        rank.fill()
        looker = onlooker(directory, wire.TOPIC_RANK)
        poller = zmq.Poller()
        poller.register(relay.requests.arrived, zmq.POLLIN)
        rank.publish(wire.TOPIC_BEAT, beat(0, 3))
        until(lambda: [each.step for each in looker.rank_frames()] == [3], "the sign of life")
        assert not poller.poll(0)
        rank.publish(wire.TOPIC_BEAT, msgspec.structs.replace(beat(0, 4), state="ended"))
        assert poller.poll(int(1000 * DEADLINE_S))


def test_without_onlookers_the_relay_rests_and_still_answers_with_the_newest(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody looks on it waits for its next second; a question, and a newcomer, get what has come meanwhile."""
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        monkeypatch.setattr(relay_module, "EVERY_S", 10_000.0)
        rank.meet()
        rank.fill(1)
        until(lambda: relay._pause_s() > 1000, "nothing to do")
        looker = onlooker(directory)

        def newest() -> int:
            looker.cmd.send(wire.encode(wire.History(1)))
            assert looker.cmd.poll(int(1000 * DEADLINE_S)), "no answer"
            extent = wire.read_history(looker.cmd.recv())
            assert isinstance(extent, wire.Extent)
            assert isinstance(wire.read_history(looker.cmd.recv()), wire.Reply)
            return extent.newest

        rank.publish(wire.TOPIC_STEPS, steps(0, 2, 3))
        # What is sent through one socket may overtake what is sent through another.
        until(lambda: newest() == 4, "the newest step")
        assert relay._pause_s() > 1000
        looker.sub.subscribe(wire.TOPIC_RUN)
        looker.sub.subscribe(wire.TOPIC_STEPS)
        until(lambda: relay._pause_s() < 1, "the first of those who look on")
        sent = rank.publish(wire.TOPIC_STEPS, steps(0, 4))
        looker.await_all((b"steps/00000", sent[0]))
        looker.sub.unsubscribe(wire.TOPIC_RUN)
        until(lambda: relay._pause_s() > 1000, "the last of those who look on to leave")
        rank.publish(wire.TOPIC_STEPS, steps(0, 5))
        until(lambda: newest() == 6, "the last step")
    assert _records(directory) == [1, 2, 3, 4, 5]


def test_commands_reach_their_rank_and_replies_their_asker(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker]
) -> None:
    """Also where two askers use the same number for the same rank at the same time, and replies come in any order."""
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory):
        for rank in group:
            rank.meet()
            rank.fill()
        one, other = onlooker(directory), onlooker(directory)
        until_ns = deadline.now_ns() + 10**12
        one.ask(1, wire.Hold(7, "one", until_ns=until_ns))
        peer, first = group[1].asked()
        other.ask(1, wire.Hold(7, "other", until_ns=until_ns))
        other.ask(0, wire.Resume(7))
        _, second = group[1].asked()
        assert isinstance(first, wire.Hold)
        assert isinstance(second, wire.Hold)
        assert (first.token, second.token) == ("one", "other")
        assert first.until_ns == until_ns
        group[1].answer(peer, wire.Reply(second.id, True, "for the other"), wire.Reply(first.id, False, "for one"))
        peer, query = group[0].asked()
        group[0].answer(peer, wire.Reply(query.id, True, "of rank 0", 3))
        number, payload = one.answered()
        assert (number, read_reply(payload)) == (1, wire.Reply(7, False, "for one"))
        answers = {number: read_reply(payload) for number, payload in (other.answered(), other.answered())}
        assert answers == {1: wire.Reply(7, True, "for the other"), 0: wire.Reply(7, True, "of rank 0", 3)}
        assert not one.cmd.poll(0)


def test_the_observer_answers_for_a_rank_that_does_not(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker]
) -> None:
    """For one that never came at once, for a silent one at the deadline; a late answer of it goes to nobody."""
    directory = new_run(world=3)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        rank.fill()
        looker = onlooker(directory)
        looker.ask(2, wire.Resume(3))
        number, payload = looker.answered()
        silence = wire.Reply(3, False, "rank 2 does not answer", refusal=Unheard.kind)
        assert (number, read_reply(payload)) == (2, silence)
        looker.ask(0, wire.Fill(4))
        assert read_reply(looker.answered()[1]) == wire.Reply(4, False, "records are for observers alone")
        looker.ask(0, deadline.limited(wire.Hold(5, "x"), 0.2))
        number, payload = looker.answered()
        silence = wire.Reply(5, False, "rank 0 does not answer", refusal=Unheard.kind)
        assert (number, read_reply(payload)) == (0, silence)
        peer, asked = rank.asked()
        rank.answer(peer, wire.Reply(asked.id, True, "late"))
        looker.ask(0, wire.Resume(6))
        peer, asked = rank.asked()
        rank.answer(peer, wire.Reply(asked.id, True, "in time"))
        _, payload = looker.answered()
        assert read_reply(payload) == wire.Reply(6, True, "in time")
        looker.cmd.send_multipart([b"x", wire.encode(wire.Resume(1))])
        looker.cmd.send_multipart([b"0", b"0", wire.encode(wire.Resume(1))])
        looker.cmd.send_multipart([b"-1", wire.encode(wire.Resume(1))])
        until(lambda: relay.refused == 3, "what names no rank")


def test_a_killed_rank_is_answered_for_at_once(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker]
) -> None:
    """Its sockets are still there: what waits for it and what comes is answered; another process is heard."""
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        rank.fill()
        looker = onlooker(directory)
        waiting = deadline.limited(wire.Hold(1, "x"), 1000)
        looker.ask(0, waiting)
        rank.asked()
        member = directory.members()[0]
        relay.lose(member)
        replies = [read_reply(looker.answered()[1])]
        looker.ask(0, deadline.limited(wire.Hold(3, "x"), 1000))
        replies.append(read_reply(looker.answered()[1]))
        assert {(reply.id, reply.text) for reply in replies} == {
            (number, "rank 0 does not answer") for number in (1, 3)
        }
        relay.follow(msgspec.structs.replace(member, process=Process(1, 0.0)))
        rank.fill()
        relay.lose(member)
        looker.ask(0, wire.Resume(4))
        peer, query = rank.asked()
        rank.answer(peer, wire.Reply(query.id, True))
        assert read_reply(looker.answered()[1]) == wire.Reply(4, True)


def test_a_reader_that_sleeps_harms_nobody(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are dropped beyond the bound, its questions are refused; others hear all."""
    monkeypatch.setattr(service, "UNREAD_SMALL", 10)
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        rank.fill()
        asleep, awake = onlooker(directory, b"steps/"), onlooker(directory, wire.TOPIC_RANK)
        rank.publish(wire.TOPIC_STEPS, *(steps(0, number) for number in range(2000)))
        for number in range(200):
            asleep.cmd.send(wire.encode(wire.WholeSteps(number, (0,))))
        rank.publish(wire.TOPIC_BEAT, beat(0, 4000))
        until(lambda: [each.step for each in awake.rank_frames()] == [4000], "the last beat")
        awake.ask(0, wire.Resume(2))
        _, query = rank.asked()
        rank.answer(_, wire.Reply(query.id, True))
        assert read_reply(awake.answered()[1]).done
        assert sum(each.bytes for each in relay._service._waiting.values()) < 3 * service.ROOM
    assert _records(directory) == list(range(2000))


def test_a_command_to_a_former_process_does_not_reach_the_next(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker]
) -> None:
    """What waited for a rank of the last generation is answered in its place; the new one gets only its own."""
    directory = new_run(world=1, max_restarts=1)
    with zmq.Context() as context, relayed(directory) as relay:
        former = Rank(context, directory, 0)
        former.meet()
        former.fill()
        looker = onlooker(directory)
        looker.ask(0, wire.Resume(1))
        peer, query = former.asked()
        former.answer(peer, wire.Reply(query.id, True))
        assert read_reply(looker.answered()[1]).done
        former.close()
        # A killed process leaves its sockets' files, so that the command is taken, and waits until the end is noticed.
        looker.ask(0, wire.Resume(2))
        until(lambda: relay._forwarding._under_way, "the command on its way")
        relay.lose(directory.members()[0])
        assert not read_reply(looker.answered()[1]).done
        rank = Rank(context, directory, 0, generation=1)
        relay.follow(directory.members()[0])
        rank.fill()
        looker.ask(0, wire.Resume(3))
        peer, query = rank.asked()
        rank.answer(peer, wire.Reply(query.id, True))
        assert read_reply(looker.answered()[1]) == wire.Reply(3, True)
        assert not rank.is_asked(0.1)
        rank.close()


def test_many_questions_for_the_history_do_not_hold_up_the_rest(
    new_run: Callable[..., RunDir], onlooker: Callable[..., Onlooker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ranks publish is heard while none of them is answered, and in the end each is."""
    most = 40
    goes_on = threading.Event()

    def wait(_: Recorder, asked: Asked) -> list[wire.HistoryAnswer]:
        goes_on.wait(DEADLINE_S)
        return [wire.Reply(asked.query.id, True)]

    monkeypatch.setattr(Recorder, "_answer", wait)
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory):
        rank.meet()
        rank.fill()
        looker, other = onlooker(directory, wire.TOPIC_RANK), onlooker(directory)
        until(looker.rank_frames, "the first frame")
        for number in range(most):
            other.cmd.send(wire.encode(wire.History(number)))
        rank.publish(wire.TOPIC_BEAT, beat(0, 2))
        until(lambda: [each.step for each in looker.rank_frames()] == [2], "the beat")
        assert not other.cmd.poll(0)
        goes_on.set()
        for _ in range(most):
            assert other.cmd.poll(int(1000 * DEADLINE_S))
            other.cmd.recv()


def test_the_last_words_of_a_process_come_before_its_successor(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However seldom it looks: what has arrived is taken in before a rank's next process is followed."""
    calls: list[str] = []
    for name in ("drain", "follow"):

        def noted(name: str = name) -> Callable[..., Any]:
            call = getattr(Intake, name)

            def note(*arguments: Any) -> Any:
                calls.append(name)
                return call(*arguments)

            return note

        monkeypatch.setattr(Intake, name, noted())
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        rank.fill(1)
        until(lambda: _records(directory), "the first record")
        monkeypatch.setattr(relay_module, "EVERY_S", 1e6)
        monkeypatch.setattr(relay_module, "PERIOD_S", 1e6)
        del calls[:]
        member = directory.members()[0]
        relay.follow(msgspec.structs.replace(member, process=Process(member.process.pid, 1.0)))
        until(lambda: "follow" in calls, "the next process")
        assert calls[calls.index("follow") - 1 :][:2] == ["drain", "follow"]


def test_the_sockets_of_an_observer_are_never_open_to_others(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even before their mode is set: whoever connects in that moment would be told that others can use them."""
    modes: list[int] = []

    def seal(address: str) -> None:
        modes.append(os.stat(address.removeprefix("ipc://")).st_mode & 0o077)

    monkeypatch.setattr(service, "seal", seal)
    before = os.umask(0o022)
    try:
        with zmq.Context() as context:
            service.Service(context, new_run(world=1), Elsewhere()).close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert modes == [0, 0]


def test_what_is_said_at_the_very_end_is_recorded(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the last messages are taken in, the judge, the recorder or another thread may still say something."""
    directory = new_run(world=1)
    ended = threading.Event()
    with ranks(directory, 1), relayed(directory) as relay:
        finish, publish, end = relay._intake.finish, relay._frames.turn, relay._close_recorder

        def say_and_finish() -> None:
            relay.events.say("the last word")
            finish()

        def publish_later(*, at_once: bool = False) -> None:
            # No other turn of the relay comes before the end of the record.
            if relay._finished.is_set():
                ended.wait(DEADLINE_S)
            publish(at_once=at_once)

        def end_record() -> None:
            end()
            ended.set()

        monkeypatch.setattr(relay._intake, "finish", say_and_finish)
        monkeypatch.setattr(relay._frames, "turn", publish_later)
        monkeypatch.setattr(relay, "_close_recorder", end_record)
    assert "the last word" in [event.text for event in read_events(directory.database) if isinstance(event, wire.Event)]

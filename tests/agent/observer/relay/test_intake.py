"""What ranks publish reaches the record: in order, without gaps, and only what can be true."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import zmq
from support.fakes.ranks import Rank, hello, ranks, steps
from support.fakes.relay import relayed
from support.harness import until
from support.values.recordings import read_history

from ddptop.agent import wire
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.observer.relay import intake
from ddptop.agent.observer.relay.relay import Relay
from ddptop.agent.observer.service import fills
from ddptop.agent.observer.service.fills import Fills
from ddptop.agent.record import inbox, recorder
from ddptop.agent.record.recording import read_events
from ddptop.agent.run.rundir import RunDir


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the recorder wait briefly between batches, and the relay for what may still come in order."""
    monkeypatch.setattr(recorder, "BATCH_S", 0.05)
    monkeypatch.setattr(intake, "GAP_S", 0.1)


def numbers(directory: RunDir, rank: int = 0) -> list[int]:
    """Return the numbers of the recorded steps of a rank."""
    return [
        each.seq
        for message in read_history(directory.database)
        if isinstance(message, wire.Steps) and message.rank == rank
        for each in message.steps
    ]


def answering(rank: Rank, condition: Callable[[], bool]) -> Callable[[], bool]:
    """Return this condition, before which a rank says of each question that it has no earlier records."""

    def answered() -> bool:
        if rank.is_asked():
            peer, fill = rank.asked()
            rank.answer(peer, wire.Reply(fill.id, True))
        return condition()

    return answered


def test_garbage_is_counted_and_left_out(new_run: Callable[..., RunDir]) -> None:
    """Noise, numbers beyond SQLite's, ranks that do not exist and a forged run state are refused."""
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        rank.fill()
        rank.publish(wire.TOPIC_STEPS, *(bytes([n % 256]) * (n % 50) for n in range(200)))
        rank.publish(wire.TOPIC_STEPS, steps(0, 2**64 - 2), steps(9, 1), wire.Steps(0, ()))
        rank.publish(wire.TOPIC_EVENT, wire.encode(wire.Reply(0, True)), wire.Event(2**64 - 1, "late"))
        rank.publish(wire.TOPIC_EVENT, b"", wire.encode(wire.Bundle(())))
        rank.publish(wire.TOPIC_BEAT, wire.Beat(0, 1, "running", "x" * 2**19, 1, None, 1))
        rank.publish(wire.TOPIC_HELLO, msgspec.structs.replace(hello(0), generation=2**60))
        rank.publish(wire.TOPIC_STEPS, steps(0, 3))
        until(answering(rank, lambda: list(read_history(directory.database)) == [steps(0, 3)]), "the one good message")
        until(lambda: relay.refused == 209, "all the others to be counted")


def test_what_was_published_before_anybody_listened_is_asked_for(new_run: Callable[..., RunDir]) -> None:
    """Older records come before newer ones in the file, none twice; a successor asks only for what is missing."""
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,):
        for first, last in ((0, 3), (4, 9)):
            with relayed(directory):
                rank.meet()
                rank.publish(wire.TOPIC_STEPS, steps(0, last))
                fill = rank.fill(*range(first, last))
                assert fill.first_seq == first
                until(lambda: numbers(directory)[-1:] == [last], "the newest")  # noqa: B023 # used at once
            until(lambda: not rank.hear(), "the relay to leave")
    assert numbers(directory) == list(range(10))


def test_steps_of_another_generation_do_not_silence_their_rank(new_run: Callable[..., RunDir]) -> None:
    """Than that of the rank's record: the true ones after them are recorded."""
    directory = new_run(world=1)
    with zmq.Context() as context, relayed(directory) as relay:
        rank = Rank(context, directory, 0)
        rank.meet()
        rank.fill()
        rank.publish(wire.TOPIC_STEPS, steps(0, 0), steps(0, 1, generation=1))
        # What comes while the first question is under way is not asked for again.
        until(lambda: numbers(directory) == [0], "the first one")
        rank.publish(wire.TOPIC_STEPS, steps(0, 2))
        rank.fill(1)
        until(answering(rank, lambda: numbers(directory) == [0, 1, 2]), "the true ones")
        member = directory.members()[0]
        relay.follow(msgspec.structs.replace(member, generation=1))
        until(lambda: relay._intake.generation == 1, "the new generation")
        rank.publish(wire.TOPIC_STEPS, steps(0, 0, generation=1))
        # Also a question of the generation before may still be on its way.
        until(answering(rank, lambda: numbers(directory) == [0, 1, 2, 0]), "those of the new generation")
        rank.close()


def test_a_gap_is_filled(new_run: Callable[..., RunDir]) -> None:
    """Records that were lost on their way are asked for, and recorded before those that showed it."""
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory):
        rank.meet()
        rank.fill(0, 1)
        rank.publish(wire.TOPIC_STEPS, steps(0, 2))
        until(lambda: numbers(directory) == [0, 1, 2], "the first ones")
        rank.publish(wire.TOPIC_STEPS, steps(0, 6), steps(0, 7))
        assert rank.fill(3, 4, 5).first_seq == 3
        until(lambda: numbers(directory) == list(range(8)), "all")
        # A rank that has lost them itself is not asked for ever.
        rank.publish(wire.TOPIC_STEPS, steps(0, 10))
        assert rank.fill().first_seq == 8
        rank.publish(wire.TOPIC_STEPS, steps(0, 11))
        until(lambda: numbers(directory) == [*range(8), 10, 11], "what there is")
        assert not rank.is_asked()


def test_a_socket_that_was_refused_is_tried_again(new_run: Callable[..., RunDir]) -> None:
    """Once nobody else can use it any more, its rank is listened to as any other."""
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,):
        for kind in ("pub", "cmd"):
            os.chmod(directory.address(0, kind).removeprefix("ipc://"), 0o666)
        with relayed(directory) as relay:
            until(lambda: 0 in relay._following.refused, "the refusal")
            assert not rank.hear()
            for kind in ("pub", "cmd"):
                os.chmod(directory.address(0, kind).removeprefix("ipc://"), 0o600)
            rank.meet()
            rank.fill(0, 1)
            until(lambda: numbers(directory) == [0, 1], "its records")
    said = [event.text for event in read_events(directory.database) if isinstance(event, wire.Event)]
    assert sum("not listened to rank 0" in text for text in said) == 1
    assert "rank 0 is listened to now" in said


def test_a_rank_that_was_silent_is_asked_again(new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not answer the first question: its next message shows what is missing before it."""
    monkeypatch.setattr(fills, "FILL_S", 0.2)
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        rank.asked()
        until(lambda: not relay._intake._refills, "the question to be given up")
        rank.publish(wire.TOPIC_STEPS, steps(0, 3))
        assert rank.fill(0, 1, 2).first_seq == 0
        until(lambda: numbers(directory) == [0, 1, 2, 3], "all")


def test_records_between_the_answer_and_the_first_message_are_asked_for(new_run: Callable[..., RunDir]) -> None:
    """The subscription may begin after the answer was made: what waits behind the answer shows the gap."""
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory):
        rank.meet()
        peer, fill = rank.asked()
        rank.publish(wire.TOPIC_STEPS, steps(0, 5), steps(0, 6))
        rank.answer(peer, steps(0, 0, 1, 2), wire.Reply(fill.id, True))
        assert rank.fill(3, 4).first_seq == 3
        until(lambda: numbers(directory) == list(range(7)), "all")


def test_the_rest_of_an_answer_that_broke_off_is_asked_for(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing that is published later shows it, and where one gap lies behind another."""
    monkeypatch.setattr(fills, "FILL_S", 0.2)
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory):
        rank.meet()
        peer, fill = rank.asked()
        assert isinstance(fill, wire.Fill)
        rank.answer(peer, steps(0, *range(fill.first_seq, 3)))
        peer, fill = rank.asked()
        assert isinstance(fill, wire.Fill)
        assert fill.first_seq == 3
        rank.publish(wire.TOPIC_STEPS, steps(0, 5), steps(0, 8))
        rank.answer(peer, steps(0, 3, 4), wire.Reply(fill.id, True))
        assert rank.fill(6, 7).first_seq == 6
        until(lambda: numbers(directory) == list(range(9)), "all")


def _waiting(relay: Relay) -> list[int]:
    """Return the numbers of the records that wait behind the question to rank 0."""
    refill = relay._intake._refills.get(0)
    return [] if refill is None else [steps.steps[0].seq for steps, _ in tuple(refill.waiting)]


def test_where_too_many_records_wait_behind_a_question_the_oldest_are_asked_for(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an answer brings is recorded however much has come meanwhile, and so is all that came."""
    monkeypatch.setattr(intake, "MOST_BEHIND", 3)
    directory = new_run(world=1)
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        peer, fill = rank.asked()
        rank.publish(wire.TOPIC_STEPS, *(steps(0, number) for number in range(5, 20)))
        until(lambda: _waiting(relay) == [17, 18, 19], "the newest to wait")
        rank.answer(peer, steps(0, *range(5)), wire.Reply(fill.id, True))
        assert rank.fill(*range(5, 20)).first_seq == 5
        until(lambda: numbers(directory) == list(range(20)), "all")


def test_no_step_is_lost_under_a_burst(new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the recorder had no room the records are asked for again, and the file has all of them in order."""
    monkeypatch.setattr(inbox, "MOST", 50)
    # A rank that does not answer in time is given up; on a busy machine this process may be late with its answers.
    monkeypatch.setattr(fills, "FILL_S", 60.0)
    directory = new_run(world=1)
    total = 2000
    with ranks(directory, 1) as (rank,), relayed(directory) as relay:
        rank.meet()
        rank.fill()
        rank.publish(wire.TOPIC_STEPS, *(steps(0, number) for number in range(total)))
        sent = total

        def all_are_recorded() -> bool:
            nonlocal sent
            if rank.is_asked(0.05):
                peer, fill = rank.asked()
                assert isinstance(fill, wire.Fill)
                rank.answer(peer, steps(0, *range(fill.first_seq, sent)), wire.Reply(fill.id, True))
            else:
                rank.publish(wire.TOPIC_STEPS, steps(0, sent))
                sent += 1
            return len(numbers(directory)) >= total

        until(all_are_recorded, "all")
        assert relay._recorder.skipped
    assert numbers(directory)[:total] == list(range(total))


def test_a_large_group_sends_its_records_once_a_second(new_run: Callable[..., RunDir]) -> None:
    """Its records are stored as they were sent; at once come only those that somebody looks at."""
    directory = new_run(world=65, nodes=2)
    with ranks(directory, 2) as group, zmq.Context() as context, relayed(directory):
        for rank in group:
            rank.meet(wire.TOPIC_BATCH)
            rank.fill()
            assert wire.TOPIC_STEPS not in rank.subscribed
        group[1].publish(wire.TOPIC_BATCH, steps(1, *range(10)), b"noise")
        until(lambda: numbers(directory, 1) == list(range(10)), "the second")
        with context.socket(zmq.SUB) as looking:
            looking.linger = 0
            looking.connect(directory.address("observer", "pub"))
            looking.subscribe(wire.topic_of(wire.TOPIC_STEPS, 1))
            group[1].meet(wire.TOPIC_STEPS)
            group[1].publish(wire.TOPIC_STEPS, steps(1, 10))
            heard: list[bytes] = []

            def has_heard() -> bool:
                while looking.poll(0):
                    heard.extend(looking.recv_multipart())
                return wire.encode(steps(1, 10)) in heard

            until(has_heard, "the records in sight")
        until(lambda: wire.TOPIC_STEPS not in group[1].hear(), "that nobody looks any more")
        assert wire.TOPIC_STEPS not in group[0].hear()
    assert numbers(directory, 1) == list(range(10))


class _Answered:
    """A socket with answers that wait in it."""

    def __init__(self, waiting: list[bytes]) -> None:
        self.waiting = waiting
        self.closed = False

    def recv(self, _: int) -> bytes:
        if not self.waiting:
            raise zmq.Again
        return self.waiting.pop(0)

    def send(self, *_: object) -> None: ...

    def connect(self, _: str) -> None: ...

    def close(self, linger: int = 0) -> None:
        self.closed = True


class _Taken:
    """Takes answers while there is room."""

    def __init__(self) -> None:
        self.room = True
        self.parts: list[bytes] = []
        self.ends: list[bytes | None] = []

    def has_room(self) -> bool:
        return self.room

    def take(self, payload: bytes) -> bool:
        self.parts.append(payload)
        return True

    def end(self, reply: bytes | None) -> None:
        self.ends.append(reply)


def test_a_fill_lasts_as_long_as_something_of_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that come in for 20 s in all are all taken; a rank that falls silent in the middle is given up."""
    now = 0.0
    socket, taken = _Answered([]), _Taken()
    monkeypatch.setattr(fills, "time", SimpleNamespace(monotonic=lambda: now))

    class Context:
        def socket(self, _: int) -> _Answered:
            return socket

    asking = Fills(Context(), 0, Elsewhere())  # type: ignore[arg-type]
    assert asking.ask(0, f"ipc://{tmp_path}/0.cmd", b"fill", None, taken)
    for number in range(5):
        now += 4.0
        socket.waiting.append(wire.encode(steps(0, number)))
        asking.take()
    assert len(taken.parts) == 5
    taken.room = False
    now += 30.0
    asking.take()
    assert asking.sockets() == []
    assert not socket.closed
    taken.room = True
    now += 0.1
    asking.take()
    assert (taken.ends, socket.closed) == ([], False)
    now += fills.FILL_S + 0.1
    asking.take()
    assert (taken.ends, socket.closed) == ([None], True)


def test_questions_of_onlookers_leave_room_for_the_observers_own(tmp_path: Path) -> None:
    """However many of them are under way and wait; those to a rank whose process is another are all given up."""

    class Context:
        def socket(self, _: int) -> _Answered:
            return _Answered([])

    asking = Fills(Context(), 0, Elsewhere())  # type: ignore[arg-type]
    address, onlookers = f"ipc://{tmp_path}/0.cmd", [_Taken() for _ in range(100)]
    for number, taken in enumerate(onlookers):
        assert asking.ask(number % 2, address, b"fill", b"%d" % (number % 4), taken)
    own = _Taken()
    assert asking.ask(0, address, b"fill", "judge", own)
    assert len(asking.sockets()) == fills.OTHERS_AT_ONCE + 1
    asking.forget(0, "judge")
    assert own.ends == [None]
    assert not any(taken.ends for taken in onlookers)
    asking.forget(0)
    assert [taken.ends for taken in onlookers] == [[None], []] * 50

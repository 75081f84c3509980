"""Two sockets to the observer of a run, whatever its size: subscriptions, questions, and how it is when it is gone."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import msgspec
import pytest
import zmq
from support.fakes.observers import Observer, connections, observed
from support.fakes.ranks import Rank
from support.harness import until
from support.locking import held

from ddptop.agent import wire
from ddptop.agent.observer.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.tui.link import look
from ddptop.tui.link.live import Link
from ddptop.tui.link.replay import SETTLED_S
from ddptop.tui.link.sockets import FILL_S, LEAST_RECORDS, MOST_ASKED, MOST_WATCHED
from ddptop.tui.link.source import frame_now
from ddptop.tui.model.history import history as history_module
from ddptop.tui.model.history.history import History

MANY = wire.EACH_RECORD + 2
S = 10**9


def run_of(name: str, world: int) -> Run:
    """Return the record of a run that was launched."""
    return Run(name, name, "toy.py", (), world, "gloo", "cpu", time.time_ns() - 3600 * S, True)


def beat(rank: int, number: int, age_s: float = 0.0, state: str = "running") -> wire.Beat:
    at = time.time_ns() - int(age_s * S)
    return wire.Beat(rank, at, state, "forward", number, at, number, generation=0)


def step(number: int) -> wire.Step:
    return wire.Step(number, number, time.time_ns(), S // 100, 0, S // 100, 0, 0, 0, 0, 1.0, 8)


def polling(observer: Observer, *links: Link) -> bool:
    """Let everybody do what is to be done; True, so that a condition may begin with it."""
    observer.turn()
    for link in links:
        link.poll()
    return True


def numbers(link: Link, rank: int) -> int:
    """Return up to which record a rank is known."""
    return link.store.ranks[rank]._seq


@pytest.mark.parametrize("world", [3, MANY])
def test_an_onlooker_has_two_sockets_of_the_run(world: int) -> None:
    """However many ranks there are, whatever is watched and asked: one connection to each of the observer's two."""
    with observed(run_of(f"two-{world}", world)) as observer, closing(Link(observer.directory, "test")) as link:
        address = observer.directory.address
        observer.ranks = (wire.Ranks(time.time_ns(), beats=tuple(beat(rank, 5) for rank in range(world))),)
        link.watch(frozenset({1}))

        def asked() -> bool:
            polling(observer, link)
            return bool(observer.asked)

        until(asked, "a question for earlier records")
        assert [connections(address("observer", kind)) for kind in ("pub", "cmd")] == [1, 1]
        assert not any(connections(address(rank, kind)) for rank in range(world) for kind in ("pub", "cmd"))


def test_of_a_large_group_only_records_in_sight_are_subscribed_to() -> None:
    """All ranks come together in one topic; the records of a rank only while it is watched, at most so many."""
    with observed(run_of("sight", MANY)) as observer, closing(Link(observer.directory, "test")) as link:
        always = {wire.TOPIC_RANKS, wire.TOPIC_EVENT, wire.TOPIC_RUN, wire.TOPIC_VERDICTS, wire.TOPIC_HOSTS}

        def topics(wanted: set[int]) -> Callable[[], bool]:
            def are_subscribed() -> bool:
                polling(observer, link)
                return observer.topics == always | {wire.topic_of(wire.TOPIC_STEPS, rank) for rank in wanted}

            return are_subscribed

        for watched, followed in (
            (set(), set()),
            ({5}, {5}),
            ({5, 6, MANY + 200}, {5, 6}),
            (set(range(MANY)), set(range(MOST_WATCHED))),
            (set(), set()),
        ):
            link.watch(frozenset(watched))
            until(topics(followed), f"the records of {len(followed)} ranks")
            assert link.store._watched == followed


def test_the_ranks_of_a_small_group_are_heard_together_where_their_observer_bundles() -> None:
    """Each observer is heard in its own way, as it tells: one that bundles, an older one, and one after the other."""
    with observed(run_of("together", 2)) as observer, closing(Link(observer.directory, "test")) as link:
        each = {wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_SUMMARY, wire.TOPIC_STEPS}
        for number, bundles in enumerate((False, True, False), start=1):
            wanted, left = ({wire.TOPIC_BUNDLE}, each) if bundles else (each, {wire.TOPIC_BUNDLE})
            observer.publish(wire.TOPIC_RANKS, wire.Ranks(1, bundles=bundles))

            def is_followed(topics: set[bytes] = wanted, others: set[bytes] = left) -> bool:
                polling(observer, link)
                return topics <= observer.topics and not others & observer.topics

            until(is_followed, f"the topics of an observer whose bundles are {bundles}")
            made, alive = wire.Steps(0, (step(number),)), beat(0, number)
            if bundles:
                observer.publish(wire.TOPIC_BUNDLE, wire.Bundle((made, alive)))
            else:
                observer.publish(wire.topic_of(wire.TOPIC_STEPS, 0), made)
                observer.publish(wire.topic_of(wire.TOPIC_BEAT, 0), alive)
            until(lambda: polling(observer, link) and numbers(link, 0) == number, "the step")  # noqa: B023 # used at once
            until(lambda: polling(observer, link) and link.store.ranks[0].beat == alive, "the beat")  # noqa: B023


def test_scrolling_past_asks_for_nothing() -> None:
    """A rank has to stay in sight before its records are subscribed to."""
    with observed(run_of("past", MANY)) as observer:
        now = 0.0
        with closing(Link(observer.directory, "test", clock=lambda: now)) as link:
            for rank in (5, 6, 7):
                link.watch(frozenset({rank}))
                now += 0.1
                link._sockets.follow_watched()
            assert link._sockets._watched == set()


def test_the_first_look_knows_what_the_observer_knows() -> None:
    """One greeting is enough: the verdict, who runs, and who has been silent for long; nobody is waited for."""
    with observed(run_of("first", 3)) as observer, closing(Link(observer.directory, "test")) as link:
        observer.ranks = (wire.Ranks(time.time_ns(), beats=(beat(0, 9), beat(1, 7, age_s=60.0))),)
        observer.verdicts = wire.Verdicts(2, (wire.Verdict(4, "slow_rank", "rank 0 holds the group back", 1, rank=0),))
        link.poll()
        assert not link.complete

        def complete() -> bool:
            polling(observer, link)
            # Three ranks with earlier records: nobody has any.
            while observer.asked:
                sender, (rank, payload) = observer.asked.pop()
                observer.answer(sender, int(rank), wire.Reply(wire.read_command(payload).id, True))
            return link.complete

        until(complete, "the greeting")
        (frame,) = look.heard([link])
        assert [rank.state for rank in frame.ranks][:2] == ["running", "silent"]
        assert [rank.step for rank in frame.ranks] == [9, 7, None]
        assert frame.verdict is not None
        assert frame.verdict.text == "rank 0 holds the group back"


def test_the_numbers_stay_until_the_run_has_ended() -> None:
    """Between the ranks' end and their launcher's the observer alone knows them: a first look waits for it."""
    with observed(run_of("numbers", 2)) as observer:
        for rank, member in observer.directory.members().items():
            ended = rundir.Ended(time.time_ns(), 0, step=9)
            gone = rundir.Process(2**22 + 1, 1.0)
            observer.directory.write_member(msgspec.structs.replace(member, process=gone, ended=ended))
            told = wire.Summary(rank, 1, time.time_ns(), 9, 9, 9, S // 100, 0, S // 100, 0, 0, 0, 0, loss=0.25)
            observer.ranks = (*observer.ranks, wire.Ranks(time.time_ns(), summaries=(told,)))
        with closing(Link(observer.directory, "test")) as link:
            until(lambda: polling(observer, link) and link.complete, "the greeting")
            found = frame_now(link)
            assert (found.state, found.step, found.loss) == ("ending", 9, 0.25)
            assert {(rank.state, rank.step, rank.loss) for rank in found.ranks} == {("finished", 9, 0.25)}
        # The observer has written down the last steps and the end, and has left before it told of them.
        last = tuple(msgspec.structs.replace(step(number), loss=0.125) for number in range(1, 11))
        with closing(Link(observer.directory, "test")) as link:
            link.poll()
            record(observer, wire.Steps(0, last), wire.Steps(1, last))
            observer.directory.update(state="finished", exit_code=0, ended_at_ns=time.time_ns())
            link._look_due = 0.0
            until(lambda: polling(observer, link) and link.complete, "the record")
            found = frame_now(link)
            assert (found.state, found.loss) == ("finished", 0.125)


def test_ranks_whose_observer_is_gone_are_heard_themselves() -> None:
    """A first look tells how they are now, not how they were when it was recorded last; then the next one tells."""
    with observed(run_of("alone", 2)) as observer, zmq.Context() as context:
        ranks = [Rank(context, observer.directory, rank) for rank in range(2)]
        observer.directory.update(observer=rundir.Process(2**22 + 1, 1.0), created_at_ns=time.time_ns(), launched=False)
        record(observer, *(beat(rank, 3, age_s=30.0) for rank in range(2)))
        observer.close()
        with closing(Link(observer.directory, "test", onlooker=True)) as link:
            until(lambda: (link.poll(), all(rank.hear() for rank in ranks))[1], "a subscriber")  # type: ignore[func-returns-value]
            for rank in ranks:
                rank.publish(wire.TOPIC_BEAT, beat(rank.rank, 7, state="paused"))

            def told() -> set[tuple[str, int | None]]:
                link.poll()
                return {(rank.state, rank.step) for rank in frame_now(link).ranks}

            until(lambda: told() == {("paused", 7)}, "both ranks")
            assert frame_now(link).state == "paused"
            assert not frame_now(link).supervised
            observer.open()
            until(lambda: polling(observer, link) and link._sockets.greeted, "the next observer")
            until(lambda: (link.poll(), not any(rank.hear() for rank in ranks))[1], "nobody listens there")  # type: ignore[func-returns-value]
        for rank in ranks:
            rank.close()


def test_two_onlookers_say_the_same() -> None:
    """One who was there from the beginning and one who comes show the same verdict and the same states."""
    with observed(run_of("same", MANY)) as observer, closing(Link(observer.directory, "one")) as first:
        observer.ranks = (wire.Ranks(time.time_ns(), beats=tuple(beat(rank, 9) for rank in range(MANY))),)
        until(lambda: polling(observer, first) and first.complete, "the first onlooker")
        verdict = wire.Verdict(4, "slow_rank", "rank 7 holds the group back", 3 * S, rank=7, share=0.2)
        observer.verdicts = wire.Verdicts(time.time_ns(), (verdict,))
        observer.publish(wire.TOPIC_VERDICTS, observer.verdicts)
        with closing(Link(observer.directory, "two")) as second:
            until(lambda: polling(observer, first, second) and second.complete, "the second onlooker")
            until(lambda: polling(observer, first) and frame_now(first).verdict, "the verdict")
            frames = [frame_now(link) for link in (first, second)]
        assert frames[0].verdict == frames[1].verdict
        assert frames[0].values("state") == frames[1].values("state")
        assert [event.text for event in frames[0].events] == [event.text for event in frames[1].events]


def test_earlier_records_of_many_ranks_come_by_one_socket() -> None:
    """So many are asked at a time, the answers may be mixed, and a rank for which the observer answers is given up."""
    world = MOST_ASKED + 4
    with observed(run_of("fills", world)) as observer, closing(Link(observer.directory, "test")) as link:
        observer.ranks = (wire.Ranks(time.time_ns(), beats=tuple(beat(rank, 3) for rank in range(world))),)

        def asked(most: int) -> bool:
            polling(observer, link)
            return len(observer.asked) >= most

        until(lambda: asked(MOST_ASKED), "the first questions")
        for _ in range(5):
            polling(observer, link)
        assert len(observer.asked) == MOST_ASKED
        while observer.asked:
            batch, observer.asked = observer.asked, []
            commands = {int(rank): (sender, wire.read_command(payload)) for sender, (rank, payload) in batch}
            for rank, (_, command) in commands.items():
                assert isinstance(command, wire.Fill), rank
                assert command.limit >= LEAST_RECORDS
            for part in ((1, 2), (3,)):
                for rank, (sender, _) in commands.items():
                    if rank != 1:
                        observer.answer(sender, rank, wire.Steps(rank, tuple(map(step, part))))
            for rank, (sender, command) in commands.items():
                said = wire.Reply(command.id, rank != 1, "rank 1 does not answer" if rank == 1 else "")
                observer.answer(sender, rank, said)
            until(lambda: (polling(observer, link) and observer.asked) or not link._sockets.fills, "the next questions")
        assert [numbers(link, rank) for rank in range(world)] == [3, 0] + [3] * (world - 2)


def test_an_answer_that_is_none_is_counted() -> None:
    """Frames that are too many, a number that is none, records of another rank: nothing of it is taken in."""
    with observed(run_of("wrong", 2)) as observer, closing(Link(observer.directory, "test")) as link:
        until(lambda: polling(observer, link) and observer.asked, "a question")
        sender = observer.asked[0][0]
        for frames in ([b"0"], [b"0", b"1", b"2"], [b"x", b"\x90"], [b"-1", b"\x90"], [b"0", b"\xff"]):
            observer.cmd.send_multipart([sender, *frames])
        observer.answer(sender, 0, wire.Steps(1, (step(1),)))
        observer.answer(sender, 0, wire.Steps(0, (step(1),)))
        until(lambda: polling(observer, link) and numbers(link, 0) == 1, "the records that are in order")
        assert numbers(link, 1) == 0
        assert frame_now(link).refused >= 3


def test_what_a_plot_shows_is_asked_of_the_observer() -> None:
    """Its answers come by the same socket as records; the numbers of an answer are there to be read."""
    with observed(run_of("plots", 2)) as observer, closing(Link(observer.directory, "t", looks_back=True)) as link:
        history = link.history
        assert history is not None

        def answered() -> bool:
            polling(observer, link)
            for sender, frames in observer.asked:
                command = wire.read_command(frames[-1])
                if isinstance(command, wire.History):
                    assert len(frames) == 1, "it is for the observer itself"
                    for answer in (wire.Extent(command.id, 1, 120, 120), wire.Reply(command.id, True)):
                        observer.cmd.send_multipart([sender, wire.encode(answer)])
            observer.asked.clear()
            return history.by_step.last == 120

        until(answered, "the extent of the history")
        assert [connections(observer.directory.address("observer", kind)) for kind in ("pub", "cmd")] == [1, 1]


def test_the_history_is_asked_for_with_the_connection() -> None:
    """The first question waits neither for a word of the observer nor for the first look, nor its answer for a tick."""
    with observed(run_of("first", 2)) as observer, closing(Link(observer.directory, "t", looks_back=True)) as link:
        # Nobody has polled, and the observer has said nothing.
        assert observer.cmd.poll(60_000)
        sender, payload = observer.cmd.recv_multipart()
        query = wire.read_command(payload)
        assert isinstance(query, wire.History)
        assert query.metric == "loss"
        for answer in (wire.Extent(query.id, 1, 120, 120), wire.Reply(query.id, True)):
            observer.cmd.send_multipart([sender, wire.encode(answer)])
        history = link.history
        assert history is not None
        until(lambda: polling(observer, link) and len(history._early) == 2, "the answer")
        assert not history.begun
        link.frame()
        link.poll()
        assert history.complete
        assert history.by_step.last == 120
        questions = [wire.read_command(frames[-1]) for _, frames in observer.asked]
        assert not [each for each in questions if isinstance(each, wire.History)], "it is asked once"


def test_answers_wait_for_the_first_look_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer that sends more than there is room for is read at once."""
    monkeypatch.setattr(history_module, "EARLY_BYTES", 100)
    history = History(2)
    query = history.first_question()
    for size in (60, 40):
        history.take_answer(wire.Extent(query.id, 1, 120, 120), size)
        assert not history.begun
    history.take_answer(wire.Reply(query.id, True), 1)
    assert history.begun
    assert history.by_step.last == 120


def test_while_the_observer_is_gone_nothing_is_said_of_the_ranks() -> None:
    """Their states stay and are told as of then; nobody is called silent; who comes in its place is heard."""
    with observed(run_of("gone", 2)) as observer, closing(Link(observer.directory, "test")) as link:
        observer.ranks = (wire.Ranks(time.time_ns(), beats=(beat(0, 9), beat(1, 9))),)
        until(lambda: polling(observer, link) and frame_now(link).step == 9, "the ranks")
        observer.close()
        link.advance(time.time() + 60)
        frame = link.frame()
        assert [rank.state for rank in frame.ranks] == ["running", "running"]
        assert frame.unobserved_s == pytest.approx(60, abs=30)
        assert not any("silent" in event.text for event in frame.events)
        observer.open()
        observer.ranks = (wire.Ranks(time.time_ns(), beats=(beat(0, 12), beat(1, 12, age_s=30.0))),)
        until(lambda: polling(observer, link) and frame_now(link).ranks[0].step == 12, "the next observer")
        assert frame_now(link).unobserved_s is None


def record(observer: Observer, *messages: wire.Telemetry) -> None:
    """Write messages into the file of the run, as its recorder does."""
    connection = recording.open_file(observer.directory.database)
    with connection:
        for message in messages:
            connection.execute(*recording.row(message, wire.encode(message)))
    connection.close()


def test_events_that_nobody_heard_are_read_in_the_record_soon_after() -> None:
    """What happened just before the attach, or between two observers, is told, each event once and in its place."""
    with observed(run_of("missed", 1)) as observer:
        now, began = 0.0, time.time_ns()
        heard, before, between = (wire.Event(began + at * S, f"event {at}", None, "info") for at in (3, 2, 5))
        record(observer, wire.Event(began + S, "event 1", None, "info"))
        with closing(Link(observer.directory, "test", clock=lambda: now)) as link:

            def told() -> list[str]:
                nonlocal now
                now += 0.001
                polling(observer, link)
                return [event.text for event in frame_now(link).events if event.text.startswith("event")]

            until(lambda: told() == ["event 1"] and observer.topics, "what was recorded at the attach")
            observer.publish(wire.TOPIC_EVENT, heard)
            until(lambda: told() == ["event 1", "event 3"], "what is heard")
            record(observer, before, heard)
            now += SETTLED_S
            until(lambda: told() == ["event 1", "event 2", "event 3"], "what was recorded after the attach")
            record(observer, between)
            now += SETTLED_S
            assert told() == ["event 1", "event 2", "event 3"]
            observer.directory.update(observer=rundir.identify(os.getppid()))
            now += SETTLED_S
            told()
            now += SETTLED_S
            assert told() == ["event 1", "event 2", "event 3", "event 5"]


@contextlib.contextmanager
def name_taken(directory: rundir.RunDir) -> Iterator[None]:
    """Let another run have the name of this one, which was moved away."""
    run, rest = directory.read(), directory.path.with_name("moved-away")
    directory.path.rename(rest)
    other = rundir.create(msgspec.structs.replace(run, run_id="other"))
    try:
        yield
    finally:
        shutil.rmtree(other.path)
        rest.rename(directory.path)


def test_nothing_is_taken_in_of_another_run_that_took_the_name() -> None:
    """What comes from its observer is let go of before anybody looks at the record, and nobody listens any more."""
    with observed(run_of("taken", 1)) as observer, closing(Link(observer.directory, "test", looks_back=True)) as link:
        addresses = [observer.directory.address("observer", kind) for kind in ("pub", "cmd")]
        observer.ranks = (wire.Ranks(time.time_ns(), beats=(beat(0, 4),)),)
        until(lambda: polling(observer, link) and frame_now(link).step == 4, "the run")
        assert [connections(address) for address in addresses] == [1, 1]
        with name_taken(observer.directory):
            # This observer goes on at its addresses in the place of the one of the other run.
            observer.publish(wire.TOPIC_RANKS, wire.Ranks(time.time_ns(), beats=(beat(0, 900),)))
            wrong = wire.Verdict(1, "slow_rank", "rank 0 of another run", 1, rank=0)
            observer.publish(wire.TOPIC_VERDICTS, wire.Verdicts(time.time_ns(), (wrong,)))
            observer.publish(wire.TOPIC_EVENT, wire.Event(time.time_ns(), "of another run", None, "info"))
            assert link._sockets._sub is not None
            until(partial(link._sockets._sub.socket.poll, 0), "what it sends")
            # As between two looks at the record.
            link._sockets.drain(math.inf)
            for _ in range(3):
                link.poll()
                link.poll_history()
            frame = frame_now(link)
            until(lambda: [connections(address) for address in addresses] == [0, 0], "nobody listens")
    assert (frame.step, frame.state, frame.verdict) == (4, "lost", None)
    assert "of another run" not in [event.text for event in frame.events]


def test_what_was_asked_of_a_lost_observer_is_asked_again() -> None:
    """A gap is given up only where one observer was there all the time, not where it or the next one was heard."""
    with observed(run_of("again", 1)) as observer:
        now = 0.0
        with closing(Link(observer.directory, "test", clock=lambda: now)) as link:
            observer.ranks = (wire.Ranks(time.time_ns(), beats=(beat(0, 3),)),)

            def asked() -> bool:
                nonlocal now
                now += 0.001
                polling(observer, link)
                return bool(observer.asked)

            def heard(number: int) -> bool:
                observer.publish(wire.topic_of(wire.TOPIC_BEAT, 0), beat(0, number))
                asked()
                return frame_now(link).ranks[0].step == number

            until(asked, "a question")
            observer.asked.clear()
            until(lambda: heard(4), "the observer after it was asked")
            observer.close()
            observer.open()
            now += 1
            until(lambda: heard(5), "the next observer")
            now += FILL_S
            until(lambda: heard(6) and observer.asked, "the same question to the next observer")
            sender, (_, payload) = observer.asked[-1]
            observer.answer(sender, 0, wire.Steps(0, tuple(step(number) for number in range(1, 7))))
            observer.answer(sender, 0, wire.Reply(wire.read_command(payload).id, True))
            until(lambda: (asked(), numbers(link, 0) == 6)[1], "the records")
            assert link.store.ranks[0].missed == 0


def test_an_observer_that_sends_too_much_is_cut_off_and_heard_again() -> None:
    """A message above the bound ends the connection; what is in order later is heard on another one."""
    with observed(run_of("large", 2)) as observer, closing(Link(observer.directory, "test")) as link:

        def heard(number: int) -> bool:
            observer.turn()
            observer.publish(wire.topic_of(wire.TOPIC_BEAT, 0), beat(0, number))
            link.poll()
            return frame_now(link).ranks[0].step == number

        until(lambda: heard(1), "the observer")
        observer.publish(wire.TOPIC_EVENT, bytes(wire.MAX_MESSAGE_BYTES))
        until(lambda: heard(2), "what follows one that is just within the bound")
        observer.topics.clear()
        observer.publish(wire.TOPIC_EVENT, bytes(wire.MAX_MESSAGE_BYTES + 1))
        until(lambda: heard(3) and wire.TOPIC_RUN in observer.topics, "another connection")


def test_a_run_that_nobody_observes_yet_is_starting() -> None:
    """Ranks that have come before their observer are not silent: nobody could hear them."""
    with observed(run_of("early", 2)) as observer:
        observer.close()
        with closing(Link(observer.directory, "test")) as link:
            link.poll()
            link.advance(time.time() + 8)
            frame = link.frame()
            assert [rank.state for rank in frame.ranks] == ["starting", "starting"]
            observer.open()
            observer.ranks = (wire.Ranks(time.time_ns(), beats=(beat(0, 2),)),)
            until(lambda: polling(observer, link) and frame_now(link).ranks[0].state == "running", "the first rank")


def test_who_is_told_to_ask_again_does() -> None:
    """The observer has too many questions: nothing is given up, and the records come with the next answer."""
    with observed(run_of("later", 1)) as observer, closing(Link(observer.directory, "test")) as link:
        until(lambda: polling(observer, link) and observer.asked, "a question")
        ((sender, (_, payload)),) = observer.asked
        observer.asked.clear()
        busy = wire.Reply(wire.read_command(payload).id, False, "too many questions wait; ask again", pending=True)
        observer.answer(sender, 0, busy)
        until(lambda: polling(observer, link) and observer.asked, "the same question again")
        ((sender, (_, payload)),) = observer.asked
        observer.answer(sender, 0, wire.Steps(0, (step(1),)), wire.Reply(wire.read_command(payload).id, True))
        until(lambda: polling(observer, link) and numbers(link, 0) == 1, "the records")
        assert frame_now(link).ranks[0].missed == 0


def test_events_are_read_once_the_file_is_there_and_free() -> None:
    """A dashboard may come before the record; another process that holds the file costs a second attempt, no wait."""
    with observed(run_of("locked", 1)) as observer:
        now, database = 0.0, observer.directory.database
        with closing(Link(observer.directory, "test", clock=lambda: now)) as link:

            def told() -> list[str]:
                nonlocal now
                now += SETTLED_S
                polling(observer, link)
                return [event.text for event in frame_now(link).events if event.text.startswith("event")]

            polling(observer, link)
            record(observer, wire.Event(time.time_ns(), "event 1", None, "info"))
            with held(database):
                for _ in range(3):
                    assert told() == []
            until(lambda: told() == ["event 1"], "what was recorded")

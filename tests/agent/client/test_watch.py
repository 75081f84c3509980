"""A run as its observer tells of it: subscriptions, questions, hostile messages, and an observer that is not heard."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TypeVar

import msgspec
import pytest
from support.fakes.observers import Observer, all_ranks, connections, observed
from support.harness import until
from support.values.recordings import record_frames
from support.values.watches import watched

from ddptop.agent import wire
from ddptop.agent.client import look
from ddptop.agent.client.frame import whole
from ddptop.agent.client.sources.subscription import MOST_WATCHED, Subscription
from ddptop.agent.client.watch import START_S, Watch
from ddptop.agent.end import survey
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir

Asked = TypeVar("Asked", wire.History, wire.WholeSteps)
MANY = wire.EACH_RECORD + 2
S = 10**9
NOBODY = rundir.Process(2**22 + 1, 1.0)


def run_of(name: str, world: int) -> Run:
    """Return the record of a run that was launched an hour ago."""
    return Run(name, name, "toy.py", (), world, "gloo", "cpu", time.time_ns() - 3600 * S, True, state="running")


def beat(rank: int, number: int, age_s: float = 0.0, state: str = "running") -> wire.Beat:
    at = time.time_ns() - int(age_s * S)
    return wire.Beat(rank, at, state, "forward", number, at, number, generation=0)


def step(number: int, loss: float = 1.0) -> wire.Step:
    return wire.Step(number, number, time.time_ns(), S // 100, 0, S // 100, 0, 0, 0, 0, loss, 8)


def polling(observer: Observer, *links: Watch) -> bool:
    """Let everybody do what is to be done; True, so that a condition may begin with it."""
    observer.turn()
    for link in links:
        link.poll()
    return True


def heard(observer: Observer, link: Watch) -> None:
    """Wait until all ranks were told of."""
    until(lambda: polling(observer, link) and link.complete, "the frames of the observer")


def told(observer: Observer) -> Subscription:
    """Return a subscription to an observer, without a history."""
    return Subscription(observer.directory, observer.directory.read().world, None, lambda: True)


def record(observer: Observer, *heard: wire.Telemetry, age_s: float = 0.0) -> None:
    """Write into the file of a run how it was some time ago, by what was heard and is told to nobody."""
    for message in heard:
        observer.store.apply(message, time.time())
    observer.store.advance(time.time())
    run, ranks = observer.framer.frame(), all_ranks(observer.framer)
    record_frames(observer.directory, msgspec.structs.replace(run, at=run.at - age_s), ranks)


@pytest.mark.parametrize("world", [3, MANY])
def test_a_first_look_is_whole_with_the_first_frame_of_the_run(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll that takes it in waits for nobody else, looks no process up, and shows what any other onlooker sees."""
    with observed(run_of(f"first-{world}", world)) as observer, contextlib.ExitStack() as stack:
        beats = [beat(rank, 9) for rank in range(world - 2)]
        verdict = wire.Verdict(4, "slow_rank", "rank 0 holds the group back", 1, rank=0)
        observer.tell(*beats, beat(world - 2, 7, state="paused"), verdicts=[verdict])
        links = [stack.enter_context(watched(observer.directory, clock=lambda: 0.0)) for who in ("one", "two")]
        for link in links:
            monkeypatch.setattr(link, "_meet", None)
            assert not link.complete
            subscription = link._observed
            assert subscription is not None
            until(lambda: polling(observer, link) and subscription.run is not None, "the frame of the run")  # noqa: B023
            # Not `complete`, which is over where this process stands for two seconds.
            assert subscription.is_whole

        def is_shown() -> bool:
            polling(observer, *links)
            made = whole(observer.framer.frame(), all_ranks(observer.framer))
            return all(link.frame() == made for link in links)

        until(is_shown, "the same frame, made for the second onlooker")
        first = links[0].frame()
        assert [rank.step for rank in first.ranks] == [9] * (world - 2) + [7, None]
        assert first.verdict == verdict
        # As the verbs look at a run.
        for link in links:
            assert look.heard([link])[0].ranks == link.frame().ranks


@pytest.mark.parametrize("world", [3, MANY])
def test_an_onlooker_has_two_sockets_of_the_run(world: int) -> None:
    """However many ranks there are, whatever is watched and asked: one connection to each of the observer's two."""
    with (
        observed(run_of(f"two-{world}", world)) as observer,
        watched(observer.directory, looks_back=True) as link,
    ):
        address = observer.directory.address
        link.watch(frozenset({1}))
        until(lambda: polling(observer, link) and observer.asked, "a question about the history")
        assert [connections(address("observer", kind)) for kind in ("pub", "cmd")] == [1, 1]
        assert not any(connections(address(rank, kind)) for rank in range(world) for kind in ("pub", "cmd"))


@pytest.mark.parametrize("looks_back", [False, True])
def test_of_a_large_group_only_ranks_in_sight_are_subscribed_to(looks_back: bool) -> None:
    """The rows of all come anyway, the frame of one while it is in sight, and no record of a step at any time."""
    with (
        observed(run_of("sight", MANY)) as observer,
        watched(observer.directory, looks_back=looks_back) as link,
    ):

        def are_subscribed(wanted: set[int]) -> bool:
            polling(observer, link)
            topics = {wire.topic_of(wire.TOPIC_RANK, rank) for rank in wanted}
            return observer.topics == {wire.TOPIC_RANKS, wire.TOPIC_RUN} | topics

        for ranks, followed in (
            (set(), set()),
            ({5}, {5}),
            ({5, 6, MANY + 200}, {5, 6}),
            (set(range(MANY)), set(range(MOST_WATCHED))),
            (set(), set()),
        ):
            link.watch(frozenset(ranks))
            until(partial(are_subscribed, followed), f"{len(followed)} ranks")


def test_a_rank_in_sight_is_shown_whole_and_the_others_by_their_rows() -> None:
    """Rows have no curve of losses: one that comes for a rank in sight does not take its curve away."""
    with observed(run_of("rows", MANY)) as observer, watched(observer.directory) as link:
        heard(observer, link)
        link.watch(frozenset({5}))
        topic = wire.topic_of(wire.TOPIC_RANK, 5)
        until(lambda: polling(observer, link) and topic in observer.topics, "the rank in sight")
        one = msgspec.structs.replace(all_ranks(observer.framer)[5], step=8, losses=(2.0, 1.0))
        observer.publish(topic, one)
        rows = [msgspec.structs.replace(all_ranks(observer.framer)[rank], step=9) for rank in (5, 6)]
        observer.publish(wire.TOPIC_RANKS, wire.Rows(1.0, tuple(rows)))
        observer.publish(wire.TOPIC_RUN, observer.framer.frame())
        until(lambda: polling(observer, link) and link.frame().ranks[6].step == 9, "the rows")
        assert link.frame().ranks[5] == one


def test_scrolling_past_asks_for_nothing() -> None:
    """A rank has to stay in sight before it is subscribed to."""
    with observed(run_of("past", MANY)) as observer:
        now = 0.0
        with watched(observer.directory, looks_back=True, clock=lambda: now) as link:
            for rank in (5, 6, 7):
                link.watch(frozenset({rank}))
                now += 0.1
                link.poll()
            until(lambda: observer.turn() and wire.TOPIC_RUN in observer.topics, "the onlooker")
            assert observer.topics <= {wire.TOPIC_RANKS, wire.TOPIC_RUN}
            assert [len(frames) for _, frames in observer.asked] in ([], [1]), "at most what a plot shows at first"


def asked_of(observer: Observer, kind: type[Asked]) -> list[tuple[bytes, Asked]]:
    """Return the questions of one kind that have come, each with its sender."""
    found = []
    for sender, (payload,) in observer.asked:
        command = wire.read_command(payload)
        if isinstance(command, kind):
            found.append((sender, command))
    return found


def test_the_timeline_asks_for_the_steps_in_sight() -> None:
    """And the next observer again; answers that cannot be read count for nothing, and are counted."""
    with (
        observed(run_of("whole", 2)) as observer,
        watched(observer.directory, looks_back=True) as link,
    ):
        history = link.history
        assert history is not None
        heard(observer, link)

        def is_asked() -> bool:
            history.steps.numbers({0, 1})
            return polling(observer, link) and bool(asked_of(observer, wire.WholeSteps))

        until(is_asked, "the question")
        ((sender, query), *_) = asked_of(observer, wire.WholeSteps)
        assert query.ranks == (0, 1)
        odd = wire.AlignedStep(0, step(1), 1, splits=(None,))
        for payload in (b"\xff", wire.encode(wire.AlignedSteps(query.id, (odd,)))):
            observer.cmd.send_multipart([sender, payload])
        observer.cmd.send_multipart([sender, b"0", wire.encode(wire.Reply(query.id, True))])
        told = wire.AlignedSteps(query.id, tuple(wire.AlignedStep(rank, step(3), 1) for rank in (0, 1)))
        for answer in (wire.KeptSteps(query.id, (2, 3)), told, wire.Reply(query.id, True)):
            observer.cmd.send_multipart([sender, wire.encode(answer)])
        until(lambda: is_asked() and history.steps.step({0, 1}, 3), "the step")
        assert history.steps.numbers({0, 1}) == (2, 3)
        assert link.frame().refused == 3
        observer.close()
        observer.open()
        observer.asked.clear()
        until(is_asked, "the question to the next observer")


def test_what_a_plot_shows_is_asked_with_the_connection_and_once() -> None:
    """The question waits neither for a word of the observer nor for the first look, nor its answer for a tick."""
    with observed(run_of("first", 2)) as observer, watched(observer.directory, looks_back=True) as link:
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
        until(lambda: polling(observer, link) and history.complete, "the answer")
        assert history.by_step.last == 120
        assert not [each for _, each in asked_of(observer, wire.History) if each.metric], "it is asked once"


def test_another_users_run_is_looked_at_and_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not its user subscribes, and sends no question, whatever is watched."""
    with observed(run_of("theirs", 2)) as observer:
        theirs = RunDir(observer.directory.path, os.getuid())
        # Seen from another user's process the sockets stay this user's.
        monkeypatch.setattr(os, "getuid", lambda: theirs.owner + 1)
        with watched(theirs, onlooker=True, looks_back=True) as link:
            heard(observer, link)
            frame = link.frame()
            assert frame.history is not None
            frame.history.steps.numbers({0, 1})
            polling(observer, link)
            assert connections(theirs.address("observer", "cmd")) == 0
            assert observer.asked == []


def silence(link: Watch, seconds: float) -> None:
    """Let the observer be silent for so long, and the link take note of that."""

    def is_missed() -> bool:
        # What it has sent before may still arrive.
        link._last_heard.at = time.time() - seconds
        link._look_due = 0.0
        link.poll()
        return link._last_heard.missed_s(time.time()) is not None and link.complete

    until(is_missed, "the silence")


def test_while_the_observer_is_gone_nothing_is_said_of_the_ranks() -> None:
    """Their states and steps stay and are told as of then, with its age; nobody is called silent; who comes in its
    place is heard, and that one's silence is told as well.
    """
    with observed(run_of("gone", 2)) as observer, watched(observer.directory) as link:
        for number in (9, 12):
            observer.tell(beat(0, number), beat(1, number))
            until(lambda: polling(observer, link) and link.frame().step == number, "the ranks")  # noqa: B023
            assert link.frame().unobserved_s is None
            observer.close()
            silence(link, 60)
            frame = link.frame()
            assert [(rank.state, rank.step) for rank in frame.ranks] == [("running", number)] * 2
            assert frame.unobserved_s == pytest.approx(60, abs=30)
            assert not any("silent" in event.text for event in frame.events)
            observer.open()


@pytest.mark.parametrize("observer_is", ["killed", "frozen"])
def test_who_comes_while_no_observer_answers_sees_the_ranks_as_they_were_recorded(observer_is: str) -> None:
    """As of then, with the age of that, also at the first look; the next observer tells how they are."""
    with observed(run_of(f"alone-{observer_is}", 2)) as observer:
        record(observer, *(beat(rank, 3) for rank in range(2)), age_s=30)
        observer.close()
        if observer_is == "killed":
            observer.directory.update(observer=NOBODY, launched=False)
        now = 0.0
        with watched(observer.directory, clock=lambda: now) as link:
            link._meet = survey.look

            def is_shown() -> bool:
                nonlocal now
                now += 0.25
                link.poll()
                return [(rank.state, rank.step) for rank in link.frame().ranks] == [("running", 3)] * 2

            until(is_shown, "the record")
            frame = link.frame()
            # Another observer may be about to come in the place of one that is gone.
            assert link.complete == (observer_is == "frozen")
            assert frame.supervised == (observer_is == "frozen")
            assert frame.unobserved_s == pytest.approx(30, abs=20)
            observer.open()
            observer.tell(beat(0, 5, state="paused"), beat(1, 5, state="paused"))
            until(lambda: polling(observer, link) and link.frame().state == "paused", "the next observer")
            assert link.frame().unobserved_s is None


def test_a_run_that_nobody_observes_yet_is_starting() -> None:
    """Ranks that have come before their observer are not silent: nobody could hear them; nor is it missed so soon."""
    run = msgspec.structs.replace(run_of("early", 2), state="starting", created_at_ns=time.time_ns())
    with observed(run) as observer:
        observer.close()
        now = 0.0
        with watched(observer.directory, clock=lambda: now) as link:
            now = START_S - 1
            link.poll()
            frame = link.frame()
            assert ([rank.state for rank in frame.ranks], frame.unobserved_s) == (["starting"] * 2, None)
            observer.open()
            observer.tell(beat(0, 2))
            until(lambda: polling(observer, link) and link.frame().ranks[0].state == "running", "the first rank")


def test_the_numbers_stay_until_the_run_has_ended() -> None:
    """Between the ranks' end and their launcher's the observer alone knows them; then the record does."""
    with observed(run_of("numbers", 2)) as observer:
        for member in observer.directory.members().values():
            ended = rundir.Ended(time.time_ns(), 0, step=9)
            observer.directory.write_member(msgspec.structs.replace(member, process=NOBODY, ended=ended))
        observer.tell(*(wire.Steps(rank, (step(9, 0.25),)) for rank in range(2)))
        with watched(observer.directory) as link:
            heard(observer, link)
            found = link.frame()
            assert {(rank.state, rank.step, rank.loss) for rank in found.ranks} == {("finished", 9, 0.25)}
            # The observer has written down the last steps and the end, and has left before it told of them.
            observer.close()
            record(observer, *(wire.Steps(rank, (step(10, 0.125),)) for rank in range(2)))
            observer.directory.update(state="finished", exit_code=0, ended_at_ns=time.time_ns())
            link._look_due = 0.0
            link.poll()
            assert link.complete
            found = link.frame()
            assert (found.state, found.loss, found.unobserved_s) == ("finished", 0.125, None)


@contextlib.contextmanager
def name_taken(directory: RunDir) -> Iterator[None]:
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
    with observed(run_of("taken", 1)) as observer, watched(observer.directory, looks_back=True) as link:
        addresses = [observer.directory.address("observer", kind) for kind in ("pub", "cmd")]
        observer.tell(beat(0, 4))
        heard(observer, link)
        assert [connections(address) for address in addresses] == [1, 1]
        with name_taken(observer.directory):
            # This observer goes on at its addresses in the place of the one of the other run.
            wrong = wire.Verdict(1, "slow_rank", "rank 0 of another run", 1, rank=0)
            observer.tell(beat(0, 900), verdicts=[wrong])
            assert link._observed is not None
            assert link._observed._sub is not None
            until(partial(link._observed._sub.socket.poll, 0), "what it sends")
            # As between two looks at the record.
            link._observed.drain(math.inf)
            for _ in range(3):
                link.poll()
                link.poll_history()
            frame = link.frame()
            until(lambda: [connections(address) for address in addresses] == [0, 0], "nobody listens")
    assert (frame.step, frame.state, frame.verdict) == (4, "lost", None)


def test_a_message_that_cannot_be_is_refused_and_counted() -> None:
    """Garbage, other messages, ranks that there are not and a run of another size change nothing."""
    with observed(run_of("wrong", 2)) as observer, closing(told(observer)) as subscription:

        def drained(condition: Callable[[], object]) -> None:
            until(lambda: (observer.turn(), subscription.drain(math.inf), condition())[-1], "the messages")

        # Whoever subscribes is told all: what is told after the last subscription is the last message in order.
        drained(lambda: subscription.is_whole and len(observer.topics) == 2)
        observer.tell(beat(0, 4), beat(1, 4))
        drained(lambda: subscription.run is not None and subscription.run.step == 4)
        run, ranks = subscription.run, dict(subscription.ranks)
        assert run is not None
        stranger = msgspec.structs.replace(ranks[1], rank=2)
        wrong: list[tuple[bytes, wire.RankFrame | wire.RunFrame | wire.Rows | wire.Telemetry | bytes]] = [
            (wire.TOPIC_RUN, b"\xff"),
            (wire.TOPIC_RUN, beat(0, 9)),
            (wire.TOPIC_RUN, msgspec.structs.replace(run, world=3)),
            (wire.topic_of(wire.TOPIC_RANK, 1), stranger),
            (wire.topic_of(wire.TOPIC_RANK, 1), wire.Rows(1.0, (stranger,))),
        ]
        for topic, message in wrong:
            observer.publish(topic, message)
        observer.pub.send_multipart([wire.TOPIC_RUN])
        observer.pub.send_multipart([wire.TOPIC_RUN, wire.encode(run), b""])
        drained(lambda: subscription.refused >= len(wrong) + 2)
        assert (subscription.run, subscription.ranks) == (run, ranks)
        observer.tell(beat(0, 5), beat(1, 5))
        drained(lambda: subscription.ranks[1].step == 5)
        assert subscription.refused == len(wrong) + 2


def test_what_is_refused_stands_in_the_frame() -> None:
    """Beside what agents and observer have refused."""
    with observed(run_of("counted", 1)) as observer, watched(observer.directory) as link:
        heard(observer, link)
        observer.publish(wire.TOPIC_RUN, b"\xff")
        until(lambda: polling(observer, link) and link.frame().refused == 1, "the count")


def test_an_observer_that_sends_too_much_is_cut_off_and_heard_again() -> None:
    """A message above the bound ends the connection; what is in order later is heard on another one."""
    with observed(run_of("large", 2)) as observer, watched(observer.directory) as link:

        def is_heard(number: int) -> bool:
            observer.turn()
            observer.tell(beat(0, number))
            link.poll()
            return link.frame().ranks[0].step == number

        until(lambda: is_heard(1), "the observer")
        observer.publish(wire.TOPIC_RUN, bytes(wire.MAX_MESSAGE_BYTES))
        until(lambda: is_heard(2), "what follows one that is just within the bound")
        observer.topics.clear()
        observer.publish(wire.TOPIC_RUN, bytes(wire.MAX_MESSAGE_BYTES + 1))
        until(lambda: is_heard(3) and wire.TOPIC_RUN in observer.topics, "another connection")


def test_a_socket_that_others_can_use_is_not_listened_to() -> None:
    """Whoever put it there: the records of the run say what there is, at once."""
    with observed(run_of("open", 2)) as observer:
        record(observer, beat(0, 3), beat(1, 3))
        os.chmod(observer.directory.address("observer", "pub").removeprefix("ipc://"), 0o666)
        with watched(observer.directory) as link:
            until(lambda: polling(observer, link) and link.complete, "the record")
            assert [rank.step for rank in link.frame().ranks] == [3, 3]
            assert observer.topics == set()

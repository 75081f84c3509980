"""The relay's thread: between the ranks of this host, the recorder, the judge, and everybody who looks on.

While somebody looks on it wakes for each frame, otherwise once a second (`_due`), and for each command or subscription:
its cost depends on the number of wake-ups more than on the volume.  The observer's main thread hands it ranks, events
and the run's state, and carries out the commands that are for the run itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control.events import Events
from ddptop.agent.observer.actions.actions import Actions
from ddptop.agent.observer.hosts import sides
from ddptop.agent.observer.hosts.common import CommonRecord
from ddptop.agent.observer.hosts.elsewhere import Elsewhere, is_elsewhere
from ddptop.agent.observer.hosts.link.side import Said
from ddptop.agent.observer.hosts.role import LinkedHosts
from ddptop.agent.observer.hosts.sides import News, ThisHost
from ddptop.agent.observer.inspection.inspections import Inspections
from ddptop.agent.observer.model.run_model import RunModel
from ddptop.agent.observer.model.situation import Circumstances, Supervision
from ddptop.agent.observer.relay.following import Following
from ddptop.agent.observer.relay.frames import Frames
from ddptop.agent.observer.relay.hanging import Hanging
from ddptop.agent.observer.relay.intake import Intake
from ddptop.agent.observer.relay.reasons import Reasons
from ddptop.agent.observer.relay.suspects import Suspects
from ddptop.agent.observer.relay.verdicts import MakeJudge, Verdicts, judge_of
from ddptop.agent.observer.sampling.sampling import Sampling
from ddptop.agent.observer.service import service
from ddptop.agent.observer.service.commands import Commands
from ddptop.agent.observer.service.fills import Fills
from ddptop.agent.observer.service.forwarding import Forwarding
from ddptop.agent.observer.service.requests import Requests
from ddptop.agent.observer.service.service import Service
from ddptop.agent.record import retention
from ddptop.agent.record.budget import Budget
from ddptop.agent.record.recorder import Recorder
from ddptop.agent.run.rundir import Member, Run, RunDir, RunDirError
from ddptop.agent.run.switches import thresholds
from ddptop.agent.wire import EACH_RECORD

_log = logging.getLogger("ddptop.observer")

PERIOD_S: Final = 0.1
"""Seconds between two looks at the ranks' messages while something is incomplete."""
EVERY_S: Final = 1.0
"""Seconds between two judgements, and between two looks while nobody needs what comes any sooner."""
_RECALL_S: Final = 0.5
"""Seconds at the start in which nothing is done but to read the recording of an earlier observer."""
_FINISH_S: Final = 5.0
"""Seconds that the last messages of the ranks may take."""
_CLOSE_S: Final = 3.0
_NEWS: Final = ("state", "ending", "cause", "action", "waiting")
"""Fields of the main thread's word of which a change is published at once."""
_BUDGET: Final = b"budget"
"""Stands for the observer itself among those who ask ranks."""


class Relay:
    """The thread, and its interface for other threads."""

    def __init__(self, context: zmq.Context[Any], directory: RunDir, run: Run, judge: MakeJudge = judge_of) -> None:
        """Bind the sockets; raises `zmq.ZMQError` where that is impossible."""
        self.requests = Requests()
        self._wake = self.requests.answered
        """Set for all that other threads hand over."""
        self.events = Events(self._wake)
        self.faults = 0
        self._world, self._is_large = run.world, run.world > EACH_RECORD
        self._following = Following()
        self.circumstances = Circumstances()
        """The circumstances of an action, as they are once a second; may be read from any thread."""
        self._supervision: Supervision | None = None
        self._is_news = False
        """True where that has changed in what is to be published at once."""
        self._recorder = Recorder(
            directory.database,
            run.world,
            self.events,
            budget=run.run_bytes,
            logs=directory.logs,
            all_bytes=retention.bound_of(run),
        )
        elsewhere = self._elsewhere = Elsewhere()
        self._common = CommonRecord(self._recorder, elsewhere)
        here = ThisHost(directory, run, elsewhere, self._common)
        self.hosts = LinkedHosts(context, here, self._wake, self.requests.arrived)
        """The other hosts of the run."""
        unread = service.UNREAD if run.world > EACH_RECORD else service.UNREAD_SMALL
        self._service = Service(context, directory, elsewhere, unread)
        self._fills = Fills(context, directory.owner, elsewhere)
        self._forwarding = Forwarding(context, directory.owner, self._service, elsewhere)
        self._inspections = Inspections(self._forwarding.forward, self._wake.set, run)
        self._model = RunModel(directory, run, thresholds.of_user().thresholds)
        self._frames = Frames(self._model, run.world, self._service, self._recorder)
        self._reasons = Reasons(self._forwarding)
        self._suspects = Suspects(directory, self._fills, self._forwarding)
        self._budget = Budget(run.world)
        self.actions = Actions(
            directory, self._model, self._forwarding, self._service, self.events, self.hosts, self._wake,
            self.requests.arrived,
        )  # fmt: skip
        """What all ranks do at a common step."""
        self._commands = Commands(
            directory, self._service, self.requests, self._forwarding, self._inspections, self._fills,
            self._recorder, self.actions, self.hosts,
        )  # fmt: skip
        self._hanging = Hanging(directory, run, self._inspections, self._recorder)
        self._verdicts = Verdicts(judge, self._model.store, self._common, self.hosts, self._hanging, self._reasons)
        sampling = Sampling(run, self.events.say, thresholds.of_user().outside.log) if run.outside else None
        self._intake = Intake(
            context, run.world, directory.owner, self._recorder, self._fills, self._model.store, self.events, sampling
        )
        self._looked_at = self._second_at = self._held_at = 0.0
        self._has_more = False
        """There is more than the last look has taken in."""
        self._reported: set[str] = set()
        self._over = True
        self._ended: Run | None = None
        self._over_at_ns: int | None = None
        self._finishing = threading.Event()
        self._finished = threading.Event()
        self._closing = threading.Event()
        # A daemon: whatever holds it up must not prevent the observer from ending.
        self._thread = threading.Thread(target=self._work, name="relay", daemon=True)

    @property
    def refused(self) -> int:
        """Messages of anybody that could not be read, or cannot be true."""
        return sum(each.refused for each in (self._service, self._forwarding, self._intake, self._recorder, self.hosts))

    def start(self) -> None:
        """Begin to receive, to record and to answer."""
        self._recorder.start()
        self._thread.start()

    def follow(self, member: Member) -> None:
        """Take in one more rank, from its first unrecorded step on."""
        self._following.put(member, lives=True)
        self._wake.set()

    def lose(self, member: Member) -> None:
        """Answer in place of a rank whose process is gone."""
        self._following.put(member, lives=False)
        self._wake.set()

    def record(self, event: wire.Event) -> None:
        """Record an event that another host publishes; may be called from any thread."""
        _log.info("%s", event.text)
        self._common.record(event)

    def supervise(self, supervision: Supervision) -> None:
        """Take in the run as the main thread sees it; a change of its state is published at once."""
        before, self._supervision = self._supervision, supervision
        if before is None or any(getattr(before, name) != getattr(supervision, name) for name in _NEWS):
            self._is_news = True
            self._wake.set()

    def finish(self, *, over: bool = True, run: Run | None = None, at_ns: int | None = None) -> None:
        """Record the last messages of the ranks and the last frames, and end the record.

        Args:
            over: False where the run goes on; else verdicts that go on end with it.
            run: the record of the run with its end, where it is over.
            at_ns: when its verdicts end; None: now.
        """
        self._over, self._ended, self._over_at_ns = over, run, at_ns
        self._finishing.set()
        self._wake.set()
        if self._thread.ident is not None and not self._finished.wait(_FINISH_S):
            _log.warning("the last messages of the ranks were not taken in within %.0f s", _FINISH_S)
        if not self._finished.is_set():
            for event in self.events.take():
                self._recorder.add(event)
        self._close_recorder()

    def close(self) -> None:
        """Send the last replies and events, and close the sockets; without `finish` the record stays unfinished."""
        self._closing.set()
        self._wake.set()
        if self._thread.ident is None:
            self._close()
        else:
            self._thread.join(_CLOSE_S)
        if not self._finishing.is_set():
            self._close_recorder()
        if self.is_stuck:
            _log.warning("the relay did not end within %.0f s", _CLOSE_S)
        else:
            self.requests.close()

    @property
    def is_stuck(self) -> bool:
        """After `close`: say whether the thread has not ended, so that its sockets must not be closed by another."""
        return self._thread.is_alive()

    def _close_recorder(self) -> None:
        if not self._recorder.close():
            _log.warning("the recorder did not end in time: the last records may be missing")

    def _work(self) -> None:
        # What an earlier observer has recorded comes before what the ranks say now, as far as that can wait.
        with self._wall("the recording"):
            until = time.monotonic() + _RECALL_S
            while not self._frames.recall(until) and time.monotonic() < until:
                self._closing.wait(_RECALL_S / 50)
        poller = zmq.Poller()
        for each in (self._service.pub, self._service.cmd, self._forwarding.socket, self._wake):
            poller.register(each, zmq.POLLIN)
        while not self._closing.is_set():
            with self._wall("waiting"):
                self._wait(poller)
            self._turn()
        self._turn()
        self._close()

    def _wait(self, poller: zmq.Poller) -> None:
        # Of an answer under way the parts are taken as they come, as far as there is room.
        reading = [*self._fills.sockets(), *self.hosts.sockets()]
        if self._forwarding.is_holding and not self._is_large:
            reading.append(self._intake.socket)
        for socket in reading:
            poller.register(socket, zmq.POLLIN)
        try:
            poller.poll(math.ceil(self._pause_s() * 1000))
        finally:
            for socket in reading:
                poller.unregister(socket)

    def _pause_s(self) -> float:
        parts = (self._service, self._forwarding, self._inspections, self.hosts, self.actions)
        due = self._due()
        if self._is_large and self._forwarding.is_holding:
            due = min(due, self._held_at + PERIOD_S)
        pauses = [due - time.monotonic(), *(part.pause_s for part in parts)]
        return max(0.0, min(pause for pause in pauses if pause is not None))

    def _turn(self) -> None:
        self._wake.clear()
        for name, part in (
            ("following ranks", self._welcome),
            ("questions to other hosts", self.hosts.take_questions),
            ("publishing events", self._send_events),
            ("other hosts", self._hear_hosts),
            ("replies", self._send_replies),
            ("commands", self._commands.obey),
            ("questions about the history", self._look_back),
            ("answers of ranks", self._forwarding.take),
            ("records of ranks", self._fills.take),
            ("ranks that come to a hold", self._look_at_holds),
            ("actions", self.actions.turn),
            ("subscriptions", self._subscribe),
        ):
            with self._wall(name):
                part()
        now = time.monotonic()
        if now >= self._due():
            self._looked_at, self._has_more = now, False
            with self._wall("receiving"):
                self._look()
        for name, part in (
            ("messages for another host", self._elsewhere.send_bundle),
            ("silent ranks", self._forwarding.expire),
            ("looks at ranks", self._inspections.turn),
            ("waiting answers", self._service.send_more),
        ):
            with self._wall(name):
                part()
        if self._finishing.is_set() and not self._finished.is_set():
            with self._wall("the end"):
                self._finish()
            self._finished.set()
        with self._wall("publishing frames"):
            self._frames.turn()

    @contextlib.contextmanager
    def _wall(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a wall: an error costs one turn of one part
            self.faults += 1
            _log.exception("relay: %s", name)
            if name not in self._reported:
                self._reported.add(name)
                self.events.say(f"relay, {name}: {error!r:.200}", "warning")
            # An error that comes again at once must not take a whole core.
            self._closing.wait(PERIOD_S / 10)

    def _welcome(self) -> None:
        if self._following.waits:
            # What a process has published last comes before its successor is followed.
            self._take_in()
            for member, lives in self._following.take():
                if lives:
                    self._listen(member)
                else:
                    self._lose(member.rank)

    def _listen(self, member: Member) -> None:
        is_followed, problem = self._following.is_followed(member), None
        try:
            if not is_followed:
                self._follow(member)
                is_followed = True
            if member.by_agent:
                self._forwarding.connect(member.rank, member.cmd)
            else:
                self._forwarding.lose(member.rank)
        except (RunDirError, zmq.ZMQError) as error:
            problem = error
        if said := self._following.tried(member, problem, is_followed=is_followed):
            self.events.say(said, "info" if problem is None else "error", member.rank)

    def _hear_hosts(self) -> None:
        """Take in what other hosts have sent, and find out what that makes of this one."""
        for news in self.hosts.turn(self._intake.generation, self._service.subscribed):
            with self._wall("news of other hosts"):
                self._take_news(news)
        self._show_common()
        self._intake.wants_steps = self._wants_steps()
        self._hanging.unheard = self.hosts.unheard
        self._frames.own_ranks = self.hosts.own_ranks
        self._verdicts.follow_hosts(self._intake.generation)

    def _take_news(self, news: News) -> None:
        match news:
            case sides.Heard():
                if type(news.message) is not wire.Event or self._common.is_new(news.message):
                    self._intake.take(news.message, news.payload)
                if type(news.message) is wire.Event:
                    # One that was told without a link comes again with it, perhaps at once.
                    self._pass_on()
            case sides.Framed():
                self._model.store.take_frame(news.frame, time.time())
            case sides.Shown():
                self._service.show(news.topic, news.payload)
            case sides.Answered():
                self._service.send(news.requester, *news.frames)
            case sides.Asked():
                self._commands.carry_out(news.requester, news.frames, news.ahead_s)
            case sides.Come():
                self._follow(news.member, elsewhere=True)
            case sides.Left():
                self._lose(news.rank)
            case sides.Missed():
                self._intake.look_for_gap(news.rank)
            case sides.Subscribed():
                self._frames.subscribe(self._service.subscribed if news.topics is None else news.topics)
            case Said():
                self.events.say(*news)
            case sides.Known():
                self._verdicts.states = news.hosts
                self._model.store.know_hosts(news.hosts)

    def _show_common(self) -> None:
        """Have the model know what was recorded of other hosts."""
        while self._common.unshown:
            recorded = self._common.unshown.popleft()
            if isinstance(recorded, wire.Verdict):
                self._model.store.changes.recall_verdict(recorded)
            else:
                self._model.store.apply(recorded, time.time())

    def _send_replies(self) -> None:
        """Send what the observer's main thread and the recorder have answered."""
        replies = list(self.requests.replies())
        if any(is_elsewhere(requester) for requester, _ in replies):
            # A host that has ended its ranks, or is told of the end, sends what they have published last first.
            self._take_in()
        for requester, reply in replies:
            self._service.send(requester, wire.encode(reply))

    def _look_back(self) -> None:
        if self._commands.has_queries:
            self._take_in()
            self._commands.look_back(self._model.store.hosts.shown)

    def _follow(self, member: Member, *, elsewhere: bool = False) -> None:
        if self._intake.follow_elsewhere(member) if elsewhere else self._intake.follow(member):
            self._suspects.restart()
            self._verdicts.restart(member.generation)
            self._hanging.restart(member.generation)
        self._model.store.expect(member.generation)
        self._model.store.listen(member.rank, time.time())
        self._hanging.meet(member.rank, member.world)
        self._inspections.meet(member, elsewhere=elsewhere)
        if not elsewhere:
            self._reasons.meet(member)

    def _lose(self, rank: int) -> None:
        self._intake.lose(rank)
        self._fills.forget(rank)
        self._forwarding.lose(rank)
        self._hanging.lose(rank)
        self.hosts.lose(rank)

    def _look_at_holds(self) -> None:
        """Take in at once that ranks come to a hold; of a large group ten times a second, also for other hosts."""
        now = time.monotonic()
        is_early = self._is_large and now < self._held_at + PERIOD_S
        if is_early or not (self._forwarding.is_holding or self.actions.under_way):
            return
        self._held_at = now
        self._intake.hurry()
        self._take_in()

    def _subscribe(self) -> None:
        new = self._service.read_subscriptions()
        self._intake.wants_steps = self._wants_steps()
        if new and not self.hosts.subscribe_up(new):
            self._frames.subscribe(new)

    def _send_events(self) -> None:
        for event in self.events.take():
            self._recorder.add(event)
            self._common.note(event)
            self._model.store.apply(event, time.time())
            self._service.publish(wire.TOPIC_EVENT, wire.encode(event))
        self._common.tell()
        if self._is_news:
            self._take_supervision()

    def _take_supervision(self) -> None:
        if self._supervision is not None:
            # Before it is read: another thread may change it meanwhile.
            if self._is_news:
                self._is_news = False
                self._frames.hurry()
            self._model.store.supervise(self._supervision, time.time())

    def _take_in(self) -> None:
        """Take in what has arrived before an answer: it may be newer than what is known."""
        if not self._finished.is_set():
            self._has_more |= self._intake.drain()
        self._pass_on()

    def _pass_on(self) -> None:
        """Hand what has come from ranks to all that want it beside the model."""
        heard, service = self._intake.heard, self._service
        judges, elsewhere = self.hosts.judges, self._elsewhere
        while heard:
            message, payload = heard.popleft()
            # By comparison: `isinstance` asks the metaclass of these classes, which takes ten times as long.
            if (
                elsewhere.takes_bundles
                and type(message) is not wire.Event
                and not (self._is_large and type(message) is wire.Steps)
            ):
                elsewhere.add(payload)
            if type(message) is wire.Steps:
                self._suspects.steps(message)
                service.publish(wire.topic_of(wire.TOPIC_STEPS, message.rank), payload)
            elif type(message) in (wire.Beat, wire.Summary, wire.Hello, wire.Sampled):
                self._hanging.note(message)
                if type(message) is wire.Beat:
                    self._frames.note(message)
                    if judges:
                        self._budget.note(message)
                    if message.state == "ended":
                        # Its record then says why, and its process may take seconds to end.
                        self.requests.arrived.set()
            elif type(message) is wire.Event:
                self._common.note(message)
                service.publish(wire.TOPIC_EVENT, payload)

    def _wants_steps(self) -> bool:
        """Say whether anybody but model and recorder wants the records of ranks, each as it comes."""
        return self._is_large or self._elsewhere.takes_bundles or self._service.wants_records

    def _due(self) -> float:
        """Return the time of the next look at what the ranks have published.

        The judge and the recorder work once a second, so that more is only for those who look on, before each frame,
        and for what has to be completed: records that are asked for, a history that is being read, and looks at a run
        that stands.
        """
        if self._has_more:
            return 0.0
        asks = self._intake.is_asking or self._fills.busy
        pause_s = PERIOD_S if asks or self._hanging.is_looking or not self._verdicts.begun else EVERY_S
        return min(self._looked_at + pause_s, self._frames.due)

    def _look(self) -> None:
        if self._finished.is_set():
            return
        with self._wall("judging"):
            self._begin_to_judge()
        # Under overload there is no end of it, and commands must not wait.
        self._has_more = self._intake.drain()
        with self._wall("what ranks have said"):
            self._pass_on()
        now = time.monotonic()
        # Judged is all that has come, but under overload no later than half a second after it was due: who looks on
        # takes an observer for gone that says nothing for two.
        late_s = EVERY_S / 2 if self._has_more else 0.0
        if self._hanging.is_looking or now >= self._second_at + late_s:
            with self._wall("looking for a hang"):
                self._look_for_hang()
        if now >= self._second_at + late_s:
            # A little less than a second, so that the look a second from now finds it due.
            self._second_at = now + EVERY_S - PERIOD_S / 2
            if self._verdicts.are_told:
                self._judge_run(time.time_ns())
            self._each_second()

    def _look_for_hang(self) -> None:
        # In a kill the ranks may save what they have, or stand; where one has failed, the others wait for their end,
        # but for the time for which its process does not end.
        now = self._supervision
        has_failed = now is not None and now.cause is not None and not self._hanging.lingers
        ending = has_failed or (now is not None and now.state == "killing")
        if self._verdicts.are_told and not ending and self._hanging.turn():
            # What is told of a hang is not to wait for the next second.
            self._second_at = 0.0

    def _each_second(self) -> None:
        # An error of one part does not keep the others from their turn.
        with self._wall("connections to ranks"):
            self._intake.mend()
        with self._wall("ranks not listened to"):
            for member in self._following.refused_of(self._intake.generation):
                self._listen(member)
        self._take_supervision()
        if self._verdicts.are_told:
            with self._wall("the budget"):
                for rank, every in self._budget.turn():
                    # Its signs of life say whether it obeys.
                    self._forwarding.forward(_BUDGET, rank, wire.RecordEvery(0, every), lambda *_: None)
        self.circumstances = self._verdicts.circumstances(self._model.store.held)
        with self._wall("actions"):
            self.actions.each_second(self.circumstances)
        if self._is_large:
            records = self._suspects.ask(self._model.store.judge) | self._commands.looked_at()
            topics = self._service.in_sight() | {wire.topic_of(wire.TOPIC_STEPS, rank) for rank in records}
            wanted = frozenset(int(topic[-5:]) for topic in topics)
            self.hosts.look_at(topics)
            self._model.store.watch(wanted)
            with self._wall("ranks in sight"):
                self._intake.look_at(wanted)

    def _begin_to_judge(self) -> None:
        """Begin once a rank was found, or the run is over."""
        if not self._verdicts.begun and (self._finishing.is_set() or (self._intake.found and self.hosts.judges)):
            is_known = self._recorder.recorded_before is not None
            self._verdicts.begin(self._intake.generation, self._recorder.verdicts_before if is_known else None)
            if is_known:
                self._second_at = 0.0

    def _judge_run(self, now_ns: int) -> None:
        with self._wall("judging"):
            self._verdicts.find(now_ns)
        with self._wall("reasons for verdicts"):
            self._verdicts.explain()
        with self._wall("remarks of the judge"):
            for line in self._verdicts.tell(now_ns):
                self.events.say(line)

    def _finish(self) -> None:
        self._intake.finish()
        self._pass_on()
        told, at_ns = self.hosts.last_verdicts, self._over_at_ns or time.time_ns()
        if told is None:
            with self._wall("judging"):
                self._begin_to_judge()
        if self._over:
            with self._wall("judging"):
                if self._verdicts.begun:
                    self._verdicts.conclude()
                    self._judge_run(at_ns)
                    self._verdicts.close(at_ns)
            self._common.finish(at_ns)
            self._common.tell()
            if told is not None:
                self._model.store.changes.note_verdicts(at_ns, told)
        # Before the record ends: what was said last, of these verdicts too.
        self._send_events()
        self._show_common()
        with self._wall("the last frames"):
            self._frames.finish(self._ended)

    def _close(self) -> None:
        # The other hosts after the last replies, which may be for requesters there.
        replies = self._send_replies, self._service.send_more
        last = (self._send_events, lambda: self._frames.turn(at_once=True), *replies, self.hosts.close)
        sockets = self._intake.close, self._forwarding.close, self._service.close
        for part in (self._fills.close, *last, *sockets):
            with self._wall("closing"):
                part()

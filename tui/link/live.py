"""The dashboard's connection to a run: takes telemetry in, carries commands out.

`Link` is the `Source` of the screens, of `status` and of the plain output; what ends a run goes
through `ending`, which speaks to the supervisor by itself.  Draining waits for nobody and is
bounded in time, but for the message at hand; what controls a run opens sockets of its own,
because it runs in a thread and a ZeroMQ socket belongs to one.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.control.caller import LiveGroup, connect, readable
from ddptop.agent.control.controller import ANSWER_S, Controller
from ddptop.agent.control.listening import Listener
from ddptop.agent.observer.end import freezer
from ddptop.agent.observer.record import recorder, recording
from ddptop.agent.observer.status import survey, takeover
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import check_socket, is_plain
from ddptop.agent.run.rundir import ENDED_STATES, Member, RunDir, RunDirError, is_alive
from ddptop.tui.control.consent import Aim, Consent, ProcessLine
from ddptop.tui.control.ending import Ending
from ddptop.tui.control.launch import launch
from ddptop.tui.link.source import Refused
from ddptop.tui.model.frame import Frame
from ddptop.tui.model.store import Liveness, Store
from ddptop.tui.settings import Thresholds

if TYPE_CHECKING:
    from ddptop.tui.model.history.history import History

DEFAULT = Thresholds()
DRAIN_S = 0.008
"""How long one `poll` takes in what was sent by itself, so that a flood of messages does not hold up a key."""
CATCH_UP_S = 0.03
"""The same while the history is taken in: the frame is not complete before."""
EARLIER_S = 0.012
"""The same for what only plots look back at."""
RECENT_RECORDS = 8192
"""Messages of an ended run that its numbers are made of; what is older only plots look back at."""
LOOK_S = 0.25
SURVEY_S = 1.0
FILL_S = 5.0
"""A gap that nothing comes for within this is given up and counted."""
FILL_SLICE_S = 0.012
"""The same as `DRAIN_S` for records that were asked for."""
FIRST_FILL_S = 0.06
"""The same for those of the first frame, for as long as it is not whole."""
WHOLE_RECORDS = 8192
"""Earlier records that are asked for, of all ranks together."""
LEAST_RECORDS = 128
"""Asked for of each rank, however many there are: what a panel shows."""
SAMPLES = 16_384
"""Of the records before those, so many of all ranks together stand for the others."""
MOST_SAMPLES = 480
"""Asked for of each rank, however few there are: a plot has no more columns."""
DETAILED = 64
"""In a larger group only the ranks in sight send their records, and the others summaries."""
MOST_WATCHED = 64
REST_S = 0.25
"""What is in sight has to stay so long before its records are asked for."""
HEARD_S = 2.0
ENDING_S = 15.0
"""From the end of the scripts to the end of the run: torchrun looks at its ranks now and then."""

_BRIEFLY: Final = (wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_SUMMARY, wire.TOPIC_EVENT, wire.TOPIC_RUN)


class Link:
    """One run, as seen and controlled from outside it."""

    def __init__(
        self,
        directory: RunDir,
        who: str,
        thresholds: Thresholds = DEFAULT,
        *,
        onlooker: bool = False,
        looks_back: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a run.

        An `onlooker` changes nothing about it, not even the record of an end that nobody saw; one that
        `looks_back` holds more of the history than a frame of now needs. The `clock` bounds each `poll`.
        """
        self._clock = clock
        self._thresholds = thresholds
        self._looks_back = looks_back
        self._who = who
        self._onlooker = onlooker
        self._meet = survey.look if onlooker else takeover.meet
        self._next: RunDir | None = None
        """A run to be shown from the next `poll` on."""
        self._open(directory)

    def _open(self, directory: RunDir) -> None:
        self.directory = directory
        self._run = directory.read()
        self._is_replaced = False
        """True once another run has the name: the last frame of this one stays."""
        logs = {rank: str(directory.rank_log(rank)) for rank in range(self._run.world)} if self._run.launched else {}
        self._brief = self._run.world > DETAILED and self._run.state not in ENDED_STATES
        history = _history(self._run.world) if self._looks_back else None
        self.store = Store(self._run, logs, self._thresholds, history, brief=self._brief)
        self._ending = Ending(directory, self._who)
        _allow_files(self._run.world)
        self._context = zmq.Context()
        self._sub = Listener(self._context, _BRIEFLY if self._brief else (b"",))
        self._near = Listener(self._context, (wire.TOPIC_STEPS,))
        """For the records of watched ranks, connected to them alone."""
        self._listened: set[int] = set()
        """Ranks whose sockets are the owner's own."""
        self._wanted: frozenset[int] = frozenset()
        self._watched: dict[int, str] = {}
        """By rank, the address its records come from."""
        self._watch_due = 0.0
        self._members: dict[int, Member] = {}
        self._connected: dict[int, tuple[str, int]] = {}
        self._doubted: dict[int, tuple[str, int]] = {}
        """Ranks whose processes outlive the end that is recorded of them."""
        self._fills: dict[int, tuple[zmq.Socket[bytes], int, float]] = {}
        """By rank: the socket that asks, the command's id, when to give up."""
        self._asked: set[int] = set()
        """Ranks whose history was asked for."""
        self._filled = self._brief
        """True once all that was asked for at first has come; a large group tells of now before that."""
        self._generation = 0
        self._stamps: tuple[float, ...] = ()
        self._look_due = self._survey_due = 0.0
        self._replay: Iterator[wire.Telemetry] | None = None
        """What is recorded of the run as a whole and of its end."""
        self._earlier: Iterator[wire.Telemetry] | None = None
        """Recorded steps, for those who look back."""
        if self._run.launched:
            self._listen(None, directory.address("supervisor", "pub"))
        # Of a job started by hand there is a record only of what was done with it. Reading a database may write
        # beside it, so that an onlooker leaves it alone.
        if not self._onlooker and is_plain(directory.database):
            self._replay = self._recorded()
            if history is not None:
                self._earlier = recording.read_steps(directory.database)
                history.by_step.complete = False
                history.by_step.only_earlier = self._run.state in ENDED_STATES
        # What is recorded by then reaches up to what the ranks themselves still tell.
        self._earlier_due = self._clock() + 2 * recorder.BATCH_S

    def open(self, run: str) -> None:
        """Show another run from now on; see `Source.open`."""
        try:
            directory = rundir.find(run)
            run_id = directory.read().run_id
        except RunDirError as problem:
            raise Refused(str(problem)) from problem
        if run_id == self._run.run_id and self._next is None:
            return
        self._next = None
        self.close()
        self._open(directory)

    @property
    def settled(self) -> bool:
        """True once all that was recorded earlier has been taken in."""
        return self._replay is None and self._earlier is None and not self._fills

    @property
    def unmet(self) -> frozenset[int]:
        """Live ranks that have not been heard here; see `Store.unmet`."""
        return self.store.unmet()

    def poll(self) -> None:
        """Take in what has arrived, for a bounded time; waits for no message."""
        if self._next is not None:
            self.close()
            self._open(self._next)
            self._next = None
        now = self._clock()
        if now >= self._look_due:
            self._look()
            # Many ranks that start have many records; what it takes to read them leaves time for the screen.
            self._look_due = now + max(LOOK_S, 10 * (self._clock() - now))
        if self._is_replaced:
            return
        if now >= self._survey_due:
            self._survey()
            self._sub.mend()
            self._near.mend()
            self._survey_due = now + SURVEY_S
        if self._brief:
            self._follow_watched()
        deadline = self._clock() + DRAIN_S
        if self._replay is None or not self._generation:
            self._drain(self._sub.socket, deadline)
            self._drain(self._near.socket, deadline)
        # After a restart the history comes first; a fill brings the records that are missed meanwhile.
        if self._replay is not None:
            deadline += CATCH_UP_S
        self._take_replay(deadline)
        self._take_fills()
        self._ask_for_gaps()
        self._take_earlier(now + EARLIER_S)

    def watch(self, ranks: frozenset[int]) -> None:
        """Say which ranks' records are looked at; those of a small group come anyway."""
        if ranks != self._wanted:
            self._wanted = ranks
            self._watch_due = self._clock() + REST_S

    def _follow_watched(self) -> None:
        """Connect to the ranks that are watched now, and to no others."""
        known = sorted(self._wanted & self._listened)[:MOST_WATCHED]
        if self._clock() < self._watch_due or self._watched.keys() == set(known):
            return
        for rank in self._watched.keys() - set(known):
            self._near.disconnect(self._watched.pop(rank))
        self.store.watch(frozenset(known))
        for rank in known:
            if rank not in self._watched:
                self._watched[rank] = self.directory.address(rank, "pub")
                self._near.connect(self._watched[rank])

    def _drain(self, socket: zmq.Socket[bytes], deadline: float) -> None:
        while self._clock() < deadline:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                _, payload = frames
                self.store.apply(wire.read_telemetry(payload), time.time())
            except (ValueError, wire.Unreadable):
                self.store.refused += 1

    def _take_replay(self, deadline: float) -> None:
        if self._replay is None:
            return
        for message in self._replay:
            self.store.recall(message, time.time())
            if self._clock() > deadline:
                return
        self._replay = None

    def _recorded(self) -> Iterator[wire.Telemetry]:
        """Yield what of the recording the ranks themselves do not tell: of a live run, what happened, and how each
        rank was at last, because one that is stopped or busy tells nothing.
        """
        database = self.directory.database
        if self._run.state in ENDED_STATES:
            yield from recording.read_ranks(database)
            yield from recording.read_end(database)
            yield from recording.read_events(database)
            yield from recording.read_newest_steps(database, RECENT_RECORDS)
        elif self._generation:
            # What was before a restart is known to the record alone.
            yield from filter(self._is_earlier, recording.read_ranks(database))
            yield from filter(self._is_earlier, recording.read_steps(database))
            yield from self._last_words()
            yield from recording.read_events(database)
        else:
            yield from self._last_words()
            yield from recording.read_events(database)

    def _last_words(self) -> Iterator[wire.Telemetry]:
        database = self.directory.database
        yield from (hello for hello in recording.read_ranks(database) if not self._is_earlier(hello))
        yield from (message for message in recording.read_end(database) if isinstance(message, wire.Beat))

    def _tell_whole(self, *, whole: bool) -> None:
        """Tell the history whether it is complete."""
        if self.store.history is not None:
            self.store.history.by_step.complete = whole and self._earlier is None

    def _take_earlier(self, deadline: float) -> None:
        """Take in the steps of before, once what is needed at once is there."""
        history = self.store.history
        if history is None or self._earlier is None or self._replay is not None or self._fills:
            return
        if self._run.state not in ENDED_STATES and self._clock() < self._earlier_due:
            return
        # After a restart they are there already.
        for message in self._earlier if not self._generation or history.by_step.only_earlier else ():
            if isinstance(message, wire.Steps):
                history.take_earlier(message)
            if self._clock() > deadline:
                return
        self._earlier = None
        history.by_step.complete_earlier()

    def _is_earlier(self, message: wire.Telemetry) -> bool:
        return isinstance(message, wire.Hello | wire.Steps) and message.generation < self._generation

    def _look(self) -> None:
        """Read again what has changed in the run directory."""
        try:
            stamps = tuple((self.directory.path / name).stat().st_mtime for name in ("run.json", "ranks"))
            if stamps == self._stamps:
                return
            self._stamps = stamps
            run = self.directory.read()
        except (OSError, RunDirError):
            # Removed under our eyes: the last frame stays.
            return
        if run.run_id != self._run.run_id:
            # Its name was taken by a newer run, and with it its sockets.
            self._is_replaced = True
            if self._run.state not in ENDED_STATES:
                # What has become of it stood in its record.
                self._run = msgspec.structs.replace(
                    self._run, state="lost", cause=f"another run has its name: `ddptop attach {run.run}` shows that one"
                )
                self.store.know_run(self._run)
            return
        self._run = run
        self._members = members = self.directory.members()
        self.store.know_run(self._run)
        self.store.know_members(members)
        self._generation = max((member.generation for member in members.values()), default=0)
        for rank, member in members.items():
            # Where a rank listens follows from the directory; what its record names is nobody's word.
            address = self.directory.address(rank, "pub")
            key = (address, member.process.pid)
            known = self._connected if member.ended is None else self._doubted
            if known.get(rank) == key or (member.ended is not None and not is_alive(member.process)):
                continue
            if rank not in self._connected and rank not in self._doubted:
                self._listen(rank, address)
            known[rank] = key
            self.store.listen(rank, time.time())

    def _listen(self, rank: int | None, address: str) -> None:
        try:
            check_socket(address, self.directory.owner)
        except RunDirError as problem:
            self.store.apply(wire.Event(time.time_ns(), f"not listened to: {problem}", None, "error"), time.time())
        else:
            self._sub.connect(address)
            if rank is not None:
                self._listened.add(rank)

    def _survey(self) -> None:
        try:
            # To ask the process table for each of thousands, once a second, would cost more than all the rest.
            heard = self.store.heard(time.time(), HEARD_S) if self._brief else frozenset()
            at = time.time()
            self.store.know_liveness(_liveness(self.directory, self._meet(self.directory, self._members, heard), at))
        except RunDirError:
            return

    def _ask_for_gaps(self) -> None:
        if self._run.state in ENDED_STATES:
            return
        gaps = self.store.gaps()
        if not self._brief:
            # What was before is asked for at once, not only when a record comes that shows that it is missing.
            gaps = dict.fromkeys(self._connected.keys() - self._asked, 1) | gaps
        for rank, first in gaps.items():
            if rank in self._fills or rank not in self._connected:
                continue
            try:
                socket = connect(self._context, zmq.DEALER, self.directory.address(rank, "cmd"))
            except Refused:
                continue
            asked = MOST_WATCHED if self._brief else self._run.world
            whole, samples = max(LEAST_RECORDS, WHOLE_RECORDS // asked), min(MOST_SAMPLES, SAMPLES // asked)
            socket.send(wire.encode(wire.Fill(1, first, whole, samples)))
            self._tell_whole(whole=self._filled)
            self._fills[rank] = (socket, 1, self._clock() + FILL_S)
            self._asked.add(rank)

    def _take_fills(self) -> None:
        deadline = self._clock() + (FILL_SLICE_S if self._filled else FIRST_FILL_S)
        for rank, (socket, number, give_up) in list(self._fills.items()):
            done = self._clock() > give_up
            while not done:
                if self._clock() > deadline:
                    return
                try:
                    answer = readable(socket.recv(zmq.NOBLOCK))
                except zmq.Again:
                    break
                if isinstance(answer, wire.Steps):
                    self.store.fill(rank, answer.steps, last=False)
                    self._fills[rank] = (socket, number, self._clock() + FILL_S)
                done = isinstance(answer, wire.Reply) and answer.id == number
            if done:
                self.store.fill(rank, (), last=True)
                socket.close(linger=0)
                del self._fills[rank]
                self._filled = self._filled or not self._fills
                self._tell_whole(whole=self._filled)

    def frame(self, now: float) -> Frame:
        """Return the frame of this moment."""
        return self.store.frame(now)

    def pause(self) -> str:
        """Hold all ranks at the same step; see `Controller.pause`."""
        return self._act("pause", lambda controller: controller.pause())

    def step(self, steps: int) -> str:
        """Let a paused group do so many steps; see `Controller.advance`."""
        return self._act(f"step {steps}", lambda controller: controller.advance(steps))

    def checkpoint(self) -> str:
        """Have all ranks save at the same step; see `Controller.checkpoint`."""
        return self._act("checkpoint", lambda controller: controller.checkpoint())

    def stop(self, *, checkpoint: bool) -> str:
        """End all scripts at the same step; see `Controller.stop`."""
        directory = self.directory

        def stop(controller: Controller) -> str:
            done = controller.stop(checkpoint=checkpoint)
            # The scripts have ended; their processes and torchrun take another moment.
            deadline = time.monotonic() + ENDING_S
            while self._meet(directory).state not in ENDED_STATES and time.monotonic() < deadline:
                time.sleep(0.05)
            return done

        return self._act("stop", stop)

    def resume(self) -> str:
        """Let all ranks go on, held or frozen; see `Controller.resume` and `freezer.thaw`."""
        if not freezer.has_stopped(self.directory):
            return self._act("resume", lambda controller: controller.resume())
        return self._noted("resume", freezer.thaw)

    def freeze(self) -> str:
        """Stop all processes where they are; see `freezer.freeze`."""
        return self._noted("freeze", self._freeze)

    def _freeze(self, directory: RunDir) -> str:
        with LiveGroup(directory) as group:
            replies = group.ask({rank: wire.Query(rank) for rank in group.ranks}, ANSWER_S)
        known = [reply.timeout_s for reply in replies.values() if reply.timeout_s is not None]
        return freezer.freeze(directory, self._who, min(known, default=None))

    def _act(self, action: str, work: Callable[[Controller], str]) -> str:
        def act(directory: RunDir) -> str:
            if freezer.has_stopped(directory):
                raise Refused("its processes are frozen; resume it first")
            with LiveGroup(directory) as group:
                return work(Controller(group, self._who))

        return self._noted(action, act)

    def _noted(self, action: str, work: Callable[[RunDir], str]) -> str:
        """Act, and record with the run who did it and what came of it."""
        # Another run may be shown before this is over.
        directory = self.directory
        with _refusing():
            self._check_run()
        try:
            with _refusing():
                outcome = work(directory)
        except Refused as refusal:
            self._note(directory, action, f"refused: {refusal}", "warning")
            raise
        self._note(directory, action, outcome, "info")
        return outcome

    def _check_run(self) -> None:
        """Refuse to act on a newer run that has taken the name of the one shown."""
        if self.directory.read().run_id != self._run.run_id:
            raise Refused(
                f"the {self.directory.name} shown here is gone: another run has its name; choose it in the list of runs"
            )

    def _note(self, directory: RunDir, action: str, outcome: str, level: str) -> None:
        text = f"{action} by {self._who}: {outcome}"
        journal.note(directory, wire.Event(time.time_ns(), text, None, level, action, self._who))

    def victims(self, aim: Aim) -> str:
        """Say what `kill` would end; see `Ending.victims`."""
        with _refusing():
            self._check_run()
            return self._ending.victims(aim)

    def processes(self) -> list[ProcessLine]:
        """Return every live process of the run."""
        with _refusing():
            self._check_run()
            return self._ending.processes()

    def kill(self, grace_s: float, aim: Aim, progress: Callable[[str], None], consent: Consent | None = None) -> str:
        """End the run, or one rank or process of it; see `Ending.kill`."""
        with _refusing():
            self._check_run()
            return self._ending.kill(grace_s, aim, progress, self.store.count_down, consent)

    def signal(self, number: int, aim: Aim, consent: Consent | None = None) -> str:
        """Send a signal; see `Ending.signal`."""
        with _refusing():
            self._check_run()
            return self._ending.signal(number, aim, consent)

    def resumable(self) -> bool:
        """Say whether the run could be restarted from a checkpoint."""
        return launch.resumable(self._run)

    def restart(self, *, resume: bool) -> str:
        """Start the ended run again, and show the new one from the next `poll` on.

        Raises:
            Refused: nothing was started.
        """
        directory = self.directory
        told: list[str] = []
        with _refusing():
            self._check_run()
        try:
            started = launch.restart(directory, resume=resume, who=self._who, tell=told.append)
        except (launch.RequestError, RunDirError) as problem:
            raise Refused(str(problem)) from problem
        if self.directory is directory:
            self._next = started
        return "; ".join([f"started again as {started.name}", *told])

    def close(self) -> None:
        """Close all sockets; the run does not notice."""
        self._sub.close()
        self._near.close()
        self._context.destroy(linger=0)


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse what cannot be done because the run's record has been removed."""
    try:
        yield
    except RunDirError as problem:
        raise Refused(str(problem)) from problem


def _allow_files(world: int) -> None:
    """Raise the limit of open files to what connections to so many ranks take, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 256 + 2 * world
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def _history(world: int) -> History:
    # Its tables are of no use to `status` and the plain lines.
    from ddptop.tui.model.history.history import History

    return History(world)


def _liveness(directory: RunDir, found: survey.Survey, at: float) -> Liveness:
    return Liveness(
        state=found.state,
        supervised=found.supervised,
        orphaned=found.orphaned,
        alive=frozenset(found.alive),
        cause=found.cause,
        cause_rank=found.cause_rank,
        frozen_at=None if (since := freezer.frozen(directory)) is None else since.at_ns / 1e9,
        seen=found.seen,
        at=at,
    )

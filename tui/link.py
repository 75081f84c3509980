"""The only file of the dashboard with sockets: takes telemetry in, carries commands out.

`Link` is the `Source` of the screens, of `status` and of the plain output.  Draining is
bounded in time and never blocks; what controls a run opens sockets of its own, because it
runs in a thread and a ZeroMQ socket belongs to one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import zmq

from ddptop.agent import control, wire
from ddptop.agent.caller import LiveGroup, connect, readable, watchful
from ddptop.agent.control import Controller
from ddptop.agent.group import census, freezer, journal, processes, recorder
from ddptop.agent.rundir import ENDED_STATES, RunDir, RunDirError
from ddptop.tui.frame import Frame
from ddptop.tui.source import Refused
from ddptop.tui.store import Liveness, Store

DRAIN_S = 0.004
"""Longest stay in one `poll`, so that a flood of messages never holds up a key."""
LOOK_S = 0.25
SURVEY_S = 1.0
FILL_S = 5.0
"""A gap that is not filled within this is given up and counted."""
KILL_REPLY_S = 30.0
"""Beyond the grace period: KILL, and processes that are slow to die."""
ENDING_S = 15.0
"""From the end of the scripts to the end of the run: torchrun looks at its ranks now and then."""


class Link:
    """One run, as seen and controlled from outside it."""

    def __init__(self, directory: RunDir, who: str) -> None:
        self.directory = directory
        self._who = who
        self._run = directory.read()
        logs = {rank: str(directory.rank_log(rank)) for rank in range(self._run.world)} if self._run.launched else {}
        self.store = Store(self._run, logs)
        self._context = zmq.Context()
        self._sub = watchful(self._context, zmq.SUB)
        self._sub.subscribe(b"")
        self._connected: dict[int, tuple[str, int]] = {}
        self._fills: dict[int, tuple[zmq.Socket[bytes], int, float]] = {}
        """By rank: the socket that asks, the command's id, when to give up."""
        self._stamps: tuple[float, ...] = ()
        self._look_due = self._survey_due = 0.0
        self._replay: Iterator[wire.Telemetry] | None = None
        if self._run.launched:
            self._sub.connect(directory.address("supervisor", "pub"))
        # Of a job started by hand there is a record only of what was done with it.
        self._replay = recorder.read_history(directory.database) if directory.database.exists() else None

    @property
    def settled(self) -> bool:
        """True once everything recorded of the past has been taken in."""
        return self._replay is None and not self._fills

    def poll(self) -> None:
        """Take in what has arrived; bounded in time, never blocks."""
        now = time.monotonic()
        if now >= self._look_due:
            self._look()
            self._look_due = now + LOOK_S
        if now >= self._survey_due:
            self._survey()
            self._survey_due = now + SURVEY_S
        deadline = now + DRAIN_S
        self._drain(deadline)
        self._take_replay(deadline)
        self._take_fills()
        self._ask_for_gaps()

    def _drain(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK)
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
        over = self._run.state in ENDED_STATES
        for message in self._replay:
            # Of a live run the ranks themselves know better; what happened is known to the record alone.
            if over or isinstance(message, wire.Event):
                self.store.apply(message, message.at_ns / 1e9 if isinstance(message, wire.Beat) else time.time())
            if time.monotonic() > deadline:
                return
        self._replay = None

    def _look(self) -> None:
        """Read again what has changed in the run directory."""
        try:
            stamps = tuple((self.directory.path / name).stat().st_mtime for name in ("run.json", "ranks"))
            if stamps == self._stamps:
                return
            self._stamps = stamps
            self._run = self.directory.read()
        except (OSError, RunDirError):
            # Removed under our eyes, by a newer run of that name: the last picture stays.
            return
        members = self.directory.members()
        self.store.know_run(self._run)
        self.store.know_members(members)
        for rank, member in members.items():
            key = (member.pub, member.process.pid)
            if member.ended is None and self._connected.get(rank) != key:
                if rank not in self._connected:
                    self._sub.connect(member.pub)
                self._connected[rank] = key

    def _survey(self) -> None:
        try:
            self.store.know_liveness(_liveness(self.directory))
        except RunDirError:
            return

    def _ask_for_gaps(self) -> None:
        if self._run.state in ENDED_STATES:
            return
        for rank, first in self.store.gaps().items():
            if rank in self._fills or rank not in self._connected:
                continue
            socket = connect(self._context, zmq.DEALER, self.directory.address(rank, "cmd"))
            socket.send(wire.encode(wire.Fill(1, first)))
            self._fills[rank] = (socket, 1, time.monotonic() + FILL_S)

    def _take_fills(self) -> None:
        for rank, (socket, number, give_up) in list(self._fills.items()):
            done = time.monotonic() > give_up
            while not done:
                try:
                    answer = readable(socket.recv(zmq.NOBLOCK))
                except zmq.Again:
                    break
                if isinstance(answer, wire.Steps):
                    self.store.fill(rank, answer.steps, last=False)
                done = isinstance(answer, wire.Reply) and answer.id == number
            if done:
                self.store.fill(rank, (), last=True)
                socket.close(linger=0)
                del self._fills[rank]

    def frame(self, now: float) -> Frame:
        """Return the picture of this moment."""
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
        return self._act("stop", lambda controller: self._stop(controller, checkpoint))

    def _stop(self, controller: Controller, checkpoint: bool) -> str:
        done = controller.stop(checkpoint=checkpoint)
        # The scripts have ended; their processes and torchrun take another moment.
        deadline = time.monotonic() + ENDING_S
        while census.settle(self.directory).state not in ENDED_STATES and time.monotonic() < deadline:
            time.sleep(0.05)
        return done

    def resume(self) -> str:
        """Let all ranks go on, held or frozen; see `Controller.resume` and `freezer.thaw`."""
        if not freezer.has_stopped(self.directory):
            return self._act("resume", lambda controller: controller.resume())
        return self._noted("resume", lambda: freezer.thaw(self.directory))

    def freeze(self) -> str:
        """Stop all processes where they are; see `freezer.freeze`."""
        return self._noted("freeze", self._freeze)

    def _freeze(self) -> str:
        with LiveGroup(self.directory) as group:
            replies = group.ask({rank: wire.Query(rank) for rank in group.ranks}, control.ANSWER_S)
        known = [reply.timeout_s for reply in replies.values() if reply.timeout_s is not None]
        return freezer.freeze(self.directory, self._who, min(known, default=None))

    def _act(self, action: str, work: Callable[[Controller], str]) -> str:
        def act() -> str:
            if freezer.has_stopped(self.directory):
                raise Refused("its processes are frozen; resume it first")
            with LiveGroup(self.directory) as group:
                return work(Controller(group, self._who))

        return self._noted(action, act)

    def _noted(self, action: str, work: Callable[[], str]) -> str:
        """Act, and keep with the run who did it and what came of it."""
        try:
            outcome = work()
        except Refused as refusal:
            self._note(action, f"refused: {refusal}", "warning")
            raise
        self._note(action, outcome, "info")
        return outcome

    def _note(self, action: str, outcome: str, level: str) -> None:
        text = f"{action} by {self._who}: {outcome}"
        journal.note(self.directory, wire.Event(time.time_ns(), text, None, level, action, self._who))

    def victims(self, rank: int | None) -> str:
        """Say what `kill` would end, in one line for each thing there is to know."""
        run, members = self.directory.read(), self.directory.members()
        if rank is not None:
            others = run.world - 1
            effect = "the others fail at their next collective, and torchrun ends them" if others else "the run ends"
            pid = f" (pid {members[rank].process.pid})" if rank in members else ""
            return f"rank {rank}{pid} and its helpers: {effect}"
        counts = Counter(target.role for target in processes.find(run, members))
        torchrun = f"torchrun {run.torchrun.pid}, " if run.torchrun is not None and counts["torchrun"] else ""
        ranks = f"{counts['rank']} rank{'' if counts['rank'] == 1 else 's'}"
        return f"{torchrun}{ranks}, {counts['helper']} helper{'' if counts['helper'] == 1 else 's'}"

    def kill(self, grace_s: float, rank: int | None, progress: Callable[[str], None]) -> str:
        """End the run, or one rank of it, and say what was ended.

        Raises:
            Refused: there is nothing to end, or something would not die.
        """
        state = census.settle(self.directory)
        if state.state in ENDED_STATES:
            raise Refused(f"run {self.directory.name} is over already ({state.state})")
        if state.supervised:
            reply = self._ask_supervisor(wire.Kill(1, grace_s, rank, self._who), grace_s, progress)
            if reply is not None:
                if not reply.done:
                    raise Refused(reply.text)
                return reply.text
            progress("the supervisor does not answer; ending the run without it")
        try:
            ended = census.kill(self.directory, grace_s, self._who, rank=rank, progress=progress)
        except ValueError as refusal:
            raise Refused(str(refusal)) from refusal
        # A supervisor would have told it.
        self._note("kill", ended, "warning")
        return ended

    def _ask_supervisor(self, command: wire.Kill, grace_s: float, progress: Callable[[str], None]) -> wire.Reply | None:
        """Send a command, pass on what the supervisor tells meanwhile, and return its answer."""
        with zmq.Context() as context:
            events = connect(context, zmq.SUB, self.directory.address("supervisor", "pub"))
            events.subscribe(wire.TOPIC_EVENT)
            asking = connect(context, zmq.DEALER, self.directory.address("supervisor", "cmd"))
            try:
                asking.send(wire.encode(command))
                poller = zmq.Poller()
                poller.register(events, zmq.POLLIN)
                poller.register(asking, zmq.POLLIN)
                deadline = time.monotonic() + grace_s + KILL_REPLY_S
                while time.monotonic() < deadline:
                    ready = dict(poller.poll(500))
                    if events in ready:
                        message = wire.read_telemetry(events.recv_multipart()[-1])
                        if isinstance(message, wire.Event):
                            progress(message.text)
                    if asking in ready:
                        answer = readable(asking.recv())
                        if isinstance(answer, wire.Reply):
                            return answer
                    if not ready and not census.survey(self.directory).supervised:
                        return None
                return None
            finally:
                events.close(linger=0)
                asking.close(linger=0)

    def close(self) -> None:
        """Close all sockets; the run does not notice."""
        self._context.destroy(linger=0)


def _liveness(directory: RunDir) -> Liveness:
    found = census.settle(directory)
    return Liveness(
        state=found.state,
        supervised=found.supervised,
        orphaned=found.orphaned,
        alive=frozenset(found.alive),
        cause=found.cause,
        cause_rank=found.cause_rank,
        frozen_at=None if (since := freezer.frozen(directory)) is None else since.at_ns / 1e9,
    )

"""One run, looked after from its start until its end: what the main thread of an observer does."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.control.events import sentence
from ddptop.agent.end import cause, escalation, processes
from ddptop.agent.launcher.launcher import Torchrun
from ddptop.agent.launcher.rendezvous import Awaited
from ddptop.agent.observer.actions.orders import Orders
from ddptop.agent.observer.end import exits
from ddptop.agent.observer.end.exits import Exits
from ddptop.agent.observer.end.rank_ends import RankEnds
from ddptop.agent.observer.hosts.ends import OtherEnds
from ddptop.agent.observer.jobs import resizing, unprepared
from ddptop.agent.observer.jobs.attached import Attached
from ddptop.agent.observer.jobs.scheduler import Scheduler
from ddptop.agent.observer.jobs.unprepared import Unprepared
from ddptop.agent.observer.jobs.unseen import Unseen
from ddptop.agent.observer.model.situation import Supervision
from ddptop.agent.observer.relay.relay import Relay
from ddptop.agent.run import identity, states
from ddptop.agent.run.files import marks
from ddptop.agent.run.files.presence import Presence
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.hosts import Starts
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, RunDirError, is_alive
from ddptop.agent.text import clean_line

_log = logging.getLogger("ddptop.observer")

_TURN_MS: Final = 250
_QUIET_TURN_MS: Final = 1000
"""The same where whatever has to be noticed at once ends the waiting: commands, and the ends of processes."""
_TURN_WHILE_ENDING_MS: Final = 50
_TEARDOWN_S: Final = 0.5
_WORD_S: Final = 1.0
"""Seconds after the end of a rank by a signal in which it shows whether the launcher received that, and passed it on.
"""
_LOOK_S: Final = 1.0
"""Seconds between two looks for further ranks of a job that something else launched, where some are there."""


@contextlib.contextmanager
def _wall(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a wall: the run is looked after without what was to be written in the place of agents
        _log.error("%s: %r", what, error)


class Observer:
    """Looks after one run until its end, or until a signal tells it to leave."""

    def __init__(self, directory: RunDir, run: Run, context: zmq.Context[Any], claim: Claim) -> None:
        """Bind the sockets; raises `zmq.ZMQError` where that is impossible."""
        self._directory = directory
        self._run = run
        self._world = run.world
        self._claim = claim
        self._presence = Presence(directory)
        self._state = "starting"
        self._cause = run.cause
        self._failure: cause.FirstCause | None = None
        """Why the present ranks have failed, as far as that is known while some of them live."""
        self._open_since: float | None = None
        """Since when it is known that they have failed, while the cause is not said yet."""
        self._told_cause: str | None = None
        """The cause, at a branch, as the head has told it last."""
        self._launcher: Torchrun | Attached | None = None
        """The process that starts the ranks; None before it is started, and where that fails."""
        self._exit_code: int | None = None
        self._orphaned = False
        self._leaving = False
        self._resized = False
        self._members: dict[int, Member] = {}
        """Last records of the present generation, which the next generation overwrites on disk."""
        self._generation = 0
        self._starts = Starts(directory.path)
        self._up: set[Process] = set()
        """The processes that were ranks so far."""
        self._look_due = 0.0
        self._exits = Exits()
        self._awaited = Awaited(run)
        self._unseen = Unseen(time.monotonic())
        self._unprepared = Unprepared(directory) if run.outside else None
        relay = self._relay = Relay(context, directory, run)
        self._scheduler = Scheduler(run, relay.requests)
        self._say = relay.events.say
        host = socket.gethostname()
        self._others = OtherEnds(host, relay.hosts)
        self._orders = Orders(directory, relay.requests, relay.events, self._others, host)
        self._ends = RankEnds(directory, self._exits, self._orders, relay.events, self._others)

    def leave(self, *_: object) -> None:
        """Leave the run unobserved, as it is; end it where it is a scheduler's, who wants all of it to end."""
        self._leaving = not self._scheduler.end()
        self._relay.requests.arrived.set()

    @property
    def is_stuck(self) -> bool:
        """After `run`: say whether the relay's thread has not ended."""
        return self._relay.is_stuck

    def pass_on(self, number: int, _frame: object) -> None:
        """Pass a signal on to torchrun, which passes it on to its ranks; the observer stays.

        What started a job by hand gets the signals of its scheduler itself.
        """
        if self._run.torchrun is not None and self._run.launched:
            identity.send(self._run.torchrun, number)

    def run(self, predecessor: Run | None = None) -> None:
        """Start torchrun, or take over from an observer that is gone, and look after the run until its end.

        Args:
            predecessor: the record of the run by the earlier observer, None at the first start.
        """
        self._presence.begin()
        exits.adopt_orphans()
        self._relay.start()
        problem = self._begin(predecessor)
        while self._launcher is not None and not self._is_over():
            if (self._leaving or self._resized) and not self._orders.ending:
                self._relay.actions.close()
                self._note_action()
                self._abandon()
                return
            self._look_outside()
            self._find_ranks()
            self._look_for_unseen()
            self._note_exits()
            self._ends.turn()
            self._scheduler.turn(self._members.values())
            self._orders.turn(self._run)
            self._relay.actions.is_killed = self._orders.killed_by is not None
            self._note_action()
            self._look_at_hosts()
            self._presence.tick()
            if self._orders.ending:
                self._state = "killing"
            self._relay.supervise(self._supervision)
            self._wait()
        self._conclude(problem)
        self._close()

    def _abandon(self) -> None:
        _log.info("another observer takes over" if self._resized else "told to leave: the training goes on without me")
        self._relay.finish(over=False)
        for kind in ("pub", "cmd"):
            marks.owned(self._directory.path / f"observer.{kind}").unlink(missing_ok=True)
        self._close()
        self._presence.end()
        if self._resized:
            resizing.hand_over(self._directory, self._claim, in_place=self._run.launched)
        else:
            self._claim.release()

    def _close(self) -> None:
        self._exits.close()
        self._scheduler.close()
        self._orders.close()
        self._relay.close()

    def _begin(self, predecessor: Run | None) -> str | None:
        """Start torchrun, or adopt what runs already; return the reason where neither is possible."""
        if not self._run.launched:
            self._watch(predecessor)
            return None
        return self._start() if predecessor is None else self._take_over(predecessor)

    def _start(self) -> str | None:
        self._note_launch()
        try:
            launcher = self._launcher = Torchrun.start(self._directory, self._run)
        except OSError as error:
            return f"{self._run.leader} could not be started: {error}"
        self._write(torchrun=launcher.process)
        self._say(f"{self._run.leader} started (pid {launcher.process.pid})")
        return None

    def _note_launch(self) -> None:
        """Take what its launch has said of the run into the record of this host."""
        run = self._run
        if run.removal:
            self._relay.record(wire.Event(run.created_at_ns, run.removal, None, "info"))
        if run.launched_by:
            what = f"{shlex.join((run.program, *run.arguments))}, world {run.world}"
            text = sentence("launched", what, run.launched_by)
            self._relay.record(wire.Event(run.created_at_ns, text, None, "info", "launch", run.launched_by))

    def _watch(self, before: Run | None) -> None:
        """Look after the ranks of a job that something else launched."""
        self._launcher = Attached(self._directory, self._run)
        if before is None or before.observer is None:
            how = "nobody prepared: it is seen from outside" if self._run.outside else "was started by hand"
            self._say(f"an observer (pid {os.getpid()}) watches this job, which {how}")
            if self._run.outside and (problem := unprepared.unseen(self._directory.members().values())):
                self._say(problem, "warning")
        else:
            was = f"observer {before.observer.pid}"
            self._say(f"{was} is gone; an observer with pid {os.getpid()} takes over", "warning")
        self._adopt()

    def _take_over(self, before: Run) -> str | None:
        """Adopt the torchrun and the ranks of an observer that is gone."""
        found = before.torchrun or processes.find_torchrun(before)
        was = f"observer {before.observer.pid}" if before.observer else "the first observer"
        if found is None:
            return f"{was} was gone before {self._run.leader} was started"
        self._launcher = Torchrun(found)
        self._write(torchrun=found)
        if before.observer != self._run.observer:
            gone = f"{was} is gone; an observer with pid {os.getpid()} takes over"
            self._say(f"{gone}; {self._run.leader}'s own exit status will not be known", "warning")
        self._adopt()
        return None

    def _adopt(self) -> None:
        """Look after the ranks that there are, and settle what an earlier observer was doing."""
        for rank, member in self._directory.members().items():
            self._generation = member.generation
            self._enlist(rank, member)
        self._ends.resume(self._generation)
        self._note_start()
        self._orders.resume_ending(self._run)
        if self._run.action:
            self._relay.actions.note_left(self._run.action)

    def _note_action(self) -> None:
        """Have the record say which action is under way, where that has changed."""
        if (action := self._relay.actions.under_way) != self._run.action:
            self._write(action=action)

    def _look_at_hosts(self) -> None:
        """Notice which hosts are lost or heard again, and tell the head of the ends on this one."""
        if (told := self._relay.hosts.cause) != self._told_cause:
            # Who asks here is told so also when the head has left.
            self._cause = self._told_cause = told
        if self._cause != self._run.cause:
            # Who cannot wait for this process to answer reads it there.
            self._write(cause=self._cause)
        if self._others.conclusion is not None:
            self._relay.hosts.conclude()
        if self._others.take_changes() and self._orders.killed_by is None:
            self._ends.record()
            judgement = self._first_cause(self._members)
            if judgement.state == "failed":
                self._cause = judgement.cause
        said = self._others.turn(self._generation, self._ends.seen, self._members)
        for each in said:
            self._say(*each)
        if self._cause is not None and any(each.level == "error" for each in said):
            # A host was lost.
            self._cause = self._first_cause(self._members).cause

    def _is_over(self) -> bool:
        """Say whether the run is over: here, and as far as can be known on the other hosts."""
        over = self._part_is_over()
        if over and self._orders.killed_by is not None:
            return not self._others.is_to_conclude()
        # The head has waited long enough for a launcher that starts nothing any more.
        concluded = self._others.conclusion is not None and not self._exits.alive() and not self._orders.ending
        return not self._others.are_awaited(over=over) or concluded

    def _part_is_over(self) -> bool:
        assert self._launcher is not None
        self._exits.watch_leader(self._launcher.process)
        over = self._launcher.is_over()
        self._exit_code = self._launcher.exit_code
        exits.reap(self._launcher.process.pid if self._launcher.process is not None else None)
        alive = self._exits.alive()
        if self._orders.killed_by is not None:
            return not self._orders.ending
        if isinstance(self._launcher, Attached):
            if over and alive and self._launcher.process is not None:
                self._note_orphans(f"{self._run.leader} is gone; its ranks go on without it")
            return self._launcher.is_deserted(alive, self._members)
        if not over:
            return False
        if self._exit_code is not None and self._exit_code >= 0:
            return True
        # Ranks that outlive a killed torchrun still train; those that outlive one that exited by itself do not.
        orphans = self._living()
        if orphans:
            how = "its exit status is not known" if self._exit_code is None else f"signal {-self._exit_code}"
            self._note_orphans(f"{self._run.leader} is gone ({how}); ranks {orphans} go on without it")
        return not orphans

    def _note_orphans(self, text: str) -> None:
        if not self._orphaned:
            self._orphaned = True
            self._say(text, "error")

    def _living(self) -> list[int]:
        return [rank for rank, member in self._directory.members().items() if is_alive(member.process)]

    def _look_outside(self) -> None:
        """Have the ranks of a job that nobody prepared recorded."""
        if self._unprepared is not None and self._orders.killed_by is None:
            complete = len(self._exits.alive()) >= states.ranks_here(self._run, self._run.world)
            with _wall("looking for ranks"):
                if changes := self._unprepared.turn(self._run, complete=complete):
                    self._write(**changes)
                    if isinstance(self._launcher, Attached):
                        self._launcher.run = self._run

    def _find_ranks(self) -> None:
        alive = self._exits.alive()
        recounted = self._starts.count() > self._generation
        if len(alive) >= states.ranks_here(self._run, self._run.world) and not recounted:
            return
        if alive and not self._run.launched and not recounted:
            # A job may have further ranks on other hosts only, and is not to be searched for them without end.
            if time.monotonic() < self._look_due:
                return
            self._look_due = time.monotonic() + _LOOK_S
        members = self._directory.members()
        world = resizing.present_world(self._directory, self._run, self._world, members.values())
        if world != self._world:
            self._say(*resizing.event_of(world, self._world, is_first=not self._up))
            self._resized = True
            return
        for rank, member in members.items():
            if member.generation > self._generation:
                self._begin_generation(member.generation, recounted=member.process in self._up)
            known = self._members.get(rank)
            if 0 <= rank < self._run.world and (known is None or known.process != member.process):
                is_new = member.process not in self._up
                self._enlist(rank, member)
                if is_new:
                    self._say(f"rank {rank} is up (pid {member.process.pid})")
        self._note_start()

    def _look_for_unseen(self) -> None:
        now = time.monotonic()
        if self._up or not self._run.launched or self._run.leader == "torchrun" or not self._unseen.is_due(now):
            return
        found = (each.process for each in processes.find(self._run, {}))
        if line := self._unseen.look(found, now):
            self._say(line, "warning")

    def _note_start(self) -> None:
        if self._state == "starting":
            self._state = states.of_reports(self._run, self._members, time.time_ns())
            if self._state == "running":
                self._write(state="running")

    def _enlist(self, rank: int, member: Member) -> None:
        self._members[rank] = member
        self._up.add(member.process)
        self._exits.watch(rank, member.process)
        self._ends.watch(rank, member.process)
        self._relay.follow(member)

    def _begin_generation(self, generation: int, *, recounted: bool) -> None:
        """Publish why torchrun has restarted the group, and forget the ranks of the last generation.

        Nothing was restarted where it was only `recounted`: this host has joined later than others.
        """
        judgement = self._first_cause(self._members, 1)
        why = judgement.cause or "it left no record of its end"
        # On several hosts there may be more than torchrun counts, and than it allows.
        most = f" of {self._run.max_restarts}" if self._run.max_restarts and not self._run.spans_hosts else ""
        # The head tells it for all hosts.
        if self._relay.hosts.role != "branch" and not recounted:
            self._say(f"restart {generation}{most}: {why}", "error", judgement.rank)
        self._generation = generation
        self._state, self._cause, self._failure, self._open_since = "starting", None, None, None
        self._members.clear()
        self._ends.forget(generation)
        self._exits.forget()
        self._orders.forget_ranks()

    def _note_exits(self) -> None:
        dead = self._exits.read()
        if dead and self._unprepared is not None:
            with _wall("recording the ends of ranks"):
                unprepared.record_ends(self._directory, self._exits.at_ns, self._exits.status)
        members = self._directory.members() if self._ends.have_records_changed() or dead else {}
        for rank, member in members.items():
            if member.generation == self._generation and rank in self._members:
                if member.by_agent != self._members[rank].by_agent:
                    self._relay.follow(member)
                self._members[rank] = member
        failed = self._ends.tell_failures(self._members)
        for rank in dead:
            if rank in self._members:
                self._relay.lose(self._members[rank])
            failed |= self._ends.note(rank, self._members.get(rank), launched=self._run.launched)
        if dead:
            self._ends.record()
        if failed or self._open_since is not None:
            found, now = self._first_cause(self._members), time.monotonic()
            since = self._open_since or now
            self._open_since = since if found.is_open and now < since + _WORD_S else None
            if self._open_since is None:
                # Told at once: torchrun may take half a minute to end the other ranks.
                self._failure, self._cause = found, found.cause
        if self._failure is not None and self._ends.tell_lingering(self._members):
            self._cause = cause.with_lingering(self._failure, self._members, self._ends.lingering).cause

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self._relay.requests.arrived, zmq.POLLIN)
        for handle in self._exits.handles:
            poller.register(handle, zmq.POLLIN)
        poller.poll(_TURN_WHILE_ENDING_MS if self._orders.ending else _QUIET_TURN_MS if self._is_quiet() else _TURN_MS)

    def _is_quiet(self) -> bool:
        """Say whether all ranks are there, and nothing has to be looked for to be noticed."""
        return (
            self._state == "running"
            and not self._leaving
            and not self._orphaned
            and self._exits.shows_all
            and len(self._exits.alive()) >= states.ranks_here(self._run, self._run.world)
        )

    def _conclude(self, problem: str | None) -> None:
        self._relay.actions.close()
        self._orders.await_parts()
        self._find_ranks()
        self._note_exits()
        # What the head of a run on several hosts tells for all of them is only recorded here.
        told = self._others.conclusion is not None
        publish = self._relay.record if told or self._relay.hosts.role == "branch" else self._relay.events.add
        if self._orders.killed_by is not None:
            self._relay.hosts.conclude()
            if not told:
                publish(wire.Event(time.time_ns(), self._orders.summary, None, "warning"))
        elif self._run.launched:
            # The processes that outlive another launcher's job are that launcher's.
            self._clear_up()
        judgement = self._judge(problem)
        if judgement.warning and not told:
            publish(wire.Event(time.time_ns(), judgement.warning, None, "warning"))
        if self._orders.killed_by is None:
            # Before the branches leave, which record it as well.
            for each in self._others.unknown():
                self._say(*each)
        at_ns = self._others.conclude(
            wire.Conclude(0, judgement.state, judgement.exit_code, judgement.cause, judgement.rank, judgement.kind)
        )
        text, level = states.describe_end(judgement.state, judgement.cause)
        publish(wire.Event(at_ns, text, None, level))
        self._state, self._exit_code, self._cause = judgement.state, judgement.exit_code, judgement.cause
        end = {
            "state": judgement.state,
            "exit_code": judgement.exit_code,
            "ended_at_ns": self._end_ns(),
            "cause": judgement.cause,
            "cause_rank": judgement.rank,
            "cause_kind": judgement.kind,
        }
        self._relay.finish(run=msgspec.structs.replace(self._run, **end), at_ns=at_ns)
        # Once the record says that the run is over, another run may take its name and directory: all work in
        # the directory comes before that.
        self._directory.remove_sockets()
        self._presence.end()
        self._write(**end)
        self._claim.release()
        self._relay.supervise(self._supervision)

    def _end_ns(self) -> int:
        now = time.time_ns()
        if self._run.launched or self._orders.killed_by is not None:
            return now
        return cause.last_end_ns(self._directory.members(), self._exits.at_ns, now)

    def _clear_up(self) -> None:
        """End the processes that outlive the run, after a moment in which data workers end by themselves."""
        deadline = time.monotonic() + _TEARDOWN_S
        while processes.find(self._run, self._directory.members()):
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            grace = escalation.Grace(self._run.grace_s)
            left = escalation.end(self._directory, self._run, grace, lambda line: self._say(line, "warning"))
            self._say(f"left behind by the run: {left.text}", "warning")
            return

    def _judge(self, problem: str | None) -> cause.FirstCause:
        if problem is not None:
            return cause.FirstCause("failed", 1, clean_line(problem))
        told = self._others.conclusion
        if self._orders.killed_by is not None and (told is None or told.state != "killed"):
            why = f"killed by {self._orders.killed_by}{self._orders.left}"
            if (failure := self._failure) is not None and failure.state == "failed":
                # It had failed before somebody cleared up what was left of it.
                return replace(failure, cause=f"{failure.cause}; then {why}")
            return cause.FirstCause("killed", 128 + signal.SIGTERM, why)
        if told is not None:
            return cause.FirstCause(told.state, told.exit_code, told.cause, told.cause_rank, kind=told.cause_kind)
        return self._first_cause(self._directory.members(), self._exit_code)

    def _first_cause(self, members: Mapping[int, Member], exit_code: int | None = None) -> cause.FirstCause:
        return self._ends.first_cause(self._run, members, exit_code, self._relay.circumstances.hang)

    def _write(self, **changes: object) -> None:
        try:
            if self._directory.read().run_id != self._run.run_id:
                raise RunDirError("another run has taken its name")
            self._run = self._directory.update(**changes)
        except (OSError, RunDirError) as error:
            _log.error("run record: %s", error)

    @property
    def _supervision(self) -> Supervision:
        leader = None if self._launcher is None or self._launcher.is_over() else self._launcher.process
        ends_at_ns, actions = self._scheduler.ends_at_ns, self._relay.actions
        return Supervision(
            state=self._state,
            cause=self._cause,
            refused=self._relay.refused,
            ending=self._orders.countdown,
            ends_at=None if ends_at_ns is None else ends_at_ns / 1e9,
            awaits=self._awaited.text(leader, self._members.values(), lives=bool(self._exits.alive())),
            action=actions.under_way,
            waiting=actions.waiting,
        )

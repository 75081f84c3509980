"""The agent of one rank: its parts, its state and its end."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from ddptop import agent
from ddptop.agent.launcher.position import Position
from ddptop.agent.rank.calls.saving import Saving
from ddptop.agent.rank.calls.script import Script
from ddptop.agent.rank.checksums.checks import Checks
from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks import around, losses
from ddptop.agent.rank.hooks.around import StepHooks
from ddptop.agent.rank.hooks.marks import Marks
from ddptop.agent.rank.hooks.totals import Totals
from ddptop.agent.rank.inspection.diagnoses import Diagnoses
from ddptop.agent.rank.inspection.inspecting import Inspecting
from ddptop.agent.rank.inspection.warned import Warned
from ddptop.agent.rank.process import crashes, descriptors, enrolment, observing
from ddptop.agent.rank.process.account import Account
from ddptop.agent.rank.process.leaving import ScriptEnd
from ddptop.agent.rank.process.output import Output
from ddptop.agent.rank.process.rendezvous import Participant
from ddptop.agent.rank.process.visibility import Visibility
from ddptop.agent.rank.publisher import Publisher
from ddptop.agent.rank.records import device_time
from ddptop.agent.rank.records.device import Gauges
from ddptop.agent.rank.records.health import Health
from ddptop.agent.rank.records.own_rate import OwnRate
from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.rank.records.threads import Pools
from ddptop.agent.run.files.presence import Presence
from ddptop.agent.run.rundir import RANK_VARIABLE, Member, Process, RunDir, identify
from ddptop.agent.run.switches import checking, recording
from ddptop.agent.startup import pythonpath
from ddptop.agent.startup.version import VERSION
from ddptop.agent.text import shorten, span
from ddptop.agent.wire import HELD, PROTOCOL, Beat, Event, Hello, Inspection, Saved

_EXIT: Final = os._exit
_TICK_S: Final = 1.0
_MOST_NOTICES: Final = 16
_NEWS_NS: Final = 500_000_000
"""Time for which the training thread was held up from which on that is an event."""

_Value = TypeVar("_Value")

_forking: list[Session | None] = []
"""The session of this process, None once it has left; empty before the first."""


def _before_fork() -> None:
    for session in filter(None, _forking):
        session.diagnoses.counting.spoil()


def _after_fork() -> None:
    for session in filter(None, _forking):
        session._abandon()


class Session:
    """The state of the agent inside one rank's process.

    The training thread writes, by its hooks; the publisher's thread reads.
    Other values are plain attributes: each has one writer, and a reader may get the value before the last one.
    """

    def __init__(
        self,
        directory: RunDir,
        *,
        run_id: str,
        program: str,
        log: str | None,
        output: Output | None = None,
        position: Position | None = None,
        step_hooks: StepHooks | None = None,
        record_before: Member | None = None,
    ) -> None:
        self.step_hooks = step_hooks
        """Of a rank that has joined in the middle of its training, the hooks of all optimizers."""
        self._record_before = record_before
        """Its record up to then."""
        self._leaves = False
        """It leaves the run at the end of the present step."""
        self.has_left = False
        """True once its hooks are gone, and the training goes on without the agent."""
        position = position or Position.from_environment(os.environ, program)
        self.owner = os.getpid()
        """The process of this agent, 0 once it is handed over; a forked child has a copy with the same owner."""
        self.rank = position.rank
        self.faults = Faults()
        self.stamps = Stamps()
        self.gate = Gate()
        self.health = Health()
        self.is_loss_unsure = False
        """True where the last loss may be 1/k of the script's; see `meter.is_loss_unsure`."""
        self.notices: deque[Event] = deque(maxlen=_MOST_NOTICES)
        """Events of this rank that are to be published."""
        generation = enrolment.generation(directory, position)
        self.rendezvous = Participant(directory, position, os.environ, self.faults, self.notify, generation)
        self.collectives = Collectives(self.stamps, self.faults)
        self.marks = Marks(self)
        self.sees_forward = False
        """True once a forward pass of DDP or FSDP2 was observed; before that, all from data to backward is forward."""
        self.backward_on: Any = None
        """The tensors on which `backward` was called, while it runs."""
        self.device: str | None = None
        self.backend: str | None = None
        self.torch_version: str | None = None
        self.timeout_s: float | None = None
        """Timeout of collectives in the default process group."""
        self.stopped = False
        """True once the script was made to end at a step boundary."""
        self.directory = directory
        self._presence = Presence(directory, self.rank)
        self._visibility = Visibility(directory)
        self._gauges, self._pools = Gauges(self.faults), Pools()
        self._start_phase = "imports"
        self._ended = False
        self._script_end = ScriptEnd(self.faults)
        self._script = Script(self.stamps, self.faults)
        self.totals = Totals(lambda: self.gate.completed)
        """The steps of the training as the library knows them that runs its loop."""
        self._output = Output() if output is None else output
        self._lost_noted = 0
        # All ranks run the same code: one tells what torch warns of.
        self._warned = Warned(self._output.log if self.rank == 0 else None, self._output.begin)
        self._tick_due = 0.0
        self.hello = Hello(
            protocol=PROTOCOL,
            run=shorten(directory.name, 255),
            run_id=shorten(run_id, 255),
            rank=self.rank,
            local_rank=position.local_rank,
            world=position.world,
            pid=os.getpid(),
            started_at_ns=time.time_ns(),
            host=shorten(socket.gethostname(), 255),
            # Undecodable bytes of the command line are surrogates in this text, which `shorten` replaces.
            program=shorten(program, 4096),
            agent_version=VERSION,
            python_version=platform.python_version(),
            generation=generation,
        )
        process = identify(os.getpid()) or Process(os.getpid(), time.time())
        self._inspecting = Inspecting(self.collectives, self.faults, process, self.hello.started_at_ns)
        self.diagnoses = Diagnoses(
            self.rank, directory, self.stamps, self.collectives, self.gate, self.faults, self.notify
        )
        self.saving = Saving(self._script, self.gate, self.diagnoses.probing, self.faults)
        self._account = Account(
            directory,
            Member(
                rank=self.rank,
                local_rank=self.hello.local_rank,
                world=self.hello.world,
                process=process,
                host=self.hello.host,
                generation=self.hello.generation,
                pub=directory.address(self.rank, "pub"),
                cmd=directory.address(self.rank, "cmd"),
                log=log,
                log_begin=self._output.begin if record_before is None else record_before.log_begin,
                joined=record_before is not None,
            ),
            self.faults,
        )
        self.checks = Checks(
            self.rank,
            self.hello.generation,
            self.faults,
            self._told(checking.VARIABLE, checking.from_environment, checking.Checking()),
        )
        self._fixed_every = self._told(recording.VARIABLE, recording.from_environment, None)
        self.stamps.every = self._fixed_every or 1
        self.own_rate = OwnRate(self.stamps, is_fixed=self._fixed_every is not None)
        self.records_bytes = self._told(recording.MEMORY_VARIABLE, recording.memory_bytes, recording.MEMORY_MIB << 20)
        """Memory that the newest records may take."""
        self.record_ns: int | None = None
        """CPU time of the agent's thread for a record."""
        self._publisher: Publisher | None = None

    def _told(self, variable: str, read: Callable[[Mapping[str, str]], _Value], otherwise: _Value) -> _Value:
        """Return what the environment says; where nobody can tell, that is a fault, and `otherwise` holds."""
        try:
            return read(os.environ)
        except ValueError as problem:
            self.faults.note(f"{variable}: say {problem}")
            return otherwise

    @property
    def heard(self) -> bool:
        """True where the rank can publish: its sockets are bound."""
        return self._publisher is not None

    def open(self) -> None:
        """Bind the sockets, begin to publish, and write the rank's record into the run directory.

        Raises:
            Exception: nothing can be published; the record is written all the same.
        """
        self._presence.begin()
        self._inspecting.dead_threads.watch()
        self.rendezvous.begin()
        # A forked child (a data worker) has neither our thread nor our sockets.
        if not _forking:
            # Nothing removes such a function, and a rank may join and leave many times.
            os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
        _forking[:] = [self]
        if self._output.problem is not None:
            self.faults.note(f"rank {self.rank}'s {self._output.problem}")
        try:
            publisher = Publisher(
                self, self.directory.address(self.rank, "pub"), self.directory.address(self.rank, "cmd")
            )
            self._publisher = publisher
            publisher.start()
        except BaseException:
            self._publisher = None
            raise
        finally:
            self._account.begin()
        agent._listener = self
        around.replace(os, "_exit", self._exit)

    def close(
        self, exit_code: int | None, error: str | None, traceback: str | None, left: TracebackType | None = None
    ) -> None:
        """Record how the script ended, publish the last records, and close the sockets; not in a forked child."""
        self.end(exit_code, error, traceback, left)
        self.leave()

    def end(
        self, exit_code: int | None, error: str | None, traceback: str | None, left: TracebackType | None = None
    ) -> None:
        """Record how the script ended, and publish on while the process lives: it may stand in an exit function.

        `left` is the trace of the exception, or of a `sys.exit`.
        """
        if os.getpid() != self.owner:
            return
        if not self.stopped:
            self._script_end.note_left(error, traceback, left)
        if not exit_code:
            self.marks.close()
        self._tell_last()
        self._ended = True
        self.diagnoses.close()
        crashes.end()
        self.rendezvous.end()
        stopped_by = self.gate.ended_by if self.stopped and not exit_code else None
        with self.faults.noted("reading the end of its output"):
            error = self._output.explain(exit_code, error)
        end = self._script_end
        end.wait()
        with self.faults.noted("ending"):
            calls = self._inspecting.newest_calls() if exit_code else None
            self._account.end(
                exit_code, error, traceback, stopped_by, self.gate.completed, end.awaits, end.left_at, calls
            )

    def leave(self) -> None:
        """Publish the last records, and close the sockets: the process ends."""
        if os.getpid() != self.owner:
            return
        os._exit = _EXIT
        try:
            with self.faults.noted("leaving"):
                if self._publisher is not None:
                    self._publisher.stop()
        finally:
            descriptors.give_up()
            self._presence.end()

    def hand_over(self, number: int) -> bool:
        """Leave the run to so many processes that the script is about to start; return False where it stays here.

        It is left where a shell has started this process alone. The agent starts in each of those processes once it
        joins a process group; this one is what starts them, as torchrun is elsewhere.
        """
        run = self.directory.read()
        if run.launched or run.world > 1 or run.torchrun is not None or os.getpid() != self.owner:
            return False
        self.owner = 0
        os._exit = _EXIT
        agent._listener = None
        crashes.end()
        self.rendezvous.end()
        if self._publisher is not None:
            self._publisher.stop()
        self._account.withdraw()
        descriptors.give_up()
        self._presence.end()
        observing.renew(
            self.directory,
            world=number,
            local_world=number,
            torchrun=identify(os.getpid()),
            command=(self.hello.program,),
        )
        os.environ.pop(RANK_VARIABLE, None)
        os.environ.update(pythonpath.environment(os.environ))
        return True

    def leave_run(self) -> str:
        """Take every hook out at the end of the present step; return the reason where that is refused."""
        if self._record_before is None:
            return "its agent was there from the start, and stays"
        if self.gate.limit is not None:
            return "it is held, or about to be; resume the run first"
        self._leaves = True
        self.stamps.eventful = 0
        return ""

    def stay(self) -> None:
        """Do not leave, unless that is done."""
        self._leaves = False

    def take_out(self) -> None:
        """Take everything of the agent's out of the training, which goes on as if it had never joined."""
        note = self.faults.note
        with self.faults.noted("leaving"):
            self.diagnoses.close()
        agent._listener = None
        os.environ.pop(RANK_VARIABLE, None)
        stay = around.put_back(note)
        # Behind that, which lets its file be closed.
        crashes.end()
        if stay:
            # What others have wrapped since finds another thread than its own, and passes every call on.
            self.stamps.thread = 0
            self.notify(
                f"others have wrapped hooks of the agent, which stay and do nothing: {', '.join(stay)}", "warning"
            )
        _forking[:] = [None]
        self.has_left = True

    def depart(self) -> None:
        """End behind `take_out`, in the agent's thread, whose sockets are closed."""
        if self._record_before is not None:
            self.rendezvous.end()
            descriptors.give_up()
            steps = max(self._record_before.steps, self.gate.completed)
            self._account.hand_back(msgspec.structs.replace(self._record_before, steps=steps))
            self._presence.end()

    def _exit(self, status: int) -> NoReturn:
        """Tell the last step, in a fraction of a second, before the script ends its process at once."""
        try:
            if os.getpid() == self.owner and not self._ended:
                self._tell_last()
            self.leave()
        finally:
            _EXIT(status)

    def _abandon(self) -> None:
        """In a forked child: replace the locks that the agent's thread may hold, which does not exist there."""
        agent._listener = None
        descriptors.give_up()
        self.gate.renew()
        self.stamps.abandon()
        self.diagnoses.abandon()
        device_time.CAPTURES.renew()

    def tick(self) -> None:
        """Once a second: keep the run directory in use, repeat a failed record, and note lost output as a fault."""
        if time.monotonic() < self._tick_due:
            return
        self._tick_due = time.monotonic() + _TICK_S
        self._presence.tick()
        self._visibility.tick()
        if self._ended and self._script_end.look():
            self._account.wait(self._script_end.awaits)
        self.marks.tick()
        if not self._account.written:
            self._account.begin()
        if (counted := self.rendezvous.counted()) > self.hello.generation:
            self._recount(counted)
        with self.faults.noted("reading its log"):
            for text in self._warned.turn():
                self.notify(f"torch warns: {text}", "warning")
        lost = self._output.lost
        if lost != self._lost_noted:
            self._lost_noted = lost
            self.faults.note(f"{lost:,} bytes of its output are lost: {self._output.reason} ({self._output.log})")

    def _recount(self, generation: int) -> None:
        """Belong to another start of the group than was counted here: other hosts have seen earlier ones."""
        self.hello = msgspec.structs.replace(self.hello, generation=generation)
        self.checks.generation = generation
        if self._publisher is not None:
            self._publisher.recount(generation)
        self._account.recount(generation)

    def starting(self, phase: str) -> None:
        """Note the activity of the script before its first step."""
        self._start_phase = phase

    def end_step(self, *, by_hand: bool = False) -> None:
        """Check the parameters where that is due, and end the current step; the step counts whatever fails here.

        Where steps are marked by hand, the end of an optimizer's is none.
        """
        if self.marks.by_hand and not by_hand:
            return
        step = self.gate.completed + 1
        try:
            self.checks.boundary(step)
        except Exception as error:
            self.faults.note("checksums of parameters", error)
        if self._pools.due:
            try:
                self._pools.look()
            except Exception as error:
                self.faults.note("reading its numbers of threads", error)
        try:
            self.stamps.cut(step)
        except Exception as error:
            # A failed device raises in the next call to it: that call must be the script's.
            self.faults.note("the end of a step", error)

    def count(self, *, by_hand: bool = False) -> None:
        """Count the step, diagnose where that is due, and hold the training thread here while the group is paused.

        Where steps are marked by hand, an optimizer's is none.

        Raises:
            SystemExit: the run is being stopped; the script unwinds as if it had called `sys.exit(0)`.
            BaseException: what a signal handler of the script has raised meanwhile.
        """
        if self.marks.by_hand and not by_hand:
            return
        self.gate.completed += 1
        if self._leaves:
            self.take_out()
            return
        if self.diagnoses.boundary(self.gate.completed, self.device, self.timeout_s):
            self._go_on()
            (doing, took_ns), self.gate.was_held_up = self.gate.was_held_up, ("", 0)
            if took_ns >= _NEWS_NS:
                self.notify(f"held for {span(took_ns / 1e9)}: {doing}", "info")
        self.wait()

    def recount(self) -> None:
        """Begin to count anew: what was counted so far were no steps of the training."""
        self._tell_last()
        self.gate.recount()
        self.totals.forget()
        # As in `_go_on`.
        with self.faults.noted("counting anew"):
            self.stamps.renumber()

    def count_from(self, steps: int) -> None:
        """Begin, in the middle of a training, with the step behind so many."""
        self.gate.completed = steps
        self.stamps.renumber(steps)

    def wait(self) -> None:
        """Hold the training thread at the boundary of the step that was counted last, while the group is paused.

        Raises:
            SystemExit: as `count`.
        """
        gate = self.gate
        if gate.limit is None:
            return
        self._tell_last()
        self.diagnoses.counting.spoil()  # it would count what is done while the thread is held
        if gate.wait():
            self._go_on()
        if gate.ended_by is not None:
            self.stopped = True
            raise SystemExit(0)

    def _go_on(self) -> None:
        """Begin the present step anew, so that the time for which the training thread was held belongs to none."""
        # A failed device raises in the next call to it: that call must be the script's.
        with self.faults.noted("going on after a pause"):
            self.stamps.resume()

    def _tell_last(self) -> None:
        with self.faults.noted("the record of the last step"):
            steps = self.stamps.steps
            self.stamps.tell_last(self.gate.completed, self.collectives.of_counted(steps - 1), losses.later)

    def announce(self, total_steps: object, note: object, coordinates: object, samples: object, tokens: object) -> None:
        """See `ddptop.agent.start`."""
        self._script.announce(total_steps, note, coordinates, samples, tokens)

    @property
    def announced(self) -> tuple[int | None, int | None]:
        """Samples and tokens of a step, where its script has given them."""
        return self._script.samples, self._script.tokens

    def log(self, metrics: Mapping[str, object]) -> None:
        """See `ddptop.agent.log`."""
        self._script.log(metrics)

    def step(self) -> None:
        """See `ddptop.agent.step`."""
        self.marks.called()

    def register(self, save: object) -> None:
        """See `ddptop.agent.on_checkpoint`."""
        self.saving.register(save)

    def notify(self, text: str, level: str) -> None:
        """Publish a line as an event of this rank, with one of the levels of `wire.Event`; called by any thread."""
        self.notices.append(Event(time.time_ns(), text, self.rank, level))

    def misused(self, call: str, error: Exception) -> None:
        """Count a failed call of a function of `ddptop.agent`."""
        self.faults.note(call, error)

    def record_every(self, every: int) -> str | None:
        """Record one step in so many from the next boundary on; return the reason where that is refused."""
        if self._fixed_every is not None:
            return f"{recording.VARIABLE} fixes it: one step in {self._fixed_every} is recorded"
        if every not in recording.POSSIBLE:
            return f"one step in {every} cannot be recorded: it is a power of two up to {recording.MOST}"
        self.own_rate.order(every)
        return None

    @property
    def state(self) -> str:
        """One of `starting`, `running`, `paused`, `held`, `ended`."""
        if self._ended:
            return "ended"
        if self.gate.purpose:
            return "held"
        if self.gate.held:
            return "paused"
        return "running" if self.stamps.begun else "starting"

    def beat(self, seq: int, refused: int) -> Beat:
        """Return a sign of life; called by the publisher's thread.

        Raises:
            Exception: one of its values cannot be read.
        """
        reading = self._gauges.read(self.device)
        self._inspecting.notice(self.gate.completed)
        self.diagnoses.fullness.take(self.device, self.gate.completed, reading.memory_bytes)
        bare = self.bare_beat(seq, refused)
        own = self._script.total_steps
        told = self.totals.current() if own is None else None
        calls, calls_in = self.collectives.since(bare.step)
        return msgspec.structs.replace(
            bare,
            activity=self._activity(bare.state),
            **reading._asdict(),
            device=self.device,
            backend=self.backend,
            torch_version=self.torch_version,
            total_steps=own if told is None else told.steps,
            total_by=None if told is None else told.by,
            note=self._script.note,
            mechanism=self.collectives.mechanism,
            outstanding=self.collectives.outstanding,
            timed_every=self.collectives.timed_every,
            health=self.health.trouble,
            timeout_s=self.timeout_s,
            coordinates=self._script.coordinates,
            communicated=self.collectives.communicated,
            cost_ns=self.stamps.cost.recorded_ns,
            counted_cost_ns=self.stamps.cost.counted_ns,
            record_ns=self.record_ns,
            is_loss_unsure=self.is_loss_unsure,
            flops=self.diagnoses.counting.flops,
            peak=self.diagnoses.counting.peak,
            threads=self._pools.threads(self._gauges.children),
            calls=calls,
            calls_in=calls_in,
        )

    def _activity(self, state: str) -> str:
        match state:
            case "starting":
                return self._start_phase
            case "held":
                return self.gate.purpose
            case "paused":
                return self.gate.doing or f"held at step {self.gate.completed:,}"
            case "ended":
                return self._script_end.activity
        return self.stamps.activity

    def inspect(self, *, stacks: bool) -> Inspection:
        """Return where the rank stands; called by the publisher's thread."""
        state = self.state
        return msgspec.structs.replace(
            self._inspecting.inspect(self.rank, stacks=stacks),
            state=state,
            activity=self._activity(state),
            step=self.gate.completed,
            cpu_percent=self._gauges.last.cpu_percent,
            generation=self.hello.generation,
        )

    def bare_beat(self, seq: int, refused: int) -> Beat:
        """Return a sign of life with the agent's own counts only."""
        state, held_up = self.state, self.gate.held_up
        return Beat(
            rank=self.rank,
            at_ns=time.time_ns(),
            state=state,
            activity=self.stamps.activity if state == "running" else "",
            step=self.gate.completed,
            step_at_ns=self.stamps.completed_at,
            seq=seq,
            dropped=self.stamps.dropped,
            refused=refused,
            faults=self.faults.count,
            fault=self.faults.last,
            held_at_ns=held_up[1] if held_up else self.gate.held_at_ns if state in HELD else None,
            released_at_ns=self.gate.released_at_ns,
            checkpoints=self.saving.function is not None,
            generation=self.hello.generation,
            recorded_every=self.stamps.every,
            is_fixed=self._fixed_every is not None,
            steps_are=self.marks.steps_are,
            hold=self.gate.holding(),
            saved=self.gate.untold if isinstance(self.gate.untold, Saved) else None,
        )

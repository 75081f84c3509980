"""The agent of one rank: its parts, its state, its beginning and end."""

from __future__ import annotations

import functools
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

from ddptop import agent
from ddptop.agent.rank import given
from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.commands.follower import Follower
from ddptop.agent.rank.commands.gate import Gate, GateError, Saved
from ddptop.agent.rank.faults import Faults, describe
from ddptop.agent.rank.process import ancestry
from ddptop.agent.rank.process.account import Account
from ddptop.agent.rank.process.enrolment import Standing
from ddptop.agent.rank.process.output import Output, say
from ddptop.agent.rank.publisher import Publisher
from ddptop.agent.rank.records import device_time
from ddptop.agent.rank.records.device import Gauges, Reading
from ddptop.agent.rank.records.health import Health
from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.run.decisions import Decisions
from ddptop.agent.run.files.presence import Presence
from ddptop.agent.run.rundir import Member, Process, RunDir, identify
from ddptop.agent.text import shorten
from ddptop.agent.version import VERSION
from ddptop.agent.wire import PROTOCOL, Beat, Hello
from ddptop.agent.wire.incoming import LONGEST_NAME, clean_name

MOST_METRICS: Final = 512
"""Names that a script may log; further ones are left out."""
_LONGEST_GIVEN: Final = 4096
"""Characters of such a name that are looked at."""
_MOST_COORDINATES: Final = 8
_LOOK_S: Final = 1.0

_Value = TypeVar("_Value")


class Session:
    """Everything the agent knows inside one rank's process.

    The training thread writes through `stamps`, `cut` and `hold`; the publisher's thread reads.
    Plain attributes carry the rest: each has one writer, and a reader may be a beat behind.
    """

    def __init__(
        self,
        directory: RunDir,
        *,
        run_id: str,
        program: str,
        log: str | None,
        output: Output | None = None,
        standing: Standing | None = None,
    ) -> None:
        standing = standing or Standing.told(os.environ)
        self.owner = os.getpid()
        """The process that this is the agent of; a child that it forks has a copy, and is another process."""
        self.rank = standing.rank
        self.faults = Faults()
        self.stamps = Stamps()
        self.gate = Gate()
        self.follower = Follower(self.gate, Decisions(directory.path), self.faults)
        self.health = Health()
        self.collectives = Collectives(self.stamps, self.faults)
        self.sees_forward = False
        """True once DDP's forward was seen; until then the gap between data and backward is forward."""
        self.backward_on: Any = None
        """What `backward` was called on, while it runs."""
        self.device: str | None = None
        self.backend: str | None = None
        self.torch_version: str | None = None
        self.timeout_s: float | None = None
        """Timeout of collectives in the default process group."""
        self._checkpoint: Callable[[int], object] | None = None
        self._stopped = False
        self.directory = directory
        self._presence = Presence(directory, self.rank)
        self._gauges = Gauges()
        self._start_phase = "imports"
        self._ended = False
        self._total_steps: int | None = None
        self._note: str | None = None
        self._coordinates: dict[str, int] | None = None
        self._names: dict[str, str] = {}
        """Names that the script logs, and as what they are sent."""
        self._output = Output() if output is None else output
        self._lost_told = 0
        self._look_due = 0.0
        self.hello = Hello(
            protocol=PROTOCOL,
            run=shorten(directory.name, 255),
            run_id=shorten(run_id, 255),
            rank=self.rank,
            local_rank=standing.local_rank,
            world=standing.world,
            pid=os.getpid(),
            started_at_ns=time.time_ns(),
            host=shorten(socket.gethostname(), 255),
            # As the system gave it: bytes that are no text stand in it as what no encoding takes.
            program=shorten(program, 4096),
            agent_version=VERSION,
            python_version=platform.python_version(),
            generation=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
        self._account = Account(
            directory,
            Member(
                rank=self.rank,
                local_rank=self.hello.local_rank,
                world=self.hello.world,
                process=identify(os.getpid()) or Process(os.getpid(), time.time()),
                host=self.hello.host,
                generation=self.hello.generation,
                pub=directory.address(self.rank, "pub"),
                cmd=directory.address(self.rank, "cmd"),
                log=log,
            ),
            self.faults,
        )
        self._publisher: Publisher | None = None

    @property
    def heard(self) -> bool:
        """True where somebody can hear of this rank: its sockets are there."""
        return self._publisher is not None

    def open(self) -> None:
        """Begin to listen and to publish, and say so in the run directory.

        Raises:
            Exception: nothing can be published; that the rank is there is written down all the same.
        """
        self._presence.begin()
        # A forked child (a data worker) has neither our thread nor our sockets.
        os.register_at_fork(after_in_child=self._let_go)
        if self._output.problem is not None:
            self.faults.tell(f"rank {self.rank}'s {self._output.problem}")
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

    def close(self, exit_code: int | None, error: str | None, traceback: str | None) -> None:
        """Say how the script ended, publish what is left, and take the sockets away; nothing in a forked child."""
        if os.getpid() != self.owner:
            return
        self._ended = True
        stopped_by = self.gate.ended_by if self._stopped and not exit_code else None
        try:
            self._account.end(exit_code, error, traceback, stopped_by, self.gate.completed)
            if self._publisher is not None:
                self._publisher.stop()
        except Exception as problem:
            self.faults.note("ending", problem)
        finally:
            self._presence.end()

    def _let_go(self) -> None:
        """In a forked child: leave the training alone; what the thread of the agent held is held for good there."""
        agent._listener = None
        self.gate = Gate()
        self.stamps.abandon()
        device_time.CAPTURES.renew()

    def look_after(self) -> None:
        """Notice, once a second, what happens without a call: output that is lost, a record that was not written."""
        if time.monotonic() < self._look_due:
            return
        self._look_due = time.monotonic() + _LOOK_S
        self._presence.tick()
        if not self._account.written:
            self._account.begin()
        lost = self._output.lost
        if lost != self._lost_told:
            self._lost_told = lost
            self.faults.tell(f"{lost:,} bytes of its output are lost: {self._output.reason} ({self._output.log})")

    def starting(self, phase: str) -> None:
        """Note what the script does before its first step."""
        self._start_phase = phase

    def cut(self) -> None:
        """End a step's record."""
        self.stamps.cut(self.gate.completed + 1)

    def hold(self) -> None:
        """Count the step, and stay at its boundary while the group is paused.

        Raises:
            SystemExit: the run is being stopped; the script unwinds as if it had called `sys.exit(0)`.
        """
        if self.gate.boundary():
            try:
                self.stamps.resume()
            except Exception as error:
                # A device that has failed meanwhile says so to whoever asks next: that must be the script.
                self.faults.note("going on after a pause", error)
        if self.gate.ended_by is not None:
            self._stopped = True
            raise SystemExit(0)

    def announce(self, total_steps: object, note: object, coordinates: object) -> None:
        """See `ddptop.agent.start`."""
        self._total_steps = self._taken("start(total_steps)", given.count, total_steps)
        self._note = self._taken("start(note)", functools.partial(given.line, limit=200), note)
        if coordinates is not None:
            self._coordinates = self._taken("start(coordinates)", self._places, coordinates)

    def _taken(self, what: str, read: Callable[[object], _Value], value: object) -> _Value | None:
        """Return a value as `read` takes it, None where it is none, or cannot be taken."""
        if value is None:
            return None
        try:
            return read(value)
        except Exception as error:
            self.faults.note(what, error)
            return None

    def _places(self, coordinates: object) -> dict[str, int] | None:
        """Return of a mapping what can be taken, up to where it raises."""
        found: dict[str, int] = {}
        items = iter(coordinates.items())  # type: ignore[attr-defined]
        try:
            for index, (name, where) in enumerate(islice(items, _MOST_COORDINATES + 1)):
                if index == _MOST_COORDINATES:
                    raise ValueError(f"more than {_MOST_COORDINATES}; the rest is left out")
                spelled = self._taken("start(coordinates)", functools.partial(given.line, limit=20), name)
                place = self._taken("start(coordinates)", given.count, where)
                if spelled is not None and place is not None:
                    found[spelled] = place
        except Exception as error:
            self.faults.note("start(coordinates)", error)
        return found or None

    def log(self, metrics: Mapping[str, object]) -> None:
        """See `ddptop.agent.log`."""
        for name, value in metrics.items():
            try:
                known = self._names.get(name) or self._name(name)
                self.stamps.metric(known, given.number(value))
            except Exception as error:
                self.faults.note(f"log({self._names.get(name, '')})", error)

    def _name(self, name: str) -> str:
        if len(self._names) >= MOST_METRICS:
            raise ValueError(f"more than {MOST_METRICS} names; the rest is left out")
        whole = given.line(name, _LONGEST_GIVEN)
        known = self._names[name] = clean_name(whole)
        if known != whole:
            self.faults.tell(f"log({whole[:60]}…): longer than {LONGEST_NAME} characters; shown as {known}")
        return known

    def register(self, save: object) -> None:
        """See `ddptop.agent.on_checkpoint`."""
        if callable(save):
            self._checkpoint = save
        else:
            self.misused("on_checkpoint", TypeError(f"{type(save).__name__} cannot be called"))

    def misused(self, call: str, error: Exception) -> None:
        """Count a call of `ddptop.agent` that could not be taken in."""
        self.faults.note(call, error)

    @property
    def checkpoints(self) -> bool:
        """True where the script has said how to save a checkpoint."""
        return self._checkpoint is not None

    @property
    def stopped(self) -> bool:
        """True once the script was made to end at a step boundary."""
        return self._stopped

    def save(self, token: str) -> Saved | None:
        """Have the held training thread save a checkpoint; return what came of it, None meanwhile.

        Raises:
            GateError: nothing can be saved now.
        """
        save = self._checkpoint
        if save is None:
            raise GateError("its script has registered no checkpoint function (ddptop.agent.on_checkpoint)")
        return self.gate.save(token, functools.partial(self._call, save))

    def _call(self, save: Callable[[int], object]) -> Saved:
        began = time.monotonic_ns()
        try:
            where = save(self.gate.completed)
        except Exception as error:  # the script's own, told to whoever asked
            return Saved(False, describe(error, 300), time.monotonic_ns() - began)
        took_ns = time.monotonic_ns() - began
        return Saved(True, self._taken("where on_checkpoint's function saved", given.path, where) or "", took_ns)

    @property
    def state(self) -> str:
        """Of `starting`, `running`, `paused`, `ended`."""
        if self._ended:
            return "ended"
        if self.gate.held:
            return "paused"
        return "running" if self.stamps.begun else "starting"

    def beat(self, seq: int, refused: int) -> Beat:
        """Return a sign of life; called by the publisher's thread.

        Raises:
            Exception: something that it would tell cannot be had.
        """
        state = self.state
        activity = {
            "starting": self._start_phase,
            "paused": "saving a checkpoint" if self.gate.working else f"held at step {self.gate.completed}",
            "ended": "its script has ended",
        }
        reading = self._read_gauges()
        return Beat(
            rank=self.rank,
            at_ns=time.time_ns(),
            state=state,
            activity=activity.get(state, self.stamps.activity),
            step=self.gate.completed,
            step_at_ns=self.stamps.completed_at,
            seq=seq,
            memory_bytes=reading.memory,
            memory_total_bytes=reading.memory_total,
            cpu_percent=reading.cpu,
            device_percent=reading.device,
            device=self.device,
            backend=self.backend,
            torch_version=self.torch_version,
            total_steps=self._total_steps,
            note=self._note,
            mechanism=self.collectives.mechanism,
            outstanding=self.collectives.outstanding,
            timed_every=self.collectives.timed_every,
            dropped=self.stamps.dropped,
            refused=refused,
            faults=self.faults.count,
            fault=self.faults.last,
            health=self.health.trouble,
            held_at_ns=self.gate.held_at_ns if state == "paused" else None,
            timeout_s=self.timeout_s,
            checkpoints=self.checkpoints,
            coordinates=self._coordinates,
            generation=self.hello.generation,
        )

    def bare_beat(self, seq: int, refused: int) -> Beat:
        """Return a sign of life of what the agent counts itself."""
        state = self.state
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
            held_at_ns=self.gate.held_at_ns if state == "paused" else None,
            checkpoints=self.checkpoints,
            generation=self.hello.generation,
        )

    def _read_gauges(self) -> Reading:
        try:
            return self._gauges.read(self.device)
        except Exception as error:
            # Without descriptors there is no look into /proc; the sign of life is worth more.
            self.faults.note("reading memory and load", error)
            return Reading(None, None, None, None)


def open_session(
    directory: RunDir, program: str, run_id: str, output: Output, standing: Standing | None = None
) -> Session | None:
    """Start the agent of this process; None where there can be none, which never hurts the training.

    Where nothing can be published the session is not `heard`, and still writes down how the rank ends.
    """
    session = None
    try:
        session = Session(directory, run_id=run_id, program=program, log=output.log, output=output, standing=standing)
        ancestry.leave_word()
        session.open()
    except Exception as error:
        say(f"ddptop: no agent in this rank ({describe(error)}); the training goes on without")
    return session

"""The far end of a connection: tells of one run of this machine, and acts on it, for somebody on another one.

It speaks over its own stdin and stdout, which are the connection, and ends with it: what it has told ranks to wait for
is cancelled then, as by Ctrl-C; what is decided goes on by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.status import report, survey, takeover
from ddptop.agent.run import base, rundir
from ddptop.agent.run.files import private
from ddptop.agent.run.rundir import ENDED_STATES, RunDir, RunDirError
from ddptop.agent.text import clean_line
from ddptop.agent.version import VERSION
from ddptop.tui.control.waiting import Waiting
from ddptop.tui.link.control import RunControl
from ddptop.tui.link.inspection import RunInspector
from ddptop.tui.link.live import liveness
from ddptop.tui.link.source import Refused
from ddptop.tui.remote import copying, messages
from ddptop.tui.remote.messages import Call, Cancel, Open

LOOK_S: Final = 0.25
SURVEY_S: Final = 1.0
LARGE_S: Final = 3.0
"""Between two looks at the processes of a group of more than `wire.EACH_RECORD` ranks."""
SETTLED_S: Final = 3.0
"""After which what had happened before the near end listened is in the database."""
LEAVE_S: Final = 40.0
"""How long actions that are under way may take once the connection has ended: those that wait are cancelled at once, a
kill is carried out."""
_MOST_CALLS: Final = 16
_RECORD: Final = re.compile(r"(?:run|frozen)\.json|ranks/\d{1,5}\.json|hosts/(?:far|hosts)\.json")

Choose = Callable[[str | None, bool], RunDir]
"""Returns the run of a name, as the verbs choose it; with True, the newest where none is alive."""


def serve(choose: Choose) -> int:
    """Serve the process that has started this one; return the exit code."""
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    # What a library prints must not come between the messages.
    os.dup2(2, 1)
    greeting = messages.Greeting(VERSION, messages.FORM, wire.PROTOCOL, socket.gethostname(), time.time())
    stdout.write(b"\n" + messages.GREETING + msgspec.json.encode(greeting) + b"\n")
    asked = messages.read(stdin, messages.from_near.decode)
    if not isinstance(asked, Open):
        return 1
    say = _Line(stdout)
    try:
        directory = choose(asked.run or None, asked.last)
        run = directory.read()
    except RunDirError as problem:
        say(messages.Missing(str(problem), _listed(), str(base.base())))
        return 1
    say(messages.Opened(directory.name, str(directory.path), str(base.base())))
    _Serving(directory, run, asked, say).carry_out(stdin)
    return 0


class _Line:
    """Writes messages, from any thread."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, message: msgspec.Struct) -> None:
        data = memoryview(messages.framed(message))
        with self._lock:
            while data:
                data = data[self._stream.write(data) or 0 :]


class _Serving:
    """One run, and whoever is told of it."""

    def __init__(self, directory: RunDir, run: rundir.Run, asked: Open, say: _Line) -> None:
        self._directory = directory
        self._run = run
        self._say = say
        self._who = clean_line(asked.who, 96)
        self._over = threading.Event()
        self._sent: dict[str, tuple[int, int]] = {}
        """By name of a record that was sent, its inode and its time."""
        self._calls: dict[int, Waiting] = {}
        self._acting: list[threading.Thread] = []
        names = [f"rank-{rank}.log" for rank in range(run.world)] + ["torchrun.log"]
        self._tails = copying.Tails(directory.logs, names) if asked.logs and run.launched else None

    def carry_out(self, stdin: BinaryIO) -> None:
        """Tell and act until the connection ends or the run is gone."""
        listening = threading.Thread(target=self._listen, args=(stdin,), daemon=True)
        try:
            self._tell_all(listening.start)
        except (OSError, ValueError):
            # The connection has ended.
            pass
        except RunDirError as problem:
            with contextlib.suppress(OSError):
                self._say(messages.Gone(str(problem)))
        self._over.set()
        for waiting in list(self._calls.values()):
            waiting.cancel()
        give_up = time.monotonic() + LEAVE_S
        for thread in self._acting:
            thread.join(max(0.0, give_up - time.monotonic()))

    def _tell_all(self, begin: Callable[[], None]) -> None:
        whole = self._run.state in ENDED_STATES
        self._send_database(whole=whole)
        self._send_records()
        self._send_liveness()
        self._send_logs()
        self._say(messages.Ready())
        begin()
        survey_s = SURVEY_S if self._run.world <= wire.EACH_RECORD else LARGE_S
        observer, again_at = self._run.observer, time.monotonic() + SETTLED_S
        survey_at = time.monotonic() + survey_s
        while not self._over.wait(LOOK_S):
            now = time.monotonic()
            run = self._directory.read()
            if run.run_id != self._run.run_id:
                raise RunDirError(f"run {self._directory.name}: another run has taken its name")
            if run.observer != observer and not whole:
                observer, again_at = run.observer, now + SETTLED_S
            if run.state in ENDED_STATES and not whole:
                # Before the record that says so: whoever reads that looks into the database.
                whole = True
                self._send_database(whole=True)
            elif now >= again_at and not whole:
                again_at = now + 3600
                self._send_database(whole=False)
            self._send_records()
            if now >= survey_at:
                self._send_liveness()
                survey_at = time.monotonic() + survey_s
            self._send_logs()

    def _send_records(self) -> None:
        """Send what has changed of the small files; the run's own record last, as it says that the rest is new."""
        there: dict[str, tuple[int, int]] = {}
        for folder in ("ranks", "hosts", ""):
            with contextlib.suppress(OSError), os.scandir(self._directory.path / folder) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    with contextlib.suppress(OSError):
                        if _RECORD.fullmatch(name):
                            status = entry.stat(follow_symlinks=False)
                            there[name] = status.st_ino, status.st_mtime_ns
        for name in self._sent.keys() - there.keys():
            self._say(messages.Record(name, None))
            del self._sent[name]
        for name, stamp in there.items():
            if self._sent.get(name) != stamp:
                with contextlib.suppress(FileNotFoundError):
                    self._say(messages.Record(name, private.read(self._directory.path / name)))
                    self._sent[name] = stamp

    def _send_liveness(self) -> None:
        at = time.time()
        found = takeover.meet(self._directory)
        self._say(messages.Alive(_raw(liveness(self._directory, found, at))))

    def _send_database(self, *, whole: bool) -> None:
        for piece in copying.database(self._directory.database, whole=whole):
            self._say(piece)

    def _send_logs(self) -> None:
        if self._tails is not None:
            for piece in self._tails.added():
                self._say(piece)

    def _listen(self, stdin: BinaryIO) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (message := messages.read(stdin, messages.from_near.decode)) is not None:
                match message:
                    case Call():
                        self._begin(message)
                    case Cancel(id=number):
                        if (waiting := self._calls.get(number)) is not None:
                            waiting.cancel()
        self._over.set()

    def _begin(self, call: Call) -> None:
        self._acting = [thread for thread in self._acting if thread.is_alive()]
        if len(self._acting) >= _MOST_CALLS:
            self._say(messages.Failed(call.id, "Refused", "too much is being done at once; try again"))
            return
        waiting = Waiting(lambda line: self._tell(messages.Told(call.id, line)))
        self._calls[call.id] = waiting
        thread = threading.Thread(target=self._act, args=(call, waiting))
        self._acting.append(thread)
        thread.start()

    def _tell(self, message: msgspec.Struct) -> None:
        # What is under way goes on without the one who asked for it.
        with contextlib.suppress(OSError):
            self._say(message)

    def _act(self, call: Call, waiting: Waiting) -> None:
        try:
            result = self._result(call, waiting)
        except Refused as refusal:
            self._tell(messages.Failed(call.id, type(refusal).__name__, str(refusal)))
        except (RunDirError, OSError) as problem:
            self._tell(messages.Failed(call.id, "Refused", clean_line(str(problem))))
        else:
            self._tell(messages.Done(call.id, _raw(result)))
        finally:
            self._calls.pop(call.id, None)

    def _result(self, call: Call, waiting: Waiting) -> object:
        def progress(line: str) -> None:
            self._tell(messages.Told(call.id, line))

        control = RunControl(
            self._directory,
            self._run,
            self._who,
            count_down=lambda line: self._tell(messages.Told(call.id, line, countdown=True)),
        )
        match call.what:
            case "pause":
                return control.pause(waiting)
            case "step":
                return control.step(call.steps, waiting)
            case "checkpoint":
                return control.checkpoint(waiting)
            case "stop":
                return control.stop(waiting, checkpoint=call.checkpoint)
            case "resume":
                return control.resume()
            case "freeze":
                return control.freeze()
            case "kill":
                return control.kill(call.grace_s, call.aim, progress)
            case "signal":
                return control.signal(call.number, call.aim)
            case "victims":
                return control.victims(call.aim)
            case "processes":
                return control.processes()
            case "resumable":
                return control.resumable()
            case "restart":
                return control.restart(resume=call.resume)
            case "recorded":
                return RunInspector(self._directory, self._run).recorded(call.since)
            case "stacks":
                return RunInspector(self._directory, self._run).ask(
                    call.ranks,
                    native=call.native,
                    heard=lambda heard, asked: self._tell(messages.Heard(call.id, heard, asked)),
                    cancelled=waiting.is_cancelled,
                )
            case "report":
                return report.of(self._directory)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def _listed() -> tuple[str, ...]:
    """Return the runs of this machine with the state of each, the newest first."""
    found = []
    for directory in rundir.runs()[:20]:
        with contextlib.suppress(RunDirError):
            found.append(f"{directory.name} ({survey.look(directory).state})")
    return tuple(found)

"""The near end of a connection: a private copy of the run's small files, kept as they are there, and questions.

A thread takes in all that comes.  What comes is hostile until it is clean: names are those of a run directory, sizes
are bounded, and text is cleaned before anybody sees it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from ddptop.agent import decoding, wire
from ddptop.agent.control import controller, polled
from ddptop.agent.observer.model.situation import Liveness
from ddptop.agent.run.files import private
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.agent.text import clean, clean_line
from ddptop.agent.version import VERSION
from ddptop.tui.link.source import Refused
from ddptop.tui.remote import messages, ssh
from ddptop.tui.remote.messages import Call, Cancel
from ddptop.tui.remote.target import Target
from ddptop.tui.remote.unreachable import Unreachable

PATIENCE_S: Final = 60.0
"""How long the other side may take to greet where nobody has to type anything, and to send all that there is."""
ASKED_S: Final = 300.0
"""The same where somebody may be typing a password."""
MOST_BYTES: Final = 512 << 20
"""Bytes of a run that are copied at most."""
_APART_S: Final = 2.0
"""From so many seconds on that two clocks are apart, it is told."""
_LOOK_S: Final = 0.05
_END_S: Final = 2.0
_LONGEST_LINE: Final = 64 << 10
_RECORD: Final = re.compile(r"(?:run|frozen)\.json|ranks/\d{1,5}\.json|hosts/(?:far|hosts)\.json")
_FILE: Final = re.compile(r"run\.db|logs/(?:rank-\d{1,5}|torchrun)\.log")
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""What a message that cannot be read raises."""
_KINDS: Final[dict[str, type[Refused]]] = {
    kind.__name__: kind
    for kind in (
        Refused, polled.Unheard, controller.Unholdable, controller.Busy, controller.Awaiting, controller.Cancelled,
        controller.Hung, controller.Unsavable,
    )
}  # fmt: skip

_Kind = TypeVar("_Kind")


class _Question:
    """Something that was asked, and what came of it."""

    def __init__(
        self, told: Callable[[str], None], countdown: Callable[[str], None], heard: Callable[[int, int], None]
    ):
        self.told = told
        self.countdown = countdown
        self.heard = heard
        self.over = threading.Event()
        self.result: msgspec.Raw | None = None
        self.refusal: Refused | None = None


class Near:
    """One run of another machine, and the connection to it."""

    def __init__(self, target: Target, who: str, *, last: bool = False, logs: bool = False, command: str | None = None):
        """Connect, and copy what there is to copy.

        Args:
            target: where the run is, and its name.
            who: who looks at it, for its event list.
            last: whether without a name and a live run the newest is meant.
            logs: whether the logs are copied, too.
            command: what starts ddptop there, where it is not `ddptop`.

        Raises:
            Unreachable: it cannot be reached, or is not there.
        """
        self.target = target
        self.liveness: Liveness | None = None
        self.notes: list[str] = []
        """What the user should know of the connection."""
        self._command = ssh.remote(command)
        self._open = messages.Open(target.run, last, who, logs)
        self._lock = threading.Lock()
        self._questions: dict[int, _Question] = {}
        self._number = 0
        self._copied = 0
        self._greeting: messages.Greeting | None = None
        self._before: list[str] = []
        """Lines that came before the greeting, the last ones."""
        self._stderr: deque[str] = deque(maxlen=20)
        self._ended = threading.Event()
        self._why = ""
        """Why nothing comes any more, where the other side has said so."""
        self._is_closed = False
        self._ready = threading.Event()
        self._threads: list[threading.Thread] = []
        self._opened: messages.Opened | None = None
        self._missing: messages.Missing | None = None
        self._connection = ssh.Connection(target, ssh.line(self._command, ["--far"], otherwise="--version"))
        # Where it is not closed in order, no file is left.
        atexit.register(self.close)
        try:
            self.directory = self._meet()
        except BaseException:
            self.close()
            raise

    # Meeting

    def _meet(self) -> FarDir:
        self._files = self._connection.folder / "run"
        for folder in (self._files, self._files / "ranks", self._files / "logs", self._files / "hosts"):
            folder.mkdir(mode=0o700)
        stdout, stderr = self._connection.process.stdout, self._connection.process.stderr
        assert stdout is not None
        assert stderr is not None
        self._threads = [
            threading.Thread(target=work, args=(stream,), name="ssh", daemon=True)
            for work, stream in ((self._listen, stdout), (self._take_errors, stderr))
        ]
        for thread in self._threads:
            thread.start()
        give_up = time.monotonic() + (ASKED_S if ssh.has_terminal() else PATIENCE_S)
        self._await(lambda: self._greeting is not None, give_up, "it does not answer; what does `ssh {host} true` do?")
        self._compare()
        self._send(self._open)
        give_up = time.monotonic() + PATIENCE_S
        self._await(
            lambda: self._opened is not None or self._missing is not None, give_up, "ddptop there does not answer"
        )
        if self._missing is not None:
            raise Unreachable(self._told_missing(self._missing))
        self._await(self._ready.is_set, give_up, "its run is not told within a minute")
        assert self._opened is not None
        directory = FarDir(self, self._files, f"{self.target.host}:{clean_line(self._opened.run, 100)}")
        if not self._open.logs:
            # Where they are not copied, they are told by their place there.
            directory.logs = Path(self._opened.path) / "logs"
        for name in ("pub", "cmd"):
            self._connection.forward(directory.socket(name), f"{self._opened.path}/observer.{name}")
        return directory

    def _await(self, condition: Callable[[], bool], give_up: float, otherwise: str) -> None:
        while not condition():
            if self._ended.is_set():
                raise Unreachable(self._explained())
            if time.monotonic() > give_up:
                raise Unreachable(f"{self.target.host}: {otherwise.format(host=self.target.host)}")
            self._ended.wait(_LOOK_S)

    def _compare(self) -> None:
        greeting, host = self._greeting, self.target.host
        assert greeting is not None
        its = clean_line(greeting.version, 40)
        if (greeting.form, greeting.protocol) != (messages.FORM, wire.PROTOCOL):
            raise Unreachable(
                f"{host}: has ddptop {its}, here is {VERSION}, and they do not understand each other: {self._same()}"
            )
        if its != VERSION:
            self.notes.append(f"{host} has ddptop {its}, here is {VERSION}; they understand each other")
        apart = time.time() - greeting.at
        if abs(apart) > _APART_S:
            self.notes.append(f"the clock of {host} is {abs(apart):.0f} s {'behind' if apart > 0 else 'ahead'}")

    def _same(self) -> str:
        there = f"ssh -t {self.target.host} {self._command} attach {self.target.run}".rstrip()
        return f"install the same on both, or look at it there: `{there}`"

    def _told_missing(self, missing: messages.Missing) -> str:
        runs = ", ".join(clean_line(each, 80) for each in missing.runs[:5])
        there = f"there: {runs}" if runs else f"there is none in {clean_line(missing.base)}"
        why = clean_line(missing.why).partition(";")[0]
        return f"{self.target.host}: {why}; {there}; {ssh.base_elsewhere(self._command)}"

    def _explained(self) -> str:
        """Return why it has ended before the run was there."""
        if self._why:
            return f"{self.target.host}: {self._why}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._connection.process.wait(5.0)
        code = self._connection.process.returncode
        host = self.target.host
        if code == ssh.NO_COMMAND:
            return ssh.missing_command(self.target, self._command)
        if told := next((each for each in self._before if re.fullmatch(r"ddptop \d[\w.+-]*", each)), ""):
            return f"{host}: has {told}, here is {VERSION}: that one cannot be looked at from elsewhere; {self._same()}"
        if code == ssh.FAILED and (why := ssh.explained(self.target, self._connection.log)):
            return why
        last = next((each for each in reversed(self._stderr) if each), "") or next(reversed(self._before), "")
        return f"{host}: `{self._command}` ended there with exit code {code}" + (f": {last}" if last else "")

    # What comes

    def _listen(self, stream: BinaryIO) -> None:
        try:
            if not self._take_greeting(stream):
                return
            while (message := messages.read(stream, messages.from_far.decode)) is not None:
                self._take(message)
        except (ValueError, OSError) as problem:
            self._why = self._why or f"what comes from there is unreadable ({clean_line(str(problem), 100)})"
        finally:
            self._ended.set()
            for question in list(self._questions.values()):
                question.over.set()

    def _take_greeting(self, stream: BinaryIO) -> bool:
        left = _LONGEST_LINE
        while left > 0 and (line := stream.readline(left)):
            left -= len(line)
            if line.startswith(messages.GREETING):
                try:
                    self._greeting = decoding.of(messages.Greeting).decode(line[len(messages.GREETING) :])
                except msgspec.MsgspecError as problem:
                    raise ValueError(str(problem)) from problem
                return True
            self._before = [*self._before[-4:], clean_line(line.decode(errors="replace"), 200)]
        return False

    def _take_errors(self, stream: BinaryIO) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := stream.readline(_LONGEST_LINE):
                self._stderr.append(clean_line(line.decode(errors="replace"), 300))

    def _take(self, message: messages.FromFar) -> None:
        match message:
            case messages.Opened():
                self._opened = message
            case messages.Missing():
                self._missing = message
            case messages.Record(name, content):
                self._take_record(name, content)
            case messages.Piece():
                self._take_piece(message)
            case messages.Alive(raw):
                self.liveness = _read(raw, Liveness)
            case messages.Ready():
                self._ready.set()
            case messages.Gone(why):
                self._why = clean_line(why)
            case messages.Told(number, line, countdown) if (question := self._questions.get(number)) is not None:
                (question.countdown if countdown else question.told)(clean_line(line, 1000))
            case messages.Heard(number, heard, asked) if (question := self._questions.get(number)) is not None:
                question.heard(heard, asked)
            case messages.Done(number, result) if (question := self._questions.get(number)) is not None:
                question.result = result
                question.over.set()
            case messages.Failed(number, kind, text) if (question := self._questions.get(number)) is not None:
                question.refusal = _KINDS.get(kind, Refused)(clean_line(text, 1000))
                question.over.set()

    def _take_record(self, name: str, content: bytes | None) -> None:
        if not _RECORD.fullmatch(name):
            raise ValueError(f"a file {name!r}")
        if content is None:
            (self._files / name).unlink(missing_ok=True)
        else:
            private.replace(self._files / name, content)

    def _take_piece(self, piece: messages.Piece) -> None:
        if not _FILE.fullmatch(piece.name):
            raise ValueError(f"a file {piece.name!r}")
        self._copied += len(piece.content)
        if self._copied > MOST_BYTES:
            # Of a log what comes after it is missing here.
            return
        file = self._files / piece.name
        # A database is read only once it is whole; a log grows under its readers.
        part = file.with_name(".part") if piece.name == "run.db" else file
        if piece.anew:
            part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, piece.content, piece.offset)
        finally:
            os.close(descriptor)
        if piece.last and part != file:
            part.replace(file)

    # What is asked

    def ask(
        self,
        call: Call,
        kind: type[_Kind],
        *,
        told: Callable[[str], None] = lambda line: None,
        countdown: Callable[[str], None] = lambda line: None,
        heard: Callable[[int, int], None] = lambda heard, asked: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> _Kind:
        """Have something done there, and return what came of it. Blocks; may be called in any thread.

        Raises:
            Refused: it was not done, and why; or the connection ended meanwhile.
        """
        question = _Question(told, countdown, heard)
        with self._lock:
            self._number += 1
            call = msgspec.structs.replace(call, id=self._number)
            self._questions[call.id] = question
        try:
            self._send(call)
            is_told = False
            while not question.over.wait(_LOOK_S) and not self._ended.is_set():
                if not is_told and cancelled():
                    is_told = True
                    self._send(Cancel(call.id))
        except KeyboardInterrupt:
            with contextlib.suppress(Refused):
                self._send(Cancel(call.id))
            raise
        finally:
            self._questions.pop(call.id, None)
        if question.refusal is not None:
            raise question.refusal
        if question.result is None:
            raise Refused(f"{self.target.host}: the connection ended; whether it was done is not known here")
        try:
            return _decoded(question.result, kind)
        except _UNREADABLE as problem:
            raise Refused(f"{self.target.host}: its answer is unreadable") from problem

    def _send(self, message: msgspec.Struct) -> None:
        stdin = self._connection.process.stdin
        assert stdin is not None
        try:
            with self._lock:
                stdin.write(messages.framed(message))
                stdin.flush()
        except (OSError, ValueError) as problem:
            if self._greeting is not None and self._opened is not None:
                raise Refused(self.lost()) from problem

    # The end

    @property
    def has_ended(self) -> bool:
        """True once nothing comes any more."""
        return self._ended.is_set()

    def check(self) -> None:
        """Say that the connection has ended, where it has.

        Raises:
            Unreachable: it has.
        """
        if self._ended.is_set() and not self._is_closed:
            raise Unreachable(self.lost())

    def lost(self) -> str:
        """Return the line on the end of the connection."""
        name = self.directory.name
        if self._why:
            return f"{name}: {self._why}"
        return f"{self.target.host}: the connection ended; `ddptop attach {name}` connects again; the run is untouched"

    def close(self) -> None:
        """End the connection and remove the copy; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            atexit.unregister(self.close)
            self._connection.close()
            for thread in self._threads:
                thread.join(_END_S)
            for stream in (self._connection.process.stdout, self._connection.process.stderr):
                if stream is not None:
                    stream.close()


class FarDir(RunDir):
    """The copy of a run directory of another machine, under the name by which the run is reached from here."""

    def __init__(self, near: Near, path: Path, name: str) -> None:
        super().__init__(path)
        self.near = near
        self.name = name

    def read(self) -> Run:
        """Return the record of the run, under its name here; see `RunDir.read`."""
        return msgspec.structs.replace(super().read(), run=self.name)

    def socket(self, kind: str) -> Path:
        """Return the forwarded socket of the run's observer."""
        return self.path.with_name(kind)

    def address(self, who: int | str, kind: str) -> str:
        """Return the address of a forwarded socket; those of the ranks are not."""
        return f"ipc://{self.socket(kind)}" if who == "observer" else super().address(who, kind)


def _read(raw: msgspec.Raw, kind: type[_Kind]) -> _Kind | None:
    """Return what a message holds, its text clean; None where it does not."""
    try:
        return _decoded(raw, kind)
    except _UNREADABLE:
        return None


def _decoded(raw: msgspec.Raw, kind: type[_Kind]) -> _Kind:
    """Return what a message holds, its text clean, or raise one of `_UNREADABLE`."""
    decoding.of(kind)
    value = msgspec.msgpack.decode(bytes(raw))
    return msgspec.convert(_cleaned(value), kind, strict=True, str_keys=False)


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return "\n".join(clean(line, 4000) for line in value.splitlines())
        case list():
            return [_cleaned(each) for each in value]
        case dict():
            return {_cleaned(key): _cleaned(each) for key, each in value.items()}
    return value

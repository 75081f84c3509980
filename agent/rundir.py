"""The run directory: who is in a run, where each of them listens, how it ended.

One folder a run, `<base>/<run>/`, mode 0700, holding `run.json` (the run), `ranks/N.json`
(one a rank, written by that rank alone), `logs/`, `run.db` (recorded by the supervisor)
and the sockets.  Files are replaced atomically, so that a reader never sees half of one.
The base is not `$XDG_RUNTIME_DIR`: logind removes that when the user's last session ends,
which is the very moment a detached run must outlive.  Knows neither torch nor textual.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import psutil

BASE_VARIABLE: Final = "DDPTOP_RUNTIME_DIR"
MARKER: Final = "DDPTOP_RUN_ID"
"""Environment variable that marks every process of a run with the run's id."""
DIRECTORY_VARIABLE: Final = "DDPTOP_RUN_DIR"
"""Environment variable that tells a rank its run directory."""

ENDED_STATES: Final = frozenset({"finished", "stopped", "failed", "killed", "lost"})
KEEP_ENDED: Final = 20
"""Ended runs kept for `ps`, `logs` and `attach`; older ones are removed by the next launch."""

_SOCKET_PATH_LIMIT: Final = 107
_LONGEST_SOCKET_NAME: Final = "9999.pub"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class RunDirError(Exception):
    """What is wrong with a run directory and what to do about it, in one line for the user."""


class Process(msgspec.Struct, frozen=True):
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    started: float
    """Seconds, from the start of the machine on Linux, so that setting the clock changes nothing."""


class Ended(msgspec.Struct, frozen=True):
    """How one rank ended, by its own account; a rank that was killed leaves none."""

    at_ns: int
    exit_code: int
    error: str | None = None
    """Type and message of the exception that ended the script, one line."""
    traceback: str | None = None
    stopped_by: str | None = None
    """Who asked for its end at a step boundary, where it ended because of that."""


class Member(msgspec.Struct, frozen=True):
    """One rank of a run, written by its own agent."""

    rank: int
    local_rank: int
    world: int
    process: Process
    host: str
    generation: int
    pub: str
    """Address of the PUB socket, `ipc://…`."""
    cmd: str
    """Address of the ROUTER socket."""
    log: str | None
    """File with the rank's output, or None where it goes to the terminal that started the run."""
    ended: Ended | None = None


class Run(msgspec.Struct, frozen=True):
    """A run: what was asked for, who looks after it, how it ended."""

    run: str
    run_id: str
    program: str
    """Catalogue name, script path or `-m module`, as the user gave it."""
    arguments: tuple[str, ...]
    """The program's own arguments."""
    world: int
    backend: str | None
    device: str | None
    created_at_ns: int
    launched: bool
    """True for `ddptop launch`, False for a job started by hand under the agent."""
    cwd: str = ""
    command: tuple[str, ...] = ()
    """The torchrun command line that the supervisor starts."""
    environment: dict[str, str] = {}
    """What the launch adds to the environment of the ranks."""
    placement: str = ""
    """One line on why this device and backend were chosen."""
    injected: str = ""
    """Faults put into this run on purpose, one line; empty for an honest run."""
    grace_s: float = 5.0
    on_term: str = ""
    """What a TERM from outside leads to: `checkpoint`, and then a stop; empty for what it always does."""
    supervisor: Process | None = None
    torchrun: Process | None = None
    state: str = "starting"
    """Of `starting`, `running`, `finished`, `stopped`, `failed`, `killed`, `lost`; an observer may know better."""
    exit_code: int | None = None
    ended_at_ns: int | None = None
    cause: str | None = None
    """The first cause of a failure, one line."""
    cause_rank: int | None = None


def identify(pid: int) -> Process | None:
    """Return the identity of the live process `pid`, or None when there is none (a zombie is none)."""
    if sys.platform == "linux":
        try:
            # The name in parentheses may hold anything; state is the first field after it, start time the 20th.
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else Process(pid, int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else Process(pid, process.create_time())
    except psutil.Error:
        return None


def is_alive(process: Process | None) -> bool:
    """Say whether exactly this process still runs."""
    if process is None:
        return False
    now = identify(process.pid)
    # Start times have a resolution of 10 ms; a number is not reused within that.
    return now is not None and abs(now.started - process.started) < 0.05


def base() -> Path:
    """Return the folder that holds this user's runs, making it if need be.

    Raises:
        RunDirError: it cannot be made or written, or somebody else could look into it.
    """
    given = os.environ.get(BASE_VARIABLE)
    path = Path(given).absolute() if given else Path(tempfile.gettempdir()) / f"ddptop-{os.getuid()}"
    advice = f"set {BASE_VARIABLE} to a short path of your own that can be written"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise RunDirError(f"runtime directory {path}: {error.strerror}; {advice}") from error
    _refuse_foreign(path, status)
    if not os.access(path, os.W_OK | os.X_OK):
        raise RunDirError(f"runtime directory {path}: not writable; {advice}")
    longest = len(os.fsencode(path)) + 1 + 40 + 1 + len(_LONGEST_SOCKET_NAME)
    if longest > _SOCKET_PATH_LIMIT:
        raise RunDirError(
            f"runtime directory {path}: too long for socket paths by {longest - _SOCKET_PATH_LIMIT} "
            f"characters; {advice}"
        )
    return path


def _refuse_foreign(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise RunDirError(f"{path}: not a directory; remove it or set {BASE_VARIABLE}")
    if status.st_uid != os.getuid():
        raise RunDirError(f"{path}: belongs to user {status.st_uid}, not to you; set {BASE_VARIABLE}")
    if status.st_mode & 0o077:
        raise RunDirError(f"{path}: others can enter it (mode {stat.S_IMODE(status.st_mode):04o}); chmod 700 it")


def check_name(name: str) -> str:
    """Return `name` if it can name a run.

    Raises:
        RunDirError: it has characters that a file name or a shell would trip over.
    """
    if not _NAME.fullmatch(name):
        raise RunDirError(
            f"run name {name!r}: use 1 to 40 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )
    return name


def suggest_name(program: str) -> str:
    """Return a fresh run name such as `resnet-7f3a` for a program."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(program).stem).strip("-._")[:30] or "run"
    while True:
        name = f"{stem}-{secrets.token_hex(2)}"
        if not (base() / name).exists():
            return name


class RunDir:
    """Paths and files of one run. Cheap to make; reads and writes only when asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.logs = path / "logs"
        self.database = path / "run.db"
        self.lock = path / "lock"
        """Held (flock) by the supervisor while it lives."""

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    def rank_log(self, rank: int) -> Path:
        """Return the file that takes stdout and stderr of a rank, in the order written."""
        return self.logs / f"rank-{rank}.log"

    @property
    def torchrun_log(self) -> Path:
        """What torchrun itself printed, its failure summary included."""
        return self.logs / "torchrun.log"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's own log."""
        return self.logs / "supervisor.log"

    def address(self, who: int | str, kind: str) -> str:
        """Return the socket address of a rank or of `supervisor`; kind is `pub` or `cmd`."""
        return f"ipc://{self.path}/{who}.{kind}"

    def read(self) -> Run:
        """Return the run.

        Raises:
            RunDirError: there is no readable record.
        """
        try:
            return msgspec.json.decode((self.path / "run.json").read_bytes(), type=Run)
        except OSError as error:
            raise RunDirError(f"run {self.name}: no record ({error.strerror}); see `ddptop ps`") from error
        except msgspec.MsgspecError as error:
            raise RunDirError(f"run {self.name}: damaged record, {error}; remove {self.path}") from error

    def write(self, run: Run) -> None:
        """Replace the run's record."""
        _replace(self.path / "run.json", msgspec.json.encode(run))

    def update(self, **changes: object) -> Run:
        """Change fields of the record and return it."""
        run = msgspec.structs.replace(self.read(), **changes)
        self.write(run)
        return run

    def members(self) -> dict[int, Member]:
        """Return the ranks that have reported, by rank. Unreadable ones are left out."""
        found = {}
        for file in _files(self.path / "ranks", ".json"):
            try:
                member = msgspec.json.decode(file.read_bytes(), type=Member)
            except (OSError, msgspec.MsgspecError):
                continue
            found[member.rank] = member
        return dict(sorted(found.items()))

    def write_member(self, member: Member) -> None:
        """Replace one rank's record."""
        _replace(self.path / "ranks" / f"{member.rank}.json", msgspec.json.encode(member))

    def remove_sockets(self) -> None:
        """Remove what an ended run has no use for: socket files and the lock."""
        for suffix in (".pub", ".cmd"):
            for file in _files(self.path, suffix):
                file.unlink(missing_ok=True)
        self.lock.unlink(missing_ok=True)


def create(run: Run) -> RunDir:
    """Make the directory of a new run. The name of an ended run may be taken again.

    Raises:
        RunDirError: the name is in use, or nothing can be written.
    """
    target = RunDir(base() / check_name(run.run))
    if target.path.exists():
        _make_way(target)
    staging = target.path.with_name(f".{run.run}.{secrets.token_hex(4)}")
    try:
        for folder in (staging, staging / "ranks", staging / "logs"):
            folder.mkdir(mode=0o700)
        RunDir(staging).write(run)
        # Renaming onto a directory that is not empty fails: of two that come at once, one wins.
        staging.rename(target.path)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        if target.path.exists():
            raise RunDirError(f"run {run.run}: name already in use; choose another with --name") from error
        raise RunDirError(f"runtime directory {base()}: {error.strerror}; set {BASE_VARIABLE}") from error
    return target


def _make_way(target: RunDir) -> None:
    try:
        old = target.read()
    except RunDirError:
        old = None
    if old is not None and old.state not in ENDED_STATES:
        raise RunDirError(
            f"run {target.name}: already there ({old.state}); `ddptop attach {target.name}` shows it, "
            f"or choose another --name"
        )
    shutil.rmtree(target.path, ignore_errors=True)


def runs() -> list[RunDir]:
    """Return every run directory of this user, newest first."""
    return [run for run, _ in sorted(_stamped(), key=lambda pair: pair[1], reverse=True)]


def _stamped() -> Iterator[tuple[RunDir, int]]:
    for entry in base().iterdir():
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        found = RunDir(entry)
        try:
            yield found, found.read().created_at_ns
        except RunDirError:
            continue


def find(prefix: str) -> RunDir:
    """Return the run of that name, or the only one whose name begins so.

    Raises:
        RunDirError: there is none, or more than one.
    """
    names = {run.name: run for run in runs()}
    if prefix in names:
        return names[prefix]
    matches = sorted(name for name in names if name.startswith(prefix))
    if len(matches) == 1:
        return names[matches[0]]
    if matches:
        raise RunDirError(f"run {prefix!r}: could be {', '.join(matches)}; give more of the name")
    raise RunDirError(f"run {prefix!r}: no such run; `ddptop ps` lists them")


def prune() -> None:
    """Remove all but the newest `KEEP_ENDED` ended runs, and what crashed launches left half made."""
    ended = [run for run in runs() if run.read().state in ENDED_STATES]
    for run in ended[KEEP_ENDED:]:
        shutil.rmtree(run.path, ignore_errors=True)
    for entry in base().glob(".*.????????"):
        if time.time() - entry.stat().st_mtime > 60:
            shutil.rmtree(entry, ignore_errors=True)


def _files(folder: Path, suffix: str) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.suffix == suffix]
    except OSError:
        return []


def _replace(path: Path, content: bytes) -> None:
    # The number of the process keeps two writers from sharing one temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)

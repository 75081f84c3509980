"""The run directory: who is in a run, where each of them listens, how it ended.

One folder a run, `<base>/<run>/`, mode 0700, holding `run.json` (the run), `ranks/N.json`
(one a rank, written by that rank alone), `logs/`, `run.db` (recorded by the supervisor)
and the sockets.  Files are replaced atomically, so that a reader never sees half of one.
The base is not `$XDG_RUNTIME_DIR`: logind removes that when the user's last session ends,
which is the very moment a detached run must outlive.  Knows neither torch nor textual.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent import private
from ddptop.agent.identity import Process as Process
from ddptop.agent.identity import identify as identify
from ddptop.agent.identity import is_alive as is_alive
from ddptop.agent.incoming import Label, Line, Lines, Name, Verbatim, cleaned
from ddptop.agent.private import RunDirError as RunDirError

BASE_VARIABLE: Final = "DDPTOP_RUNTIME_DIR"
MARKER: Final = "DDPTOP_RUN_ID"
"""Environment variable that marks every process of a run with the run's id."""
DIRECTORY_VARIABLE: Final = "DDPTOP_RUN_DIR"
"""Environment variable that tells a rank its run directory."""

ENDED_STATES: Final = frozenset({"finished", "stopped", "failed", "killed", "lost"})
KEEP_ENDED: Final = 20
"""Ended runs kept for `ps`, `logs` and `attach`; older ones are removed by the next launch."""

LEAST_ROOM: Final = 1 << 20
"""Bytes that must be free for a run to begin: its records, its sockets, the first of its logs."""
_DEFAULT: Final = "ddptop-"
"""The folder of a user's runs, with the user's number after it."""
_SOCKET_PATH_LIMIT: Final = 107
_LONGEST_SOCKET_NAME: Final = "9999.pub"
LONGEST_NAME: Final = 40
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


class Ended(msgspec.Struct, frozen=True):
    """How one rank ended, by its own account; a rank that was killed leaves none."""

    at_ns: int
    exit_code: int
    error: str | None = None
    """Type and message of the exception that ended the script, one line."""
    traceback: Lines | None = None
    stopped_by: Label | None = None
    """Who asked for its end at a step boundary, where it ended because of that."""


class Member(msgspec.Struct, frozen=True):
    """One rank of a run, written by its own agent."""

    rank: int
    local_rank: int
    world: int
    process: Process
    host: Label
    generation: int
    pub: Verbatim
    """Address of the PUB socket, `ipc://…`."""
    cmd: Verbatim
    """Address of the ROUTER socket."""
    log: Verbatim | None
    """File with the rank's output, or None where it goes to the terminal that started the run."""
    ended: Ended | None = None


ENGINE: Final = "torch.distributed.run"
"""The module that torchrun is."""


class Run(msgspec.Struct, frozen=True):
    """A run: what was asked for, who looks after it, how it ended."""

    run: Name
    run_id: Label
    program: Verbatim
    """Catalogue name, script path or `-m module`, as the user gave it."""
    arguments: tuple[Verbatim, ...]
    """The program's own arguments."""
    world: int
    backend: Name | None
    device: Name | None
    created_at_ns: int
    launched: bool
    """True for `ddptop launch`, False for a job started by hand under the agent."""
    cwd: Verbatim = ""
    command: tuple[Verbatim, ...] = ()
    """The torchrun command line that the supervisor starts."""
    environment: dict[Verbatim, Verbatim] = {}
    """What the launch adds to the environment of the ranks."""
    placement: Line = ""
    """One line on why this device and backend were chosen."""
    injected: Line = ""
    """Faults put into this run on purpose, one line; empty for an honest run."""
    grace_s: float = 5.0
    on_term: Name = ""
    """What a TERM from outside leads to: `checkpoint`, and then a stop; empty for what it always does."""
    supervisor: Process | None = None
    torchrun: Process | None = None
    state: Name = "starting"
    """Of `starting`, `running`, `finished`, `stopped`, `failed`, `killed`, `lost`; an observer may know better."""
    exit_code: int | None = None
    ended_at_ns: int | None = None
    cause: Line | None = None
    """The first cause of a failure, one line."""
    cause_rank: int | None = None
    max_restarts: int = 0
    """How often torchrun starts the group anew when it fails."""
    owner: int | None = None
    """User whose run it is: a process of anybody else is none of it, whatever its environment says."""
    killed_by: Label | None = None
    """Who asked for its end, so that another supervisor goes on with that."""

    @property
    def leader(self) -> str:
        """What the process that starts the ranks is called: torchrun, or the program where it spawns them itself."""
        return "torchrun" if not self.command or ENGINE in self.command else "the program"


def base() -> Path:
    """Return the folder that holds this user's runs, making it if need be.

    Raises:
        RunDirError: it cannot be made or written, or somebody else could look into it.
    """
    given = os.environ.get(BASE_VARIABLE)
    path = Path(given).absolute() if given else Path(tempfile.gettempdir()) / f"{_DEFAULT}{os.getuid()}"
    advice = f"set {BASE_VARIABLE} to a short path of your own that can be written"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.check_folder(path, os.getuid(), f"remove it or set {BASE_VARIABLE}")
    except OSError as error:
        raise RunDirError(f"runtime directory {path}: {error.strerror}; {advice}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise RunDirError(f"runtime directory {path}: not writable; {advice}")
    longest = len(os.fsencode(path)) + 1 + LONGEST_NAME + 1 + len(_LONGEST_SOCKET_NAME)
    if longest > _SOCKET_PATH_LIMIT:
        raise RunDirError(
            f"runtime directory {path}: too long for socket paths by {longest - _SOCKET_PATH_LIMIT} "
            f"characters; {advice}"
        )
    return path


def check_name(name: str) -> str:
    """Return `name` if it can name a run.

    Raises:
        RunDirError: it has characters that a file name or a shell would trip over.
    """
    if not _NAME.fullmatch(name):
        raise RunDirError(
            f"run name {name!r}: use 1 to {LONGEST_NAME} letters, digits, '.', '_' or '-', "
            f"beginning with a letter or digit"
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

    def __init__(self, path: Path, owner: int | None = None) -> None:
        self.path = path
        self.owner = os.getuid() if owner is None else owner
        """Whose run it is said to be; what belongs to anybody else is not trusted."""
        self.name = path.name
        self.logs = path / "logs"
        self.database = path / "run.db"

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
            RunDirError: there is no readable record, or others could have written it.
        """
        try:
            private.check_folder(self.path, self.owner, "remove it")
            return cleaned(msgspec.json.decode(private.read(self.path / "run.json"), type=Run))
        except OSError as error:
            raise RunDirError(f"run {self.name}: no record ({error.strerror}); see `ddptop ps`") from error
        except msgspec.MsgspecError as error:
            raise RunDirError(f"run {self.name}: damaged record, {error}; remove {self.path}") from error

    def write(self, run: Run) -> None:
        """Replace the run's record."""
        private.replace(self.path / "run.json", msgspec.json.encode(run))

    def update(self, **changes: object) -> Run:
        """Change fields of the record and return it."""
        run = msgspec.structs.replace(self.read(), **changes)
        self.write(run)
        return run

    def members(self) -> dict[int, Member]:
        """Return the ranks that have reported, by rank, of the newest generation. Unreadable ones are left out."""
        found = {}
        for file in _files(self.path / "ranks", ".json"):
            try:
                member = cleaned(msgspec.json.decode(private.read(file), type=Member))
            except (OSError, msgspec.MsgspecError):
                continue
            found[member.rank] = member
        newest = max((member.generation for member in found.values()), default=0)
        return {rank: member for rank, member in sorted(found.items()) if member.generation == newest}

    def write_member(self, member: Member) -> None:
        """Replace one rank's record."""
        private.replace(self.path / "ranks" / f"{member.rank}.json", msgspec.json.encode(member))

    def remove_sockets(self) -> None:
        """Remove the socket files, which an ended run has no use for."""
        for suffix in (".pub", ".cmd"):
            for file in _files(self.path, suffix):
                file.unlink(missing_ok=True)


def create(run: Run) -> RunDir:
    """Make the directory of a new run. The name of an ended run may be taken again.

    Raises:
        RunDirError: the name is in use, or nothing can be written.
    """
    target = RunDir(base() / check_name(run.run))
    _check_room(target.path.parent)
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


def _check_room(folder: Path) -> None:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    # A file system without a count of files says 0 of 0.
    if free < LEAST_ROOM or (room.f_files and not room.f_favail):
        what = f"{free >> 10} KiB free" if free < LEAST_ROOM else "no more files"
        raise RunDirError(f"runtime directory {folder}: full ({what}); make room, or set {BASE_VARIABLE}")


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
    return _newest_first(_stamped(base(), os.getuid()))


def runs_of_all() -> list[RunDir]:
    """Return every run directory that this user may look into, newest first: root sees those of all users.

    Found are runs in the default place and in this user's own; where another user has set
    `DDPTOP_RUNTIME_DIR` is not known here.
    """
    found = {own.path: (own, at) for own, at in _stamped(base(), os.getuid())}
    for folder in Path(tempfile.gettempdir()).glob(f"{_DEFAULT}*"):
        uid = folder.name.removeprefix(_DEFAULT)
        if not uid.isdecimal():
            continue
        try:
            private.check_folder(folder, int(uid), "")
            found.update({other.path: (other, at) for other, at in _stamped(folder, int(uid))})
        except (OSError, RunDirError):
            # Not that user's own: whatever stands in it, nobody's run can be trusted to.
            continue
    return _newest_first(found.values())


def _newest_first(stamped: Iterable[tuple[RunDir, int]]) -> list[RunDir]:
    return [run for run, _ in sorted(stamped, key=lambda pair: pair[1], reverse=True)]


def _stamped(folder: Path, owner: int) -> Iterator[tuple[RunDir, int]]:
    for entry in folder.iterdir():
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        found = RunDir(entry, owner)
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
    ended = [run for run in runs() if _is_over(run)]
    for run in ended[KEEP_ENDED:]:
        shutil.rmtree(run.path, ignore_errors=True)
    for entry in base().glob(".*.????????"):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > 60:
                shutil.rmtree(entry, ignore_errors=True)


def _is_over(run: RunDir) -> bool:
    try:
        return run.read().state in ENDED_STATES
    except RunDirError:
        # Removed by somebody else since it was listed.
        return False


def _files(folder: Path, suffix: str) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.suffix == suffix]
    except OSError:
        return []

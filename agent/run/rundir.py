"""The run directories of a user: the ranks of each run, their socket addresses, and how the run ended.

A run has one folder, `<base>/<run>/`, of mode 0700. It holds `run.json` (the record of the run), `ranks/N.json`
(the record of a rank, written by its agent), `logs/`, `run.db` (recorded by the observer)
and the sockets.  Records are replaced atomically, so that a reader gets the old one or the new one; but on a full disk
one is written over in place: a reader of that moment may find it damaged.
Each folder bears our mark.  A folder without it is neither listed nor removed: the base may be in use for other
things.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.run import generations, hosts, records
from ddptop.agent.run.base import BASE_VARIABLE as BASE_VARIABLE
from ddptop.agent.run.base import LONGEST_NAME as LONGEST_NAME
from ddptop.agent.run.base import base as base
from ddptop.agent.run.base import bases_of_others as bases_of_others
from ddptop.agent.run.base import check_name as check_name
from ddptop.agent.run.base import check_writable, is_name, normal
from ddptop.agent.run.base import digits_of as digits_of
from ddptop.agent.run.base import shortened as shortened
from ddptop.agent.run.base import stem_of as stem_of
from ddptop.agent.run.diagnoses import DIAGNOSES
from ddptop.agent.run.files import marks, masking, private, removal
from ddptop.agent.run.files.marks import Mark
from ddptop.agent.run.files.private import Claim, Hold
from ddptop.agent.run.files.private import RunDirError as RunDirError
from ddptop.agent.run.identity import Process as Process
from ddptop.agent.run.identity import identify as identify
from ddptop.agent.run.identity import is_alive as is_alive
from ddptop.agent.run.records import MOST_RANKS as MOST_RANKS
from ddptop.agent.run.records import TORCHRUN as TORCHRUN
from ddptop.agent.run.records import Ended as Ended
from ddptop.agent.run.records import Member as Member
from ddptop.agent.run.records import Run as Run
from ddptop.agent.run.records import without_end_by_others
from ddptop.agent.wire.frames import ENDED

MARKER: Final = "DDPTOP_RUN_ID"
"""Environment variable that marks every process of a run with the run's id."""
DIRECTORY_VARIABLE: Final = "DDPTOP_RUN_DIR"
"""Environment variable with the run directory of a rank."""
RANK_VARIABLE: Final = "DDPTOP_RANK_PID"
"""Environment variable that names the process of a rank to the processes that it starts."""

KEEP_ENDED: Final = 20
"""Ended runs retained for `ps`, `logs` and `attach`; the next launch removes older ones."""

LEAST_ROOM: Final = 1 << 20
"""Bytes that must be free for a run to begin: its records, its sockets, the first of its logs."""
MOST_ENTRIES: Final = 100_000
"""Entries read of one folder: a folder with more must not block its readers."""
_RELEASE_S: Final = 1.0
"""Time for which an observer may still hold a run whose record says that it has ended."""
_LEFT: Final = re.compile(r"\.(.+)\.[0-9a-f]{8}")
"""The name of a run directory while it is made or removed."""


def suggest_name(program: str) -> str:
    """Return a fresh run name such as `resnet-7f3a` for a program."""
    while True:
        name = f"{stem_of(program, 30)}-{os.urandom(2).hex()}"
        if not (base() / name).exists():
            return name


class RunDir:
    """Paths and files of one run. Constructing it reads and writes nothing."""

    def __init__(self, path: Path, owner: int | None = None) -> None:
        self.path = path
        self.owner = os.getuid() if owner is None else owner
        """Expected owner of the run; files of other users are not trusted."""
        self.name = path.name
        self.logs = path / "logs"
        self.database = path / "run.db"
        self._reported: dict[str, tuple[tuple[int, int, int], Member]] = {}
        """By its file's name, the record of a rank that was read last, with the stamp that the file had."""
        self._far: tuple[tuple[int, int, int], dict[int, Member]] | None = None
        """The same of the records of ranks on other hosts, which are in one file."""

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    def rank_record(self, rank: int) -> Path:
        """Return the file with the record of a rank."""
        return self.path / "ranks" / f"{rank}.json"

    def diagnoses(self, kind: str) -> Path:
        """Return the folder of all diagnoses of a kind, each in one of its number; it exists where there is one."""
        return self.path / DIAGNOSES[kind].folder

    def rank_log(self, rank: int) -> Path:
        """Return the file for stdout and stderr of a rank, in the order written."""
        return self.logs / f"rank-{rank}.log"

    def output(self, rank: int) -> Path:
        """Return the file with the output of a rank: its log, or where that of a rank without an agent goes."""
        try:
            member = records.decode(private.read(self.rank_record(rank)), Member)
        except (OSError, ValueError):
            return self.rank_log(rank)
        return Path(self._log_of(member) or self.rank_log(rank))

    def _log_of(self, member: Member) -> str | None:
        # That of another user could name any file, which only root may read.
        if (member.by_agent and not member.joined) or member.log is None or self.owner != os.geteuid():
            return None if member.log is None else str(self.rank_log(member.rank))
        return member.log

    def rank_crash(self, rank: int) -> Path:
        """Return the file for the stacks that a rank without a log writes when it crashes in native code."""
        return self.rank_log(rank).with_suffix(".crash")

    @property
    def torchrun_log(self) -> Path:
        """File for the output of torchrun itself, its failure summary included."""
        return self.logs / "torchrun.log"

    @property
    def observer_log(self) -> Path:
        """Log of the observer."""
        return self.logs / "observer.log"

    def address(self, who: int | str, kind: str) -> str:
        """Return the socket address of a rank or of `observer`; kind is `pub` or `cmd`."""
        return f"ipc://{self.path}/{who}.{kind}"

    def read(self) -> Run:
        """Return the record of the run.

        Raises:
            RunDirError: there is no readable record, or others could have written it.
        """
        try:
            private.check_folder(self.path, self.owner, "remove it")
            return records.decode(private.read(self.path / "run.json"), Run)
        except OSError as error:
            where = self.path / "run.json"
            cure = private.remedy(error, self._cure)
            raise RunDirError(f"run {self.name}: no record {where} ({error.strerror}); {cure}") from error
        except ValueError as error:
            raise RunDirError(f"run {self.name}: damaged record, {error}; {self._cure}") from error

    def write(self, run: Run) -> None:
        """Replace the run's record, on a full disk in its place."""
        _write(self.path / "run.json", msgspec.json.encode(run))

    def update(self, **changes: object) -> Run:
        """Change fields of the record and return it."""
        run = msgspec.structs.replace(self.read(), **changes)
        self.write(run)
        return run

    def members(self) -> dict[int, Member]:
        """Return the records of the ranks that have reported, by rank, of the present generation.

        Unreadable records, and those of ranks that the run does not have, are left out.  Addresses and logs in the
        result are those of this directory, whatever the records say: a reader must not connect to an address that
        somebody else has written.  A generation that the run cannot have is ignored; see `generations.present` for the
        choice among others.
        """
        most = None
        try:
            run = self.read()
            world = run.world
            if run.launched:
                most = generations.most(run, 1 << 31)
        except RunDirError:
            world = MOST_RANKS
        found = {
            member.rank: msgspec.structs.replace(
                without_end_by_others(member),
                pub=self.address(member.rank, "pub"),
                cmd=self.address(member.rank, "cmd"),
                log=self._log_of(member),
            )
            for member in self.reported()
            if member.rank < world and (most is None or member.generation <= most)
        }
        if len({member.generation for member in found.values()}) > 1:
            claims = [(member.generation, is_alive(member.process)) for member in found.values()]
            begun: dict[int, list[Process]] = {}
            for member in found.values():
                begun.setdefault(member.generation, []).append(member.process)
            newest = generations.present(claims, bounded=most is not None, begun=begun)
            found = {rank: member for rank, member in found.items() if member.generation == newest}
        return dict(sorted(found.items()))

    def reported(self) -> Iterator[Member]:
        """Yield the newest record of each rank as it was written, whatever its generation; those that are readable.

        Of thousands one changes at a time: only what has changed is read again.
        """
        folder = str(self.path / "ranks")
        for name in _names(folder, ".json"):
            file = f"{folder}/{name}"
            try:
                stamp, known = _stamp(file), self._reported.get(name)
                if known is None or known[0] != stamp:
                    # Replaced between stamp and reading, it is read once more the next time.
                    known = self._reported[name] = stamp, records.decode(private.read(file), Member)
            except (OSError, ValueError):
                continue
            if name == f"{known[1].rank}.json":
                yield known[1]

    def everyone(self) -> dict[int, Member]:
        """Return the records of all ranks that have reported, by rank, also of those on other hosts.

        The processes of these are not visible here, and must not get signals.
        """
        return {**self.far_members(), **self.members()}

    def far_members(self) -> Mapping[int, Member]:
        """Return the records of the ranks on other hosts, by rank; the file is read once it has changed."""
        try:
            stamp = _stamp(hosts.far_file(self.path))
        except OSError:
            return {}
        if self._far is None or self._far[0] != stamp:
            self._far = stamp, hosts.far_members(self.path)
        return self._far[1]

    def write_member(self, member: Member) -> None:
        """Replace one rank's record, on a full disk in its place."""
        _write(self.rank_record(member.rank), msgspec.json.encode(member))

    def remove_member(self, rank: int) -> None:
        """Remove one rank's record, which the caller has written."""
        marks.owned(self.rank_record(rank)).unlink(missing_ok=True)

    def remove_sockets(self) -> None:
        """Remove the socket files of an ended run."""
        try:
            marks.owned_folder(self.path)
        except OSError:
            return
        for suffix in (".pub", ".cmd"):
            for name in _names(self.path, suffix):
                stem = name.removesuffix(suffix)
                if stem.isdecimal() or stem == "observer":
                    (self.path / name).unlink(missing_ok=True)

    def mark(self) -> Mark | None:
        """Return our mark in this directory, None where there is none: then the directory is not ours."""
        return marks.read(self.path, marks.RUN)

    def read_own(self) -> Run:
        """Return the record of the run, and check that the directory bears our mark for that run.

        Raises:
            RunDirError: it does not bear our mark, or has no readable record of the marked run.
        """
        mark = self.mark()
        if mark is None:
            raise RunDirError(f"{self.path}: ddptop did not make this (no mark of its own); it stays as it is")
        if mark.format > marks.FORMAT:
            raise RunDirError(f"run {self.name}: made by a newer ddptop (format {mark.format}); use that one")
        run = self.read()
        if run.run_id != mark.run_id:
            raise RunDirError(f"run {self.name}: its record is of another run; {self._cure}")
        return run

    @property
    def _cure(self) -> str:
        return f"if no process of it lives, remove {self.path}"


def _write(path: Path, content: bytes) -> None:
    marks.owned(path)
    try:
        private.replace(path, content)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        private.overwrite(path, content)


def create(run: Run) -> RunDir:
    """Make the directory of a new run, which may have the name of an ended one.

    Raises:
        RunDirError: the name is in use, or nothing can be written.
    """
    target = RunDir(base() / check_name(run.run))
    if not 1 <= run.world <= MOST_RANKS:
        raise RunDirError(f"run {run.run}: {run.world:,} ranks; a run has 1 to {MOST_RANKS:,}")
    _check_room(target.path.parent)
    if os.path.lexists(target.path):
        _make_way(target)
    staging = target.path.with_name(f".{run.run}.{os.urandom(4).hex()}")
    try:
        staging.mkdir(mode=0o700)
    except OSError as error:
        raise RunDirError(f"runtime directory {base()}: {error.strerror}; set {BASE_VARIABLE}") from error
    hold = None
    try:
        # Held before it is marked, so that a marked folder that no process holds has surely lost its maker.
        hold = Hold.acquire(staging)
        marks.write(staging, Mark(marks.RUN, run_id=run.run_id))
        for folder in (staging / "ranks", staging / "logs"):
            folder.mkdir(mode=0o700)
        if run.launched:
            # ddptop does not repeat a job that was started by hand, and so stores no secrets of it.
            masking.store(staging, run)
        RunDir(staging).write(masking.masked(run))
        # Renaming onto a directory that is not empty fails: of two simultaneous launches, one wins.
        staging.rename(target.path)
    except OSError as error:
        removal.empty(staging)
        if os.path.lexists(target.path):
            raise RunDirError(f"run {run.run}: name already in use; choose another with --name") from error
        raise RunDirError(f"runtime directory {base()}: {error.strerror}; set {BASE_VARIABLE}") from error
    finally:
        if hold is not None:
            hold.release()
    return target


def _check_room(folder: Path) -> None:
    check_writable(folder)
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    # A file system without a count of files reports 0 of 0.
    if free < LEAST_ROOM or (room.f_files and not room.f_favail):
        what = f"{free >> 10} KiB free" if free < LEAST_ROOM else "no more files"
        raise RunDirError(f"runtime directory {folder}: full ({what}); make room, or set {BASE_VARIABLE}")


def _make_way(target: RunDir) -> None:
    try:
        old = target.read_own()
        if old.state in ENDED:
            # The observer still holds the directory for a moment after it has written the record.
            # Files that cannot be removed are in a folder of another name, and the next launch tries again.
            with contextlib.suppress(Remained):
                _remove(target, old.run_id, _RELEASE_S)
            return
    except RunDirError as problem:
        raise RunDirError(f"{problem}; or choose another --name") from problem
    raise RunDirError(
        f"run {target.name}: already there ({old.state}); `ddptop attach {target.name}` shows it, "
        f"or choose another --name"
    )


def remove(directory: RunDir, run_id: str | None = None, *, over: bool = False) -> None:
    """Remove an ended run with all its files; with a `run_id`, only that run, and no later one of the same name.

    A run is known to be `over` where its end could not be written down.

    Raises:
        RunDirError: it is not ours, not ended, another run, in use by a process, or cannot be removed.
    """
    run = directory.read_own()
    if run_id is not None and run.run_id != run_id:
        raise RunDirError(f"run {directory.name}: another run has taken this name meanwhile; `ddptop ps` lists it")
    if run.state not in ENDED and not over:
        raise RunDirError(f"run {directory.name}: not over ({run.state}); `ddptop kill {directory.name}` ends it")
    _remove(directory, run.run_id)


def discard(directory: RunDir) -> None:
    """Remove a run that was just made and has not been started.

    Raises:
        RunDirError: as for `remove`.
    """
    _remove(directory, directory.read_own().run_id)


class Remained(RunDirError):
    """The run is removed, and its name is free; but some of its files remain."""


def _remove(directory: RunDir, run_id: str, patience_s: float = 0.0) -> None:
    """Remove the directory of that run, whatever its state; wait up to `patience_s` for processes that are leaving it.

    Raises:
        RunDirError: it is not ours, a process looks after or uses it, or it cannot be removed.
        Remained: its name is free, but not all of its files could be removed.
    """
    name, path = directory.name, directory.path
    deadline = time.monotonic() + patience_s
    gone = path.with_name(f".{name}.{os.urandom(4).hex()}")
    try:
        while (claim := Claim.acquire(path, to_remove=True)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if claim is None:
            raise RunDirError(f"run {name}: somebody still looks after it; `ddptop kill {name}` ends it")
        with claim:
            while not (alone := claim.excludes_all(path)) and time.monotonic() < deadline:
                time.sleep(0.01)
            # A rank whose agent could not take the lock is known by its process.
            if not alone or any(is_alive(member.process) for member in directory.members().values()):
                raise RunDirError(f"run {name}: a process of it still lives; `ddptop kill {name}` ends it")
            # Under the claim nobody else replaces the folder, so that this check holds for the removal below.
            if directory.read_own().run_id != run_id:
                raise RunDirError(f"run {name}: another run has taken the name meanwhile")
            if (mark := directory.mark()) is not None:
                # On a full disk the mark of a copy stays as it is; the remains are reported below.
                with contextlib.suppress(OSError):
                    marks.renew(path, mark)
            path.rename(gone)
            if (problem := removal.empty(gone)) is not None:
                raise Remained(
                    f"run {name}: removed, but {problem.filename or gone} could not be ({problem.strerror}); "
                    f"remove {gone} yourself"
                )
    except OSError as error:
        raise RunDirError(f"run {name}: {path} could not be removed ({error.strerror}); see its permissions") from error


def set_aside(directory: RunDir, name: str) -> None:
    """Give an ended run another name, which is not in use, so that a new run can have its own.

    Raises:
        RunDirError: a process looks after it or uses it, or it cannot be renamed.
    """
    path = directory.path.with_name(name)
    try:
        claim = Claim.acquire(marks.owned_folder(directory.path), to_remove=True)
        if claim is None:
            raise RunDirError(f"run {directory.name}: somebody still looks after it; choose another --name")
        with claim:
            if not claim.excludes_all(directory.path):
                raise RunDirError(f"run {directory.name}: a process of it still lives; choose another --name")
            run = directory.read_own()
            path.mkdir(mode=0o700)
            directory.path.rename(path)
            private.replace(path / "run.json", msgspec.json.encode(msgspec.structs.replace(run, run=name)))
    except OSError as error:
        raise RunDirError(f"run {directory.name}: cannot be renamed ({error.strerror}); choose a --name") from error


def runs(damaged: list[str] | None = None) -> list[RunDir]:
    """Return the run directories of this user, newest first; see `runs_in`."""
    return runs_in(base(), os.getuid(), damaged=damaged)


def runs_in(folder: Path, owner: int, *, damaged: list[str] | None = None) -> list[RunDir]:
    """Return the run directories in a user's base, newest first: those with our mark and a sound record.

    Args:
        folder: the base.
        owner: the user.
        damaged: receives a line on each directory that bears our mark and cannot be listed.

    Raises:
        RunDirError: the base belongs to another user, or is open to others.
        OSError: it cannot be read.
    """
    private.check_folder(folder, owner, "remove it")
    found = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MOST_ENTRIES):
            if not is_name(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            run = RunDir(Path(entry.path), owner)
            try:
                record = run.read_own()
                if record.run == run.name:
                    found.append((record.created_at_ns, run))
            except RunDirError as problem:
                if damaged is not None and run.mark() is not None:
                    damaged.append(str(problem))
    return [run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True)]


def meant(text: str, among: Iterable[str] | None = None) -> list[str]:
    """Return the names, of runs where no others are given, that this may mean.

    It is the one of that name, else all that begin with it or have it as their last 4 digits.
    """
    text, names = normal(text), sorted((run.name for run in runs()) if among is None else among)
    if text in names:
        return [text]
    return [name for name in names if name.startswith(text) or digits_of(name) == text]


def find(prefix: str) -> RunDir:
    """Return the run of that name, or the only one whose name begins with it or has it as its last 4 digits.

    Raises:
        RunDirError: there is none, or more than one.
    """
    matches = meant(prefix)
    if len(matches) == 1:
        return RunDir(base() / matches[0])
    if matches:
        raise RunDirError(f"run {prefix!r}: could be {', '.join(matches)}; give more of the name")
    if is_name(prefix) and (damaged := RunDir(base() / prefix)).mark() is not None:
        damaged.read_own()
    raise RunDirError(f"run {prefix!r}: no such run; `ddptop ps` lists them")


def prune(spared: RunDir | None = None, measure: Callable[[Path], int] = lambda path: 0) -> dict[str, int]:
    """Remove all but the newest `KEEP_ENDED` ended runs, and the remains of interrupted launches and removals.

    Return the names of the removed runs, each with its size by `measure`; the run `spared` is not removed.
    """
    removed = {}
    for run in [run for run in runs() if is_over(run)][KEEP_ENDED:]:
        if spared is not None and run.path == spared.path:
            continue
        with contextlib.suppress(RunDirError):
            size = measure(run.path)
            remove(run)
            removed[run.name] = size
    with os.scandir(base()) as entries:
        named = ((entry, _LEFT.fullmatch(entry.name)) for entry in islice(entries, MOST_ENTRIES))
        left = [entry for entry, found in named if found is not None and is_name(found[1])]
    for entry in left:
        if entry.is_dir(follow_symlinks=False):
            removal.clear_away(Path(entry.path))
    return removed


def is_over(run: RunDir) -> bool:
    """Say whether a run has ended, by its record; False where it has none any more."""
    try:
        return run.read().state in ENDED
    except RunDirError:
        # Another process has removed it since it was listed.
        return False


def _stamp(file: Path | str) -> tuple[int, int, int]:
    """Return numbers that change with a file, whether it is replaced or written over."""
    found = os.lstat(file)
    return found.st_ino, found.st_ctime_ns, found.st_size


def _names(folder: Path | str, suffix: str) -> list[str]:
    """Return the names with an ending in a folder, none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, MOST_ENTRIES) if entry.name.endswith(suffix)]
    except OSError:
        return []

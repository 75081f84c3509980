"""The runs of this machine: which there are, and what each one is asked for.

    from ddptop.agent.client import runs
    for run in runs.listed():
        print(run.name, run.state())

Nothing is held open by a `Run`: each question reads its files anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ddptop.agent import wire
from ddptop.agent.client.sources import takeover
from ddptop.agent.client.sources import unprepared as outside
from ddptop.agent.end import survey
from ddptop.agent.record import retention
from ddptop.agent.run import identity, records, rundir
from ddptop.agent.run.files.masking import Mask as Mask
from ddptop.agent.run.rundir import KEEP_ENDED as KEEP_ENDED
from ddptop.agent.run.rundir import RunDir, is_alive
from ddptop.agent.run.rundir import RunDirError as RunDirError
from ddptop.agent.text import clean
from ddptop.agent.wire.frames import ENDED

if TYPE_CHECKING:
    from ddptop.agent.client.logs.of_run import RunLogs
    from ddptop.agent.wire.diagnoses.kept import Kept
    from ddptop.agent.wire.report import Report

Record: TypeAlias = records.Run


class Run:
    """A run, alive or ended. What raises a `RunDirError` here: the run is gone, or has no readable record."""

    def __init__(self, directory: RunDir) -> None:
        self.directory = directory
        """Its folder; for the client alone."""

    def __repr__(self) -> str:
        return f"Run({self.name!r})"

    @property
    def name(self) -> str:
        """Its name."""
        return self.directory.name

    @classmethod
    def at(cls, path: Path) -> Run:
        """Return the run in a directory."""
        return cls(RunDir(path))

    def record(self) -> Record:
        """Return how it was launched, and its end; its state there is out of date where its observer has died."""
        return self.directory.read()

    def mask(self) -> Mask:
        """Return what hides its secrets in a text; its frames, events and report are without them."""
        return Mask(self.directory.path, self.record())

    def state(self) -> str:
        """Return its present state; writes and starts nothing."""
        return survey.look(self.directory).state

    def has_ended(self) -> bool:
        """Say whether it is over, or its record gone; an end that nobody saw is recorded."""
        return takeover.has_ended(self.directory)

    def ended(self) -> Record | None:
        """Return its record where it has ended; None where it goes on, or has no record."""
        try:
            # On a full disk the end is not written down.
            found = takeover.meet(self.directory)
        except RunDirError:
            return None
        return msgspec.structs.replace(found.run, state=found.state) if found.ended else None

    def size(self) -> int:
        """Return its bytes on the disk, logs included."""
        return retention.size_of(self.directory.path)

    def prints_to_files(self) -> bool:
        """Say whether the output of its ranks, or of some of them, goes to files."""
        return self.record().launched or any(each.log is not None for each in self.directory.members().values())

    def ranks_here(self) -> Collection[int]:
        """Return the ranks on this host that have reported."""
        return self.directory.members().keys()

    def hosts(self) -> Mapping[int, str]:
        """Return the name of the host of each rank that has reported."""
        return {rank: member.host for rank, member in self.directory.everyone().items()}

    def remove(self, run_id: str) -> int:
        """Remove it, and no later run of the same name, once it has ended; return the bytes that came free.

        Raises:
            RunDirError: it has not ended, or cannot be removed.
        """
        if not takeover.meet(self.directory).ended:
            raise RunDirError(f"{self.name} has not ended, and was not removed")
        size = self.size()
        rundir.remove(self.directory, run_id, over=True)
        return size

    def happened(self) -> list[wire.Event | wire.Verdict]:
        """Return its events and verdicts in the order of the event list, without secrets; those of an ended run have
        ended.
        """
        from ddptop.agent.record import recording

        record, database, mask = self.record(), self.directory.database, self.mask()
        found: list[wire.Event | wire.Verdict] = [*recording.events_of(database, record)]
        for verdict in recording.read_verdicts(database):
            until = record.ended_at_ns if verdict.until_at_ns is None else verdict.until_at_ns
            found.append(msgspec.structs.replace(verdict, until_at_ns=until))
        return sorted(map(mask.shown, found), key=_told_at_ns)

    def steps(self, problems: list[str]) -> Iterator[wire.Steps]:
        """Yield the steps of its ranks that are recorded one by one, oldest first, some at a time.

        `problems` receives a line where something cannot be read.
        """
        from ddptop.agent.record import recording

        yield from recording.stream_steps(self.directory.database, problems)

    def lacks(self) -> list[str]:
        """Return a line on each part of its recording that cannot be read, or is missing once it has ended."""
        from ddptop.agent.record import recording

        database = self.directory.database
        found = recording.unreadable(database)
        if self.record().state in ENDED:
            found += recording.without_frames(database)
        return [event.text for event in found]

    def report(self) -> Report:
        """Return the report on it and its end."""
        from ddptop.agent.end import report

        return report.of(self.directory)

    def diagnoses(self, kind: str) -> list[Kept[Any]]:
        """Return the diagnoses of a kind that are kept with it, the newest first."""
        from ddptop.agent.record import diagnoses

        return diagnoses.kept(self.directory, kind)

    def logs(self, ranks: Sequence[int] = ()) -> RunLogs:
        """Return the logs of some ranks, of all of them where none is named."""
        from ddptop.agent.client.logs.of_run import RunLogs

        return RunLogs(self.directory, ranks)


def _told_at_ns(each: wire.Event | wire.Verdict) -> int:
    return each.at_ns if isinstance(each, wire.Event) else each.told_at_ns


def listed(damaged: list[str] | None = None) -> list[Run]:
    """Return the runs of this user, newest first; `damaged` receives a line on each that cannot be listed."""
    return [Run(directory) for directory in rundir.runs(damaged)]


def live() -> list[Run]:
    """Return those that go on, newest first."""
    return [run for run in listed() if not run.has_ended()]


def meant(text: str) -> list[str]:
    """Return the names of the runs that this may mean: a name, the beginning of one, or its last 4 digits.

    Groups that nobody prepared are looked for where no run is meant.
    """
    return rundir.meant(text) or rundir.meant(text, unprepared())


def unprepared() -> list[str]:
    """Return the names of the groups that nobody prepared, and nobody has attached to yet."""
    return [group.name for group in outside.found()]


def find(text: str) -> Run:
    """Return the run that this means; a group that nobody prepared becomes one.

    Raises:
        RunDirError: there is none, or more than one.
    """
    if not rundir.meant(text):
        groups = {group.name: group for group in outside.found()}
        among = rundir.meant(text, groups)
        if len(among) > 1:
            raise RunDirError(f"run {text!r}: could be {', '.join(among)}; give more of the name")
        if among:
            return Run(outside.meet(groups[among[0]]))
    return Run(rundir.find(text))


def named(name: str) -> Run:
    """Return the run of this very name, whether there is one or not.

    Raises:
        RunDirError: no run can have it.
    """
    return Run(RunDir(rundir.base() / rundir.check_name(name)))


def of_process(pid: int) -> Run:
    """Return the run that a process belongs to; a group that nobody prepared becomes one.

    Raises:
        RunDirError: there is no such process, or it is of no training.
    """
    for run in listed():
        # Removed under our eyes, it has no process.
        with contextlib.suppress(RunDirError):
            if identity.carries(pid, rundir.MARKER, run.record().run_id):
                return run
    words = identity.command(pid)
    if not words:
        raise RunDirError(f"run '{pid}': no such run, and no such process; `ddptop ps` lists the runs")
    if (directory := outside.of_process(pid)) is not None:
        return Run(directory)
    row = identity.table().get(pid)
    what = f"process {pid} ({clean(' '.join(words), 80)})"
    if row is not None and row.uid != os.geteuid():
        raise RunDirError(f"{what} belongs to another user (uid {row.uid}): `sudo -u '#{row.uid}' ddptop attach {pid}`")
    raise RunDirError(
        f"{what} is of no training: no Python script that has loaded torch by now is in it, or above or below it"
    )


def of_this_job(among: Iterable[Run]) -> list[Run]:
    """Return the runs of the Slurm job that this process belongs to, as of an overlapping step of it."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return []
    return [
        run
        for run in among
        if any(identity.carries(each.process.pid, "SLURM_JOB_ID", job) for each in run.directory.members().values())
    ]


def digits_of(name: str) -> str | None:
    """Return the 4 digits with which a suggested name ends: `7f3a` of `resnet-7f3a`; None where a name has none."""
    return rundir.digits_of(name)


def tidy(spared: Run | None = None) -> dict[str, int]:
    """Record the end of every run that ended without an observer, and remove the oldest ended runs but `spared`.

    Return the names of the removed runs, each with its bytes.
    """
    for run in listed():
        with contextlib.suppress(RunDirError):
            record = run.record()
            # Of a run that has ended or is looked after the ranks need not be looked up.
            if record.observer is not None and is_alive(record.observer):
                identity.wake(record.observer)
            elif record.state not in ENDED:
                takeover.meet(run.directory)
    return rundir.prune(None if spared is None else spared.directory, retention.size_of)

"""`ddptop logs`: the output of the ranks, once or as it is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ddptop.agent.client.logs.copies import CopiedLogs
from ddptop.agent.client.logs.entries import Entry
from ddptop.agent.client.logs.excerpt import LogSource
from ddptop.agent.client.logs.lines import LogLine
from ddptop.agent.client.logs.matching import ALL, Wanted
from ddptop.agent.client.logs.merging import Merged, merged, named
from ddptop.agent.client.logs.stream import LogStream, streams
from ddptop.agent.end import survey
from ddptop.agent.run.rundir import Member, RunDir
from ddptop.agent.text import ranks_in_spans
from ddptop.agent.wire.frames import ENDED
from ddptop.tui.drawing import units

POLL_S: Final = 0.1
_TAIL: Final = 4 << 20
"""Bytes of the end of a log on another host that are copied."""
_PATIENCE_S: Final = 10.0
"""Seconds for that."""

Say = Callable[[str], None]


def show(
    directory: RunDir, ranks: Sequence[int] = (), *, follow: bool, say: Say, note: Say, wanted: Wanted = ALL
) -> None:
    """Print the log of a rank, or those of several as one, with time and ranks before each line.

    Args:
        directory: the run.
        ranks: the ranks; all of them, and torchrun, where there is none.
        follow: whether to go on until the run ends.
        say: prints a line.
        note: says beside the output that there is none.
        wanted: what is to be printed.
    """
    copies = CopiedLogs(directory, _TAIL)
    try:
        _show(directory, ranks, copies, follow=follow, say=say, note=note, wanted=wanted)
    finally:
        copies.close()


def _show(
    directory: RunDir, ranks: Sequence[int], copies: CopiedLogs, *, follow: bool, say: Say, note: Say, wanted: Wanted
) -> None:
    copied_since = _changed(directory)
    copied = _copied(directory, ranks, copies)
    sources = _sources(directory, ranks, {rank: copies.path(rank) for rank in copied})
    told = _members_elsewhere(directory, ranks).keys() - set(copied)
    for line in elsewhere(directory, ranks, copied):
        note(line)
    if not sources:
        return
    logs = streams(sources)
    printer = _Plain(logs) if len(logs) == 1 and not wanted else _Entries(logs, wanted, labelled=len(logs) > 1)
    said = noted = begun = False
    while True:
        if follow and _changed(directory) != copied_since:
            # Other hosts may be linked long after that was begun.
            copied_since = _changed(directory)
            copied += [rank for rank in _kept_elsewhere(directory, ranks) if rank not in copied]
            printer.logs = streams(
                _sources(directory, ranks, {rank: copies.path(rank) for rank in copied}), printer.logs
            )
        copies.want(copied)
        ended = survey.look(directory).state in ENDED
        over = ended or not follow
        for line in printer.lines(begun=begun, over=over):
            said = True
            say(line)
        begun = True
        if not said and not noted:
            noted = True
            note(_silence(ranks, wanted, ended=ended, follow=follow))
        if over:
            # What was printed last on another host may have come too late to be copied.
            for line in elsewhere(directory, ranks, told) if ended else ():
                note(line)
            return
        time.sleep(POLL_S)


class _Plain:
    """One log as it is."""

    def __init__(self, logs: Sequence[LogStream]) -> None:
        self.logs = logs

    def lines(self, *, begun: bool, over: bool) -> Iterator[str]:
        """Yield the lines that were added."""
        for log in self.logs:
            yield from log.lines()
            if over:
                yield from (line.text for line in log.unended())


class _Entries:
    """The lines that are wanted of several logs."""

    def __init__(self, logs: Sequence[LogStream], wanted: Wanted, *, labelled: bool) -> None:
        self.logs = logs
        self._wanted = wanted
        self._labelled = labelled

    def lines(self, *, begun: bool, over: bool) -> Iterator[str]:
        """Yield the lines that were added; `begun` after the first call, `over` in the last one."""
        if not begun:
            yield from self._told([self._taken(log.history()) for log in self.logs])
        added = [log.fresh(time.time()) + (log.last() if over else []) for log in self.logs]
        yield from self._told([self._taken(entries) for entries in added])

    def _taken(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        return (entry for entry in entries if self._wanted.takes(entry))

    def _told(self, logs: Sequence[Iterable[Entry]]) -> Iterator[str]:
        for each in merged(logs):
            label = self._label(each) if self._labelled else ""
            yield from (label + _text(line, each.entry, labelled=self._labelled) for line in each.entry.lines)

    def _label(self, each: Merged) -> str:
        sources = [self.logs[number].source for number in each.logs]
        ranks = sorted(source.rank for source in sources if source.rank is not None)
        who = sources[0].name if each.entry.rank is None else str(each.entry.rank)
        if len(ranks) > 1:
            who = named(ranks)
        hosts = {source.host for source in sources}
        if hosts != {None}:
            who += f" {hosts.pop()}" if len(hosts) == 1 else f" {len(hosts)} hosts"
        return f"{units.clock(each.entry.at):>8} [{who}] "


def _text(line: LogLine, entry: Entry, *, labelled: bool) -> str:
    return line.own if labelled and entry.rank is not None else line.text


def _silence(ranks: Sequence[int], wanted: Wanted, *, ended: bool, follow: bool) -> str:
    if wanted:
        what = "no line is of that level or has that text" if wanted.level and wanted.text else (
            "no line has that text" if wanted.text else "no line is of that level"
        )  # fmt: skip
        return f"{what}{'' if ended else ' yet'}"
    who = f"rank {ranks[0]}" if len(ranks) == 1 else "none of these ranks" if ranks else "no rank"
    did = "printed" if ended else "has printed"
    what = f"{who} {did} {'nothing' if len(ranks) == 1 else 'anything'}{'' if ended else ' yet'}"
    return f"{what}; waiting for it" if follow and not ended else what


def _copied(directory: RunDir, ranks: Sequence[int], copies: CopiedLogs) -> list[int]:
    """Copy the ends of the logs of ranks on other hosts, as long as the run goes on; return those ranks."""
    there = _kept_elsewhere(directory, ranks)
    if not there or directory.read().state in ENDED:
        return []
    missing = copies.fetch(there, _PATIENCE_S)
    return [rank for rank in there if rank not in missing or copies.has(rank)]


def _kept_elsewhere(directory: RunDir, ranks: Sequence[int]) -> list[int]:
    """Return the ranks on other hosts whose output is kept there."""
    return [rank for rank, member in _members_elsewhere(directory, ranks).items() if member.log is not None]


def _changed(directory: RunDir) -> float:
    """Return when more became known of ranks on other hosts; 0 where nothing is."""
    try:
        return (directory.path / "hosts" / "far.json").stat().st_mtime
    except OSError:
        return 0.0


def _members_elsewhere(directory: RunDir, ranks: Sequence[int]) -> dict[int, Member]:
    here = directory.members()
    return {
        rank: member
        for rank, member in sorted(directory.everyone().items())
        if rank not in here and (not ranks or rank in ranks)
    }


def elsewhere(directory: RunDir, ranks: Sequence[int] = (), copied: Collection[int] = ()) -> list[str]:
    """Return a line for each other host with logs of these ranks, of all without `ranks`, that are not `copied`."""
    by_host: dict[str, list[int]] = {}
    for rank, member in _members_elsewhere(directory, ranks).items():
        if rank not in copied:
            by_host.setdefault(member.host, []).append(rank)
    there = f"`ddptop logs {directory.name}` there"
    return [
        f"the log{'' if len(found) == 1 else 's'} of {ranks_in_spans(found)} "
        f"{'is' if len(found) == 1 else 'are'} on {host}: {there}"
        for host, found in by_host.items()
    ]


def _sources(directory: RunDir, ranks: Sequence[int], copies: Mapping[int, str]) -> list[LogSource]:
    run, here = directory.read(), directory.members()
    hosts = {member.rank: member.host for member in directory.everyone().values()}
    several = len(set(hosts.values())) > 1
    logs = [
        LogSource(copies.get(rank, str(directory.rank_log(rank))), rank, host=hosts.get(rank) if several else None)
        for rank in ranks or range(run.world)
        # The log of another host's rank is there.
        if rank in here or rank not in hosts or rank in copies
    ]
    return logs if ranks else [*logs, LogSource(str(directory.torchrun_log), None, run.leader)]

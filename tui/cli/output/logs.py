"""`ddptop logs`: the output of the ranks, once or as it is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ddptop.agent.client.logs.entries import Entry
from ddptop.agent.client.logs.lines import LogLine
from ddptop.agent.client.logs.matching import ALL, Wanted
from ddptop.agent.client.logs.merging import Merged, merged, named
from ddptop.agent.client.logs.of_run import RunLogs
from ddptop.agent.client.runs import Run
from ddptop.agent.text import ranks_in_spans
from ddptop.tui.drawing import units

POLL_S: Final = 0.1

Say = Callable[[str], None]


def show(run: Run, ranks: Sequence[int] = (), *, follow: bool, say: Say, note: Say, wanted: Wanted = ALL) -> None:
    """Print the log of a rank, or those of several as one, with time and ranks before each line.

    Args:
        run: the run.
        ranks: the ranks; all of them, and torchrun, where there is none.
        follow: whether to go on until the run ends.
        say: prints a line.
        note: says beside the output that there is none.
        wanted: what is to be printed.
    """
    logs = run.logs(ranks)
    try:
        _show(run.name, ranks, logs, follow=follow, say=say, note=note, wanted=wanted)
    finally:
        logs.close()


def _show(run: str, ranks: Sequence[int], logs: RunLogs, *, follow: bool, say: Say, note: Say, wanted: Wanted) -> None:
    for line in logs_there(run, logs.left_out):
        note(line)
    if not logs.streams:
        return
    is_one = len(logs.streams) == 1 and not wanted
    printer = _Plain(logs) if is_one else _Entries(logs, wanted, labelled=len(logs.streams) > 1)
    said = noted = begun = False
    while True:
        if follow:
            logs.follow()
        ended = logs.has_ended()
        over = ended or not follow
        for line in printer.lines(begun=begun, over=over):
            said = True
            say(line)
        begun = True
        if not said and not noted:
            noted = True
            note(_silence(ranks, wanted, ended=ended, follow=follow))
        if over:
            for line in logs_there(run, logs.maybe_cut) if ended else ():
                note(line)
            return
        time.sleep(POLL_S)


class _Plain:
    """One log as it is."""

    def __init__(self, logs: RunLogs) -> None:
        self._logs = logs

    def lines(self, *, begun: bool, over: bool) -> Iterator[str]:
        """Yield the lines that were added."""
        for log in self._logs.streams:
            yield from log.lines()
            if over:
                yield from (line.text for line in log.unended())


class _Entries:
    """The lines that are wanted of several logs."""

    def __init__(self, logs: RunLogs, wanted: Wanted, *, labelled: bool) -> None:
        self._logs = logs
        self._wanted = wanted
        self._labelled = labelled

    def lines(self, *, begun: bool, over: bool) -> Iterator[str]:
        """Yield the lines that were added; `begun` after the first call, `over` in the last one."""
        if not begun:
            yield from self._told([self._taken(log.history()) for log in self._logs.streams])
        added = [log.fresh(time.time()) + (log.last() if over else []) for log in self._logs.streams]
        yield from self._told([self._taken(entries) for entries in added])

    def _taken(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        return (entry for entry in entries if self._wanted.takes(entry))

    def _told(self, logs: Sequence[Iterable[Entry]]) -> Iterator[str]:
        for each in merged(logs):
            label = self._label(each) if self._labelled else ""
            yield from (label + _text(line, each.entry, labelled=self._labelled) for line in each.entry.lines)

    def _label(self, each: Merged) -> str:
        sources = [self._logs.streams[number].source for number in each.logs]
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


def logs_there(run: str, ranks: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a line for each other host that has the logs of some ranks."""
    there = f"`ddptop logs {run}` there"
    return [
        f"the log{'' if len(found) == 1 else 's'} of {ranks_in_spans(found)} "
        f"{'is' if len(found) == 1 else 'are'} on {host}: {there}"
        for host, found in ranks.items()
    ]

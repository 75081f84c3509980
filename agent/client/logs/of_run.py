"""The logs of a run as they are written, those of ranks on other hosts by copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from ddptop.agent.client.logs.copies import CopiedLogs
from ddptop.agent.client.logs.excerpt import LogSource
from ddptop.agent.client.logs.stream import LogStream, streams
from ddptop.agent.client.sources import takeover
from ddptop.agent.run.rundir import Member, RunDir
from ddptop.agent.wire.frames import ENDED

_TAIL: Final = 4 << 20
"""Bytes of the end of a log on another host that are copied."""
_PATIENCE_S: Final = 10.0
"""Seconds for that."""


class RunLogs:
    """The logs of some ranks of a run; of all of them, and of their launcher, where none is named."""

    def __init__(self, directory: RunDir, ranks: Sequence[int] = ()) -> None:
        """Begin, with copies of the ends of logs on other hosts as long as the run goes on, which may take seconds."""
        self._directory = directory
        self._ranks = ranks
        self._copies = CopiedLogs(directory, _TAIL)
        self._linked_at = self._last_linked()
        self._copied = [] if directory.read().state in ENDED else self._fetched(self._kept_there())
        self._never_copied = self._on_other_hosts().keys() - set(self._copied)
        self.streams: list[LogStream] = streams(self._sources())

    @property
    def left_out(self) -> dict[str, list[int]]:
        """By host, the ranks whose logs are there alone."""
        return self._by_host(self._copied)

    @property
    def maybe_cut(self) -> dict[str, list[int]]:
        """By host, the ranks whose last lines may have come too late to be copied, once the run has ended."""
        return self._by_host(self._never_copied)

    def follow(self) -> None:
        """Take in the logs of hosts that were linked since: that may be long after the run has begun."""
        if (linked_at := self._last_linked()) != self._linked_at:
            self._linked_at = linked_at
            self._copied += [rank for rank in self._kept_there() if rank not in self._copied]
            self.streams = streams(self._sources(), self.streams)

    def has_ended(self) -> bool:
        """Keep the copies up to date for a moment; say whether the run is over, so that nothing more is written."""
        self._copies.want(self._copied)
        return takeover.has_ended(self._directory)

    def close(self) -> None:
        """Remove the copies."""
        self._copies.close()

    def _fetched(self, ranks: Sequence[int]) -> list[int]:
        missing = self._copies.fetch(ranks, _PATIENCE_S) if ranks else {}
        return [rank for rank in ranks if rank not in missing or self._copies.has(rank)]

    def _kept_there(self) -> list[int]:
        """Return the ranks on other hosts whose output is kept there."""
        return [rank for rank, member in self._on_other_hosts().items() if member.log is not None]

    def _last_linked(self) -> float:
        """Return when more became known of ranks on other hosts; 0 where nothing is."""
        try:
            return (self._directory.path / "hosts" / "far.json").stat().st_mtime
        except OSError:
            return 0.0

    def _on_other_hosts(self) -> dict[int, Member]:
        here = self._directory.members()
        return {
            rank: member
            for rank, member in sorted(self._directory.everyone().items())
            if rank not in here and (not self._ranks or rank in self._ranks)
        }

    def _by_host(self, without: Collection[int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for rank, member in self._on_other_hosts().items():
            if rank not in without:
                found.setdefault(member.host, []).append(rank)
        return found

    def _sources(self) -> list[LogSource]:
        run, here = self._directory.read(), self._directory.members()
        copies = {rank: self._copies.path(rank) for rank in self._copied}
        hosts = {member.rank: member.host for member in self._directory.everyone().values()}
        several = len(set(hosts.values())) > 1
        logs = [
            LogSource(
                copies.get(rank, str(self._directory.output(rank))), rank, host=hosts.get(rank) if several else None
            )
            for rank in self._ranks or range(run.world)
            # The log of another host's rank is there.
            if rank in here or rank not in hosts or rank in copies
        ]
        if run.outside:
            # The output of several ranks may go to one file, which does not say which of them has printed a line.
            shared = Counter(log.path for log in logs)
            alike = {log.path: LogSource(log.path, None, run.leader) for log in logs if shared[log.path] > 1}
            return [*(log for log in logs if shared[log.path] == 1), *alike.values()]
        return logs if self._ranks else [*logs, LogSource(str(self._directory.torchrun_log), None, run.leader)]

"""The judge at work: when it begins, what it finds each second, and what becomes of its verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ddptop.agent import wire
from ddptop.agent.observer.hosts.common import CommonRecord
from ddptop.agent.observer.hosts.role import LinkedHosts
from ddptop.agent.observer.judge.kinds.memory_growth import KIND as MEMORY_GROWTH
from ddptop.agent.observer.model.situation import Circumstances
from ddptop.agent.observer.model.store import Store
from ddptop.agent.observer.relay.hanging import Hanging
from ddptop.agent.observer.relay.reasons import Reasons

if TYPE_CHECKING:
    from ddptop.agent.observer.judge.judge import Judge

_OF_A_RANK: Final = ("slow_rank", "unequal_work", "no_core")
"""Kinds of verdicts that accuse one rank of being slow."""

MakeJudge = Callable[[int, int], "Judge"]
"""Makes the judge of a number of ranks and a generation."""


def judge_of(world: int, generation: int) -> Judge:
    """Return the usual judge."""
    # It needs NumPy, which takes a tenth of a second to load; the observer starts the ranks meanwhile.
    from ddptop.agent.observer.judge.judge import Judge

    return Judge(world, generation=generation)


class Verdicts:
    """The verdicts on one run, while no other host has its judge; for use from one thread."""

    def __init__(
        self,
        make: MakeJudge,
        store: Store,
        common: CommonRecord,
        hosts: LinkedHosts,
        hanging: Hanging,
        reasons: Reasons,
    ) -> None:
        """Judge nothing yet."""
        self._make: MakeJudge | None = make
        self._store, self._common, self._hosts = store, common, hosts
        self._hanging, self._reasons = hanging, reasons
        self._judge: Judge | None = None
        self.begun = False
        """True once it is known what earlier observers have found, so that verdicts can be told."""
        self._present: tuple[wire.Verdict, ...] = ()
        """Those of this moment."""
        self.states: Sequence[wire.HostFrame] = ()
        """The hosts of the run, as they are known."""
        self._hang: wire.Verdict | None = None
        """The newest hang of the present processes, or wait for a rank that works, also when it is over."""

    @property
    def are_told(self) -> bool:
        """True while this observer tells what it finds."""
        return self.begun and self._hosts.judges

    def begin(self, generation: int, recorded: Iterable[wire.Verdict] | None) -> None:
        """Make the judge; begin once the verdicts of earlier observers can be read, until which they are None."""
        if self._make is not None:
            # Once, whatever comes of it.
            make, self._make = self._make, None
            self._judge = self._store.judge = make(self._store.run.world, generation)
        if recorded is not None:
            self.begun = True
            if self._judge is not None:
                self._judge.resume([*recorded, *self._hosts.reserved], time.time_ns())

    def restart(self, generation: int) -> None:
        """Begin anew with other processes, or with another one of a rank."""
        if self._judge is not None:
            self._judge.restart(generation)
        if self._hang is not None and self._hang.generation != generation:
            self._hang = None

    def follow_hosts(self, generation: int) -> None:
        """Judge while the head of the hosts does not."""
        judge = self._judge if self._hosts.judges else None
        before, self._store.judge = self._store.judge, judge
        if before is not None and judge is None:
            before.restart(generation)
            self._record(before)
            self._present = ()
            self._store.changes.note_verdicts(time.time_ns(), ())

    def find(self, now_ns: int) -> None:
        """Find what is wrong at this moment."""
        self._present = ()
        if self._judge is not None:
            self._judge.hosts(self.states)
            self._judge.stand(*self._hanging.finding())
            self._present = self._judge.verdicts(now_ns)

    def explain(self) -> None:
        """Look for the reasons."""
        if self._judge is not None:
            self._judge.reasons(self._reasons.turn(self._present, self._judge.ordinary() if self._present else ()))

    def tell(self, now_ns: int) -> list[str]:
        """Hand the verdicts to the record and to the model; return lines for the list of events."""
        judge = self._judge
        if judge is None:
            return []
        self._record(judge)
        self._store.changes.note_verdicts(now_ns, self._present, judge.missing_steps, judge.named_from_ms)
        return judge.notes()

    def conclude(self) -> None:
        """Wait for nobody any more with what was noticed, because the run is over."""
        if self._judge is not None:
            self._judge.conclude()

    def close(self, at_ns: int) -> None:
        """End what goes on, because the run has ended."""
        if self._judge is not None:
            self._judge.close(at_ns)
            self._record(self._judge)

    def _record(self, judge: Judge) -> None:
        changes = judge.changes()
        for verdict in changes:
            self._common.judge(verdict)
        for verdict in (*changes, *self._present):
            if verdict.hang is not None and (verdict.kind == "hang" or verdict.hang.kind == "working"):
                self._hang = verdict

    def circumstances(self, held: Sequence[bool]) -> Circumstances:
        """Return the circumstances of an action; `held` says of each rank that was heard whether it is held."""
        verdicts, judge = self._present, self._judge
        slow = next((each.rank for each in verdicts if each.kind in _OF_A_RANK and each.rank is not None), None)
        ordinary = () if slow is None or judge is None else judge.ordinary()
        peer = next((rank for rank in ordinary if rank != slow), None)
        return Circumstances(
            any(held),
            any(held) and not all(held),
            self._hang,
            None if slow is None or peer is None else (slow, peer),
            next((each.rank for each in verdicts if each.kind == MEMORY_GROWTH), None),
        )

"""All that is found out of a rank on request, or for a verdict."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ddptop.agent.rank.inspection.looks.looking import Looking
from ddptop.agent.rank.inspection.looks.modules import Modules
from ddptop.agent.rank.inspection.looks.workers import Workers
from ddptop.agent.rank.inspection.memory.censuses import Censuses
from ddptop.agent.rank.inspection.memory.devices import Fullness
from ddptop.agent.rank.inspection.probing.probing import DOING, Probing
from ddptop.agent.rank.inspection.profiling import Profiling
from ddptop.agent.rank.inspection.stacks import own_sources
from ddptop.agent.rank.inspection.work.counting import Counting

if TYPE_CHECKING:
    from ddptop.agent import wire
    from ddptop.agent.rank.collectives.timing import Collectives
    from ddptop.agent.rank.commands.gate import Gate
    from ddptop.agent.rank.faults import Faults
    from ddptop.agent.rank.records.stamps import Stamps
    from ddptop.agent.run.rundir import RunDir


class Diagnoses:
    """The diagnoses of one rank. The observer asks for them; the work of a step alone is counted unasked, once."""

    def __init__(
        self,
        rank: int,
        directory: RunDir,
        stamps: Stamps,
        collectives: Collectives,
        gate: Gate,
        faults: Faults,
        notify: Callable[[str, str], None],
    ) -> None:
        """Prepare them, and look at nothing yet.

        Args:
            rank: of this process.
            directory: of the run, with the folders in which they are kept.
            stamps: of the training thread.
            collectives: those of the training, to which a probe's do not belong.
            gate: says when the rank is held.
            faults: takes their errors.
            notify: publishes a line, with its level.
        """
        self._gate = gate
        self.profiling = Profiling(rank, directory.diagnoses("profile"), stamps, faults)
        self.counting = Counting(stamps, faults)
        self.probing = Probing(collectives, directory.path)
        self.censuses = Censuses(rank, directory.diagnoses("memory"), stamps, gate, own_sources, faults)
        self.fullness = Fullness(notify, faults)
        self.workers = Workers(own_sources)
        self.modules = Modules(stamps, faults)
        self.looking = Looking(stamps, self.workers, self.modules, gate, own_sources)

    def boundary(self, step: int, device: str | None, timeout_s: float | None) -> bool:
        """Do what is due behind a step; called by the training thread.

        Returns:
            True where the thread was held for a while, so that the next step begins now.

        Raises:
            BaseException: what a signal handler of the script has raised meanwhile, and nothing else.
        """
        if self.profiling.is_armed:
            self.profiling.boundary(step)
        if self.modules.is_armed:
            self.modules.boundary(step)
        if self.counting.is_armed:
            self.counting.boundary(step, device)
        return self.censuses.is_armed and self.censuses.boundary(step, timeout_s)

    def probe(self, command: wire.Probe, device: str | None) -> wire.Probed | None:
        """Have the held training thread do a part of a probe; return the outcome, None until it is known.

        Raises:
            GateError: the rank is not held for it.
        """
        name = f"probe {command.token} {command.part}"
        return self._gate.do(command.token, name, DOING, partial(self.probing.run, command, device))

    def abandon(self) -> None:
        """In a forked child: its steps are not these."""
        self.profiling.abandon()
        self.counting.abandon()
        self.modules.close()
        self.censuses.abandon()

    def close(self) -> None:
        """End with the script."""
        self.profiling.close()
        self.modules.close()
        self.counting.close()
        self.censuses.close()

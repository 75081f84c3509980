"""One part of a probe on the training thread, between a reading of the circumstances and another one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.faults import describe, is_ours
from ddptop.agent.rank.inspection.probing import experiments, facts
from ddptop.agent.rank.inspection.probing.experiments import Unmeasured
from ddptop.agent.rank.inspection.probing.messages import Messages
from ddptop.agent.wire import Measured, Probe, Probed

DOING: Final = "probing"
"""The activity of a rank meanwhile."""


class Probing:
    """The probes of one rank."""

    def __init__(self, collectives: Collectives, folder: Path) -> None:
        """Prepare; `folder` is that of the run, on whose disk files are written."""
        self.checkpoints: Path | None = None
        """The folder of the script's last checkpoint, where it is known."""
        self._collectives = collectives
        self._folder = folder
        self._messages: Messages | None = None
        """Of the last part: calls that it has begun keep their tensors until the next one."""

    def run(self, command: Probe, device: str | None) -> Probed:
        """Do a part; what cannot be measured is said in the answer.

        Args:
            command: the part.
            device: that of the training; None: it is not known.

        Raises:
            Exception: what a signal handler of the script has raised meanwhile, and nothing else.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return Probed(problem="its script has not imported torch")
        try:
            # Past modes of the script that would see the calls.
            modes = torch.utils._python_dispatch._disable_current_modes()
            with torch._C.DisableTorchFunction(), modes, torch.no_grad(), self._collectives.aside():
                where = torch.device(device or "cpu")
                match command.kind:
                    case "room":
                        return Probed(order=experiments.room(torch, where))
                    case "own":
                        return self._own(command, torch, where)
                    case _:
                        self._messages = Messages(torch, where)
                        before = facts.Reading(closely=False)
                        done = self._messages.run(command)
                        read = facts.between(before, facts.Reading(closely=False))
                        return msgspec.structs.replace(done, facts=read)
        except Exception as error:
            if not is_ours(error):
                raise
            return Probed(problem=str(error) if isinstance(error, Unmeasured) else describe(error))

    def _own(self, command: Probe, torch: Any, device: Any) -> Probed:
        seconds = command.ms / 1e3
        work: list[Callable[[], list[Measured]]] = []
        if command.size:
            work.append(lambda: [experiments.products(torch, device, command.size, seconds)])
        if device.type != "cpu":
            host, order = torch.device("cpu"), experiments.ORDER_OF_CPU
            work.append(lambda: [experiments.products(torch, host, order, seconds, "host")])
        if command.files:
            work.append(lambda: experiments.files(self._folder, "disk"))
        if command.files and self.checkpoints is not None:
            checkpoints = self.checkpoints
            work.append(lambda: experiments.files(checkpoints, "checkpoint"))
        before = facts.Reading(closely=command.closely)
        found: list[Measured] = []
        problems = []
        for each in work:
            try:
                found += each()
            except (Unmeasured, OSError, RuntimeError) as problem:
                if not is_ours(problem):
                    raise
                problems.append(str(problem) if isinstance(problem, Unmeasured) else describe(problem))
        read = facts.between(before, facts.Reading(closely=command.closely))
        if device.type == "cuda":
            read = msgspec.structs.replace(read, board=facts.board(torch, device))
        return Probed(measured=tuple(found), facts=read, problem="; ".join(problems))

"""The function by which the script saves a checkpoint, called while the training thread is held."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ddptop.agent.rank.calls import given
from ddptop.agent.rank.calls.script import Script
from ddptop.agent.rank.commands.gate import Gate, GateError
from ddptop.agent.rank.faults import Faults, describe
from ddptop.agent.rank.inspection.probing.probing import Probing
from ddptop.agent.wire import Saved


class Saving:
    """The checkpoints of one rank."""

    def __init__(self, script: Script, gate: Gate, probing: Probing, faults: Faults) -> None:
        """Have no function yet; `probing` is told the folder of the checkpoints."""
        self._script, self._gate, self._probing, self._faults = script, gate, probing, faults
        self.function: Callable[[int], object] | None = None
        """The function that the script has registered."""

    def register(self, save: object) -> None:
        """See `ddptop.agent.on_checkpoint`."""
        if callable(save):
            self.function = save
        else:
            self._faults.note("on_checkpoint", TypeError(f"{type(save).__name__} cannot be called"))

    def ask(self, token: str) -> Saved | None:
        """Have the held training thread save a checkpoint; return the outcome, None until it is known.

        Raises:
            GateError: nothing can be saved now.
        """
        if self.function is None:
            raise GateError("its script has registered no checkpoint function (ddptop.agent.on_checkpoint)")
        return self._gate.do(token, token, "saving a checkpoint", self.save)

    def save(self) -> Saved:
        """Call the function, and return the outcome."""
        assert self.function is not None
        began = time.monotonic_ns()
        try:
            where = self.function(self._gate.completed)
        except Exception as error:  # the script's own, reported to the controller
            return Saved(False, describe(error, 300), time.monotonic_ns() - began, self._gate.completed)
        took_ns = time.monotonic_ns() - began
        told = self._script.accepted("where on_checkpoint's function saved", given.path, where)
        if told and (folder := Path(told).parent).is_dir():
            self._probing.checkpoints = folder
        return Saved(True, told or "", took_ns, self._gate.completed)

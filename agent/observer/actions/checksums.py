"""Asks all ranks of a group for the checksums of their parameters at the end of the same step; none is held."""

from __future__ import annotations

from collections.abc import Mapping

from ddptop.agent import wire
from ddptop.agent.observer.actions.ahead import Ahead
from ddptop.agent.observer.actions.polled import named


class Checksums(Ahead[wire.Checksums]):
    """The checksums of every rank at the end of one step."""

    paused = "paused, and parameters are read at the end of a step; resume it, or ask while it makes one"
    apart = "there is no step to compare them at"
    fast = "its steps are too fast for this; `--check-parameters 100` compares them every 100 steps"

    def command(self, boundary: int) -> wire.Command:
        """Return the question for the step of this number."""
        return wire.Check(0, boundary)

    def found(self, reply: wire.Reply) -> wire.Checksums | None:
        """Return the checksums in a reply."""
        return reply.checksums

    def waiting(self, boundary: int, behind: Mapping[int, int]) -> str:
        """Return the line on ranks that have not made the step."""
        return f"waiting for {named(behind)} to make step {boundary:,}"

"""Asks all ranks of a group for the checksums of their parameters at the end of the same step, and compares them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ddptop.agent import wire
from ddptop.agent.observer.actions.action import Action, Turns, aside
from ddptop.agent.observer.actions.diagnosis import Ahead
from ddptop.agent.observer.judge.comparison import comparable, compare, left_aside, name_of, not_compared, sentence
from ddptop.agent.text import ranks_in_spans


def checksum(action: Action) -> Turns[wire.Parameters]:
    """Return the parameters of all ranks at one step, compared.

    Raises:
        Refused: there is no such step, and why.
    """
    _, found = yield from Checksums().gather(action)
    return (yield from aside(partial(compared, found)))


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
        return f"waiting for {ranks_in_spans(behind)} to make step {boundary:,}"


def compared(found: Mapping[int, wire.Checksums]) -> wire.Parameters:
    """Compare what all ranks say of one step."""
    said: dict[tuple[str, int], dict[int, wire.ModuleSums]] = {}
    reasons: dict[str, None] = {}
    for rank, message in sorted(found.items()):
        reasons.update(dict.fromkeys(not_compared(message.modules)))
        for module in message.modules:
            if module.sums:
                said.setdefault((module.group, module.number), {})[rank] = module
    modules = []
    for (group, number), each in sorted(said.items()):
        same = comparable(each)
        if group:
            reasons.update(dict.fromkeys(left_aside(each, same)))
        if len(same) > 1:
            modules.append(_module(group, number, same))
    return wire.Parameters(max(message.step for message in found.values()), tuple(modules), tuple(reasons))


def _module(group: str, number: int, same: Mapping[int, wire.ModuleSums]) -> wire.Compared:
    names = next((module.names for module in same.values() if module.names), ())
    tensors = len(next(iter(same.values())).sums) // 8
    found = compare({rank: module.sums for rank, module in same.items()})
    if found is None:
        return wire.Compared(group, number, tuple(sorted(same)), tensors)
    return wire.Compared(
        group, number, tuple(sorted(same)), tensors, tuple(found.ranks), found.tensors,
        name_of(found.first, names), sentence(found, names, tensors),
    )  # fmt: skip

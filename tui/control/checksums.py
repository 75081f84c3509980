"""What the checksums of all ranks at one step say: whether parameters differ, in lines and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ddptop.agent import wire
from ddptop.agent.observer.judge.comparison import (
    Difference,
    comparable,
    compare,
    left_aside,
    name_of,
    not_compared,
    sentence,
)
from ddptop.agent.text import plural

NOTHING: Final = "nothing to compare: no optimizer of torch has made a step with parameters that every rank has whole"


class Compared(NamedTuple):
    """One module on all ranks that have it."""

    group: str
    """Its process group; empty where it is not wrapped in DDP, and may differ."""
    number: int
    told: Mapping[int, wire.ModuleSums]
    """By rank, what is comparable."""
    difference: Difference | None
    names: tuple[str, ...]

    @property
    def tensors(self) -> int:
        """Return how many tensors it has."""
        return len(next(iter(self.told.values())).sums) // 8


class Outcome(NamedTuple):
    """The parameters of a group at one step."""

    step: int
    modules: tuple[Compared, ...]
    reasons: tuple[str, ...]
    """Why some tensors are not compared, a line each."""

    @property
    def differs(self) -> bool:
        """Say whether parameters differ that DDP keeps the same."""
        return any(each.group and each.difference for each in self.modules)

    def lines(self) -> list[str]:
        """Return the outcome, a line for each thing that is to say."""
        equal = [each for each in self.modules if each.difference is None]
        lines = []
        for each in self.modules:
            if each.difference is not None:
                line = sentence(each.difference, each.names, each.tensors)
                lines.append(line if each.group else f"{line}; they are not wrapped in DDP, and may be meant to differ")
        if equal:
            ranks = {rank for each in equal for rank in each.told}
            # Of groups that have different parameters each rank has those of its own.
            tensors = sum({(each.number, each.tensors, bool(each.group)): each.tensors for each in equal}.values())
            also = "other " if lines else ""
            lines.append(f"the {also}parameters of {plural(len(ranks), 'rank')} are equal: {plural(tensors, 'tensor')}")
        return [f"step {self.step:,}: {line}" for line in lines or [NOTHING]] + list(self.reasons)

    def as_json(self, run: str) -> dict[str, Any]:
        """Return the outcome as it is printed with `--json`."""
        return {
            "run": run,
            "step": self.step,
            "differ": self.differs,
            "modules": [_json(each) for each in self.modules],
            "not_compared": list(self.reasons),
        }


def _json(each: Compared) -> dict[str, Any]:
    found = each.difference
    return {
        "group": each.group or None,
        "module": each.number,
        "ranks": sorted(each.told),
        "tensors": each.tensors,
        "differing_ranks": [] if found is None else list(found.ranks),
        "differing_tensors": 0 if found is None else found.tensors,
        "first": None if found is None else name_of(found.first, each.names),
    }


def outcome(found: Mapping[int, wire.Checksums]) -> Outcome:
    """Compare what all ranks have told of one step."""
    told: dict[tuple[str, int], dict[int, wire.ModuleSums]] = {}
    reasons: dict[str, None] = {}
    for rank, message in sorted(found.items()):
        reasons.update(dict.fromkeys(not_compared(message.modules)))
        for module in message.modules:
            if module.sums:
                told.setdefault((module.group, module.number), {})[rank] = module
    modules = []
    for (group, number), each in sorted(told.items()):
        same = comparable(each)
        if group:
            reasons.update(dict.fromkeys(left_aside(each, same)))
        if len(same) > 1:
            names = next((module.names for module in same.values() if module.names), ())
            difference = compare({rank: module.sums for rank, module in same.items()})
            modules.append(Compared(group, number, same, difference, names))
    return Outcome(max(message.step for message in found.values()), tuple(modules), tuple(reasons))

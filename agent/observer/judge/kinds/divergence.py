"""Ranks whose parameters are no longer those of the others, by checksums at the end of the same step.

DDP keeps the parameters of a module the same on all ranks of a group, and any difference is a fault. Parameters
that are not wrapped may be meant to differ: they are compared between ranks on which they have once changed alike,
bit by bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ddptop.agent.observer.judge.comparison import Difference, comparable, compare, left_aside, not_compared, sentence
from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.text import plural
from ddptop.agent.wire import MOST_MODULES, Checksums, ModuleSums, Verdict

SETTLED_NS: Final = 3_000_000_000
"""Nanoseconds after which the checksums of a rank will not come any more: ranks send them ten times a second."""
PENDING: Final = 256
"""Checks of a module that wait for ranks."""
_MOST_LAYOUTS: Final = 4 * MOST_MODULES

Told = dict[int, ModuleSums]
"""Checksums of a module, by rank."""


@dataclass(slots=True)
class _Check:
    """The checksums of a module after the same number of its steps."""

    step: int
    """Step of the training at which a rank has made them, the smallest of any rank."""
    at_ns: int
    told: Told = field(default_factory=dict)
    shared: dict[bytes, bytes] = field(default_factory=dict)
    """Equal checksums of different ranks are stored once."""
    noticed_ns: int | None = None


@dataclass(slots=True)
class _Module:
    pending: dict[int, _Check] = field(default_factory=dict)
    """By the number of its steps."""
    judged: int = 0
    """Steps of the last check that was judged."""
    last: Told = field(default_factory=dict)
    """The checksums of that check; of a module that is not wrapped."""
    alike: list[frozenset[int]] = field(default_factory=list)
    """Ranks on which the parameters have changed alike; of a module that is not wrapped."""
    equal_at: int | None = None
    """Step of the last check without a difference."""
    differs: _Differing | None = None


@dataclass(frozen=True, slots=True)
class _Differing:
    difference: Difference
    step: int
    at_ns: int
    text: str


class Divergence(Finder):
    """The checksums of a group's parameters, compared."""

    kinds = ("diverged",)

    def __init__(self, world: int) -> None:
        super().__init__()
        self._world = world
        self._modules: dict[tuple[str, int], _Module] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        """By layout."""
        self._said: set[str] = set()
        self._notes: list[str] = []
        self._every = 0

    def compare(self, message: Checksums) -> None:
        """Take in the checksums of a rank of the group."""
        self._every = max(self._every, message.every)
        for each in message.modules:
            if each.names and (each.layout in self._names or len(self._names) < _MOST_LAYOUTS):
                self._names[each.layout] = each.names
            key = each.group, each.number
            # A mesh has as many groups as ranks, at most.
            if key not in self._modules and len(self._modules) >= MOST_MODULES + 2 * self._world:
                continue
            module = self._modules.setdefault(key, _Module())
            if each.steps <= module.judged:
                continue
            check = module.pending.setdefault(each.steps, _Check(message.step, message.at_ns))
            check.step, check.at_ns = min(check.step, message.step), min(check.at_ns, message.at_ns)
            check.shared.setdefault(each.sums, each.sums)
            check.told[message.rank] = _light(each, check.shared[each.sums])
        for line in not_compared(message.modules):
            self._note(line)

    def _note(self, line: str) -> None:
        if line not in self._said and len(self._said) < MOST_MODULES:
            self._said.add(line)
            self._notes.append(line)

    def notes(self) -> list[str]:
        """Return lines on what is compared and what is not, each of them once."""
        notes, self._notes = self._notes, []
        return notes

    def finding(self, now_ns: int) -> Verdict | None:
        differed = any(module.differs for module in self._modules.values())
        ended_ns = 0
        for (group, _), module in self._modules.items():
            for check in self._due(module, now_ns):
                self._judge(module, check, is_wrapped=bool(group))
                ended_ns = max(ended_ns, check.at_ns)
        found = [module.differs for module in self._modules.values() if module.differs is not None]
        if differed and not found:
            self.ceased_at_ns = ended_ns
        if not found:
            return None
        first = min(found, key=lambda each: each.step)
        ranks = first.difference.ranks
        return Verdict(
            0,
            "diverged",
            first.text,
            first.at_ns,
            rank=ranks[0] if len(ranks) == 1 else None,
            since_step=first.step,
            urgent=True,
        )

    def _due(self, module: _Module, now_ns: int) -> Iterable[_Check]:
        """Remove and yield the checks, in order, that all ranks have sent, or that have waited long enough."""
        for steps in sorted(module.pending):
            check = module.pending[steps]
            members = next(iter(check.told.values())).members or self._world
            if check.noticed_ns is None:
                check.noticed_ns = now_ns
            waits = len(check.told) < members and 0 <= now_ns - check.noticed_ns < SETTLED_NS
            if waits and len(module.pending) <= PENDING:
                return
            del module.pending[steps]
            module.judged = steps
            yield check

    def _judge(self, module: _Module, check: _Check, *, is_wrapped: bool) -> None:
        told = comparable(check.told)
        if not is_wrapped:
            self._learn(module, told)
        for line in left_aside(check.told, told) if is_wrapped else ():
            self._note(line)
        groups = [frozenset(told)] if is_wrapped else module.alike
        compared = [{rank: told[rank].sums for rank in group if rank in told} for group in groups]
        compared = [sums for sums in compared if len(sums) > 1]
        if not any(sums for group in compared for sums in group.values()):
            return
        difference = next((found for found in map(compare, compared) if found is not None), None)
        if difference is None:
            module.equal_at, module.differs = check.step, None
            if self._every and is_wrapped and "compared" not in self._said:
                self._said.add("compared")
                tensors = plural(len(next(iter(compared[0].values()))) // 8, "tensor")
                often = plural(self._every, "step") if self._every > 1 else "step"
                self._notes.append(
                    f"parameters are compared every {often}: {tensors} on {len(compared[0])} ranks, "
                    f"equal at step {check.step:,}"
                )
            return
        before = module.differs
        if before is not None and before.difference.ranks == difference.ranks:
            return
        step, at_ns = (check.step, check.at_ns) if before is None else (before.step, before.at_ns)
        some = told[difference.ranks[0]]
        text = sentence(difference, self._names.get(some.layout, ()), len(some.sums) // 8, since=step)
        if before is None and module.equal_at is not None and module.equal_at < step - 1:
            text = f"{text} (equal at step {module.equal_at:,})"
        module.differs = _Differing(difference, step, at_ns, text)

    def _learn(self, module: _Module, told: Mapping[int, ModuleSums]) -> None:
        """Find the ranks on which the parameters of a module that is not wrapped change alike, once there are some."""
        last, module.last = module.last, dict(told)
        if module.alike or not last:
            return
        groups: defaultdict[tuple[str, bytes, bytes], set[int]] = defaultdict(set)
        for rank, now in told.items():
            before = last.get(rank)
            if before is not None and before.layout == now.layout and before.sums != now.sums:
                groups[now.layout, before.sums, now.sums].add(rank)
        module.alike = [frozenset(ranks) for ranks in groups.values() if len(ranks) > 1]
        if not module.alike and len(groups) > 1:
            self._note(
                "parameters that are not wrapped in DistributedDataParallel differ between ranks, as they may: "
                "they are not compared"
            )


def _light(module: ModuleSums, sums: bytes) -> ModuleSums:
    """Return checksums of a rank without their names."""
    return ModuleSums(module.group, module.number, module.steps, module.layout, sums, module.members)

"""The rank that holds the group back, by looks from outside: the one that waits less than the others.

Without records nobody knows a step, nor what it costs.  But ranks that wait for each other spend equal times in equal
steps: the one that is late has least to wait, and what it has more of instead is the reason.  It is named where it
waits less than the others by `LEAST` of its time and by `ERRORS` standard errors of that difference: the larger of the
one by the number of looks, and the one by how the difference varies from bin to bin, which an evaluation or a save of
one rank makes large.  Bins in which a rank stood in one wait for long are left out: that is a standstill.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ddptop.agent.observer.judge.intervals import IN_WORDS
from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.observer.judge.standstill import NEWS_S
from ddptop.agent.wire import Sampled, Verdict, sampling_error

LEAST: Final[Mapping[int, float]] = {36: 0.2, 60: 0.15, 120: 0.1}
"""By the newest seconds that are judged together, the part of its time by which a rank waits less than the others that
is named: a machine under load slows any rank down for some seconds."""
ERRORS: Final = 4.0
"""The same in standard errors: of a healthy run this is a matter of hours, many looks at many ranks considered."""
ALONE: Final = 0.5
"""Part of that difference by which it has to wait less than each other one."""
GOES_ON: Final = 0.5
"""Part of `LEAST`, and of `ERRORS`, down to which who is named remains so: it is not to come and go."""
OF_LINE: Final = 0.3
"""Part of the difference that a function has whose line is named."""
OF_PHASE: Final = 0.6
"""The same of a phase that is named alone."""
FEW: Final = 6
"""Bins from which on anything is said."""
TOGETHER: Final = (1, 2, 4)
"""Neighboring bins whose mean is taken for one value: what slows a rank down for some seconds is in several."""
LONGEST_NS: Final = 30_000_000_000
"""The time after which a bin that not all ranks have come to is given up, and nobody is named whom nobody looks at."""


@dataclass
class Spent:
    """Looks at one rank, added up."""

    looks: int = 0
    blocks: int = 0
    starved: float = 0.0
    """Looks for the time in which it had no CPU."""
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By phase, the looks that found it in there."""
    lines: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """The same by phase and line."""
    of: list[Sampled] = field(default_factory=list)
    """The looks themselves."""

    def take(self, message: Sampled) -> None:
        """Add the looks of a stretch."""
        self.of.append(message)
        self.looks += message.looks
        self.blocks += message.blocks
        self.starved += message.looks * (message.starved or 0.0)
        for phase, share in message.shares.items():
            self.phases[phase] += message.looks * share
        for line in message.lines:
            self.lines[line.phase, line.where] += message.looks * line.share

    @property
    def wait(self) -> float:
        """The part of the time that it waited for others."""
        return self.phases.get("wait", 0.0) / self.looks

    @property
    def spare(self) -> float:
        """That, and the part in which it had no CPU: on a crowded host it is nobody's fault to be kept from it."""
        return self.wait + self.starved / self.looks


@dataclass
class _Bin:
    """The looks at all ranks in the same few seconds."""

    begin_ns: int
    end_ns: int
    spent: dict[int, Spent] = field(default_factory=dict)
    """By rank."""

    def less(self, rank: int) -> float:
        """Return the part of the time by which a rank has waited less than the others."""
        others = [each.spare for other, each in self.spent.items() if other != rank]
        return statistics.median(others) - self.spent[rank].spare


@dataclass(frozen=True)
class _Suspicion:
    rank: int
    wait: float
    """The part of its time that it waits; so are the next ones."""
    others: float
    less: float
    error: float
    """The standard error of `less`."""
    agree: float
    """Part of the bins in which it waits less."""
    alone: bool


class SlowByLooks(Finder):
    """Takes the looks at a group."""

    kinds = ("slow_rank",)

    def __init__(self, world: int) -> None:
        """Know nothing yet."""
        super().__init__()
        self._world = world
        self._open: _Bin | None = None
        """The one to which not all ranks have come yet."""
        self._bins: deque[_Bin] = deque()
        self._stood: dict[int, tuple[int, int]] = {}
        """By rank, from when to when it last stood in one wait for long."""
        self._blamed: tuple[int, int] | None = None
        """The rank that is named, and since when it waits less."""
        self.named_from_share: float | None = None
        """The part of its time by which a rank would have to wait less to be named; None: none would, or one is."""

    def sampled(self, message: Sampled) -> None:
        """Take in looks."""
        since_ns, at_ns = message.still_since_ns, message.at_ns
        if since_ns is not None and at_ns - since_ns >= NEWS_S * 1e9 and message.shares.get("wait", 0.0) > 0.5:
            self._stood[message.rank] = since_ns, at_ns
        if not message.looks:
            return
        if self._open is None or not 0 <= at_ns - self._open.begin_ns <= LONGEST_NS:
            self._open = _Bin(at_ns - message.span_ns, at_ns)
        self._open.end_ns = max(self._open.end_ns, at_ns)
        self._open.spent.setdefault(message.rank, Spent()).take(message)
        if len(self._open.spent) == self._world > 1:
            self._bins.append(self._open)
            self._open = None
            while not 0 <= at_ns - self._bins[0].begin_ns <= 2e9 * max(LEAST):
                self._bins.popleft()
            self._deliberate([each for each in self._bins if not self._stands(each)])

    def _stands(self, each: _Bin) -> bool:
        return any(since < each.end_ns and each.begin_ns < until for since, until in self._stood.values())

    def _deliberate(self, bins: Sequence[_Bin]) -> None:
        if self._blamed is None:
            self.named_from_share = None
            known = [(least, view) for seconds, least in LEAST.items() if (view := _newest(bins, seconds)) is not None]
            for least, view in known:
                found = view.worst()
                if found is not None and found.less >= least:
                    self._blamed = found.rank, view.since_ns(found)
                    self.found = view.verdict(*self._blamed)
                    return
            for least, view in known[-1:]:
                self.named_from_share = max(least, *(ERRORS * view.suspicion(rank).error for rank in view.spent))
            return
        rank, since_ns = self._blamed
        if 0 < len(bins) < FEW:
            return
        view = _View(bins[-FEW:])
        now = view.suspicion(rank) if bins else None
        if now is not None and now.less >= GOES_ON * max(min(LEAST.values()), ERRORS * now.error):
            since = [each for each in bins if each.begin_ns >= since_ns]
            self.found = (_View(since) if len(since) >= FEW else view).verdict(rank, since_ns)
        else:
            last = [each.end_ns for each in bins if each.less(rank) >= min(LEAST.values())]
            self.ceased_at_ns = last[-1] if last else self._bins[-1].end_ns
            self._blamed = self.found = None
            # What was before is not to be found again in a longer time.
            self._bins.clear()

    def finding(self, now_ns: int) -> Verdict | None:
        """Return the rank that is named; None, too, where no looks come any more."""
        return self.found if self._bins and now_ns - self._bins[-1].end_ns <= LONGEST_NS else None


def _newest(bins: Sequence[_Bin], seconds: float) -> _View | None:
    """Return the bins of the newest seconds; None where there are not as many seconds of them."""
    view = [each for each in bins if each.begin_ns >= bins[-1].end_ns - seconds * 1e9]
    # Between two bins there may be a pause.
    enough = len(view) >= FEW and view[-1].end_ns - view[0].begin_ns >= 0.8e9 * seconds
    return _View(view) if enough else None


class _View:
    """At least `FEW` bins, and the looks at each rank in all of them."""

    def __init__(self, bins: Sequence[_Bin]) -> None:
        self._bins = bins
        self.spent: defaultdict[int, Spent] = defaultdict(Spent)
        for each in bins:
            for rank, spent in each.spent.items():
                for message in spent.of:
                    self.spent[rank].take(message)

    def _others(self, rank: int) -> list[Spent]:
        return [each for number, each in self.spent.items() if number != rank]

    def since_ns(self, found: _Suspicion) -> int:
        """Return the beginning of the first of the newest bins in all but one of which it waits less."""
        since_ns, others = self._bins[-1].begin_ns, 0
        for each in reversed(self._bins):
            others += each.less(found.rank) < found.less / 2
            if others > 1:
                break
            since_ns = each.begin_ns
        return max(0, since_ns)

    def worst(self) -> _Suspicion | None:
        """Return the rank that waits least, where it waits clearly less than the others; else None."""
        found = self.suspicion(min(self.spent, key=lambda rank: self.spent[rank].spare))
        return found if found.alone and found.less >= ERRORS * found.error else None

    def suspicion(self, rank: int) -> _Suspicion:
        """Return by how much a rank waits less than the others."""
        own, others = self.spent[rank], self._others(rank)
        usual = statistics.median(each.wait for each in others)
        # The median of several is known less well than their mean, by a quarter.
        errors = math.hypot(*(sampling_error(each.wait, each.blocks) for each in others)) / len(others)
        by_looks = math.hypot(sampling_error(own.wait, own.blocks), errors * (1.25 if len(others) > 2 else 1.0))
        each_bin = [each.less(rank) for each in self._bins]
        less = statistics.median(each.spare for each in others) - own.spare
        return _Suspicion(
            rank,
            own.wait,
            usual,
            less,
            max(by_looks, *(_error(each_bin, size) for size in TOGETHER)),
            sum(each > 0 for each in each_bin) / len(each_bin),
            all(each.spare - own.spare >= ALONE * less for each in others),
        )

    def verdict(self, rank: int, since_ns: int) -> Verdict:
        """Return the verdict on a rank."""
        found, own, others = self.suspicion(rank), self.spent[rank], self._others(rank)
        more = _more(own.phases, own.looks, [(each.phases, each.looks) for each in others])
        more.pop("wait", None)
        phase = max(more, key=more.__getitem__, default="other")
        next_most = max((amount for each, amount in more.items() if each != phase), default=0.0)
        is_one = more.get(phase, 0.0) >= max(OF_PHASE * found.less, next_most + 2 * found.error)
        line, of_line = _line(own, others, phase if is_one else None, found.less)
        within = IN_WORDS.get(phase, phase).partition(" (")[0]
        where = within if is_one else f"all phases, most in {within}"
        percents = f"{found.wait:.0%}, the others {found.others:.0%} (± {max(1.0, 100 * found.error):.0f})"
        text = f"rank {rank} holds the group back: it waits {percents}: {where}"
        return Verdict(
            0,
            "slow_rank",
            f"{text} · {line}" if line else text,
            since_ns,
            rank=rank,
            phase=phase,
            share=round(max(0.0, found.less), 4),
            confidence=round(found.agree, 3),
            line=line,
            line_share=round(min(1.0, of_line / found.less), 4) if line else None,
        )


def _error(values: Sequence[float], size: int) -> float:
    """Return the standard error of a mean by the means of so many neighbors each, which depend on each other less."""
    means = [statistics.fmean(values[at : at + size]) for at in range(len(values) % size, len(values), size)]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 2 else 0.0


_Key = TypeVar("_Key", str, tuple[str, str])


def _more(
    own: Mapping[_Key, float], looks: int, others: Sequence[tuple[Mapping[_Key, float], int]]
) -> dict[_Key, float]:
    """Return of each key the part of its time that a rank has more of than the others."""
    return {
        key: amount / looks - statistics.fmean(each.get(key, 0.0) / of for each, of in others)
        for key, amount in own.items()
    }


def _line(own: Spent, others: Sequence[Spent], phase: str | None, less: float) -> tuple[str, float]:
    """Return the line that a rank is in more often than the others, of the function that has most of it."""
    more = _more(own.lines, own.looks, [(each.lines, each.looks) for each in others])
    functions: defaultdict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for (of, where), amount in more.items():
        if of != "wait" and phase in (None, of):
            place, _, function = where.partition(" ")
            functions[place.rpartition(":")[0], function].append((amount, where))
    best = max(functions.values(), key=lambda each: sum(amount for amount, _ in each), default=[])
    amount = sum(each for each, _ in best)
    return (max(best)[1], amount) if best and amount >= OF_LINE * less > 0 else ("", 0.0)

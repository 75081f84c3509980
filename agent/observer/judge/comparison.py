"""The checksums of the same tensors on several ranks, compared: which ranks differ, and in which tensor first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ddptop.agent.wire import ModuleSums

MOST_NAMED: Final = 4
"""Ranks that are named one by one; of more, the number is given."""


class Difference(NamedTuple):
    """Ranks whose tensors are not those of the others."""

    ranks: tuple[int, ...]
    """The ranks that differ from most; all of them where no value is that of most."""
    compared: int
    """Number of ranks compared."""
    has_majority: bool
    """False where it is not known which ranks are right."""
    first: int
    """Index of the first tensor that differs."""
    tensors: int
    """Number of tensors that differ."""


def comparable(told: Mapping[int, ModuleSums]) -> dict[int, ModuleSums]:
    """Return the checksums that can be compared: those after the same steps, of the layout that most ranks have."""
    kinds = Counter((each.steps, each.layout, len(each.sums)) for each in told.values())
    (kind, _) = kinds.most_common(1)[0] if kinds else ((), 0)
    return {rank: each for rank, each in told.items() if (each.steps, each.layout, len(each.sums)) == kind}


def left_aside(told: Mapping[int, ModuleSums], same: Mapping[int, ModuleSums]) -> list[str]:
    """Say which ranks of a group are not `comparable` with most, and why; nothing where all are."""
    if not same:
        return []
    of_most = next(iter(same.values()))
    others = sorted(told.keys() - same.keys())
    steps = [rank for rank in others if told[rank].layout == of_most.layout]
    lines = []
    for ranks, why in (
        (steps, "a different number of optimizer steps than most ranks"),
        ([rank for rank in others if rank not in steps], "parameters of other names, shapes or types than most ranks"),
    ):
        if ranks:
            who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"{_ranks(ranks)} have"
            lines.append(f"{who} {why}, and {'is' if len(ranks) == 1 else 'are'} not compared")
    return lines


def compare(sums: Mapping[int, bytes]) -> Difference | None:
    """Return the difference between ranks by their checksums, `int64` of the same tensors; None where there is none."""
    counts = Counter(sums.values())
    if len(counts) < 2:
        return None
    most, count = counts.most_common(1)[0]
    has_majority = 2 * count > len(sums)
    odd = tuple(sorted(rank for rank, each in sums.items() if not has_majority or each != most))
    differing = [
        index for index in range(len(most) // 8) if len({each[8 * index : 8 * index + 8] for each in counts}) > 1
    ]
    return Difference(odd, len(sums), has_majority, differing[0] if differing else 0, len(differing))


def sentence(difference: Difference, names: Sequence[str], total: int, *, since: int | None = None) -> str:
    """Say in one line which ranks differ, since which step, and in which of `total` tensors first."""
    ranks, odd = difference.ranks, len(difference.ranks)
    if odd == 1:
        who = f"rank {ranks[0]}'s parameters"
    elif odd <= MOST_NAMED:
        who = f"the parameters of {_ranks(ranks)}"
    elif difference.has_majority:
        who = f"the parameters of {odd:,} of {difference.compared:,} ranks"
    else:
        who = f"the parameters of {odd:,} ranks"
    differ = "differ from the others'" if difference.has_majority else "differ"
    when = "" if since is None else f" since step {since:,}"
    more = "" if difference.tensors < 2 else f" and {difference.tensors - 1:,} more of {total:,}"
    return f"{who} {differ}{when}: {name_of(difference.first, names)}{more}"


def _ranks(ranks: Sequence[int]) -> str:
    """Return several ranks by their numbers, very many by how many they are."""
    if len(ranks) > MOST_NAMED:
        return f"{len(ranks):,} ranks"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def name_of(index: int, names: Sequence[str]) -> str:
    """Return the name of a tensor, or its number where no rank has sent the names."""
    return names[index] if index < len(names) else f"tensor {index + 1:,}"


def not_compared(modules: Iterable[ModuleSums]) -> list[str]:
    """Say which tensors of a rank are not compared, and why; nothing where all are."""
    found = list(modules)
    sharded, left_out = sum(each.sharded for each in found), sum(each.left_out for each in found)
    lines = []
    if sharded:
        lines.append(f"{_tensors(sharded, 'sharded parameter')} not compared: each rank has a part of its own")
    if left_out:
        lines.append(f"{_tensors(left_out, 'tensor')} not compared: too many, sparse, or of another kind of device")
    return lines


def _tensors(number: int, noun: str) -> str:
    return f"{number:,} {noun} is" if number == 1 else f"{number:,} {noun}s are"

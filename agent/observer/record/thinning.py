"""The choice of the steps of a recording that stay when there is no room for all, and their packing into rows.

Of the oldest stretch half of the steps stay, the same step numbers on all ranks, so that records can still be
joined by step. Outstanding steps stay as well: one that took much longer, a loss far above
or below the others, the first loss that is not finite.  A stretch that was thinned `level` times holds one step in
2**level.  This module knows no file; the payloads are those of `wire.Steps`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from ddptop.agent import wire
from ddptop.agent.sampling import next_sampled

DEEPEST: Final = 40
"""Level beyond which no step stays: only a false record claims a trillion steps."""
_STEPS_A_ROW: Final = 64
"""Records of one row at most."""
_EXTRA_SHARE: Final = 8
"""One step in so many may stay because it is outstanding."""
_FEW_STEPS: Final = 4
"""Step numbers of a stretch from which on their share that stays shows whether they are consecutive."""
_TOO_MANY: Final = 0.8
"""A stretch of which a larger part stays was not thinned effectively."""


class Stored(NamedTuple):
    """A row of steps in the file."""

    rank: int
    generation: int
    first_seq: int
    last_seq: int
    payload: bytes


class _Light(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of a `wire.Step`: decoding collectives and metrics too takes four times as long."""

    seq: int
    step: int
    end_at_ns: int
    wall_ns: int
    data_ns: int | None
    forward_ns: int | None
    backward_ns: int | None
    optimizer_ns: int | None
    wait_ns: int | None
    other_ns: int
    loss: float | None = None


class _LightSteps(msgspec.Struct, frozen=True, array_like=True, tag="steps"):
    """A `wire.Steps` of such records."""

    rank: int
    steps: tuple[_Light, ...]


_Record = tuple[_Light, msgspec.Raw]

_encoded: Final = msgspec.msgpack.Decoder(wire.EncodedSteps)
_light: Final = msgspec.msgpack.Decoder(_LightSteps)


def thinned(rows: Iterable[Stored], level: int) -> list[Stored]:
    """Return the rows that stay of a stretch in which one step in 2**`level` was left, oldest first.

    Unreadable rows are dropped.
    """
    stretch: dict[int, dict[int, list[_Record]]] = {}
    for row in rows:
        stretch.setdefault(row.generation, {}).setdefault(row.rank, []).extend(_records(row.payload))
    if level + 1 > DEEPEST:
        return []
    remaining: list[Stored] = []
    for generation, by_rank in stretch.items():
        wanted = _chosen(by_rank, level + 1)
        left = {rank: [each for each in records if each[0].step in wanted] for rank, records in by_rank.items()}
        if sum(map(len, left.values())) > _TOO_MANY * sum(map(len, by_rank.values())):
            # Many records with the same few step numbers, which only a faulty rank sends, are thinned by their order.
            left = {rank: records[::2] for rank, records in left.items()}
        for rank, records in left.items():
            remaining += _rows(rank, generation, records)
    return remaining


def _records(payload: bytes) -> list[_Record]:
    try:
        return list(zip(_light.decode(payload).steps, _encoded.decode(payload).steps, strict=True))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError):
        return []


def _rows(rank: int, generation: int, records: Sequence[_Record]) -> Iterable[Stored]:
    for first in range(0, len(records), _STEPS_A_ROW):
        part = records[first : first + _STEPS_A_ROW]
        numbers = [light.seq for light, _ in part]
        payload = wire.encode(wire.EncodedSteps(rank, tuple([raw for _, raw in part]), generation))
        yield Stored(rank, generation, min(numbers), max(numbers), payload)


def _chosen(by_rank: dict[int, list[_Record]], level: int) -> set[int]:
    """Return the step numbers that stay, the same for all ranks."""
    numbers = sorted({light.step for records in by_rank.values() for light, _ in records})
    # Where only some steps have their collectives timed, these are the steps that stay (see `rank.collectives.timing`).
    wanted = _sampled(numbers, 1 << level)
    if len(numbers) >= _FEW_STEPS and not len(numbers) / 4 <= len(wanted) <= len(numbers) * 3 / 4:
        # Not every step was recorded: of those that were, nearly all or hardly any are in this sample.
        wanted = set(numbers[::2])
    # A step that stayed because it was outstanding stays again while it still is.
    extras = _outstanding([light for records in by_rank.values() for light, _ in records], wanted)
    return wanted | set(extras[: len(numbers) // _EXTRA_SHARE])


def _sampled(numbers: Sequence[int], every: int) -> set[int]:
    """Return those of the step numbers, in order, that are in the sample of one in `every`."""
    found, index = set[int](), 0
    while index < len(numbers):
        wanted = next_sampled(numbers[index], every)
        index = bisect.bisect_left(numbers, wanted, index)
        if index < len(numbers) and numbers[index] == wanted:
            found.add(wanted)
            index += 1
    return found


def _outstanding(records: Sequence[_Light], wanted: set[int]) -> list[int]:
    """Return the numbers of outstanding steps that are not `wanted`, the most important first."""
    found: list[int] = []
    losses = [record for record in records if record.loss is not None]
    strange = [record.step for record in losses if not math.isfinite(record.loss or 0.0)]
    finite = [(record.loss or 0.0, record.step) for record in losses if math.isfinite(record.loss or 0.0)]
    if strange and finite:
        found.append(min(strange))
    walls = [(float(record.wall_ns), record.step) for record in records]
    for values, sign in ((walls, 1), (finite, 1), (finite, -1)):
        step = _extreme([(sign * value, step) for value, step in values], wanted)
        if step is not None:
            found.append(step)
    return [step for step in dict.fromkeys(found) if step not in wanted]


def _extreme(values: Sequence[tuple[float, int]], wanted: set[int]) -> int | None:
    """Return the step of the greatest value, where it exceeds those of the wanted steps by half their range."""
    stay = [value for value, step in values if step in wanted]
    if not values or not stay:
        return None
    value, step = max(values)
    low, high = min(stay), max(stay)
    return step if value > high + max((high - low) / 2, abs(high) * 0.05) else None


def without_seen(message: wire.Steps, seen: int) -> wire.Steps:
    """Return a message without the records up to number `seen`."""
    return wire.Steps(message.rank, tuple(step for step in message.steps if step.seq > seen), message.generation)

"""The grammar of `--inject`: faults that are put into a rank on purpose, to try a tool before trusting it.

The command line checks the text with it, and the rank reads its injections with it
(`rank/hooks/injection.py` carries them out).  This module imports only the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "DDPTOP_INJECT"
"""Environment variable that carries injections to the ranks, separated by `;`."""

PHASES: Final = ("data", "forward", "backward", "optimizer", "comm")
"""Phases that can be delayed; `comm` is the moment before a collective is called."""
FAULTS: Final = ("crash", "hang", "nan", "skip-collective")

_KEYS: Final = ("rank", "phase", "ms", "every", "from")
_LONGEST_MS: Final = 3_600_000.0


class InjectionError(ValueError):
    """An error in an injection as one line for the user: what is wrong and what to do."""


@dataclass(frozen=True)
class Injection:
    """One fault of one rank: a delay in a phase, or one of `FAULTS`."""

    rank: int
    kind: str
    """A phase of `PHASES` for a delay, else one of `FAULTS`."""
    ms: float = 0.0
    """Length of a delay, which happens once in a step."""
    every: int = 1
    """Distance in steps from one injection to the next."""
    start: int = 1
    """First step with the injection, counted from 1."""
    of_step: float = 0.0
    """Length of a delay as a part of the rank's usual step, in place of `ms`."""

    @property
    def is_delay(self) -> bool:
        """True for a delay, False for a fault."""
        return self.kind in PHASES

    def hits(self, step: int) -> bool:
        """Say whether the step with this number gets the injection."""
        return step >= self.start and (step - self.start) % self.every == 0

    def __str__(self) -> str:
        if self.is_delay:
            amount = f"{100 * self.of_step:g} % of a step" if self.of_step else f"{self.ms:g} ms"
            what = f"{amount} more {_WHERE[self.kind]}"
            often = " in each step" if self.every == 1 else f" every {self.every} steps"
        else:
            what, often = self.kind, "" if self.every == 1 else f" every {self.every} steps"
        since = "" if self.start == 1 else f" from step {self.start:,}"
        return f"rank {self.rank}: {what}{often}{since}"


_WHERE: Final = {
    "data": "in data loading",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer",
    "comm": "before a collective",
}


def parse(text: str) -> Injection:
    """Return the injection that `rank=2,phase=backward,ms=30[,every=K][,from=STEP]` or `rank=1,crash` means.

    A delay of `ms=100%` is as long as a usual step of its rank.

    Raises:
        InjectionError: the text is no injection.
    """
    values, faults = _split(text)
    if "rank" not in values:
        raise _wrong(text, "no rank: say rank=N")
    if faults and ("phase" in values or "ms" in values or len(faults) > 1):
        raise _wrong(text, f"one thing at a time: {faults[0]}, or a phase with ms; repeat --inject for more")
    if not faults and ("phase" not in values or "ms" not in values):
        raise _wrong(text, f"say phase=PHASE,ms=N for a delay, or one of {', '.join(FAULTS)}")
    kind = faults[0] if faults else values["phase"]
    if not faults and kind not in PHASES:
        raise _wrong(text, f"no phase {kind!r}: one of {', '.join(PHASES)}")
    if "every" in values and kind in ("crash", "hang", "skip-collective"):
        raise _wrong(text, f"{kind} comes once; leave out every=")
    ms, of_step = (0.0, 0.0) if faults else _length(text, values["ms"])
    return Injection(
        rank=_whole(text, "rank", values, 0, 0),
        kind=kind,
        ms=ms,
        every=_whole(text, "every", values, 1, 1),
        start=_whole(text, "from", values, 1, 1),
        of_step=of_step,
    )


def parse_all(texts: Iterable[str], world: int) -> tuple[Injection, ...]:
    """Return the injections into a group of `world` ranks.

    Raises:
        InjectionError: one of the texts is no injection, or its rank is not in the group.
    """
    found = tuple(map(parse, texts))
    for injection in found:
        if injection.rank >= world:
            last = f"ranks 0 to {world - 1}" if world > 1 else "rank 0 alone"
            raise InjectionError(f"--inject rank={injection.rank}: the group has {last}")
    return found


def from_environment(environment: Mapping[str, str]) -> tuple[Injection, ...]:
    """Return the injections into all ranks that the environment of one of them carries.

    Raises:
        InjectionError: one of them is no injection, or its rank is not in the group.
    """
    return parse_all(listed(environment), int(environment.get("WORLD_SIZE", "1")))


def listed(environment: Mapping[str, str]) -> list[str]:
    """Return the texts of the injections that an environment carries."""
    return [text for text in environment.get(VARIABLE, "").split(";") if text.strip()]


def describe(injections: Iterable[Injection]) -> str:
    """Return one line that labels the run on every screen, empty where there are no injections."""
    return "; ".join(map(str, injections))


def continued(prefix: str) -> list[str]:
    """Return what may follow the beginning of an injection, each from that beginning on."""
    before, comma, _word = prefix.rpartition(",")
    if not comma:
        return ["rank="]
    if "phase=" in before:
        return [f"{before},{each}=" for each in ("ms", "every", "from") if f",{each}=" not in before]
    if set(before.split(",")) & set(FAULTS):
        return [f"{before},from="]
    return [f"{before},{each}" for each in (*FAULTS, *(f"phase={phase},ms=" for phase in PHASES))]


def _split(text: str) -> tuple[dict[str, str], list[str]]:
    values: dict[str, str] = {}
    faults: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        key, equals, value = part.partition("=")
        if not equals and part in FAULTS:
            faults.append(part)
        elif not equals or key not in _KEYS:
            raise _wrong(text, f"{part!r} is none of {', '.join(f'{key}=' for key in _KEYS)} {', '.join(FAULTS)}")
        elif key in values:
            raise _wrong(text, f"{key}= is given twice")
        else:
            values[key] = value
    return values, faults


def _whole(text: str, key: str, values: Mapping[str, str], least: int, default: int) -> int:
    value = values.get(key)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and least <= int(value) < 2**31):
        raise _wrong(text, f"{key}={value} must be a whole number from {least} on")
    return int(value)


def _length(text: str, value: str) -> tuple[float, float]:
    """Return the milliseconds of a delay and its part of a usual step, one of which is 0."""
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number <= _LONGEST_MS:
        raise _wrong(
            text,
            f"ms={value} must be a number of milliseconds between 0 and {_LONGEST_MS:.0f}, "
            "or a part of a usual step: ms=100%",
        )
    return (0.0, number / 100) if value.endswith("%") else (number, 0.0)


def _wrong(text: str, reason: str) -> InjectionError:
    return InjectionError(f"--inject {text}: {reason}")

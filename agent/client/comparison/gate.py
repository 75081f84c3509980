"""Limits that a run has to keep against another one, and what came of each. Pure, but for the file with the limits.

A run is past a limit where its change is larger than the limit and larger than noise makes it. It keeps the limit where
its change with all that noise may hide is not larger. All else cannot be told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from xml.etree import ElementTree

import msgspec

from ddptop.agent.client.comparison.compared import Comparison, loss_at
from ddptop.agent.client.comparison.measured import SOUND, Measured
from ddptop.agent.client.comparison.statistics import LEAST
from ddptop.agent.text import Complaint, clean_line, ranks_in_spans
from ddptop.agent.wire.frames import ENDED

PASSED: Final = 0
REGRESSED: Final = 1
UNTOLD: Final = 3
WORDS: Final = {PASSED: "pass", REGRESSED: "REGRESSION", UNTOLD: "cannot tell"}
_SHARE: Final = re.compile(r"(\d+(?:\.\d+)?) ?%")


class LimitError(Complaint):
    """Limits that cannot be used: one line."""


class Share(float):
    """A part of one, written as a percentage: `5%`."""

    def __new__(cls, text: str) -> Share:
        """Read a percentage; a ValueError says what it should be."""
        found = _SHARE.fullmatch(str(text).strip())
        if found is None or not 0 < (part := float(found[1]) / 100) < 100:
            raise ValueError(f"{clean_line(str(text), 40)!r}: give a percentage such as 5%")
        return super().__new__(cls, part)


class LossAt:
    """A step, and the loss that may not be exceeded there."""

    def __init__(self, given: Iterable[Any]) -> None:
        """Read both; a ValueError says what they should be."""
        try:
            step, most = given
            self.step, self.most = int(step), float(most)
        except (TypeError, ValueError, OverflowError):
            self.step, self.most = 0, math.nan
        if not (0 < self.step < 1 << 53 and math.isfinite(self.most)):
            raise ValueError("give a step and a loss that is a number, such as 500 2.1")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits as a user writes them; a ValueError says that there is none, or none to compare with."""

    against: str = ""
    """A baseline, a kept run, a run, or a file."""
    step: Share | None = None
    """By so much the median step may be longer."""
    memory: Share | None = None
    """By so much the memory of the fullest rank may be larger."""
    loss_at: Annotated[tuple[LossAt, ...], msgspec.Meta(max_length=100)] = ()
    anyway: bool = False
    """Compare runs, too, that cannot be compared."""

    def __post_init__(self) -> None:
        """Check that they can be used."""
        if not (self.compares or self.loss_at):
            raise ValueError("no limit; give --step 5%, --memory 10% or --loss-at 500 2.1")
        if self.compares and not self.against:
            raise ValueError("against which run? give --against NAME; `ddptop baselines` lists some")

    @property
    def compares(self) -> bool:
        """True where another run is needed."""
        return self.step is not None or self.memory is not None


class Outcome(NamedTuple):
    """What came of one limit."""

    name: str
    code: int
    text: str
    """One line."""


def read(file: Path | None, given: Mapping[str, object] | None = None) -> Limits:
    """Return the limits of a TOML file, and those of a command line, which come before them.

    Raises:
        LimitError: the file cannot be read, or there is what is no limit.
    """
    try:
        written = {} if file is None else msgspec.toml.decode(file.read_bytes(), type=dict[str, Any])
        return msgspec.convert(written | dict(given or {}), Limits, dec_hook=lambda kind, value: kind(value))
    except OSError as problem:
        raise LimitError(f"{file}: {problem.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        text, _, place = clean_line(str(problem), 200).partition(" - at `$")
        where = f"{place.strip('.`')}: " if place else ""
        raise LimitError(f"{file or 'gate'}: {where}{text}; `ddptop help comparison` has an example") from None


def judge(limits: Limits, run: Measured, comparison: Comparison | None) -> list[Outcome]:
    """Return what came of the end of a run, and of each limit, by its comparison where a limit needs another run."""
    found = [Outcome("end", *_end(run))]
    if comparison is not None:
        if comparison.obstacle and not limits.anyway:
            return [*found, Outcome("comparison", UNTOLD, comparison.verdict)]
        for name, key, limit in (("step", "step_p50_ms", limits.step), ("memory", "memory_bytes", limits.memory)):
            if limit is not None:
                found.append(Outcome(name, *_changed(name, key, limit, comparison)))
    return found + [Outcome(f"loss at {each.step}", *_loss(run, each)) for each in limits.loss_at]


def code(outcomes: Iterable[Outcome]) -> int:
    """Return the exit code: a regression is one whatever else cannot be told."""
    codes = {each.code for each in outcomes}
    return next((each for each in (REGRESSED, UNTOLD) if each in codes), PASSED)


def _end(run: Measured) -> tuple[int, str]:
    if run.state not in ENDED:
        return UNTOLD, f"{run.name} goes on ({run.state}): gate it at its end"
    if run.state not in SOUND or run.trouble:
        return REGRESSED, f"{run.name} {run.state}{run.trouble}"
    if run.unheard:
        return UNTOLD, f"cannot tell: {ranks_in_spans(run.unheard)} left no word of the end"
    return PASSED, f"{run.name} {run.state}"


def _changed(name: str, key: str, limit: float, comparison: Comparison) -> tuple[int, str]:
    # How long a step takes says nothing of memory, once there are steps enough.
    if comparison.outcome == "unknown" and (name == "step" or min(comparison.steps) < LEAST):
        return UNTOLD, comparison.verdict
    number = comparison.number(key)
    if number is None or (change := number.change) is None or number.gap:
        return UNTOLD, f"cannot tell: {(number and number.gap) or 'it is not known of both runs'}"
    text = f"{change.part * 100:+.1f} % ± {change.within * 100:.1f} against {comparison.first}, limit {limit * 100:g} %"
    if change.part > limit and change.is_told:
        return REGRESSED, text
    if change.part + change.within <= limit:
        return PASSED, text
    return UNTOLD, f"cannot tell: {text}; longer runs have less noise"


def _loss(run: Measured, limit: LossAt) -> tuple[int, str]:
    if run.broken_at is not None:
        return REGRESSED, f"not finite by step {run.broken_at:,}, limit {limit.most:g}"
    if (found := loss_at(run, limit.step)) is None:
        return UNTOLD, f"cannot tell: not known of step {limit.step:,}; the last is {run.newest:,}"
    text = f"{found.value:.4g} ± {found.within:.2g}, limit {limit.most:g}"
    if found.value <= limit.most:
        return PASSED, text
    return (REGRESSED if found.value - found.within > limit.most else UNTOLD), text


def junit(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as JUnit XML."""
    kinds = {PASSED: "system-out", REGRESSED: "failure", UNTOLD: "error"}
    bad, untold = (str(sum(each.code == code for each in outcomes)) for code in (REGRESSED, UNTOLD))
    suite = ElementTree.Element(
        "testsuite", name=f"ddptop gate {name}", tests=str(len(outcomes)), failures=bad, errors=untold
    )
    for each in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=each.name)
        said = ElementTree.SubElement(case, kinds[each.code])
        if each.code == PASSED:
            said.text = each.text
        else:
            said.set("message", each.text)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, "unicode", xml_declaration=True) + "\n"


def markdown(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a table of Markdown."""
    rows = [f"| {each.name} | {WORDS[each.code]} | {each.text.replace('|', chr(92) + '|')} |" for each in outcomes]
    return "\n".join([f"### ddptop gate: {name}", "", "| limit | outcome | |", "|---|---|---|", *rows, ""])

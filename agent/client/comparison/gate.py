"""Limits that a run has to keep against another one, and what came of each. Pure, but for the file with the limits.

A run is past a limit where its change is larger than the limit and larger than noise makes it. It keeps the limit where
its change with all that noise may hide is not larger. All else cannot be told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import msgspec
from msgspec import Meta

from ddptop.agent.client.comparison.compared import Comparison, Number, loss_at
from ddptop.agent.client.comparison.measured import Measured
from ddptop.agent.client.comparison.statistics import LEAST, reach
from ddptop.agent.text import Complaint, clean_line, plural, ranks_in_spans
from ddptop.agent.wire.frames import ENDED

PASSED: Final = 0
REGRESSED: Final = 1
UNTOLD: Final = 3
_SHARE: Final = re.compile(r"(\d+(?:\.\d+)?) ?%")
_SOUND: Final = frozenset({"finished", "stopped"})
"""Ends of a run in which no rank has died."""


class LimitError(Complaint):
    """A limit, or a file of limits, that cannot be used: one line."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits as a user writes them."""

    against: str = ""
    """A baseline, a kept run, a run, or a file."""
    step: str = ""
    """`5%`: by so much the median step may be longer."""
    memory: str = ""
    """`10%`: by so much the memory of the fullest rank may be larger."""
    loss_at: Annotated[tuple[tuple[int, float], ...], Meta(max_length=100)] = ()
    """Steps, and the loss that may not be exceeded there."""
    anyway: bool = False
    """Compare runs, too, that cannot be compared."""


class Outcome(NamedTuple):
    """What came of one limit."""

    name: str
    code: int
    text: str
    """One line."""


def share(text: str) -> float:
    """Return the part that `5%` means; a ValueError says what it should be."""
    found = _SHARE.fullmatch(text.strip())
    if found is None or not 0 < (part := float(found[1]) / 100) < 100:
        raise ValueError("a percentage such as 5%")
    return part


def loss(step: str | int, most: str | float) -> tuple[int, float]:
    """Return a step and its loss; a ValueError says what they should be."""
    try:
        number, value = int(step), float(most)
    except (ValueError, OverflowError):
        raise ValueError("a step and a loss, such as 500 2.1") from None
    if not (0 < number < 1 << 53 and math.isfinite(value)):
        raise ValueError("a step and a loss that is a number, such as 500 2.1")
    return number, value


def read(file: Path) -> Limits:
    """Return the limits of a TOML file.

    Raises:
        LimitError: it cannot be read, or holds what is no limit.
    """
    try:
        return checked(msgspec.toml.decode(file.read_bytes(), type=Limits), str(file))
    except OSError as problem:
        raise LimitError(f"{file}: {problem.strerror}") from None
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise LimitError(f"{file}: {clean_line(str(problem), 200)}; `ddptop help comparison` has an example") from None


def checked(limits: Limits, where: str) -> Limits:
    """Return limits, once they are sound.

    Raises:
        LimitError: one of them is no limit, or there is none.
    """
    for name in ("step", "memory"):
        try:
            if text := getattr(limits, name):
                share(text)
        except ValueError as problem:
            raise LimitError(f"{where}: {name} {clean_line(text, 40)!r}: give {problem}") from None
    for step, most in limits.loss_at:
        try:
            loss(step, most)
        except ValueError as problem:
            raise LimitError(f"{where}: loss at {step} {most}: give {problem}") from None
    if not (limits.step or limits.memory or limits.loss_at):
        raise LimitError(f"{where}: no limit; give --step 5%, --memory 10% or --loss-at 500 2.1")
    if (limits.step or limits.memory) and not limits.against:
        raise LimitError(f"{where}: against which run? give --against NAME; `ddptop baselines` lists some")
    return limits


def judge(limits: Limits, run: Measured, cause: str, comparison: Comparison | None) -> list[Outcome]:
    """Return what came of the end of a run, and of each limit.

    Args:
        limits: the limits.
        run: the run.
        cause: the first cause of its end, where it has failed.
        comparison: with the other run, where a limit needs one.
    """
    found = [_end(run, cause)]
    if comparison is not None and comparison.obstacle and not limits.anyway:
        return [*found, Outcome("comparison", UNTOLD, comparison.verdict)]
    for name, key, text in (("step", "step_p50_ms", limits.step), ("memory", "memory_bytes", limits.memory)):
        if text and comparison is not None:
            number = comparison.number(key)
            found.append(_changed(name, number, share(text), comparison))
    found += [_loss(run, *loss(step, most)) for step, most in limits.loss_at]
    return found


def code(outcomes: Iterable[Outcome]) -> int:
    """Return the exit code: a regression is one whatever else cannot be told."""
    codes = {each.code for each in outcomes}
    return next((each for each in (REGRESSED, UNTOLD) if each in codes), PASSED)


def _end(run: Measured, cause: str) -> Outcome:
    if run.state not in ENDED:
        return Outcome("end", UNTOLD, f"{run.name} goes on ({run.state}): gate it at its end")
    if run.state not in _SOUND:
        return Outcome("end", REGRESSED, f"{run.name} {run.state}" + (f": {cause}" if cause else ""))
    if run.restarts or run.generation:
        after = f" after step {run.restarts[-1]:,}" if run.restarts else ""
        return Outcome("end", REGRESSED, f"{run.name} {run.state}, and was restarted{after}")
    if run.died:
        rank, how = min(run.died.items())
        more = f", as did {plural(len(run.died) - 1, 'other rank')}" if len(run.died) > 1 else ""
        return Outcome("end", REGRESSED, f"{run.name} {run.state}, but rank {rank} {how}{more}")
    if run.late:
        return Outcome("end", REGRESSED, f"{run.name} {run.state}: {run.late}")
    if run.unheard:
        return Outcome("end", UNTOLD, f"cannot tell: {ranks_in_spans(run.unheard)} left no word of the end")
    return Outcome("end", PASSED, f"{run.name} {run.state}")


def _changed(name: str, number: Number | None, limit: float, comparison: Comparison) -> Outcome:
    # How long a step takes says nothing of memory, once there are steps enough.
    if comparison.outcome == "unknown" and (name == "step" or min(comparison.steps) < LEAST):
        return Outcome(name, UNTOLD, comparison.verdict)
    if number is None or (change := number.change) is None or number.gap:
        known = number.gap if number is not None and number.gap else "it is not known of both runs"
        return Outcome(name, UNTOLD, f"cannot tell: {known}")
    text = f"{change.part * 100:+.1f} % ± {change.within * 100:.1f} against {comparison.first}, limit {limit * 100:g} %"
    if change.part > limit and change.is_told:
        return Outcome(name, REGRESSED, text)
    if change.part + change.within <= limit:
        return Outcome(name, PASSED, text)
    return Outcome(name, UNTOLD, f"cannot tell: {text}; longer runs have less noise")


def _loss(run: Measured, step: int, most: float) -> Outcome:
    name, found = f"loss at {step}", loss_at(run, step)
    if run.broken_at is not None:
        return Outcome(name, REGRESSED, f"not finite by step {run.broken_at:,}, limit {most:g}")
    if found is None:
        return Outcome(name, UNTOLD, f"cannot tell: not known of step {step:,}; the last is {run.newest:,}")
    within = reach(found.freedom) * found.error
    text = f"{found.value:.4g} ± {within:.2g}, limit {most:g}"
    if found.value <= most:
        return Outcome(name, PASSED, text)
    return Outcome(name, REGRESSED if found.value - within > most else UNTOLD, text)


WORDS: Final = {PASSED: "pass", REGRESSED: "REGRESSION", UNTOLD: "cannot tell"}


def junit(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as JUnit XML."""
    bad, untold = (sum(each.code == code for each in outcomes) for code in (REGRESSED, UNTOLD))
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuite name={quoteattr(f"ddptop gate {name}")} tests="{len(outcomes)}" failures="{bad}" '
        f'errors="{untold}">',
    ]
    for each in outcomes:
        case = f"  <testcase classname={quoteattr(name)} name={quoteattr(each.name)}"
        if each.code == PASSED:
            lines.append(f"{case}><system-out>{escape(each.text)}</system-out></testcase>")
        else:
            kind = "failure" if each.code == REGRESSED else "error"
            lines.append(f"{case}><{kind} message={quoteattr(each.text)}/></testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


def markdown(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a table of Markdown."""
    rows = [f"| {each.name} | {WORDS[each.code]} | {each.text.replace('|', chr(92) + '|')} |" for each in outcomes]
    return "\n".join([f"### ddptop gate: {name}", "", "| limit | outcome | |", "|---|---|---|", *rows, ""])

"""Two runs compared, as lines, as Markdown and as JSON."""

from __future__ import annotations

from typing import Any, Final

from ddptop.agent.client.comparison.compared import Comparison, Number
from ddptop.agent.client.comparison.statistics import Change, Estimate
from ddptop.tui.drawing import units

_LABEL: Final = 24
_VALUE: Final = 16


def value(estimate: Estimate | None, unit: str) -> str:
    """Return a number with its unit."""
    if estimate is None:
        return "–"
    if unit == "bytes":
        return units.size(round(estimate.value)).strip()
    if unit == "%":
        return f"{estimate.value * 100:.1f} %"
    if unit == "s":
        return units.duration(estimate.value).strip() if estimate.value else "0 s"
    if unit == "/s":
        return f"{units.rate(estimate.value).strip()}/s"
    if unit == "ms":
        fine = abs(estimate.value) < 9.995
        return f"{estimate.value:.2f} ms" if fine else f"{units.milliseconds(estimate.value).strip()} ms"
    return units.significant(estimate.value)


def changed(change: Change | None) -> str:
    """Return by how much a number differs; in brackets where noise makes such a difference, or one of all of it."""
    if change is None:
        return ""
    if not change.is_told and change.within >= 1.0:
        return "(noise)"
    text = f"{change.part * 100:+.1f} % ± {change.within * 100:.1f}"
    return text if change.is_told else f"({text})"


def rows(found: Comparison) -> list[tuple[str, str, str, str]]:
    """Return what is known number by number: its name, that of each run, and the change or a note.

    Of seconds that neither run has lost there is nothing to say.
    """
    return [
        (each.label, value(each.first, each.unit), value(each.second, each.unit), changed(each.change) or each.note)
        for each in found.numbers
        if (each.first is not None or each.second is not None)
        and not (each.unit == "s" and {side.value if side else 0.0 for side in (each.first, each.second)} == {0.0})
    ]


def lines(found: Comparison, width: int = 80) -> list[str]:
    """Return the verdict, what differs, and number by number both runs."""
    out = [found.verdict]
    if found.obstacle and found.numbers:
        out.append(f"cannot be compared, and was asked for anyway: {found.obstacle}")
    if found.differs:
        room = max(16, (width - 14) // 2)
        out.append("")
        for name, one, other in (("differs", found.first, found.second), *found.differs):
            out.append(f"{name:<13}{units.shorten(one, room - 1):<{room}} {units.shorten(other, room)}")
    if not found.numbers:
        return out if not found.obstacle else [*out, "", "--anyway compares them all the same"]
    out.append("")
    head = "", units.shorten(found.first, _VALUE - 1), units.shorten(found.second, _VALUE - 1), "change"
    for label, one, other, change in (head, *rows(found)):
        out.append(f"{label:<{_LABEL}}{one:>{_VALUE}}{other:>{_VALUE}}  {change}".rstrip())
    out += ["", f"of {found.steps[0]:,} and {found.steps[1]:,} usual steps; (in brackets) what noise alone may make"]
    return out + [f"left out of {run}: {', '.join(texts)}" for run, texts in found.left_out if texts]


def markdown(found: Comparison) -> str:
    """Return the same as Markdown."""
    first, second = _plain(found.first), _plain(found.second)
    out = [f"### {found.first} → {found.second}", "", f"**{_plain(found.verdict)}**"]
    if found.differs:
        out += ["", f"| differs | {first} | {second} |", "|---|---|---|"]
        out += [f"| {name} | {_plain(one)} | {_plain(other)} |" for name, one, other in found.differs]
    if found.numbers:
        out += ["", f"| | {first} | {second} | change |", "|---|--:|--:|--:|"]
        out += [f"| {' | '.join(row)} |" for row in rows(found)]
        out += ["", *(f"Left out of {run}: {', '.join(texts)}." for run, texts in found.left_out if texts)]
    return "\n".join(out)


def _plain(text: str) -> str:
    return text.replace("|", "\\|")


def as_json(found: Comparison) -> dict[str, Any]:
    """Return the same as a value for JSON."""
    return {
        "first": found.first,
        "second": found.second,
        "outcome": found.outcome,
        "verdict": found.verdict,
        "obstacle": found.obstacle or None,
        "differs": [{"name": name, "first": one, "second": other} for name, one, other in found.differs],
        "left_out": {run: list(texts) for run, texts in found.left_out},
        "steps": list(found.steps),
        "numbers": [_number(each) for each in found.numbers],
    }


def _number(number: Number) -> dict[str, Any]:
    change = number.change
    part, within, told = (None, None, None) if change is None else (change.part, change.within, change.is_told)
    sides = {"first": _side(number.first), "second": _side(number.second)}
    return {"name": number.key, **sides, "change": part, "within": within, "told": told, "note": number.note or None}


def _side(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else {"value": estimate.value, "within": estimate.within}

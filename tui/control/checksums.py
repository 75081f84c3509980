"""The parameters of all ranks at one step, as the observer has compared them: in lines and as JSON. Pure."""

from __future__ import annotations

from typing import Any, Final

from ddptop.agent import wire
from ddptop.agent.text import clean, plural

NOTHING: Final = "nothing to compare: no optimizer of torch has made a step with parameters that every rank has whole"


def differ(found: wire.Parameters) -> bool:
    """Say whether parameters differ that DDP keeps the same."""
    return any(each.group and each.text for each in found.modules)


def lines(found: wire.Parameters) -> list[str]:
    """Return the comparison, a line for each thing that is to say."""
    equal = [each for each in found.modules if not each.text]
    said = []
    for each in found.modules:
        if each.text:
            line = clean(each.text, 400)
            said.append(line if each.group else f"{line}; they are not wrapped in DDP, and may be meant to differ")
    if equal:
        ranks = {rank for each in equal for rank in each.ranks}
        # Of groups that have different parameters each rank has those of its own.
        tensors = sum({(each.number, each.tensors, bool(each.group)): each.tensors for each in equal}.values())
        also = "other " if said else ""
        said.append(f"the {also}parameters of {plural(len(ranks), 'rank')} are equal: {plural(tensors, 'tensor')}")
    reasons = [clean(reason, 400) for reason in found.reasons]
    return [f"step {found.step:,}: {line}" for line in said or [NOTHING]] + reasons


def as_json(found: wire.Parameters, run: str) -> dict[str, Any]:
    """Return the comparison as it is printed with `--json`."""
    return {
        "run": run,
        "step": found.step,
        "differ": differ(found),
        "modules": [_json(each) for each in found.modules],
        "not_compared": list(found.reasons),
    }


def _json(each: wire.Compared) -> dict[str, Any]:
    return {
        "group": each.group or None,
        "module": each.number,
        "ranks": list(each.ranks),
        "tensors": each.tensors,
        "differing_ranks": list(each.differing_ranks),
        "differing_tensors": each.differing_tensors,
        "first": each.first if each.text else None,
    }

"""`ddptop report`: the report on a run as text, as Markdown for an issue tracker, and as JSON.

The JSON is an interface; the manual's page `json` documents it.
"""

from __future__ import annotations

from typing import Any, Final

from ddptop.agent.end.report import RankEnd, Report
from ddptop.agent.run.files.masking import masked
from ddptop.tui.cli.output import status
from ddptop.tui.model.diagnosis import report as lines

_FENCE: Final = "```"


def text(report: Report) -> str:
    """Return it as lines."""
    return "\n".join(map(lines.plain, lines.whole(report)))


def markdown(report: Report) -> str:
    """Return it for an issue tracker: facts as a list, what is verbatim in fences."""
    first, *rest = lines.whole(report)
    told = [f"### ddptop report: {_inline(first.text)}", ""]
    fenced = False
    for line in rest:
        if line.is_heading:
            told += [*([_FENCE] if fenced else []), "", f"**{line.text}**", "", f"{_FENCE}text"]
            fenced = True
        elif fenced:
            # A fence in a text would end the block.
            told.append(line.text.replace(_FENCE, "'''"))
        else:
            # The advice is ours, with its own signs.
            shown = line.text if line.label == "to do" else _inline(line.text)
            told.append(f"- **{line.label}**: {shown}" if line.label else f"{shown}\n")
    return "\n".join([*told, *([_FENCE] if fenced else [])])


def _inline(text: str) -> str:
    """Return a text without the signs that Markdown would act on."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|" else char for char in text)


def as_json(report: Report) -> dict[str, Any]:
    """Return the documented form of `report --json`."""
    run = masked(report.run)
    kind = report.kind
    return {
        "run": run.run,
        "state": report.state,
        "exit_code": report.exit_code,
        "program": run.program,
        "command": report.launched_as,
        "world": run.world,
        "backend": run.backend,
        "device": run.device,
        "launched": run.launched,
        "started_at": run.created_at_ns / 1e9,
        "ended_at": None if run.ended_at_ns is None else run.ended_at_ns / 1e9,
        "cause": report.cause or None,
        "cause_rank": None if report.first is None else report.first.rank,
        "kind": None if kind is None else kind.name,
        "title": None if kind is None else kind.title,
        "advice": None if kind is None else kind.advice,
        "hang": None if report.hang is None else status.interval_json(report.hang),
        "evidence": report.evidence or None,
        "collateral": report.collateral or None,
        "traceback": report.traceback or None,
        "traceback_rank": report.traceback_rank,
        "ranks": [_rank(each) for each in report.ranks],
        "versions": dict(report.versions),
        "verdicts": [status.interval_json(each) for each in report.verdicts],
        "events": [status.event_json(each) for each in report.events],
    }


def _rank(end: RankEnd) -> dict[str, Any]:
    return {
        "rank": end.rank,
        "host": end.host or None,
        "pid": end.pid,
        "state": end.state,
        "told": end.told or None,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "ended_at": None if end.ended_at_ns is None else end.ended_at_ns / 1e9,
        "step": end.step,
        "where": end.where or None,
        "memory_bytes": end.memory_bytes,
        "memory_total_bytes": end.memory_total_bytes,
        "heard_at": None if end.heard_at_ns is None else end.heard_at_ns / 1e9,
        "health": end.health,
        "output": list(end.output),
    }

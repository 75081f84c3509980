"""The report on a run as lines of text, the same on the dashboard, in plain output and on paper, and as JSON. Pure.

The JSON is an interface; the manual's page `json` documents it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ddptop.agent.text import clean_line, plural, size
from ddptop.tui.drawing.units import clock, date, duration
from ddptop.tui.model.documented import event_json, interval_json

if TYPE_CHECKING:
    from ddptop.agent import wire
    from ddptop.agent.wire.report import RankEnd, Report

_DIVERGED: Final = (
    "Do not use its checkpoints. Look for what changes a parameter on some ranks alone: a step that one skips, an `if` "
    "on the rank, a parameter outside of DDP, unequal seeds before it was wrapped."
)
_FENCE: Final = "```"
_MOST_RANKS: Final = 16
"""Ranks of a lost run that get a line of their own."""


class ReportLine(NamedTuple):
    """One line."""

    label: str
    """The label: `cause`, `rank 1`; empty where the line goes on with the one before, or is verbatim."""
    text: str
    hue: str = "value"
    """Name of the color in which it is shown."""
    goes_on_at: int = 0
    """Cells by which the rest of a long line without a label is indented; 0: it is verbatim, and cut at the edge."""

    @property
    def is_heading(self) -> bool:
        """True for the line above a verbatim part."""
        return self.hue == "bold label"


def head(report: Report) -> str:
    """Return how the run stands: `resnet-7f3a failed, exit code 1, after 00:42`."""
    code = f", exit code {report.exit_code}" if report.exit_code is not None else ""
    if report.state in ("starting", "running"):
        return f"{report.run} is {report.state}"
    ended_ns, begun_ns = report.ended_at_ns, report.begun_at_ns
    took = "" if ended_ns is None else f", after {duration((ended_ns - begun_ns) / 1e9).strip()}"
    return f"{report.run} {report.state}{code}{took}"


def summary(report: Report) -> list[ReportLine]:
    """Return the end of a failed run: what, why, what to do, the stack; nothing for one without a fault."""
    if not report.failed and report.state != "killed":
        return []
    return [*_facts(report), *_stack(report)]


def whole(report: Report) -> list[ReportLine]:
    """Return all of the report."""
    lines = [ReportLine("", head(report), "bold level-error" if report.failed else "bold value")]
    if not report.failed:
        lines.append(ReportLine("", _sound(report)))
    if _diverged(report) is not None:
        lines.append(ReportLine("to do", _DIVERGED, "bold value"))
    lines += _facts(report)
    lines += [ReportLine(label, text) for label, text in circumstances(report)]
    lines += _stack(report)
    lines += _output(report)
    if report.verdicts:
        lines.append(ReportLine("", "verdicts", "bold label"))
        lines += [_timed(*_verdict(each)) for each in report.verdicts]
    if report.events:
        lines.append(ReportLine("", "last events", "bold label"))
        lines += [_timed(clock(each.at_ns / 1e9), each.text) for each in report.events]
    return lines


def circumstances(report: Report) -> list[tuple[str, str]]:
    """Return how the run was started, each with its label."""
    placed = ", ".join(filter(None, (plural(report.world, "rank"), report.backend, report.device)))
    hosts = sorted({each.host for each in report.ranks if each.host})
    on = f" on {clean_line(', '.join(hosts), 200)}" if hosts else ""
    started = f"{'launched' if report.launched else 'started by hand'} {date(report.begun_at_ns / 1e9)}"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    injected = [("injected", report.injected)] if report.injected else []
    return [("command", report.launched_as), ("run", f"{placed}{on}, {started}"), ("versions", versions), *injected]


def _timed(time: str, text: str) -> ReportLine:
    return ReportLine("", f"{time}  {text}", goes_on_at=len(time) + 2)


def block(lines: Iterable[str]) -> list[ReportLine]:
    """Return verbatim lines below an empty one; none where there are none."""
    found = [ReportLine("", line) for line in lines]
    return [ReportLine("", ""), *found] if found else []


def plain(line: ReportLine) -> str:
    """Return a line as text."""
    if line.is_heading:
        return f"--- {line.text}"
    return f"{line.label + ':':<11}{line.text}" if line.label else line.text


def _facts(report: Report) -> list[ReportLine]:
    lines = _hang(report)
    if report.cause:
        lines.append(ReportLine("cause", report.cause, "bold level-error" if report.failed else "value"))
    if report.kind is not None:
        lines.append(ReportLine("kind", report.kind.title))
        lines.append(ReportLine("to do", report.kind.advice, "bold value"))
    if report.first is not None:
        lines.append(ReportLine(f"rank {report.first.rank}", _rank(report.first)))
    if report.evidence:
        # Either what the kernel counts of memory, or the error of a GPU in its log.
        label = "device" if "NVRM: Xid" in report.evidence else "memory"
        lines.append(ReportLine(label, report.evidence))
    sick = sorted({f"rank {each.rank}: {each.health}" for each in report.ranks if each.health})
    lines += [ReportLine("numbers", text) for text in sick[:4]]
    if report.state == "lost":
        lines += [ReportLine(f"rank {each.rank}", _rank(each)) for each in report.ranks[:_MOST_RANKS]]
    elif report.collateral and report.state not in ("starting", "running", "finished", "stopped"):
        lines.append(ReportLine("others", report.collateral))
    return lines


def _hang(report: Report) -> list[ReportLine]:
    """Return the hang in which the run came to its end."""
    stuck = report.hang
    if stuck is None or report.state in ("starting", "running"):
        return []
    until = "" if stuck.until_at_ns is None else f" until {clock(stuck.until_at_ns / 1e9)}"
    # Where it is the cause, the next line says so.
    said = "" if stuck.is_the_cause(report.cause) else f"{stuck.ageless}; "
    lines = [ReportLine("hung", f"{said}from {clock(stuck.since_at_ns / 1e9)}{until}", "bold level-error")]
    if report.stood:
        lines.append(ReportLine("stacks", f"ddptop stacks {report.run} shows where the ranks stood then"))
    return lines


def _rank(end: RankEnd) -> str:
    """Return the end of a rank in one line, without what is not known."""
    where = f"at {end.where}" if end.where else ""
    step = "" if end.step is None else f"last step {end.step:,}" if end.step else "before its first step"
    memory = ""
    if end.memory_bytes is not None:
        of = f" of {size(end.memory_total_bytes)}" if end.memory_total_bytes else ""
        kind = "device memory" if end.device not in (None, "cpu") else "memory"
        before = ""
        if end.ended_at_ns is not None and end.heard_at_ns is not None:
            before = f" {max(0, end.ended_at_ns - end.heard_at_ns) / 1e9:.1f} s before its end"
        memory = f"{kind} {size(end.memory_bytes)}{of}{before}"
    at = "" if end.ended_at_ns is None else clock(end.ended_at_ns / 1e9)
    return "; ".join(filter(None, (end.told, where, step, memory, f"{end.host}, pid {end.pid}", at)))


def _stack(report: Report) -> list[ReportLine]:
    if not report.stack:
        return []
    whose = "the launcher" if report.traceback_rank is None else f"rank {report.traceback_rank}"
    return [
        ReportLine("", f"stack of {whose}", "bold label"),
        *(ReportLine("", line) for line in report.stack),
    ]


def _output(report: Report) -> list[ReportLine]:
    lines = []
    for each in report.ranks:
        if each.output:
            lines.append(ReportLine("", f"last output of rank {each.rank}", "bold label"))
            lines += [ReportLine("", line) for line in each.output]
    return lines


def _sound(report: Report) -> str:
    steps = [each.step for each in report.ranks if each.step]
    at = f" at step {max(steps):,}" if steps else ""
    match report.state:
        case "finished" if (apart := _diverged(report)) is not None:
            return f"It finished{at}, but what it trained is not one model: {apart.text}."
        case "finished":
            return f"It finished well{at}: nothing to explain."
        case "starting" | "running":
            stuck = report.hang
            if stuck is not None:
                return f"It lives, but makes no steps{at}: {stuck.ageless}; ddptop stacks {report.run}"
            return f"It lives{at}: there is no end to explain."
        case "stopped" | "killed":
            return f"Somebody ended it{at}{', where it hung' if report.hang is not None else ''}."
    return f"It ended{at}."


def _diverged(report: Report) -> wire.Verdict | None:
    """Return the verdict that the parameters of the ranks differ."""
    return next((each for each in reversed(report.verdicts) if each.kind == "diverged"), None)


def _verdict(verdict: wire.Verdict) -> tuple[str, str]:
    """Return the time of a verdict, and its words."""
    stuck = verdict.hang
    text = verdict.text
    if stuck is not None:
        # Most texts have the line of the code already.
        text += f"; at {stuck.where}" if stuck.where and stuck.where not in text else ""
        text += f"; the others in {stuck.waiting}" if stuck.waiting else ""
    until = "" if verdict.until_at_ns is None else f" until {clock(verdict.until_at_ns / 1e9)}"
    return f"{clock(verdict.since_at_ns / 1e9)}{until}", text


def text(report: Report) -> str:
    """Return the whole of a report as text."""
    return "\n".join(map(plain, whole(report)))


def markdown(report: Report) -> str:
    """Return a report for an issue tracker: facts as a list, what is verbatim in fences."""
    first, *rest = whole(report)
    found = [f"### ddptop report: {_inline(first.text)}", ""]
    fenced = False
    for line in rest:
        if line.is_heading:
            found += [*([_FENCE] if fenced else []), "", f"**{line.text}**", "", f"{_FENCE}text"]
            fenced = True
        elif fenced:
            # A fence in a text would end the block.
            found.append(line.text.replace(_FENCE, "'''"))
        else:
            # The advice is ours, with its own signs.
            shown = line.text if line.label == "to do" else _inline(line.text)
            found.append(f"- **{line.label}**: {shown}" if line.label else f"{shown}\n")
    return "\n".join([*found, *([_FENCE] if fenced else [])])


def _inline(text: str) -> str:
    """Return a text without the signs that Markdown would act on."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|" else char for char in text)


def as_json(report: Report) -> dict[str, Any]:
    """Return the documented form of `report --json`."""
    kind = report.kind
    return {
        "run": report.run,
        "state": report.state,
        "exit_code": report.exit_code,
        "program": report.program,
        "command": report.launched_as,
        "world": report.world,
        "backend": report.backend,
        "device": report.device,
        "launched": report.launched,
        "started_at": report.begun_at_ns / 1e9,
        "ended_at": None if report.ended_at_ns is None else report.ended_at_ns / 1e9,
        "cause": report.cause or None,
        "cause_rank": None if report.first is None else report.first.rank,
        "kind": None if kind is None else kind.name,
        "title": None if kind is None else kind.title,
        "advice": None if kind is None else kind.advice,
        "hang": None if report.hang is None else interval_json(report.hang),
        "evidence": report.evidence or None,
        "collateral": report.collateral or None,
        "traceback": report.traceback or None,
        "traceback_rank": report.traceback_rank,
        "ranks": [_rank_json(each) for each in report.ranks],
        "versions": dict(report.versions),
        "verdicts": [interval_json(each) for each in report.verdicts],
        "events": [event_json(each) for each in report.events],
    }


def _rank_json(end: RankEnd) -> dict[str, Any]:
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

"""`ps` as a table, `events` as lines; `ps`, `status` and `events` as JSON.

The JSON is an interface; the manual's page `json` documents it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.text import clean
from ddptop.agent.wire import PHASES
from ddptop.agent.wire.frames import RankDetail, RankFrame, RunDetail, RunFrame
from ddptop.agent.wire.hosts import HostFrame
from ddptop.tui.drawing.units import DASH, aligned, count, date, duration, moment, size
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.documented import as_event, number, verdict_json
from ddptop.tui.model.sentences import not_linked, outside, unheard_hosts, unobserved, with_rank


def _fields(kind: type[msgspec.Struct], base: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a frame that are for everybody: its own ones, without those of its base for screens."""
    return kind.__struct_fields__[len(base.__struct_fields__) :]


OF_RANK: Final = _fields(RankFrame, RankDetail)
_ADDED: Final = {
    "mfu": "standing_s", "supervised": "unobserved_s", "refused": "hosts", "unlinked": "ranks",
    "named_from_ms": "verdict",
}  # fmt: skip
"""By the field that it stands behind, a name that only the frame of a client has."""
OF_RUN: Final = tuple(
    name for field in _fields(RunFrame, RunDetail) for name in (field, _ADDED.get(field)) if name is not None
)
_NONE_IF_EMPTY: Final = frozenset(field.name for field in msgspec.structs.fields(RunFrame) if field.default == "")
NO_NAMES: Final[Mapping[int, str]] = MappingProxyType({})


def as_json(frame: Frame) -> dict[str, Any]:
    """Return the documented form of `status --json`: the fields of the frame, with those that the client adds."""
    made = {
        "at": round(frame.at, 3),
        "hosts": _hosts_json(frame),
        "ranks": [_rank_json(rank) for rank in frame.ranks],
        "verdict": None if frame.verdict is None else verdict_json(frame.verdict),
        "verdicts": [verdict_json(verdict) for verdict in frame.verdicts],
    }
    return {name: made[name] if name in made else _value(getattr(frame, name), name) for name in OF_RUN}


def event_line(event: wire.Event, hosts: Mapping[int, str] = NO_NAMES) -> str:
    """Return an event as a line of `events`; `hosts` has the names of the hosts of a run on several, by rank."""
    mark = {"warning": "!", "error": "✗"}.get(event.level, " ")
    host = "" if event.rank is None else hosts.get(event.rank, "")
    return f"{date(event.at_ns / 1e9)} {mark} {with_rank(event.text, event.rank, host)}"


def hosts_of(names: Mapping[int, str]) -> Mapping[int, str]:
    """Return the names of the hosts of a run by rank, where there are several; else nothing."""
    return names if len(set(names.values())) > 1 else NO_NAMES


def interval_line(verdict: wire.Verdict, hosts: Mapping[int, str] = NO_NAMES) -> str:
    """Return a verdict as a line of `events`, with how long it lasted."""
    said, since = (date(at_ns / 1e9).split() for at_ns in (verdict.told_at_ns, verdict.since_at_ns))
    lasted = "goes on"
    if (until := verdict.until_at_ns) is not None:
        end = date(until / 1e9).split()
        lasted = f"for {_lasted(until - verdict.since_at_ns)}, until {_clock(end, said)}"
    return f"{event_line(as_event(verdict), hosts)} (since {_clock(since, said)}, {lasted})"


def _clock(moment: list[str], said: list[str]) -> str:
    """Return a time of day, with its date where that is another one than that of the line."""
    return moment[1] if moment[0] == said[0] else " ".join(moment)


def _lasted(span_ns: int) -> str:
    seconds = max(0, span_ns) / 1e9
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def encoded(value: object, indent: int | None = None) -> str:
    """Return a value as JSON in which all that is not clean is escaped: paths are in it, which stay as they are."""
    try:
        compact = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # The name of a file need not be text: what is not is a lone surrogate.
        import json

        text = json.dumps(value, indent=indent, ensure_ascii=False)
    else:
        text = msgspec.json.format(compact, indent=indent or 0).decode()
        # Without such characters, which take a while to look for, all is clean; controls are escaped already.
        if text.isascii() and "\x7f" not in text:
            return text
    return "\n".join(line if clean(line, len(line)) == line else _escaped(line) for line in text.split("\n"))


def _escaped(line: str) -> str:
    import json

    return "".join(char if clean(char) == char else json.dumps(char)[1:-1] for char in line)


def _rank_json(rank: RankFrame) -> dict[str, Any]:
    known: Mapping[str, float] = rank.phases_ms or {}
    # Without a device there are no copies to one.
    phases = {phase: _value(known.get(phase)) for phase in PHASES if phase != "copy" or phase in known}
    return {name: phases if name == "phases_ms" else _value(getattr(rank, name)) for name in OF_RANK}


def _value(value: object, name: str = "") -> object:
    """Return a value of a frame as JSON has it; a text that says nothing is null."""
    match value:
        case float():
            return number(value)
        case tuple():
            return [*value]
        case dict():
            return {key: _value(each) for key, each in value.items()}
        case msgspec.Struct():
            return {field: _value(getattr(value, field)) for field in value.__struct_fields__}
        case "" if name in _NONE_IF_EMPTY:
            return None
    return value


def _hosts_json(frame: Frame) -> list[dict[str, Any]]:
    """Return the documented form of the hosts of a run, also of one on a single host."""
    if not frame.hosts:
        known = [rank for rank in frame.ranks if rank.host is not None]
        alone = HostFrame(frame.one_host or "", ranks=tuple(rank.rank for rank in known))
        return [_host_json(alone)] if frame.one_host else []
    return [_host_json(host) for host in frame.hosts]


def _host_json(host: HostFrame) -> dict[str, Any]:
    return {
        "host": host.host,
        "state": host.state or None,
        "ranks": list(host.ranks),
        "node": host.node,
        "heard_at": None if host.heard_at is None else round(host.heard_at, 3),
        "offset_ms": number(host.offset_ms),
        "offset_error_ms": number(host.offset_error_ms),
        "rtt_ms": number(host.rtt_ms),
        "version": host.agent_version or None,
    }


def run_json(frame: Frame) -> dict[str, Any]:
    """Return the documented form of one run in `ps --json`."""
    names = ("run", "state", "program", "world", "backend", "device", "step", "known_by", "exit_code", "cause")
    row = {name: getattr(frame, name) for name in names}
    return {
        **row,
        "hosts": _hosts_json(frame),
        "restarts": frame.generation,
        "user": frame.user or None,
        "pid": frame.pid,
        "started_at": frame.started_at,
        "ended_at": frame.ended_at,
        "size_bytes": frame.size_bytes,
    }


def table(frames: Sequence[Frame], now: float) -> list[str]:
    """Return the lines of `ps`."""
    rows = [("RUN", "STATE", "RANKS", "STEP", "BEGAN", "RAN", "SIZE", "PROGRAM", "")]
    for frame in frames:
        end = now if frame.ended_at is None else frame.ended_at
        rows.append(
            (
                f"{frame.user}/{frame.run}" if frame.user else frame.run,
                frame.state,
                f"{frame.world:,} on {len(frame.hosts):,} hosts" if frame.hosts.several else f"{frame.world:,}",
                count(frame.step),
                moment(frame.started_at),
                DASH if frame.started_at is None else duration(end - frame.started_at),
                size(frame.size_bytes).strip(),
                frame.program,
                remark(frame) or _hang(frame) or ("not prepared" if outside(frame, "") else ""),
            )
        )
    return aligned(rows)


def _hang(frame: Frame) -> str:
    """Return how a run hangs, and what shows more of it; empty where it does not."""
    verdict = hang.urgent(frame)
    return "" if verdict is None else f"{verdict.ageless} · ddptop stacks {frame.run}"


def remark(frame: Frame) -> str:
    """Return one line on what is wrong with a run as a whole, empty where nothing is."""
    if frame.unmet:
        return f"not prepared: ddptop attach {frame.run} shows it"
    if frame.orphaned:
        return f"the launcher is gone, its ranks still run: ddptop kill {frame.run}"
    found = unobserved(frame, "the training goes on") or frame.held or frame.cause or unheard_hosts(frame)
    return found or not_linked(frame)

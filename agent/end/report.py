"""The report on a run, above all on its end: the first cause, its consequences, and what can be done.

Made of what is on the disk (the records of run and ranks, what the observer saw of their ends, logs, the recording), so
that it is the same while the observer lives and after everything was killed.  Writes nothing, and knows no socket.
"""

from __future__ import annotations

import platform
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Final

from ddptop.agent import wire
from ddptop.agent.end import cause as causes
from ddptop.agent.end import hung, kinds, last_words, survey, traces
from ddptop.agent.end.processes import signal_name
from ddptop.agent.record import recording
from ddptop.agent.run import ends, hosts, states
from ddptop.agent.run.ends import Death
from ddptop.agent.run.files import tail
from ddptop.agent.run.files.masking import Mask
from ddptop.agent.run.records import TORCHRUN
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.run.switches import checking, injection
from ddptop.agent.startup.version import VERSION
from ddptop.agent.text import clean, clean_line, ranks_in_spans
from ddptop.agent.wire.report import EndKind, RankEnd, Report

_EVENTS: Final = 12
_VERDICTS: Final = 5
_STEP_MESSAGES: Final = 64
"""Messages with steps that are read at least, to find the last step of each rank."""
_TOGETHER: Final = (kinds.MISMATCH, kinds.TIMEOUT, kinds.LOST_PEER, kinds.UNKNOWN)
"""Kinds of ends that the stack of another rank than the first one explains, too."""
_OUTPUT_LINES: Final = 15
_TRACE_LINES: Final = 60


def of(directory: RunDir) -> Report:
    """Return the report on a run, live or over.

    Raises:
        RunDirError: the run has no readable record.
    """
    found = survey.look(directory)
    run, members = found.run, found.members
    failed = found.dead or any(each.ended is not None and each.ended.exit_code for each in members.values())
    if found.state in ("starting", "running") and failed:
        # A rank has failed, and the others are being ended, or the launcher of a job goes on for a while.
        judgement = survey.first_cause(directory, run, found.local)
        if judgement.state == "failed":
            found = replace(found, cause=judgement.cause, cause_rank=judgement.rank, kind=judgement.kind)
    generation = max((member.generation for member in members.values()), default=0)
    deaths = ends.read(directory.path, generation)
    hide = Mask(directory.path, run)
    beats, hellos = _last_words(directory.database)
    beats = {rank: each for rank, each in beats.items() if each.generation in (None, generation)}
    steps = completed(members, _last_steps(directory.database, generation, len(members)), beats)
    cause = hide.line(found.cause or "")
    first = found.cause_rank
    with_output = {first} if found.state != "lost" else set(list(members)[:8])
    unheard = {
        rank
        for host in hosts.read_hosts(directory.path)
        if host.state == "silent"
        for rank in set(host.ranks) - set(host.gone)
    }
    verdicts = list(map(hide.shown, recording.read_verdicts(directory.database)))
    stuck = hung.at_the_end(verdicts, _ended(found.state, run, members.values(), deaths))
    if stuck is None and found.state in ("running", "killed"):
        stuck = hung.at_exit(verdicts)
    # Where the cause is what was told while the run lived, so is its line.
    stood = stuck.hang.where if stuck is not None and stuck.hang is not None and stuck.is_the_cause(cause) else ""
    ranks = tuple(
        _rank(
            member,
            deaths.get(rank),
            beats.get(rank),
            steps.get(rank),
            directory,
            hide,
            alive=rank in found.alive,
            # What has become of the ranks of a host that did not answer the kill, nobody knows.
            by_kill=found.state == "killed" and rank not in unheard,
            by_term=states.ended_by_kill(run, member.ended),
            prints=rank in with_output,
            stood=stood if rank == first else "",
        )
        for rank, member in members.items()
    )
    kind = _kind(found.kind, cause, found.state)
    text, of_rank = _traceback(directory, members, deaths, first) if kind is not None else ("", None)
    if of_rank is not None and of_rank != first and first is not None and not (kind in _TOGETHER and stuck is None):
        # The stack of a rank that only noticed the end of another one explains nothing.
        text, of_rank = "", None
    death = None if first is None else deaths.get(first)
    if kind is not None:
        cause_step = next((each.step for each in ranks if each.rank == first), None)
        on = {member.host for member in members.values()}
        out_of_memory = None if death is None else death.out_of_memory
        kind = kinds.advised(kind, cause_step, out_of_memory, len(members), len(on), cause)
    newest = recording.events_of(directory.database, run)[-_EVENTS:]
    return Report(
        run=run.run,
        program=run.program,
        world=run.world,
        backend=run.backend,
        device=run.device,
        launched=run.launched,
        begun_at_ns=run.created_at_ns,
        ended_at_ns=run.ended_at_ns,
        state=found.state,
        exit_code=found.exit_code,
        cause=cause,
        kind=None if kind is None else EndKind(kind.name, kind.title, kind.advice),
        evidence="" if death is None else death.evidence,
        first=next((each for each in ranks if each.rank == first), None),
        ranks=ranks,
        collateral=_collateral([each for each in ranks if each.rank != first]),
        traceback=(trace := "\n".join(clean(hide.line(line)) for line in text.splitlines())),
        stack=traces.folded(trace.splitlines()),
        traceback_rank=of_rank,
        events=tuple(map(hide.shown, newest)),
        verdicts=tuple(verdicts[-_VERDICTS:]),
        versions=_versions(beats, hellos),
        launched_as=clean_line(hide.line(launching(run)), 2000),
        hang=stuck,
        injected=run.injected,
        stood=stuck is not None and bool(recording.read_inspections(directory.database)),
    )


def _ended(state: str, run: Run, members: Iterable[Member], deaths: Mapping[int, Death]) -> int | None:
    """Return when the first rank ended, or else the run; None while none has."""
    times = [each.ended.at_ns for each in members if each.ended is not None]
    times += [death.at_ns for death in deaths.values()]
    return min(times, default=None if state in ("starting", "running") else run.ended_at_ns)


def _last_words(database: Path) -> tuple[dict[int, wire.Beat], dict[int, wire.Hello]]:
    beats = {each.rank: each for each in recording.read_beats(database) if isinstance(each, wire.Beat)}
    hellos = {each.rank: each for each in recording.read_ranks(database) if isinstance(each, wire.Hello)}
    return beats, hellos


def _last_steps(database: Path, generation: int, world: int) -> dict[int, int]:
    """Return, by rank, the last step that is recorded."""
    found: dict[int, int] = {}
    for each in recording.read_last_steps(database, generation, max(_STEP_MESSAGES, 2 * world)):
        if isinstance(each, wire.Steps) and each.steps:
            found[each.rank] = each.steps[-1].step
    return found


def completed(
    members: Mapping[int, Member], recorded: Mapping[int, int], beats: Mapping[int, wire.Beat]
) -> dict[int, int]:
    """Return, by rank, the last step that it completed, as far as that is known.

    Of a rank that was killed the records of its last steps have not come any more.  Where all others have completed a
    later step, it has done its part in the collectives of that step: without it they would not have got so far.
    """
    found: dict[int, int] = {}
    for rank, member in members.items():
        if not member.by_agent:
            # Nobody has counted its steps.
            continue
        # A sign of life comes once a second; a rank that ends by itself knows best.
        known = (
            recorded.get(rank),
            None if member.ended is None else member.ended.step,
            None if rank not in beats else beats[rank].step,
        )
        if steps := [each for each in known if each is not None]:
            found[rank] = max(steps)
    killed = {rank for rank, member in members.items() if member.ended is None and rank in found}
    communicate = all(rank in beats and beats[rank].communicated for rank in members)
    others = {rank: min((found[each] for each in found if each != rank), default=0) for rank in killed}
    return found | {rank: max(found[rank], step) for rank, step in others.items() if communicate}


def _versions(beats: Mapping[int, wire.Beat], hellos: Mapping[int, wire.Hello]) -> dict[str, str]:
    torch = {beat.torch_version for beat in beats.values() if beat.torch_version}
    python = {hello.python_version for hello in hellos.values()}
    found = {"ddptop": VERSION, "torch": ", ".join(sorted(torch)), "python": ", ".join(sorted(python))}
    found["system"] = clean_line(f"{platform.system()} {platform.release()} ({platform.machine()})", 100)
    return {name: version for name, version in found.items() if version}


def _rank(
    member: Member,
    death: Death | None,
    beat: wire.Beat | None,
    step: int | None,
    directory: RunDir,
    hide: Mask,
    *,
    alive: bool,
    by_kill: bool,
    by_term: bool,
    prints: bool,
    stood: str,
) -> RankEnd:
    ended = member.ended
    status = None if death is None else death.status
    code = ended.exit_code if ended is not None and ended.exit_code is not None else status
    state, told = _told(member, code, alive=alive, by_kill=by_term or (by_kill and ended is None))
    stack = _stack(directory, member, code, status, prints=prints and not alive)
    user = stack.user
    left_at = "" if ended is None else clean_line(ended.left_at, 100)
    where = left_at if user is None else clean_line(user.text, 100)
    return RankEnd(
        rank=member.rank,
        host=clean_line(member.host, 100),
        pid=member.process.pid,
        state=state,
        told=hide.line(told),
        exit_code=code if code is not None and code >= 0 else None,
        signal=signal_name(-code) if code is not None and code < 0 else None,
        ended_at_ns=ended.at_ns if ended is not None else death.at_ns if death is not None else None,
        step=step,
        memory_bytes=None if beat is None else beat.memory_bytes,
        memory_total_bytes=None if beat is None else beat.memory_total_bytes,
        heard_at_ns=None if beat is None else beat.at_ns,
        device=None if beat is None else beat.device,
        health=None if beat is None else beat.health,
        where=stood or where,
        output=tuple(hide.line(line) for line in _output(directory, member)) if prints else (),
    )


def _told(member: Member, code: int | None, *, alive: bool, by_kill: bool) -> tuple[str, str]:
    """Return state and end of a rank, in a few words."""
    ended = member.ended
    if alive and ended is None:
        return "alive", ""
    if ended is not None and ended.stopped_by and not code:
        return "stopped", f"stopped by {clean_line(ended.stopped_by, 100)}"
    if ended is not None and code and (error := causes.own_failure(ended)[0]):
        return "failed", clean_line(error)
    if not code and by_kill:
        return "killed", "ended by the kill"
    if code is None:
        return "unknown", "ended, with an unknown exit code" if ended is not None else "left no word"
    if code < 0:
        return "killed", f"{'ended' if code == -signal.SIGTERM else 'killed'} by {signal_name(-code)}"
    return ("failed", f"exit code {code}") if code else ("finished", "finished")


def _stack(directory: RunDir, member: Member, code: int | None, status: int | None, *, prints: bool) -> traces.Stack:
    """Return the stack of a crash or of an exception, also of one that the rank only `prints` before it has left."""
    if member.ended is not None and member.ended.traceback:
        return traces.of_traceback(causes.own_failure(member.ended)[2], recorded=True)
    if (status is not None and -status in kinds.FROM_OUTSIDE) or not (code or status or prints):
        return traces.Stack()
    output = last_words.output_of(directory.output(member.rank), member.log_begin)
    if status is None or status >= 0:
        return traces.of_traceback(traces.printed(output))
    dump = traces.crash(output)
    return traces.Stack() if dump is None else dump.stack


def _output(directory: RunDir, member: Member) -> list[str]:
    """Return the last lines of a rank's log before its own traceback or crash dump, which are shown beside them."""
    text = tail.end(directory.output(member.rank), begin=member.log_begin)
    if (dump := traces.crash(text)) is not None:
        text = dump.before
    if member.ended is not None and member.ended.traceback:
        text = traces.before(text)
    told = [clean(line, 400).rstrip() for line in text.splitlines()]
    return [line for line in told if line][-_OUTPUT_LINES:]


def _kind(name: str, cause: str, state: str) -> kinds.Kind | None:
    """Return the kind of an end that has to be explained; that of an older record by its cause alone."""
    if state in ("finished", "stopped", "killed", "ended") or not cause:
        return None
    known = {kind.name: kind for kind in kinds.ALL}
    if name in known or state == "lost":
        return known.get(name, kinds.UNKNOWN)
    found = kinds.recognize(cause, None)
    return found if found in kinds.TABLE or re.search(r"(?:Error|Exception)\b", cause) else kinds.UNKNOWN


def _traceback(
    directory: RunDir, members: Mapping[int, Member], deaths: Mapping[int, Death], first: int | None
) -> tuple[str, int | None]:
    """Return the stack to be shown and its rank: that of the first cause, else the earliest that there is."""
    if not members:
        return _bounded(traces.traceback(tail.end(directory.torchrun_log))), None
    by_time = sorted(members.values(), key=lambda member: (member.rank != first, _ended_at(member, deaths)))
    for member in by_time[:64]:
        if member.ended is not None and member.ended.traceback:
            return _bounded(member.ended.traceback), member.rank
        death = deaths.get(member.rank)
        if (
            death is not None
            and death.status is not None
            and -death.status not in kinds.FROM_OUTSIDE
            and death.status < 0
        ):
            dump = traces.crash(last_words.output_of(directory.output(member.rank), member.log_begin))
            if dump is not None:
                frames = (f'  File "{spot.file}", line {spot.line} in {spot.function}' for spot in _own(dump.stack))
                return _bounded("\n".join((f"Fatal Python error: {dump.what}", *frames))), member.rank
    return "", None


def _own(stack: traces.Stack) -> tuple[traces.Spot, ...]:
    """Return the frames of a stack without those of the agent's runner, around the script."""
    last = max(
        (number for number, spot in enumerate(stack.frames) if not spot.is_library), default=len(stack.frames) - 1
    )
    return stack.frames[: last + 1]


def _bounded(text: str) -> str:
    lines = text.rstrip().splitlines()
    if len(lines) <= _TRACE_LINES:
        return "\n".join(lines)
    half = _TRACE_LINES // 2
    return "\n".join([*lines[:half], f"  … {len(lines) - 2 * half} lines left out …", *lines[-half:]])


def _ended_at(member: Member, deaths: Mapping[int, Death]) -> int:
    if member.ended is not None:
        return member.ended.at_ns
    death = deaths.get(member.rank)
    return sys.maxsize if death is None else death.at_ns


def _collateral(others: list[RankEnd]) -> str:
    """Return the ends of the other ranks in one line, those that differ in numbers only together."""
    alike: dict[str, list[RankEnd]] = {}
    for each in others:
        if each.state != "alive":
            alike.setdefault(re.sub(r"\d+", "#", each.told), []).append(each)
    parts = [
        f"{ranks_in_spans([each.rank for each in group])}: {clean_line(group[0].told, 160)}" for group in alike.values()
    ]
    living = [each.rank for each in others if each.state == "alive"]
    if living:
        parts.append(f"{ranks_in_spans(living)}: alive")
    return clean_line("; ".join(parts), 600)


_GRACE_S: Final = 5.0
"""Seconds that a launch gives the ranks of a run where it is not told otherwise."""


def launching(run: Run) -> str:
    """Return the line for a shell, masked as the record is; of a job started by hand, program and arguments alone, or
    the line of its launcher where that was seen.

    The name is left out, because the run still has it, and so is the environment of a program that spawns its ranks,
    most of which is made by the launch.
    """
    if not run.launched:
        return shlex.join(run.command or (run.program, *run.arguments))
    words = ["ddptop", "launch", *(_hosts(run) or ("--world", str(run.world)))]
    if run.backend:
        words += ["--backend", run.backend]
    if run.leader != "torchrun":
        words += ["--start", "spawn"]
    if run.grace_s != _GRACE_S:
        words += ["--grace", f"{run.grace_s:g}"]
    if run.on_term:
        words += ["--on-term", run.on_term]
    if run.max_restarts:
        words += ["--max-restarts", str(run.max_restarts)]
    for fault in filter(None, run.environment.get(injection.VARIABLE, "").split(";")):
        words += ["--inject", fault]
    if every := run.environment.get(checking.VARIABLE):
        words += ["--check-parameters", every]
    if run.leader == "torchrun":
        for name, value in run.environment.items():
            if not name.startswith("DDPTOP_"):
                words += ["--env", f"{name}={value}"]
    words += run.program.split(" ", 1) if run.program.startswith("-m ") else [run.program]
    return shlex.join((*words, *(("--", *run.arguments) if run.arguments else ())))


_OF_HOSTS: Final = ("--nnodes", "--nproc-per-node", "--node-rank", "--rdzv-endpoint", "--rdzv-id")


def _hosts(run: Run) -> list[str]:
    """Return the options with which each host of a run on several is launched, as torchrun got them; else none."""
    if TORCHRUN not in run.command:
        return []
    options = takewhile(lambda word: word.startswith("-"), run.command[run.command.index(TORCHRUN) + 1 :])
    given = dict(word.split("=", 1) for word in options if "=" in word)
    if "--nnodes" not in given:
        return []
    return [word for name in _OF_HOSTS if name in given for word in (name, given[name])]

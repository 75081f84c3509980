"""The end of a run and its first cause, from the records of its ranks and the log of torchrun.

The last traceback of a group is rarely the reason: when one rank dies, its peers fail a
moment later with a lost connection, and torchrun ends the rest.  Records and logs may be hostile; the cause is one
clean line.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ddptop.agent.end import hung
from ddptop.agent.end.processes import signal_name
from ddptop.agent.run import states
from ddptop.agent.run.ends import LATE, Death
from ddptop.agent.run.records import Ended, Member, without_end_by_others
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.run.script.last_output import explain, in_log, last_output
from ddptop.agent.text import clean_line, plural, ranks_in_spans
from ddptop.agent.wire import MOST_RANKS, Verdict

# Patterns are compiled at their first use: each look at a run imports this module, and few runs have failed.
_FAILURE: Final = r"\brank\s*:\s*(\d{1,5}) \(local_rank: \d{1,5}\)\s+exitcode\s*:\s*(-?\d{1,9}) \(pid: (\d{1,9})\)"
"""An entry of torchrun's failure summary."""
_FAILED: Final = r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,5}) \(pid: (\d{1,9})\)"
"""torchrun's line on the first rank that failed; before a restart it prints no summary."""
_SIGNALLED: Final = (
    r"(?:SignalException: Process \d+ got signal: (?:Signals\.)?(\w{1,20})\b"
    r"|Received (?:Signals\.)?(\w{1,20}) death signal)"
)
"""torchrun's last line after a signal to itself, and its first; Python 3.10 spells the name, later ones the number."""

_MEANING: Final = {
    signal.SIGKILL: "out of memory, or kill -9",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up; its log says why",
    signal.SIGBUS: "often a full /dev/shm",
    signal.SIGTERM: "somebody ended it",
}
_COUNTED: Final = {
    True: "out of memory: the kernel counted a kill",
    False: "kill -9: the kernel counted no kill for memory",
}
"""Meanings of a SIGKILL by what the kernel has counted."""
_CONSEQUENCES: Final = {"collective_timeout": 1, "rendezvous": 1, "lost_peer": 2}
"""Kinds of errors with which a rank notices that another one never came, and then that it is gone."""
_TAKEN_ALONG: Final = 3
"""Later than all of these comes the end of a rank that was ended because of the others."""
_KILLS_AFTER_NS: Final = 10_000_000_000
"""torchrun kills a rank that ignores its SIGTERM, such as one that is stopped, after half a minute."""
_SAYS_ALL: Final = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Ends that come from outside: what the rank printed before has nothing to do with them."""
_TOGETHER_NS: Final[Mapping[int, int]] = {
    signal.SIGHUP: 5_000_000_000,
    signal.SIGINT: 5_000_000_000,
    signal.SIGTERM: 50_000_000,
}
"""Signals that a launcher passes on to all ranks, and the time within which they end by it.

torchrun sends the others a SIGTERM of its own a tenth of a second after the end of one rank, or sooner."""


class LostHost(NamedTuple):
    """A host that is not heard, with ranks of whose end nothing is known."""

    host: str
    ranks: tuple[int, ...]
    heard_at_ns: int
    """When it was heard last."""


@dataclass(frozen=True, slots=True)
class FirstCause:
    """The end of a run."""

    state: str
    """`finished`, `stopped`, `ended`, `failed` or `lost`; the observer adds `killed`."""
    exit_code: int | None
    cause: str | None = None
    rank: int | None = None
    warning: str | None = None
    """A problem that does not make the run a failure."""
    kind: str = ""
    """Name of the kind of a failure, as `kinds` has it; empty where it is none or not recognized."""
    is_open: bool = False
    """True as long as it may still turn out that the launcher received the signal which ended the rank."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    rank: int
    at_ns: float
    after: int
    """0 for an end of its own; else it looks like the consequence of another rank's, the more so the larger it is."""
    text: str
    code: int | None = None
    """Exit code of the rank, 128+n for a signal; that of torchrun is always 1."""
    unexplained: bool = False
    """True where neither the rank nor the system says why."""
    kind: str = ""


def judge(
    world: int,
    members: Mapping[int, Member],
    exit_code: int | None,
    torchrun_log: str = "",
    died_at_ns: Mapping[int, int] | None = None,
    leader: str = "torchrun",
    ended_on_request: Collection[int] = (),
    directory: RunDir | None = None,
    deaths: Mapping[int, Death] | None = None,
    lost: Sequence[LostHost] = (),
    elsewhere: Collection[int] = frozenset(),
    hangs: Sequence[Verdict] = (),
) -> FirstCause:
    """Return the end of a run.

    Args:
        world: expected number of ranks.
        members: the records of the ranks.
        exit_code: that of torchrun, negative for a signal; None where no process waited for it.
        torchrun_log: the end of torchrun's log.
        died_at_ns: by rank, the time of its end, where it was observed; those of `deaths` need not be in it.
        leader: name of the process that starts the ranks.
        ended_on_request: ranks that were killed or signalled by themselves, on request of a user.
        directory: of the run; the log of a rank says why where nothing else does.
        deaths: by rank, what was seen of the end of its process.
        lost: other hosts that are not heard, whose ranks have left no record of their end.
        elsewhere: ranks of `members` on other hosts, of which this torchrun says nothing.
        hangs: the verdicts on hangs while the run lived, oldest first.
    """
    members = {rank: without_end_by_others(member) for rank, member in members.items()}
    deaths = deaths or {}
    # An observer that takes over sees all earlier ends at once; what was recorded of them is their time.
    died_at_ns = {**(died_at_ns or {}), **{rank: death.at_ns for rank, death in deaths.items()}}
    codes = _summary(torchrun_log, {rank: member for rank, member in members.items() if rank not in elsewhere})
    codes = {rank: each for rank, each in codes.items() if rank not in elsewhere}
    code = None if exit_code is None else _positive(exit_code)
    own_codes = {rank: _own_code(member, deaths.get(rank)) for rank, member in members.items()}
    left = [rank for rank, member in members.items() if member.ended is not None or own_codes[rank] == 0]
    in_order = len(left) == len(members) >= world and not any(own_codes.values())
    whole = in_order and all(each == 0 for each in own_codes.values())
    stoppers = [member.ended.stopped_by for member in members.values() if member.ended and member.ended.stopped_by]
    trouble = {rank: status for rank, status in _statuses(deaths).items() if status}
    late = codes or trouble
    if stoppers and (exit_code == 0 or in_order):
        return FirstCause(
            "stopped", 0, f"stopped by {clean_line(stoppers[0], 100)}", warning=_late_trouble(late, exit_code, leader)
        )
    if exit_code == 0:
        # What a launcher that has started the group anew says of earlier starts is none of this end.
        return FirstCause("finished", 0, warning=_late_trouble(trouble, 0, leader) if whole else None)
    if whole:
        return FirstCause("finished", 0, warning=_late_trouble(late, exit_code, leader))
    if in_order and exit_code is None:
        return FirstCause("ended", None, "every rank ended; the exit codes are unknown")
    if lost and exit_code is None and members and not any(own_codes[rank] != 0 for rank in members):
        silent = "; ".join(
            f"{clean_line(each.host, 60)} did not answer: {plural(len(each.ranks), 'rank')} unknown" for each in lost
        )
        return FirstCause("ended", None, f"every rank that is heard has finished; {silent}")
    signals = re.findall(_SIGNALLED, torchrun_log)
    if signals and not codes:
        name = "".join(signals[-1])
        return _received(leader, signal_name(int(name)) if name.isdecimal() else name, code)
    by_signal = {rank: _signal_of(each, deaths.get(rank)) for rank, each in members.items()}
    if len(members) >= max(2, world) and len(numbers := set(by_signal.values())) == 1:
        number = numbers.pop()
        if not codes and not ended_on_request and _is_passed_on(number, members, died_at_ns):
            if number == signal.SIGHUP:
                why = f"{leader} received SIGHUP: its terminal was closed"
                return FirstCause("failed", code or 128 + number, why, kind="hangup")
            return _received(leader, signal_name(number), code or 128 + number)
    suspects = _suspects(members, codes, died_at_ns, deaths, elsewhere)
    if suspects or lost:
        suspects += map(_gone_with, lost)
        # Deaths seen in one look have one time; of these, only a death on request is known to be no consequence.
        first = min(
            suspects,
            key=lambda each: (each.after, each.at_ns, each.rank not in ended_on_request, each.rank),
        )
        earliest = min(suspects, key=lambda each: (each.at_ns, each.rank))
        together = [each for each in suspects if each.code is None and each.at_ns == first.at_ns]
        if len(together) > 1 and first in together and first.rank not in ended_on_request:
            text = f"{plural(len(together), 'rank')} exited without reporting a cause; which of them first is not known"
            return FirstCause("failed", code or 1, f"{text} (a signal, or out of memory)")
        from ddptop.agent.end import last_words

        if first.rank in ended_on_request:
            return FirstCause("failed", first.code or code or 1, first.text, first.rank, kind="on_request")
        if first.kind == "host_gone":
            return FirstCause("failed", code or 1, first.text, None, kind=first.kind)
        generation = max((member.generation for member in members.values()), default=0)
        stuck = hung.at_the_end(
            [each for each in hangs if each.generation == generation],
            None if earliest.at_ns == float("inf") else int(earliest.at_ns),
            by_timeout=earliest.kind == "collective_timeout",
        )
        if stuck is not None and (first.after or first.kind == "mismatch" or earliest.kind == "collective_timeout"):
            # The end is the consequence of the hang that was reported while it lasted.
            return _hung(stuck, first.code or code or 1)
        seen = deaths.get(first.rank)
        told = last_words.of_ranks(
            members,
            first.rank,
            directory,
            {**_statuses(deaths), **codes},
            torchrun_log,
            None if seen is None else seen.out_of_memory,
        )
        if told.apart is not None and first.kind in ("", "mismatch", *_CONSEQUENCES):
            # The calls of the ranks say more than what gloo or NCCL made of them.
            # Of two that differ nobody is known to be wrong.
            rank = told.apart.rank if told.apart.kind == "mismatch" or told.apart.rank is not None else first.rank
            return FirstCause("failed", first.code or code or 1, told.apart.text, rank, kind=told.apart.kind)
        text = first.text
        if first.unexplained:
            begin = members[first.rank].log_begin if first.rank in members else 0
            printed = None if directory is None else in_log(directory.output(first.rank), begin)
            if printed is None and (first.rank not in members or members[first.rank].log is None):
                # A rank that ends before its agent has begun prints where torchrun does.
                printed = last_output(torchrun_log)
            text = explain(text + told.place, printed)
        kind = first.kind or told.kind
        is_open = exit_code is None and not codes and by_signal.get(first.rank) in _TOGETHER_NS
        is_open &= any(rank not in died_at_ns for rank in members)
        return FirstCause("failed", first.code or code or 1, text, first.rank, kind=kind, is_open=is_open)
    if exit_code is None:
        return FirstCause("lost", None, "it ended while no observer watched, and not every rank reported its end")
    if exit_code < 0:
        return FirstCause("failed", code, f"{leader} was killed by {signal_name(-exit_code)}", kind="killed")
    said = last_output(torchrun_log)
    if said is None:
        return FirstCause("failed", code, f"{leader} ended with exit code {exit_code}")
    from ddptop.agent.end import kinds

    found = kinds.recognize(said.text, None)
    if found in (kinds.EXCEPTION, kinds.EXIT) and leader == "torchrun" and not members:
        found = kinds.LAUNCHER
    return FirstCause("failed", code, said.text, kind=found.name)


def _received(leader: str, name: str, code: int | None) -> FirstCause:
    """Return the end that came of a signal to the launcher."""
    kind = "interrupted" if name == "SIGINT" else "terminated"
    return FirstCause("failed", code, f"{leader} received {name}", kind=kind)


def _signal_of(member: Member, death: Death | None) -> int:
    """Return the signal that ended a rank, also where its script made an exception of it; 0 where none did."""
    code = _own_code(member, death) or 0
    return -code if code < 0 else max(0, code - 128)


def _is_passed_on(number: int, members: Mapping[int, Member], died_at_ns: Mapping[int, int]) -> bool:
    """Say whether all ranks ended by a signal so close to each other that it was one signal to all of them."""
    at_ns = [died_at_ns.get(rank, 0 if each.ended is None else each.ended.at_ns) for rank, each in members.items()]
    return max(at_ns) - min(at_ns) <= _TOGETHER_NS.get(number, -1)


def own_failure(ended: Ended) -> tuple[str | None, str, str]:
    """Return the error of a rank's end, the name of its kind, and its traceback, empty where the rank has left none.

    Where the rank only noticed at last what its own exception had made of the others, they are those of that exception.
    """
    from ddptop.agent.end import kinds, traces

    trace = ended.traceback or ""
    kind = kinds.recognize(ended.error, ended.exit_code, trace=trace)
    if kind.name in _CONSEQUENCES and (own := traces.root(trace)) is not None:
        error = own.splitlines()[-1]
        return error, kinds.recognize(error, ended.exit_code).name, own
    return ended.error, kind.name, trace


def last_end_ns(members: Mapping[int, Member], died_at_ns: Mapping[int, int], now_ns: int) -> int:
    """Return the time at which the last rank ended, by records and by what was observed; now where nothing shows it."""
    told = {rank: member.ended.at_ns for rank, member in members.items() if member.ended is not None}
    times = [told.get(rank, died_at_ns.get(rank, 0)) for rank in {*members, *died_at_ns}]
    return min(max(times, default=0) or now_ns, now_ns)


def last_line(text: str) -> str | None:
    """Return the last line that is not empty, clean."""
    lines = [line for line in map(clean_line, text.splitlines()) if line]
    return lines[-1] if lines else None


def describe_end(member: Member, death: Death | None = None, *, on_request: bool = False) -> tuple[str, str]:
    """Return text and level of the event of a rank's end, from its record and what was seen; `on_request`: killed."""
    ended = member.ended
    if ended is None and on_request:
        return f"rank {member.rank} is gone", "info"
    if death is not None and death.status and (ended is None or ended.exit_code is None):
        if death.status == -signal.SIGTERM:
            # Most ranks that get it are ended because another one has failed.
            return f"rank {member.rank} was ended by SIGTERM", "info"
        return f"rank {member.rank} {_silent(death.status, death)}", "error"
    if ended is None and death is not None and death.status == 0:
        return f"rank {member.rank} exited with code 0", "info"
    if ended is None:
        return f"rank {member.rank} exited without reporting a cause", "warning"
    if _own_code(member, death) is None and not ended.stopped_by:
        return f"rank {member.rank} has ended; its exit code is not known", "info"
    if not ended.exit_code:
        return f"rank {member.rank} {'stopped' if ended.stopped_by else 'finished'}", "info"
    reason = f": {clean_line(ended.error)}" if ended.error else ""
    return f"rank {member.rank}'s script ended with exit code {ended.exit_code}{reason}", "error"


def _summary(log: str, members: Mapping[int, Member]) -> dict[int, int]:
    codes = {}
    early = [(_rank_of(int(local), int(pid), members), code, pid) for code, local, pid in re.findall(_FAILED, log)]
    late = [(int(rank), code, pid) for rank, code, pid in re.findall(_FAILURE, log)]
    for rank, code, pid in early + late:
        member = members.get(rank)
        # A script can print such lines too, but with another pid.
        if 0 <= rank < MOST_RANKS and (member is None or member.process.pid == int(pid)):
            codes[rank] = int(code)
    return codes


def _rank_of(local_rank: int, pid: int, members: Mapping[int, Member]) -> int:
    """Return the rank of a process of this host, -1 where it has no record; on one host the local rank is the rank."""
    if all(each.local_rank == each.rank for each in members.values()):
        return local_rank
    known = (rank for rank, each in members.items() if each.local_rank == local_rank and each.process.pid == pid)
    return next(known, -1)


def _own_code(member: Member, death: Death | None) -> int | None:
    """Return the exit code of a rank's script; that of its process where the rank does not know it."""
    if member.ended is not None and member.ended.exit_code is not None:
        return member.ended.exit_code
    return None if death is None else death.status


def _statuses(deaths: Mapping[int, Death]) -> dict[int, int]:
    return {rank: death.status for rank, death in deaths.items() if death.status is not None}


def _suspects(
    members: Mapping[int, Member],
    summary: Mapping[int, int],
    died_at_ns: Mapping[int, int],
    deaths: Mapping[int, Death],
    elsewhere: Collection[int],
) -> list[_Suspect]:
    suspects = []
    # torchrun's own summary is about the present processes; what was seen stands in for what is not in it.
    codes = {**_statuses(deaths), **summary}
    # torchrun acts on ends of processes, which come later than those of the scripts.
    failed_at_ns = {
        rank: died_at_ns.get(rank, float("inf"))
        for rank in {*members, *codes}
        if codes.get(rank) or (rank in members and (end := members[rank].ended) is not None and end.exit_code)
    }
    for rank in sorted({*members, *codes}):
        member = members.get(rank)
        ended = member.ended if member else None
        died = died_at_ns.get(rank, float("inf"))
        others = [at_ns for other, at_ns in failed_at_ns.items() if other != rank]
        if ended is not None and ended.exit_code:
            error, kind, _ = own_failure(ended)
            reason = clean_line(error) if error else f"ended with exit code {ended.exit_code}"
            after = _CONSEQUENCES.get(kind, 0)
            if ended.exit_code in (-signal.SIGTERM, 128 + signal.SIGTERM) and any(at_ns <= died for at_ns in others):
                after = _TAKEN_ALONG
            text = f"rank {rank}: {reason}" if error else f"rank {rank} {reason}"
            if ended.left_at and (error or "").startswith("SystemExit"):
                text += f" · {clean_line(ended.left_at, 100)}"
            suspects.append(_Suspect(rank, ended.at_ns, after, text, _positive(ended.exit_code), kind=kind))
        elif codes.get(rank):
            late = " at exit, after its script had finished" if ended is not None and ended.exit_code == 0 else ""
            text = f"rank {rank} {_silent(codes[rank], deaths.get(rank))}{late}"
            # After the failure of one rank, torchrun ends the others by SIGTERM, and those that ignore it by SIGKILL.
            taken_along = (codes[rank] == -signal.SIGTERM and any(at_ns <= died for at_ns in others)) or (
                codes[rank] == -signal.SIGKILL and any(at_ns + _KILLS_AFTER_NS <= died for at_ns in others)
            )
            not_named = bool(summary and rank not in summary and rank not in elsewhere)
            unexplained = ended is None and codes[rank] not in _SAYS_ALL
            after = _TAKEN_ALONG if taken_along or not_named else 0
            suspects.append(_Suspect(rank, died, after, text, _positive(codes[rank]), unexplained))
        elif ended is None and rank in died_at_ns and rank not in codes:
            # Where there is a summary without this rank, torchrun ended it because of the others.
            text = f"rank {rank} exited without reporting a cause (a signal, or out of memory)"
            suspects.append(_Suspect(rank, died, _TAKEN_ALONG if summary and rank not in elsewhere else 0, text))
    return suspects


def _hung(stuck: Verdict, exit_code: int) -> FirstCause:
    """Return the end that came of a hang, in the words of its verdict."""
    assert stuck.hang is not None
    kind = stuck.hang.kind if stuck.hang.kind in ("mismatch", "left_early", "exception") else "collective_timeout"
    rank = stuck.hang.ranks[0] if len(stuck.hang.ranks) == 1 else None
    text = stuck.ageless
    if stuck.kind != "hang":
        of = f" of {stuck.hang.timeout_of}" if stuck.hang.timeout_of else ""
        # A group may have any name.
        text = re.sub(r" waits?$", lambda _: f" waited until the timeout{of}", text)
    return FirstCause("failed", exit_code, text, rank, kind=kind)


def _gone_with(host: LostHost) -> _Suspect:
    # All its processes at once, or its network: what its ranks themselves say is not heard.
    text = f"host {clean_line(host.host, 60)} gone ({ranks_in_spans(host.ranks)})"
    return _Suspect(min(host.ranks), host.heard_at_ns, 0, text, kind="host_gone")


def place(rank: int, members: Mapping[int, Member]) -> str:
    """Return `rank 5`, and where the run is on several hosts its host: `rank 5 on node2`."""
    several = len({member.host for member in members.values()}) > 1
    return f"rank {rank} on {clean_line(members[rank].host, 60)}" if several and rank in members else f"rank {rank}"


def with_host(judgement: FirstCause, members: Mapping[int, Member]) -> FirstCause:
    """Return the judgement with the host of the first cause in its text, where the run is on several."""
    rank, text = judgement.rank, judgement.cause
    if rank is None or text is None or not re.match(rf"rank {rank}\b", text):
        return judgement
    return replace(judgement, cause=place(rank, members) + text[len(f"rank {rank}") :])


def with_lingering(judgement: FirstCause, members: Mapping[int, Member], lingering: Collection[int]) -> FirstCause:
    """Return the judgement with what keeps the process of the first cause from ending, if it is one of `lingering`."""
    member = None if judgement.rank is None else members.get(judgement.rank)
    if member is None or member.ended is None or member.rank not in lingering:
        return judgement
    return replace(judgement, cause=f"{judgement.cause}{states.lingers(member.ended, alive=True)}")


def _silent(code: int, death: Death | None = None) -> str:
    if code > 0:
        return f"exited with code {code} and no exception"
    name = signal_name(-code)
    if code == -signal.SIGKILL and death is not None and death.out_of_memory is not None:
        # On which counters that rests is in the report.
        return f"was killed by {name} ({_COUNTED[death.out_of_memory]})"
    meaning = _MEANING.get(-code)  # type: ignore[call-overload]
    return f"was killed by {name}" + (f" ({meaning})" if meaning else "")


def _positive(code: int) -> int:
    return code if code >= 0 else 128 - code


def _late_trouble(codes: Mapping[int, int], exit_code: int | None, leader: str) -> str | None:
    if not exit_code and not codes:
        return None
    if not codes and exit_code:
        who = f"{leader} {_silent(exit_code)}" if exit_code < 0 else f"{leader} ended with exit code {exit_code}"
        return f"{who}, after every rank had finished: {LATE}"
    who = ", ".join(f"rank {rank} {_silent(code)}" for rank, code in sorted(codes.items()))
    return f"{who}, after every script had finished: {LATE}"

"""What a probe has found: the ranks and connections that are slower than their like, and the likely reason. Pure.

The experiments that each rank makes alone are the evidence: together, ranks that share cores differ by chance.  What
looks slow is measured once more, beside one of its like, and is named only where it is slow again: so that a machine
that is busy for a moment names nobody.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ddptop.agent.text import plural, ranks_in_spans, size
from ddptop.agent.wire import Board, Facts
from ddptop.agent.wire.diagnoses.probed import Connection, Experiments, Probe, Rank, speed, typical

LESS: Final[Mapping[str, float]] = {
    "compute": 0.25, "host": 0.25, "disk_write": 0.7, "disk_read": 0.7, "checkpoint_write": 0.7, "checkpoint_read": 0.7,
}  # fmt: skip
"""By experiment, the part by which a rank is slower than its like from which on it is named.

They are what is worth a look: beside ten other processes on two cores a healthy rank alone lacked up to 68 % of the
other's rate of products by the wall clock, but was not slow each time for the time in which it had a core
(`tests/bench/faulty/probes.py`).
"""
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "compute": ("computes", "compute"),
    "host": ("computes on its host", "compute on their host"),
    "disk_write": ("writes to the disk of the run", "write to the disk of the run"),
    "disk_read": ("reads from the disk of the run", "read from the disk of the run"),
    "checkpoint_write": ("writes to the disk of the checkpoints", "write to the disk of the checkpoints"),
    "checkpoint_read": ("reads from the disk of the checkpoints", "read from the disk of the checkpoints"),
}
"""By experiment, its verb for one rank and for several."""
LEAST_AGAIN: Final = 2
"""Times that a rank that looks slow is to be slow again."""
CARRIES: Final = 0.6
"""Part of what others carry from which on downwards a connection is named."""
SLOW_S: Final = 0.002
"""Seconds by which a small message is later than between others, and it takes three times as long, too."""
NOTHING: Final = "no difference: look at the code"
UNSURE: Final = "no sure difference"
"""The beginning of a sentence that says why another probe would be better."""
_SHARED: Final = 10.0
"""Percent of a rank's cores that others use, or that the hypervisor takes, from which on that is a reason."""
_TAKEN: Final = {"steal_percent": "the hypervisor takes", "others_percent": "other processes use"}
"""By fact, who takes the cores of a rank."""
_BUSY: Final = 25.0
"""Percent of the cores of a host from which on that is worth a remark, whoever is slow."""
_THROTTLED: Final = 0.05
"""The same of the time for which a control group is kept from running."""
_LOWER: Final = 0.85
"""Part of what others have, such as the frequency of a core, from which on downwards that is a reason."""
_OF_CORES: Final = {
    "cores": "it may run on fewer cores than others ({:.0f}, others on {:.0f})",
    "mhz": "its core runs at {:,.0f} MHz, others at {:,.0f}",
}
_OF_BOARD: Final = {
    "mhz": "its device runs at {:,.0f} MHz, others at {:,.0f}",
    "lanes": "its device has {:.0f} lanes of PCIe, others {:.0f}",
}
"""By fact, what is said where it is lower than that of others."""


def is_of_disk(name: str) -> bool:
    """Say whether an experiment writes or reads files."""
    return name.startswith(("disk", "checkpoint"))


def suspected(probe: Probe) -> dict[int, tuple[int, list[str]]]:
    """Return the ranks that look slow, the slowest first: the rank to compare each with, and its slow experiments."""
    looks, found = _Looks(probe.ranks), []
    for rank in probe.ranks:
        if (names := looks.slow(rank)) and (others := looks.sound(names[0])):
            # The one in the middle, of the same host where there is one.
            near = [each for each in others if each.host == rank.host] or others
            near.sort(key=lambda each: typical(each.alone.rates[names[0]]) or 0.0)
            lack = max(looks.first[name][rank.rank] for name in names)
            found.append((lack, rank.rank, near[len(near) // 2].rank, names))
    return {rank: (peer, names) for _, rank, peer, names in sorted(found, key=lambda each: -each[0])}


def judge(probe: Probe) -> None:
    """Say what was found, in `sentences` and `notes`."""
    slow, unsure = _slow(probe.ranks)
    limited = _limited(probe)
    blamed = {rank for rank, name in slow if not is_of_disk(name)}
    crowded, probe.notes = _crowded(probe)
    probe.notes += _taken(probe)
    sentences = _sentences(slow, probe.ranks)
    sentences += [text for rank, text in limited.items() if rank not in blamed]
    sentences += crowded + _of_connections(probe, blamed | limited.keys())
    if not sentences and unsure:
        sentences = [f"{UNSURE}: {ranks_in_spans(unsure)} looked slow, and not in enough other looks; probe again"]
    single = "a single rank has none to be compared with"
    probe.sentences = sentences or [single if len(probe.ranks) < 2 else NOTHING]


# Ranks


class _Rate(NamedTuple):
    """The usual rate of a rank in an experiment."""

    place: tuple[object, ...]
    """The share of a host that the rank has: its cores, its control group, its niceness."""
    rate: float
    on_core: float
    """The same for the time in which the rank had a core."""


def _rate_of(name: str, rank: Rank, done: Experiments) -> _Rate | None:
    """Return the usual rate of an experiment; None where it was not made."""
    rates, ran = done.rates.get(name, []), done.ran.get(name, [])
    if not rates:
        return None
    facts, rate = rank.facts, statistics.median(rates)
    place = (rank.rank,) if facts is None else (rank.host, facts.which, facts.group, facts.nice)
    on_core = typical([each / max(part, 0.05) for each, part in zip(rates, ran, strict=False)])
    return _Rate(place, rate, on_core or rate)


def _lacks(name: str, done: Iterable[tuple[Rank, Experiments]]) -> dict[int, float]:
    """Return the part of the others' rate that each rank lacks in an experiment, where there are others.

    Of two with the same share of a host chance decides which one waits for a core, and not what they are.
    """
    rates = {rank.rank: rate for rank, each in done if (rate := _rate_of(name, rank, each)) is not None and rate.rate}
    found, known = {}, list(rates.values())
    # By twos, a million of them where there are a thousand ranks.
    for at, (rank, (own, fast, faster)) in enumerate(rates.items()):
        others = known[:at] + known[at + 1 :]
        parts = [faster / on_core if place == own else fast / rate for place, rate, on_core in others]
        if parts:
            found[rank] = 1 - statistics.median(parts)
    return found


class _Looks:
    """The looks at some ranks: one at each, and more at those that looked slow in that and at some others."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks
        self.first = {name: _lacks(name, ((rank, rank.alone) for rank in ranks)) for name in LESS}
        """By experiment and rank, the part of the others' rate that the rank lacked at first."""

    def slow(self, rank: Rank) -> list[str]:
        """Return the experiments in which a rank looks slow at first."""
        return [name for name, less in LESS.items() if self.first[name].get(rank.rank, 0.0) >= less]

    def sound(self, name: str) -> list[Rank]:
        """Return the ranks that were not slow at first in an experiment."""
        lacks, less = self.first[name], LESS[name]
        return [each for each in self._ranks if lacks.get(each.rank, less) < less]

    def again(self, name: str, rank: Rank) -> list[float]:
        """Return what a rank lacked in each other look, by those that are not slow and were looked at with it."""
        ranks = [rank, *self.sound(name)]
        turns = ([(each, each.again[at]) for each in ranks if at < len(each.again)] for at in range(len(rank.again)))
        found = (_lacks(name, turn).get(rank.rank) for turn in turns)
        return [lack for lack in found if lack is not None]


def _slow(ranks: Sequence[Rank]) -> tuple[dict[tuple[int, str], float], list[int]]:
    """Return the part that a rank lacks by rank and experiment, where it was slow each time; and the unsure ranks."""
    looks, slow, unsure = _Looks(ranks), dict[tuple[int, str], float](), list[int]()
    for rank in ranks:
        for name in looks.slow(rank):
            less, later = LESS[name], looks.again(name, rank)
            is_known, usual = len(later) >= LEAST_AGAIN, typical(later) or 0.0
            if is_known and usual >= less and min(later) >= 0.6 * less:
                slow[rank.rank, name] = statistics.median([looks.first[name][rank.rank], *later])
            elif not is_known or usual >= less:
                unsure.append(rank.rank)
    return slow, unsure


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _sentences(slow: Mapping[tuple[int, str], float], ranks: Sequence[Rank]) -> list[str]:
    """Return a sentence for ranks of one host that are slow in the same experiment, and for the same reason."""
    several, by_rank = len({rank.host for rank in ranks}) > 1, {rank.rank: rank for rank in ranks}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number, name in slow:
        rank = by_rank[number]
        groups.setdefault((rank.host, name, _reason(rank, name, ranks)), []).append(number)
    found = []
    for (host, name, reason), members in groups.items():
        part, who = statistics.mean(slow[each, name] for each in members), ranks_in_spans(members)
        where = f"{who} ({host})" if several else who
        text = f"{where} {_WORDS[name][len(members) > 1]} {_percent(part)} slower than the others"
        found.append((part, f"{text}: {reason}" if reason else text))
    return [text for _, text in sorted(found, key=lambda each: -each[0])]


def _reason(rank: Rank, name: str, ranks: Iterable[Rank]) -> str:
    """Return the likely reason why a rank is slow in an experiment; empty where the circumstances show none."""
    facts = rank.facts
    if facts is None or is_of_disk(name):
        return ""
    others = [each.facts for each in ranks if each is not rank and each.facts is not None]
    found = []
    if (said := _of_quota(facts)) and not all(map(_of_quota, others)):
        found.append(said)
    if said := _of_rivals(facts, others):
        found.append(said)
    found += _lower(facts, others, _OF_CORES)
    if facts.overheated:
        found.append(f"its processor was slowed down for heat, {plural(facts.overheated, 'time')}")
    if (board := facts.board) is not None and name == "compute":
        if board.throttled:
            found.append(f"the clock of its device is held back ({', '.join(board.throttled)})")
        found += _lower(board, [each.board for each in others if each.board is not None], _OF_BOARD)
        if board.errors:
            found.append(f"its device has {plural(board.errors, 'memory error')}")
    if facts.swapped and facts.swap_reads:
        found.append(f"it is swapped out ({size(facts.swapped)})")
    return "; ".join(found[:2])


def _of_rivals(facts: Facts, others: Sequence[Facts]) -> str:
    """Return who takes the cores of a rank; empty where that is so of all that have the same cores."""
    alike = [each for each in others if each.which == facts.which]
    taken = {name: getattr(facts, name) or 0.0 for name in _TAKEN}
    if all(part - _usually(alike, name) < _SHARED for name, part in taken.items()):
        return ""
    steal, busy = taken.values()
    said = [facts.rivals or f"others use {busy:.0f} %"] if facts.rivals or busy >= _SHARED else []
    said += [f"load {facts.load:.1f}"] if facts.load is not None else []
    said += [f"steal {steal:.0f} %"] if steal >= _SHARED else []
    return f"its cores are shared ({', '.join(said)})"


def _usually(facts: Iterable[Facts], name: str) -> float:
    """Return the part of their cores that ranks usually lose, 0 where that is not known."""
    return typical([getattr(each, name) or 0.0 for each in facts]) or 0.0


def _lower(own: Facts | Board, others: Sequence[Facts | Board], texts: Mapping[str, str]) -> list[str]:
    """Return what is said of the facts that are lower than those of others."""
    found = []
    for name, text in texts.items():
        value, usual = getattr(own, name), typical([known for each in others if (known := getattr(each, name))])
        if value and usual and value <= _LOWER * usual:
            found.append(text.format(value, usual))
    return found


def _limited(probe: Probe) -> dict[int, str]:
    """Return a sentence for each rank that its control group keeps from running, where not all are kept so."""
    said = {rank.rank: _of_quota(rank.facts) for rank in probe.ranks if rank.facts is not None}
    found = {rank: f"rank {rank}: {text}" for rank, text in said.items() if text}
    return found if len(found) < len(probe.ranks) else {}


def _of_quota(facts: Facts) -> str:
    """Return how a control group keeps a rank from running; empty where it does not."""
    throttled = (facts.throttled_ms or 0) >= _THROTTLED * 1e3 * facts.took_s
    if not throttled and (facts.quota is None or facts.quota >= (facts.threads or 1)):
        return ""
    of = f" to {facts.quota:g} {'core' if facts.quota == 1 else 'cores'}" if facts.quota is not None else ""
    kept = (
        f", and was kept from running for {facts.throttled_ms:,} ms of {1e3 * facts.took_s:,.0f}" if throttled else ""
    )
    return f"its control group is limited{of}{kept}"


def _crowded(probe: Probe) -> tuple[list[str], list[str]]:
    """Return what is said of ranks that share fewer cores: sentences where others lose less by it, or else notes."""
    places: dict[tuple[str, str], list[Rank]] = {}
    for rank in probe.ranks:
        if rank.facts is not None and rank.facts.which:
            places.setdefault((rank.host, rank.facts.which), []).append(rank)
    sentences, notes = list[str](), list[str]()
    for (host, which), members in places.items():
        cores, lost = members[0].facts.cores if members[0].facts is not None else None, _lost(members)
        if cores is None or len(members) <= cores or lost is None or lost < 0.2:
            continue
        one = f"core {which}" if cores == 1 else f"cores {which}"
        text = f"{ranks_in_spans(rank.rank for rank in members)}{f' ({host})' if host else ''} share {one}"
        rest = _lost([rank for rank in probe.ranks if rank not in members])
        said = sentences if rest is not None and lost >= 2 * rest else notes
        said.append(f"{text}: together each computes {_percent(lost)} slower than alone")
    return sentences, notes


def _lost(ranks: Iterable[Rank]) -> float | None:
    """Return the part of their rate alone that ranks lack together, as usual among them."""
    lost = [
        1 - together / alone
        for rank in ranks
        if (alone := typical(rank.alone.rates.get("compute", [])))
        and (together := typical(rank.together.rates.get("compute", [])))
    ]
    return typical(lost)


def _taken(probe: Probe) -> list[str]:
    """Return who takes the cores of all ranks of a host."""
    notes = []
    for host in dict.fromkeys(rank.host for rank in probe.ranks):
        facts = [rank.facts for rank in probe.ranks if rank.host == host and rank.facts is not None]
        for name, who in _TAKEN.items():
            if (part := _usually(facts, name)) >= _BUSY:
                notes.append(f"{f'{host}: ' if host else ''}{who} {part:.0f} % of the cores of the ranks")
    return notes


# Connections


class _Usual:
    """The usual seconds of the messages of some connections, at first or again."""

    def __init__(self, alike: Sequence[Connection], *, again: bool = False) -> None:
        self._names = ("again_s", "small_again_s") if again else ("large_s", "small_s")
        known = ([took for each in alike if (took := typical(getattr(each, name)))] for name in self._names)
        self.large_s, self.small_s = (statistics.median_low(each) if each else 0.0 for each in known)

    def late(self, connection: Connection) -> set[str]:
        """Return the messages of a connection, `large` or `small`, that take longer."""
        large_s, small_s = (typical(getattr(connection, name)) or 0.0 for name in self._names)
        found = {"large"} if 0 < self.large_s <= CARRIES * large_s else set()
        return found | ({"small"} if 0 < 3 * self.small_s <= small_s and small_s - self.small_s >= SLOW_S else set())


def _alike(probe: Probe) -> tuple[list[Connection], list[Connection]]:
    """Return the connections that are compared with each other: those between hosts, and those within them."""
    ranks = {each.rank: each for each in probe.ranks}
    between, within = [], []
    for each in probe.connections:
        sender, receiver = ranks[each.sender], ranks[each.receiver]
        if sender.host != receiver.host:
            between.append(each)
        # Between processors that share the cores of a host chance decides, and not the way.
        elif "host" in sender.alone.rates and "host" in receiver.alone.rates:
            within.append(each)
    return between, within


def suspected_connections(probe: Probe) -> list[tuple[Connection, Connection]]:
    """Return the connections that look slow, the slowest first, each with the one to compare it with."""
    found = []
    for alike in _alike(probe):
        late = _Usual(alike).late
        if sound := sorted((each for each in alike if not late(each)), key=speed):
            found += [(each, sound[len(sound) // 2]) for each in alike if late(each)]
    return sorted(found, key=lambda each: speed(each[0]))


def _of_connections(probe: Probe, blamed: set[int]) -> list[str]:
    """Return a sentence for each connection that is slow each time, or for a host with which all are."""
    ranks, found = {each.rank: each for each in probe.ranks}, list[tuple[float, str]]()
    for is_between, alike in zip((True, False), _alike(probe), strict=True):
        first = _Usual(alike)
        later = _Usual([each for each in alike if not first.late(each)], again=True)
        # The messages of a rank that computes slowly are late for that reason.
        judged = [each for each in alike if not {each.sender, each.receiver} & blamed]
        slow = [(each, by) for each in judged if (by := first.late(each) & later.late(each))]
        for rank in probe.ranks:
            of_rank = [each for each in alike if rank.rank in (each.sender, each.receiver)]
            # Of a pair it may be either one.
            if len(of_rank) > 2 and all(any(each is late for late, _ in slow) for each in of_rank):
                part = first.large_s / statistics.median(typical(each.large_s) or 0.0 for each in of_rank)
                who, others = (rank.host, "hosts") if is_between else (f"rank {rank.rank}", "ranks")
                found.append((part, f"{who} carries {_percent(part)} of what other {others} do, with each of them"))
                slow = [each for each in slow if not any(each[0] is one for one in of_rank)]
        for each, by in slow:
            sender, receiver, took = ranks[each.sender], ranks[each.receiver], typical(each.large_s) or 0.0
            part = first.large_s / took if took else 1.0
            ends = (sender.host, receiver.host) if is_between else (f"rank {sender.rank}", f"rank {receiver.rank}")
            text = f"{ends[0]} to {ends[1]} carries {_percent(part)} of what other pairs do"
            if "large" not in by:
                own, usual = 1e3 * (typical(each.small_s) or 0.0), 1e3 * first.small_s
                text = f"small messages from {ends[0]} to {ends[1]} take {own:.1f} ms, others {usual:.1f} ms"
            if is_between and sender.resent:
                text += f": {sender.host} has sent {plural(sender.resent, 'segment')} of TCP again"
            found.append((part, text))
    return [text for _, text in sorted(found)]

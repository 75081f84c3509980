"""What a probe has found: the ranks and connections that are slower than their like, and the likely reason. Pure.

The experiments that each rank makes alone are the evidence: together, ranks that share cores differ by chance.  What
looks slow is measured once more, beside one of its like, and is named only where it is slow again: so that a machine
that is busy for a moment names nobody.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.text import plural, ranks_in_spans, size
from ddptop.agent.wire import Board, Facts

LESS: Final[Mapping[str, float]] = {
    "compute": 0.25, "host": 0.25, "memory": 0.35, "upload": 0.35,
    "disk_write": 0.7, "disk_read": 0.7, "checkpoint_write": 0.7, "checkpoint_read": 0.7,
}  # fmt: skip
"""By experiment, the part by which a rank is slower than its like from which on it is named.

They are what is worth a look: beside ten other processes on two cores a healthy rank alone lacked up to 68 % of the
other's rate of products, and 82 % of that of copies, by the wall clock. Nobody was named in 20 of 20 probes there,
because none was slow for the time in which it had a core, each time (`tests/bench/faulty/probes.py`).
"""
LEAST_AGAIN: Final = 2
"""Times that a rank that looks slow is to be slow again."""
CARRIES: Final = 0.6
"""Part of what others carry from which on downwards a connection is named."""
SLOW_S: Final = 0.002
"""Seconds by which a small message is later than between others, and it takes three times as long, too."""
WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "compute": ("computes", "compute"),
    "host": ("computes on its host", "compute on their host"),
    "memory": ("copies memory", "copy memory"),
    "upload": ("copies to its device", "copy to their devices"),
    "disk_write": ("writes to the disk of the run", "write to the disk of the run"),
    "disk_read": ("reads from the disk of the run", "read from the disk of the run"),
    "checkpoint_write": ("writes to the disk of the checkpoints", "write to the disk of the checkpoints"),
    "checkpoint_read": ("reads from the disk of the checkpoints", "read from the disk of the checkpoints"),
}
"""By experiment, its verb for one rank and for several."""
NOTHING: Final = "no difference: look at the code"
UNSURE: Final = "no sure difference"
"""The beginning of a sentence that says why another probe would be better."""
_UNITS: Final = {"compute": "GFLOP/s", "host": "GFLOP/s", "memory": "GB/s"}
"""By experiment of the cores, the unit of a billion."""
_STEADY: Final = 0.5
"""Part of a rank's own best rate below which no look at it may be: otherwise the cores are too busy to say anything."""
_SHARED: Final = 10.0
"""Percent of a rank's cores that others use, or that the hypervisor takes, from which on that is a reason."""
_TAKEN: Final = {"steal_percent": "the hypervisor takes", "others_percent": "other processes use"}
"""By fact, who takes the cores of a rank."""
_BUSY: Final = 25.0
"""Percent of the cores of a host from which on that is worth a remark, whoever is slow."""
_THROTTLED: Final = 0.05
"""The same of the time for which a control group is kept from running."""
_CLOCK: Final = 0.85
"""Part of another one's frequency from which on downwards that is a reason."""

Values = dict[str, list[float]]
"""By experiment, its measurements in the order of time."""


class Experiments(msgspec.Struct):
    """The experiments of a rank in one go."""

    rates: Values = {}
    """Of floating-point operations a second for `compute` and `host`, of bytes a second for all others."""
    ran: Values = {}
    """By measurement, the part of its time in which the rank did not wait for a core; empty where that is not known."""


class Rank(msgspec.Struct):
    """The experiments of one rank."""

    rank: int
    host: str = ""
    alone: Experiments = msgspec.field(default_factory=Experiments)
    together: Experiments = msgspec.field(default_factory=Experiments)
    again: list[Experiments] = []
    """Alone some more times, where it looked slow or is compared with one that did."""
    facts: Facts | None = None
    """While it was alone."""
    closer: Facts | None = None
    """While it was alone once more for the first time."""
    resent: int | None = None
    """Segments of TCP that its host has sent again while messages were sent."""
    problem: str = ""


class Connection(msgspec.Struct):
    """The messages from one rank to another."""

    sender: int
    receiver: int
    size: int
    """Bytes of a large message."""
    large_s: list[float]
    small_s: list[float]
    again_s: list[float] = []
    """Of large ones once more, where it looked slow or is compared with one that did."""
    small_again_s: list[float] = []


class Probe(msgspec.Struct):
    """A probe and what it has found."""

    run: str
    step: int
    at: float
    """Seconds since the epoch."""
    took_s: float = 0.0
    """Seconds for which the ranks were held for it."""
    sentences: list[str] = []
    """The differences, the most important first; one that says so where there is none."""
    notes: list[str] = []
    """What is worth knowing and makes no rank slower than another one."""
    left_out: list[str] = []
    ranks: list[Rank] = []
    connections: list[Connection] = []
    small_s: list[float] = []
    """Seconds of small messages of the whole group."""
    large_s: list[float] = []
    """Seconds of large ones."""
    large_size: int = 0


class _Rate(NamedTuple):
    """The usual rate of a rank in an experiment."""

    place: int
    """Number of the share of a host that the rank has, see `_place`; of one that is not known its own."""
    rate: float
    on_core: float
    """The same for the time in which the rank had a core."""


def _rate_of(name: str, done: Experiments, place: int) -> _Rate | None:
    """Return the usual rate of an experiment; None where it was not made."""
    rates, ran = done.rates.get(name, []), done.ran.get(name, [])
    on_core = [rate / max(part, 0.05) for rate, part in zip(rates, ran, strict=False)]
    rate = typical(rates)
    return _Rate(place, rate, typical(on_core) or rate) if rate else None


def _compared(rates: Mapping[int, _Rate]) -> dict[int, float]:
    """Return the part of the others' rate that each rank lacks, where there are others.

    Of two with the same share of a host chance decides which one waits for a core, and not what they are.
    """
    found, known = {}, list(rates.values())
    # By twos, a million of them where there are a thousand ranks.
    for at, (rank, (own, fast, faster)) in enumerate(rates.items()):
        others = known[:at] + known[at + 1 :]
        parts = [faster / on_core if place == own else fast / rate for place, rate, on_core in others]
        if parts:
            found[rank] = 1 - statistics.median(parts)
    return found


class _Lacks:
    """By experiment and rank, the part of the others' rate that a rank lacks."""

    def __init__(self, probe: Probe) -> None:
        self.ranks = probe.ranks
        numbers: dict[tuple[object, ...], int] = {}
        self._places = {
            rank.rank: -1 - rank.rank if (place := _place(rank)) is None else numbers.setdefault(place, len(numbers))
            for rank in probe.ranks
        }
        self._found: dict[tuple[str, bool], dict[int, float]] = {}

    def of(self, name: str, rank: Rank, *, together: bool = False) -> float:
        """Return it for an experiment alone, or together with the others; 0 where it is not known."""
        if (name, together) not in self._found:
            done = {each.rank: each.together if together else each.alone for each in self.ranks}
            self._found[name, together] = _compared(self._rates(name, done))
        return self._found[name, together].get(rank.rank, 0.0)

    def again(self, name: str, rank: Rank) -> list[float]:
        """Return it for each other look at a rank, by those that are not slow and were looked at with it."""
        sound = [each for each in self.ranks if each is rank or self.of(name, each) < LESS[name]]
        looks = (
            {each.rank: each.again[turn] for each in sound if turn < len(each.again)} for turn in range(len(rank.again))
        )
        found = (_compared(self._rates(name, done)).get(rank.rank) for done in looks)
        return [lack for lack in found if lack is not None]

    def slow(self, rank: Rank) -> list[str]:
        """Return the experiments in which a rank looks slow at first."""
        return [name for name, less in LESS.items() if self.of(name, rank) >= less]

    def _rates(self, name: str, done: Mapping[int, Experiments]) -> dict[int, _Rate]:
        found = {rank: _rate_of(name, each, self._places[rank]) for rank, each in done.items()}
        return {rank: rate for rank, rate in found.items() if rate is not None}


class Suspect(NamedTuple):
    """A rank that looks slow."""

    peer: int
    """The rank that it is to be compared with."""
    names: list[str]
    """The experiments in which it looks slow."""


def suspected(probe: Probe) -> dict[int, Suspect]:
    """Return the ranks that look slow, the slowest first."""
    lacks, found = _Lacks(probe), []
    for rank in probe.ranks:
        slow = lacks.slow(rank)
        if slow and (peer := _ordinary(slow[0], rank, lacks)) is not None:
            found.append((max(lacks.of(name, rank) for name in slow), rank.rank, Suspect(peer, slow)))
    return {rank: suspect for _, rank, suspect in sorted(found, key=lambda each: -each[0])}


def is_of_disk(name: str) -> bool:
    """Say whether an experiment writes or reads files."""
    return name.startswith(("disk", "checkpoint"))


def suspected_connections(probe: Probe) -> list[Connection]:
    """Return the connections that look slow."""
    ways = _Ways(probe)
    return [each for each in probe.connections if ways.slow_by(each)]


def ordinary_connection(probe: Probe, slow: Connection) -> Connection | None:
    """Return the connection in the middle of those that one is compared with."""
    alike = sorted(_Ways(probe).alike(slow), key=_speed)
    return alike[len(alike) // 2] if alike else None


def judge(probe: Probe) -> None:
    """Say what was found, in `sentences` and `notes`."""
    lacks = _Lacks(probe)
    slow = {rank.rank: by for rank in probe.ranks if (by := _slow(rank, lacks))}
    blamed = {rank for rank, by in slow.items() if {"compute", "host"} & by.keys()}
    limited = _limited(probe)
    sentences = _sentences(slow, lacks)
    sentences += [text for rank, text in limited.items() if rank not in blamed]
    sentences += _shared(probe, blamed)
    sentences += _of_connections(probe, blamed | limited.keys())
    probe.notes = _notes(probe)
    probe.sentences = sentences or [_nothing(probe, lacks)]


def _nothing(probe: Probe, lacks: _Lacks) -> str:
    if len(probe.ranks) < 2:
        return "a single rank has none to be compared with"
    unsure = [rank.rank for rank in probe.ranks if lacks.slow(rank) and len(rank.again) < LEAST_AGAIN]
    if unsure:
        return f"{UNSURE}: there was no time for another look at {ranks_in_spans(unsure)}; probe again"
    return _unsteady(probe) or NOTHING


def _unsteady(probe: Probe) -> str:
    """Say that one look at a rank differs from another by too much; empty where that is so of none."""
    for rank in probe.ranks:
        for name, unit in _UNITS.items():
            looks = (typical(done.rates.get(name, [])) for done in (rank.alone, *rank.again))
            rates = [rate / 1e9 for rate in looks if rate is not None]
            if rates and min(rates) < _STEADY * max(rates):
                facts = rank.closer or rank.facts
                reasons = [] if facts is None else _of_cores(facts, [])
                said = f"rank {rank.rank} {WORDS[name][0]} now at {min(rates):.3g}, now at {max(rates):.3g} {unit}"
                return f"{UNSURE}: {': '.join([said, *reasons[:1]])}; probe again"
    return ""


# Ranks


def typical(values: Sequence[float]) -> float | None:
    """Return the median; None where there is none."""
    return statistics.median(values) if values else None


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _place(rank: Rank) -> tuple[object, ...] | None:
    """Return the share of a host that a rank has: its cores, its control group, its niceness. None: not known."""
    facts = rank.facts
    return None if facts is None else (rank.host, facts.which, facts.group, facts.nice)


def _ordinary(name: str, rank: Rank, lacks: _Lacks) -> int | None:
    """Return the rank in the middle of the others, on the same host where there is one that is not slow."""
    sound = [each for each in lacks.ranks if each.alone.rates.get(name) and lacks.of(name, each) < LESS[name]]
    near = [each for each in sound if each.host == rank.host] or sound
    near.sort(key=lambda each: typical(each.alone.rates[name]) or 0.0)
    return near[len(near) // 2].rank if near else None


def _slow(rank: Rank, lacks: _Lacks) -> dict[str, float]:
    """Return the experiments in which a rank was slow each time, with the part of the others' rate that it lacks."""
    by = {}
    for name in lacks.slow(rank):
        less, later = LESS[name], lacks.again(name, rank)
        if len(later) >= LEAST_AGAIN and min(later) >= 0.6 * less and statistics.median(later) >= less:
            by[name] = statistics.median([lacks.of(name, rank), *later])
    return by


def _sentences(slow: Mapping[int, Mapping[str, float]], lacks: _Lacks) -> list[str]:
    """Return a sentence for ranks of one host that are slow in the same way, and for the same reason."""
    several = len({rank.host for rank in lacks.ranks}) > 1
    groups: dict[tuple[str, tuple[str, ...], str, bool], list[int]] = {}
    for rank in lacks.ranks:
        if names := tuple(slow.get(rank.rank, ())):
            together = lacks.of(names[0], rank, together=True) >= 0.1
            key = rank.host, names, _reason(rank, names, lacks.ranks), together
            groups.setdefault(key, []).append(rank.rank)
    found = []
    for (host, names, reason, together), members in groups.items():
        by = {name: statistics.mean(slow[each][name] for each in members) for name in names}
        first, *rest = (f"{WORDS[name][len(members) > 1]} {_percent(by[name])} slower" for name in names)
        # The verb of what is next to it needs no comparison of its own.
        text = f"{ranks_in_spans(members)}{f' ({host})' if several else ''} {first} than the others"
        text += "".join(f" and {each}" for each in rest)
        if not is_of_disk(names[0]):
            text += ", alone and together" if together else ", alone"
        found.append((max(by.values()), f"{text}{f': {reason}' if reason else ''}"))
    return [text for _, text in sorted(found, key=lambda each: -each[0])]


def _reason(rank: Rank, names: Collection[str], ranks: Iterable[Rank]) -> str:
    """Return the likely reason why a rank is slow in these experiments; empty where the circumstances show none."""
    facts = rank.closer or rank.facts
    if facts is None:
        return ""
    others = [each.facts for each in ranks if each is not rank and each.facts is not None]
    reasons: list[str] = []
    if not _UNITS.keys().isdisjoint(names):
        reasons += _of_cores(facts, others)
    if {"compute", "upload"} & set(names) and facts.board is not None:
        reasons += _of_board(facts.board, others)
    if facts.swapped and facts.swap_reads:
        reasons.append(f"it is swapped out ({size(facts.swapped)})")
    if any(map(is_of_disk, names)) and not reasons and rank.host:
        reasons.append("its host has another disk, or others write to it")
    return "; ".join(reasons[:2])


def _of_cores(facts: Facts, others: Sequence[Facts]) -> list[str]:
    found = []
    if (said := _of_quota(facts)) and not all(_of_quota(each) for each in others):
        found.append(said)
    taken = [f"load {facts.load:.1f}"] if facts.load is not None else []
    steal, busy = facts.steal_percent or 0.0, facts.others_percent or 0.0
    if steal >= _SHARED:
        taken.append(f"steal {steal:.0f} %")
    # Where they have the same cores as all others, these suffer from it as much.
    has_own = facts.which not in {each.which for each in others}
    usual_steal, usual_busy = (0.0, 0.0) if has_own else (_usual_percent(others, name) for name in _TAKEN)
    if busy - usual_busy >= _SHARED or steal - usual_steal >= _SHARED:
        who = facts.rivals or (f"others use {busy:.0f} %" if busy >= _SHARED else "")
        found.append(f"its cores are shared ({', '.join([who, *taken] if who else taken)})")
    usual = _usual(each.mhz for each in others)
    if facts.mhz and usual and facts.mhz <= _CLOCK * usual:
        found.append(f"its core runs at {facts.mhz:,.0f} MHz, others at {usual:,.0f}")
    if facts.overheated:
        found.append(f"its processor was slowed down for heat, {plural(facts.overheated, 'time')}")
    cores = _usual(each.cores for each in others)
    if facts.cores and facts.threads and cores and facts.cores < min(facts.threads, cores):
        found.append(f"it may run on {plural(facts.cores, 'core')} ({facts.which}), with {facts.threads} threads")
    return found


def _usual(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are known, and not 0."""
    return typical([each for each in values if each])


def _usual_percent(facts: Iterable[Facts], name: str) -> float:
    """Return the part of their cores that ranks usually lose, 0 where that is not known."""
    return typical([getattr(each, name) or 0.0 for each in facts]) or 0.0


def _of_board(board: Board, others: Sequence[Facts]) -> list[str]:
    found = []
    if board.throttled:
        found.append(f"the clock of its device is held back ({', '.join(board.throttled)})")
    boards = [each.board for each in others if each.board is not None]
    usual = _usual(each.mhz for each in boards)
    if board.mhz and usual and board.mhz <= _CLOCK * usual:
        found.append(f"its device runs at {board.mhz:,.0f} MHz, others at {usual:,.0f}")
    if board.errors:
        found.append(f"its device has {plural(board.errors, 'memory error')}")
    lanes = _usual(each.lanes for each in boards)
    if board.lanes and lanes and board.lanes < lanes:
        found.append(f"its device has {board.lanes} lanes of PCIe, others {lanes:.0f}")
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


def _shared(probe: Probe, blamed: set[int]) -> list[str]:
    """Return a sentence for ranks that have to share fewer cores than other ranks of the run have."""
    places: dict[tuple[str, str], list[Rank]] = {}
    for rank in probe.ranks:
        if rank.facts is not None and rank.facts.which:
            places.setdefault((rank.host, rank.facts.which), []).append(rank)
    found = []
    for (host, which), members in places.items():
        cores = members[0].facts.cores if members[0].facts is not None else None
        least = [rank for rank in members if rank.rank not in blamed]
        if cores is None or not least or len(members) <= cores or len(places) < 2:
            continue
        lost = _lost(members)
        rest = _lost([rank for rank in probe.ranks if rank not in members])
        if lost is not None and rest is not None and lost >= 0.25 and lost >= 2 * rest:
            one = f"core {which}" if cores == 1 else f"cores {which}"
            found.append(
                f"{ranks_in_spans(rank.rank for rank in members)}{f' ({host})' if host else ''} share {one}: "
                f"together they compute {_percent(lost)} slower than alone, the others {_percent(max(0.0, rest))}"
            )
    return found


def _lost(ranks: Iterable[Rank]) -> float | None:
    """Return the part of their rate alone that ranks lack together, as usual among them."""
    lost = [
        1 - together / alone
        for rank in ranks
        if (alone := typical(rank.alone.rates.get("compute", [])))
        and (together := typical(rank.together.rates.get("compute", [])))
    ]
    return typical(lost)


def _notes(probe: Probe) -> list[str]:
    """Return what all ranks of a host have in common, and the circumstances that nobody suffers from yet."""
    notes = []
    for host in dict.fromkeys(rank.host for rank in probe.ranks):
        where = f"{host}: " if host else ""
        members = [rank for rank in probe.ranks if rank.host == host]
        cores = {rank.facts.cores for rank in members if rank.facts is not None}
        lost = _lost(members) or 0.0
        if len(cores) == 1 and (number := next(iter(cores))) and len(members) > number and lost >= 0.2:
            notes.append(
                f"{where}{plural(len(members), 'rank')} share {plural(number, 'core')}; "
                f"together each computes {_percent(lost)} slower than alone"
            )
        elif lost >= 0.3:
            notes.append(f"{where}together each computes {_percent(lost)} slower than alone")
        for name, who in _TAKEN.items():
            if (taken := _usual_percent([rank.facts for rank in members if rank.facts is not None], name)) >= _BUSY:
                notes.append(f"{where}{who} {taken:.0f} % of the cores of the ranks")
        for rank in members:
            board = rank.facts.board if rank.facts is not None else None
            if board is not None and board.errors:
                notes.append(f"rank {rank.rank}: {plural(board.errors, 'memory error')} of its device")
    return notes


# Connections


def _speed(connection: Connection) -> float:
    """Return bytes a second."""
    took = typical(connection.large_s)
    return connection.size / took if took else 0.0


class _Ways:
    """The connections of a probe by their kind: between hosts, or within one."""

    def __init__(self, probe: Probe) -> None:
        self._ranks = {each.rank: each for each in probe.ranks}
        self.within: list[Connection] = []
        self.between: list[Connection] = []
        for each in probe.connections:
            (self.between if self.is_between(each) else self.within).append(each)

    def ends(self, connection: Connection) -> tuple[Rank, Rank]:
        """Return the rank that sends, and the one that receives."""
        return self._ranks[connection.sender], self._ranks[connection.receiver]

    def is_between(self, connection: Connection) -> bool:
        """Say whether it goes from one host to another."""
        sender, receiver = self.ends(connection)
        return sender.host != receiver.host

    def alike(self, connection: Connection) -> list[Connection]:
        """Return the others of its kind."""
        if self.is_between(connection):
            return [each for each in self.between if each is not connection]
        # Between processors that share the cores of a host chance decides, and not the way.
        places = {None if "host" in each.alone.rates else _place(each) for each in self.ends(connection)}
        is_chance = len(places) == 1 and None not in places
        return [] if is_chance else [each for each in self.within if each is not connection]

    def carries(self, connection: Connection) -> float:
        """Return the part that a connection carries of what others of its kind do."""
        own, usual = _times(connection, "large_s", self.alike(connection))
        return usual / own if own and usual else 1.0

    def slow_by(self, connection: Connection, *, again: bool = False) -> set[str]:
        """Return the messages, `large` or `small`, by which a connection is slower than others of its kind."""
        found, alike = set(), self.alike(connection)
        own, usual = _times(connection, "again_s" if again else "large_s", alike)
        if own and usual and usual / own <= CARRIES:
            found.add("large")
        own, usual = _times(connection, "small_again_s" if again else "small_s", alike)
        if own is not None and usual is not None and own >= 3 * usual and own - usual >= SLOW_S:
            found.add("small")
        return found

    def slow_each_time(self, connection: Connection) -> set[str]:
        """Return those by which it was slow at first and again."""
        return self.slow_by(connection) & self.slow_by(connection, again=True)


def _times(connection: Connection, times: str, alike: Iterable[Connection]) -> tuple[float | None, float | None]:
    """Return the usual one of some times of a connection, and that of others."""
    own, *others = (typical(getattr(each, times)) for each in (connection, *alike))
    return own, typical([each for each in others if each is not None])


def _of_connections(probe: Probe, blamed: set[int]) -> list[str]:
    """Return a sentence for each slow connection, or for a host with which all are slow."""
    ways = _Ways(probe)
    slow = [
        each
        for each in probe.connections
        # The messages of a rank that computes slowly are late for that reason.
        if not {each.sender, each.receiver} & blamed and ways.slow_each_time(each)
    ]
    found: list[tuple[float, str]] = []
    for host in dict.fromkeys(rank.host for rank in probe.ranks):
        of_host = [each for each in ways.between if host in (end.host for end in ways.ends(each))]
        partners = {end.host for each in of_host for end in ways.ends(each)} - {host}
        if len(partners) > 1 and all(each in slow for each in of_host):
            part = statistics.median(ways.carries(each) for each in of_host)
            found.append((part, f"{host} carries {_percent(part)} of what other hosts do, with each of them"))
            slow = [each for each in slow if each not in of_host]
    for each in slow:
        sender, receiver = ways.ends(each)
        names, resent = (f"rank {sender.rank}", f"rank {receiver.rank}"), ""
        if ways.is_between(each):
            names = sender.host, receiver.host
            resent = (
                f": {sender.host} has sent {plural(sender.resent, 'segment')} of TCP again" if sender.resent else ""
            )
        part = ways.carries(each)
        if "large" in ways.slow_each_time(each):
            text = f"{names[0]} to {names[1]} carries {_percent(part)} of what other pairs do"
        else:
            own, usual = (1e3 * (took or 0.0) for took in _times(each, "small_s", ways.alike(each)))
            text = f"small messages from {names[0]} to {names[1]} take {own:.1f} ms, others {usual:.1f} ms"
        found.append((part, f"{text}{resent}"))
    return [text for _, text in sorted(found)]

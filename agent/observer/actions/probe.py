"""A probe: holds all ranks at a step, has them make experiments alone and together, and says who is slow, and why.

Ranks of different hosts are alone at the same time.  All of it ends within ten seconds, after which the ranks go on;
what there was no time for is left out, and named.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.actions.action import NAP_S, Action, Diagnosed, Turns, aside
from ddptop.agent.observer.actions.diagnosis import check_room
from ddptop.agent.observer.actions.pause import Held, hold, let_go, renew, undone
from ddptop.agent.observer.actions.ranks import RENEW_S, Ranks
from ddptop.agent.observer.judge import probe as judge
from ddptop.agent.record import diagnoses
from ddptop.agent.text import plural, ranks_in_spans
from ddptop.agent.wire.diagnoses.probed import Connection, Experiments, Probe, Rank, typical
from ddptop.agent.wire.vocabulary.refusals import Refused

MOST_S: Final = 9.5
"""Seconds for which ranks are held at most; what goes on then ends soon, and ten are promised."""
ALONE_S: Final = 2.4
"""Seconds in which all ranks of a host make their experiments one after the other, about."""
_MS: Final = (40, 300)
"""Shortest and longest experiment."""
_AGAIN_MS: Final = 200
"""Longest experiment of another look."""
_AGAIN: Final = 3
"""Times that it is tried again."""
_EXPERIMENTS: Final = 2
"""Experiments of a rank, about, of which one is on files."""
_SILENT_S: Final = 8.0
"""Seconds for which a rank may answer nothing: its own agent may not get a core meanwhile."""
_NAP_S: Final = 0.02
_FREE: Final = 64 << 20
"""Bytes that have to be free on the disk of the run."""

QUICK: Final = 64 << 10
"""Bytes of the first messages, by which the size of the others is chosen."""
_SIZES: Final = (64 << 10, 16 << 20)
"""Smallest and largest message."""
_LARGE_S: Final = 0.03
"""Seconds that a large message of an ordinary pair takes, about."""
_LATEST_S: Final = 0.25
"""Those of the slowest pair at most."""
MOST_BETWEEN: Final = 28
"""Pairs of hosts that are tried, one after the other: those of eight hosts."""
_MOST_AGAIN: Final = 8
"""Ranks, and connections, that are tried again."""


def probe(action: Action) -> Turns[Diagnosed]:
    """Probe a run, and keep what was found.

    Raises:
        Refused: there is no probe, and why; all ranks go on.
        Cancelled: the wait was cancelled.
        Hung: the run hangs.
    """
    directory, ranks = action.directory, action.ranks
    yield from aside(partial(check_room, directory.path, _FREE))
    held = yield from hold(action)
    found = Probe(directory.name, held.step, time.time())
    found.ranks = [Rank(rank, ranks.hosts.get(rank, "")) for rank in sorted(ranks.ranks)]
    yield from undone(action, held, _all(_Parts(action, held, found)))
    yield from let_go(action, held)

    def keep() -> Diagnosed:
        judge.judge(found)
        folder = diagnoses.new(directory, "probe")
        diagnoses.write("probe", folder, found)
        return Diagnosed(folder, found.sentences[0])

    return (yield from aside(keep))


def _all(parts: _Parts) -> Turns[None]:
    began = parts.now
    yield from _own(parts)
    yield from _ranks_again(parts)
    yield from _messages(parts)
    yield from _connections_again(parts)
    parts.found.took_s = parts.now - began


class _Parts:
    """The parts of one probe, one after the other."""

    def __init__(self, action: Action, held: Held, found: Probe) -> None:
        """Begin; after `MOST_S` no other part begins."""
        self.found = found
        self.of = {each.rank: each for each in found.ranks}
        """What is found of each rank."""
        self.ranks = action.ranks
        self.order = 0
        """Order of the matrices, 0 where there is no room for any."""
        self.stretch = 1.0
        """Time that a rank has taken alone by the planned one, the longest: on a busy machine it takes longer."""
        action.is_working = True
        self._held, self._action = held, action
        self._after = "the ranks stay paused" if held.was_paused else ""
        self._until = self.now + MOST_S
        self._number = 0
        self._renew_at = self.now + RENEW_S

    @property
    def now(self) -> float:
        """Seconds by the clock of the probe."""
        return self._action.clock()

    @property
    def left_s(self) -> float:
        """Seconds in which other parts may begin."""
        return self._until - self.now

    def has_time(self, seconds: float, said: str = "") -> bool:
        """Say whether there is time for something, and note that it is left out where there is none."""
        if self.left_s >= seconds:
            return True
        if said:
            self.found.left_out.append(f"{said}, for lack of time")
        return False

    def do(
        self,
        kind: str,
        said: str,
        ranks: Collection[int] | None = None,
        *,
        takes_s: float = 0.0,
        ms: int = 0,
        size: int = 0,
        closely: bool = False,
        files: bool = True,
        rounds: tuple[tuple[wire.Pair, ...], ...] = (),
    ) -> Turns[dict[int, wire.Probed]]:
        """Have some ranks, or all, do a part, and return what each has found.

        Args:
            kind: of the part, and the other fields of its command.
            said: what is done, for all to see.
            ranks: that do it.
            takes_s: seconds that it takes, about.
            ms, size, closely, files, rounds: as in `wire.Probe`.

        Raises:
            Refused: a rank has ended, or is not held any more.
            Cancelled: the wait was cancelled.
        """
        self._action.check(self._after)
        self._number += 1
        self._action.line = f"probing: {said}"
        command = wire.Probe(
            0, self._held.token, self._number, kind, ms=ms, size=size, closely=closely, files=files, rounds=rounds
        )
        pending = list(self.of if ranks is None else ranks)
        found: dict[int, wire.Probed] = {}
        heard_at = self.now
        nap = takes_s
        while True:
            replies = yield from self.ranks.ask(command, pending)
            if gone := self.of.keys() - set(self.ranks.ranks):
                raise Refused(f"{ranks_in_spans(gone)} ended meanwhile")
            if len(replies) == len(pending):
                heard_at = self.now
            elif self.now - heard_at > _SILENT_S:
                raise Refused(f"{ranks_in_spans(set(pending) - set(replies))} did not answer within {_SILENT_S:.0f} s")
            for rank, reply in replies.items():
                if reply.done and reply.probed is not None:
                    found[rank] = reply.probed
                elif not reply.pending:
                    raise Refused(f"rank {rank}: {reply.text}")
            pending = [rank for rank in pending if rank not in found]
            if not pending:
                return found
            until, nap = self.now + nap, _NAP_S
            while True:
                self._action.check(self._after)
                if not self._held.was_paused and self.now >= self._renew_at:
                    renew(self._action, self._held)
                    self._renew_at = self.now + RENEW_S
                if (left_s := until - self.now) <= 0:
                    break
                yield min(left_s, NAP_S)


def _by_host(ranks: Iterable[Rank]) -> list[list[int]]:
    """Return the ranks of each host."""
    found: dict[str, list[int]] = {}
    for each in ranks:
        found.setdefault(each.host, []).append(each.rank)
    return list(found.values())


def _turns(ranks: Iterable[Rank]) -> list[list[int]]:
    """Return the ranks in turns: in each of them one of each host."""
    turns = itertools.zip_longest(*_by_host(ranks))
    return [[rank for rank in turn if rank is not None] for turn in turns]


def _by_problem(done: Mapping[int, wire.Probed]) -> list[tuple[str, str]]:
    """Return each problem, and the ranks that have it."""
    found: dict[str, list[int]] = {}
    for rank, probed in done.items():
        if probed.problem:
            found.setdefault(probed.problem, []).append(rank)
    return [(problem, ranks_in_spans(ranks)) for problem, ranks in found.items()]


def _own(parts: _Parts) -> Turns[None]:
    """Have each rank make its experiments alone, and all of them together."""
    found = parts.found
    rooms = yield from parts.do("room", "looking for room")
    parts.order = order = min(each.order for each in rooms.values())
    if not order:
        lacking = ranks_in_spans(rank for rank, each in rooms.items() if not each.order)
        found.left_out.append(f"the matrix product: no room on the device below its peak, of {lacking}")
    done: dict[int, wire.Probed] = {}
    turns = _turns(found.ranks)
    ms = int(max(_MS[0], min(_MS[1], 1e3 * ALONE_S / (len(turns) * _EXPERIMENTS))))
    takes_s = _EXPERIMENTS * ms / 1e3
    for number, turn in enumerate(turns):
        missing = ranks_in_spans(itertools.chain(*turns[number:]))
        if not parts.has_time(3 * takes_s, f"{missing} alone"):
            break
        said, began = f"{ranks_in_spans(turn)} alone", parts.now
        done |= yield from parts.do("own", said, turn, ms=ms, size=order, takes_s=takes_s)
        parts.stretch = max(parts.stretch, (parts.now - began) / takes_s)
    for rank, probed in done.items():
        of_rank = parts.of[rank]
        of_rank.alone, of_rank.facts, of_rank.problem = _made(probed), probed.facts, probed.problem
    found.left_out += [f"{ranks}: {problem}" for problem, ranks in _by_problem(done)]
    # Another look at a rank is worth more: two of two ranks without their files have to fit in, too.
    looks_s = judge.LEAST_AGAIN * 2 * (_EXPERIMENTS - 1) * _AGAIN_MS / 1e3
    if len(found.ranks) > 1 and parts.has_time(parts.stretch * (takes_s + looks_s), "all ranks together"):
        together = yield from parts.do("own", "all ranks together", ms=ms, size=order, takes_s=takes_s)
        for rank, probed in together.items():
            parts.of[rank].together = _made(probed)


def _ranks_again(parts: _Parts) -> Turns[None]:
    """Have the ranks that look slow try again, each beside one that does not."""
    suspected = judge.suspected(parts.found)
    if len(suspected) > _MOST_AGAIN:
        parts.found.left_out.append(f"a second look at {plural(len(suspected) - _MOST_AGAIN, 'rank')}")
    worst = dict(itertools.islice(suspected.items(), _MOST_AGAIN))
    files = any(judge.is_of_disk(name) for _, names in worst.values() for name in names)
    turns = _turns(parts.of[rank] for rank in sorted({*worst, *(peer for peer, _ in worst.values())}))
    experiments = _EXPERIMENTS if files else _EXPERIMENTS - 1
    # Shorter ones where time is short: a rank is named by two looks.
    two_s = judge.LEAST_AGAIN * len(turns) * parts.stretch * experiments
    ms = int(max(_MS[0], min(_AGAIN_MS, 1e3 * 0.8 * parts.left_s / two_s))) if turns else 0
    takes_s = experiments * ms / 1e3
    for time_ in range(_AGAIN):
        if not parts.has_time(len(turns) * parts.stretch * takes_s):
            break
        # In the other order each time: what passes meanwhile meets not always the same.
        for turn in turns[:: -1 if time_ % 2 else 1]:
            said = f"{ranks_in_spans(turn)} once more"
            # All threads of the machine are read for it, once: that takes its time, too.
            closely = time_ == 0
            done = yield from parts.do(
                "own", said, turn, ms=ms, size=parts.order, closely=closely, files=files, takes_s=takes_s
            )
            for rank, probed in done.items():
                parts.of[rank].again.append(_made(probed))
                if closely:
                    parts.of[rank].facts = probed.facts


def _connections_again(parts: _Parts) -> Turns[None]:
    """Have the connections that look slow try again, each beside one that does not."""
    found = parts.found
    worst = judge.suspected_connections(found)[:_MOST_AGAIN]
    pairs = {_pair(each) for each in itertools.chain(*worst)}
    if not pairs or not parts.has_time(2.0, f"a second look at {plural(len(pairs), 'pair')}"):
        return
    size = min(each.size for each in found.connections if _pair(each) in pairs)
    known = {(each.sender, each.receiver): each for each in found.connections}
    rounds = [[pair] for pair in sorted(pairs)]
    for _ in range(judge.LEAST_AGAIN):
        began = parts.now
        for carried in (yield from _carried(parts, "slow connections once more", rounds, size)):
            if (connection := known.get((carried.sender, carried.receiver))) is not None:
                # Another size than before, where connections of two kinds are tried.
                large_s = [took * connection.size / carried.size for took in carried.large_s]
                connection.again_s = _faster(connection.again_s, large_s)
                connection.small_again_s = _faster(connection.small_again_s, list(carried.small_s))
        rounds.reverse()
        # Another look takes about as long.
        if not parts.has_time(parts.now - began + 0.5):
            break


def _faster(one: list[float], other: list[float]) -> list[float]:
    """Return the times of the faster one of two looks: what passes makes messages slow, and never fast."""
    return min((each for each in (one, other) if each), key=_median, default=[])


def _messages(parts: _Parts) -> Turns[None]:
    """Have the ranks send messages to each other, in pairs and all of them."""
    found = parts.found
    if len(found.ranks) < 2:
        return
    if (reason := (yield from _mute(parts.ranks))) is not None:
        found.left_out.append(f"messages between ranks: {reason}")
        return
    if not parts.has_time(3.0, "messages between ranks"):
        return
    within, between = _pairs(found)
    quick = yield from _carried(parts, "quick messages", [*within, *between], QUICK)
    largest = QUICK
    for rounds, said in ((within, "within hosts"), (between, "between hosts")):
        pairs = set(itertools.chain(*rounds))
        known = [each for each in quick if _pair(each) in pairs and each.large_s]
        if not known:
            continue
        # Without what even a small message takes.
        took = [max(20e-6, _median(each.large_s) - _median(each.small_s)) for each in known]
        wanted = min(_LARGE_S, 1.5 / (6 * len(rounds)))
        many = min(wanted / _median(took), _LATEST_S / max(took))
        size = int(max(_SIZES[0], min(_SIZES[1], QUICK * many)))
        takes_s = 8 * len(rounds) * _median(took) * size / QUICK
        if not parts.has_time(takes_s + 2.0, f"large messages {said}"):
            continue
        largest = max(largest, size)
        found.connections += [
            Connection(each.sender, each.receiver, each.size, list(each.large_s), list(each.small_s))
            for each in (yield from _carried(parts, f"messages {said}", rounds, size))
        ]
    if not parts.has_time(2.0, "messages of the whole group"):
        return
    found.large_size = min(largest, 4 << 20)
    whole = yield from parts.do("group", "messages of the whole group", size=found.large_size)
    _note_problems(whole, found)
    # All wait for the slowest.
    for probed in whole.values():
        found.small_s = max(found.small_s, list(probed.small_s), key=_median)
        found.large_s = max(found.large_s, list(probed.large_s), key=_median)


def _mute(ranks: Ranks) -> Turns[str | None]:
    """Return why the group of the script cannot be used now; None where it can."""
    replies = yield from ranks.ask(wire.Inspect(0, stacks=False))
    seen = {rank: reply.inspection for rank, reply in replies.items() if reply.inspection is not None}
    if len(seen) < len(ranks.ranks):
        return f"{ranks_in_spans(set(ranks.ranks) - set(seen))} did not say which calls are open"
    if waiting := [rank for rank, each in seen.items() if any(call.sure for call in each.open)]:
        return f"{ranks_in_spans(waiting)} waits for a call that is not complete"
    groups = {rank: next((each for each in told.groups if each.group == _DEFAULT), None) for rank, told in seen.items()}
    calls = {rank: 0 if each is None else each.calls for rank, each in groups.items()}
    if not any(calls.values()):
        return "the script has not used its default process group"
    if len(set(calls.values())) > 1:
        return "its ranks have made different numbers of calls of the default process group"
    members = next((each.ranks for each in groups.values() if each is not None), ())
    if members and set(members) != set(ranks.ranks):
        return f"the default process group has {plural(len(members), 'rank')}, of which not all are left"
    return None


_DEFAULT: Final = "0"
"""Name of the default process group."""


def _pairs(found: Probe) -> tuple[list[list[wire.Pair]], list[list[wire.Pair]]]:
    """Return rounds of pairs: neighbors within hosts, as many as can send at once, and pairs of hosts, one a round."""
    by_host = _by_host(found.ranks)
    within = [
        [pair for ranks in by_host for pair in zip(ranks[first::2], ranks[first + 1 :: 2], strict=False)]
        for first in (0, 1)
    ]
    within = [pairs for pairs in within if pairs]
    most = wire.MOST_PAIRS // 2
    if (left_out := sum(max(0, len(pairs) - most) for pairs in within)) > 0:
        found.left_out.append(f"{left_out:,} of {sum(map(len, within)):,} pairs of neighbors within hosts")
    within = [pairs[:most] for pairs in within]
    firsts = [ranks[0] for ranks in by_host]
    pairs = list(itertools.combinations(firsts, 2))
    # First each with the next one, so that every host has its turn.
    distance = {rank: place for place, rank in enumerate(firsts)}
    pairs.sort(key=lambda pair: (distance[pair[1]] - distance[pair[0]], pair))
    if len(pairs) > MOST_BETWEEN:
        found.left_out.append(f"{len(pairs) - MOST_BETWEEN:,} of {len(pairs):,} pairs of hosts")
    return within, [[pair] for pair in pairs[:MOST_BETWEEN]]


def _carried(parts: _Parts, said: str, rounds: Sequence[Sequence[wire.Pair]], size: int) -> Turns[list[wire.Carried]]:
    """Have pairs send messages both ways, and return what each has received."""
    done = yield from parts.do("pairs", said, size=size, rounds=tuple(tuple(pairs) for pairs in rounds))
    _note_problems(done, parts.found)
    for rank, probed in done.items():
        if probed.facts is not None and probed.facts.resent is not None:
            parts.of[rank].resent = (parts.of[rank].resent or 0) + probed.facts.resent
    return [each for probed in done.values() for each in probed.carried]


def _note_problems(done: Mapping[int, wire.Probed], found: Probe) -> None:
    texts = [f"messages between ranks: {problem} ({ranks})" for problem, ranks in _by_problem(done)]
    found.left_out += [text for text in texts if text not in found.left_out]


def _pair(each: Connection | wire.Carried) -> wire.Pair:
    return min(each.sender, each.receiver), max(each.sender, each.receiver)


def _made(probed: wire.Probed) -> Experiments:
    return Experiments(
        {each.name: list(each.values) for each in probed.measured},
        {each.name: list(each.ran) for each in probed.measured if each.ran},
    )


def _median(values: Sequence[float]) -> float:
    return typical(values) or 0.0

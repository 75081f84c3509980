"""A probe holds all ranks, has each make its experiments in turn, and lets them go, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.fakes.acting import Acting, Rank

from ddptop.agent import wire
from ddptop.agent.observer.actions import probe as module
from ddptop.agent.observer.judge.probe import NOTHING
from ddptop.agent.rank.commands.gate import GateError
from ddptop.agent.record import diagnoses
from ddptop.agent.wire.diagnoses.probed import Probe

RATES = {"compute": 100e9, "disk_write": 1e9, "disk_read": 1e9}
FACTS = wire.Facts(0.5, cores=2, which="0-1", threads=1, resent=3)


class Experiments:
    """The experiments of one rank, which answers a part when it is asked for it a second time."""

    def __init__(self, group: Group, rank: Rank) -> None:
        self._group = group
        self._rank = rank
        self._seen: set[int] = set()

    def probe(self, command: wire.Probe, device: str | None) -> wire.Probed | None:
        """See `Diagnoses.probe`."""
        if not self._rank.gate.held:
            raise GateError("not held; the run goes on")
        if command.part not in self._seen:
            self._seen.add(command.part)
            self._group.note(command, self._rank.rank)
            return None
        return self._group.probed(self._rank.rank, command)


class Group(Acting):
    """Ranks that are probed, and what they find."""

    def __init__(self, folder: Path, *steps: int, hosts: Mapping[int, str] | None = None) -> None:
        super().__init__(folder, *steps)
        self.slow: dict[int, float] = {}
        self.parts: list[tuple[wire.Probe, list[int]]] = []
        """The parts, and who was asked for them."""
        self.open: set[int] = set()
        """Ranks with a call that is not complete."""
        self.calls = [40] * len(steps)
        self.takes_s: Callable[[wire.Probe], float] = lambda part: 0.01
        for rank in self.ranks:
            rank.diagnoses = Experiments(self, rank)
            rank.inspect = lambda *, stacks, rank=rank.rank: self.inspection(rank)  # type: ignore[method-assign, misc]
            host = (hosts or {}).get(rank.rank, "vm")
            self.members[rank.rank] = msgspec.structs.replace(self.members[rank.rank], host=host)

    def note(self, command: wire.Probe, rank: int) -> None:
        """Take note of who does a part, which takes its time."""
        if not self.parts or self.parts[-1][0].part != command.part:
            self.parts.append((command, []))
            self.clock.now += self.takes_s(command)
        self.parts[-1][1].append(rank)

    def inspection(self, rank: int) -> wire.Inspection:
        """Return the calls of a rank."""
        waits = (wire.OpenCall("all_reduce", "0", 41, 4, 0),) if rank in self.open else ()
        return wire.Inspection(rank, 0, "agent", 1, open=waits, groups=(wire.GroupCalls("0", self.calls[rank]),))

    def probed(self, rank: int, command: wire.Probe) -> wire.Probed:
        """Return what a rank has found."""
        match command.kind:
            case "room":
                return wire.Probed(order=512)
            case "own":
                part = self.slow.get(rank, 1.0)
                measured = tuple(wire.Measured(name, (part * rate,) * 3, (1.0,) * 3) for name, rate in RATES.items())
                return wire.Probed(measured, facts=FACTS)
            case "pairs":
                ways = [way for pairs in command.rounds for one, other in pairs for way in ((one, other), (other, one))]
                carried = [
                    wire.Carried(*way, command.size, (command.size / 1e9,) * 3, (1e-5,))
                    for way in ways
                    if way[1] == rank
                ]
                return wire.Probed(carried=tuple(carried), facts=FACTS)
            case _:
                return wire.Probed(small_s=(1e-4,) * 5, large_s=(1e-2,) * 3)

    @property
    def found(self) -> Probe:
        """Probe, and return what is kept of it."""
        reply = self.act("probe")
        assert reply.done, reply.text
        kept = diagnoses.read("probe", Path(reply.text))
        assert kept is not None
        found: Probe = kept.found
        assert self.texts[-1].removesuffix(" · ada").endswith(found.sentences[0])
        return found

    @property
    def kinds(self) -> list[str]:
        """Those of the parts."""
        return [command.kind for command, _ in self.parts]

    @property
    def again(self) -> list[tuple[wire.Probe, list[int]]]:
        """The parts of other looks, which are shorter than the first one."""
        return [(command, who) for command, who in self.parts if command.kind == "own" and command.ms <= 200]

    @property
    def are_held(self) -> list[bool]:
        """Say of each rank whether it is held."""
        self.turn()
        return [rank.gate.held for rank in self.ranks if not rank.has_ended]


class Ways(Group):
    """The way from rank 1 to rank 2 is slow, and that from 0 to 2 at first, and in the first of the other looks."""

    def probed(self, rank: int, command: wire.Probe) -> wire.Probed:
        """Return what a rank has found."""
        done = super().probed(rank, command)
        # Quick and large messages come before other looks.
        late = {(1, 2): 20.0, (0, 2): 2.0 if self.kinds.count("pairs") <= 3 else 1.0}
        carried = [
            replace(each, large_s=tuple(late.get((each.sender, each.receiver), 1.0) * took for took in each.large_s))
            for each in done.carried
        ]
        return replace(done, carried=tuple(carried))


GroupOf = Callable[..., Group]


@pytest.fixture
def group_of(tmp_path: Path) -> Iterator[GroupOf]:
    """Make a group of so many ranks."""
    made: list[Group] = []

    def make(world: int, hosts: Mapping[int, str] | None = None, kind: type[Group] = Group) -> Group:
        made.append(kind(tmp_path, *[7] * world, hosts=hosts))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("is_paused", [False, True])
def test_all_parts_are_done_and_the_ranks_go_on_or_stay_paused(group_of: GroupOf, is_paused: bool) -> None:
    """And what was found is kept with the run, by number."""
    group = group_of(3)
    if is_paused:
        group.act("pause")
    found = group.found
    assert group.are_held == [is_paused] * 3
    assert (found.sentences, found.left_out) == ([NOTHING], [])
    assert [who for command, who in group.parts if command.kind == "own"] == [[0], [1], [2], [0, 1, 2]]
    assert {(each.sender, each.receiver) for each in found.connections} == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert found.large_s == [1e-2] * 3
    assert group_of(3).found
    assert [each.number for each in diagnoses.kept(group.directory, "probe")] == ["0002", "0001"]


def test_ranks_of_different_hosts_are_alone_at_the_same_time(group_of: GroupOf) -> None:
    """Pairs within hosts at once, and one of each two hosts after another."""
    group = group_of(6, {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"})
    found = group.found
    assert [who for command, who in group.parts if command.kind == "own"][:2] == [[0, 2, 4], [1, 3, 5]]
    quick = next(command for command, _ in group.parts if command.kind == "pairs")
    assert quick.rounds == (((0, 1), (2, 3), (4, 5)), ((0, 2),), ((2, 4),), ((0, 4),))
    assert len(found.connections) == 12
    assert [each.resent for each in found.ranks] == [9] * 6


def test_of_many_ranks_the_pairs_that_are_not_tried_are_counted(group_of: GroupOf) -> None:
    """Of 512 and 384 neighbors in turn, and of all pairs of 128 hosts."""
    found = group_of(1024, {rank: f"node{rank // 8}" for rank in range(1024)}).found
    assert found.left_out == ["640 of 896 pairs of neighbors within hosts", "8,100 of 8,128 pairs of hosts"]
    assert len(found.connections) == 2 * (896 - 640 + 28)


def test_a_rank_that_looks_slow_is_tried_again_beside_another_one(group_of: GroupOf) -> None:
    """Three times in changing order, before the messages; the files only where these were slow."""
    group = group_of(3)
    group.slow = {1: 0.5}
    found = group.found
    assert [who[0] for _, who in group.again] in ([0, 1, 1, 0, 0, 1], [1, 2, 2, 1, 1, 2])
    assert found.sentences[0].startswith("rank 1 computes 50 % slower than the others")
    assert group.kinds.index("pairs") > max(group.parts.index(each) for each in group.again)


def test_a_connection_that_looks_slow_is_tried_again_twice(group_of: GroupOf) -> None:
    """It is named where it is slow each time, beside one that is not."""
    group = group_of(3, {0: "a", 1: "b", 2: "c"}, Ways)
    assert [text.partition(" carries")[0] for text in group.found.sentences] == ["b to c"]
    assert group.kinds.count("pairs") == 4


def test_all_ends_in_time_and_what_is_left_out_is_named(group_of: GroupOf) -> None:
    """A rank that takes three seconds for each part."""
    group = group_of(4)
    group.takes_s = lambda part: 3.0
    found = group.found
    assert found.took_s < module.MOST_S + 3.0
    assert found.left_out
    assert not any(group.are_held)


def test_ranks_that_take_longer_than_planned_are_let_go_in_time(group_of: GroupOf) -> None:
    """Each experiment takes more than twice as long, as on a busy machine: fewer looks, and no later end."""
    group = group_of(3)
    group.slow = {1: 0.5}
    group.takes_s = lambda part: 1.4 * 2 * part.ms / 1e3 if part.kind == "own" else 0.01
    assert group.found.took_s < 10.0
    assert 4 <= len(group.again) < 6


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda group: group.open.add(1), "rank 1 waits for a call that is not complete"),
        (lambda group: group.calls.__setitem__(1, 39), "its ranks have made different numbers of calls"),
        (lambda group: setattr(group, "calls", [0, 0]), "has not used its default process group"),
    ],
)
def test_no_messages_are_sent_where_the_ranks_may_not_agree_on_calls(
    group_of: GroupOf, prepare: Callable[[Group], Any], reason: str
) -> None:
    """They might wait for each other."""
    group = group_of(2)
    prepare(group)
    assert reason in group.found.left_out[0]
    assert not {"pairs", "group"} & set(group.kinds)


def test_a_rank_that_ends_meanwhile_and_a_wish_to_cancel_let_the_others_go(group_of: GroupOf) -> None:
    """And nothing is kept."""
    group = group_of(2)

    def end(part: wire.Probe) -> float:
        group.ranks[1].has_ended = part.kind == "own"
        return 0.1

    group.takes_s = end
    assert group.act("probe").text == "rank 1 ended meanwhile"
    assert not any(group.are_held)
    for is_paused, after in ((False, "the run goes on"), (True, "the ranks stay paused")):
        group = group_of(2)
        if is_paused:
            group.act("pause")
        asker = group.ask("probe")
        group.until(lambda group=group: "own" in group.kinds, "part")  # type: ignore[misc]
        assert group.cancel(asker)
        assert group.reply(asker).text == f"cancelled; {after}"
        assert group.are_held == [is_paused] * 2
    assert not group.directory.diagnoses("probe").exists()


def test_the_lease_is_renewed_while_parts_go_on(group_of: GroupOf) -> None:
    """Also for ranks that do nothing meanwhile; one that is not held any more ends the probe."""
    group = group_of(4)
    assert group.found
    leases = sum(isinstance(command, wire.Commit) for _, command in group.asked) / 4
    assert leases >= 1 + int(group.clock.now)
    group = group_of(2)
    asker = group.ask("probe")
    group.until(lambda: "own" in group.kinds, "part")
    group.gates[1].resume()
    group.hear()
    assert group.reply(asker).text == "rank 1: not held; the run goes on"


def test_without_room_on_the_disk_no_rank_is_held(group_of: GroupOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """There would be nothing to show for it."""
    monkeypatch.setattr(module, "_FREE", 1 << 62)
    group = group_of(2)
    assert "no room: less than" in group.act("probe").text
    assert group.asked == []

"""A probe holds all ranks, has each make its experiments in turn, and lets them go, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.bases import marked

from ddptop.agent import wire
from ddptop.agent.observer.actions import probe as module
from ddptop.agent.observer.actions.controller import Controller
from ddptop.agent.observer.actions.polled import PolledRanks
from ddptop.agent.observer.actions.probe import probe
from ddptop.agent.observer.actions.wait import Wait
from ddptop.agent.observer.judge.probe import NOTHING
from ddptop.agent.record import diagnoses
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.diagnoses.probed import Probe
from ddptop.agent.wire.refusals import Cancelled, Refused

RATES = {"compute": 100e9, "disk_write": 1e9, "disk_read": 1e9}
FACTS = wire.Facts(0.5, cores=2, which="0-1", threads=1, resent=3)


class Ranks(PolledRanks):
    """Ranks at step 7 that are held at once, and answer a part when it is asked for a second time."""

    def __init__(self, world: int, *, paused: bool = False, slow: Mapping[int, float] | None = None) -> None:
        super().__init__(range(world))
        self.now = 0.0
        self.held = self.paused = paused
        self.leases = 0
        self.slow = dict(slow or {})
        self.said: list[tuple[wire.Probe, tuple[int, ...]]] = []
        """The parts, and who was asked for them."""
        self.open: set[int] = set()
        """Ranks with a call that is not complete."""
        self.calls = dict.fromkeys(range(world), 40)
        self.gone: set[int] = set()
        self.takes_s: Callable[[wire.Probe], float] = lambda part: 0.01
        self._seen: set[tuple[int, int]] = set()

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def send(self, command: wire.Command, ranks: Collection[int], timeout_s: float) -> Mapping[int, wire.Reply]:
        if isinstance(command, wire.Probe) and (command, tuple(ranks)) not in self.said:
            self.said.append((command, tuple(ranks)))
            self.now += self.takes_s(command)
        return {rank: self._answer(rank, command) for rank in ranks if rank not in self.gone}

    def _answer(self, rank: int, command: wire.Command) -> wire.Reply:
        match command:
            case wire.Query():
                return wire.Reply(0, self.held, "", 7, kept=self.paused)
            case wire.Hold() | wire.Commit():
                assert not self.paused
                self.held = True
                self.leases += isinstance(command, wire.Commit)
                return wire.Reply(0, True, "", 7)
            case wire.Resume():
                self.held = False
                return wire.Reply(0, True, "goes on", 7)
            case wire.Inspect():
                waits = (wire.OpenCall("all_reduce", "0", 41, 4, 0),) if rank in self.open else ()
                groups = (wire.GroupCalls("0", self.calls[rank]),)
                told = wire.Inspection(rank, 0, "agent", 1, open=waits, groups=groups)
                return wire.Reply(0, True, inspection=told)
            case wire.Probe():
                assert self.held
                if (rank, command.part) not in self._seen:
                    self._seen.add((rank, command.part))
                    return wire.Reply(0, False, "probing", 7, pending=True)
                return wire.Reply(0, True, "", 7, probed=self._probed(rank, command))
        raise AssertionError(command)

    def _probed(self, rank: int, command: wire.Probe) -> wire.Probed:
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

    def departed(self) -> set[int]:
        return self.gone

    def unheard(self, ranks: Collection[int]) -> str:
        return ""


def probed(path: Path, ranks: Ranks, hosts: Mapping[int, str] | None = None, wait: Wait | None = None) -> Probe:
    wait = wait or Wait(lambda: ranks.now, ranks.sleep)
    ranks.hosts = hosts or dict.fromkeys(ranks.ranks, "vm")
    folder, finding = probe(RunDir(marked(path)), ranks, Controller(ranks, "ada", wait), wait)
    found = diagnoses.read("probe", folder)
    assert found is not None
    assert finding == found.found.sentences[0]
    made: Probe = found.found
    return made


def kinds(ranks: Ranks) -> list[str]:
    return [command.kind for command, _ in ranks.said]


def again_of(ranks: Ranks) -> list[tuple[wire.Probe, tuple[int, ...]]]:
    """Return the parts of other looks, which are shorter than the first one."""
    return [(command, asked) for command, asked in ranks.said if command.kind == "own" and command.ms <= 200]


@pytest.mark.parametrize("paused", [False, True])
def test_all_parts_are_done_and_the_ranks_go_on_or_stay_paused(tmp_path: Path, paused: bool) -> None:
    """And what was found is kept with the run, by number."""
    ranks = Ranks(3, paused=paused)
    found = probed(tmp_path, ranks)
    assert ranks.held is paused
    assert found.sentences == [NOTHING]
    assert (found.step, found.left_out) == (7, [])
    assert [asked for command, asked in ranks.said if command.kind == "own"] == [(0,), (1,), (2,), (0, 1, 2)]
    assert {(each.sender, each.receiver) for each in found.connections} == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert found.large_s == [1e-2] * 3
    probed(tmp_path, Ranks(3))
    assert [each.number for each in diagnoses.kept(RunDir(tmp_path), "probe")] == ["0002", "0001"]


def test_ranks_of_different_hosts_are_alone_at_the_same_time(tmp_path: Path) -> None:
    """Pairs within hosts at once, and one of each two hosts after another."""
    ranks = Ranks(6)
    found = probed(tmp_path, ranks, {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"})
    assert [asked for command, asked in ranks.said if command.kind == "own"][:2] == [(0, 2, 4), (1, 3, 5)]
    quick = next(command for command, _ in ranks.said if command.kind == "pairs")
    assert quick.rounds == (((0, 1), (2, 3), (4, 5)), ((0, 2),), ((2, 4),), ((0, 4),))
    assert len(found.connections) == 12
    assert [each.resent for each in found.ranks] == [9] * 6


def test_of_many_ranks_the_pairs_that_are_not_tried_are_counted(tmp_path: Path) -> None:
    """Of 512 and 384 neighbors in turn, and of all pairs of 128 hosts."""
    found = probed(tmp_path, Ranks(1024), {rank: f"node{rank // 8}" for rank in range(1024)})
    assert found.left_out == ["640 of 896 pairs of neighbors within hosts", "8,100 of 8,128 pairs of hosts"]
    assert len(found.connections) == 2 * (896 - 640 + 28)


def test_a_rank_that_looks_slow_is_tried_again_beside_another_one(tmp_path: Path) -> None:
    """Three times in changing order, before the messages; the files only where these were slow."""
    ranks = Ranks(3, slow={1: 0.5})
    found = probed(tmp_path, ranks)
    again = [(asked, command.files) for command, asked in again_of(ranks)]
    assert [asked[0] for asked, _ in again] in ([0, 1, 1, 0, 0, 1], [1, 2, 2, 1, 1, 2])
    assert found.sentences[0].startswith("rank 1 computes 50 % slower than the others")
    assert kinds(ranks).index("pairs") > max(ranks.said.index(each) for each in again_of(ranks))


class Ways(Ranks):
    """The way from rank 1 to rank 2 is slow, and that from 0 to 2 at first, and in the first of the other looks."""

    def _probed(self, rank: int, command: wire.Probe) -> wire.Probed:
        done = super()._probed(rank, command)
        # Quick and large messages come before other looks.
        late = {(1, 2): 20.0, (0, 2): 2.0 if kinds(self).count("pairs") <= 3 else 1.0}
        carried = [
            replace(each, large_s=tuple(late.get((each.sender, each.receiver), 1.0) * took for took in each.large_s))
            for each in done.carried
        ]
        return replace(done, carried=tuple(carried))


def test_a_connection_that_looks_slow_is_tried_again_twice(tmp_path: Path) -> None:
    """It is named where it is slow each time, beside one that is not."""
    ranks = Ways(3)
    found = probed(tmp_path, ranks, {0: "a", 1: "b", 2: "c"})
    assert [text.partition(" carries")[0] for text in found.sentences] == ["b to c"]
    assert kinds(ranks).count("pairs") == 4


def test_all_ends_in_time_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    """A rank that takes three seconds for each part."""
    ranks = Ranks(4)
    ranks.takes_s = lambda part: 3.0
    found = probed(tmp_path, ranks)
    assert found.took_s < module.MOST_S + 3.0
    assert found.left_out
    assert not ranks.held


def test_ranks_that_take_longer_than_planned_are_let_go_in_time(tmp_path: Path) -> None:
    """Each experiment takes more than twice as long, as on a busy machine: fewer looks, and no later end."""
    ranks = Ranks(3, slow={1: 0.5})
    ranks.takes_s = lambda part: 1.4 * 2 * part.ms / 1e3 if part.kind == "own" else 0.01
    assert probed(tmp_path, ranks).took_s < 10.0
    assert 4 <= len(again_of(ranks)) < 6


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda ranks: ranks.open.add(1), "rank 1 waits for a call that is not complete"),
        (lambda ranks: ranks.calls.update({1: 39}), "its ranks have made different numbers of calls"),
        (lambda ranks: ranks.calls.update(dict.fromkeys(range(2), 0)), "has not used its default process group"),
    ],
)
def test_no_messages_are_sent_where_the_ranks_may_not_agree_on_calls(
    tmp_path: Path, prepare: Callable[[Ranks], Any], reason: str
) -> None:
    ranks = Ranks(2)
    prepare(ranks)
    found = probed(tmp_path, ranks)
    assert reason in found.left_out[0]
    assert not {"pairs", "group"} & set(kinds(ranks))


def test_a_rank_that_ends_meanwhile_and_a_wish_to_cancel_let_the_others_go(tmp_path: Path) -> None:
    """And nothing is kept."""
    ranks = Ranks(2)

    def end(part: wire.Probe) -> float:
        ranks.gone = {1} if part.kind == "own" else set()
        return 0.1

    ranks.takes_s = end
    with pytest.raises(Refused, match="rank 1 ended meanwhile"):
        probed(tmp_path, ranks)
    assert not ranks.held

    def cancel(part: wire.Probe) -> float:
        wait.is_cancelled = part.kind == "own"
        return 0.1

    for paused, after in ((False, "the run goes on"), (True, "the ranks stay paused")):
        ranks = Ranks(2, paused=paused)
        wait = Wait(lambda: ranks.now, ranks.sleep)  # noqa: B023  # it ends within the turn
        ranks.takes_s = cancel
        with pytest.raises(Cancelled, match=f"cancelled; {after}"):
            probed(tmp_path, ranks, wait=wait)
        assert ranks.held is paused
    assert not (tmp_path / "probes").exists()


def test_the_lease_is_renewed_while_parts_go_on(tmp_path: Path) -> None:
    """Also for ranks that do nothing meanwhile."""
    ranks = Ranks(4)
    probed(tmp_path, ranks)
    assert ranks.leases / 4 >= 2 + int(ranks.now)


def test_without_room_on_the_disk_no_rank_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FREE", 1 << 62)
    ranks = Ranks(2)
    with pytest.raises(Refused, match="no room: less than"):
        probed(tmp_path, ranks)
    assert not ranks.leases

"""An onlooker of either observer of a run on two hosts: it sees all ranks, and knows which host is not heard."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.fakes.relays import Host, several
from support.harness import until
from support.values.watches import watched

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.logs.of_run import RunLogs
from ddptop.agent.client.watch import Watch
from ddptop.agent.end import survey
from ddptop.agent.run.rundir import Member, RunDir
from ddptop.agent.wire.frames import RankFrame


@contextmanager
def looked_at(host: Host) -> Iterator[Watch]:
    """Look at the run from a host."""
    link = watched(host.directory, onlooker=True)
    try:
        yield link
    finally:
        link.close()


def seen(link: Watch, condition: Callable[[Frame], object], what: str) -> Frame:
    """Poll until a frame is so, and return it."""
    frames: list[Frame] = []

    def holds() -> object:
        link.poll()
        frames[:] = [link.frame()]
        return condition(frames[0])

    until(holds, what)
    return frames[0]


def test_both_doors_show_all_ranks_with_their_hosts(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of the other host is looked up, and after its observer is gone its ranks are silent."""
    looked: dict[Path, set[int]] = defaultdict(set)
    original = survey.look

    def look(directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = ()) -> survey.Survey:
        looked[directory.path].update(directory.members() if members is None else members)
        return original(directory, members, heard)

    monkeypatch.setattr(survey, "look", look)
    with several(runtime, 2, 2) as (one, two), one.observed(), ExitStack() as later:
        branch = later.enter_context(two.observed())
        two.find(one)
        until(lambda: branch.hosts.role == "branch", "the link")
        ranks = (*one.ranks, *two.ranks)
        for rank in ranks:
            rank.meet()
            rank.fill()

        def tell(frame: Frame) -> bool:
            for rank in ranks:
                now = time.time_ns()
                told = wire.Beat(rank.rank, now, "running", "forward", 3, now, 3)
                rank.publish(wire.topic_of(wire.TOPIC_BEAT, rank.rank), told)
            return frame.hosts.several and all(host.state == "linked" for host in frame.hosts)

        for host, here in ((one, {0, 1}), (two, {2, 3})):

            def is_known(rank: RankFrame, here: set[int] = here) -> bool:
                # The records of the ranks on other hosts are written a moment after these are heard.
                return bool(rank.step) and rank.far == (rank.rank not in here)

            with looked_at(host) as link:
                shown = seen(link, lambda frame: tell(frame) and all(map(is_known, frame.ranks)), "all ranks")
                assert [(each.host, each.ranks) for each in shown.hosts] == [("node1", (0, 1)), ("node2", (2, 3))]
                assert [rank.host for rank in shown.ranks] == ["node1", "node1", "node2", "node2"]
                assert {rank.rank for rank in shown.ranks if not rank.far} == here
        assert looked[one.directory.path] == {0, 1}
        assert looked[two.directory.path] <= {2, 3}
        # They are written a moment after their ranks are shown.
        until(lambda: RunLogs(one.directory).left_out == {"node2": [2, 3]}, "the members of the other host")
        assert RunLogs(one.directory, (0, 1)).left_out == {}
        with looked_at(one) as link:
            seen(link, lambda frame: frame.hosts.several, "both hosts")
            later.close()
            shown = seen(link, lambda frame: frame.ranks[3].state == "silent", "the silence of the other host")
            assert shown.ranks[3].activity.startswith("node2 is ")
            assert shown.ranks[0].state != "silent"

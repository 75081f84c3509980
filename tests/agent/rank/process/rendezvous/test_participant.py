"""One rank of each host takes part in the meeting, and only where the group has ranks on other hosts."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.bases import marked

from ddptop.agent.launcher.position import Position
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import rendezvous
from ddptop.agent.rank.process.rendezvous import Participant
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import Rendezvous
from ddptop.agent.run.rundir import Member, Process, RunDir

ADDRESS = {"MASTER_ADDR": "node1", "MASTER_PORT": "29400"}
SPREAD = Position(2, 0, 4, 2)


class Spy:
    """Stands for the exchange; it notes how it was started."""

    made: list[dict[str, Any]]
    runs = True

    def __init__(self, directory: RunDir, **options: Any) -> None:
        self.made.append(options)

    def start(self) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def spy(monkeypatch: pytest.MonkeyPatch) -> type[Spy]:
    """Put it into the place of the exchange."""
    monkeypatch.setattr(Spy, "made", [], raising=False)
    monkeypatch.setattr(rendezvous, "Exchange", Spy)
    return Spy


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    """A run directory with room for the records of ranks."""
    (tmp_path / "ranks").mkdir()
    return RunDir(marked(tmp_path))


def torch_with(store: object) -> Any:
    """Return the parts of torch in which the ranks have met."""
    distributed = SimpleNamespace(TCPStore="kind", distributed_c10d=SimpleNamespace(_get_default_store=lambda: store))
    return SimpleNamespace(distributed=distributed)


TCP = SimpleNamespace(underlying_store=SimpleNamespace(host="10.0.0.1", port=29500))
FILE = SimpleNamespace(underlying_store=SimpleNamespace(path="/tmp/x"))


def participant(
    directory: RunDir, position: Position, environment: dict[str, str], told: list[str] | None = None
) -> Participant:
    """Return one that notes its events in `told`."""
    heard: list[str] = [] if told is None else told
    return Participant(directory, position, environment, Faults(), lambda text, level: heard.append(text))


@pytest.mark.parametrize(
    ("position", "environment", "meets"),
    [
        (SPREAD, ADDRESS, True),
        (Position(0, 0, 4, 2), ADDRESS, True),
        (Position(3, 1, 4, 2), ADDRESS, False),
        (Position(0, 0, 4, 4), ADDRESS, False),
        (Position(0, 0, 1, 1), {}, False),
        (Position(1, 0, 2), ADDRESS, True),
        (Position(1, 0, 2), {"MASTER_ADDR": "127.0.0.1"}, False),
    ],
)
def test_who_meets(
    directory: RunDir, spy: type[Spy], position: Position, environment: dict[str, str], meets: bool
) -> None:
    """The first rank of each host, in the store of its group; the others leave no trace."""
    rank = participant(directory, position, environment)
    rank.begin()
    assert (hosts.read_rendezvous(directory.path) is not None) is meets
    rank.joined(torch_with(TCP))
    head = position.rank == 0
    assert [(each["head"], each["where"], each["kind"]) for each in spy.made] == (
        [(head, ("10.0.0.1", 29500), "kind")] if meets else []
    )
    # A second group of the script changes nothing.
    rank.joined(torch_with(TCP))
    assert len(spy.made) <= 1


def test_the_store_of_torchrun_serves_before_the_ranks_meet(directory: RunDir, spy: type[Spy]) -> None:
    """It exists as soon as the ranks do."""
    participant(directory, SPREAD, ADDRESS).prepare(torch_with(None))
    assert spy.made == []
    participant(directory, SPREAD, {**ADDRESS, "TORCHELASTIC_USE_AGENT_STORE": "True"}).prepare(torch_with(None))
    assert [each["where"] for each in spy.made] == [("node1", 29400)]


def test_ranks_that_are_all_here_do_not_meet(directory: RunDir, spy: type[Spy]) -> None:
    """Where the launcher does not tell how many there are, all that have joined the group have enrolled."""
    rank = participant(directory, Position(0, 0, 2), ADDRESS)
    for number in range(2):
        process = Process(1, time.time())
        directory.write_member(Member(number, 0, 2, process, "node1", 0, "", "", None))
    rank.joined(torch_with(TCP))
    assert spy.made == []


def test_what_the_observer_needs_is_written_down(directory: RunDir) -> None:
    """It is started with another environment."""
    told = {"DDPTOP_LISTEN": "10.0.0.1:4000", "DDPTOP_KEY_FILE": "/etc/key"}
    participant(directory, SPREAD, {**ADDRESS, **told}).begin()
    found = hosts.read_rendezvous(directory.path)
    assert found == Rendezvous("node1", "10.0.0.1:4000", "/etc/key")
    assert found.environment == {"MASTER_ADDR": "node1", **told}


@pytest.mark.parametrize("key", ["", "/etc/key"])
def test_a_group_without_a_tcp_store(directory: RunDir, spy: type[Spy], key: str) -> None:
    """The key file serves; without one it is told once, as an event and in the directory, that there is no link."""
    told: list[str] = []
    rank = participant(directory, SPREAD, {**ADDRESS, "DDPTOP_KEY_FILE": key}, told)
    rank.begin()
    rank.joined(torch_with(FILE))
    why = "" if key else "its ranks do not meet in a TCPStore, and there is no DDPTOP_KEY_FILE"
    assert told == ([f"the hosts of this run are not linked: {why}"] if why else [])
    found = hosts.read_rendezvous(directory.path)
    assert found is not None
    assert found.why == why
    assert spy.made == []

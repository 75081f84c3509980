"""A rank of a host that has seen fewer starts of its group than others belongs to the start that they count."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.harness import DEADLINE_S, until

from ddptop.agent import wire
from ddptop.agent.rank.session import Session
from ddptop.agent.run import hosts, rundir
from ddptop.agent.run.rundir import Run, RunDir

NEWCOMER = {
    "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "demo", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


@pytest.fixture
def directory(own_base: Path) -> RunDir:
    """The run of a training over two hosts, of which this process is a rank: whoever meets the run may end it."""
    run = Run(
        run=f"test-{secrets.token_hex(3)}", run_id=secrets.token_hex(8), program="train.py", arguments=(), world=2,
        backend=None, device=None, created_at_ns=time.time_ns(), launched=True, nodes=2, local_world=1,
    )  # fmt: skip
    return rundir.create(run)


@pytest.fixture
def rank(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Its rank 1, of a host that has just come."""
    for name, value in NEWCOMER.items():
        monkeypatch.setenv(name, value)
    session = Session(directory, run_id="id", program="train.py", log=None)
    session.open()
    yield session
    session.close(0, None, None)
    assert session.faults.count == 0, session.faults.last


@pytest.fixture
def heard(directory: RunDir, rank: Session) -> Iterator[Callable[[], Any]]:
    """Return the next message of the rank."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.connect(directory.address(1, "pub"))
        socket.subscribe(b"")
        give_up = time.monotonic() + DEADLINE_S

        def read() -> Any:
            assert time.monotonic() < give_up, "what is waited for does not come"
            assert socket.poll(30_000)
            return wire.read_telemetry(socket.recv_multipart()[1])

        yield read


def _step(rank: Session) -> None:
    rank.stamps.cut(rank.stamps.steps + 1)


def test_a_rank_goes_over_to_the_count_of_the_others(directory: RunDir, rank: Session, heard: Any) -> None:
    """Its greeting, its signs of life, its steps and its record say so, those that it made before as well."""
    until(lambda: 1 in directory.members(), "its record")
    assert directory.members()[1].generation == 0
    # A step is published once: before it, whoever listens has to be known to the rank.
    assert isinstance(heard(), wire.Hello | wire.Beat)
    _step(rank)
    while not isinstance(message := heard(), wire.Steps):
        assert getattr(message, "generation", 0) == 0
    assert message.generation == 0
    hosts.write_starts(directory.path, 3)
    while not isinstance(message := heard(), wire.Hello) or not message.generation:
        pass
    assert (message.generation, message.pid) == (3, rank.owner)
    until(lambda: directory.members()[1].generation == 3, "its record")
    _step(rank)
    while not isinstance(message := heard(), wire.Steps):
        assert getattr(message, "generation", None) in (None, 3)
    assert (message.generation, [step.seq for step in message.steps]) == (3, [2])
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(directory.address(1, "cmd"))
        socket.send(wire.encode(wire.Fill(1)))
        assert socket.poll(30_000)
        answer = wire.read_answer(socket.recv())
    assert isinstance(answer, wire.Steps)
    assert (answer.generation, [step.seq for step in answer.steps]) == (3, [1, 2])


@pytest.mark.parametrize(
    "told", [b"", b'{"generation":-1}', b'{"generation":1e99}', b"[" * 10_000, b'{"generation":0}']
)
def test_what_cannot_be_true_changes_nothing(directory: RunDir, rank: Session, heard: Any, told: bytes) -> None:
    """An unsound file, or a smaller number than its own."""
    (directory.path / "hosts").mkdir(mode=0o700, exist_ok=True)
    (directory.path / "hosts" / "starts.json").write_bytes(told)
    beats = 0
    while beats < 3:
        beats += isinstance(message := heard(), wire.Beat)
        assert getattr(message, "generation", None) in (None, 0)

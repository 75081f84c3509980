"""The two command sockets: nothing that is sent to one ends it, and a good command is answered afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zmq
from msgspec import inspect
from support.bases import marked
from support.fakes.events import SaidEvents
from support.harness import DEADLINE_S, until
from support.values.hostile import announce, foreign, marks, texts_in, value_of
from support.values.messages import replies_of

from ddptop.agent import wire
from ddptop.agent.end import escalation
from ddptop.agent.observer.actions.orders import Orders
from ddptop.agent.observer.relay.relay import Relay
from ddptop.agent.observer.service.requests import Requests
from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import Run, RunDir

RUN = Run("r", "of-the-router-tests", "p", (), 1, None, None, 1, True)
KINDS = (
    wire.Hold, wire.Commit, wire.Keep, wire.Resume, wire.Fill, wire.Act, wire.Cancel, wire.Kill,
    wire.Advance, wire.End, wire.Save, wire.Inspect,
)  # fmt: skip
ROUNDS = 300
SEED = 7


def frames_of(rng: Random) -> list[bytes]:
    """Return what a stranger might send: noise, no frame of ours, a damaged command, a valid one of extremes."""
    command = wire.encode(value_of(inspect.type_info(rng.choice(KINDS)), rng))
    match rng.randrange(8):
        case 0:
            return [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 5))]
        case 1:
            return [b"", command]
        case 2:
            damaged = bytearray(command)
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            return [bytes(damaged)]
        case 3:
            return [b"\x91" * rng.randrange(1, 4000)]
    return [command]


@contextlib.contextmanager
def stranger(context: zmq.Context[Any], address: str) -> Iterator[zmq.Socket[bytes]]:
    """Connect somebody who asks and hardly reads."""
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        yield socket


def asked(context: zmq.Context[Any], address: str, command: wire.Command) -> wire.Reply:
    """Return the answer to a good command of a newcomer."""
    with stranger(context, address) as socket:
        socket.send(wire.encode(command))
        assert socket.poll(int(1000 * DEADLINE_S)), "no answer to a good command"
        answer = wire.read_answer(socket.recv())
    assert isinstance(answer, wire.Reply)
    return answer


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    """Return the directory of a run."""
    tmp_path.chmod(0o700)
    found = RunDir(marked(tmp_path))
    for name in ("ranks", "logs"):
        (tmp_path / name).mkdir()
    found.write(RUN)
    return found


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    """Return a context of the stranger's own."""
    with zmq.Context() as found:
        yield found
        found.destroy(linger=0)


def test_the_observer_answers_after_anything(
    directory: RunDir, context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise and commands of extremes: what is told on is clean, and a note is taken afterwards."""
    monkeypatch.setattr(escalation, "find", lambda *_: [])
    told = SaidEvents()
    with relaying(directory) as relay:
        orders = Orders(directory, relay.requests, told)
        address = directory.address("observer", "cmd")
        rng = Random(SEED)
        with contextlib.ExitStack() as strangers:
            sockets = []
            # Of many: who has sent a command that is too long is cut off, with what was on its way behind it.
            for _ in range(ROUNDS // 20):
                sockets.append(strangers.enter_context(stranger(context, address)))
                for _ in range(20):
                    sockets[-1].send_multipart(frames_of(rng))
                orders.turn(RUN)

            def is_told() -> bool:
                orders.turn(RUN)
                return any(text.endswith("· the last word") for text in told.texts)

            with stranger(context, address) as newcomer:
                newcomer.send(wire.encode(wire.Kill(7, 0.0, 9_999, "the last\x1b[31m word\u202e")))
                until(is_told, "the last refusal")
            for socket in sockets:
                while socket.poll(0):
                    answer = wire.read_answer(socket.recv())
                    assert not any(map(marks, texts_in(answer)))
        assert not any(marks(text) for event in told.all for text in texts_in(event))
        assert relay.refused
        assert relay.faults == 0
        orders.close()


@pytest.fixture
def requests() -> Iterator[Requests]:
    """Return the commands that wait for an observer's main thread."""
    made = Requests()
    yield made
    made.close()


def put(requests: Requests, *commands: wire.Command) -> None:
    """Let these commands wait."""
    for command in commands:
        requests.put(b"late", command)


@contextlib.contextmanager
def relaying(directory: RunDir) -> Iterator[Relay]:
    """Return a relay at work."""
    with zmq.Context() as context:
        relay = Relay(context, directory, RUN)
        relay.start()
        try:
            yield relay
        finally:
            relay.finish()
            relay.close()


def test_an_observer_that_has_let_go_of_the_run_refuses(directory: RunDir, requests: Requests) -> None:
    """What comes after the end is answered and not carried out: the run's name may be another run's by then."""
    told = SaidEvents()
    record = directory.read()
    put(
        requests,
        wire.Kill(1, 0.0, who="ada"), wire.Kill(2, 0.0, rank=0), wire.Kill(3, 0.0, signal=10),
    )  # fmt: skip
    orders = Orders(directory, requests, told)
    orders.close()
    requests.put(b"later", wire.Kill(4, 0.0, who="ada"))
    assert [(reply.id, reply.done) for _, reply in replies_of(requests)] == [(number, False) for number in (1, 2, 3, 4)]
    assert (told.all, orders.killed_by, directory.read()) == ([], None, record)


@pytest.mark.parametrize(("survivors", "done"), [((), True), (("process 7 stays: it is in the kernel",), False)])
def test_who_asks_for_the_kill_that_was_just_done_is_told_what_came_of_it(
    directory: RunDir, requests: Requests, survivors: tuple[str, ...], done: bool
) -> None:
    """A second kill of the whole, come while the run is put away, is answered with the outcome of the first."""
    put(requests, wire.Kill(1, 0.0, who="ada"), wire.Kill(2, 0.0, rank=0))
    orders = Orders(directory, requests, SaidEvents())
    orders._ending.outcome = escalation.Outcome(2, 0, survivors)
    orders.close()
    replies = {reply.id: reply for _, reply in replies_of(requests)}
    whole, part = replies[1], replies[2]
    assert (whole.done, whole.text) == (done, escalation.Outcome(2, 0, survivors).text)
    assert not part.done
    assert "not done" in part.text


def test_a_rank_answers_after_anything(
    directory: RunDir, context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise and commands of extremes leave the rank's thread as it was: it says where it stands."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    session = Session(directory, run_id="id", program="p", log=None)
    session.open()
    try:
        address = directory.address(0, "cmd")
        rng = Random(SEED)
        with stranger(context, address) as socket:
            for _ in range(ROUNDS):
                socket.send_multipart(frames_of(rng))
            began = time.monotonic()
            while time.monotonic() - began < DEADLINE_S and socket.poll(200):
                wire.read_answer(socket.recv())
            reply = asked(context, address, wire.Resume(11))
        assert reply.id == 11
        assert reply.step == 0
        assert session.faults.count == 0, session.faults.last
    finally:
        session.close(0, None, None)


@pytest.mark.parametrize(("socket_name", "kind"), [("cmd", b"DEALER"), ("pub", b"SUB"), ("pub", b"XSUB")])
def test_an_observer_cuts_off_who_sends_too_much(
    directory: RunDir, context: zmq.Context[Any], socket_name: str, kind: bytes
) -> None:
    """A message above the bound, announced or sent, ends its connection and is not stored; events go on."""
    with relaying(directory) as relay, context.socket(zmq.SUB) as heard:
        heard.linger = 0
        heard.connect(directory.address("observer", "pub"))
        heard.subscribe(wire.TOPIC_EVENT)
        for size, sent in ((1 << 40, 0), (wire.MAX_COMMAND_BYTES + 1, wire.MAX_COMMAND_BYTES + 1)):
            with foreign(directory.address("observer", socket_name), kind) as connection:
                announce(connection, size, sent)

        def hears() -> bool:
            relay.events.say("all well")
            return bool(heard.poll(10))

        until(hears, "an event")

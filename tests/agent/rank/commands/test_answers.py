"""Who asks and does not read costs the training process next to nothing, and who reads gets all of it."""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from support.bases import marked
from support.harness import DEADLINE_S, until
from support.values.hostile import announce, foreign
from support.values.messages import read_reply

from ddptop import agent
from ddptop.agent import wire
from ddptop.agent.rank.commands import answers
from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import RunDir

RECORDS = 30_000
STEP = wire.Step(1, 1, 1, 10, 1, 2, 3, 1, 1, 2, collectives=(wire.Collective("all_reduce", 1, 2, 3, 1, "0"),) * 10)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A rank in this process, with a history of some megabytes."""
    folder = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    (folder / "ranks").mkdir()
    made = Session(RunDir(marked(folder)), run_id="answers", program="answers", log=None)
    made.open()
    assert made._publisher is not None
    for seq in range(1, RECORDS + 1):
        made._publisher._history.add(msgspec.structs.replace(STEP, seq=seq))
    yield made
    made.close(0, None, None)
    agent._listener = None
    shutil.rmtree(folder)


@pytest.fixture
def asking(session) -> Iterator[list[zmq.Socket[bytes]]]:
    """20 peers that have asked for everything, and hold next to nothing themselves."""
    with zmq.Context() as context:
        peers = []
        for _ in range(20):
            peer = context.socket(zmq.DEALER)
            peer.linger = 0
            peer.rcvhwm = 1
            peer.connect(session.directory.address(0, "cmd"))
            peer.rcvtimeo = int(DEADLINE_S * 1000)
            peers.append(peer)
        yield peers
        for peer in peers:
            peer.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def read(peer: zmq.Socket[bytes]) -> tuple[list[int], wire.Reply]:
    """Return the numbers of the records that a peer is sent, and the reply that ends them."""
    seqs: list[int] = []
    while not isinstance(answer := wire.read_answer(peer.recv()), wire.Reply):
        seqs += [step.seq for step in answer.steps]
    return seqs, answer


def ask(session: Session, peer: zmq.Socket[bytes]) -> wire.Reply:
    peer.send(wire.encode(wire.Resume(5)))
    return read_reply(peer.recv())


def test_answers_that_nobody_reads_do_not_grow_the_process(session, asking):
    """20 unread answers of 8 MB each take less than 20 MB together; what is read afterwards is whole and in order."""
    under_way = session._publisher._answers._under_way
    until(lambda: not under_way, "the answers of the test before")
    before = resident()
    for peer in asking:
        peer.send(wire.encode(wire.Fill(1, 0, 10 * RECORDS)))
    until(lambda: len(under_way) == 20, "all are answered")
    seen = [[None] * 20, [answer.piece for answer in under_way.values()]]
    while seen[-1] != seen[-2]:
        time.sleep(0.3)
        seen.append([answer.piece for answer in under_way.values()])
    assert resident() - before < 20 << 20
    # Meanwhile others are answered at once, and a second question of one who does not read is refused, not queued.
    with zmq.Context() as context, context.socket(zmq.DEALER) as other:
        other.connect(session.directory.address(0, "cmd"))
        assert ask(session, other).id == 5
    for peer in asking[:3]:
        seqs, reply = read(peer)
        assert (seqs, reply.id, reply.done) == (list(range(1, RECORDS + 1)), 1, True)
    for peer in asking:
        peer.close()
    until(lambda: not under_way, "the answers to those who have left are given up")


def test_one_who_does_not_read_is_given_up(session, asking, monkeypatch):
    """After a minute without a message taken nothing more is kept for it."""
    monkeypatch.setattr(answers, "PATIENCE_S", 0.2)
    asking[0].send(wire.encode(wire.Fill(1, 0, 10 * RECORDS)))
    until(lambda: session._publisher._answers._under_way, "the answer has begun")
    until(lambda: not session._publisher._answers._under_way, "it is given up")


def test_every_command_gets_its_reply(session):
    """However fast one peer asks: the socket takes few replies at a time, and the others wait for it, in order."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.connect(session.directory.address(0, "cmd"))
        peer.rcvtimeo = int(DEADLINE_S * 1000)
        for number in range(100):
            peer.send(wire.encode(wire.Resume(number)))
        assert [read_reply(peer.recv()).id for _ in range(100)] == list(range(100))


def test_replies_that_nobody_reads_are_bounded_and_given_up(session, monkeypatch):
    """What waits for a peer has a bound, is dropped once nothing was taken for a minute, and others are answered."""
    monkeypatch.setattr(answers, "PATIENCE_S", 0.2)
    under_way = session._publisher._answers
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer, context.socket(zmq.DEALER) as other:
        peer.linger = 0
        peer.rcvhwm = 1
        for socket in (peer, other):
            socket.rcvtimeo = int(DEADLINE_S * 1000)
            socket.connect(session.directory.address(0, "cmd"))
        most = 0
        for number in range(20_000):
            peer.send(wire.encode(wire.Resume(number)))
            most = max(most, *(len(each.replies) for each in tuple(under_way._unsent.values())), 0)
        assert ask(session, other).id == 5
        assert answers.MOST_REPLIES >= most > 0
        until(lambda: not under_way._unsent, "they are given up")


def test_a_second_answer_for_a_peer_is_refused(session, asking):
    """One at a time; the first goes on."""
    for number in (1, 2):
        asking[0].send(wire.encode(wire.Fill(number, 0, 10 * RECORDS)))
    seqs, reply = read(asking[0])
    assert seqs == list(range(1, RECORDS + 1)) or (reply.id, reply.done) == (2, False)


@pytest.mark.parametrize(("socket_name", "kind"), [("cmd", b"DEALER"), ("pub", b"SUB"), ("pub", b"XSUB")])
def test_a_message_that_is_too_large_ends_its_connection_alone(session, socket_name, kind):
    """Announced or sent: the sender is cut off before it is stored, the others are served."""
    address = session.directory.address(0, socket_name)
    before = resident()
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking, context.socket(zmq.SUB) as heard:
        asking.connect(session.directory.address(0, "cmd"))
        heard.connect(session.directory.address(0, "pub"))
        heard.subscribe(wire.TOPIC_HELLO)
        asking.rcvtimeo = heard.rcvtimeo = int(DEADLINE_S * 1000)
        for size, sent in ((1 << 40, 0), (wire.MAX_COMMAND_BYTES + 1, wire.MAX_COMMAND_BYTES + 1)):
            with foreign(address, kind) as connection:
                announce(connection, size, sent)
            assert ask(session, asking).id == 5
        assert heard.recv_multipart()[0] == wire.TOPIC_HELLO
    assert resident() - before < 16 << 20

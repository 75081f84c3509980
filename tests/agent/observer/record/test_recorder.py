"""Recording a run and giving it back."""

from __future__ import annotations

import contextlib
import resource
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.harness import DEADLINE_S, until

from ddptop.agent import wire
from ddptop.agent.observer.record import recorder
from ddptop.agent.observer.record import recording as recording_file
from ddptop.agent.observer.record.recorder import Recorder
from ddptop.agent.observer.record.recording import read_history
from ddptop.agent.run.rundir import Member, Process

HELLO = wire.Hello(wire.PROTOCOL, "r", "id", 0, 0, 1, 1, 0, "host", "p", "0", "3")


def member(pub: str, cmd: str = "") -> Member:
    """Return the record of rank 0, which listens there."""
    return Member(0, 0, 1, Process(1, 0.0), "host", 0, pub, cmd, None)


def step(seq: int) -> wire.Step:
    """Return the record of a step."""
    return wire.Step(seq, seq + 1, 0, 10, 1, 2, 3, 4, 0, 0, loss=0.5)


def beat(number: int) -> wire.Beat:
    """Return a sign of life after `number` steps."""
    return wire.Beat(0, number, "running", "forward", number, None, number)


class Rank:
    """A rank's PUB socket; publishing waits until the recorder listens."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        """Bind."""
        self.socket = context.socket(zmq.XPUB)
        self.socket.linger = 0
        self.socket.sndhwm = 0
        self.socket.bind(address)

    def meet(self) -> None:
        """Wait for the four subscriptions of the recorder."""
        for _ in range(4):
            assert self.socket.poll(1000 * DEADLINE_S)
            self.socket.recv()

    def farewell(self) -> None:
        """Wait until the recorder has left."""
        for _ in range(4):
            assert self.socket.poll(1000 * DEADLINE_S)
            self.socket.recv()

    def publish(self, topic: bytes, *messages: wire.Telemetry | bytes) -> None:
        """Send messages or garbage."""
        for message in messages:
            payload = message if isinstance(message, bytes) else wire.encode(message)
            self.socket.send_multipart([topic, payload])


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[zmq.Context[Any]]:
    """A context, and a recorder that does not wait long between batches."""
    monkeypatch.setattr(recorder, "BATCH_S", 0.05)
    with zmq.Context() as made:
        yield made


def test_round_trip_also_while_writing(context: zmq.Context[Any], runtime: Path) -> None:
    """A reader sees what was recorded so far; at the end it all is there, in order, in one file."""
    database, address = runtime / "run.db", f"ipc://{runtime}/0.pub"
    rank = Rank(context, address)
    recording = Recorder(context, database, 1, lambda text, level: None)
    recording.start()
    recording.follow(member(address))
    rank.meet()
    rank.publish(wire.TOPIC_HELLO, HELLO)
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(0), step(1))))
    until(lambda: list(read_history(database)) == [HELLO, wire.Steps(0, (step(0), step(1)))], "the first batch")
    rank.publish(wire.TOPIC_STEPS, *(wire.Steps(0, (step(n),)) for n in range(2, 500)))
    rank.publish(wire.TOPIC_BEAT, beat(1), beat(500))
    event, last = wire.Event(7, "rank 0 finished", 0), wire.RunState(8, "finished", exit_code=0)
    recording.add(event)
    recording.add(last)
    until(lambda: beat(500) in list(read_history(database)), "the last batch")
    assert recording.close()
    rank.socket.close()
    history = list(read_history(database))
    assert history[0] == HELLO
    steps = [each for message in history if isinstance(message, wire.Steps) for each in message.steps]
    assert steps == [step(n) for n in range(500)]
    assert history[-3:] == [event, beat(500), last]
    assert sorted(path.name for path in runtime.glob("run.db*")) == ["run.db"]


def test_garbage_is_counted_and_left_out(context: zmq.Context[Any], runtime: Path) -> None:
    """Noise, numbers beyond SQLite's, ranks that do not exist and a forged run state are refused."""
    database, address = runtime / "run.db", f"ipc://{runtime}/0.pub"
    rank = Rank(context, address)
    recording = Recorder(context, database, 1, lambda text, level: None)
    recording.start()
    recording.follow(member(address))
    rank.meet()
    rank.publish(wire.TOPIC_STEPS, *(bytes([n % 256]) * (n % 50) for n in range(1000)))
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(2**64 - 2),)), wire.Steps(9, (step(1),)), wire.Steps(0, ()))
    rank.publish(wire.TOPIC_EVENT, wire.RunState(0, "failed"), wire.Event(2**64 - 1, "late"))
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(3),)))
    until(lambda: list(read_history(database)) == [wire.Steps(0, (step(3),))], "the one good message")
    assert recording.close()
    rank.socket.close()
    assert recording.refused == 1005


def test_a_file_that_cannot_be_written_is_said_once(context: zmq.Context[Any], runtime: Path) -> None:
    """It makes one event, however many batches fail, and hurts nobody."""
    said: list[str] = []
    (runtime / "folder.db").mkdir()
    broken = Recorder(context, runtime / "folder.db", 1, lambda text, level: said.append(text))
    broken.start()
    broken.add(wire.Event(1, "a"))
    until(lambda: broken.failures == 1, "the first failure")
    broken.add(wire.Event(2, "b"))
    until(lambda: broken.failures == 2, "the second failure")
    assert broken.close()
    assert said == ["recording fails, history will have gaps: unable to open database file"]


def test_one_odd_message_costs_itself(context: zmq.Context[Any], runtime: Path) -> None:
    """A note with an impossible time, a summary sent as a heartbeat, a beat of half a megabyte: the thread goes on."""
    said: list[str] = []
    database, address = runtime / "run.db", f"ipc://{runtime}/0.pub"
    rank = Rank(context, address)
    recording = Recorder(context, database, 1, lambda text, level: said.append(text))
    recording.start()
    recording.follow(member(address))
    rank.meet()
    recording.add(wire.Event(2**64 - 1, "far in the future", 10**18, "strange"))
    recording.add(wire.Event(-5, "before the epoch"))
    recording.add(wire.Event(6, "a lone \udc80 surrogate"))
    recording.add(wire.RunState(2**70, "running"))
    summary = wire.Summary(0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, None, 1)
    rank.publish(wire.TOPIC_BEAT, summary, wire.Beat(0, 1, "running", "x" * 2**19, 1, None, 1))
    rank.publish(wire.TOPIC_HELLO, msgspec.structs.replace(HELLO, generation=2**60))
    rank.publish(wire.TOPIC_BEAT, beat(7))
    until(lambda: beat(7) in list(read_history(database)), "the beat after all that")
    assert recording.close()
    rank.socket.close()
    events = {each.text: each for each in read_history(database) if isinstance(each, wire.Event)}
    assert events.keys() == {"far in the future", "before the epoch", "a lone ? surrogate"}
    assert all(0 <= each.at_ns < 2**63 and each.rank is None and each.level == "info" for each in events.values())
    assert not any(isinstance(each, wire.Hello | wire.RunState) for each in read_history(database))
    assert (recording.refused, recording.faults) == (4, 1)
    assert len([text for text in said if "was not recorded" in text]) == 1


_texts = st.text(st.characters(), max_size=30)
_numbers_of_any_size = st.integers(-(2**80), 2**80)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.builds(wire.Event, _numbers_of_any_size, _texts, _numbers_of_any_size | st.none(), _texts, _texts, _texts)
    | st.builds(wire.RunState, _numbers_of_any_size, _texts, _numbers_of_any_size | st.none())
)
def test_whatever_is_added_can_be_stored_or_is_refused(tmp_path: Path, message: wire.Event | wire.RunState) -> None:
    """Valid types with hostile values give rows that SQLite takes, or none; an event always gives one."""
    with zmq.Context() as context:
        recording = Recorder(context, tmp_path / "run.db", 2, lambda text, level: None)
    rows = recording._guarded(recording._own_rows, message)
    assert len(rows) == 1 or (isinstance(message, wire.RunState) and recording.refused == 1)
    connection = sqlite3.connect(":memory:")
    connection.executescript("CREATE TABLE events(at_ns INTEGER, payload BLOB);"
                             "CREATE TABLE latest(kind, rank, generation, payload);")  # fmt: skip
    for row in rows:
        connection.execute(*row)
    for (payload,) in connection.execute("SELECT payload FROM events"):
        wire.read_telemetry(payload)
    connection.close()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_a_rank_publishes_can_be_stored_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Any message of the wire, with numbers of 64 bits, leads to rows that SQLite takes or to a count."""
    number = st.integers(-(2**63), 2**64 - 1)
    small = number | st.integers(-1, 2)
    step = st.builds(
        wire.Step, small, small, number, number, number, number, number, number, small, number, st.floats()
    )
    message = data.draw(
        st.builds(wire.Steps, small, st.lists(step, max_size=3).map(tuple), small)
        | st.builds(wire.Event, number, st.text(max_size=9), small | st.none(), st.text(max_size=9))
        | st.builds(wire.Beat, small, number, st.text(max_size=9), st.text(max_size=9), number, small, number)
        | st.builds(wire.RunState, number, st.text(max_size=9))
        | st.builds(wire.Summary, *[small] * 13)
        | st.builds(lambda rank, of: msgspec.structs.replace(HELLO, rank=rank, generation=of), small, small)
    )
    with zmq.Context() as context:
        recording = Recorder(context, tmp_path / "run.db", 2, lambda text, level: None)
    rows = recording._guarded(recording._read, wire.encode(message))
    # Steps of a rank that may just have begun anew are asked for as soon as its record says so.
    early = isinstance(message, wire.Steps) and message.generation == 1 and recording.refused == 0
    assert (len(rows) == 0) == (recording.refused == 1 or early)
    assert recording.faults == 0
    connection = sqlite3.connect(":memory:")
    for table in ("steps(a, b, c, d, e)", "events(a, b)", "latest(a, b, c, d)"):
        connection.execute(f"CREATE TABLE {table}")
    for row in rows:
        connection.execute(*row)
    connection.close()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=2000), st.integers(0, 8192), st.booleans())
def test_a_file_of_noise_is_read_as_far_as_it_goes(tmp_path: Path, noise: bytes, at: int, whole: bool) -> None:
    """Random bytes instead of a recording, or in the middle of one, end no reader."""
    database = tmp_path / "noise.db"
    database.unlink(missing_ok=True)
    if not whole:
        connection = recording_file.open_file(database)
        with connection:
            for number in range(20):
                message = wire.Steps(0, (step(number),))
                connection.execute(*recording_file.row(message, wire.encode(message)))
        recording_file.finish(connection)
    with database.open("r+b" if database.exists() else "wb") as file:
        file.seek(0 if whole else at)
        file.write(noise)
    for read in (read_history, recording_file.read_steps, recording_file.read_events, recording_file.read_end):
        list(read(database))
    list(recording_file.read_newest_steps(database, 5))
    recording_file.last_recorded(database)


def test_logs_are_in_the_budget(context: zmq.Context[Any], tmp_path: Path) -> None:
    """They take half of it at most; what they take, the recording does not."""
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"a line\n" * 300_000)
    recording = Recorder(context, tmp_path / "run.db", 1, lambda text, level: None, budget=1 << 20, logs=tmp_path)
    recording.start()
    until(lambda: 0 < log.lstat().st_blocks * 512 <= 1 << 19, "the log to be cut")
    assert recording.close()
    assert log.read_bytes().startswith(b"a line\n")
    assert log.read_bytes().endswith(b"a line\n")
    assert (1 << 19) <= recording._room < (1 << 20) - (1 << 18)


def test_logs_are_cut_to_what_a_file_that_has_grown_leaves(context: zmq.Context[Any], tmp_path: Path) -> None:
    """The file never becomes smaller, so that together they keep within the budget; a share stays for the logs."""
    budget = 8 << 20
    log, database = tmp_path / "rank-0.log", tmp_path / "run.db"
    recording = Recorder(context, database, 1, lambda text, level: None, budget=budget, logs=tmp_path)
    for grown, most in ((6 << 20, 2 << 20), (9 << 20, 1 << 20)):
        log.write_bytes(b"a line\n" * 1_000_000)
        database.write_bytes(b"x" * grown)
        recording._logs_due = 0.0
        recording._bound_sizes()
        assert most // 2 <= log.lstat().st_blocks * 512 <= most


def test_a_full_disk_costs_steps_and_no_event(context: zmq.Context[Any], tmp_path: Path) -> None:
    """On a file system without room the recorder says so once, goes on, and writes the events when there is room."""
    said: list[str] = []
    with small_disk(tmp_path, 1 << 20) as disk:
        ballast = disk / "ballast"
        recording = Recorder(context, disk / "run.db", 1, lambda text, level: said.append(text))
        recording.start()
        recording.add(wire.Event(1, "before"))
        until(lambda: list(read_history(disk / "run.db")) == [wire.Event(1, "before")], "the first event")
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        number = 1
        while not recording.failures:
            number += 1
            recording.add(wire.Event(number, f"{number} " + "y" * 3000))
            until(lambda: recording._own.empty() or recording.failures, "the event to be taken")
        ballast.unlink()
        until(lambda: len(list(read_history(disk / "run.db"))) >= number, "the events that waited")
        assert recording.close()
        assert len([text for text in said if "recording fails" in text]) == 1
        kept = [each.at_ns for each in read_history(disk / "run.db") if isinstance(each, wire.Event)]
        assert kept[:number] == list(range(1, number + 1))


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of so many bytes; where none may be mounted, a limit on the size of any file does the same."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        (folder / "ballast").touch()
        yield folder
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_damage_and_absence_are_an_empty_history(runtime: Path) -> None:
    """Who attaches to a run without a usable recording sees nothing, not a traceback."""
    assert list(read_history(runtime / "none.db")) == []
    (runtime / "noise.db").write_bytes(b"noise" * 1000)
    assert list(read_history(runtime / "noise.db")) == []
    connection = sqlite3.connect(runtime / "old.db")
    connection.execute("CREATE TABLE other(a)")
    connection.close()
    assert list(read_history(runtime / "old.db")) == []


def test_what_was_published_before_anybody_listened_is_asked_for(context: zmq.Context[Any], runtime: Path) -> None:
    """Older records come before newer ones in the file, none twice; a successor asks only for what is missing."""
    database, pub, cmd = runtime / "run.db", f"ipc://{runtime}/0.pub", f"ipc://{runtime}/0.cmd"
    rank = Rank(context, pub)
    with context.socket(zmq.ROUTER) as answering:
        answering.linger = 0
        answering.bind(cmd)
        for first, last in ((0, 3), (4, 9)):
            recording = Recorder(context, database, 1, lambda text, level: None)
            recording.start()
            recording.follow(member(pub, cmd))
            rank.meet()
            assert answering.poll(1000 * DEADLINE_S)
            peer, question = answering.recv_multipart()
            command = wire.read_command(question)
            assert isinstance(command, wire.Fill)
            assert command.first_seq == first
            rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(last),)))
            older = wire.Steps(0, tuple(step(number) for number in range(first, last)))
            answering.send_multipart([peer, wire.encode(older)])
            answering.send_multipart([peer, wire.encode(wire.Reply(command.id, True))])
            until(lambda: _numbers(database)[-1:] == [last], "the newest")  # noqa: B023 # used at once
            assert recording.close()
            rank.farewell()
    assert _numbers(database) == list(range(10))
    rank.socket.close()


def test_steps_that_cannot_be_do_not_silence_their_rank(context: zmq.Context[Any], runtime: Path) -> None:
    """Of another generation than the rank's record, or of a far future: the true ones after them are recorded."""
    database, address = runtime / "run.db", f"ipc://{runtime}/0.pub"
    rank = Rank(context, address)
    recording = Recorder(context, database, 1, lambda text, level: None)
    recording.start()
    recording.follow(member(address))
    rank.meet()
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(0),)), wire.Steps(0, (step(1),), 1))
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(2**60),)), wire.Steps(0, (step(2**31),)))
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(1),)))
    until(lambda: _numbers(database) == [0, 1], "the true ones")
    recording.follow(msgspec.structs.replace(member(address), generation=1))
    until(lambda: recording._generation == 1, "that the restart is known")
    rank.publish(wire.TOPIC_STEPS, wire.Steps(0, (step(0),), 1))
    until(lambda: _numbers(database) == [0, 1, 0], "those of the new generation")
    assert recording.close()
    rank.socket.close()


def _numbers(database: Path) -> list[int]:
    return [each.seq for message in read_history(database) if isinstance(message, wire.Steps) for each in message.steps]


def test_a_fill_lasts_as_long_as_something_of_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that come in for 20 s in all are all kept; a rank that falls silent in the middle is given up."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Asked:
        closed = False
        waiting: ClassVar[list[bytes]] = []

        def recv(self, _: int) -> bytes:
            if not self.waiting:
                raise zmq.Again
            return self.waiting.pop()

        def close(self, linger: int = 0) -> None:
            self.closed = True

    made: Any = Recorder.__new__(Recorder)
    asked = Asked()
    made._stop, made._newest, made._held_up, made._world = threading.Event(), {}, False, 1
    made._generation, made._reached = 0, {}
    made._fills = {0: recorder._Fill(asked, recorder.FILL_S)}  # type: ignore[arg-type]
    for number in range(5):
        clock[0] += 4.0
        asked.waiting.append(wire.encode(wire.Steps(0, (step(number),))))
        assert len(made._receive_fills()) == 1
    assert not asked.closed
    clock[0] += 5.1
    assert made._receive_fills() == []
    assert asked.closed

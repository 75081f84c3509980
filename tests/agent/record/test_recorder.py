"""Recording a run and giving it back."""

from __future__ import annotations

import contextlib
import queue
import resource
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bases import marked
from support.fakes.events import SaidEvents
from support.harness import DEADLINE_S, until
from support.values.recordings import read_history

from ddptop.agent import wire
from ddptop.agent.observer.relay.intake import is_sound
from ddptop.agent.record import recorder
from ddptop.agent.record import recording as recording_file
from ddptop.agent.record.history.rows import Rows
from ddptop.agent.record.inbox import MOST_BYTES, Asked, Inbox, Judged, Own, Told
from ddptop.agent.record.recorder import Recorder
from ddptop.agent.record.ring import MOST_EVENTS
from ddptop.agent.run.identity import Process

HELLO = wire.Hello(wire.PROTOCOL, "r", "id", 0, 0, 1, 1, 0, "host", "p", "0", "3")


def step(seq: int) -> wire.Step:
    """Return the record of a step."""
    return wire.Step(seq, seq + 1, 0, 10, 1, 2, 3, 4, 0, 0, loss=0.5)


def beat(number: int) -> wire.Beat:
    """Return a sign of life after `number` steps."""
    return wire.Beat(0, number, "running", "forward", number, None, number)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the recorder wait briefly between batches."""
    monkeypatch.setattr(recorder, "BATCH_S", 0.05)


def put(recording: Recorder, *messages: wire.Telemetry) -> None:
    """Hand over messages of a rank."""
    for message in messages:
        assert recording.put(message, wire.encode(message))


def test_round_trip_also_while_writing(runtime: Path) -> None:
    """A reader sees what was recorded so far; at the end it all is there, in order, in one file."""
    database = runtime / "run.db"
    recording = Recorder(database, 1, SaidEvents())
    recording.start()
    recording.follow(0, 0)
    put(recording, HELLO, wire.Steps(0, (step(0), step(1))))
    until(lambda: list(read_history(database)) == [HELLO, wire.Steps(0, (step(0), step(1)))], "the first batch")
    put(recording, *(wire.Steps(0, (step(n),)) for n in range(2, 500)))
    put(recording, beat(1), beat(500))
    event = wire.Event(7, "rank 0 finished", 0)
    recording.add(event)
    until(lambda: beat(500) in list(read_history(database)), "the last batch")
    assert recording.close()
    history = list(read_history(database))
    assert history[0] == HELLO
    steps = [each for message in history if isinstance(message, wire.Steps) for each in message.steps]
    assert steps == [step(n) for n in range(500)]
    assert history[-2:] == [event, beat(500)]
    assert sorted(path.name for path in runtime.glob("run.db*")) == ["run.db"]


def test_where_ranks_stood_is_recorded_in_place_of_an_earlier_moment(runtime: Path) -> None:
    """The last hang alone, by rank, while the recorder still writes; a file without one has none."""
    database = runtime / "run.db"
    assert recording_file.read_inspections(database) == []
    recording = Recorder(database, 3, SaidEvents())
    recording.start()
    before = [wire.Inspection(rank, 5, "agent", 7, threads=(wire.Thread("main"),)) for rank in (2, 0)]
    recording.inspect(before)
    until(lambda: recording_file.read_inspections(database) == before[::-1], "the first moment")
    after = wire.Inspection(1, 6, "py-spy", 8, status="stopped")
    recording.inspect([after])
    until(lambda: recording_file.read_inspections(database) == [after], "the second moment")
    assert list(read_history(database)) == []
    assert recording.close()


def test_the_last_frames_are_recorded_in_place_of_those_before(runtime: Path) -> None:
    """Those of fewer ranks, too; what cannot be read of them costs itself, and an older file has none."""
    database = runtime / "run.db"
    assert recording_file.read_frames(database) == (None, {})
    recording = Recorder(database, 3, SaidEvents())
    recording.start()

    def keep(*ranks: wire.RankFrame, state: str) -> wire.RunFrame:
        run = wire.RunFrame(run="r", at=1.0, state=state, program="toy.py", world=len(ranks))
        recording.keep(wire.encode(run), [wire.encode(rank) for rank in ranks])
        return run

    one, two, other = (
        wire.RankFrame(rank=rank, state=state, activity="") for rank, state in ((0, "a"), (1, "a"), (0, "b"))
    )
    first = keep(one, two, state="running")
    until(lambda: recording_file.read_frames(database) == (first, {0: one, 1: two}), "the first frames")
    last = keep(other, state="finished")
    assert recording.close()
    assert recording_file.read_frames(database) == (last, {0: other})
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE frames SET payload = x'ff' WHERE rank = 0")
        connection.execute("INSERT INTO frames VALUES(1, NULL), (2, ?)", (wire.encode(two),))
    assert recording_file.read_frames(database) == (last, {1: two})


def test_an_error_of_the_history_costs_the_history(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once; the records are written, and the numbers that come after it too."""
    database, said = runtime / "run.db", SaidEvents()
    recording = Recorder(database, 1, said)
    recording.start()
    with monkeypatch.context() as broken:
        broken.setattr(Rows, "settled", lambda rows: 1 / 0)
        put(recording, HELLO, wire.Steps(0, (step(1),)), wire.Steps(0, (step(2),)))
        until(lambda: wire.Steps(0, (step(2),)) in list(read_history(database)), "the records")
    put(recording, wire.Steps(0, (step(3), step(4))))
    until(lambda: newest(recording) == 5, "the numbers")
    assert recording.close()
    assert len(said.texts) == 1
    assert "ZeroDivisionError" in said.texts[0]
    assert len([each for each in read_history(database) if isinstance(each, wire.Steps)]) == 3


def test_another_process_of_a_rank_counts_from_one_again(runtime: Path) -> None:
    """In a job that nobody restarts as a whole; the same process, found again, is the same."""
    recording = Recorder(runtime / "run.db", 1, SaidEvents())
    recording.start()
    for process, steps in ((Process(7, 1.0), (1, 2, 3)), (Process(7, 1.0), (1, 2)), (Process(8, 2.0), (1, 2))):
        recording.follow(0, 0, process)
        put(recording, *(wire.Steps(0, (step(number),)) for number in steps))
        until(lambda: newest(recording) is not None, "an answer")
        assert newest(recording) == (3 if process.pid == 8 else 4)
    assert recording.close()


def newest(recording: Recorder) -> int | None:
    """Return the last step of the history, by the answer to a question; None while the file is not read."""
    answered: queue.SimpleQueue[wire.HistoryAnswer] = queue.SimpleQueue()
    recording.ask(Asked(wire.History(1), answered.put))
    extent = answered.get(timeout=DEADLINE_S)
    return extent.newest if isinstance(extent, wire.Extent) and extent.complete else None


def test_a_file_that_cannot_be_written_is_said_once(runtime: Path) -> None:
    """It makes one event, however many batches fail, and hurts nobody."""
    said = SaidEvents()
    (runtime / "folder.db").mkdir()
    broken = Recorder(runtime / "folder.db", 1, said)
    broken.start()
    broken.add(wire.Event(1, "a"))
    until(lambda: broken.failures == 1, "the first failure")
    broken.add(wire.Event(2, "b"))
    until(lambda: broken.failures == 2, "the second failure")
    assert broken.close()
    assert said.texts == [f"recording fails, history will have gaps: {runtime / 'folder.db'}: a folder, or a link"]


def test_one_odd_message_costs_itself(runtime: Path) -> None:
    """A note with an impossible time, a verdict with an impossible one: others are."""
    said = SaidEvents()
    database = runtime / "run.db"
    recording = Recorder(database, 1, said)
    recording.start()
    recording.add(wire.Event(2**64 - 1, "far in the future", 10**18, "strange"))
    recording.add(wire.Event(-5, "before the epoch"))
    recording.add(wire.Event(6, "a lone \udc80 surrogate"))
    recording.judge(wire.Verdict(1, "slow_rank", "odd", 2**70))
    put(recording, beat(7))
    until(lambda: beat(7) in list(read_history(database)), "the beat after all that")
    assert recording.close()
    events = {each.text: each for each in read_history(database) if isinstance(each, wire.Event)}
    assert events.keys() == {"far in the future", "before the epoch", "a lone ? surrogate"}
    assert all(0 <= each.at_ns < 2**63 and each.rank is None and each.level == "info" for each in events.values())
    assert recording_file.read_verdicts(database) == []
    assert (recording.refused, recording.faults) == (1, 1)
    assert len([text for text in said.texts if "was not recorded" in text]) == len(set(said.texts))


def test_a_slow_disk_costs_steps_and_no_event() -> None:
    """Beyond the bound steps are dropped and counted; of beats the newest stays, of events all."""
    inbox = Inbox()
    payload = bytes(1 << 20)
    taken = [inbox.put(Told(wire.Steps(0, (step(number),)), payload)) for number in range(100)]
    assert taken == [True] * (MOST_BYTES >> 20) + [False] * (100 - (MOST_BYTES >> 20))
    assert inbox.dropped == taken.count(False)
    assert not inbox.has_room
    for number in range(100):
        assert inbox.put(Told(beat(number), bytes(100)))
        assert inbox.put(Told(wire.Event(number, "x", 0), b""))
        assert inbox.put(Own(wire.Event(number, "y")))
    items = []
    while inbox:
        items += inbox.take(5 << 20)
    messages = [item.message for item in items if isinstance(item, Own | Told)]
    assert [message for message in messages if isinstance(message, wire.Beat)] == [beat(99)]
    assert [message.at_ns for message in messages if isinstance(message, wire.Event) and message.text == "x"] == [
        *range(100)
    ]
    assert len([message for message in messages if isinstance(message, wire.Event)]) == 200
    assert inbox.bytes == 0
    assert inbox.has_room


def test_events_and_verdicts_are_bounded_too() -> None:
    """While the disk hangs: the newest events stay, whoever says them; of each verdict the newest."""
    inbox, extra = Inbox(), 100
    for number in range(MOST_EVENTS + extra):
        event = wire.Event(number, "x")
        assert inbox.put(Own(event) if number % 2 else Told(event, b"x"))
    for number in range(1_000):
        inbox.put(Judged(wire.Verdict(number % 2, "slow_rank", str(number), number)))
    items = inbox.take(MOST_BYTES)
    assert [item.verdict.text for item in items if isinstance(item, Judged)] == ["998", "999"]
    assert len(items) == MOST_EVENTS + 2
    oldest = items[2]
    assert isinstance(oldest, Own | Told)
    assert oldest.message == wire.Event(extra, "x")
    assert inbox.dropped == extra
    assert not inbox
    assert inbox.put(Own(wire.Event(0, "x")))


_texts = st.text(st.characters(), max_size=30)
_numbers_of_any_size = st.integers(-(2**80), 2**80)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.builds(wire.Event, _numbers_of_any_size, _texts, _numbers_of_any_size | st.none(), _texts, _texts, _texts))
def test_an_event_can_be_stored_whatever_it_says(tmp_path: Path, event: wire.Event) -> None:
    """Valid types with hostile values give a row that SQLite takes."""
    (row,) = Recorder(tmp_path / "run.db", 2, SaidEvents())._guarded(Own(event))
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE events(at_ns INTEGER, payload BLOB)")
    connection.execute(*row)
    for (payload,) in connection.execute("SELECT payload FROM events"):
        wire.read_telemetry(payload)
    connection.close()


@settings(deadline=None, max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        | st.builds(wire.Summary, *[small] * 13)
        | st.builds(lambda rank, of: msgspec.structs.replace(HELLO, rank=rank, generation=of), small, small)
    )
    recording = Recorder(tmp_path / "run.db", 2, SaidEvents())
    payload = wire.encode(message)
    try:
        read = wire.read_telemetry(payload)
    except wire.Unreadable:
        return
    stored = is_sound(read, len(payload), 2, 0) and not isinstance(read, wire.Summary)
    rows = recording._guarded(Told(read, payload)) if stored else []
    # Steps of a rank that may just have begun anew are asked for as soon as its record says so.
    early = isinstance(message, wire.Steps) and message.generation == 1
    assert (len(rows) == 0) == (not stored or recording.refused == 1 or early)
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
    for read in (read_history, recording_file.read_steps, recording_file.read_events, recording_file.read_beats):
        list(read(database))
    list(recording_file.read_steps(database, 5))
    recording_file.read_frames(database)
    recording_file.last_recorded(database)


def test_logs_are_in_the_budget(tmp_path: Path) -> None:
    """They take half of it at most; what they take, the recording does not."""
    log = marked(tmp_path) / "rank-0.log"
    log.write_bytes(b"a line\n" * 300_000)
    recording = Recorder(tmp_path / "run.db", 1, SaidEvents(), budget=1 << 20, logs=tmp_path)
    recording.start()
    until(lambda: 0 < log.lstat().st_blocks * 512 <= 1 << 19, "the log to be cut")
    assert recording.close()
    assert log.read_bytes().startswith(b"a line\n")
    assert log.read_bytes().endswith(b"a line\n")
    assert (1 << 19) <= recording._room < (1 << 20) - (1 << 18)


def test_logs_are_cut_to_what_a_file_that_has_grown_leaves(tmp_path: Path) -> None:
    """The file never becomes smaller, so that together they keep within the budget; a share stays for the logs."""
    budget = 8 << 20
    log, database = marked(tmp_path) / "rank-0.log", tmp_path / "run.db"
    recording = Recorder(database, 1, SaidEvents(), budget=budget, logs=tmp_path)
    for grown, most in ((6 << 20, 2 << 20), (9 << 20, 1 << 20)):
        log.write_bytes(b"a line\n" * 1_000_000)
        database.write_bytes(b"x" * grown)
        recording._logs_due = 0.0
        recording._bound_sizes()
        assert most // 2 <= log.lstat().st_blocks * 512 <= most


def test_a_full_disk_costs_steps_and_no_event(tmp_path: Path) -> None:
    """On a file system without room the recorder says so once, goes on, and writes the events when there is room."""
    said = SaidEvents()
    with small_disk(tmp_path, 1 << 20) as disk:
        ballast = disk / "ballast"
        recording = Recorder(disk / "run.db", 1, said)
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
            until(lambda: not recording.inbox or recording.failures, "the event to be taken")
        ballast.unlink()
        until(lambda: len(list(read_history(disk / "run.db"))) >= number, "the events that waited")
        assert recording.close()
        assert len([text for text in said.texts if "recording fails" in text]) == 1
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


def test_only_a_plain_file_is_read(runtime: Path) -> None:
    """What stands behind a link, or beside it for SQLite to open, is somebody else's."""
    database = runtime / "run.db"
    connection = recording_file.open_file(database)
    with connection:
        connection.execute(*recording_file.row(HELLO, wire.encode(HELLO)))
    recording_file.finish(connection)
    assert list(read_history(database)) == [HELLO]
    (runtime / "link.db").symlink_to(database)
    assert list(read_history(runtime / "link.db")) == []
    (runtime / "run.db-wal").symlink_to(database)
    assert list(read_history(database)) == []


def test_a_verdict_is_recorded_once(runtime: Path) -> None:
    """Each change replaces what was recorded under the number; of very many the newest stay."""
    database = runtime / "run.db"
    recording = Recorder(database, 1, SaidEvents())
    recording.start()
    first = wire.Verdict(1, "slow_rank", "rank 2 …", 5, rank=2)
    for verdict in (
        first,
        msgspec.structs.replace(first, text="rank 2 …!", until_at_ns=9),
        wire.Verdict(2, "x", "y", 7),
    ):
        recording.judge(verdict)
    recording.add(wire.Event(1, "a"))
    expected = [msgspec.structs.replace(first, text="rank 2 …!", until_at_ns=9), wire.Verdict(2, "x", "y", 7)]
    until(lambda: recording_file.read_verdicts(database) == expected, "both")
    recording.judge(wire.Verdict(recording_file.MOST_VERDICTS + 2, "x", "z", 8))
    assert recording.close()
    assert [each.number for each in recording_file.read_verdicts(database)] == [recording_file.MOST_VERDICTS + 2]
    assert recording_file.read_verdicts(runtime / "none.db") == []

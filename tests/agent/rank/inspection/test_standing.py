"""Real ranks that stand in and before collectives, asked by a process that knows only their sockets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq
from support.harness import DEADLINE_S, until, write_script
from support.processes.ranks import FORKED, observed
from support.values.messages import read_reply

from ddptop.agent import wire

SCRIPT = Path(__file__).with_name("standing_script.py")


PLACES = {"late": 1, "message": 1, "buckets": 1, "untimed": 1, "begun": 1, "functional": 1, "done": 0}
"""By place at which the ranks stand, the open calls that rank 0 comes to have there."""
_BUSY_S = 5 * DEADLINE_S
"""Seconds for what is sure to come, also where the ranks share the cores with many times as much work."""
_PATIENCE_S = 100.0
"""How long rank 0 may take from its word that it will stand somewhere to the call in which it does."""


@dataclass
class Seen:
    """What two ranks have told at each place."""

    by: str
    """`hooks`, `wrapper`, or `counted`: with hooks, in steps that are only counted."""
    pids: list[int]
    told: dict[str, tuple[wire.Inspection, wire.Inspection]]
    exit_codes: list[int | None]


def inspect(socket: zmq.Socket[bytes]) -> wire.Inspection:
    """Ask a rank where it stands."""
    socket.send(wire.encode(wire.Inspect(7)))
    assert socket.poll(int(1000 * _BUSY_S)), "no answer"
    reply = read_reply(socket.recv())
    assert (reply.id, reply.done) == (7, True)
    assert reply.inspection is not None
    return reply.inspection


@pytest.fixture(scope="module", params=["hooks", "wrapper", "counted"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Ask two ranks at all places, by torch's hooks and without."""
    folder = tmp_path_factory.mktemp("standing")
    name = f"standing-{request.param}"
    script = write_script(folder, SCRIPT.read_text(), SCRIPT.name)
    env = {"wrapper": {"NO_HOOKS": "1"}, "counted": {"ONLY_COUNTED": "1"}}.get(request.param, {})
    told = {}
    with observed(name, script, str(folder), env=env) as (directory, ranks), zmq.Context() as context:
        try:

            def comes(condition: Callable[[], bool], what: str) -> None:
                until(lambda: condition() or ranks.code is not None, what, _BUSY_S)
                assert ranks.code is None, f"the ranks have ended before: {what}"

            sockets = [context.socket(zmq.DEALER) for _ in range(2)]
            for rank, socket in enumerate(sockets):
                socket.linger = 0
                socket.connect(directory.address(rank, "cmd"))
            for place, count in PLACES.items():
                comes(lambda: all((folder / f"{place}-{rank}").exists() for rank in range(2)), place)  # noqa: B023
                late = time.monotonic() + _PATIENCE_S
                # What is missing after that the tests will tell.
                # Without hooks a functional collective is not seen.
                unseen = place == "functional" and request.param == "wrapper"
                while time.monotonic() < late:
                    waits = inspect(sockets[0])
                    # Of calls that are not timed, torch's own record tells a second later which are complete.
                    told_all = request.param != "counted" or all(call.sure for call in waits.open)
                    if len(waits.open) >= count - unseen and told_all:
                        break
                    time.sleep(0.05)
                told[place] = waits, inspect(sockets[1])
                (folder / f"go-{place}").touch()
            ranks.wait(_BUSY_S)
            members = directory.members()
            ended = [members[rank].ended for rank in range(2)]
        finally:
            context.destroy(linger=0)
    codes = [None if each is None else each.exit_code for each in ended]
    return Seen(request.param, [members[rank].process.pid for rank in range(2)], told, codes)


def line_of(text: str) -> int:
    """Return the number of the only line of the script that holds a text."""
    (found,) = [number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line]
    return found


def users(thread: wire.Thread) -> list[wire.Frame]:
    """Return the frames of the user's code, without that of the test, which has forked the ranks."""
    return [frame for frame in thread.frames if not frame.library and not frame.file.endswith(f"/{FORKED.name}")]


def calls(told: wire.Inspection) -> dict[str, int]:
    """Return the calls of each group."""
    return {each.group: each.calls for each in told.groups}


def test_one_stands_in_a_call_that_the_other_has_not_made(seen: Seen) -> None:
    """Numbers, sizes and ranks of the call that waits and of the calls made."""
    waits, late = seen.told["late"]
    (call,) = waits.open
    (default,) = [each for each in waits.groups if each.group == call.group]
    (pair,) = [each for each in waits.groups if each.group != call.group]
    assert (call.op, call.number, call.bytes, call.blocking, call.sure) == ("all_reduce", 4, 4000, True, True)
    assert 0 < call.open_ns < 1e9 * _BUSY_S
    assert (default.calls, default.ranks, pair.calls, pair.ranks) == (4, (0, 1), 1, (0, 1))
    assert default.recent == (wire.PastCall("all_reduce", 4000, "float32[1000]"),) * 4
    assert pair.recent == (wire.PastCall("broadcast", 4000, "float32[1000]"),)
    assert (late.open, calls(late)) == ((), {default.group: 3, pair.group: 1})
    # Without hooks the first step has to be over: DDP's constructor communicates unseen.
    assert (waits.observed, late.observed) == ((True, True) if seen.by != "wrapper" else (False, False))
    assert [(told.rank, told.by, told.pid, told.problem) for told in (waits, late)] == [
        (rank, "agent", pid, "") for rank, pid in enumerate(seen.pids)
    ]


def test_each_stands_on_the_line_of_its_script(seen: Seen) -> None:
    """The main thread comes first, the user's line has its text, and all else around it is a library's or ours."""
    waits, late = (told.threads[0] for told in seen.told["late"])
    assert [(main.main, main.native_id) for main in (waits, late)] == [(True, pid) for pid in seen.pids]
    (line,) = users(waits)
    assert (line.file, line.line, line.function) == (SCRIPT.name, line_of("rank 0 stands here"), "<module>")
    assert line.source == "dist.all_reduce(x)  # rank 0 stands here"
    assert any(frame.file.startswith("torch/distributed/") for frame in waits.frames)
    line, outer = users(late)
    assert (line.function, line.source) == ("sleep_until", "time.sleep(0.01)  # it sleeps here")
    assert outer.function == "<module>"
    assert not any(thread.name.startswith("ddptop") for told in seen.told["late"] for thread in told.threads)


def test_a_receive_is_open_and_not_counted(seen: Seen) -> None:
    """Only two ranks take part: its number is no evidence against the others."""
    waits, _ = seen.told["message"]
    (call,) = waits.open
    assert (call.op, call.number, call.bytes, call.blocking, call.sure) == ("recv", 0, 4000, True, True)
    assert max(calls(waits).values()) == 4


def test_the_buckets_of_a_backward_pass_are_open(seen: Seen) -> None:
    """DDP calls them in C++; rank 1, which has not begun, has made fewer calls, by as many."""
    waits, late = seen.told["buckets"]
    assert {(call.op, call.sure) for call in waits.open} == {("all_reduce", True)}
    group = waits.open[0].group
    assert calls(late)[group] == calls(waits)[group] - len(waits.open) == waits.open[0].number - 1
    assert late.open == ()
    assert (waits.state, waits.activity) == ("running", "backward")


def test_a_call_that_blocks_is_known_where_completion_is_not_reported(seen: Seen) -> None:
    """Where there are too many calls to time, the one before it, which has completed, is not taken for open."""
    waits, late = seen.told["untimed"]
    (call,) = waits.open
    assert (call.op, call.blocking, call.sure, call.bytes) == ("all_reduce", True, True, 4000)
    assert call.number == calls(waits)[call.group] == calls(late)[call.group] + 1
    # The first step is over.
    assert waits.observed


def test_of_calls_that_were_only_begun_torchs_record_tells_which_is_complete(seen: Seen) -> None:
    """Of two that nobody has waited for, the first has completed."""
    waits, _ = seen.told["begun"]
    assert [(call.bytes, call.sure, call.blocking) for call in waits.open] == [(36, True, False)]


def test_a_functional_collective_blocks_where_its_result_is_used(seen: Seen) -> None:
    """Without torch's hooks nobody sees its call: then it is not said any more that all are seen."""
    waits, late = seen.told["functional"]
    if seen.by != "wrapper":
        (call,) = waits.open
        assert (call.op, call.bytes, call.sure) == ("all_reduce", 4000, True)
        # In a step that is only counted nobody says which of several calls the wait is for.
        assert call.blocking or seen.by == "counted"
        assert calls(waits)[call.group] == calls(late)[call.group] + 1
    assert waits.observed == late.observed == (seen.by != "wrapper")


def test_at_the_end_nothing_is_open_and_both_have_made_the_same_calls(seen: Seen) -> None:
    """The ranks end as if nobody had asked."""
    told = seen.told["done"]
    assert [each.open for each in told] == [(), ()]
    assert calls(told[0]) == calls(told[1])
    assert seen.exit_codes == [0, 0]

"""What counts as progress between two inspections of a rank."""

from __future__ import annotations

import msgspec
import pytest
from support.processes.standing import REDUCE, Spot, called, in_library, in_user_code, waits

from ddptop.agent.observer.judge.hang.looks import has_advanced, spins_in_user_code, stands_still
from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.wire import Inspection, OpenCall


def stood(spot: Spot, seconds: float = 0.0, step: int = 5) -> Inspection:
    """Return the inspection of a rank at a time."""
    return spot.inspection(0, step, 100 * ONE + int(seconds * ONE))


@pytest.mark.parametrize(
    "after",
    [
        stood(waits(7, seconds=11), 1, step=6),
        stood(Spot(calls=8), 1),
        stood(Spot(calls=7), 1),
        stood(waits(7, seconds=0.1), 1),
        msgspec.structs.replace(stood(waits(7, seconds=11), 1), pid=9),
    ],
    ids=["step", "call", "completed", "called anew", "process"],
)
def test_a_step_a_call_or_its_end_is_progress(after):
    """Each by itself."""
    before = stood(waits(7, seconds=10))
    assert has_advanced(before, after)
    assert not has_advanced(before, stood(waits(7, seconds=11), 1))


def test_receives_have_no_number_and_are_told_apart_by_their_age():
    """One that began after the first look is another one."""
    recv = OpenCall("recv", "0", 0, 64, ONE)
    before = stood(Spot(open=recv, calls=3))
    same = msgspec.structs.replace(recv, open_ns=2 * ONE)
    assert not has_advanced(before, stood(Spot(open=same, calls=3), 1))
    other = msgspec.structs.replace(recv, open_ns=ONE // 4)
    assert has_advanced(before, stood(Spot(open=other, calls=3), 1))


def test_a_look_from_outside_shows_no_calls_that_could_have_ended():
    """What it does not see says nothing."""
    before = stood(Spot(open=called(7, REDUCE, seconds=3), calls=7))
    assert not has_advanced(before, stood(Spot(by="py-spy"), 1))


def test_the_step_that_an_agent_tells_after_a_look_from_outside_is_no_progress():
    """A look from outside does not show the step, and its 0 is none."""
    outside = stood(Spot(silent=True))
    assert outside.step == 0
    assert not has_advanced(outside, stood(waits(7, seconds=11), 1))


def test_only_a_loop_of_the_users_own_lines_spins():
    """Libraries below the lines that change are work; a sleep inside of a library is neither."""
    loop = [in_user_code(line) for line in (31, 32, 31)]
    assert spins_in_user_code(loop)
    assert not stands_still(loop)
    assert not spins_in_user_code([in_library("torch/nn/functional.py", "linear", line) for line in (1, 2, 3)])
    assert not spins_in_user_code([in_user_code(31), in_library("torch/nn/functional.py", "linear"), in_user_code(31)])

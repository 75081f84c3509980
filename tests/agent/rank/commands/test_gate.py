"""The gate holds a group at one step, whatever the ranks were doing when it was asked."""

from __future__ import annotations

import random
import threading

import pytest
from support.fakes.clocks import Clock
from support.harness import until

from ddptop.agent.rank.commands.gate import Gate, GateError
from ddptop.agent.wire import Saved


def step_of(gate: Gate) -> bool:
    """Do what a training thread does at the end of a step; return whether it was held."""
    gate.completed += 1
    return gate.limit is not None and gate.wait()


def test_an_open_gate_lets_steps_pass():
    """Without a command a boundary only counts."""
    gate = Gate()
    assert [step_of(gate) for _ in range(3)] == [False] * 3
    assert gate.completed == 3


def test_a_promise_lapses_by_itself():
    """A controller that dies before the commit costs nothing."""
    clock = Clock(0.0)
    gate = Gate(clock)
    assert gate.promise("a", 4.0) == 1
    clock.now = 5.0
    assert step_of(gate) is False
    with pytest.raises(GateError, match="lapsed"):
        gate.commit("a", 1, 4.0)


def test_a_held_rank_is_let_go_when_its_promise_lapses():
    """The training thread itself wakes from an uncommitted hold."""
    gate = Gate()
    gate.promise("a", 0.05)
    assert step_of(gate) is True
    assert gate.limit is None


def test_the_lease_of_another_action_ends_and_a_pause_does_not():
    """An observer that comes later has the promise at once, and the one before nothing; a paused rank is refused."""
    gate = Gate()
    assert gate.promise("a", 60) == gate.promise("b", 60) == 1
    for late in (lambda: gate.commit("a", 1, 4.0), lambda: gate.keep("a")):
        with pytest.raises(GateError, match="lapsed"):
            late()
    gate.resume("a")
    gate.keep("b")
    gate.keep("b")
    gate.resume("b")
    with pytest.raises(GateError, match="already paused at step 1"):
        gate.promise("c", 60)


def test_a_commit_never_lies_behind_the_promise():
    """A rank cannot be told to hold at a step that it may have passed."""
    gate = Gate()
    step_of(gate)
    assert gate.promise("a", 60) == 2
    with pytest.raises(GateError):
        gate.commit("a", 1, 60)


class Meanwhile(Gate):
    """A gate whose training thread ends a step each time when somebody has just read how many there were."""

    def __init__(self) -> None:
        self._completed, self.passing = 0, 0
        super().__init__()

    @property
    def completed(self) -> int:
        read = self._completed
        if self.passing:
            self.passing -= 1
            self._completed += 1
        return read

    @completed.setter
    def completed(self, steps: int) -> None:
        self._completed = steps


@pytest.mark.parametrize("passing", range(4))
def test_a_step_that_ends_while_a_rank_promises_is_no_step_it_promised(passing: int) -> None:
    """The training thread counts without a lock: the promise is of a step that it has not passed, nor looked at."""
    gate = Meanwhile()
    gate.completed, gate.passing = 5, passing
    promised = gate.promise("a", 60)
    gate.passing = 0
    assert promised > gate.completed
    assert gate.limit == promised


def test_a_rank_that_is_being_ended_ends_though_somebody_resumes_it():
    """An end that reaches a rank on its way to a hold, and the end of that hold: the next boundary is its last."""
    gate = Gate()
    gate.promise("a", 60)
    gate.commit("a", 5, 60)
    gate.end("bob")
    gate.resume()
    gate.completed += 1
    assert gate.limit is not None
    assert gate.wait() is False
    assert gate.ended_by == "bob"


def test_ranks_in_lockstep_are_held_at_the_same_step():
    """Ranks that meet in a barrier each step, asked at random moments, all stop at one step, 200 times."""
    seed = random.Random(1)
    gates = [Gate() for _ in range(3)]
    barrier = threading.Barrier(len(gates))
    stop = threading.Event()

    def rank(gate: Gate) -> None:
        while not stop.is_set():
            try:
                barrier.wait(timeout=20)  # the collective of a step
            except threading.BrokenBarrierError:
                return
            step_of(gate)

    threads = [threading.Thread(target=rank, args=(gate,)) for gate in gates]
    for thread in threads:
        thread.start()
    try:
        for cycle in range(200):
            token = str(cycle)
            order = seed.sample(gates, len(gates))
            step = max(gate.promise(token, 60) for gate in order)
            for gate in order:
                gate.commit(token, step, 60)
            while not all(gate.held and gate.completed == step for gate in gates):
                assert not barrier.broken, "a rank was left waiting in the collective"
            for gate in order:
                gate.resume()
    finally:
        stop.set()
        barrier.abort()
        for gate in gates:
            gate.resume()
        for thread in threads:
            thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)


def test_a_lease_that_is_renewed_lasts_and_else_lapses():
    """Each commit with a lease renews it; a kept hold needs none."""
    clock = Clock(0.0)
    gate = Gate(clock)
    gate.promise("a", 4.0)
    for now in (3.0, 6.0, 9.0):
        clock.now = now
        gate.commit("a", 1, 4.0)
    clock.now = 13.5
    with pytest.raises(GateError, match="lapsed"):
        gate.commit("a", 1, 4.0)
    gate.promise("b", 4.0)
    gate.keep("b")
    clock.now = 1e6
    assert gate.limit == 1


def test_a_checkpoint_is_saved_once_on_the_training_thread():
    """However often it is asked for with one token, and the lease does not lapse meanwhile."""
    clock = Clock(0.0)
    gate = Gate(clock)
    calls = []
    entered, leave = threading.Event(), threading.Event()

    def work() -> Saved:
        calls.append(threading.current_thread())
        entered.set()
        leave.wait(20)
        return Saved(True, "/c.pt", 1)

    with pytest.raises(GateError, match="not held"):
        gate.do("a", "a", "saving a checkpoint", work)
    gate.promise("a", 4.0)
    training = threading.Thread(target=step_of, args=(gate,))
    training.start()
    while not gate.held:
        pass
    assert gate.do("a", "a", "saving a checkpoint", work) is None
    assert entered.wait(20)
    clock.now = 100.0
    assert gate.do("a", "a", "saving a checkpoint", work) is None
    leave.set()
    while gate.do("a", "a", "saving a checkpoint", work) is None:
        pass
    assert gate.do("a", "a", "saving a checkpoint", work) == Saved(True, "/c.pt", 1)
    assert calls == [training]
    gate.resume()
    training.join(20)


def test_work_that_the_script_breaks_off_is_not_done_a_second_time():
    """Its exception leaves the boundary; held at the next one, the rank refuses the same work, and does another."""
    gate = Gate()
    calls = []

    def work() -> Saved:
        calls.append(1)
        raise KeyboardInterrupt

    def train() -> None:
        with pytest.raises(KeyboardInterrupt):
            step_of(gate)
        step_of(gate)

    gate.promise("a", 60.0)
    training = threading.Thread(target=train)
    training.start()
    while not gate.held:
        pass
    assert gate.do("a", "part 1", "probing", work) is None
    while not calls or not gate.held:
        pass
    with pytest.raises(GateError, match="its script broke it off while probing"):
        gate.do("a", "part 1", "probing", work)
    while gate.do("a", "part 2", "probing", lambda: Saved(True, "", 1)) is None:
        pass
    assert len(calls) == 1
    gate.resume()
    training.join(20)


def test_an_end_reaches_the_held_and_the_running():
    """The boundary lets go and says so, at once and at every later one."""
    gate = Gate()
    gate.end("ada")
    assert step_of(gate) is False
    assert gate.ended_by == "ada"
    with pytest.raises(GateError, match="being ended by ada"):
        gate.promise("b", 4.0)


def test_the_end_of_a_hold_is_known_before_the_held_thread_wakes():
    """A heartbeat right after a step or a resume tells that the pause is over, and when it ended."""
    gate = Gate()
    gate.promise("a", 4.0)
    gate.keep("a")
    thread = threading.Thread(target=step_of, args=(gate,), daemon=True)
    thread.start()
    until(lambda: gate.held, "it is held")
    assert gate.released_at_ns is None
    with gate.lock:
        gate.advance(2)
        released = gate.released_at_ns
        assert released is not None
        assert gate.held_at_ns is not None
        assert gate.held_at_ns <= released
    thread.join()


def test_a_hold_for_some_work_has_a_purpose_and_a_pause_has_none() -> None:
    """Under a lease for as long as it lasts, also between two parts of the work; a new lease begins without one."""
    gate = Gate()
    gate.promise("a", 60)
    training = threading.Thread(target=step_of, args=(gate,))
    training.start()
    until(lambda: gate.held, "held")
    assert gate.purpose == ""
    gate.do("a", "part 1", "probing", lambda: 1)
    until(lambda: gate.do("a", "part 1", "probing", lambda: 1) == 1, "done")
    assert gate.purpose == "probing"
    gate.promise("b", 60)
    assert gate.purpose == ""
    gate.do("b", "save", "saving a checkpoint", lambda: 2)
    assert gate.purpose == "saving a checkpoint"
    until(lambda: gate.do("b", "save", "saving a checkpoint", lambda: 2) == 2, "saved")
    gate.keep("b")
    assert gate.purpose == ""
    gate.resume()
    training.join()
    assert gate.purpose == ""


def test_a_hold_that_a_signal_handler_breaks_off_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that raises while the end of the hold waits until it was said: a rank is not called held for ever."""
    gate = Gate()

    def interrupted(_: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(gate.is_told, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), gate.hold_up("counting"):
        assert gate.purpose == "counting"
    assert (gate.purpose, gate.held_up) == ("", None)

"""The agent joins ranks in the middle of their training, and leaves them; `tests/real` has it by Python 3.14 itself.

Here the script of the ranks executes what Python 3.14 would execute in their main threads.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.harness import WAIT, started, until
from support.processes.unprepared import Unprepared

from ddptop.agent import wire
from ddptop.agent.observer.actions import join as joining
from ddptop.agent.observer.actions.action import Action, Turns
from ddptop.agent.observer.actions.join import chosen_at
from ddptop.agent.rank import session
from ddptop.agent.rank.opening import arrival
from ddptop.agent.rank.opening.joining import begin
from ddptop.agent.run import identity, rundir
from ddptop.agent.run.files import joins
from ddptop.agent.run.files.joins import Answer
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.run.script.stacks import OWN_THREADS
from ddptop.agent.wire.vocabulary.refusals import Refused


class Job(Unprepared):
    """Two such ranks, and the way of an observer to them."""

    def __init__(self, folder: Path, steps: int = 0, *, by_hand: bool = False) -> None:
        """Start them."""
        super().__init__(folder, steps, by_hand=by_hand)
        self.context = zmq.Context()
        self.ranks = [0, 1]

    def are_at(self, step: int) -> bool:
        """Say whether both ranks have made so many steps since they have joined."""
        return all(self.send(rank, wire.Inspect(3, False)).step == step for rank in (0, 1))

    # In place of the observer's way to the ranks

    def send(self, rank: int, command: wire.Command) -> wire.Reply:
        """Send a command to a rank that has the agent."""
        with self.context.socket(zmq.DEALER) as asking:
            asking.linger = 0
            asking.connect(self.directory.address(rank, "cmd"))
            asking.send(wire.encode(command))
            assert asking.poll(60_000)
            reply = wire.read_answer(asking.recv())
            assert isinstance(reply, wire.Reply)
            return reply

    def tell(self, command: wire.Command, ranks: Any = None) -> None:
        """See `Ranks`; a rank that has left does not read it."""
        for rank in self.ranks if ranks is None else ranks:
            with self.context.socket(zmq.DEALER) as telling:
                telling.linger = 200
                telling.connect(self.directory.address(rank, "cmd"))
                telling.send(wire.encode(command))

    def ask(self, command: wire.Command, ranks: list[int] | None = None) -> Turns[dict[int, wire.Reply]]:
        """See `Ranks`."""
        yield 0.0
        return {rank: self.send(rank, command) for rank in (self.ranks if ranks is None else ranks)}

    def find(self) -> bool:
        """See `Ranks`."""
        return True

    def do(self, act: Callable[[Action], Turns[str]]) -> str:
        """Have an action done."""
        here: Any = self
        return done(act(Action(wire.Act(1, "join", "ada"), self.directory, here)))


def done(turns: Turns[str]) -> str:
    """Go on with an action until it is done, and return what has come of it."""
    while True:
        try:
            time.sleep(min(next(turns), 0.05))
        except StopIteration as end:
            return str(end.value)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Two ranks that train until they are told to end."""
    monkeypatch.setattr(joining, "_ask", lambda *_: "")
    found = Job(tmp_path, by_hand=True)
    try:
        found.await_training()
        yield found
    finally:
        found.context.destroy(linger=0)
        found.close()


def test_a_rank_that_the_agent_has_left_is_as_it_was_and_has_trained_the_same(job: Job, tmp_path: Path) -> None:
    """Twice: torch's functions are the very objects they were, nothing is left open, and the parameters are those of
    the same training without the agent; both ranks join and count the same steps.
    """
    held = 0
    for number in (1, 2):
        assert "has joined 2 ranks" in job.do(joining.join)
        assert all(each.by_agent for each in job.directory.members().values())
        steps = [job.send(rank, wire.Hold(1, "hold", 60_000)) for rank in (0, 1)]
        assert all(each.done for each in steps)
        held, before = max(each.step or 0 for each in steps), held
        assert held > before, "steps are counted on"
        for rank in (0, 1):
            assert job.send(rank, wire.Commit(2, "hold", held, 60_000)).done
        until(partial(job.are_at, held), "both to be held")
        with pytest.raises(Refused, match="resume the run first"):
            job.do(joining.leave)
        for rank in (0, 1):
            assert job.send(rank, wire.Resume(4)).done
        assert "has left 2 ranks" in job.do(joining.leave)
        assert job.look(number) == 2 * [[[], [], [], []]]
        assert not any(each.by_agent for each in job.directory.members().values())
    ended = job.end()
    plain = Unprepared(tmp_path, ended[0][0])
    try:
        assert plain.end() == ended
    finally:
        plain.close()


def answer(first: int, *numbers: int, group: str = "0") -> Answer:
    """The answer of a rank whose group had made so many calls at each boundary."""
    return Answer("waits", first=first, boundaries=[{group: number} for number in numbers])


def test_ranks_join_at_the_boundary_at_which_their_groups_have_made_as_many_calls() -> None:
    """However many boundaries each has counted before; a rank of another group by one that is in both."""
    found = {0: answer(1, 5, 6, 8, 9), 1: answer(7, 6, 8, 9, 10)}
    assert chosen_at(found, [0, 1], 2) == {0: 7, 1: 12}
    found[2] = Answer("waits", first=3, boundaries=[{"1": 4}, {"1": 5}, {"1": 6}])
    assert chosen_at(found, [0, 1, 2], 2) == {}
    both = [{"0": 8, "1": 4}, {"0": 9, "1": 5}, {"0": 10, "1": 6}]
    found[1] = Answer("waits", first=8, boundaries=both)
    assert chosen_at(found, [0, 1, 2], 1) == {0: 6, 1: 11, 2: 6}


def test_ranks_whose_calls_say_nothing_of_their_step_do_not_join() -> None:
    """A group that makes no calls has the same number at each boundary: any two of them would seem to be the same."""
    assert chosen_at({0: answer(1, 5, 5, 5), 1: answer(1, 5, 5, 5)}, [0, 1], 1) == {}
    assert chosen_at({0: answer(1, 5, 6, 7), 1: answer(1, 8, 9, 10)}, [0, 1], 1) == {}


@pytest.mark.parametrize(
    ("variable", "number", "said"),
    [
        ("PYTHON_DISABLE_REMOTE_DEBUG", signal.SIGCONT, "runs with PYTHON_DISABLE_REMOTE_DEBUG"),
        ("DDPTOP_NONE", signal.SIGSTOP, "is stopped, by a signal or a debugger"),
        pytest.param("DDPTOP_NONE", signal.SIGCONT, "joining takes 3.14 or newer; start the next one with",
                     marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python can be joined")),
    ],
)  # fmt: skip
def test_one_rank_that_cannot_be_asked_keeps_all_from_joining(variable: str, number: int, said: str) -> None:
    """The reason is one line with the rank; a process that somebody has stopped stays so, and no request is left."""
    run = Run(f"kept-{secrets.token_hex(3)}", "id", "train.py", (), 1, None, None, 1, False, outside=True)
    directory = rundir.create(run)
    with started(sys.executable, "-c", WAIT, env={**os.environ, variable: "1"}) as process:
        who = rundir.identify(process.pid)
        assert who is not None
        directory.write_member(Member(0, 0, 1, who, "host", 0, "", "", None, by_agent=False))
        process.send_signal(number)
        until(lambda: identity.is_stopped(who) == (number == signal.SIGSTOP), "it to be stopped")
        here: Any = None
        turns = joining.join(Action(wire.Act(1, "join", "ada"), directory, here))
        with pytest.raises(Refused, match=f"^rank 0 .*{said}"):
            done(turns)
        assert identity.is_stopped(who) == (number == signal.SIGSTOP)
        assert not list(directory.path.glob("join/*/request.json"))


class Deaf:
    """In the place of a publisher, where there are no descriptors."""

    def __init__(self, *_: object) -> None:
        """Fail."""
        raise OSError(24, "Too many open files")


def test_a_rank_whose_agent_cannot_be_heard_is_as_before(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is the one without an agent again, with the steps that it had, so that it is seen from outside."""
    directory = new_run(launched=False, outside=True)
    who = rundir.identify(os.getpid())
    assert who is not None
    before = Member(1, 1, 2, who, "host", 0, "", "", None, by_agent=False, steps=7)
    directory.write_member(before)
    monkeypatch.setattr(session, "Publisher", Deaf)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    exits = os._exit
    hooks: Any = None
    with pytest.raises(RuntimeError, match="cannot be heard"):
        begin(directory, before, hooks, [], 7)
    assert list(directory.reported()) == [before]
    assert rundir.RANK_VARIABLE not in os.environ
    assert os._exit is exits


def test_the_script_of_a_request_that_was_taken_back_does_nothing(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank may run it when the next request is there: it comes for that one by its own script alone, and once.

    The script is still there: Python would print into the output of the training that it is not.
    """
    came: list[str] = []
    run = new_run().path
    monkeypatch.setattr(arrival, "_wait_for_torch", came.append)
    package = str(Path(arrival.__file__).parents[2])
    made = [
        joins.begin(run, joins.Request(until, package, {}, "", {str(os.getpid()): 0}))
        for until in (time.monotonic() + 60, time.monotonic() - 60, time.monotonic() + 60)
    ]
    for folder in made:
        # What it needs to go on is not in the request, which is refused behind that.
        arrival._join(str(folder / joins.REQUEST))
    assert came == [str(made[-1] / joins.REQUEST)]
    assert joins.answers(made[-1], [0])[0].state == "refused"
    joins.forget(run)
    assert sorted(run.glob("join/*/*")) == sorted(folder / joins.SCRIPT for folder in made)
    arrived: dict[str, Any] = {}
    exec((made[0] / joins.SCRIPT).read_text(), arrived)
    assert "_names" in arrived
    assert len(came) == 1


def test_the_thread_by_which_a_rank_joins_is_known_as_ours(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shows the threads of the training leaves it out by its name."""
    names: list[str] = []
    monkeypatch.setattr(arrival, "_wait_for_torch", lambda _: names.append(threading.current_thread().name))
    package = str(Path(arrival.__file__).parents[2])
    request = joins.Request(time.monotonic() + 60, package, {}, "", {str(os.getpid()): 0})
    arrival.arrive(str(joins.begin(new_run().path, request) / joins.REQUEST))
    until(lambda: names, "the thread")
    assert names[0].startswith(OWN_THREADS)


def test_a_refusal_is_known_without_an_exit_status() -> None:
    """The main thread takes the status of every child, and Python then calls it 0."""
    run = Run("kept", "id", "train.py", (), 1, None, None, 1, False, outside=True)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with started("sleep", "600") as process:
            until(lambda: os.readlink(f"/proc/{process.pid}/exe") != os.readlink("/proc/self/exe"), "sleep to run")
            assert joining._ask(Path("script.py"), run, process.pid).startswith("cannot be asked: ")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_another_process_with_the_pid_of_a_rank_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank may end between the checks and its turn."""
    asked: list[int] = []
    monkeypatch.setattr(joining, "_ask", lambda *given: asked.append(given[-1]))
    run = Run("kept", "id", "train.py", (), 1, None, None, 1, False, outside=True)
    gone = Member(0, 0, 1, rundir.Process(os.getpid(), 1.0), "host", 0, "", "", None, by_agent=False)
    with pytest.raises(Refused, match=r"^rank 0 has ended; none has joined"):
        joining._ask_all(Path("script.py"), run, {0: gone})
    assert asked == []

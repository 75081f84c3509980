"""The agent joins ranks in the middle of their training, and leaves them; `tests/real` has it by Python 3.14 itself.

Here the script of the ranks executes what Python 3.14 would execute in their main threads.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import zmq
from support.harness import DEADLINE_S, until

from ddptop.agent import wire
from ddptop.agent.observer.actions import join as joining
from ddptop.agent.observer.actions.action import Action, Turns
from ddptop.agent.observer.actions.join import chosen_at
from ddptop.agent.run import rundir
from ddptop.agent.run.files.joins import Answer
from ddptop.agent.run.rundir import Member, Run
from ddptop.agent.wire.vocabulary.refusals import Refused

SCRIPT: Final = """
import faulthandler, gc, hashlib, json, os, signal, sys, threading, time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

folder, most, rank = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"])
torch.manual_seed(0)
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(rank)))

def scan():
    found = {"env": dict(os.environ), "meta_path": tuple(sys.meta_path), "stdout": sys.stdout}
    found |= {"excepthook": threading.excepthook, "faulthandler": (faulthandler.enable, faulthandler.is_enabled())}
    found |= {f"signal {number}": signal.getsignal(number) for number in range(1, 32)}
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"]
    for module in (*modules, os):
        kinds = [each for each in vars(module).values() if isinstance(each, type)]
        for owner in (module, *kinds):
            names = vars(owner).items()
            found |= {(id(owner), str(owner)[:80], name): value for name, value in list(names) if callable(value)}
    found["hooks"] = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    return found

def descriptors():
    numbers = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(each) for each in numbers if os.path.exists(each))

def threads():
    return sorted(open(f"/proc/self/task/{name}/comm").read() for name in os.listdir("/proc/self/task"))

steps, before, done, token, goes_on = 0, None, 0, "", True
while goes_on:
    for (x,) in DataLoader(data, batch_size=8):
        if steps == 5:
            before = scan(), descriptors(), threads()
            open(f"{folder}/trains-{rank}", "w").close()
        if steps > 5 and os.path.exists(f"{folder}/join/script.py"):
            try:
                now = json.load(open(f"{folder}/join/request.json"))["token"]
                text = open(f"{folder}/join/script.py").read()
            except FileNotFoundError:
                now = token
            if now != token:
                token = now
                exec(text, {})
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        steps += 1
        ends = torch.tensor(float(steps == most or os.path.exists(f"{folder}/end")))
        torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX)
        if ends.item():
            goes_on = False
            break
        if not most:
            time.sleep(0.01)
        if os.path.exists(f"{folder}/left-{done + 1}"):
            done += 1
            after = scan()
            was = before[0]
            changed = [str(key) for key in was if after.get(key) is not was[key] and after.get(key) != was[key]]
            ours = [str(key) for key in after if str(getattr(after[key], "__module__", "")).startswith("ddptop")]
            gc.collect()
            ours += [repr(each) for each in gc.get_objects() if type(each).__name__ in ("Session", "Collectives")]
            opened = [each for each in descriptors() if each not in before[1] and "memfd" not in each]
            begun = [each for each in threads() if each not in before[2]]
            with open(f"{folder}/found-{rank}-{done}.new", "w") as file:
                json.dump([changed, ours, opened, begun], file)
            os.replace(file.name, f"{folder}/found-{rank}-{done}")
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
with open(f"{folder}/digest-{rank}", "w") as file:
    json.dump([steps, digest], file)
torch.distributed.destroy_process_group()
"""


class Job:
    """Two ranks that nobody prepared, and the way of an observer to them."""

    def __init__(self, script: Path, steps: int = 0) -> None:
        """Start them; they end after so many steps, 0: when they are told."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.steps = steps
        name = f"late-{secrets.token_hex(3)}"
        run = Run(name, secrets.token_hex(8), "train.py", (), 2, None, None, time.time_ns(), False, outside=True)
        self.directory = rundir.create(run)
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(self.directory.path), str(steps)],
                env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in (0, 1)
        ]
        for rank, each in enumerate(self.processes):
            process = rundir.identify(each.pid)
            assert process is not None
            self.directory.write_member(Member(rank, rank, 2, process, "host", 0, "", "", None, by_agent=False))
        self.context = zmq.Context()
        self.ranks: list[int] = []

    def close(self) -> None:
        """End them."""
        self.context.destroy(linger=0)
        for each in self.processes:
            each.kill()
            each.wait()

    def end(self) -> list[Any]:
        """Have them end, unless they do so by themselves; return the number of steps and a digest, by rank."""
        if not self.steps:
            (self.directory.path / "end").touch()
        for each in self.processes:
            assert each.wait(DEADLINE_S) == 0
        return [json.loads((self.directory.path / f"digest-{rank}").read_text()) for rank in (0, 1)]

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
        """See `Ranks`."""
        for rank in self.ranks if ranks is None else ranks:
            self.send(rank, command)

    def ask(self, command: wire.Command, ranks: list[int]) -> Turns[dict[int, wire.Reply]]:
        """See `Ranks`."""
        yield 0.0
        return {rank: self.send(rank, command) for rank in ranks}

    def find(self) -> bool:
        """See `Ranks`."""
        return True

    def beats(self) -> list[int]:
        """See `Ranks`."""
        return self.ranks

    def do(self, act: Callable[[Action], Turns[str]]) -> str:
        """Have an action done."""
        here: Any = self
        turns = act(Action(wire.Act(1, "join", "ada"), self.directory, here))
        while True:
            try:
                time.sleep(next(turns))
            except StopIteration as end:
                return str(end.value)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script of the ranks."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def job(script: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Two ranks that train until they are told to end."""
    monkeypatch.setattr(joining, "_ask", lambda *_: "")
    found = Job(script)
    try:
        until(lambda: all((found.directory.path / f"trains-{rank}").exists() for rank in (0, 1)), "both to train")
        yield found
    finally:
        found.close()


def test_a_rank_that_the_agent_has_left_is_as_it_was_and_has_trained_the_same(job: Job, script: Path) -> None:
    """Twice: torch's functions are the very objects they were, nothing is left open, and the parameters are those of
    the same training without the agent; both ranks join and count the same steps.
    """
    for number in (1, 2):
        assert "has joined 2 ranks" in job.do(joining.join)
        assert all(each.by_agent for each in job.directory.members().values())
        steps = [job.send(rank, wire.Hold(1, "hold", 60_000)) for rank in (0, 1)]
        assert all(each.done for each in steps)
        held = max(each.step or 0 for each in steps)
        for rank in (0, 1):
            assert job.send(rank, wire.Commit(2, "hold", held, 60_000)).done
        until(partial(job.are_at, held), "both to be held")
        with pytest.raises(Refused, match="resume the run first"):
            job.do(joining.leave)
        for rank in (0, 1):
            assert job.send(rank, wire.Resume(4)).done
        assert "has left 2 ranks" in job.do(joining.leave)
        (job.directory.path / f"left-{number}").touch()
        for rank in (0, 1):
            file = job.directory.path / f"found-{rank}-{number}"
            until(file.exists, f"rank {rank} to look at itself")
            assert json.loads(file.read_text()) == [[], [], [], []]
        assert not any(each.by_agent for each in job.directory.members().values())
    ended = job.end()
    plain = Job(script, ended[0][0])
    try:
        assert plain.end() == ended
    finally:
        plain.close()


def answer(first: int, *numbers: int, group: str = "0") -> Answer:
    """The answer of a rank whose group had made so many calls at each boundary."""
    return Answer("token", "waits", first=first, boundaries=[{group: number} for number in numbers])


def test_ranks_join_at_the_boundary_at_which_their_groups_have_made_as_many_calls() -> None:
    """However many boundaries each has counted before; a rank of another group by one that is in both."""
    found = {0: answer(1, 5, 6, 8, 9), 1: answer(7, 6, 8, 9, 10)}
    assert chosen_at(found, [0, 1], 2) == {0: 7, 1: 12}
    found[2] = Answer("token", "waits", first=3, boundaries=[{"1": 4}, {"1": 5}, {"1": 6}])
    assert chosen_at(found, [0, 1, 2], 2) == {}
    both = [{"0": 8, "1": 4}, {"0": 9, "1": 5}, {"0": 10, "1": 6}]
    found[1] = Answer("token", "waits", first=8, boundaries=both)
    assert chosen_at(found, [0, 1, 2], 1) == {0: 6, 1: 11, 2: 6}


def test_ranks_whose_calls_say_nothing_of_their_step_do_not_join() -> None:
    """A group that makes no calls has the same number at each boundary: any two of them would seem to be the same."""
    assert chosen_at({0: answer(1, 5, 5, 5), 1: answer(1, 5, 5, 5)}, [0, 1], 1) == {}
    assert chosen_at({0: answer(1, 5, 6, 7), 1: answer(1, 8, 9, 10)}, [0, 1], 1) == {}

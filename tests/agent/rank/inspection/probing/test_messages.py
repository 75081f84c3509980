"""The ranks of a group measure messages together or not at all, and find each other again in the training's calls."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.harness import write_script
from support.processes.ranks import plain

from ddptop.agent.rank.inspection.probing import messages

SCRIPT = """
import json, signal, sys, threading, time
import torch, torch.distributed as dist

from ddptop.agent import wire
from ddptop.agent.rank.inspection.probing import messages
from ddptop.agent.rank.inspection.probing.experiments import Unmeasured

how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
device = torch.device("cpu")
group = dist.distributed_c10d._get_default_group()
said = {}

def number():
    return group._get_sequence_number_for_group()

def part(kind, part, **fields):
    try:
        done = messages.Messages(torch, device).run(wire.Probe(0, "token", part, kind, **fields))
    except (Unmeasured, MemoryError) as problem:
        return str(problem)
    carried = [[each.sender, each.receiver, each.size, len(each.large_s), len(each.small_s)] for each in done.carried]
    return [carried, len(done.small_s), len(done.large_s), done.problem]

class Interrupted(TimeoutError):
    pass

def handle(*_):
    raise Interrupted

def fail(*_):
    raise MemoryError("no memory")

store = dist.distributed_c10d._get_default_store()
dist.all_reduce(torch.ones(1))
keys = store.num_keys()
dist.all_reduce(torch.ones(1))
before = number()
if how == "whole":
    said["pairs"] = part("pairs", 1, size=70_000, rounds=(((0, 1),), ((1, 2),)))
    said["group"] = part("group", 2, size=70_000)
    dist.all_reduce(torch.ones(1))
    said["more keys"] = store.num_keys() - keys
elif how == "absent":
    if rank == 2:
        time.sleep(messages.COME_S + 1)
    said["group"] = part("group", 1, size=70_000)
elif how == "poor":
    if rank == 2:
        messages.Messages._bytes = fail
    said["group"] = part("group", 1, size=70_000)
elif how == "devices":
    if rank == 2:
        messages._device_of = lambda *_: torch.device("meta")
    said["group"] = part("group", 1, size=70_000)
elif how == "decided":
    if rank == 1:
        # All have decided, and this rank's script raises before its first call.
        agreed = messages.agreed
        messages.agreed = lambda *arguments: agreed(*arguments) and handle()
    try:
        said["pairs"] = part("pairs", 1, size=70_000, rounds=(((0, 1),), ((1, 2),)))
    except Interrupted:
        said["pairs"] = "interrupted"
elif how == "interrupted":
    if rank == 1:
        # Inside of the first call: the others wait for a rank that has left.
        signal.signal(signal.SIGALRM, handle)
        wait, calls = dist.Work.wait, []

        def slow(*arguments):
            calls.append(1)
            if len(calls) == 3:
                signal.raise_signal(signal.SIGALRM)
            return wait(*arguments)

        dist.Work.wait = slow
    try:
        said["pairs"] = part("pairs", 1, size=70_000, rounds=(((0, 1),), ((1, 2),)))
    except Interrupted:
        said["pairs"] = "interrupted"
    if rank == 1:
        dist.Work.wait = wait
said["calls"] = number() - before
for size in (1, 1_000_000):
    tensor = torch.full((size,), float(rank + 1))
    dist.all_reduce(tensor)
    assert bool((tensor == 6).all()), tensor
said["rank"] = rank
sys.stdout.write(json.dumps(said) + "\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""


def said(folder: Path, how: str) -> list[dict[str, Any]]:
    """Return what three ranks have said, by rank, after calls of their training that came out right."""
    with plain(write_script(folder, SCRIPT), how, world=3) as ranks:
        assert ranks.wait() == 0, ranks.said
    lines = [json.loads(line) for line in ranks.said.splitlines() if line.startswith("{")]
    assert len(lines) == 3, ranks.said
    return sorted(lines, key=lambda each: int(each["rank"]))


def test_each_pair_is_measured_by_the_rank_that_receives_and_nothing_stays(tmp_path: Path) -> None:
    """Both ways; all ranks have made as many calls, and the store holds no key of it."""
    found = said(tmp_path, "whole")
    assert [each["pairs"][0] for each in found] == [
        [[1, 0, 70_000, 3, 5]],
        [[0, 1, 70_000, 3, 5], [2, 1, 70_000, 3, 5]],
        [[1, 2, 70_000, 3, 5]],
    ]
    assert all(each["pairs"][3] == "" for each in found)
    assert all(each["group"] == [[], 5, 3, ""] for each in found)
    assert len({each["calls"] for each in found}) == 1
    assert found[0]["calls"] > 0
    assert [each["more keys"] for each in found] == [0, 0, 0]


@pytest.mark.parametrize("how", ["absent", "poor", "devices"])
def test_where_a_rank_does_not_come_in_time_none_makes_a_call(tmp_path: Path, how: str) -> None:
    """Also that one, which comes later, has no memory for its messages, or would send them with another backend."""
    found = said(tmp_path, how)
    late = "no memory" if how == "poor" else "not all ranks have come within 2 s"
    assert [each["group"] for each in found] == [*["not all ranks have come within 2 s"] * 2, late]
    assert [each["calls"] for each in found] == [0, 0, 0]


@pytest.mark.parametrize("how", ["interrupted", "decided"])
def test_a_rank_whose_script_raises_meanwhile_makes_all_calls(tmp_path: Path, how: str) -> None:
    """The exception of its signal handler reaches the script, a `TimeoutError` too, and the group is whole."""
    found = said(tmp_path, how)
    assert found[1]["pairs"] == "interrupted"
    assert [each["pairs"][3] for each in (found[0], found[2])] == ["", ""]
    assert len({each["calls"] for each in found}) == 1
    assert found[0]["calls"] > 0


class Work:
    """A call of NCCL, which aborts its communicator where a wait runs out of time."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.waits = 0

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def wait(self) -> None:
        assert self.looks < 0
        self.waits += 1


def test_a_call_of_a_device_is_waited_for_without_the_timeout_of_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is ours alone: what takes longer goes on."""
    cuda = SimpleNamespace(type="cuda")
    messages._await(work := Work(3), cuda)
    assert work.waits == 1
    monkeypatch.setattr(messages, "WAIT_S", 0.0)
    with pytest.raises(TimeoutError):
        messages._await(work := Work(1 << 60), cuda)
    assert work.waits == 0


@pytest.mark.parametrize(
    ("kinds", "of_training", "of_messages"),
    [(["cuda"], "cuda", "cuda"), (["cpu"], "cuda", "cpu"), (["cpu", "cuda"], "cuda", "cuda"), ([], "cuda", "cuda")],
)
def test_messages_are_of_the_device_that_the_group_takes(kinds: list[str], of_training: str, of_messages: str) -> None:
    """The host where gloo is the only backend of a training on a device."""
    torch = SimpleNamespace(device=lambda kind: SimpleNamespace(type=kind))
    group = SimpleNamespace(_device_types=kinds)
    assert messages._device_of(torch, group, SimpleNamespace(type=of_training)).type == of_messages

"""The small training into which the programs of this folder put their faults, and the note of what is right to say.

    torchrun --nproc-per-node 2 hangs.py sleep --note FILE [--technique ddp] [--at 80]
    python hangs.py sleep --note FILE --spawn 2

The note is written when the fault begins.  It tells the time, the ranks to blame, the classes that are right, and the
line of the program on which the fault is: found in the source by a mark, so that no tool has a part in it.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import Event
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

FOR_EVER: Final = 3600.0
"""Seconds that a rank stands which is not to go on."""
PACE_S: Final = 0.03
"""Time for which a rank sleeps in each step, so that two cores are enough for four ranks."""
MARK: Final = "# stands here"
"""Ends the line that is right to name."""
STEPS: Final = 100_000


@dataclass(frozen=True)
class Fault:
    """One way to break a training."""

    happen: Callable[[Training], None]
    kinds: tuple[str, ...]
    """Classes of a hang, and kinds of a cause of death, that are right."""
    says: str
    """Pattern of a cause in words, for a program that names no kind."""
    by: tuple[int, ...] | None
    """Ranks on which it happens; None for all."""
    blamed: tuple[int, ...] | None
    """Ranks that are right to name; None for all of those, any of them being right."""
    marked: Callable[..., object] | None
    """The function that has the mark; None where no line is right."""
    early: bool
    """True for a fault before the process group exists."""
    workers: int
    """Data workers of each rank."""
    missing: int
    """Ranks that a program which starts its ranks by itself does not start."""


FAULTS: Final[dict[str, Fault]] = {}


def fault(
    *kinds: str,
    says: str = "$^",
    by: tuple[int, ...] | None = (1,),
    blamed: tuple[int, ...] | None = None,
    marked: Callable[..., object] | None = None,
    line: bool = True,
    early: bool = False,
    workers: int = 0,
    missing: int = 0,
) -> Callable[[Callable[[Training], None]], Callable[[Training], None]]:
    """Enter a function as a fault, under its name; it is called in the place where the step `--at` begins."""

    def enter(happen: Callable[[Training], None]) -> Callable[[Training], None]:
        right = (marked or happen) if line else None
        FAULTS[happen.__name__.replace("_", "-")] = Fault(
            happen, kinds, says, by, by if blamed is None else blamed, right, early, workers, missing
        )
        return happen

    return enter


class Numbers(torch.utils.data.IterableDataset[torch.Tensor]):
    """Batches without end, of which none comes once `stuck` is set."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.stuck = Event()

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.rank)
        while True:
            if self.stuck.is_set():
                time.sleep(FOR_EVER)
            yield torch.randn(8, 16, generator=generator)


class Training:
    """One rank of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.fault = FAULTS[options.fault]
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.number = 0
        """Step that is being made."""
        self.leaves = False
        """True ends the loop."""
        self.reduces = True
        """False leaves this rank out of hand-written reductions."""
        self.waits_at_the_end = True
        """False leaves the last barrier out."""
        self.factor = 1.0
        """By which the loss is multiplied."""

    def run(self) -> None:
        """Train, with the fault when it is due."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        if self.fault.early:
            self.break_down()
        self.join()
        self.build()
        last = self.options.steps
        for self.number in range(1, last + 1):
            if self.number == self.options.at and not self.fault.early:
                self.break_down()
            if self.leaves:
                break
            self.step()
        if self.waits_at_the_end:
            dist.barrier()
        dist.destroy_process_group()

    def break_down(self) -> None:
        """Let the fault happen where this rank is one of those that have it."""
        by = range(self.world) if self.fault.by is None else self.fault.by
        if self.rank in by:
            self.note()
            self.fault.happen(self)

    def note(self) -> None:
        """Write what is right to say from now on; the first rank that gets here does."""
        ranks = range(self.world) if self.fault.blamed is None else self.fault.blamed
        told: dict[str, Any] = {"at": time.time(), "ranks": list(ranks), "kinds": self.fault.kinds}
        told |= {"says": self.fault.says, "line": None if self.fault.marked is None else line_of(self.fault.marked)}
        whole = Path(f"{self.options.note}.{self.rank}")
        whole.write_text(json.dumps(told))
        with contextlib.suppress(FileExistsError):
            os.link(whole, self.options.note)

    def join(self) -> None:
        """Make the process group."""
        at = f"tcp://127.0.0.1:{self.options.port}" if self.options.port else None
        timeout = timedelta(seconds=self.options.timeout)
        dist.init_process_group("gloo", at, timeout, self.world, self.rank)  # stands here

    def build(self) -> None:
        """Make model, optimizer and data by the technique."""
        self.bare = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.model: nn.Module = self.bare
        match self.options.technique:
            case "ddp":
                self.model = nn.parallel.DistributedDataParallel(self.bare)
            case "fsdp":
                from torch.distributed.fsdp import fully_shard

                fully_shard(self.bare, mesh=init_device_mesh("cpu", (self.world,)))
            case "mesh":
                mesh = init_device_mesh("cpu", (self.world // 2, 2), mesh_dim_names=("data", "tensor"))
                self.data, self.tensor = mesh.get_group("data"), mesh.get_group("tensor")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.numbers = Numbers(self.rank)
        self.loader = torch.utils.data.DataLoader(self.numbers, batch_size=None, num_workers=self.fault.workers)
        self.batches = iter(self.loader)

    def draw(self) -> torch.Tensor:
        """Return the next batch."""
        batch: torch.Tensor = next(self.batches)  # stands here
        return batch

    def step(self) -> None:
        """Make one optimizer step."""
        batch = self.draw()
        time.sleep(PACE_S)
        self.optimizer.zero_grad()
        out = self.model(batch)
        if self.options.technique == "mesh":
            # The activations of both halves; the sum has no part in the gradients here.
            dist.all_reduce(out.detach().clone(), group=self.tensor)
        (out.square().mean() * self.factor).backward()
        self.reduce()
        self.optimizer.step()

    def reduce(self) -> None:
        """Average the gradients, where the technique leaves that to the script."""
        if self.options.technique not in ("allreduce", "mesh") or not self.reduces:
            return
        group = self.data if self.options.technique == "mesh" else None
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=group)  # stands here
            parameter.grad /= self.world


def line_of(function: Callable[..., object]) -> str:
    """Return file and number of the marked line of a function: `hangs.py:31`."""
    lines, first = inspect.getsourcelines(function)
    number = next(index for index, text in enumerate(lines, first) if text.rstrip().endswith(MARK))
    return f"{Path(inspect.getsourcefile(function) or '').name}:{number}"


def spawned(rank: int, kind: type[Training], options: argparse.Namespace) -> None:
    """Be one of the ranks that the script starts by itself."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.spawn))
    kind(options).run()


def main(kind: type[Training] = Training) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--note", required=True, help="file for what is right to say")
    parser.add_argument("--technique", choices=("ddp", "allreduce", "fsdp", "mesh"), default="ddp")
    parser.add_argument("--at", type=int, default=80, help="step at which the fault begins")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--timeout", type=float, default=1800.0, help="of collectives, in seconds")
    parser.add_argument("--port", type=int, default=0, help="of the ranks' own store, instead of the launcher's")
    parser.add_argument("--folder", help="where checkpoints go")
    parser.add_argument("--minutes", type=float, default=1.0, help="of a healthy training")
    parser.add_argument("--spawn", type=int, default=0, metavar="WORLD", help="start the ranks here")
    options = parser.parse_args()
    if options.spawn:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
        spawn(spawned, (kind, options), options.spawn - FAULTS[options.fault].missing)
    else:
        kind(options).run()

"""A healthy training that makes no steps at times: nothing of it is a hang.

    torchrun … healthy.py healthy --note FILE --minutes 120

It writes down what it does, a line each: time, number of the round, and the name of the phase.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from training import PACE_S, Training, fault, main

COMPILING_S: Final = 20.0
EVALUATION_S: Final = 60.0
SAVING_S: Final = 30.0
ROWS: Final = 5_000_000
"""Of a table that is read in nine seconds on two cores under load."""
TAIL_S: Final = 12.0
TRAINING_S: Final = 8.0
PAUSABLE_S: Final = 40.0
"""Time in which the run may be paused from outside."""
CHUNKS: Final = 30
READER: Final = """
import os, sys, time
pipe = os.open(sys.argv[1], os.O_RDONLY)
while os.read(pipe, 1 << 16):
    time.sleep(float(sys.argv[2]))
"""


class SlowFile(io.BytesIO):
    """A file that takes its time for each large piece."""

    def write(self, piece: Any) -> int:
        if len(piece) > 4096:
            time.sleep(SAVING_S / CHUNKS)
        return super().write(piece)


class Healthy(Training):
    """One rank of it."""

    def run(self) -> None:
        """Train in rounds, until the minutes are over."""
        torch.set_num_threads(1)
        self.join()
        self.build()
        end = time.monotonic() + 60 * self.options.minutes
        first = self.bare.register_forward_pre_hook(self.compile)
        self.phase(0, "first step", self.step)
        first.remove()
        number, goes_on = 0, torch.ones(1)
        while goes_on:
            number += 1
            for phase in (
                self.evaluate_alone, self.evaluate_together, self.save_by_python, self.save_by_torch,
                self.read_a_pickle, self.finish_late, self.be_paused, self.join_uneven,
            ):  # fmt: skip
                self.phase(number, "training", self.train)
                self.phase(number, phase.__name__.replace("_", " "), phase)
            goes_on = torch.tensor([float(time.monotonic() < end)])
            dist.broadcast(goes_on, 0)
        dist.destroy_process_group()

    def phase(self, number: int, name: str, happen: Callable[[], None]) -> None:
        """Carry out a phase, after a line of what it is."""
        if self.rank == 0:
            with Path(self.options.note).open("a") as file:
                file.write(json.dumps([time.time(), number, name]) + "\n")
        happen()

    def compile(self, *_: object) -> None:
        """Take as long as a compiler, on no two ranks alike."""
        time.sleep(COMPILING_S + 5 * self.rank)

    def train(self, seconds: float = TRAINING_S) -> None:
        """Make steps for about so many seconds, the same number on each rank."""
        for _ in range(round(seconds / PACE_S)):
            self.step()

    def evaluate(self, seconds: float) -> None:
        """Look at batches without gradients."""
        end = time.monotonic() + seconds
        self.bare.eval()
        with torch.no_grad():
            while time.monotonic() < end:
                self.bare(self.draw())
                time.sleep(PACE_S)
        self.bare.train()

    def evaluate_alone(self) -> None:
        """Rank 0 evaluates, the others wait for it."""
        if self.rank == 0:
            self.evaluate(EVALUATION_S)
        dist.barrier()

    def evaluate_together(self) -> None:
        """Each rank evaluates its part."""
        self.evaluate(EVALUATION_S + self.rank)

    def save_by_python(self) -> None:
        """Rank 0 saves to a slow file, whose writes let other threads run."""
        if self.rank == 0:
            torch.save({str(number): torch.zeros(4096) for number in range(CHUNKS)}, SlowFile())
        dist.barrier()

    def save_by_torch(self) -> None:
        """Rank 0 saves to a slow disk, from native code."""
        if self.rank == 0:
            path = Path(f"{self.options.note}.pipe")
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            state = torch.zeros(CHUNKS << 14)
            with subprocess.Popen([sys.executable, "-c", READER, str(path), str(SAVING_S / CHUNKS)]):
                torch.save(state, path)
        dist.barrier()

    def read_a_pickle(self) -> None:
        """Rank 0 reads a table that takes its time, in one call that lets no other thread run."""
        if self.rank == 0:
            path = Path(f"{self.options.note}.pickle")
            if not path.exists():
                path.write_bytes(pickle.dumps([[number, str(number)] for number in range(ROWS)]))
            with path.open("rb") as file:
                pickle.load(file)
        dist.barrier()

    def finish_late(self) -> None:
        """Rank 1 has more to do at the end of an epoch, the others wait for it."""
        if self.rank == 1:
            self.evaluate(TAIL_S)
        dist.barrier()

    def join_uneven(self) -> None:
        """Rank 1 has fewer batches, then rank 0, and DDP's `join` makes up for them."""
        if isinstance(self.model, nn.parallel.DistributedDataParallel):
            for short in (1, 0):
                with self.model.join():
                    self.train(TRAINING_S if self.rank == short else TRAINING_S + TAIL_S)

    def be_paused(self) -> None:
        """Train for so long that somebody can pause the run meanwhile."""
        self.train(PAUSABLE_S)


@fault(by=(), line=False)
def healthy(training: Training) -> None:
    """Nothing is wrong."""


if __name__ == "__main__":
    main(Healthy)

"""A training one rank of which is slow in a line of its own code.

    torchrun --nproc-per-node 2 delays.py forward --note FILE [--model conv] [--rank 1] [--ms 25] [--at 60]

The note is the line: found in the source by a mark, so that no tool has a part in it.
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

MARK: Final = "# stands here"
"""Ends the line that is right to name."""
PACE_S: Final = 0.008
"""Seconds that a rank sleeps in each step, so that two cores are enough for four ranks."""


class Delay:
    """The time that a place takes on the slow rank, once its step has come."""

    def __init__(self, place: str, ms: float, at: int) -> None:
        self.place, self.ms, self.at = place, ms, at
        self.step = 0

    def of(self, place: str) -> float:
        """Return the seconds that a place is to take in this step."""
        return self.ms / 1e3 if place == self.place and self.step >= self.at else 0.0


def augmented(image: torch.Tensor, seconds: float) -> torch.Tensor:
    """Take long by sleeping."""
    time.sleep(seconds)  # stands here
    return image


def decoded(image: torch.Tensor, seconds: float) -> torch.Tensor:
    """Take long by computing in Python."""
    until, numbers = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        numbers += sum(range(200))  # stands here
    return image


def smoothed(features: torch.Tensor, seconds: float) -> torch.Tensor:
    """Take long by computing in torch."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        torch.sort(torch.linspace(1.0, 0.0, 20_000))  # stands here
    return features


def clipped(gradient: torch.Tensor, seconds: float) -> torch.Tensor:
    """Take long in a hook of the backward pass."""
    time.sleep(seconds)  # stands here
    return gradient


def written(text: str, seconds: float) -> None:
    """Take long in writing a log."""
    time.sleep(seconds)  # stands here


def averaged(seconds: float) -> None:
    """Take long in the optimizer's step."""
    time.sleep(seconds)  # stands here


class Picked(nn.Module):
    """Takes long in the backward pass, in an operator of torch: no line of Python executes meanwhile."""

    def __init__(self, delay: Delay) -> None:
        super().__init__()
        self.delay = delay
        self.each_s = 0.0
        """Seconds for one element, once they are measured."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        seconds = self.delay.of("operator")
        if not seconds or not features.requires_grad:
            return features
        if not self.each_s:
            source = torch.zeros(1, requires_grad=True)
            began = time.perf_counter()
            for _ in range(5):
                self._first(source, 1 << 22).sum().backward()
            self.each_s = (time.perf_counter() - began) / 5 / (1 << 22)
        return features + 0.0 * self._first(features.flatten()[:1], int(seconds / self.each_s))

    @staticmethod
    def _first(source: torch.Tensor, count: int) -> torch.Tensor:
        """Return one of so many elements, none of which exists but in the backward pass."""
        return source.expand(count)[:1]


PLACES: Final[dict[str, Callable[..., object]]] = {
    "loader": decoded,
    "worker": augmented,
    "forward": smoothed,
    "hook": clipped,
    "operator": Picked,
    "optimizer": averaged,
    "logging": written,
}


class Images(Dataset[Any]):
    """Images that cost nothing, but for the delay of the first one of each batch."""

    def __init__(self, delay: Delay, batch: int) -> None:
        self.delay, self.batch = delay, batch
        self.image = torch.randn(3, 16, 16)
        self.drawn = 0

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.drawn += 1
        if self.drawn % self.batch:
            return self.image, index % 10
        # A worker counts its own batches: one of several has as many as the training has steps, by their number.
        info = get_worker_info()
        if info is not None:
            self.delay.step = self.drawn // self.batch * info.num_workers
            return augmented(self.image, self.delay.of("worker") * info.num_workers), index % 10
        return decoded(self.image, self.delay.of("loader")), index % 10


class Net(nn.Module):
    """A model with a function of its own in it."""

    def __init__(self, kind: str, delay: Delay) -> None:
        super().__init__()
        self.delay = delay
        self.picked = Picked(delay)
        layers: list[nn.Module] = []
        if kind == "conv":
            layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
            self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 10)
        else:
            layers = [nn.Flatten(), nn.Linear(768, 64), nn.ReLU()]
            layers += [nn.Linear(64, 64), nn.ReLU()] * (8 if kind == "deep" else 1)
            self.body, self.head = nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = smoothed(self.body(images), self.delay.of("forward"))
        if features.requires_grad:
            features.register_hook(lambda gradient: clipped(gradient, self.delay.of("hook")))
        result: torch.Tensor = self.head(self.picked(features))
        return result


class Averaging(torch.optim.SGD):
    """An optimizer with a function of its own in its step."""

    delay: Delay

    def step(self, closure: Any = None) -> Any:
        averaged(self.delay.of("optimizer"))
        return super().step(closure)


def right(place: str) -> str:
    """Return the line that is right to name, or the module."""
    if place == "operator":
        return "backward of picked"
    lines, first = inspect.getsourcelines(PLACES[place])
    at = next(number for number, text in enumerate(lines, first) if text.rstrip().endswith(MARK))
    return f"delays.py:{at} {PLACES[place].__name__}"


def main() -> None:
    """Train until somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place", choices=[*PLACES, "nowhere"])
    parser.add_argument("--model", default="linear", choices=("linear", "conv", "deep"))
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--ms", type=float, default=25.0)
    parser.add_argument("--at", type=int, default=60)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--note", type=Path)
    parser.add_argument("--steps", type=int, default=1 << 30)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0 and given.note is not None and given.place in PLACES:
        given.note.write_text(right(given.place))
    delay = Delay(given.place if rank == given.rank else "", given.ms, given.at)
    workers = given.workers if given.workers is not None else 2 if given.place == "worker" else 0
    loader = DataLoader(Images(delay, 4), batch_size=4, num_workers=workers)
    model = DistributedDataParallel(Net(given.model, delay))
    optimizer = Averaging(model.parameters(), lr=1e-3)
    optimizer.delay = delay
    for step, (images, labels) in enumerate(loader, 1):
        delay.step = step
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        written(f"step {step}", delay.of("logging") + PACE_S)
        if step >= given.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

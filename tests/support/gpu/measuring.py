"""Inside a program under test: its group and device, the profiler, and the agent's records of its steps."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from support.gpu.trace import MARK

_PATIENCE_S: Final = 20.0


class Rank:
    """The rank of the process: what it was told, and its report."""

    def __init__(self, *more: tuple[str, type, object]) -> None:
        """Join the group that torchrun describes.

        Args:
            more: options of the program: name, type, usual value; `timeout` is that of collectives, in seconds.
        """
        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")
        parser.add_argument("--backend", default="nccl")
        parser.add_argument("--out", default=".")
        for name, kind, usual in more:
            parser.add_argument(f"--{name}", type=kind, default=usual)
        self.options = parser.parse_args()
        self.on_cuda: bool = self.options.device == "cuda"
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.manual_seed(0)
        torch.set_num_threads(1)
        if self.on_cuda:
            # Two ranks may share a device, with gloo.
            torch.cuda.set_device(self.rank % torch.cuda.device_count())
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.on_cuda else torch.device("cpu")
        timeout_s: float | None = getattr(self.options, "timeout", None)
        limit = None if timeout_s is None else timedelta(seconds=timeout_s)
        dist.init_process_group(self.options.backend, timeout=limit)

    @property
    def under_agent(self) -> bool:
        """Whether the agent runs in this process."""
        return self._session is not None

    @property
    def _session(self) -> Any:
        from ddptop import agent

        return agent._listener

    def wrapped(self, model: nn.Module) -> nn.parallel.DistributedDataParallel:
        """Return a model under DDP, on this rank's device."""
        places = [self.device.index] if self.on_cuda and self.options.backend == "nccl" else None
        return nn.parallel.DistributedDataParallel(model.to(self.device), device_ids=places)

    def idle(self) -> None:
        """Wait until the device has nothing to do."""
        if self.on_cuda:
            torch.cuda.synchronize()

    def profiled(self, run: Callable[[], None]) -> dict[str, Any]:
        """Call a function under the profiler and return the trace."""
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.on_cuda else [])]
        with profile(activities=kinds) as profiler:
            run()
            self.idle()
        with tempfile.TemporaryDirectory(prefix="dtt-", dir="/tmp") as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            document: dict[str, Any] = json.loads(path.read_text(errors="replace"))
        return {"traceEvents": [event for event in document["traceEvents"] if event.get("ph") == "X"]}

    @property
    def steps(self) -> int:
        """Steps that the agent has stamped so far; 0 without it."""
        return int(self._session.stamps.steps) if self.under_agent else 0

    def records(self, last: int) -> list[dict[str, Any]]:
        """Return the agent's records of the steps, once step `last` is among them; empty without the agent."""
        if not self.under_agent:
            return []
        publisher = self._session._publisher
        deadline = time.monotonic() + _PATIENCE_S
        while publisher._seq < last and time.monotonic() < deadline:
            time.sleep(0.02)
        from ddptop.agent import wire

        found: list[dict[str, Any]] = []
        for payload in publisher._history.since(0, last):
            message = wire.read_answer(payload)
            assert isinstance(message, wire.Steps)
            for step in message.steps:
                calls = [{name: getattr(call, name) for name in call.__struct_fields__} for call in step.collectives]
                fields = {name: getattr(step, name) for name in step.__struct_fields__}
                found.append({**fields, "collectives": calls})
        return found

    @property
    def groups(self) -> dict[str, Any]:
        """What the agent has counted of each process group, by name; empty without it."""
        return dict(self._session.collectives.groups) if self.under_agent else {}

    def facts(self) -> dict[str, Any]:
        """Return what the agent tells of itself and of the device in a sign of life."""
        if not self.under_agent:
            return {}
        beat = self._session.beat(0, 0)
        names = (
            "device", "device_percent", "memory_bytes", "memory_total_bytes", "backend", "mechanism", "faults", "fault",
            "timed_every",
        )  # fmt: skip
        return {"torch": torch.__version__, **{name: getattr(beat, name) for name in names}}

    def report(self, **told: Any) -> None:
        """Write what this rank has measured, and leave the group."""
        told = {"facts": self.facts(), **told}
        Path(self.options.out, f"rank{self.rank}.json").write_text(json.dumps(told))
        dist.barrier()
        dist.destroy_process_group()


def span(name: str) -> AbstractContextManager[Any]:
    """Mark a span for the profiler."""
    marked: AbstractContextManager[Any] = record_function(f"{MARK}{name}")
    return marked


@contextmanager
def timed(on_cuda: bool) -> Iterator[Callable[[], float]]:
    """Time a block on the device's own time line, on the CPU by the clock; yields a function that returns its us.

    These are the program's own events, which have nothing to do with those of the agent.
    """
    if not on_cuda:
        begin = time.perf_counter()
        ends: list[float] = []
        yield lambda: (ends[0] - begin) * 1e6
        ends.append(time.perf_counter())
        return
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record(torch.cuda.current_stream())
    yield lambda: first.elapsed_time(last) * 1e3
    last.record(torch.cuda.current_stream())


def network(width: int, depth: int = 4) -> nn.Module:
    """Return a perceptron of equal layers."""
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))

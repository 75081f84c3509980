"""A fleet that stands still, for tests of the list of runs and of the launch dialog."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.machine import GpuLoad, HostLoad
from ddptop.agent.client.start.request import Request
from ddptop.tui.launch.programs import Option
from ddptop.tui.link.fleet import Listing, RunLine, line_of
from ddptop.tui.link.source import Refused
from support.screens.frames import StillSource, frame, verdict_frame

OPTIONS = (
    Option("--epochs", "passes over the training set (default 3)", "how long", None, None, False, "N", "", 1),
    Option("--batch-size", "images of a step on each rank", "training", "6", None, False, "N", "", 1, 512),
    Option("--lr", "learning rate (default 0.05)", "training", "0.05", None, False, "", "positive_number"),
    Option("--model", "which network [bold]", "training", "18", ("18", "34")),
    Option("--download", "fetch the data set", "data", "False", None, True),
    Option("--world", "with --start spawn", "ranks", None, None, False, "N", "", 1),
)

FRAMES = (
    verdict_frame(),
    frame("paused", world=2, run="simplenet-01", program="simplenet", total_steps=None),
    frame("starting", world=64, run="a-run-with-a-name-of-forty-characters-xyz", program="train_something_long.py"),
    frame("failed", run="conv-9c02", program="-m pkg.train"),
    frame("finished", world=1, run="toy-77aa", program="toy", step=20, total_steps=20),
)


class StillFleet:
    """Runs that stand still; notes what it is asked."""

    def __init__(self, frames: tuple[Frame, ...] = FRAMES, gpus: int = 0) -> None:
        self.frames = {current.run: current for current in frames}
        self.sources: dict[str, StillSource] = {}
        self.launched: list[Request] = []
        self.refusal: str | None = None
        self.host = HostLoad(
            16, 87.3, 9_800_000_000, 24 << 30, tuple(GpuLoad(93.0, 61 << 30, 80 << 30) for _ in range(gpus))
        )

    def listing(self, shown: RunLine | None) -> Listing:
        """Return all runs."""
        return Listing([line_of(current) for current in self.frames.values()], self.host)

    def control(self, run: str) -> StillSource:
        """Return what notes the actions on a run."""
        if run not in self.frames:
            raise Refused(f"run {run!r}: no such run")
        return self.sources.setdefault(run, StillSource(self.frames[run]))

    def options(self, program: str) -> tuple[Option, ...]:
        """Return some options."""
        return OPTIONS

    def launch(self, request: Request) -> str:
        """Note it, and start a run that has nobody yet."""
        self.launched.append(request)
        if self.refusal is not None:
            raise Refused(self.refusal)
        name = request.name or "started-0001"
        self.frames[name] = frame("starting", world=request.world or 2, run=name, program=request.program)
        return name

    def remove(self, line: RunLine) -> str:
        """Remove it."""
        del self.frames[line.run]
        return f"removed {line.run}"

    def close(self) -> None:
        """Nothing is open."""


class FleetSource(StillSource):
    """Shows one run of a fleet, and others in its place."""

    def __init__(self, fleet: StillFleet, run: str) -> None:
        super().__init__(fleet.frames[run])
        self.fleet = fleet

    def open(self, run: str) -> None:
        """Show another."""
        self.asked.append(f"open {run}")
        if run not in self.fleet.frames:
            raise Refused(f"run {run!r}: no such run")
        self.current = replace(self.fleet.frames[run])

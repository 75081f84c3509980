"""A sample exporter: the runs of this user as text for Prometheus, by the client alone.

python exporter.py > /var/lib/node_exporter/ddptop.prom
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddptop.agent.client import look, runs
from ddptop.agent.client.frame import Frame

OF_RUN = ("step", "step_ms", "samples_per_s", "loss")
OF_RANK = ("step", "step_ms", "memory_bytes")


def sample(name: str, value: float | None, **labels: object) -> Iterator[str]:
    """Yield a line for a number that is known."""
    if value is not None:
        told = ",".join(f'{label}="{text}"' for label, text in labels.items())
        yield f"ddptop_{name}{{{told}}} {value}"


def samples(frames: Sequence[Frame]) -> Iterator[str]:
    """Yield the lines of some runs."""
    for frame in frames:
        yield from sample("run", 1, run=frame.run, state=frame.state)
        for name in OF_RUN:
            yield from sample(f"run_{name}", getattr(frame, name), run=frame.run)
        for verdict in frame.verdicts:
            yield from sample("verdict", 1, run=frame.run, kind=verdict.kind, rank=verdict.rank)
        for rank in frame.ranks:
            for name in OF_RANK:
                yield from sample(f"rank_{name}", getattr(rank, name), run=frame.run, rank=rank.rank, host=rank.host)


def export() -> str:
    """Return the lines of all runs that go on."""
    return "".join(f"{line}\n" for line in samples(look.frames(runs.live(), "exporter")))


if __name__ == "__main__":
    print(export(), end="")

"""The faults of the matrix, and where each of them applies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

TECHNIQUES: Final = ("ddp", "allreduce", "fsdp", "mesh")
STARTS: Final = ("launch", "spawn", "hand")
"""`ddptop launch`, the same with ranks that the program spawns, and torchrun by hand with the agent."""
PLAIN: Final = "plain"
"""Torchrun by hand without anything of ours: a job that nobody prepared."""


@dataclass(frozen=True)
class Kind:
    """One fault of the matrix."""

    name: str
    program: str
    """File in `programs/`."""
    techniques: tuple[str, ...] = ("ddp",)
    """Where it applies; the first is taken where none is asked for."""
    starts: tuple[str, ...] = STARTS
    steps: int | None = None
    """Steps of the program, where it is the end of the loop that matters."""
    patience_s: float = 45.0
    """How long the fault may go on before it counts as not told."""
    dies: bool = False
    """Whether the run ends by it."""
    healthy: bool = False
    """Whether nothing is wrong: the run stands for a while, goes on, and nobody is to be accused."""
    timeout_s: float | None = None
    """Timeout of its collectives, where the end comes of that."""
    killed: bool = False
    """Whether it lasts until somebody kills the run, whose report is read after that."""

    @property
    def needs_no_agent(self) -> bool:
        """Whether looks from outside show it, so that it is told of a job that nobody prepared, too."""
        return self.program == "hangs" and self.starts == STARTS


_COLLECTIVES: Final = ("allreduce", "mesh")
_END: Final = 80
"""Step at which the loop ends, where the fault is behind it."""
_TIMEOUT_S: Final = 12.0


def _times_out(name: str, techniques: tuple[str, ...] = ("ddp",)) -> Kind:
    return Kind(name, "ends", techniques, dies=True, timeout_s=_TIMEOUT_S)


KINDS: Final = (
    Kind("sleep", "hangs", TECHNIQUES),
    Kind("spin", "hangs", TECHNIQUES),
    Kind("lock", "hangs"),
    Kind("lock-busy", "hangs"),
    Kind("stop", "hangs", TECHNIQUES),
    Kind("stop-all", "hangs"),
    Kind("skip", "collectives", _COLLECTIVES),
    Kind("other", "collectives", _COLLECTIVES),
    Kind("shape", "collectives", _COLLECTIVES),
    Kind("gather-sizes", "collectives"),
    Kind("sends", "collectives"),
    Kind("receives", "collectives"),
    Kind("new-group", "collectives"),
    *(Kind(f"tracker-and-{each}", "collectives") for each in ("group", "mesh", "store", "objects")),
    Kind("crossed-locks", "collectives"),
    # Of two nobody is the odd one: with three ranks.
    Kind("larger", "collectives", dies=True),
    Kind("reads-too-long", "collectives", dies=True),
    Kind("left", "collectives", ("allreduce", "ddp")),
    Kind("batches", "collectives", ("ddp", "allreduce")),
    Kind("barrier", "collectives", steps=_END),
    Kind("kill", "deaths", TECHNIQUES, dies=True),
    Kind("data-worker-killed", "deaths", dies=True),
    Kind("data-worker-hangs", "hangs"),
    Kind("raises", "deaths", TECHNIQUES, dies=True),
    Kind("all-raise", "deaths", dies=True),
    Kind("exits", "deaths", dies=True),
    Kind("exits-in-order", "deaths", dies=True),
    *(
        Kind(name, "deaths", dies=True)
        for name in ("prints-and-exits", "quotes", "lacks-a-name", "lacks-a-package")
    ),
    *(
        # By --start spawn the program itself has started the ranks.
        Kind(name, "deaths", dies=True, starts=("launch", "hand"))
        for name in ("launcher-hangs-up", "launcher-terminated", "launcher-interrupted")
    ),
    Kind("segfault", "deaths", dies=True),
    Kind("memory", "deaths", dies=True),
    Kind("nan", "deaths"),
    Kind("disk", "deaths", dies=True),
    # By --start spawn the program itself has started the ranks, and torch ends them with it.
    Kind("launcher-killed", "deaths", starts=("launch", "hand")),
    Kind("never-starts", "hangs", patience_s=120.0),
    Kind("never-comes", "hangs", starts=("spawn",), patience_s=120.0),
    Kind("port", "deaths", dies=True),
    Kind("deadlock", "hangs"),
    Kind("held-by-a-thread", "hangs"),
    Kind("never-notified", "hangs"),
    Kind("read-checkpoint", "hangs", patience_s=120.0),
    *(
        Kind(name, "preparations", patience_s=120.0, healthy=True)
        for name in (
            "download", "download-to-memory", "download-in-bursts", "many-downloads", "pool-of-processes",
            "pool-of-threads", "child", "grandchild", "short-children", "unpacking", "reads-a-slow-disk",
            "child-copies", "first-batch", "late-group", "loads-checkpoint", "under-a-lock",
        )
    ),
    _times_out("save-barrier", ("ddp", "allreduce")),
    _times_out("finally-barrier"),
    _times_out("except-saves"),
    _times_out("swallowed"),
    _times_out("thread-raises"),
    Kind("thread-keeps", "ends", killed=True),
    Kind("exit-barrier", "ends", killed=True),
    Kind("exit-join", "ends", killed=True),
    Kind("logged", "ends", dies=True),
    Kind("finished-thread", "ends", steps=_END, killed=True),
    Kind("finished-queue", "ends", steps=_END, killed=True),
    Kind("terminated", "ends", dies=True),
    Kind("terminated-gently", "ends", dies=True),
    Kind("leaves-at-once", "ends", dies=True),
    Kind("terminate", "ends", dies=True),
    Kind("recursion", "ends", dies=True),
    Kind("recursion-native", "ends", dies=True),
    Kind("breakpoint-left", "ends", dies=True),
    _times_out("sleeps", TECHNIQUES),
    _times_out("spins"),
    _times_out("stops"),
    _times_out("gathers", ("allreduce", "ddp")),
    _times_out("evaluates"),
    _times_out("monitored"),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    kind: Kind
    technique: str
    world: int
    start: str


def chosen(
    names: Sequence[str], techniques: Sequence[str], worlds: Sequence[int], starts: Sequence[str]
) -> Iterator[Case]:
    """Yield the cases that are asked for; no technique means the first of each fault, no name means all faults."""
    for kind in KINDS:
        if names and kind.name not in names:
            continue
        wanted = [each for each in kind.techniques if each in techniques] if techniques else kind.techniques[:1]
        for technique, world, start in itertools.product(wanted, worlds, starts):
            # A mesh of two dimensions needs four ranks.
            applies = start in kind.starts or (start == PLAIN and kind.needs_no_agent)
            if applies and (technique != "mesh" or world % 4 == 0):
                yield Case(kind, technique, world, start)

"""A launch as it is asked for.

Every verb of the command line loads this page, so that it needs little: dataclasses alone would take longer to load.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ddptop.agent.text import Complaint

RESUME: Final = "--resume"
"""The option by which the programs of the catalogue go on from a checkpoint."""
CHECKPOINTS: Final = "--checkpoint-dir"
"""Their option with the folder of checkpoints."""


class RequestError(Complaint):
    """A fault of a request and its remedy, in one line."""


class Request(NamedTuple):
    """A program, and how it is to be launched."""

    program: str
    """Name in the catalogue of programs, path of a script, or name of a module."""
    as_module: bool = False
    arguments: tuple[str, ...] = ()
    who: str = "somebody"
    """Name of the asking user, for the run's event list."""
    world: int | None = None
    nproc_per_node: int | None = None
    nnodes: str | None = None
    """`2`, or the least and the most: `1:4`. None: this host alone."""
    node_rank: int | None = None
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    backend: str | None = None
    start: str = "torchrun"
    name: str | None = None
    grace: float = 5.0
    """In seconds."""
    on_term: str = ""
    max_restarts: int = 0
    inject: tuple[str, ...] = ()
    """Faults to put into ranks: `rank=2,phase=backward,ms=30`, `rank=1,crash`."""
    check_parameters: str | None = None
    """The number of steps after which the parameters are compared: `100`, `100,buffers=*.running_*`. None: only on
    request."""
    environment: tuple[str, ...] = ()
    """Each `KEY=VALUE`, or `KEY` to take the value from ours."""

    @property
    def shown(self) -> str:
        """Its program as the name of the run begins: a module without its package."""
        return self.program.rpartition(".")[2] if self.as_module else self.program


class Program(NamedTuple):
    """The program of a request, once it was found."""

    target: str
    """As the runner takes it: path of a script, or `-m module`."""
    is_ours: bool = False
    """True for one of the catalogue, which takes `--start` and `--world`."""
    resumes: bool = False
    """True where it takes `--resume`."""


def faults_from(prefix: str) -> list[str]:
    """Return what an entry of `Request.inject` that begins like this may go on as, for the completion of a shell."""
    from ddptop.agent.run.switches import injection

    return injection.continued(prefix)


def how_often(text: str) -> str:
    """Return the text of `Request.check_parameters`; a ValueError says what it should be."""
    # Here, because few requests have it.
    from ddptop.agent.run.switches import checking

    checking.parse(text)
    return text

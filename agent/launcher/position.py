"""The place of a process in its group, as its launcher has put it into the environment.

Launchers are known by their variables, the innermost one first: torchrun in a Slurm step or under `mpirun` sets
its own, and what the outer one has set is then of the process that started torchrun.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

_STARTERS: Final = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "torchrun", "accelerate", "accelerate.commands.launch"}
    | {"deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch", "horovodrun"}
)
"""Programs and modules that start the ranks: each of them is no rank itself."""
_LOOPBACK: Final = re.compile(r"localhost(\.|$)|127\.|::1$|\[::1\]$")
_GROUPED: Final = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")
_MOST_NODES: Final = 1 << 20


class Position(NamedTuple):
    """The place of a process in its group."""

    rank: int
    local_rank: int
    world: int
    local_world: int | None = None
    """Ranks on this host, None where the launcher does not say it."""
    node: int | None = None
    """Number of this host among those of the group, likewise."""
    nodes: int | None = None
    launcher: str = ""
    """The launcher: `torchrun`, `environment`, `openmpi`, `mpich`, `mvapich`, `slurm`; empty: none."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], program: str = "") -> Position:
        """Return the place that a launcher has put into the environment.

        Args:
            environment: of this process.
            program: the program that it runs; one that starts the ranks has no place in the group of its own launcher.

        Raises:
            ValueError: RANK, LOCAL_RANK or WORLD_SIZE is no number.
        """
        if "RANK" in environment or "WORLD_SIZE" in environment:
            return _of_torch(environment)
        if not starts_ranks(program):
            for read in _LAUNCHERS:
                found = read(environment)
                if found is not None:
                    return found
        return cls(0, int(environment.get("LOCAL_RANK", "0")), 1, 1)

    @property
    def spreads(self) -> bool:
        """True where the group is known to have ranks on other hosts too."""
        return (self.local_world is not None and self.local_world < self.world) or (self.nodes or 1) > 1

    def may_spread(self, environment: Mapping[str, str]) -> bool:
        """Say whether the group has ranks on other hosts, or may have: nothing says, and its address is no loopback."""
        if self.local_world is not None or self.nodes is not None:
            return self.spreads
        address = environment.get("MASTER_ADDR", "")
        return self.world > 1 and bool(address) and not _LOOPBACK.match(address)


def starts_ranks(program: str) -> bool:
    """Say whether a program or `-m module` starts ranks and is none itself."""
    flag, _, module = program.partition(" ")
    return (module.strip() if flag == "-m" else os.path.basename(program)) in _STARTERS


def _of_torch(environment: Mapping[str, str]) -> Position:
    """Return the place by RANK and WORLD_SIZE, which torch's own `env://` reads.

    torchrun sets them, with all others:
    https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables. DeepSpeed's launcher has LOCAL_SIZE and
    CROSS_RANK. Scripts that Slurm or `mpirun` has started set them from the variables of those, mostly without the
    local ones. An operator of Kubernetes sets one of each for a pod, and PET_… for a torchrun in it:
    https://github.com/kubeflow/training-operator/blob/master/pkg/controller.v1/pytorch/envvar.go.
    """
    world = int(environment.get("WORLD_SIZE", "1"))
    told = "LOCAL_RANK" in environment
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    # Lightning's own launcher gives its children all but the rank.
    first = environment.get("NODE_RANK", "0") == "0"
    rank = int(environment.get("RANK", str(local_rank) if first and local_rank < world else "0"))
    torchrun = "TORCHELASTIC_RUN_ID" in environment
    plain = Position(rank, local_rank, world, launcher="torchrun" if torchrun else "environment")
    local_world = _number(environment, "LOCAL_WORLD_SIZE", "LOCAL_SIZE", least=1, most=world)
    if world == 1:
        return plain._replace(local_world=1)
    if local_world is not None:
        node = _number(environment, "GROUP_RANK", "CROSS_RANK", "NODE_RANK")
        nodes = _number(environment, "GROUP_WORLD_SIZE", "CROSS_SIZE", least=1)
        if nodes is None and not world % local_world:
            nodes = world // local_world
        return plain._replace(local_world=local_world, node=node, nodes=nodes)
    for read in _LAUNCHERS:
        outer = read(environment)
        if outer is not None and (outer.rank, outer.world) == (rank, world):
            return outer._replace(local_rank=local_rank if told else outer.local_rank)
    pods = _number(environment, "PET_NNODES", least=1) or ("KUBERNETES_SERVICE_HOST" in environment and world)
    if pods == world and not told:
        return plain._replace(local_world=1, node=rank, nodes=world)
    return plain


def _of_openmpi(environment: Mapping[str, str]) -> Position | None:
    """Open MPI's `mpirun`: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html.

    Its daemons may be tasks of Slurm, so that SLURM_PROCID is a daemon's. OMPI_COMM_WORLD_NODE_RANK is no number of a
    host, but one on the host.
    """
    return _of_names(environment, "openmpi", "OMPI_COMM_WORLD_", "LOCAL_RANK", "LOCAL_SIZE")


def _of_mvapich(environment: Mapping[str, str]) -> Position | None:
    """MVAPICH2's `mpirun_rsh`, which has the same names with another beginning."""
    return _of_names(environment, "mvapich", "MV2_COMM_WORLD_", "LOCAL_RANK", "LOCAL_SIZE")


def _of_names(environment: Mapping[str, str], launcher: str, prefix: str, local: str, size: str) -> Position | None:
    return _placed(
        launcher,
        _number(environment, f"{prefix}RANK"),
        _number(environment, f"{prefix}SIZE", least=1),
        _number(environment, f"{prefix}{local}"),
        _number(environment, f"{prefix}{size}", least=1),
    )


def _of_pmi(environment: Mapping[str, str]) -> Position | None:
    """Hydra, which is the `mpiexec` of MPICH and of Intel MPI, and Cray's PALS, which has PMI_LOCAL_…."""
    return _placed(
        "mpich",
        _number(environment, "PMI_RANK", "PMIX_RANK"),
        _number(environment, "PMI_SIZE", least=1),
        _number(environment, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"),
        _number(environment, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", least=1),
    )


def _of_slurm(environment: Mapping[str, str]) -> Position | None:
    """A task of `srun`: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES.

    The batch script itself has SLURM_PROCID 0 and the SLURM_NTASKS of the whole allocation, and is no task of a step:
    only a step has SLURM_STEP_ID.
    """
    if not environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID")):
        return None
    node = _number(environment, "SLURM_NODEID")
    return _placed(
        "slurm",
        _number(environment, "SLURM_PROCID"),
        _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS", least=1),
        _number(environment, "SLURM_LOCALID"),
        tasks_on(environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", "")), node),
        node,
        _number(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", least=1),
    )


_LAUNCHERS: Final[tuple[Callable[[Mapping[str, str]], Position | None], ...]] = (
    _of_openmpi,
    _of_mvapich,
    _of_pmi,
    _of_slurm,
)
"""The launchers other than torchrun, those first that may themselves be started by a later one."""


def _placed(
    launcher: str,
    rank: int | None,
    world: int | None,
    local_rank: int | None,
    local_world: int | None,
    node: int | None = None,
    nodes: int | None = None,
) -> Position | None:
    """Return the place, None where it is not known or cannot be."""
    if rank is None or world is None or rank >= world:
        return None
    if local_world is not None and local_world > world:
        local_world = None
    if world == 1:
        local_world = 1
    if nodes is None and local_world is not None and not world % local_world:
        nodes = world // local_world
    return Position(rank, local_rank or 0, world, local_world, node, nodes, launcher)


def tasks_on(text: str, node: int | None) -> int | None:
    """Return the tasks of Slurm on a node of a step, from a text such as `2(x3),1`; None where that does not say it."""
    if node is None:
        return None
    first = 0
    for part in text.split(","):
        match = _GROUPED.fullmatch(part.strip())
        if match is None:
            return None
        first += int(match[2] or 1)
        if node < first:
            return int(match[1]) or None
    return None


def _number(environment: Mapping[str, str], *names: str, least: int = 0, most: int = _MOST_NODES) -> int | None:
    """Return the number of the first of these variables that has one within the bounds."""
    for name in names:
        text = environment.get(name, "").strip()
        if text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most:
            return int(text)
    return None

"""The place of a rank is told rightly from the variables that each launcher sets.

The variables of torchrun, srun, sbatch and salloc were printed by torch 2.15 and Slurm 22.05; those of the others are
as their documentation has them.
"""

from __future__ import annotations

import pytest

from ddptop.agent.launcher.position import Position, tasks_on

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
}
SRUN = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2,1",
}
SBATCH = {
    "SLURM_JOB_ID": "3",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
SALLOC = {"SLURM_JOB_ID": "2", "SLURM_NNODES": "2", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "3,1"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "3",
    "MV2_COMM_WORLD_SIZE": "4",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
DAEMON = {**SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
"""A task of Slurm that starts the ranks, such as torchrun or the daemon of `mpirun`; they inherit its variables."""
POD = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
"""As the operator of PyTorchJob sets them in each pod."""
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Position(0, 0, 1, 1)),
        (TORCHRUN, Position(5, 1, 8, 4, 1, 2, "torchrun")),
        ({**DAEMON, **TORCHRUN}, Position(5, 1, 8, 4, 1, 2, "torchrun")),
        ({**KUBERNETES, **POD, **TORCHRUN}, Position(5, 1, 8, 4, 1, 2, "torchrun")),
        (SRUN, Position(2, 0, 3, 1, 1, 2, "slurm")),
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}, Position(1, 1, 3, 2, 0, 2, "slurm")),
        (SBATCH, Position(0, 0, 1, 1)),
        (SALLOC, Position(0, 0, 1, 1)),
        (OPENMPI, Position(3, 1, 4, 2, None, 2, "openmpi")),
        ({**DAEMON, **OPENMPI}, Position(3, 1, 4, 2, None, 2, "openmpi")),
        (HYDRA, Position(3, 1, 4, 2, None, 2, "mpich")),
        ({**DAEMON, **HYDRA}, Position(3, 1, 4, 2, None, 2, "mpich")),
        (MVAPICH, Position(3, 1, 4, 2, None, 2, "mvapich")),
        ({**SRUN, "PMIX_RANK": "2"}, Position(2, 0, 3, 1, 1, 2, "slurm")),
        # A script, or the shell before it, that makes torch's variables of the scheduler's.
        ({**SRUN, "RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "node1"}, Position(2, 0, 3, 1, 1, 2, "slurm")),
        ({**OPENMPI, "RANK": "3", "WORLD_SIZE": "4"}, Position(3, 1, 4, 2, None, 2, "openmpi")),
        # The same names with another meaning: one task a node, which has started two ranks itself.
        (
            {**DAEMON, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"},
            Position(3, 1, 4, None, None, None, "environment"),
        ),
        ({**KUBERNETES, **POD}, Position(1, 0, 3, 1, 1, 3, "environment")),
        ({**POD, "PET_NNODES": "3", "PET_NPROC_PER_NODE": "1"}, Position(1, 0, 3, 1, 1, 3, "environment")),
        (POD, Position(1, 0, 3, None, None, None, "environment")),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"},
            Position(1, 0, 2, 1, None, 2, "environment"),
        ),
        # Lightning's own launcher.
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}, Position(1, 1, 2, None, None, None, "environment")),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, Position(5, 1, 8, None, None, None, "torchrun")),
        # What cannot be is not believed.
        ({**SRUN, "SLURM_PROCID": "3"}, Position(0, 0, 1, 1)),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "-1"}, Position(0, 0, 1, 1)),
        ({**HYDRA, "PMI_SIZE": "1e9"}, Position(0, 0, 1, 1)),
    ],
)
def test_place(environment: dict[str, str], expected: Position) -> None:
    """Rank, local rank, world, ranks here, and host number, and nothing where a launcher tells none."""
    assert Position.from_environment(environment, "train.py") == expected


@pytest.mark.parametrize("program", ["-m torch.distributed.run", "/opt/bin/torchrun", "-m accelerate.commands.launch"])
def test_a_program_that_starts_the_ranks_is_no_rank_of_slurm(program: str) -> None:
    """`srun python -m ddptop.agent -m torch.distributed.run …` has one such task a node."""
    assert Position.from_environment(SRUN, program) == Position(0, 0, 1, 1)


@pytest.mark.parametrize("text", ["", "x", "2x3", "-1", "2(x3", "²", "2(x3)1"])
def test_tasks_of_a_node_from_an_unsound_text(text: str) -> None:
    """Nobody knows them then."""
    assert tasks_on(text, 0) is None


def test_tasks_of_a_node() -> None:
    """Slurm writes runs of equal numbers as one."""
    assert [tasks_on("2(x3),1", node) for node in range(5)] == [2, 2, 2, 1, None]


@pytest.mark.parametrize(
    ("environment", "spreads"),
    [
        (TORCHRUN, True),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "1"}, False),
        (SRUN, True),
        (POD, True),
        ({**POD, "MASTER_ADDR": "127.0.0.1"}, False),
        ({**POD, "MASTER_ADDR": "localhost"}, False),
        ({}, False),
    ],
)
def test_several_hosts(environment: dict[str, str], spreads: bool) -> None:
    """A group may have ranks elsewhere unless its launcher says no, or its address is one of this host alone."""
    assert Position.from_environment(environment).may_spread(environment) is spreads

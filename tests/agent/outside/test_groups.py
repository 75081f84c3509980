"""Training groups among processes, given as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ddptop.agent.outside import groups
from ddptop.agent.outside.groups import Group
from ddptop.agent.outside.processes import Processes, Python, program_of
from ddptop.agent.run.identity import Process, Row

TORCHRUN = ("/v/bin/python", "/v/bin/torchrun", "--nproc-per-node", "2", "train.py")
TRAIN = ("/v/bin/python", "-u", "train.py", "--lr", "0.1")
SPAWNED = (
    "/v/bin/python",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main()",
    "--multiprocessing-fork",
)
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_NODES": "1",
}  # fmt: skip
TRACKER = ("/v/bin/python", "-c", "from multiprocessing.resource_tracker import main;main(3)")
FORKSERVER = ("/v/bin/python", "-c", "from multiprocessing.forkserver import main; main(5, 6)")


class Table(Processes):
    """Processes of this user, each with torch unless it is named as one without."""

    def __init__(self) -> None:
        """Begin with a shell, which runs no Python."""
        self.table: dict[int, Row] = {}
        self.pythons: dict[int, Python] = {}
        self.without_torch: set[int] = set()
        self.links: set[int] = set()
        self.backward: set[int] = set()
        self._row(10, 1)

    def _row(self, pid: int, parent: int) -> Row:
        self.table[pid] = row = Row(Process(pid, float(pid)), parent, pid, "sleeping", 1000)
        return row

    def add(
        self, pid: int, parent: int, words: tuple[str, ...], environment: Mapping[str, str] = {}, name: str = "python"
    ) -> Table:
        """Add a process that runs Python."""
        self.pythons[pid] = Python(self._row(pid, parent), words, environment, name)
        return self

    def loads_torch(self, pid: int) -> bool:
        """Say so of all but those without."""
        return pid not in self.without_torch

    def environment(self, pid: int) -> Mapping[str, str]:
        """Return that of a Python."""
        return self.pythons[pid].environment if pid in self.pythons else {}

    def does_backward(self, pid: int) -> bool:
        """Say so of those that are named."""
        return pid in self.backward

    def are_connected(self, pids: Sequence[int]) -> bool:
        """Say whether at least two of them are linked."""
        return len(self.links & set(pids)) > 1


def torch_environment(rank: int, world: int = 2, **others: str) -> dict[str, str]:
    """Return what torchrun gives a rank."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    file = f"/tmp/torchelastic_a/none_b/attempt_0/{rank}/error.json"
    start = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": file, "TORCHELASTIC_RESTART_COUNT": "1"}
    return {**place, **start, "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", **others}


def torchrun(table: Table, pid: int, world: int = 2) -> Table:
    """Add a torchrun with its ranks."""
    table.add(pid, 10, TORCHRUN)
    for rank in range(world):
        table.add(pid + 1 + rank, pid, TRAIN, torch_environment(rank, world))
    return table


def pids(group: Group) -> dict[int, int]:
    """Return the pid of each rank."""
    return {rank: process.pid for rank, process in group.ranks.items()}


def one(table: Table) -> Group:
    """Return the only group."""
    (group,) = groups.found(table)
    return group


def test_ranks_of_torchrun() -> None:
    """The ranks of a torchrun are one group under it; what they start beside themselves are no ranks."""
    table = torchrun(Table(), 100)
    table.add(111, 101, TRAIN, torch_environment(0), "pt_data_worker")
    table.add(112, 101, TRACKER, torch_environment(0))
    table.add(113, 102, ("/v/bin/python", "-m", "evaluate"), torch_environment(1))
    group = one(table)
    assert (pids(group), group.world, group.launcher) == ({0: 101, 1: 102}, 2, Process(100, 100.0))
    assert (group.program, group.arguments) == ("train.py", ("--lr", "0.1"))
    assert group.restarts == {0: 1, 1: 1}
    assert group.marks == {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_a/none_b/"}


def test_two_jobs_of_one_port() -> None:
    """Two torchruns in two containers may have the same address and port: they are two groups, of different names."""
    first, second = groups.found(torchrun(torchrun(Table(), 100), 200))
    assert (pids(first), pids(second)) == ({0: 101, 1: 102}, {0: 201, 1: 202})
    assert first.name != second.name
    assert first.name.startswith("train-")


def test_a_wrapper_is_no_rank() -> None:
    """A process between torchrun and a rank that has the rank's variables and no torch is not the rank."""
    table = Table().add(100, 10, TORCHRUN)
    for rank in (0, 1):
        table.add(101 + rank, 100, ("/v/bin/python", "wrapper.py"), torch_environment(rank))
        table.add(111 + rank, 101 + rank, TRAIN, torch_environment(rank))
    table.without_torch = {101, 102}
    assert (pids(one(table)), one(table).launcher) == ({0: 111, 1: 112}, Process(100, 100.0))


def test_lightning_starts_the_others_from_rank_0() -> None:
    """Lightning's own launcher is rank 0, and gives its children all variables but the rank; nothing is above them."""
    table = Table().add(100, 10, ("/v/bin/python", "lit.py"))
    child = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    table.add(101, 100, ("/v/bin/python", "/home/me/lit.py"), child)
    assert (pids(one(table)), one(table).launcher) == ({0: 100, 1: 101}, None)


@pytest.mark.parametrize("through", [100, 105])
def test_spawned_ranks_have_connections(through: int) -> None:
    """Children without numbers are ranks in the order of their starts, once they are connected, also by a forkserver.

    Data workers of the same look are not connected with each other, and are none.
    """
    table = Table().add(100, 10, ("/v/bin/python", "train.py")).add(105, 100, FORKSERVER)
    for pid in (112, 111):
        table.add(pid, through, SPAWNED)
    assert groups.found(table) == []
    table.links = {111, 112}
    group = one(table)
    assert (pids(group), group.launcher, group.program) == ({0: 111, 1: 112}, Process(100, 100.0), "train.py")


def test_ranks_by_arguments() -> None:
    """A loop that starts the ranks gives each its number as an argument, in whatever order."""
    table = Table().add(100, 10, ("/v/bin/python", "loop.py"))
    table.add(101, 100, (*TRAIN, "--local-rank=1")).add(102, 100, (*TRAIN, "--rank", "0"))
    table.links = {101, 102}
    assert (pids(one(table)), one(table).starter) == ({0: 102, 1: 101}, Process(100, 100.0))


def test_trainings_of_one_sweep_are_no_group() -> None:
    """Two trainings that one shell or one sweep has started have nothing to do with each other."""
    table = Table().add(100, 10, ("/v/bin/python", "sweep.py")).add(101, 100, TRAIN).add(102, 100, TRAIN)
    table.without_torch = {100}
    table.backward = {101, 102}
    assert [pids(each) for each in groups.found(table)] == [{0: 101}, {0: 102}]


@pytest.mark.parametrize("words", [TRAIN, SPAWNED])
def test_who_starts_several_groups_is_the_launcher_of_none(words: tuple[str, ...]) -> None:
    """A process with two groups below it belongs to neither, and means both; with one it means that one."""
    table = Table().add(100, 10, ("/v/bin/python", "sweep.py"))
    table.without_torch = {100}
    for rank in (0, 1):
        table.add(101 + rank, 100, words, torch_environment(rank) | {"MASTER_PORT": "1"})
    assert list(map(pids, groups.of_process(table, 100))) == [{0: 101, 1: 102}]
    for rank in (0, 1):
        table.add(201 + rank, 100, words, torch_environment(rank) | {"MASTER_PORT": "2"})
    both = groups.found(table)
    assert [(each.launcher, each.starter) for each in both] == [(None, Process(100, 100.0))] * 2
    assert both[0].name != both[1].name
    assert groups.of_process(table, 100) == both


@pytest.mark.parametrize(
    "words",
    [
        ("/v/bin/python", "-m", "ipykernel_launcher", "-f", "k.json"),
        ("/v/bin/python", "-m", "colab_kernel_launcher", "-f", "k.json"),
        ("/v/bin/python", "/databricks/scripts/db_ipykernel_launcher.py"),
        ("/v/bin/python", "-m", "spyder_kernels.console"),
        ("/v/bin/python", "/v/bin/uvicorn", "app:app"),
        ("/v/bin/python", "/v/bin/wandb", "agent"),
        ("/v/bin/python", "/v/bin/pylsp"),
        ("/v/bin/python", "-m", "pytest", "tests"),
        ("/v/bin/python",),
    ],
)
def test_no_training(words: tuple[str, ...]) -> None:
    """A notebook, a language server, tests or a prompt with torch are no training, and none is ended as a launcher."""
    table = Table().add(100, 10, words)
    table.backward = {100}
    assert groups.found(table) == []
    assert groups.of_process(table, 100) == []
    for rank in (0, 1):
        table.add(101 + rank, 100, TRAIN, torch_environment(rank))
    assert (one(table).launcher, one(table).starter) == (None, None)


def test_a_training_by_itself() -> None:
    """A script with torch is listed once something shows that it trains; who names its pid means it in any case."""
    table = Table().add(100, 10, TRAIN).add(101, 100, TRACKER)
    assert groups.found(table) == []
    (named,) = groups.of_process(table, 101)
    assert pids(named) == {0: 100}
    table.add(102, 100, TRAIN, {}, "pt_data_worker")
    assert pids(one(table)) == {0: 100}
    assert one(table).name == named.name


def test_any_process_of_a_group_names_it() -> None:
    """Launcher, rank and data worker of a group mean it; what is above it or beside it does not."""
    table = torchrun(Table(), 100).add(111, 101, TRAIN, torch_environment(0), "pt_data_worker")
    table.add(300, 10, ("/v/bin/python", "web.py"))
    table.without_torch = {300}
    for pid in (100, 101, 102, 111):
        (group,) = groups.of_process(table, pid)
        assert group.launcher == Process(100, 100.0), pid
    assert [groups.of_process(table, pid) for pid in (10, 300)] == [[], []]


def test_a_group_is_found_again() -> None:
    """After a restart by its launcher a group is the same, with other processes; without anything left it is none."""
    before = one(torchrun(Table(), 100))
    table = Table().add(100, 10, TORCHRUN)
    for rank in (0, 1):
        table.add(151 + rank, 100, TRAIN, torch_environment(rank))
    after = groups.again(table, before.processes)
    assert after is not None
    assert (pids(after), after.run_id) == ({0: 151, 1: 152}, before.run_id)
    assert groups.again(Table(), before.processes) is None


def test_the_next_trial_of_a_sweep_is_another_group() -> None:
    """A script may start one training after the other: the second one is not the first one again."""
    first, second = Table(), Table()
    for table, pid in ((first, 101), (second, 201)):
        table.add(100, 10, ("/v/bin/python", "sweep.py"))
        for rank in (0, 1):
            table.add(pid + rank, 100, TRAIN, torch_environment(rank))
    assert one(first).starter == one(second).starter == Process(100, 100.0)
    assert groups.again(second, one(first).processes) is None
    assert one(first).name != one(second).name


def test_the_task_of_a_shell_is_no_rank() -> None:
    """In the only task of a step two trainings and a kernel look alike: none is that rank, and nothing marks them."""
    table = Table().add(100, 10, TRAIN, SLURM).add(200, 10, ("/v/bin/python", "other.py"), SLURM)
    table.add(300, 10, ("/v/bin/python", "-m", "ipykernel_launcher"), SLURM)
    assert groups.found(table) == []
    table.backward = {100, 200, 300}
    assert [(pids(each), each.marks) for each in groups.found(table)] == [({0: 100}, {}), ({0: 200}, {})]


def test_a_step_of_slurm_marks_nobody() -> None:
    """Ranks of srun are found by their tasks, and a kernel is none; a step may hold other work of its user, too."""
    two = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    table = Table()
    for rank in (0, 1):
        table.add(100 + rank, 10, TRAIN, two | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
    assert (pids(one(table)), one(table).world, one(table).marks) == ({0: 100, 1: 101}, 2, {})
    table = Table().add(300, 10, ("/v/bin/python", "-m", "ipykernel_launcher"), two)
    assert groups.found(table) == []


def test_a_training_in_the_shell_of_a_step_is_by_itself() -> None:
    """`srun -n 4 --pty bash` has a terminal in its first task: what is typed there is no rank 0 of 4."""
    four = SLURM | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4"}
    table = Table().add(100, 10, TRAIN, four)
    assert (pids(one(table)), one(table).world) == ({0: 100}, 4)
    python = table.pythons[100]
    table.pythons[100] = replace(python, row=replace(python.row, terminal=34817))
    assert groups.found(table) == []
    table.backward = {100}
    assert (pids(one(table)), one(table).world) == ({0: 100}, 1)


def test_one_place_twice_is_two_groups() -> None:
    """Two trainings in one task of several are two groups, both listed, and what they have in common marks neither."""
    two = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    table = Table().add(100, 10, TRAIN, two).add(200, 10, ("/v/bin/python", "other.py"), two)
    assert [(pids(each), each.marks) for each in groups.found(table)] == [({0: 100}, {}), ({0: 200}, {})]


def test_a_training_does_not_end_with_one_that_it_has_started() -> None:
    """It is a group of its own, and its pid means that one."""
    table = Table().add(100, 10, ("/v/bin/python", "long.py"))
    for rank in (0, 1):
        table.add(101 + rank, 100, ("/v/bin/python", "evaluate.py"), torch_environment(rank))
    assert one(table).starter == Process(100, 100.0)
    table.backward = {100}
    assert [(pids(each), each.starter) for each in groups.found(table)] == [({0: 100}, None), ({0: 101, 1: 102}, None)]
    assert list(map(pids, groups.of_process(table, 100))) == [{0: 100}]


def test_the_torchrun_of_a_pod_is_the_launcher() -> None:
    """A pod has its own RANK in the environment of its torchrun, which may be that of one of the ranks below."""
    table = Table().add(100, 10, TORCHRUN, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "m"})
    for rank in (0, 1):
        table.add(101 + rank, 100, TRAIN, torch_environment(rank, 4))
    assert (pids(one(table)), one(table).launcher) == ({0: 101, 1: 102}, Process(100, 100.0))


def test_a_folder_of_the_user_is_no_mark() -> None:
    """A path that torchrun has not drawn, and that other jobs may have, too, marks nothing."""
    table = Table()
    for rank in (0, 1):
        own = {"TORCHELASTIC_ERROR_FILE": "/home/me/exp/logs/error.json"}
        table.add(101 + rank, 10, TRAIN, torch_environment(rank) | own)
    assert one(table).marks == {}


def test_numbers_of_no_training() -> None:
    """A world or a rank that no run has is none, and costs neither memory nor an exception."""
    table = Table().add(100, 10, TRAIN, {"RANK": "0", "WORLD_SIZE": "2000000000"})
    assert groups.found(table) == []
    table = Table().add(101, 10, (*TRAIN, "--rank", "9" * 5000)).add(102, 10, (*TRAIN, "--rank", "0"))
    table.links = {101, 102}
    assert pids(one(table)) == {0: 101, 1: 102}


def test_a_trial_below_a_sweep_is_meant_by_its_pid() -> None:
    """Who names a trial means that, and not the sweep above it that has loaded torch, too."""
    table = Table().add(100, 10, ("/v/bin/python", "sweep.py")).add(101, 100, ("/v/bin/python", "trial.py"))
    (named,) = groups.of_process(table, 101)
    assert pids(named) == {0: 101}


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (("python", "-u", "-X", "dev", "-Wignore", "a.py", "-m"), "a.py"),
        (("python3.12", "-um", "pkg.train", "x"), "-m pkg.train"),
        (("python", "-c", "import x"), ""),
        (("python", "-W", "ignore", "-"), ""),
        (("ray::RayTrainWorker.train", ), "ray::RayTrainWorker.train"),
    ],
)  # fmt: skip
def test_program(words: tuple[str, ...], program: str) -> None:
    """The program of a Python is what follows the interpreter's own options."""
    assert program_of(words)[0] == program

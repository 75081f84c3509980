"""The training groups among the processes of this user. Pure: the processes come as values.

By environment, a rank is the outermost Python with torch that has the variables of a launcher.  Without one, ranks are
children of one parent that run the same program with torch and have TCP connections with one another.  A process by
itself is one where it has threads for backward passes, or data workers; a notebook or a language server with torch
is none.  Not told are ranks on a CPU by themselves, and those that have not loaded torch yet.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from ddptop.agent.end.processes import lineage
from ddptop.agent.launcher.position import Position, starts_ranks
from ddptop.agent.outside.processes import Processes, Python, program_of
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import MOST_RANKS, stem_of

_HOSTS: Final = re.compile(
    r"(-m )?(\w*ipykernel|\w*kernel_launcher|jupyter|ipython|pytest|py\.test|pylsp|debugpy|celery|airflow|spyder"
    r"|pydevconsole|(colab|marimo|streamlit|supervisord|uvicorn|gunicorn|dask|prefect|dagster|luigid?|wandb)([.-]|$))",
    re.IGNORECASE,
)
"""Programs that go on when a training in them ends: they are neither a rank nor have they started a job.

Of a common word the whole name counts, since a training may be called `wandb_run.py`.
"""
_RANK_OPTION: Final = re.compile(r"--(?:local[_-])?rank(?:=(\d{1,6}))?")
_NUMBER: Final = re.compile(r"\d{1,6}")
_STARTER: Final = "TORCHELASTIC_ERROR_FILE"
"""A path below a folder whose name torchrun draws anew for each of its starts."""
_STARTED: Final = re.compile(r"(/.+/)attempt_\d+/\d+/error\.json")
_BY_TORCH: Final = frozenset({"torchrun", "environment"})
"""Places by torch's own variables: what is around such a rank may be a task of Slurm that has other work, too."""
_RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, slots=True)
class Group:
    """A training group that nobody prepared."""

    ranks: Mapping[int, Process]
    """The processes of its ranks on this host."""
    local_ranks: Mapping[int, int]
    """Those that a launcher has given; else they are the ranks."""
    world: int
    launcher: Process | None
    """The process of this user whose only work is this job: all that it starts is of the group; None without one."""
    command: tuple[str, ...]
    """The command line of that one."""
    program: str
    arguments: tuple[str, ...]
    starter: Process | None = None
    """In the place of a launcher, a script that has started the ranks, and may start other jobs, too."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Variables that all of its processes have and no others, each with the folder that all values are below."""
    restarts: Mapping[int, int] = field(default_factory=dict)
    """By rank, how often its launcher says that it has started the group again."""
    nodes: int | None = None
    node: int | None = None

    @property
    def root(self) -> Process:
        """The process by which it is known: its launcher, or its first rank here."""
        return self.launcher or self.ranks[min(self.ranks)]

    @property
    def run_id(self) -> str:
        """The id of the run that it is, before and after somebody attaches to it."""
        text = f"outside {self.root.boot} {self.root.pid} {self.root.started}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        """The name of that run."""
        return f"{stem_of(self.program, 30)}-{self.run_id[:4]}"

    @property
    def processes(self) -> set[Process]:
        """Its launcher and its ranks."""
        return {*self.ranks.values(), *filter(None, [self.launcher])}


def found(processes: Processes) -> list[Group]:
    """Return all groups, those with the lowest pid first."""
    groups = list(_by_environment(processes))
    groups += _by_descent(processes, _below(processes, groups))
    groups += _alone(processes, _below(processes, groups))
    started = Counter(group.launcher for group in groups)
    for number, group in enumerate(groups):
        if group.launcher is not None and started[group.launcher] > 1:
            groups[number] = replace(group, launcher=None, command=(), starter=group.launcher)
    return sorted(groups, key=lambda group: group.root.pid)


def of_process(processes: Processes, pid: int) -> list[Group]:
    """Return the group of which a process is launcher, rank or a process below a rank, or all of a script.

    Who names a Python that has loaded torch means it, also where nothing else shows that it trains.
    """
    groups, line = found(processes), lineage(pid, processes.table)
    for above in line:
        for group in groups:
            if above in {each.pid for each in group.ranks.values()} or (above == pid and above == group.root.pid):
                return [group]
    if started := [group for group in groups if group.starter is not None and group.starter.pid == pid]:
        return started
    alone = [each for each in line if each in processes.pythons and _may_train(processes, processes.pythons[each])]
    # One above it is a sweep, whose other trainings are not meant.
    return [_group(processes, {0: alone[0]}, 1, None)] if alone else []


def again(processes: Processes, known: Set[Process]) -> Group | None:
    """Return the group that has one of these processes for its launcher or a rank; None where none is seen."""
    return next((group for group in found(processes) if known & group.processes), None)


def _by_environment(processes: Processes) -> Iterator[Group]:
    places = {
        pid: place
        for pid, python in processes.pythons.items()
        if not python.is_helper and not starts_ranks(python.program) and (place := _place(python)) is not None
    }
    ranks: dict[int, Position] = {}
    for pid in sorted(places, key=lambda pid: len(lineage(pid, processes.table))):
        above = lineage(pid, processes.table)[1:]
        if not any(ranks.get(each) == places[pid] for each in above) and processes.loads_torch(pid):
            ranks[pid] = places[pid]
    grouped: defaultdict[tuple[object, ...], list[dict[int, int]]] = defaultdict(list)
    for pid, place in sorted(ranks.items()):
        environment, starter = processes.pythons[pid].environment, _starter(processes, pid)
        # A launcher of torch starts one group, whose port differs from start to start.
        is_launcher = starter is not None and starts_ranks(starter.program)
        port = None if is_launcher else (environment.get("MASTER_ADDR"), environment.get("MASTER_PORT"))
        alike = grouped[place.world, None if starter is None else starter.row.process, port, place.launcher]
        # Where one place is taken twice, as by two trainings in one shell, the second one is of another group.
        free = next((each for each in alike if is_launcher or place.rank not in each), None)
        if free is None:
            alike.append(free := {})
        free[place.rank] = pid
    for pids, is_single in ((each, len(alike) == 1) for alike in grouped.values() for each in alike):
        first, starter = ranks[pids[min(pids)]], _starter(processes, pids[min(pids)])
        local = {rank: ranks[pid].local_rank for rank, pid in pids.items()}
        if starter is not None and first.world == len(pids) + 1 and _is_first(processes, starter, pids):
            # Lightning's own launcher: the process that starts the others is rank 0.
            pids, starter = {0: starter.row.process.pid, **pids}, None
        counts = {rank: processes.pythons[pid].environment.get(_RESTARTS, "") for rank, pid in pids.items()}
        yield replace(
            _group(processes, pids, first.world, starter),
            local_ranks=local,
            marks=_marks(processes, pids.values()) if is_single else {},
            restarts={rank: int(each) for rank, each in counts.items() if each.isdecimal() and len(each) < 9},
            nodes=first.nodes,
            node=first.node,
        )


def _is_first(processes: Processes, script: Python, pids: Mapping[int, int]) -> bool:
    children = [processes.pythons[pid] for pid in pids.values()]
    # The children get the absolute path of a script that was started by a relative one.
    alike = {os.path.basename(each.program) for each in (script, *children)}
    return 0 not in pids and len(alike) == 1 and not any("RANK" in each.environment for each in children)


def _place(python: Python) -> Position | None:
    """Return the place that a launcher has given a process in its environment; None where there is none."""
    environment = python.environment
    if "WORLD_SIZE" in environment and not {"RANK", "LOCAL_RANK"} & environment.keys():
        # It is that of the parent, whose children get their ranks as arguments.
        return None
    if "RANK" in environment and "WORLD_SIZE" not in environment:
        return None
    try:
        place = Position.from_environment(environment, python.program)
    except ValueError:
        return None
    # A kernel or a shell may be a task of Slurm or of `mpirun`, too; below it all look as if they were that task. Of a
    # step of several tasks, only the shell that `srun --pty` has started has a terminal.
    if place.launcher not in _BY_TORCH and (place.world == 1 or (place.launcher == "slurm" and python.row.terminal)):
        return None
    if place.launcher != "torchrun" and _is_host(python):
        return None
    return place if place.launcher and 0 <= place.rank < place.world <= MOST_RANKS else None


def _is_host(python: Python) -> bool:
    return _HOSTS.match(os.path.basename(python.program)) is not None


def _starter(processes: Processes, pid: int) -> Python | None:
    """Return the process of this user that has started a rank; wrappers have the variables of the rank."""
    own = processes.environment(pid)
    for above in lineage(pid, processes.table)[1:]:
        python = processes.pythons.get(above)
        if python is not None and python.serves_forks:
            continue
        # A pod's own RANK is that of the torchrun in it, and may be that of one of its ranks.
        is_launcher = python is not None and starts_ranks(python.program)
        if not is_launcher and "RANK" in own and processes.environment(above).get("RANK") == own["RANK"]:
            continue
        return None if python is None or not python.program or _is_host(python) else python
    return None


def _marks(processes: Processes, pids: Iterable[int]) -> dict[str, str]:
    """Return the folder that torchrun has drawn for a job: all of its processes inherit paths in it, and no others."""
    # `/tmp/torchelastic_x1/none_y2/attempt_0/0/error.json`: the last three differ by start and rank.
    files = [_STARTED.fullmatch(processes.pythons[pid].environment.get(_STARTER, "")) for pid in pids]
    folders = {None if file is None else file[1] for file in files}
    return {_STARTER: folder} if len(folders) == 1 and (folder := folders.pop()) is not None else {}


def _by_descent(processes: Processes, taken: set[int]) -> Iterator[Group]:
    families: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for pid, python in processes.pythons.items():
        if pid not in taken and _may_be_rank(python):
            families[python.row.parent, python.program, python.is_spawned].append(pid)
    for pids in families.values():
        ranks = [pid for pid in pids if processes.loads_torch(pid)] if len(pids) > 1 else []
        if len(ranks) < 2 or not processes.are_connected(ranks):
            continue
        numbered, starter = _numbered(processes, ranks), _starter(processes, ranks[0])
        yield _group(processes, numbered, max(numbered) + 1, starter)


def _numbered(processes: Processes, pids: list[int]) -> dict[int, int]:
    """Return the processes by rank: as their arguments say it, else in the order of their starts."""
    said: dict[int, int] = {}
    for pid in pids:
        words = processes.pythons[pid].words
        for word, following in zip(words, (*words[1:], ""), strict=True):
            if (option := _RANK_OPTION.fullmatch(word)) is not None and _NUMBER.fullmatch(option[1] or following):
                said[int(option[1] or following)] = pid
    if len(said) == len(pids) and max(said) < 1 << 16:
        return dict(sorted(said.items()))
    return dict(enumerate(sorted(pids, key=lambda pid: (processes.table[pid].process.started, pid))))


def _alone(processes: Processes, taken: set[int]) -> Iterator[Group]:
    workers = {each.row.parent for each in processes.pythons.values() if each.loads_data}
    for pid, python in processes.pythons.items():
        above = lineage(pid, processes.table)[1:]
        if pid in taken or any(each in processes.pythons and processes.loads_torch(each) for each in above):
            continue
        if (pid in workers or processes.does_backward(pid)) and _may_train(processes, python):
            yield _group(processes, {0: pid}, 1, None)


def _may_train(processes: Processes, python: Python) -> bool:
    return _may_be_rank(python) and bool(python.program) and processes.loads_torch(python.row.process.pid)


def _may_be_rank(python: Python) -> bool:
    return not (python.is_helper or python.serves_forks or starts_ranks(python.program) or _is_host(python))


def _group(processes: Processes, pids: Mapping[int, int], world: int, starter: Python | None) -> Group:
    first = processes.pythons[pids[min(pids)]]
    # Children that Python has spawned or forked run what the program above them has given them.
    is_sole = starter is not None and (
        starts_ranks(starter.program) or first.is_spawned or first.words == starter.words
    )
    program, arguments = program_of((first if first.program or starter is None else starter).words)
    above = None if starter is None else starter.row.process
    # What trains itself goes on without another training that it has started.
    trains = above is not None and not is_sole and processes.does_backward(above.pid)
    return Group(
        {rank: processes.table[pid].process for rank, pid in sorted(pids.items())},
        {},
        world,
        above if is_sole else None,
        starter.words if starter is not None and is_sole else (),
        program or "python",
        arguments,
        None if is_sole or trains else above,
    )


def _below(processes: Processes, groups: Iterable[Group]) -> set[int]:
    """Return the pids of groups and of all processes below them."""
    roots = {process.pid for group in groups for process in group.processes}
    return {pid for pid in processes.pythons if roots & set(lineage(pid, processes.table))}

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
from collections.abc import Iterable, Iterator, Mapping
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
"""Programs that go on when a training in them ends: they are neither a rank nor a launcher.

Of a common word the whole name counts, since a training may be called `wandb_run.py`.
"""
_RANK_OPTION: Final = re.compile(r"--(?:local[_-])?rank(?:=(\d{1,6}))?")
_NUMBER: Final = re.compile(r"\d{1,6}")
_STARTER: Final = "TORCHELASTIC_ERROR_FILE"
"""A path below a folder whose name torchrun draws anew for each of its starts."""
_STARTED: Final = re.compile(r"(/.+/)attempt_\d+/\d+/error\.json")
_UNIQUE: Final = ("slurm", ("SLURM_JOB_ID", "SLURM_STEP_ID")), ("", ("PMIX_NAMESPACE",))
"""Variables that together name one job for good, by the launcher that they are of; empty: of any."""
_BY_TORCH: Final = frozenset({"torchrun", "environment"})
"""Places by torch's own variables: what is around such a rank may be a task of Slurm that has other work, too."""
_RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, slots=True)
class Group:
    """A training group that nobody prepared."""

    ranks: Mapping[int, Process]
    """The processes of its ranks on this host."""
    local_ranks: Mapping[int, int]
    world: int
    launcher: Process | None
    """The process of this user whose only work is to start the ranks; None where there is none."""
    command: tuple[str, ...]
    """The command line of that one."""
    program: str
    arguments: tuple[str, ...]
    marks: Mapping[str, str] = field(default_factory=dict)
    """Variables, with their values, that all of its processes have and no others; of a folder all below it counts."""
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
        return {*self.ranks.values(), *([] if self.launcher is None else [self.launcher])}


def found(processes: Processes) -> list[Group]:
    """Return all groups, those with the lowest pid first."""
    groups = list(_by_environment(processes))
    groups += _by_descent(processes, _below(processes, groups))
    groups += _alone(processes, _below(processes, groups))
    # What starts several groups is a sweep or a service, and ends with none of them.
    shared = Counter(group.launcher for group in groups)
    groups = [
        replace(group, launcher=None, command=())
        if shared[group.launcher] > 1 or _starts_others(processes, group)
        else group
        for group in groups
    ]
    return sorted(groups, key=lambda group: group.root.pid)


def of_process(processes: Processes, pid: int) -> Group | None:
    """Return the group of which a process is launcher, rank or a process below a rank; None where it is in none.

    Who names a Python that has loaded torch means it, also where nothing else shows that it trains.
    """
    groups, line = found(processes), lineage(pid, processes.table)
    for above in line:
        for group in groups:
            if above in {each.pid for each in group.ranks.values()} or (above == pid and above == group.root.pid):
                return group
    alone = [each for each in line if each in processes.pythons and _may_train(processes, processes.pythons[each])]
    # One above it is a sweep, whose other trainings are not meant.
    return _single(processes.pythons[alone[0]]) if alone else None


def again(processes: Processes, before: Group) -> Group | None:
    """Return a group as it is now, by its launcher or a rank; None where nothing is left of it that is seen."""
    known = before.processes
    for group in found(processes):
        if known & group.processes:
            return group
    alive = {row.process for row in processes.table.values()}
    left = {rank: each for rank, each in before.ranks.items() if each in alive}
    return replace(before, ranks=left) if left else None


def _by_environment(processes: Processes) -> Iterator[Group]:
    places: dict[int, Position] = {}
    for pid, python in processes.pythons.items():
        if not python.is_helper and not starts_ranks(python.program) and (place := _place(python)) is not None:
            places[pid] = place
    ranks: dict[int, Position] = {}
    for pid in sorted(places, key=lambda pid: len(lineage(pid, processes.table))):
        above = lineage(pid, processes.table)[1:]
        if not any(ranks.get(each) == places[pid] for each in above) and processes.loads_torch(pid):
            ranks[pid] = places[pid]
    grouped: defaultdict[tuple[object, ...], list[dict[int, int]]] = defaultdict(list)
    for pid, place in sorted(ranks.items()):
        environment = processes.pythons[pid].environment
        launcher = _launcher(processes, pid)
        # A launcher of torch starts one group, whose port differs from start to start.
        is_starter = launcher is not None and starts_ranks(processes.pythons[launcher].program)
        port = None if is_starter else (environment.get("MASTER_ADDR"), environment.get("MASTER_PORT"))
        alike = grouped[place.world, launcher, port, place.launcher]
        # Where one place is taken twice, as by two trainings in one shell, the second one is of another group.
        free = next((each for each in alike if is_starter or place.rank not in each), None)
        if free is None:
            alike.append(free := {})
        free[place.rank] = pid
    for pids, is_single in ((each, len(alike) == 1) for alike in grouped.values() for each in alike):
        first = ranks[pids[min(pids)]]
        launcher = _launcher(processes, pids[min(pids)])
        local = {rank: ranks[pid].local_rank for rank, pid in pids.items()}
        script = processes.pythons.get(launcher) if launcher is not None else None
        if script is not None and first.world == len(pids) + 1 and _is_first(processes, script, pids):
            # Lightning's own launcher: the process that starts the others is rank 0.
            pids, local, launcher = {0: script.row.process.pid, **pids}, {0: 0, **local}, None
        group = _group(processes, pids, local, first.world, launcher)
        counts = {rank: processes.pythons[pid].environment.get(_RESTARTS, "") for rank, pid in pids.items()}
        yield replace(
            group,
            marks=_marks(processes, pids.values(), first) if is_single else {},
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
    # A kernel or a shell may be a task of Slurm or of `mpirun`, too; below it all look as if they were that task.
    if place.launcher not in _BY_TORCH and place.world == 1:
        return None
    if place.launcher != "torchrun" and _is_host(python):
        return None
    return place if place.launcher and 0 <= place.rank < place.world <= MOST_RANKS else None


def _is_host(python: Python) -> bool:
    return _HOSTS.match(os.path.basename(python.program)) is not None


def _launcher(processes: Processes, pid: int) -> int | None:
    """Return the process of this user that has started a rank, if that is all its work; wrappers have its variables."""
    own = processes.environment(pid)
    for above in lineage(pid, processes.table)[1:]:
        python = processes.pythons.get(above)
        if python is not None and python.serves_forks:
            continue
        # A pod's own RANK is that of the torchrun in it, and may be that of one of its ranks.
        is_starter = python is not None and starts_ranks(python.program)
        if not is_starter and "RANK" in own and processes.environment(above).get("RANK") == own["RANK"]:
            continue
        return None if python is None or not python.program or _is_host(python) else above
    return None


def _starts_others(processes: Processes, group: Group) -> bool:
    """Say whether the launcher of a group has started other Pythons with torch, too, which do not end with the group.

    What only starts ranks, runs the same program or has spawned them has no other work.
    """
    launcher = None if group.launcher is None else processes.pythons[group.launcher.pid]
    if launcher is None or starts_ranks(launcher.program):
        return False
    ranks = {process.pid for process in group.ranks.values()}
    first = processes.pythons[min(ranks)]
    if first.is_spawned or os.path.basename(first.program) == os.path.basename(launcher.program):
        return False
    lines = ((pid, lineage(pid, processes.table)) for pid, each in processes.pythons.items() if not each.is_helper)
    return any(
        launcher.row.process.pid in line[1:] and not ranks & set(line) and processes.loads_torch(pid)
        for pid, line in lines
    )


def _marks(processes: Processes, pids: Iterable[int], place: Position) -> dict[str, str]:
    """Return what is drawn anew for each job and is inherited by all of its processes, and by no others."""
    environments = [processes.pythons[pid].environment for pid in pids]
    # `/tmp/torchelastic_x1/none_y2/attempt_0/0/error.json`: the last three differ by start and rank.
    files = [_STARTED.fullmatch(each.get(_STARTER, "")) for each in environments]
    folders = {None if file is None else file[1] for file in files}
    if len(folders) == 1 and (folder := folders.pop()) is not None:
        return {_STARTER: folder}
    for launcher, names in _UNIQUE if place.launcher not in _BY_TORCH else ():
        if launcher not in ("", place.launcher):
            continue
        values = {tuple(each.get(name, "") for name in names) for each in environments}
        if len(values) == 1 and all(alike := values.pop()):
            return dict(zip(names, alike, strict=True))
    return {}


def _by_descent(processes: Processes, taken: set[int]) -> Iterator[Group]:
    families: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for pid, python in processes.pythons.items():
        if pid not in taken and _may_be_rank(python):
            families[python.row.parent, python.program, python.is_spawned].append(pid)
    for pids in families.values():
        ranks = [pid for pid in pids if processes.loads_torch(pid)] if len(pids) > 1 else []
        if len(ranks) < 2 or not processes.connected(ranks):
            continue
        numbered = _numbered(processes, ranks)
        launcher = _launcher(processes, ranks[0])
        yield _group(processes, numbered, {rank: rank for rank in numbered}, max(numbered) + 1, launcher)


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
            yield _single(python)


def _may_train(processes: Processes, python: Python) -> bool:
    return _may_be_rank(python) and bool(python.program) and processes.loads_torch(python.row.process.pid)


def _may_be_rank(python: Python) -> bool:
    return not (python.is_helper or python.serves_forks or starts_ranks(python.program) or _is_host(python))


def _single(python: Python) -> Group:
    program, arguments = program_of(python.words)
    return Group({0: python.row.process}, {0: 0}, 1, None, (), program, arguments)


def _group(
    processes: Processes, pids: Mapping[int, int], local: Mapping[int, int], world: int, launcher: int | None
) -> Group:
    script = processes.pythons[pids[min(pids)]]
    if not script.program and launcher is not None:
        # Its children run what the program has given them.
        script = processes.pythons[launcher]
    program, arguments = program_of(script.words)
    return Group(
        {rank: processes.table[pid].process for rank, pid in sorted(pids.items())},
        local,
        world,
        None if launcher is None else processes.table[launcher].process,
        () if launcher is None else processes.pythons[launcher].words,
        program or "python",
        arguments,
    )


def _below(processes: Processes, groups: Iterable[Group]) -> set[int]:
    """Return the pids of groups and of all processes below them."""
    roots = {process.pid for group in groups for process in group.processes}
    return {pid for pid in processes.pythons if roots & set(lineage(pid, processes.table))}

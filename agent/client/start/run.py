"""The start of a run: its directory, the room that it gets on the disk, and its observer."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ddptop.agent.client.host import settings
from ddptop.agent.client.runs import Record, Run, named, tidy
from ddptop.agent.client.start import checks, notifier, source
from ddptop.agent.client.start import hosts as named_hosts
from ddptop.agent.client.start.request import CHECKPOINTS, RESUME, Program, Request, RequestError
from ddptop.agent.launcher import launcher, machine, observers
from ddptop.agent.launcher.slurm import is_task
from ddptop.agent.record import retention
from ddptop.agent.run import hosts, rundir
from ddptop.agent.run.files import masking
from ddptop.agent.run.rundir import identify
from ddptop.agent.run.switches import checking, injection
from ddptop.agent.startup import pythonpath
from ddptop.agent.text import plural

_SETTINGS: Final = (
    "program", "world", "backend", "device", "cwd", "environment", "placement", "injected", "grace_s", "max_restarts",
    "on_term", "guessed", "local_world", "nodes", "node", "resumes",
)  # fmt: skip
"""Fields of a run that its repetition takes over as they are."""
_NAMED: Final = 5
"""Runs that are named in one line."""

Tell = Callable[[str], None]
"""Takes a line on what was done besides."""


def launch(
    request: Request,
    program: Program,
    tell: Tell = lambda line: None,
    *,
    belongs: bool = False,
    notify: Sequence[str] = (),
) -> Run:
    """Start a run and return it, without waiting for its ranks; `tell` what was done besides.

    Where the request cannot work nothing is started, and nothing of the run is left behind.

    Args:
        request: what to launch.
        program: its program, found.
        tell: takes a line on what was removed to make room, or on what else was decided.
        belongs: the run ends with this process at the latest, the task of a scheduler; see `belongs_here`.
        notify: addresses to which messages on the run go, besides those of the settings.

    Raises:
        RequestError: the request cannot work.
        rundir.RunDirError: there is no place for the run, or its name is taken.
    """
    checks.check(request)
    several = named_hosts.read(request)
    if several is not None:
        try:
            named_hosts.check_endpoint(several, patient=belongs)
        except ValueError as problem:
            raise RequestError(str(problem)) from problem
    placement = machine.choose(checks.ranks_here(request), request.backend)
    shown = request.shown
    usual = rundir.suggest_name(shown) if several is None else named_hosts.name_of(shown, several)
    name = rundir.check_name(request.name or usual)
    if several is not None and not request.name:
        # The hosts agree on the name without a word, and so cannot count the runs that had it before.
        set_aside(name, tell)
    record = Record(
        run=name,
        run_id=secrets.token_hex(16) if several is None else named_hosts.run_id_of(shown, several),
        program=f"-m {request.program}" if request.as_module else request.program,
        arguments=request.arguments,
        world=checks.ranks(request),
        backend=placement.backend,
        device=placement.device,
        created_at_ns=time.time_ns(),
        launched=True,
        cwd=os.getcwd(),
        command=command(request, program),
        environment={**placement.environment, **_environment(request)},
        placement=placement.text,
        injected=injection.describe(checks.faults(request)),
        grace_s=request.grace,
        on_term=request.on_term,
        max_restarts=request.max_restarts,
        owner=os.getuid(),
        guessed=request.world is None and request.nproc_per_node is None,
        holder=identify(os.getpid()) if belongs else None,
        local_world=None if several is None else several.here,
        nodes=None if several is None else several.most,
        node=None if several is None else several.rendezvous.node_rank,
        resumes=program.resumes,
    )
    return begin(record, request.who, tell, notify=notify)


def command(request: Request, program: Program) -> tuple[str, ...]:
    """Return the command line that starts the ranks of this host."""
    if request.start != "spawn":
        several = named_hosts.read(request)
        rendezvous = None if several is None else several.rendezvous
        here = checks.ranks_here(request)
        return launcher.command(program.target, request.arguments, here, request.max_restarts, rendezvous)
    own = ("--start", "spawn", "--world", str(checks.ranks(request))) if program.is_ours else ()
    return launcher.spawn_command(program.target, (*own, *request.arguments))


def _environment(request: Request) -> dict[str, str]:
    """Return what the ranks' environment gets on top of ours and of what their placement needs."""
    given = checks.variables(request.environment)
    if request.inject:
        given[injection.VARIABLE] = ";".join(request.inject)
    if request.check_parameters:
        given[checking.VARIABLE] = request.check_parameters
    if request.start == "spawn":
        given |= pythonpath.environment({**os.environ, **given})
    if request.on_term:
        given["DDPTOP_ON_TERM"] = request.on_term
    return given


def belongs_here() -> bool:
    """Say whether a run that this process starts belongs to it, and nothing of the run is to be left after its end.

    It is the task of a scheduler, or the first process of a container, which takes all others with it.
    """
    return is_task(os.environ) or os.getpid() == 1


def restart(
    ended: Run,
    *,
    resume: bool = False,
    who: str = "somebody",
    tell: Tell = lambda line: None,
    notify: Sequence[str] = (),
) -> Run:
    """Start a run again with the settings of one that has ended; the old one and its history stay.

    The new run is called as the old one with a number behind it, counting up.

    Args:
        ended: the run to repeat.
        who: who asks, for the run's event list.
        resume: let the program go on from its checkpoint, where it is one of the catalogue's that can.
        tell: takes a line on other runs that were removed to make room.
        notify: addresses to which messages on the new run go, besides those of the old one.

    Raises:
        RequestError: it has not ended, or cannot be repeated.
        rundir.RunDirError: there is no place for the run.
    """
    if not ended.has_ended():
        raise RequestError(f"run {ended.name} has not ended; `ddptop kill {ended.name}` ends it")
    old = masking.whole(ended.directory.path, ended.record())
    if not old.launched:
        raise RequestError(f"run {old.run} was started by hand, so that only whoever did can start it again")
    if not os.path.isdir(old.cwd):
        raise RequestError(f"run {old.run} was started in {old.cwd}, which is gone")
    more = (RESUME,) if resume and RESUME not in old.arguments else ()
    if resume and not old.resumes:
        raise RequestError(
            f"{old.program} does not take {RESUME}; `ddptop restart {old.run}` starts it from the beginning"
        )
    checks.check_torch()
    record = Record(
        **{name: getattr(old, name) for name in _SETTINGS},
        run=_next_name(old.run),
        # The same on all hosts, each of which restarts it by itself.
        run_id=secrets.token_hex(16) if not old.spans_hosts else hosts.next_id(old.run_id),
        arguments=(*old.arguments, *more),
        command=(*old.command, *more),
        created_at_ns=time.time_ns(),
        launched=True,
        owner=os.getuid(),
    )
    return begin(record, who, tell, ended, notify=(*notifier.targets(ended), *notify))


def keeps_checkpoints(arguments: Iterable[str]) -> bool:
    """Say whether a program of the catalogue writes checkpoints with these arguments."""
    return any(argument.partition("=")[0] == CHECKPOINTS for argument in arguments)


def begin(record: Record, who: str, tell: Tell, spared: Run | None = None, *, notify: Sequence[str] = ()) -> Run:
    """Make the directory of a run and start its observer, which starts the ranks; `spared` is not removed for its room.

    Where somebody is to be told of the run, its notifier is started besides.

    Raises:
        RequestError: the settings cannot be used, or no process can be started.
        rundir.RunDirError: there is no place for the run, or its name is taken.
    """
    record = msgspec.structs.replace(_with_room(record, spared), launched_by=who)
    commit, dirty = source.of(record.cwd, record.program)
    record = msgspec.structs.replace(record, commit=commit, dirty=dirty)
    if record.removal:
        tell(record.removal)
    directory = rundir.create(record)
    try:
        observers.start(directory)
    except OSError as problem:
        with contextlib.suppress(rundir.RunDirError):
            rundir.discard(directory)
        raise RequestError(f"the observer could not be started: {problem}") from problem
    run = Run(directory)
    if notify or settings.load_or_default()[0].notify.is_wanted:
        try:
            notifier.start(run, notify)
        except rundir.RunDirError as problem:
            tell(str(problem))
    return run


def set_aside(name: str, tell: Tell) -> None:
    """Give an ended run of this name another one."""
    before = named(name)
    if os.path.lexists(before.directory.path) and before.ended() is not None:
        aside = _next_name(name)
        rundir.set_aside(before.directory, aside)
        tell(f"the last run of this name is now {aside}")


def _with_room(record: Record, spared: Run | None) -> Record:
    """Return a record with the room that the settings give its run, after ended runs were removed for it."""
    try:
        storage = settings.load().storage
    except settings.SettingsError as problem:
        raise RequestError(str(problem)) from problem
    kept = None if spared is None else spared.directory
    removed = tidy(spared) | retention.make_room(storage.all_mib << 20, spared=kept)
    bounds = {"run_bytes": storage.run_mib << 20, "all_bytes": storage.all_mib << 20}
    return msgspec.structs.replace(record, **bounds, removed=len(removed), removal=_removal(removed))


def _removal(removed: Mapping[str, int]) -> str:
    """Say in one line which runs were removed, nothing where none was."""
    if not removed:
        return ""
    names = sorted(removed)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    number = plural(len(names), "finished run")
    return f"removed {number}, {sum(removed.values()) / 2**20:,.0f} MiB: {', '.join(names[:_NAMED])}{more}"


def _next_name(name: str) -> str:
    """Return `resnet-7f3a.2` for `resnet-7f3a`, and `.3` for that, skipping what is taken."""
    stem, _, number = name.rpartition(".")
    if not stem or not number.isdecimal():
        stem, number = name, "1"
    # Not runs alone: what else has the name in a base that is in use for other things stays as it is.
    taken = set(os.listdir(rundir.base()))
    for count in range(int(number) + 1, int(number) + 2 + len(taken)):
        ending = f".{count}"
        if (found := rundir.shortened(stem, rundir.LONGEST_NAME - len(ending)) + ending) not in taken:
            return found
    raise AssertionError("more names than entries")

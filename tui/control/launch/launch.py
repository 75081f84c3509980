"""From what the user asked for to a run that an observer looks after; everything is checked first.

Where a request is refused nothing is started, and nothing of the run is left behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.client import takeover
from ddptop.agent.control import journal
from ddptop.agent.launcher import launcher, machine, observers
from ddptop.agent.record import retention
from ddptop.agent.run import rundir
from ddptop.agent.run.files import masking
from ddptop.agent.run.rundir import Process, Run, RunDir
from ddptop.agent.run.switches import checking, injection
from ddptop.agent.startup import pythonpath
from ddptop.agent.text import plural
from ddptop.trainers import CATALOGUE
from ddptop.tui import settings
from ddptop.tui.control.launch import hosts, remembered
from ddptop.tui.control.launch.checks import faults, problems, ranks, ranks_here, variables
from ddptop.tui.control.launch.options import Request
from ddptop.tui.control.launch.target import RequestError as RequestError
from ddptop.tui.control.launch.target import check_torch, target

RESUME: Final = "--resume"
"""What the catalogue's programs call going on from a checkpoint."""
_CHECKPOINTS: Final = "--checkpoint-dir"
_SETTINGS: Final = (
    "program", "world", "backend", "device", "cwd", "environment", "placement", "injected", "grace_s", "max_restarts",
    "on_term", "guessed", "local_world", "nodes", "node",
)  # fmt: skip
"""Fields of a run that its repetition takes over as they are."""
_NAMED: Final = 5
"""Runs that are named in one line."""

Tell = Callable[[str], None]
"""Takes a line on what was done besides."""


def launch(request: Request, tell: Tell = lambda line: None, *, holder: Process | None = None) -> RunDir:
    """Start a run and return its directory, without waiting for its ranks; `tell` what was done besides.

    Args:
        request: what to launch.
        tell: takes a line on what was removed to make room, or on what else was decided.
        holder: the task of a scheduler, with whose end the run has to end too.

    Raises:
        RequestError: the request cannot work.
        rundir.RunDirError: there is no place for the run, or its name is taken.
    """
    path, several = checked(request)
    if several is not None:
        try:
            hosts.check_endpoint(several, patient=holder is not None)
        except ValueError as problem:
            raise RequestError(str(problem)) from problem
    placement = machine.choose(ranks_here(request), request.backend)
    shown = request.program.rpartition(".")[2] if request.as_module else request.program
    name = rundir.check_name(request.name or _name(shown, several))
    if several is not None and not request.name:
        # The hosts agree on the name without a word, and so cannot count the runs that had it before.
        _set_aside(name, tell)
    run = Run(
        run=name,
        run_id=secrets.token_hex(16) if several is None else hosts.run_id_of(shown, several),
        program=f"-m {request.program}" if request.as_module else request.program,
        arguments=request.arguments,
        world=ranks(request),
        backend=placement.backend,
        device=placement.device,
        created_at_ns=time.time_ns(),
        launched=True,
        cwd=os.getcwd(),
        command=command(request, path, several),
        environment={**placement.environment, **_environment(request)},
        placement=placement.text,
        injected=injection.describe(faults(request)),
        grace_s=request.grace,
        on_term=request.on_term,
        max_restarts=request.max_restarts,
        owner=os.getuid(),
        guessed=request.world is None and request.nproc_per_node is None,
        holder=holder,
        local_world=None if several is None else several.here,
        nodes=None if several is None else several.most,
        node=None if several is None else several.rendezvous.node_rank,
    )
    directory = _start(run, request.who, tell)
    remembered.note_launch(request)
    return directory


def checked(request: Request) -> tuple[str, hosts.Hosts | None]:
    """Return the program of a request as the runner takes it, and its hosts where they are several.

    Raises:
        RequestError: the request cannot work.
    """
    path = target(request)
    check_torch()
    for problem in problems(request).values():
        raise RequestError(problem)
    return path, hosts.read(request)


def _name(shown: str, several: hosts.Hosts | None) -> str:
    return rundir.suggest_name(shown) if several is None else hosts.name_of(shown, several)


def _set_aside(name: str, tell: Tell) -> None:
    """Give an ended run of this name another one."""
    before = RunDir(rundir.base() / name)
    if os.path.lexists(before.path) and takeover.meet(before).ended:
        aside = _next_name(name)
        rundir.set_aside(before, aside)
        tell(f"the last run of this name is now {aside}")


def restart(ended: RunDir, *, resume: bool = False, who: str = "somebody", tell: Tell = lambda line: None) -> RunDir:
    """Start a run again with the settings of one that has ended; the old one and its history stay.

    The new run is called as the old one with a number behind it, counting up.

    Args:
        ended: the run to repeat.
        who: who asks, for the run's event list.
        resume: let the program go on from its checkpoint, where it is one of the catalogue's that can.
        tell: takes a line on other runs that were removed to make room.

    Raises:
        RequestError: it has not ended, or cannot be repeated.
        rundir.RunDirError: there is no place for the run.
    """
    if not takeover.meet(ended).ended:
        raise RequestError(f"run {ended.name} has not ended; `ddptop kill {ended.name}` ends it")
    old = masking.whole(ended.path, ended.read())
    if not old.launched:
        raise RequestError(f"run {old.run} was started by hand, so that only whoever did can start it again")
    if not os.path.isdir(old.cwd):
        raise RequestError(f"run {old.run} was started in {old.cwd}, which is gone")
    more = (RESUME,) if resume and RESUME not in old.arguments else ()
    if resume and not _resumes(old.program):
        raise RequestError(
            f"{old.program} does not take {RESUME}; `ddptop restart {old.run}` starts it from the beginning"
        )
    check_torch()
    run = Run(
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
    return _start(run, who, tell, ended)


def resumable(run: Run) -> bool:
    """Say whether a run can be restarted from a checkpoint."""
    return _can_resume(run.program, run.arguments)


def resumed(request: Request) -> Request:
    """Return a request that goes on from its checkpoint where it can, and the same one where it cannot."""
    if RESUME in request.arguments or request.as_module or not _can_resume(request.program, request.arguments):
        return request
    return request._replace(arguments=(*request.arguments, RESUME))


def _can_resume(program: str, arguments: Sequence[str]) -> bool:
    return _resumes(program) and any(argument.partition("=")[0] == _CHECKPOINTS for argument in arguments)


def _resumes(program: str) -> bool:
    return program in CATALOGUE and CATALOGUE[program].resumes


def _start(run: Run, who: str, tell: Tell, spared: RunDir | None = None) -> RunDir:
    run, removed = _with_room(run, spared)
    told = _removal(removed)
    if told:
        tell(told)
    directory = rundir.create(run)
    if told:
        journal.note(directory, wire.Event(run.created_at_ns, told, None, "info"))
    command = shlex.join((run.program, *masking.masked_words(run.arguments)))
    text = journal.sentence("launched", f"{command}, world {run.world}", who)
    journal.note(directory, wire.Event(run.created_at_ns, text, None, "info", "launch", who))
    try:
        observers.start(directory)
    except OSError as problem:
        with contextlib.suppress(rundir.RunDirError):
            rundir.discard(directory)
        raise RequestError(f"the observer could not be started: {problem}") from problem
    return directory


def _with_room(run: Run, spared: RunDir | None) -> tuple[Run, dict[str, int]]:
    """Return the run with the room that the settings give it, and the ended runs removed to make it, with bytes."""
    try:
        storage = settings.load().storage
    except settings.SettingsError as problem:
        raise RequestError(str(problem)) from problem
    removed = takeover.tidy(spared) | retention.make_room(storage.all_mib << 20, spared=spared)
    bounds = {"run_bytes": storage.run_mib << 20, "all_bytes": storage.all_mib << 20}
    return msgspec.structs.replace(run, **bounds, removed=len(removed)), removed


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


def command(request: Request, target: str, several: hosts.Hosts | None) -> tuple[str, ...]:
    """Return the command line that starts the ranks of this host.

    Args:
        request: what to launch.
        target: its program, as the runner takes it.
        several: its hosts, where they are several.
    """
    if request.start != "spawn":
        rendezvous = None if several is None else several.rendezvous
        return launcher.command(target, request.arguments, ranks_here(request), request.max_restarts, rendezvous)
    own = ("--start", "spawn", "--world", str(ranks(request))) if request.program in CATALOGUE else ()
    return launcher.spawn_command(target, (*own, *request.arguments))


def _environment(request: Request) -> dict[str, str]:
    """Return what the ranks' environment gets on top of ours and of what their placement needs."""
    given = variables(request.environment)
    if request.inject:
        given[injection.VARIABLE] = ";".join(request.inject)
    if request.check_parameters:
        given[checking.VARIABLE] = request.check_parameters
    if request.start == "spawn":
        given |= pythonpath.environment({**os.environ, **given})
    if request.on_term:
        given["DDPTOP_ON_TERM"] = request.on_term
    return given

"""From what the user asked for to a run that an observer looks after; everything is checked first.

Where a request is refused nothing is started, and nothing of the run is left behind.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence

from ddptop.agent.client import start
from ddptop.agent.client.start import RESUME, RequestError, Tell, check_torch
from ddptop.agent.launcher import launcher, machine
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Process, Run, RunDir
from ddptop.agent.run.switches import checking, injection
from ddptop.agent.startup import pythonpath
from ddptop.trainers import CATALOGUE
from ddptop.tui.launch import hosts, remembered
from ddptop.tui.launch.checks import faults, problems, ranks, ranks_here, variables
from ddptop.tui.launch.options import Request
from ddptop.tui.launch.target import target


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
        start.set_aside(name, tell)
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
        resumes=_resumes(request.program),
    )
    directory = start.begin(run, request.who, tell)
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


def resumed(request: Request) -> Request:
    """Return a request that goes on from its checkpoint where it can, and the same one where it cannot."""
    if RESUME in request.arguments or request.as_module or not _can_resume(request.program, request.arguments):
        return request
    return request._replace(arguments=(*request.arguments, RESUME))


def _can_resume(program: str, arguments: Sequence[str]) -> bool:
    return _resumes(program) and start.keeps_checkpoints(arguments)


def _resumes(program: str) -> bool:
    return program in CATALOGUE and CATALOGUE[program].resumes


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

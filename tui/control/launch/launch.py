"""From what the user asked for to a run that a supervisor looks after; everything is checked first.

Where a request is refused nothing is started, and nothing of the run is left behind.  torch is
looked for but not imported.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.observer import launcher, machine, supervisor
from ddptop.agent.observer.record import retention
from ddptop.agent.observer.status import takeover
from ddptop.agent.run import injection, rundir
from ddptop.agent.run.files import masking
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.agent.text import Complaint, plural
from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.refusal import NO_MPI
from ddptop.tui import settings
from ddptop.tui.control.launch import modules

RESUME: Final = "--resume"
"""What the catalogue's programs call going on from a checkpoint."""
MOST_RESTARTS: Final = 1000
_CHECKPOINTS: Final = "--checkpoint-dir"
_SETTINGS: Final = (
    "program", "world", "backend", "device", "cwd", "environment", "placement", "injected", "grace_s", "max_restarts",
    "on_term", "guessed",
)  # fmt: skip
"""Fields of a run that its repetition takes over as they are."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS: Final = "DDPTOP_"
_NAMED: Final = 5
"""Runs that are named in one line."""


class RequestError(Complaint):
    """What is wrong with a request and what to do, in one line."""


@dataclass(frozen=True)
class Request:
    """What the user asked to launch."""

    program: str
    """Catalogue name, path of a script, or module."""
    as_module: bool = False
    arguments: tuple[str, ...] = ()
    world: int | None = None
    name: str | None = None
    backend: str | None = None
    start: str = "torchrun"
    """Who starts the ranks: `torchrun`, or `spawn` for the program itself."""
    grace_s: float = 5.0
    on_term: str = ""
    """What a TERM from outside leads to: `checkpoint`, and then a stop; empty for what it always does."""
    inject: tuple[str, ...] = ()
    """Faults to put into the ranks, as `agent.injection` reads them."""
    who: str = "somebody"
    """Who asks, for the run's event list."""
    max_restarts: int = 0
    """How often torchrun starts all ranks anew when one has failed."""
    environment: tuple[str, ...] = ()
    """What the ranks' environment gets on top, each `KEY=VALUE`, or `KEY` to take the value from ours."""


Tell = Callable[[str], None]
"""Takes a line on what was done besides."""


def launch(request: Request, tell: Tell = lambda line: None) -> RunDir:
    """Start a run and return its directory, without waiting for its ranks; `tell` what was removed to make room.

    Raises:
        RequestError: the request cannot work.
        rundir.RunDirError: there is no place for the run, or its name is taken.
    """
    path = target(request)
    _check_torch()
    if request.backend == "mpi":
        raise RequestError(NO_MPI)
    try:
        check_on_term(request.on_term, request.start)
        check_restarts(request.max_restarts, request.start)
        world = machine.check_world(machine.default_world() if request.world is None else request.world)
        placement = machine.choose(world, request.backend)
        injections = injection.parse_all(request.inject or injection.listed(os.environ), world)
        given = variables(request.environment)
    except ValueError as problem:
        raise RequestError(str(problem)) from problem
    name = request.name or rundir.suggest_name(
        request.program.rpartition(".")[2] if request.as_module else request.program
    )
    run = Run(
        run=rundir.check_name(name),
        run_id=secrets.token_hex(16),
        program=f"-m {request.program}" if request.as_module else request.program,
        arguments=request.arguments,
        world=world,
        backend=placement.backend,
        device=placement.device,
        created_at_ns=time.time_ns(),
        launched=True,
        cwd=os.getcwd(),
        command=_command(request, path, world),
        environment={
            **placement.environment,
            **given,
            **_injected(request),
            **_reached(request, given),
            **_on_term(request),
        },
        placement=placement.text,
        injected=injection.describe(injections),
        grace_s=request.grace_s,
        on_term=request.on_term,
        max_restarts=request.max_restarts,
        owner=os.getuid(),
        guessed=request.world is None,
    )
    return _start(run, request.who, tell)


def check_on_term(on_term: str, start: str) -> None:
    """Refuse what ranks that `start` starts cannot do at a TERM.

    Raises:
        ValueError: one line.
    """
    if start == "spawn" and on_term:
        raise ValueError("--on-term needs --start torchrun: a program that spawns its ranks ends them at a TERM")


def check_restarts(restarts: int, start: str) -> None:
    """Refuse restarts where nobody does them.

    Raises:
        ValueError: one line.
    """
    if start == "spawn" and restarts:
        raise ValueError("--max-restarts needs --start torchrun, which does the restarting")


def restarts(text: str) -> int:
    """Return the number of restarts that a text says.

    Raises:
        ValueError: it says none, one line.
    """
    if not (text.isascii() and text.isdecimal()) or int(text) > MOST_RESTARTS:
        raise ValueError(f"{text!r}: a number of restarts is 0 to {MOST_RESTARTS}")
    return int(text)


def variables(assignments: Iterable[str]) -> dict[str, str]:
    """Return what `KEY=VALUE` each says, or the value that `KEY` alone has in our own environment.

    Raises:
        ValueError: one of them does not say it, one line.
    """
    found = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(key):
            # What stands there may be the end of a secret, cut at a space.
            shown = key if len(key) < len(text) else text[:20]
            raise ValueError(f"environment {shown!r}: say KEY=VALUE or KEY, with letters, digits and _ in KEY")
        if key.startswith(_OURS):
            raise ValueError(f"environment {key!r}: ddptop itself sets {_OURS}…")
        if not equals:
            if key not in os.environ:
                raise ValueError(f"environment {key!r}: not set here; export it, or say {key}=VALUE")
            value = os.environ[key]
        elif value == masking.MASK and masking.is_secret(key):
            raise ValueError(f"environment {key!r}: {value} stands for a secret that was not kept; say it again")
        found[key] = value
    return found


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
    if resume and not (old.program in CATALOGUE and CATALOGUE[old.program].resumes):
        raise RequestError(
            f"{old.program} does not take {RESUME}; `ddptop restart {old.run}` starts it from the beginning"
        )
    _check_torch()
    fields = {name: getattr(old, name) for name in _SETTINGS}
    run = Run(
        **fields,
        run=_next_name(old.run),
        run_id=secrets.token_hex(16),
        arguments=(*old.arguments, *more),
        command=(*old.command, *more),
        created_at_ns=time.time_ns(),
        launched=True,
        owner=os.getuid(),
    )
    return _start(run, who, tell, ended)


def refuse_to_resume(run: Run) -> str | None:
    """Return why a run cannot be restarted from a checkpoint, None where it can."""
    if run.program not in CATALOGUE or not CATALOGUE[run.program].resumes:
        return f"{run.program} is no program of the catalogue that takes {RESUME}"
    if not any(argument.partition("=")[0] == _CHECKPOINTS for argument in run.arguments):
        return f"run {run.run} kept no checkpoint ({_CHECKPOINTS} was not given)"
    return None


def _start(run: Run, who: str, tell: Tell, spared: RunDir | None = None) -> RunDir:
    run, removed = _with_room(run, spared)
    told = _removal(removed)
    if told:
        tell(told)
    directory = rundir.create(run)
    if told:
        journal.note(directory, wire.Event(run.created_at_ns, told, None, "info"))
    command = shlex.join((run.program, *masking.masked_words(run.arguments)))
    text = f"launched by {who}: {command}, world {run.world}"
    journal.note(directory, wire.Event(run.created_at_ns, text, None, "info", "launch", who))
    try:
        supervisor.start(directory)
    except OSError as problem:
        with contextlib.suppress(rundir.RunDirError):
            rundir.discard(directory)
        raise RequestError(f"the supervisor could not be started: {problem}") from problem
    return directory


def _with_room(run: Run, spared: RunDir | None) -> tuple[Run, dict[str, int]]:
    """Return the run with the room that the settings give it, and the ended runs that were removed to make it."""
    try:
        storage = settings.load().storage
    except settings.SettingsError as problem:
        raise RequestError(str(problem)) from problem
    removed = takeover.tidy(spared) | retention.make_room(storage.all_mib << 20, spared=spared)
    return msgspec.structs.replace(run, run_bytes=storage.run_mib << 20, all_bytes=storage.all_mib << 20), removed


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
        if (found := stem[: rundir.LONGEST_NAME - len(ending)] + ending) not in taken:
            return found
    raise AssertionError("more names than entries")


def _injected(request: Request) -> dict[str, str]:
    return {injection.VARIABLE: ";".join(request.inject)} if request.inject else {}


def _command(request: Request, target: str, world: int) -> tuple[str, ...]:
    if request.start != "spawn":
        return launcher.command(target, request.arguments, world, request.max_restarts)
    own = ("--start", "spawn", "--world", str(world)) if request.program in CATALOGUE else ()
    return launcher.spawn_command(target, (*own, *request.arguments))


def _reached(request: Request, given: Mapping[str, str]) -> dict[str, str]:
    return launcher.spawn_environment({**os.environ, **given}) if request.start == "spawn" else {}


def _on_term(request: Request) -> dict[str, str]:
    return {"DDPTOP_ON_TERM": request.on_term} if request.on_term else {}


def target(request: Request) -> str:
    """Return the program as the runner takes it: a path, or `-m module`.

    Raises:
        RequestError: there is no such program, or it cannot run.
    """
    if request.as_module:
        return f"-m {_check_module(request.program)}"
    if request.program in CATALOGUE:
        return f"-m {CATALOGUE[request.program].module}"
    path = Path(request.program)
    if path.is_file():
        _check_syntax(path)
        return request.program
    if path.is_dir():
        raise RequestError(f"{path} is a directory: give the script in it, or `-m` and a module")
    near = difflib.get_close_matches(request.program, CATALOGUE, n=1)
    if near:
        raise RequestError(f"no program or script {request.program!r}: did you mean {near[0]!r}?")
    raise RequestError(
        f"no program or script {request.program!r} in {os.getcwd()}: give the path of a script, "
        f"or one of: {', '.join(CATALOGUE)}"
    )


def _check_module(module: str) -> str:
    try:
        modules.check(module, os.getcwd())
    except modules.ModuleMissing as problem:
        raise RequestError(str(problem)) from problem
    return module


def _check_syntax(path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as problem:
        raise RequestError(f"cannot read {path}: {problem.strerror}") from problem
    except (SyntaxError, ValueError) as problem:
        where = f" line {problem.lineno}" if isinstance(problem, SyntaxError) else ""
        reason = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        raise RequestError(f"{path}{where}: {reason}; this is not a Python script that can run") from problem


def _check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise RequestError(
            f"torch is not installed beside {sys.executable}: pip install 'ddptop[trainers]', "
            f"or run ddptop from the environment that has torch"
        )

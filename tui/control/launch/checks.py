"""Whether a request can work here, found out before anything starts; torch is looked for but not imported."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ddptop.agent.observer import machine
from ddptop.agent.run import injection, rundir
from ddptop.agent.run.files import masking
from ddptop.agent.text import Complaint
from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.refusal import NO_MPI
from ddptop.tui.control.launch import modules
from ddptop.tui.control.launch.options import Request

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS: Final = "DDPTOP_"


class RequestError(Complaint):
    """What is wrong with a request and what to do, in one line."""


# The options


def ranks(request: Request) -> int:
    """Return how many ranks a request asks for."""
    return machine.default_world() if request.world is None else request.world


def faults(request: Request) -> tuple[injection.Injection, ...]:
    """Return the faults that are put into the ranks, those that our own environment asks for where none is given.

    Raises:
        ValueError: one of them is not understood, one line.
    """
    return injection.parse_all(request.inject or injection.listed(os.environ), ranks(request))


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


def _check_backend(request: Request) -> None:
    if request.backend == "mpi":
        raise ValueError(NO_MPI)
    machine.choose(ranks(request), request.backend)


def _check_name(request: Request) -> None:
    if request.name:
        rundir.check_name(request.name)


def _check_on_term(request: Request) -> None:
    if request.start == "spawn" and request.on_term:
        raise ValueError("--on-term needs --start torchrun: a program that spawns its ranks ends them at a TERM")


def _check_restarts(request: Request) -> None:
    if request.start == "spawn" and request.max_restarts:
        raise ValueError("--max-restarts needs --start torchrun, which does the restarting")


CHECKS: Final[dict[str, Callable[[Request], object]]] = {
    "world": lambda request: machine.check_world(ranks(request)),
    "backend": _check_backend,
    "name": _check_name,
    "on_term": _check_on_term,
    "max_restarts": _check_restarts,
    "inject": faults,
    "environment": lambda request: variables(request.environment),
}
"""By key of an option, what refuses a value that cannot work: by a ValueError or a Complaint, one line."""


def check_options(request: Request) -> None:
    """Refuse options that cannot work.

    Raises:
        RequestError: one of them cannot.
        rundir.RunDirError: no run can have that name.
    """
    try:
        for check in CHECKS.values():
            check(request)
    except ValueError as problem:
        raise RequestError(str(problem)) from problem


# The program


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


def check_torch() -> None:
    """Refuse where the ranks would have no torch.

    Raises:
        RequestError: it is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise RequestError(
            f"torch is not installed beside {sys.executable}: pip install 'ddptop[trainers]', "
            f"or run ddptop from the environment that has torch"
        )

"""The program of a request, found before anything starts and without running any of it."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice
from pathlib import Path
from typing import Final

from ddptop.agent.client.start.request import Program, Request, RequestError
from ddptop.trainers import CATALOGUE

_MOST_ENTRIES: Final = 5000
"""Entries that are read of a folder in which a script is looked for."""


def target(request: Request) -> Program:
    """Return the program of a request.

    Raises:
        RequestError: there is no such program, or it cannot run.
    """
    if request.as_module:
        _check_module(request.program, os.getcwd())
        return Program(f"-m {request.program}")
    if request.program in CATALOGUE:
        ours = CATALOGUE[request.program]
        return Program(f"-m {ours.module}", is_ours=True, resumes=ours.resumes)
    path = Path(request.program)
    if path.is_file():
        _check_syntax(path)
        return Program(request.program)
    if path.is_dir():
        raise RequestError(f"{path} is a directory: give the script in it, or `-m` and a module")
    # A name that a script has as well is the program's: that is taken first.
    near = difflib.get_close_matches(request.program, {**CATALOGUE, **dict.fromkeys(_scripts_beside(path))}, n=1)
    if near:
        raise RequestError(f"no program or script {request.program!r}: did you mean {near[0]!r}?")
    if path.suffix == ".py" or path.name != request.program:
        raise RequestError(f"no script {request.program!r} in {os.getcwd()}: give the path of a script")
    raise RequestError(
        f"no program or script {request.program!r} in {os.getcwd()}: give the path of a script, "
        f"or one of: {', '.join(CATALOGUE)}"
    )


def _scripts_beside(path: Path) -> Iterator[str]:
    """Yield the scripts in the folder of a path, each as it has to be given."""
    try:
        with os.scandir(path.parent) as entries:
            for entry in islice(entries, _MOST_ENTRIES):
                if entry.name.endswith(".py"):
                    yield str(path.with_name(entry.name))
    except (OSError, ValueError):
        return


def _check_syntax(path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as problem:
        raise RequestError(f"cannot read {path}: {problem.strerror}") from problem
    except (SyntaxError, ValueError) as problem:
        where = f" line {problem.lineno}" if isinstance(problem, SyntaxError) else ""
        reason = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        raise RequestError(f"{path}{where}: {reason}; this is not a Python script that can run") from problem


def _check_module(module: str, folder: str) -> None:
    """Look for a module in a folder and in this environment, as `python -m` in that folder does, running nothing."""
    parts = module.split(".")
    if not all(parts) or os.sep in module or "\0" in module:
        raise RequestError(f"no module {module!r}: say it as in an import, like package.module")
    places: Sequence[str] | None = None
    for number, part in enumerate(parts, 1):
        name = ".".join(parts[:number])
        found = _find(name, part, [folder, *sys.path] if places is None else places, top=places is None)
        if found is None:
            inside = "" if name == module else f" ({name} is missing)"
            raise RequestError(
                f"no module {module!r} here or in this environment{inside}; check its name and `cd` to its package"
            )
        if found.submodule_search_locations is None:
            if number < len(parts):
                raise RequestError(f"no module {module!r}: {name} is a module and no package")
            return
        places = list(found.submodule_search_locations)
        if _chooses_its_places(found):
            return
    if _find(f"{module}.__main__", "__main__", places or (), top=False) is None:
        raise RequestError(f"module {module!r} is a package without __main__.py; name a module in it")


def _find(name: str, part: str, places: Sequence[str], *, top: bool) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is PathFinder:
            # Told of its last part alone it needs no package that would have to be imported.
            found = PathFinder.find_spec(part, places)
        else:
            # Built-in modules, and packages that are installed to be edited.
            found = finder.find_spec(name, None if top else places) if hasattr(finder, "find_spec") else None
        if found is not None:
            return found
    return None


def _chooses_its_places(found: ModuleSpec) -> bool:
    """Say whether a package may look for its modules elsewhere, which only it knows once it runs."""
    if not found.has_location or found.origin is None:
        return False
    try:
        return b"__path__" in Path(found.origin).read_bytes()
    except OSError:
        return False

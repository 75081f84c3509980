"""Whether `python -m` would find a module to run, found out without running anything of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


class ModuleMissing(Exception):
    """There is no such module, or it cannot be run; one line."""


def check(module: str, folder: str) -> None:
    """Look for a module in a folder and in this environment, as `python -m` in that folder does.

    Raises:
        ModuleMissing: it is not there, or it is a package that has nothing to run.
    """
    parts = module.split(".")
    if not all(parts) or os.sep in module or "\0" in module:
        raise ModuleMissing(f"no module {module!r}: say it as in an import, like package.module")
    places: Sequence[str] | None = None
    for number, part in enumerate(parts, 1):
        name = ".".join(parts[:number])
        found = _find(name, part, [folder, *sys.path] if places is None else places, top=places is None)
        if found is None:
            inside = "" if name == module else f" ({name} is missing)"
            raise ModuleMissing(
                f"no module {module!r} here or in this environment{inside}; check its name and `cd` to its package"
            )
        if found.submodule_search_locations is None:
            if number < len(parts):
                raise ModuleMissing(f"no module {module!r}: {name} is a module and no package")
            return
        places = list(found.submodule_search_locations)
        if _chooses_its_places(found):
            return
    if _find(f"{module}.__main__", "__main__", places or (), top=False) is None:
        raise ModuleMissing(f"module {module!r} is a package without __main__.py; name a module in it")


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

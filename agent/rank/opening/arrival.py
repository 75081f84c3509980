"""What Python runs in the main thread of a rank that is to join: it starts a thread, and returns to the training.

Until that thread has found the agent's package and what it needs, there is nothing but Python itself; the path of
imports stays as it is, and no module of the job is replaced.  The observer gives Python a line that executes this file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys
import threading
import time
import types
from typing import Any

_LOOK_S = 0.05
_COMES_S = 60.0
"""Seconds for which an import may go on after the rank has come."""


def arrive(request: str) -> None:
    """Begin to join, unless the request at this path is gone or too old; raises nothing."""
    try:
        threading.Thread(target=_join, args=(request,), name="ddptop-join", daemon=True).start()
    except Exception:
        # There is no thread: the observer says that the rank has not come.
        return


def _join(path: str) -> None:
    rank = None
    try:
        with open(path, encoding="utf-8") as file:
            wanted = json.load(file)
        if time.monotonic() > wanted["until"]:
            return
        rank = wanted["ranks"][str(os.getpid())]
        _answer(path, rank, "came")
        _wait_for_torch(path)
        _bring_all(wanted)
        from ddptop.agent.rank.opening import joining

        joining.Joining(pathlib.Path(path).parent, rank).run()
    except Exception as error:
        # Else the request is gone, or that of other processes.
        if rank is not None:
            why = str(error) if isinstance(error, _Refused) else f"{type(error).__name__}: {error}"
            _answer(path, rank, "refused", why)


class _Refused(Exception):
    """Why this rank cannot join, in one line."""


def _answer(path: str, rank: int, state: str, why: str = "") -> None:
    file = os.path.join(os.path.dirname(path), f"{rank}.json")
    try:
        with open(os.open(f"{file}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as new:
            json.dump({"state": state, "why": why}, new)
        os.replace(f"{file}.new", file)
    except OSError:
        # The request is gone, which the next look at it shows.
        return


def _wait_for_torch(path: str) -> None:
    """Wait until torch is wholly imported and no thread imports anything."""
    deadline = time.monotonic() + _COMES_S
    while why := _unready():
        if time.monotonic() > deadline or not os.path.exists(path):
            raise _Refused(why)
        time.sleep(_LOOK_S)


def _unready() -> str:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    if spec is None or "torch.optim.optimizer" not in sys.modules:
        return "it has not imported torch so far"
    for each in sys._current_frames().values():
        frame: types.FrameType | None = each
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                return "it is importing modules"
            frame = frame.f_back
    return "it is importing torch" if getattr(spec, "_initializing", False) else ""


def _bring_all(wanted: dict[str, Any]) -> None:
    missing = [name for name, folder in wanted["libraries"].items() if not _has(name, folder)]
    if missing:
        pip = " ".join({"zmq": "pyzmq"}.get(name, name) for name in missing)
        raise _Refused(
            f"its Python has no {' and no '.join(missing)}, and those of ddptop's are for another: "
            f"`{sys.executable} -m pip install {pip}`, and join again"
        )
    version = "ddptop.agent.startup.version"
    if "ddptop.agent" not in sys.modules:
        if "ddptop" not in sys.modules:
            package = types.ModuleType("ddptop")
            package.__path__ = []
            sys.modules["ddptop"] = package
        _bring("ddptop.agent", wanted["package"])
    __import__(version)
    if (present := sys.modules[version].VERSION) != wanted["version"]:
        raise _Refused(f"its script has imported ddptop {present}, and the observer is {wanted['version']}")


def _has(name: str, folder: str) -> bool:
    """Import a package of the job's own environment, or else from this folder; say whether that has succeeded."""
    for bring in (__import__, lambda name: _bring(name, folder)):
        try:
            bring(name)
            return True
        except Exception:
            for each in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[each]
    return False


def _bring(name: str, folder: str) -> None:
    """Import a package from this folder, which is on no path."""
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise

"""The runner: `python -m ddptop.agent [-m] script args…`, one for each rank, usually under torchrun.

`ddptop launch` starts this file by its path, so that the user's folder is not first on the import path.

The runner executes the unmodified script as `__main__`, as plain Python would, with the agent beside it.
It loads neither torch nor textual itself; where the agent cannot start, the script runs without it.
"""

from __future__ import annotations

import sys

if not __package__ and not getattr(sys.flags, "safe_path", sys.flags.isolated):
    # Python has put the folder of this file first; its modules must not be importable as top-level ones.
    sys.path.pop(0)

import atexit
import builtins
import importlib.machinery
import importlib.util
import os
import pkgutil
import signal
import threading
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from ddptop.agent.launcher.position import Position
from ddptop.agent.rank.commands import preemption
from ddptop.agent.rank.hooks import patches
from ddptop.agent.rank.opening.start import open_session
from ddptop.agent.rank.process import ancestry, ending, enrolment
from ddptop.agent.rank.process.output import Output, flush, say, say_unobserved
from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import MARKER, RunDirError
from ddptop.agent.run.switches import checking, injection, recording
from ddptop.agent.startup import importpath

USAGE = "usage: python -m ddptop.agent [-m] script [args…]   (see `ddptop launch --help` for the easy way)"
_OURS = "ddptop."
"""The beginning of the names of the catalogue's modules, which are not imported from the user's folder."""


def main() -> None:
    """Run the script that the command line names."""
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    if as_module:
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        _refuse(USAGE)
    program = arguments[0]
    if not as_module and not os.path.exists(program):
        _refuse(f"ddptop: no script {program} in {_folder()}; give its path, or `-m` and a module")
    try:
        if injection.listed(os.environ):
            injection.from_environment(os.environ)
    except injection.InjectionError as problem:
        _refuse(f"ddptop: {injection.VARIABLE}: {problem}")
    try:
        checking.from_environment(os.environ)
    except ValueError as problem:
        _refuse(f"ddptop: {checking.VARIABLE}: {os.environ[checking.VARIABLE]!r:.100}: say {problem}")
    try:
        recording.from_environment(os.environ)
    except ValueError as problem:
        _refuse(f"ddptop: {recording.VARIABLE}: {os.environ[recording.VARIABLE]!r:.100}: say {problem}")
    try:
        recording.memory_bytes(os.environ)
    except ValueError as problem:
        name = recording.MEMORY_VARIABLE
        _refuse(f"ddptop: {name}: {os.environ[name]!r:.100}: say {problem}")
    session = _begin(f"-m {program}" if as_module else program, tuple(arguments[1:]))
    if session is not None:
        # Those of the script are called before it: the last one is called first.
        atexit.register(session.leave)
    if session is not None and session.heard:
        patches.install_with_torch(session)
        preemption.install(session, session.directory)
    _run(program, arguments, as_module, session)


def _refuse(line: str) -> None:
    print(line, file=sys.stderr)
    raise SystemExit(2)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a folder that is gone"


def _begin(program: str, arguments: tuple[str, ...]) -> Session | None:
    try:
        if (above := ancestry.rank_above(os.environ)) is not None:
            say(f"ddptop: no agent in this process (the rank of process {above.pid} has started it); it runs without")
            return None
        directory = enrolment.enrolled()
        if directory is None:
            enrolment.enrol_and_restart(program, arguments)
            return None
        run = directory.read()
        position = Position.from_environment(os.environ, program)
        if run.spans_hosts:
            enrolment.resize(directory, position)
        output = enrolment.redirect(directory, position.rank) if run.launched else Output()
    except Exception as error:  # the training goes on, whatever the error is
        say_unobserved(str(error) if isinstance(error, RunDirError) else error)
        return None
    return open_session(directory, program, os.environ.get(MARKER, run.run_id), output)


def _run(program: str, arguments: list[str], as_module: bool, session: Session | None) -> None:
    """Run the script and report its end to the agent; exit code and traceback are those of the script."""
    code, error, trace, left = 0, None, None, None
    try:
        sys.argv = arguments
        _execute(program, as_module)
    except SystemExit as request:
        code = ending.status(request.code)
        error = None if code == 0 else ending.request(request.code)
        left = request.__traceback__
        raise
    except BaseException as failure:
        # The process dies of SIGINT below, as plain Python does, so that the launcher sees the same.
        code = 130 if isinstance(failure, KeyboardInterrupt) else 1
        own = left = _without_runner(failure.__traceback__)
        error, trace = ending.texts(failure, own)
        sys.excepthook(type(failure), failure.with_traceback(own), own)
    finally:
        flush()
        if session is not None:
            session.end(code, error, trace, left)
            if session.stopped and code == 0 and session.owner == os.getpid():
                _leave()
    if code == 130:
        if session is not None:
            session.leave()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if code:
        raise SystemExit(code)


def _leave() -> None:
    """End the process as the interpreter does, but without the clearing away of modules and objects.

    A script that is stopped in the middle leaves models and process groups behind, and torch sometimes
    aborts the interpreter while it destroys those, after all that matters is done.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # the interpreter, too, waits for threads first
    atexit._run_exitfuncs()
    flush()
    os._exit(0)


def _without_runner(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _execute(program: str, as_module: bool) -> None:
    """Run the program as `__main__`, and leave the module in `sys.modules`: threads may still need its globals."""
    main_module = ModuleType("__main__")
    # Python joins the two as well, and does not normalize the path.
    path = program if os.path.isabs(program) or as_module else os.path.join(os.getcwd(), program)
    if as_module:
        if not program.startswith(_OURS):
            importpath.begin_with_current_directory()
        spec, code = _module(program)
        sys.argv[0] = str(spec.origin)
        _describe(main_module, spec)
    elif pkgutil.get_importer(path) is not None:
        # A folder or an archive with a `__main__.py`: Python puts it first on the import path, even with `-P`.
        sys.path.insert(0, path)
        spec, code = _contained(program, path)
        _describe(main_module, spec)
    else:
        importpath.begin_with_script(path)
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        main_module.__package__ = None
        main_module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
        main_module.__file__ = path
        main_module.__dict__["__cached__"] = None
    main_module.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)


def _describe(main_module: ModuleType, spec: importlib.machinery.ModuleSpec) -> None:
    main_module.__spec__ = spec
    main_module.__package__ = spec.parent
    main_module.__loader__ = spec.loader
    main_module.__file__ = spec.origin
    main_module.__dict__["__cached__"] = spec.cached


def _module(name: str) -> tuple[importlib.machinery.ModuleSpec, CodeType]:
    """Return the spec and the code of a module, or of a package's `__main__`."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        return _module(f"{name}.__main__")
    return _with_code(spec, name, f"No module named {name!r} that can be run")


def _contained(program: str, path: str) -> tuple[importlib.machinery.ModuleSpec, CodeType]:
    """Return the spec and the code of the `__main__` in a folder or an archive."""
    spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
    return _with_code(spec, "__main__", f"can't find '__main__' module in {program!r}")


def _with_code(
    spec: importlib.machinery.ModuleSpec | None, name: str, problem: str
) -> tuple[importlib.machinery.ModuleSpec, CodeType]:
    loader = None if spec is None else spec.loader
    # zipimporter has this method, but is not registered as an `InspectLoader`.
    get_code = getattr(loader, "get_code", None)
    code = get_code(name) if callable(get_code) else None
    if spec is None or code is None:
        raise ModuleNotFoundError(problem, name=name)
    return spec, code


if __name__ == "__main__":
    main()

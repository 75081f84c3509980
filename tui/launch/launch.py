"""From what the user asks for to a run, by the catalogue of programs; what was launched is remembered."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.agent.client.runs import Run
from ddptop.agent.client.start import checks, run
from ddptop.agent.client.start.request import RESUME, Program, Request, RequestError
from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.refusal import NO_MPI
from ddptop.tui.launch import remembered
from ddptop.tui.launch.target import target


def launch(
    request: Request, tell: run.Tell = lambda line: None, *, belongs: bool = False, notify: Sequence[str] = ()
) -> Run:
    """Start a run and return it; see `client.start.run.launch`.

    Raises:
        RequestError: the request cannot work.
        RunDirError: there is no place for the run, or its name is taken.
    """
    launched = run.launch(request, checked(request), tell, belongs=belongs, notify=notify)
    remembered.note_launch(request)
    return launched


def checked(request: Request) -> Program:
    """Return the program of a request.

    Raises:
        RequestError: the request cannot work.
    """
    program = target(request)
    if request.backend == "mpi":
        raise RequestError(NO_MPI)
    checks.check(request)
    return program


def resumed(request: Request) -> Request:
    """Return a request that goes on from its checkpoint where it can, and the same one where it cannot."""
    program = None if request.as_module else CATALOGUE.get(request.program)
    resumes = program is not None and program.resumes and run.keeps_checkpoints(request.arguments)
    if not resumes or RESUME in request.arguments:
        return request
    return request._replace(arguments=(*request.arguments, RESUME))

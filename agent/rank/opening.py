"""The start of the agent in the process of a rank."""

from __future__ import annotations

from ddptop.agent.launcher.position import Position
from ddptop.agent.rank.process import ancestry, crashes, descriptors, observing
from ddptop.agent.rank.process.output import Output, say_unobserved
from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import RunDir


def open_session(
    directory: RunDir, program: str, run_id: str, output: Output, position: Position | None = None
) -> Session | None:
    """Start the agent of this process; return None where that fails, which does not affect the training.

    Where nothing can be published, the session is not `heard`, and still records the end of the rank.
    """
    session = None
    before = descriptors.present()
    try:
        session = Session(directory, run_id=run_id, program=program, log=output.log, output=output, position=position)
        ancestry.mark_environment()
        crashes.begin(None if output.log is not None else directory.rank_crash(session.rank))
        session.open()
        descriptors.keep(before, (directory.address(session.rank, kind) for kind in ("pub", "cmd")))
    except Exception as error:
        say_unobserved(error)
    if session is not None and session.hello.local_rank == 0:
        observing.ensure(directory, session.hello.generation, session.faults)
    return session

"""The start of the agent in the process of a rank."""

from __future__ import annotations

from ddptop.agent.launcher.position import Position
from ddptop.agent.rank.hooks.around import StepHooks
from ddptop.agent.rank.process import ancestry, crashes, descriptors, observing
from ddptop.agent.rank.process.output import Output, say_unobserved
from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import Member, RunDir


def open_session(
    directory: RunDir,
    program: str,
    run_id: str,
    output: Output,
    position: Position | None = None,
    step_hooks: StepHooks | None = None,
    record_before: Member | None = None,
) -> Session | None:
    """Start the agent of this process; return None where that fails, which does not affect the training.

    Where nothing can be published, the session is not `heard`, and still records the end of the rank.

    Args:
        directory: of its run.
        program: the script.
        run_id: of the run.
        output: where the output of this process goes.
        position: its place in the group; None: by the environment.
        step_hooks: of a rank that joins in the middle of its training, the hooks of all optimizers.
        record_before: that of this rank up to now.
    """
    session = None
    before = descriptors.present()
    try:
        session = Session(
            directory,
            run_id=run_id,
            program=program,
            log=output.log if record_before is None else record_before.log,
            output=output,
            position=position,
            step_hooks=step_hooks,
            record_before=record_before,
        )
        ancestry.mark_environment()
        crashes.begin(None if output.log is not None else directory.rank_crash(session.rank))
        session.open()
        descriptors.keep(before, (directory.address(session.rank, kind) for kind in ("pub", "cmd")))
    except Exception as error:
        say_unobserved(error)
    if session is not None and session.hello.local_rank == 0:
        observing.ensure(directory, session.hello.generation, session.faults)
    return session

"""The state of a rank as the model tells it: after a quick look, the same as by all of the evidence."""

from __future__ import annotations

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddptop.agent import wire
from ddptop.agent.observer.model.ranks.rank import DEFAULT, RankModel
from ddptop.agent.run import states
from ddptop.agent.run.identity import Row
from ddptop.agent.run.rundir import Ended, Member, Process
from ddptop.agent.wire import RankFrame

NOW = 1_800_000_000.0
AGES = st.sampled_from([0.0, 0.5, 3.4, 3.6, 9.9, 10.1, 60.0])
PROCESS = Process(1000, 1.0)
ENDS = st.none() | st.builds(Ended, st.just(int((NOW - 5) * 1e9)), st.sampled_from([None, 0, 1]))
STATUSES = st.sampled_from(["running", "sleeping", "disk-sleep", "stopped", "tracing-stop", "zombie"])


@settings(deadline=None, max_examples=300)
@given(
    said=st.none() | st.sampled_from(["starting", "running", "paused", "ended", "dreaming"]),
    heard=st.none() | AGES, stepped=st.none() | AGES, listened=st.none() | AGES,
    member=st.booleans(), ended=ENDS, alive=st.sampled_from([None, True, False]), status=st.none() | STATUSES,
)  # fmt: skip
@example("running", 0.5, 0.5, None, True, None, True, "stopped")
@example("running", 3.6, 0.5, None, True, None, True, "running")
@example("running", 0.5, 10.1, None, True, None, True, None)
@example("running", 0.5, 0.5, None, True, None, False, None)
@example("running", 0.5, 0.5, None, True, Ended(int((NOW - 5) * 1e9), 0), True, None)
def test_a_quick_look_tells_what_all_of_the_evidence_tells(
    said: str | None, heard: float | None, stepped: float | None, listened: float | None,
    member: bool, ended: Ended | None, alive: bool | None, status: str | None,
) -> None:  # fmt: skip
    """Whatever is known of a rank, its state is that of `states.of_rank`."""
    model = RankModel(0)
    if said is not None:
        at = None if stepped is None else int((NOW - stepped) * 1e9)
        model.beat = wire.Beat(0, int((NOW - (heard or 0)) * 1e9), said, "forward", 7, at, 7)
    model.heard_at = None if heard is None else NOW - heard
    model.listened_at = None if listened is None else NOW - listened
    if member:
        model.member = Member(0, 0, 1, PROCESS, "host", 0, "ipc://p", "ipc://c", None, ended)
    model.alive = alive
    model.look(None if status is None else Row(PROCESS, 1, 1, status, 0), NOW)
    assert model.state(NOW) == states.of_rank(model.evidence(NOW), DEFAULT.silent_s)


def test_a_row_without_losses_leaves_those_of_before() -> None:
    """The head gets a row of each far rank once a second; with another process the curve begins anew."""
    model = RankModel(0)
    whole = RankFrame(rank=0, state="running", activity="", pid=1, losses=(3.0, 2.0))
    model.take_frame(whole, 1.0)
    model.take_frame(msgspec.structs.replace(whole, losses=(), loss=1.0), 2.0)
    assert model.frame is not None
    assert (model.frame.losses, model.loss) == ((3.0, 2.0), 1.0)
    model.take_frame(msgspec.structs.replace(whole, losses=(), pid=2), 3.0)
    assert model.frame.losses == ()

"""What is said of a rank and of a run, by evidence alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.run.rundir import Ended
from ddptop.agent.run.states import Evidence, describe, in_run, of_rank, of_run
from ddptop.agent.wire.frames import ENDED, STATES

SILENT_S = 3.5
MANY = settings(max_examples=300, deadline=None)
SECONDS = st.none() | st.sampled_from([0.1, 3.4, 3.6, 500.0, -5.0])
EVIDENCE = st.builds(
    Evidence,
    reported=st.booleans(),
    ended=st.none() | st.builds(
        Ended, st.just(5), st.sampled_from([0, 1, -9, None]), stopped_by=st.sampled_from([None, "ada"])
    ),
    alive=st.sampled_from([None, True, False]),
    status=st.sampled_from(["", "running", "sleeping", "stopped", "tracing-stop", "disk-sleep", "odd"]),
    cpu_percent=st.none() | st.sampled_from([0.0, 99.7]),
    said=st.sampled_from([None, "starting", "running", "paused", "ended", "hibernating", "killed", "\x1b[2J", ""]),
    activity=st.sampled_from(["", "backward", "imports"]),
    denies=st.booleans(),
    heard_s=SECONDS,
    listened_s=SECONDS,
    ran=st.booleans(),
    stalled=st.booleans(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "state", "words"),
    [
        (Evidence(), "starting", "waiting for the process"),
        (Evidence(reported=True, alive=True, listened_s=1), "starting", "its process is up, not heard yet"),
        (Evidence(True, said="starting", activity="imports", heard_s=0.3), "starting", "imports"),
        (Evidence(True, said="running", activity="backward", heard_s=0.3, ran=True), "running", "backward"),
        (
            Evidence(True, None, True, "running", 99.6, "running", "backward", heard_s=12, ran=True),
            "silent",
            "last heard 12 s ago in backward; its process is busy (100% CPU)",
        ),
        (
            Evidence(True, None, True, "sleeping", 0.1, "running", heard_s=300),
            "silent",
            "last heard 5 min ago; its process sleeps",
        ),
        (
            Evidence(True, None, True, said="running", activity="backward", heard_s=6, listened_s=0.1),
            "running",
            "backward",
        ),
        (Evidence(True, None, True, "running", listened_s=4), "silent", "not heard for 4 s; its process is busy"),
        (
            Evidence(True, None, True, "stopped", 0.0, "running", "data", heard_s=12),
            "frozen",
            "stopped by SIGSTOP; last heard 12 s ago in data",
        ),
        (Evidence(True, None, True, "tracing-stop"), "frozen", "stopped by a debugger; not heard yet"),
        (Evidence(True, Ended(5, 0), False, activity="data"), "finished", "its script has ended"),
        (Evidence(True, Ended(5, None), False), "ended", "its script has ended"),
        (Evidence(True, Ended(5, 3), True, said="running", heard_s=0.1), "failed", "its script has ended"),
        (Evidence(True, Ended(5, 0), True, said="running", denies=True, heard_s=0.1, ran=True), "running", ""),
        (Evidence(True, Ended(5, 0), True, said="running", denies=True, heard_s=9), "finished", "its script has ended"),
        (Evidence(True, None, False, said="running", heard_s=0.1), "lost", ""),
        (Evidence(True, None, True, said="hibernating", heard_s=0.1), "hibernating", ""),
    ],
)  # fmt: skip
def test_a_rank_by_its_evidence(evidence: Evidence, state: str, words: str) -> None:
    """Each state has its evidence, and a rank that cannot speak is described by what others know of it."""
    assert of_rank(evidence, SILENT_S) == state
    assert describe(evidence, state) == words


@MANY
@given(EVIDENCE)
def test_what_is_never_said_of_a_rank(evidence: Evidence) -> None:
    """No start after a step, no life after death, none of one listened to in vain; foreign words stay short."""
    state = of_rank(evidence, SILENT_S)
    if evidence.ran:
        assert state != "starting"
    if evidence.ended is not None and not evidence.denies:
        assert state in ("finished", "stopped", "failed", "ended")
        assert (state == "finished") <= (evidence.ended.exit_code == 0)
    elif evidence.ended is None:
        assert (state == "lost") == (evidence.alive is False)
        has_listened = evidence.listened_s is None or evidence.listened_s > SILENT_S
        if (
            evidence.alive is not False
            and has_listened
            and evidence.heard_s is not None
            and evidence.heard_s > SILENT_S
        ):
            assert state in ("silent", "frozen")
    if state not in STATES:
        assert state.isprintable()
        assert 0 < len(state) <= 12
    assert describe(evidence, state).isprintable()


RANKS = st.lists(st.sampled_from([*STATES, "hibernating"]), max_size=5)


@MANY
@given(RANKS, st.booleans(), st.sampled_from([*STATES, "resting"]), st.none() | st.sampled_from([*STATES, "resting"]))
def test_what_is_never_said_of_a_run(ranks: list[str], ran: bool, record: str, told: str | None) -> None:
    """What the record says of its end is final; a run starts only as long as no rank has run or ended."""
    state = of_run(ranks, ran=ran, record=record, told=told)
    if record in ENDED:
        assert state == record
    elif told in ENDED:
        assert state == told
    else:
        assert state not in ENDED
        if ran or ENDED & set(ranks):
            assert state != "starting"
    assert of_run(set(ranks), ran=ran, record=record, told=told) == state
    for rank in ranks:
        shown = in_run(rank, state, culprit=False)
        assert (shown in ENDED) >= (rank in ENDED or state in ENDED)


def test_all_ranks_have_ended_and_the_run_has_not() -> None:
    """It is ending until its launcher has noticed, and running where that may start the ranks anew after a failure."""
    for ends, state, anew in (
        (["finished"], "ending", "ending"),
        (["stopped", "finished"], "ending", "ending"),
        (["failed", "lost"], "ending", "running"),
        (["finished", "failed"], "ending", "running"),
        (["finished", "running"], "running", "running"),
        (["lost", "stalled"], "stalled", "stalled"),
    ):
        for ran in (False, True):
            same = {"ran": ran, "record": "starting", "told": "starting", "found": "starting"}
            assert of_run(ends, **same) == state  # type: ignore[arg-type]
            assert of_run(ends, **same, restarts=True) == anew  # type: ignore[arg-type]

"""Runs that are recorded and then compared, from the files that an observer leaves to the sentence for the user."""

from __future__ import annotations

from dataclasses import replace as replace_run
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.values.ended_runs import recorded

from ddptop.agent import wire
from ddptop.agent.client.comparison import compared, reading
from ddptop.agent.client.comparison.compared import Comparison
from ddptop.agent.client.comparison.measured import Measured, lost, steady
from ddptop.agent.client.comparison.statistics import Estimate, change
from ddptop.agent.client.runs import Run
from ddptop.agent.record.recording import INSERT_EVENT, open_file
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir

MOSTLY_OTHER = {"data": -9.5, "forward": -23.5, "backward": -43.5, "optimizer": -9.8, "other": 28.0}
"""Milliseconds of each phase more than usual, in a step that is mostly code between the phases."""


def read(directory: RunDir) -> Measured:
    """Read a run through the client."""
    return reading.read(Run(directory), "test")


def pair(**second: Any) -> Comparison:
    """Compare a usual run with another one."""
    return compared.compare(read(recorded("a", seed=1)), read(recorded("b", **{"seed": 2, **second})))


def test_runs_that_are_alike_have_no_difference() -> None:
    """Every number of theirs is within noise, and no circumstance differs."""
    found = pair()
    assert found.outcome == "same"
    assert found.verdict.startswith("no difference that the noise allows (± ")
    assert list(found.differs) == []
    assert not [each.key for each in found.numbers if each.change is not None and each.change.is_told]


def test_a_difference_for_which_nothing_recorded_speaks_says_so() -> None:
    """Two starts of one script may be apart by themselves, which no interval within a run knows."""
    alone, explained = (pair(longer={(1, "forward"): 12.0}, **more) for more in ({}, {"torch": "2.15.0"}))
    assert alone.verdict.endswith(": forward, rank 1; nothing recorded differs: run both again")
    assert explained.verdict.endswith(", since torch 2.15.0")


@pytest.mark.parametrize(
    ("longer", "where"),
    [
        ({(0, "backward"): 5.0, (1, "backward"): 5.0}, "backward, all ranks"),
        ({(0, "data"): 5.0, (1, "data"): 5.0}, "data, all ranks"),
        ({(1, "forward"): 12.0}, "forward, rank 1"),
    ],
)
def test_a_phase_that_takes_longer_is_found_and_named(longer: dict[tuple[int, str], float], where: str) -> None:
    """With the ranks whose it is, and with the one circumstance that differs."""
    found = pair(longer=longer, torch="2.15.0")
    assert found.outcome == "slower"
    assert f": {where}, since torch 2.15.0" in found.verdict
    step = found.number("step_p50_ms")
    assert step is not None
    assert step.change is not None
    assert step.change.part == pytest.approx(0.05 if len(longer) == 2 else 0.12, abs=0.03)


def test_a_phase_that_stays_is_not_named_beside_one_that_changes() -> None:
    """Also where it makes up nearly all of the step, and what is beside it is a little faster."""
    usual = {(rank, phase): ms for rank in (0, 1) for phase, ms in MOSTLY_OTHER.items()}
    slow = {**usual, (1, "backward"): -28.5, (0, "forward"): -24.1, (1, "forward"): -24.1}
    runs = recorded("a", seed=2, noise=0.005, longer=slow), recorded("b", seed=1, noise=0.005, longer=usual)
    assert ": backward, rank 1; " in compared.compare(*map(read, runs)).verdict


def test_short_phases_are_no_pace_of_a_long_one() -> None:
    """Where both have changed alike beside it, they are named, whichever run comes first."""
    usual = {(rank, phase): ms for rank in (0, 1) for phase, ms in MOSTLY_OTHER.items()}
    less = {each: ms - 0.45 if each[1] in ("forward", "backward") else ms for each, ms in usual.items()}
    runs = [recorded(name, 200, seed=seed, noise=0.004, longer=longer)
            for name, seed, longer in (("a", 1, usual), ("b", 11, less))]  # fmt: skip
    one, other = map(read, runs)
    for first, second, outcome in ((one, other, "faster"), (other, one, "slower")):
        found = compared.compare(first, second)
        assert (found.outcome, "backward and forward, all ranks" in found.verdict) == (outcome, True)


def test_a_rank_that_is_slower_than_the_other_is_no_pace_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no phase can be told from its noise: all phases of all ranks are not alike then."""
    monkeypatch.setattr(compared, "_phases", lambda *runs: [])
    assert pair(longer={(1, "forward"): 12.0}, torch="2.15.0").verdict.endswith(": forward, rank 1, since torch 2.15.0")
    assert ": all phases alike, since" in pair(pace=1.2, torch="2.15.0", created_at_ns=1).verdict
    fault = {"environment": {"DDPTOP_INJECT": "rank=1"}, "injected": "rank 1: 15 ms more in backward in each step"}
    assert pair(longer={(1, "forward"): 12.0}, **fault).verdict.endswith(": forward, rank 1, since other faults")


def test_the_other_way_round_it_is_faster() -> None:
    """By the same phase."""
    slow, usual = recorded("a", longer={(rank, "backward"): 8.0 for rank in (0, 1)}), recorded("b", seed=1)
    found = compared.compare(read(slow), read(usual))
    assert (found.outcome, ": backward, all ranks" in found.verdict) == ("faster", True)


def test_a_machine_that_slows_all_phases_alike_is_no_change_of_the_program() -> None:
    """That is said, unless a circumstance that may explain it differs."""
    found = pair(pace=1.2)
    assert found.outcome == "unknown"
    assert "alike, as on a busier machine" in found.verdict
    assert (
        "all phases alike, since torch 2.15.0"
        in compared.compare(read(recorded("c", seed=1)), read(recorded("d", seed=2, pace=1.2, torch="2.15.0"))).verdict
    )


def test_noise_that_hides_all_is_no_answer() -> None:
    """That there is no difference is not said where half as long again would be none; how much noise there is, is."""
    found = pair(noise=0.8)
    assert found.outcome == "unknown"
    assert found.verdict.startswith("cannot tell: noise alone makes differences of ± ")


def test_a_loss_that_is_no_number_is_said() -> None:
    """Beside the last one that is, and without a change."""
    found = pair(broken={1: 51}).number("loss_at_step")
    assert found is not None
    assert (found.change, found.note) == (None, "b: not finite by step 51")


def test_few_steps_tell_nothing() -> None:
    """How many there are is said."""
    found = pair(steps=50)
    assert found.outcome == "unknown"
    assert "cannot tell: 40 steps in b" in found.verdict


def test_another_model_or_world_is_refused_unless_it_is_asked_for_anyway() -> None:
    """With the reason; what differs is listed either way."""
    one, other = read(recorded("a")), read(recorded("b", sent=8_000_000))
    found = compared.compare(one, other)
    assert (found.outcome, found.numbers) == ("other", ())
    assert found.verdict == "cannot be compared: another model: 4 MB and 8 MB sent a step"
    assert compared.compare(one, other, anyway=True).numbers
    wider = replace_run(other, facts=replace_run(one.facts, shown={**one.facts.shown, "world": "4 ranks"}))
    assert compared.compare(one, wider).obstacle == "another world: 2 ranks, 4 ranks"


def test_a_run_is_compared_with_all_those_before_it() -> None:
    """Their spread bounds what is told; without any there is nothing to compare with."""
    earlier = [
        read(recorded(f"r{seed}", pace=pace, seed=seed)) for seed, pace in enumerate((1.0, 1.02, 0.98, 1.01, 0.99))
    ]
    found = compared.against(earlier, read(recorded("new", seed=9, pace=1.03)))
    assert found.first == "the last 5 runs"
    assert found.outcome == "same"
    with pytest.raises(compared.NothingBefore, match="no earlier run"):
        compared.against([], earlier[0])


@pytest.mark.parametrize("count", [2, 3])
def test_few_runs_before_it_make_no_false_difference(count: int) -> None:
    """However close they are to each other by chance."""
    random, told = np.random.default_rng(0), 0
    for _ in range(1000):
        *earlier, new = (Estimate(value, 0.1, 100.0) for value in random.normal(100, 3, count + 1))
        numbers = [compared.Number("step", "step", "ms", each, new, change(each, new)) for each in earlier]
        found = compared._together(numbers).change
        assert found is not None
        told += found.is_told
    assert told <= 3


def test_time_lost_is_said_to_be_that_of_the_newest_steps() -> None:
    """Where the first ones are not known one by one; stalls are those of the whole run."""
    one = read(recorded("a"))
    cut = replace_run(one, steps=one.steps + 5000)
    notes = {each.key: each.note for each in compared.compare(cut, one).numbers if each.key.startswith("lost")}
    said = "in the newest 400 steps"
    assert notes == {"lost_stalls_s": "", "lost_restarts_s": said, "lost_pauses_s": said}


def test_warm_up_evaluations_and_pauses_are_left_out_and_named() -> None:
    """The time of a pause is lost time, and the steps beside it are no usual ones."""
    run = read(recorded("a"))
    wall, other, at = (np.array(each) for each in (run.values["step"], run.values["other"], run.at))
    wall[:, :25] *= 3
    for step in (100, 200):
        wall[:, step] += 900
        other[:, step] += 900
    at += np.cumsum(np.mean(wall - run.values["step"], axis=0)) / 1e3
    at[300:] += 30.0
    changed = Measured(**{**vars(run), "at": at, "values": {**run.values, "step": wall, "other": other}})
    found = steady(changed)
    assert found.left_out == [
        "30 steps of warm-up", "2 steps with an evaluation or a checkpoint", "2 steps beside a pause or a hold",
    ]  # fmt: skip
    assert steady(replace_run(changed, newest=changed.newest + 7)).left_out[3:] == ["7 steps not recorded one by one"]
    assert not found.where[[0, 24, 100, 200, 300, 301]].any()
    assert found.where[[40, 99, 101, 299, 302]].all()
    assert lost(changed)["pauses"] == pytest.approx(30.0, abs=0.2)


def test_what_somebody_did_to_a_run_is_left_out() -> None:
    """As the two steps after a profile was asked for."""
    directory = recorded("a")
    at_ns = int(read(directory).at[150] * 1e9) - 10**6
    event = wire.Event(at_ns, "profile", action="profile", who="ada")
    with open_file(directory.database) as connection:
        connection.execute(INSERT_EVENT, (at_ns, wire.encode(event)))
    connection.close()
    assert not steady(read(directory)).where[[150, 151]].any()


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"noise" * 1000, "cannot be read"), (None, "nothing of its steps is recorded")],
)
def test_a_record_that_cannot_be_read_is_one_line(content: bytes | None, said: str) -> None:
    """It says which run's, and nothing is compared."""
    directory = recorded("a", steps=20)
    directory.database.unlink()
    if content is not None:
        directory.database.write_bytes(content)
    with pytest.raises(rundir.RunDirError, match=f"^run a: .*{said}"):
        read(directory)


def test_a_record_that_is_cut_off_loses_what_is_behind_that() -> None:
    """The rest is read."""
    directory = recorded("a")
    with open_file(directory.database) as connection:
        connection.execute("UPDATE buckets SET payload = x'ff' WHERE number = 'data'")
    connection.close()
    found = compared.compare(read(directory), read(recorded("b", seed=1)))
    assert found.outcome == "same"
    assert {each.key for each in found.numbers if each.first is None} >= {"data_ms"}


def test_a_record_of_an_older_version_is_compared() -> None:
    """It knows no commit, which is no reason to refuse it."""
    old, new = read(recorded("a", seed=1)), read(recorded("b", seed=2, commit="0123456789abcdef", dirty=True))
    found = compared.compare(old, new)
    assert list(found.differs) == [("commit", "–", "0123456789ab and changes")]
    assert found.outcome == "same"
    assert replace(recorded("c").read()).commit == ""

"""What a gate says of runs that keep its limits, pass them, died, or cannot be told apart from noise."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from support.values.ended_runs import recorded

from ddptop.agent import wire
from ddptop.agent.client.comparison import compared, gate, reading
from ddptop.agent.client.comparison.gate import PASSED, REGRESSED, UNTOLD, Limits, LossAt, Outcome, Share
from ddptop.agent.client.comparison.statistics import Change
from ddptop.agent.client.runs import Run
from ddptop.agent.record.recording import INSERT_EVENT, open_file
from ddptop.agent.run import ends
from ddptop.agent.run.rundir import Ended, RunDir

LOSS = Limits(loss_at=(LossAt((300, 9.0)),))


def judged(limits: Limits, **run: Any) -> list[Outcome]:
    """Judge a run by its record, against a usual one."""
    usual, measured = (
        reading.read(Run(recorded(name, **how)), "test")
        for name, how in (("usual", {"seed": 1}), ("new", {"seed": 2, **run}))
    )
    comparison = compared.compare(usual, measured) if limits.compares else None
    return gate.judge(limits, measured, comparison)


@pytest.mark.parametrize(
    ("longer_ms", "limit", "code"),
    [(0.0, "5%", PASSED), (10.0, "5%", REGRESSED), (10.0, "15%", PASSED), (0.0, "0.1%", UNTOLD)],
)
def test_a_limit_of_the_step_time(longer_ms: float, limit: str, code: int) -> None:
    """Noise that could hide what the limit is about makes no pass."""
    longer = {(rank, "backward"): longer_ms for rank in (0, 1)}
    outcomes = judged(Limits(against="usual", step=Share(limit), memory=Share("10%")), longer=longer)
    assert [each.name for each in outcomes] == ["end", "step", "memory"]
    assert outcomes[1].code == code
    assert gate.code(outcomes) == code


@pytest.mark.parametrize("state", ["failed", "killed", "lost"])
def test_a_run_whose_rank_died_never_passes(state: str) -> None:
    """However fast it was until then."""
    outcomes = judged(LOSS, state=state, cause="exit code 1")
    assert gate.code(outcomes) == REGRESSED
    assert outcomes[0].text == f"new {state}: exit code 1"


def test_a_limit_of_the_loss() -> None:
    """It is judged at its step, and not told of a step that the run has not made."""
    outcomes = judged(Limits(loss_at=tuple(map(LossAt, ((300, 2.0), (300, 0.5), (5000, 2.0))))))
    assert [each.code for each in outcomes] == [PASSED, PASSED, REGRESSED, UNTOLD]


@pytest.mark.parametrize("broken", [{0: 51, 1: 51}, {1: 51}, {1: 390}])
def test_a_loss_that_is_no_number_keeps_no_limit(broken: dict[int, int]) -> None:
    """Of one rank as of all, and however good it was before."""
    outcomes = judged(LOSS, broken=broken)
    assert gate.code(outcomes) == REGRESSED
    assert outcomes[1].text == f"not finite by step {min(broken.values())}, limit 9"


def test_a_loss_that_is_known_of_long_before_only_is_not_told() -> None:
    """The last one that is known stands for no later step."""
    run = reading.read(Run(recorded("new")), "test")
    curve = run.curves["loss"]
    early = curve.part(np.arange(len(curve.steps)) < 50)
    outcomes = gate.judge(LOSS, replace(run, curves={"loss": early}), None)
    assert outcomes[1].code == UNTOLD


def died(how: str, directory: RunDir) -> None:
    """Leave what is left of a run that is counted as finished, though a rank has died."""
    member = directory.everyone()[1]
    if how == "own":
        directory.write_member(msgspec.structs.replace(member, ended=Ended(time.time_ns(), 1)))
    elif how == "seen":
        ends.write(directory.path, 0, [ends.Death(1, time.time_ns(), -9)])
    elif how == "restarted":
        for each in directory.everyone().values():
            directory.write_member(msgspec.structs.replace(each, generation=1))
        with open_file(directory.database) as connection:
            connection.execute("DROP TABLE frames")
        connection.close()
    else:
        event = wire.Event(time.time_ns(), f"rank 1 got SIGSEGV, after every script had finished: {ends.LATE}")
        with open_file(directory.database) as connection:
            connection.execute(INSERT_EVENT, (event.at_ns, wire.encode(event)))
        connection.close()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("own", "new finished, but rank 1 ended with exit code 1"),
        ("seen", "new finished, but rank 1 was ended by signal 9"),
        ("late", "new finished: rank 1 got SIGSEGV, after every script had finished: counted as finished"),
        ("restarted", "new finished, and was restarted"),
    ],
)
def test_a_finished_run_whose_rank_died_never_passes(how: str, said: str) -> None:
    """By whatever of its end is recorded, as where its launcher has ignored it."""
    directory = recorded("new", max_restarts=1)
    died(how, directory)
    outcomes = gate.judge(LOSS, reading.read(Run(directory), "test"), None)
    assert (outcomes[0].code, outcomes[0].text) == (REGRESSED, said)


@pytest.mark.parametrize(("name", "place"), [("step", 1), ("memory", 2)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_rank_without_numbers_is_not_stood_for_by_the_others(name: str, place: int, is_first: bool) -> None:
    """Of either run, where it knows few of those that the others know."""
    one, other = (reading.read(Run(recorded(run, seed=seed)), "test") for seed, run in enumerate(("usual", "new")))
    table = other.values[name].copy()
    table[1, 100:] = np.nan
    holed = replace(other, values={**other.values, name: table})
    pair = (holed, one) if is_first else (one, holed)
    outcomes = gate.judge(Limits(against="a", step=Share("20%"), memory=Share("20%")), pair[1], compared.compare(*pair))
    assert outcomes[place] == (name, UNTOLD, f"cannot tell: rank 1 of new lacks {name} numbers")
    assert outcomes[3 - place].code == PASSED


@pytest.mark.parametrize(
    ("part", "within", "code"),
    [
        (0.02, 0.02, PASSED), (0.049, 0.05, UNTOLD), (-0.02, 0.06, PASSED), (0.0, 0.06, UNTOLD),
        (0.08, 0.06, REGRESSED), (0.06, 0.08, UNTOLD),
    ],
)  # fmt: skip
def test_a_pass_is_one_that_noise_cannot_make(part: float, within: float, code: int) -> None:
    """Neither by hiding a change beyond the limit, nor by making one."""
    run = reading.read(Run(recorded("new")), "test")
    number = compared.Number("step_p50_ms", "step", "ms", None, None, Change(part, within))
    found = compared.Comparison("usual", "new", "", (), (), (400, 400), [number], "same", "")
    assert gate.judge(Limits(against="usual", step=Share("5%")), run, found)[1].code == code


def test_runs_that_cannot_be_compared_are_not_told() -> None:
    """Unless a limit is broken that needs no other run."""
    outcomes = judged(Limits(against="usual", step=Share("5%")), sent=10**7)
    assert gate.code(outcomes) == UNTOLD
    assert "another model" in outcomes[1].text


@pytest.mark.parametrize("text", ["nan", "nan%", "-5%", "0%", "5", "inf%", "1e3%", "", "5%%"])
def test_a_limit_that_is_no_number_is_refused(text: str) -> None:
    """Nothing is ever larger than NaN."""
    with pytest.raises(ValueError, match="percentage"):
        Share(text)


@pytest.mark.parametrize("text", ["nan", "inf", "", "5%"])
def test_a_loss_that_is_no_number_is_refused(text: str) -> None:
    """Nor is any."""
    with pytest.raises(ValueError, match="a loss"):
        LossAt(("500", text))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('step = "5%"', "against which run?"),
        ('against = "x"', "no limit"),
        ('against = "x"\nstep = "nan"', "step: 'nan': give a percentage"),
        ("loss_at = [[500, nan]]", "a loss that is a number"),
        ('against = "x"\nsteps = "5%"', "steps"),
        ("step = 5", "step: '5': give a percentage"),
        ("step = ", "limits.toml"),
        (None, "No such file"),
    ],
)
def test_a_file_with_what_is_no_limit_is_one_line(content: str | None, said: str, tmp_path: Path) -> None:
    """It names the file, and what is wrong."""
    file = tmp_path / "limits.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(gate.LimitError) as problem:
        gate.read(file)
    assert str(problem.value).startswith(str(file))
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


def test_junit_and_markdown_have_every_outcome() -> None:
    """As a parser of XML reads them, whatever is in a text."""
    outcomes = [
        Outcome("end", PASSED, "a < b & c"),
        Outcome("step", REGRESSED, '"+9 %"'),
        Outcome("loss", UNTOLD, "a|b"),
    ]
    suite = ElementTree.fromstring(gate.junit("run", outcomes))
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["errors"]) == ("3", "1", "1")
    assert [[child.tag for child in case] for case in suite] == [["system-out"], ["failure"], ["error"]]
    assert suite[0][0].text == "a < b & c"
    assert gate.markdown("run", outcomes).count("\n|") == 5
    assert "a\\|b" in gate.markdown("run", outcomes)

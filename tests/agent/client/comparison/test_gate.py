"""What a gate says of runs that keep its limits, pass them, died, or cannot be told apart from noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.values.ended_runs import recorded

from ddptop.agent.client.comparison import compared, gate, reading
from ddptop.agent.client.comparison.gate import PASSED, REGRESSED, UNTOLD, Limits, Outcome
from ddptop.agent.client.runs import Run


def judged(limits: Limits, **run: Any) -> list[Outcome]:
    """Judge a run by its record, against a usual one."""
    usual, measured = (
        reading.read(Run(recorded(name, **how)), "test")
        for name, how in (("usual", {"seed": 1}), ("new", {"seed": 2, **run}))
    )
    return gate.judge(limits, measured, "exit code 1", compared.compare(usual, measured))


@pytest.mark.parametrize(
    ("longer_ms", "limit", "code"),
    [(0.0, "5%", PASSED), (10.0, "5%", REGRESSED), (10.0, "15%", PASSED), (0.0, "0.1%", UNTOLD)],
)
def test_a_limit_of_the_step_time(longer_ms: float, limit: str, code: int) -> None:
    """Noise that could hide what the limit is about makes no pass."""
    longer = {(rank, "backward"): longer_ms for rank in (0, 1)}
    outcomes = judged(Limits(against="usual", step=limit, memory="10%"), longer=longer)
    assert [each.name for each in outcomes] == ["end", "step", "memory"]
    assert outcomes[1].code == code
    assert gate.code(outcomes) == code


@pytest.mark.parametrize("state", ["failed", "killed", "lost"])
def test_a_run_whose_rank_died_never_passes(state: str) -> None:
    """However fast it was until then."""
    outcomes = judged(Limits(loss_at=((300, 9.0),)), state=state)
    assert gate.code(outcomes) == REGRESSED
    assert outcomes[0].text == f"new {state}: exit code 1"


def test_a_limit_of_the_loss() -> None:
    """It is judged at its step, and not told of a step that the run has not made."""
    outcomes = judged(Limits(loss_at=((300, 2.0), (300, 0.5), (5000, 2.0))))
    assert [each.code for each in outcomes] == [PASSED, PASSED, REGRESSED, UNTOLD]


def test_runs_that_cannot_be_compared_are_not_told() -> None:
    """Unless a limit is broken that needs no other run."""
    outcomes = judged(Limits(against="usual", step="5%"), sent=10**7)
    assert gate.code(outcomes) == UNTOLD
    assert "another model" in outcomes[1].text


@pytest.mark.parametrize("text", ["nan", "nan%", "-5%", "0%", "5", "inf%", "1e3%", "", "5%%"])
def test_a_limit_that_is_no_number_is_refused(text: str) -> None:
    """Nothing is ever larger than NaN."""
    with pytest.raises(ValueError, match="percentage"):
        gate.share(text)


@pytest.mark.parametrize("text", ["nan", "inf", "", "5%"])
def test_a_loss_that_is_no_number_is_refused(text: str) -> None:
    """Nor is any."""
    with pytest.raises(ValueError, match="a loss"):
        gate.loss("500", text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('step = "5%"', "against which run?"),
        ('against = "x"', "no limit"),
        ('against = "x"\nstep = "nan"', "step 'nan': give a percentage"),
        ("loss_at = [[500, nan]]", "a loss that is a number"),
        ('against = "x"\nsteps = "5%"', "steps"),
        ("step = 5", "Expected `str`"),
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

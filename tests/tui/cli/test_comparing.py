"""`compare`, `baseline`, `gate`, `keep`, `pack`: exit codes and lines, of runs that have ended."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.values.ended_runs import recorded

from ddptop.agent.client.comparison.statistics import Change
from ddptop.agent.run import rundir
from ddptop.tui.cli.main import main
from ddptop.tui.model.comparison import changed

Ddptop = Callable[..., tuple[object, str, str]]


@pytest.fixture
def ddptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Ddptop]:
    """Carry a verb out, and return exit code and output; runs and data are the test's own."""

    def carried_out(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["ddptop", *words])
        with pytest.raises(SystemExit) as exited:
            main()
        return exited.value.code, *capsys.readouterr()

    with tempfile.TemporaryDirectory(prefix="ddptop-") as folder:
        monkeypatch.setenv(rundir.BASE_VARIABLE, folder)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        monkeypatch.chdir(tmp_path)
        yield carried_out


def test_a_run_passes_a_gate_against_a_baseline_and_a_slower_one_does_not(ddptop: Ddptop, tmp_path: Path) -> None:
    """The baseline stays when its run is removed; JUnit is written; limits come from a file as well."""
    recorded("usual", seed=1)
    recorded("good", seed=2)
    recorded("slow", seed=3, longer={(rank, "backward"): 12.0 for rank in (0, 1)})
    recorded("dead", seed=4, state="failed", cause="rank 1: ValueError")
    assert ddptop("baseline", "usual", "nightly")[0] == 0
    rundir.remove(rundir.find("usual"))
    limits = ("--against", "nightly", "--step", "5%", "--memory", "10%")
    code, output, _ = ddptop("gate", "good", *limits)
    assert code == 0, output
    assert [line.split()[0] for line in output.splitlines()] == ["pass"] * 3
    code, output, _ = ddptop("gate", "slow", *limits, "--junit", "x.xml")
    assert code == 1
    assert "REGRESSION   step" in output
    assert "slow is slower by" in output
    assert ": backward, all ranks" in output
    assert "against nightly, limit 5 %" in output
    assert (tmp_path / "x.xml").read_text().count("<failure") == 1
    (tmp_path / "gate.toml").write_text('against = "nightly"\nstep = "5%"\n')
    code, output, _ = ddptop("gate", "dead", "gate.toml")
    assert code == 1
    assert "REGRESSION   end" in output
    code, output, _ = ddptop("gate", "good", "--against", "nightly", "--step", "0.1%", "--markdown")
    assert code == 3
    assert "| step | cannot tell |" in output
    assert "nightly" in ddptop("baselines")[1]


def test_a_baseline_that_is_absent_is_no_other_run(ddptop: Ddptop, tmp_path: Path) -> None:
    """A name that only begins like a run, and the run itself, are refused in one line; a launch does so at once."""
    recorded("t512-1", steps=80)
    recorded("t512-other", steps=80)
    (tmp_path / "gate.toml").write_text('against = "t512-o"\nstep = "5%"\n')
    for words, said in (
        (
            ("gate", "t512-1", "--against", "t512-o", "--step", "5%"),
            "'t512-o': no such run or baseline of that whole name",
        ),
        (("gate", "t512-1", "--against", "t512-1", "--step", "5%"), "that is t512-1 itself"),
        (("launch", "--gate", "gate.toml", "toy"), "'t512-o': no such run or baseline of that whole name"),
    ):
        code, output, errors = ddptop(*words)
        assert (code, output, errors.count("\n"), said in errors) == (2, "", 1, True), errors
    ddptop("keep", "t512-1", "best")
    assert "that is t512-1 itself" in ddptop("gate", "t512-1", "--against", "best", "--step", "5%")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gate", "usual", "--step", "nan"), "'nan': give a percentage such as 5%"),
        (("gate", "usual", "--step", "5%"), "against which run?"),
        (("gate", "usual"), "no limit"),
        (("gate", "usual", "--loss-at", "500", "nan"), "a loss that is a number"),
        (("gate", "usual", "--step", "5%", "--against", "nothing"), "no such run"),
        (("gate", "usual", "absent.toml"), "absent.toml: No such file"),
        (("compare", "usual", "absent.ddptop"), "no such file"),
        (("attach", "absent.ddptop"), "no such file"),
        (("pack", "usual", "x.zip"), "a name that ends in .ddptop"),
        (("keep", "usual", "../x"), "name"),
        (("launch", "--gate", "absent.toml", "toy"), "absent.toml: No such file"),
        (("launch", "--detach", "--gate", "absent.toml", "toy"), "--gate waits for the end"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], said: str, ddptop: Ddptop) -> None:
    """With exit code 2, and nothing is started or written."""
    recorded("usual", steps=20)
    code, output, errors = ddptop(*words)
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert said in errors


def test_two_runs_are_compared_as_lines_json_and_markdown(ddptop: Ddptop) -> None:
    """And a run alone with those before it."""
    recorded("a", seed=1, created_at_ns=10**18)
    recorded("b", seed=2, created_at_ns=2 * 10**18, torch="2.15.0")
    code, output, _ = ddptop("compare", "a", "b")
    lines = output.splitlines()
    assert code == 0
    assert lines[0].startswith("no difference that the noise allows (± ")
    assert any(line.split() == ["torch", "2.14.1", "2.15.0"] for line in lines)
    assert max(map(len, lines)) <= 100
    # Nothing was lost to pauses; and no interval is larger than the number itself.
    assert not any(line.startswith("lost to") for line in lines)
    assert changed(Change(4.9, 9.7)) == "(noise)"
    assert changed(Change(0.5, 0.7)) == "(+50.0 % ± 70.0)"
    found = json.loads(ddptop("compare", "a", "b", "--json")[1])
    assert (found["outcome"], found["differs"]) == ("same", [{"name": "torch", "first": "2.14.1", "second": "2.15.0"}])
    assert {"step_p50_ms", "backward_ms", "loss_at_step"} <= {each["name"] for each in found["numbers"]}
    assert "| step p50 |" in ddptop("compare", "a", "b", "--markdown")[1]
    assert "no difference" in ddptop("compare", "b")[1]
    code, output, errors = ddptop("compare", "a")
    assert (code, output) == (1, "")
    assert "no earlier run of train.py" in errors
    recorded("c", sent=10**7)
    code, output, _ = ddptop("compare", "a", "c")
    assert code == 1
    assert "--anyway" in output


def test_a_packed_run_is_looked_at_like_any_other(ddptop: Ddptop, tmp_path: Path) -> None:
    """By its name or its file; of a file nothing is left behind when the verb ends."""
    recorded("a", steps=80)
    assert ddptop("keep", "a", "best")[0] == 0
    assert ddptop("pack", "best", "x.ddptop")[:2] == (0, "x.ddptop\n")
    for name in ("best", "x.ddptop", str(tmp_path / "x.ddptop")):
        assert ddptop("status", name)[0] == 0
        assert "finished" in ddptop("report", name)[1]
    assert "step 80" in ddptop("attach", "x.ddptop", "--plain")[1]
    assert ddptop("attach", "x.ddptop", "--screenshot", "x.svg")[0] == 0
    assert "step" in (tmp_path / "x.svg").read_text()
    assert ddptop("gate", "x.ddptop", "--loss-at", "80", "9")[0] == 0


def test_a_page_has_the_comparison_with_a_baseline(ddptop: Ddptop, tmp_path: Path) -> None:
    """Its verdict and numbers, after the run of the baseline is gone; a name that is none is one line."""
    recorded("usual", seed=1)
    recorded("slow", seed=3, longer={(rank, "backward"): 12.0 for rank in (0, 1)})
    assert ddptop("baseline", "usual", "nightly")[0] == 0
    rundir.remove(rundir.find("usual"))
    code, _, errors = ddptop("report", "slow", "--html", "page.html", "--against", "nightly")
    assert code == 0, errors
    page = (tmp_path / "page.html").read_text()
    assert "slow is slower by" in page
    assert "Compared with nightly" in page
    (tmp_path / "page.html").unlink()
    for words, said in (("--html", "page.html", "--against", "none"), "such run"), (("--against", "nightly"), "--html"):
        code, _, errors = ddptop("report", "slow", *words)
        assert (code, errors.count("\n"), said in errors) == (2, 1, True)
    assert not (tmp_path / "page.html").exists()


def test_no_gate_tells_a_secret_of_the_run(ddptop: Ddptop, tmp_path: Path) -> None:
    """Its lines and its JUnit go to the log of a CI, where all can read them."""
    recorded(
        "dead", state="failed", cause="rank 1: ValueError: bad key s3cr3t-value", environment={"TOKEN": "s3cr3t-value"}
    )
    code, output, _ = ddptop("gate", "dead", "--loss-at", "50", "9", "--junit", "x.xml")
    assert code == 1
    assert "dead failed: rank 1: ValueError: bad key ***" in output
    assert "bad key ***" in (tmp_path / "x.xml").read_text()
    assert "s3cr3t" not in output + (tmp_path / "x.xml").read_text()

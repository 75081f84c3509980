"""`ddptop report`: text, Markdown and JSON of the same report."""

from __future__ import annotations

import json
from dataclasses import replace

from support.values.reports import REPORT

from ddptop.agent import wire
from ddptop.agent.end import kinds
from ddptop.tui.cli.output import pages, status
from ddptop.tui.model.diagnosis import report as told


def test_the_text_says_all_of_it() -> None:
    """Each fact in one line, then the stack, the last output, verdicts and events."""
    text = told.text(REPORT).splitlines()
    assert text[0] == "toy-1 failed, exit code 137, after 01:05"
    assert f"to do:     {kinds.HOST_MEMORY.advice}" in text
    rank = next(line for line in text if line.startswith("rank 1:"))
    for part in (
        "killed by SIGKILL",
        "at toy.py:3 main",
        "last step 1,200",
        "memory 800 MiB of 1.00 GiB 0.5 s before its end",
        "node7",
    ):
        assert part in rank
    assert REPORT.first is not None
    for step, said in ((0, "before its first step"), (None, None)):
        other = told.text(replace(REPORT, first=replace(REPORT.first, step=step)))
        assert ("first step" in other) == (said is not None)
        assert "last step" not in other
    assert "numbers:   rank 1: loss is nan since step 900" in text
    assert "others:    rank 0: RuntimeError: Connection closed by peer" in text
    assert text.index("--- stack of rank 0") < text.index("KeyError: 1") < text.index("--- last output of rank 1")
    assert any("at toy.py:3 main; the others in all_reduce 4 MB" in line for line in text)
    assert text[-1].endswith("rank 1 was killed")


def test_the_end_of_plain_output_has_cause_and_stack_alone() -> None:
    """A sound run has none."""
    text = [told.plain(line) for line in told.summary(REPORT)]
    assert text[0].startswith("cause:")
    assert text[-1] == "KeyError: 1"
    assert "command" not in "".join(text)
    sound = replace(REPORT, state="finished", cause="", kind=None, traceback="", stack=(), first=None, exit_code=0)
    assert told.summary(sound) == []
    assert "finished well at step 1,200" in told.text(sound)
    lives = replace(sound, state="running", verdicts=())
    assert "It lives at step 1,200: there is no end to explain." in told.text(lives)
    stuck = told.text(replace(lives, verdicts=REPORT.verdicts, hang=REPORT.verdicts[0]))
    assert "It lives, but makes no steps at step 1,200: rank 1 hangs; ddptop stacks toy-1" in stuck


def test_a_run_that_hung_at_its_end_leads_with_the_hang() -> None:
    """Also where a timeout failed it, or somebody killed it, which is no cause of its own."""
    hung = replace(REPORT, hang=REPORT.verdicts[0], stood=True)
    text = [told.plain(line) for line in told.summary(hung)]
    assert text[0].startswith("hung:      rank 1 hangs; from ")
    assert text[1] == "stacks:    ddptop stacks toy-1 shows where the ranks stood then"
    assert text[2].startswith("cause:")
    assert "stacks:" not in told.text(replace(hung, stood=False))
    # What was told while it lived is the cause then, and told once.
    same = [told.plain(line) for line in told.summary(replace(hung, cause="rank 1 hangs"))]
    assert same[0].startswith("hung:      from ")
    assert same[2] == "cause:     rank 1 hangs"
    assert "hung:" not in told.text(REPORT)
    killed = told.text(replace(hung, state="killed", kind=None, first=None, cause="killed by ada")).splitlines()
    assert killed[1] == "Somebody ended it at step 1,200, where it hung."
    assert killed[2].startswith("hung:      rank 1 hangs")
    found = json.loads(status.encoded(told.as_json(hung)))["hang"]
    assert (found["text"], found["hang"]["class"]) == ("rank 1 hangs", "spinning")
    assert told.as_json(REPORT)["hang"] is None


def test_a_run_whose_parameters_differ_has_not_finished_well() -> None:
    """It says so in its first lines, and what to look for; that of a run that lives too."""
    apart = wire.Verdict(2, "diverged", "the parameters of ranks 0 and 1 differ since step 150", 1, 2)
    sound = replace(REPORT, state="finished", cause="", kind=None, first=None, exit_code=0, verdicts=(apart,))
    text = told.text(sound).splitlines()
    assert text[1].startswith("It finished at step 1,200, but")
    assert apart.text in text[1]
    assert text[2].startswith("to do:     Do not use its checkpoints.")
    assert "Do not use its checkpoints." in told.text(replace(sound, state="running"))
    assert "Do not use" not in told.text(replace(sound, verdicts=()))


def test_markdown_keeps_what_is_verbatim_in_fences() -> None:
    """Nothing that a rank printed ends a fence or becomes markup."""
    text = told.markdown(replace(REPORT, cause="rank 1: <b>*x*"))
    assert text.startswith("### ddptop report: toy-1 failed")
    assert "- **cause**: rank 1: \\<b\\>\\*x\\*" in text
    assert text.count("```") % 2 == 0
    parts = text.split("```")
    assert any(part.startswith("text\nTraceback") for part in parts[1::2])
    assert not any("<b>" in part for part in parts[::2])


def test_json_has_the_documented_fields() -> None:
    """Absence is null, times are seconds; the page of the manual names every field."""
    found = json.loads(status.encoded(told.as_json(REPORT)))
    assert (found["kind"], found["cause_rank"], found["exit_code"]) == ("host_memory", 1, 137)
    assert found["ranks"][1]["signal"] == "SIGKILL"
    assert found["ranks"][1]["exit_code"] is None
    assert found["ranks"][0]["step"] is None
    assert found["ended_at"] == 66.0
    page = pages.read("json")
    for field in {*found, *found["ranks"][0]}:
        assert f"`{field}`" in page, field
    for kind in kinds.ALL:
        assert f"`{kind.name}`" in pages.read("report"), kind.name

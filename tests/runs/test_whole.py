"""The table of whole jobs: ratios to the plain job, what the CPU times are more, and tools that are not installed."""

from __future__ import annotations

import whole

PLAIN = {
    "median": 1000.0,
    "least": 900.0,
    "thread": 600.0,
    "thread_least": 500.0,
    "process": 800.0,
    "rss": 690.0,
    "own": 370.0,
}


def numbers(**more: float) -> dict[str, float]:
    """Return a job that takes so much more than the plain one."""
    return {name: value + more.get(name, 0.0) for name, value in PLAIN.items()}


def test_each_job_stands_beside_the_plain_one():
    """Medians and minima as ratios; CPU times by their least, because what else runs only adds to them."""
    found = {
        "plain": [numbers(), numbers(median=100, thread_least=90), numbers(median=50)],
        "plain again": [numbers()] * 3,
        "agent": [numbers(median=100, least=90, thread_least=9, process=20, rss=8, own=5) | {"every": 32.0}] * 3,
    }
    missing = {name: "not asked for" for name in whole.VARIANTS if name not in found}
    missing["wandb"] = "not installed: pip install wandb"
    rows = {row.split(" | ")[1]: row for row in whole.table("linear", found, missing)}
    assert list(rows) == list(whole.VARIANTS)
    agent = [cell.strip() for cell in rows["agent"].strip("|").split("|")]
    # The plain jobs' medians are 1000, 1050 and 1100.
    assert agent[2:5] == ["1.100 ms", "1.048", "1.100"]
    assert agent[5:] == ["600 (+9, +1.0% of a step)", "820 (+20)", "698 (+8)", "375 (+5)", "32, 32, 32"]
    assert "pip install wandb" in rows["wandb"]
    assert len({row.count("|") for row in rows.values()}) == 1


def test_every_variant_has_a_command_of_its_own_but_the_control():
    """The control is the very same job again."""
    commands = {each: whole.command(each, 2, "cpu", ["--net", "linear"], "/tmp/x") for each in whole.VARIANTS}
    assert commands["plain"] == commands["plain again"]
    others = [tuple(command) for each, command in commands.items() if each != "plain again"]
    assert len(set(others)) == len(others)
    assert all(str(whole.PROGRAM) in command for command in commands.values())

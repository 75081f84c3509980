"""The records that an observer writes in the place of agents."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from support.harness import WAITING, started

from ddptop.agent.outside import recorded
from ddptop.agent.outside.groups import Group
from ddptop.agent.run.identity import Process, identify
from ddptop.agent.run.rundir import Member, RunDir

FIRST = Group({0: Process(10, 1.0), 1: Process(11, 1.0)}, {0: 0, 1: 1}, 2, None, (), "train.py", ())


def generations(directory: RunDir) -> dict[int, tuple[int, int]]:
    """Return pid and generation of each rank as they are written."""
    return {each.rank: (each.process.pid, each.generation) for each in directory.reported()}


def test_another_process_is_another_generation(new_run: Callable[..., RunDir]) -> None:
    """Where nobody counts, a new process in the place of a rank begins a generation for all, and only once."""
    directory = new_run()
    for _ in range(2):
        recorded.write(directory, FIRST)
        assert generations(directory) == {0: (10, 0), 1: (11, 0)}
    second = replace(FIRST, ranks={0: Process(10, 1.0), 1: Process(21, 2.0)})
    for _ in range(2):
        recorded.write(directory, second)
        assert generations(directory) == {0: (10, 1), 1: (21, 1)}


def test_the_count_of_a_launcher_holds(new_run: Callable[..., RunDir]) -> None:
    """While torchrun replaces one rank after the other, each has the count of its own start, also a first one of 3."""
    directory = new_run(launched=False)
    recorded.write(directory, replace(FIRST, restarts={0: 3, 1: 3}))
    assert generations(directory) == {0: (10, 3), 1: (11, 3)}
    half = replace(FIRST, ranks={0: Process(20, 2.0), 1: Process(11, 1.0)}, restarts={0: 4, 1: 3})
    recorded.write(directory, half)
    assert generations(directory) == {0: (20, 4), 1: (11, 3)}
    assert {rank: member.process.pid for rank, member in directory.members().items()} == {0: 20}


def test_the_record_of_an_agent_stays(new_run: Callable[..., RunDir]) -> None:
    """A rank that an agent has joined is its own; another process in its place is seen from outside again."""
    directory = new_run()
    recorded.write(directory, FIRST)
    joined = Member(1, 1, 2, Process(11, 1.0), "host", 0, "", "", None)
    directory.write_member(joined)
    recorded.write(directory, FIRST)
    assert {each.rank: each.by_agent for each in directory.reported()} == {0: False, 1: True}
    recorded.write(directory, replace(FIRST, ranks={0: Process(10, 1.0), 1: Process(21, 2.0)}))
    assert {each.rank: each.by_agent for each in directory.reported()} == {0: False, 1: False}


def test_output_that_goes_to_a_file(tmp_path: Path) -> None:
    """The file is that which the process writes: a pipe is none, and a file that has taken its path is another one."""
    log = tmp_path / "out.log"
    with open(log, "w") as output, started(*WAITING, stdout=output) as process:
        found = identify(process.pid)
        assert found is not None
        assert recorded.output_of(found) == str(log)
        log.rename(tmp_path / "out.log.1")
        assert recorded.output_of(found) == str(tmp_path / "out.log.1")
        (tmp_path / "out.log.1").unlink()
        (tmp_path / "out.log.1").write_text("of another one")
        assert recorded.output_of(found) != str(tmp_path / "out.log.1")
    with started(sys.executable, "-c", "input()", stdin=-1, stdout=-1, stderr=-1) as piped:
        found = identify(piped.pid)
        assert found is not None
        assert recorded.output_of(found) is None

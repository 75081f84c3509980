"""Out-of-memory kills by the counters of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.agent.observer.end.kernel import RECENT_S, MemoryKills

EVENTS = "low 0\nhigh 0\nmax 12\noom 1\noom_kill {}\noom_group_kill 0\n"


class Machine:
    """Control groups, /proc and the kernel's log as folders of a test."""

    def __init__(self, root: Path, group: str) -> None:
        self.groups, self.proc, self.log = root / "cgroup", root / "proc", root / "kmsg"
        for folder in (self.groups / "job", self.groups / "memory" / "job", self.proc / "7"):
            folder.mkdir(parents=True)
        (self.proc / "7" / "cgroup").write_text(group)
        (self.proc / "vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
        self.now = 0.0
        self.kills = MemoryKills(self.groups, self.proc, self.log, lambda: self.now)


def test_a_kill_in_the_group_of_the_rank_is_found(tmp_path: Path) -> None:
    """With the limit of the group, and what the kernel's log says of that very process."""
    machine = Machine(tmp_path, "0::/job\n")
    events = machine.groups / "job" / "memory.events"
    events.write_text(EVENTS.format(0))
    (machine.groups / "job" / "memory.max").write_text("536870912\n")
    machine.kills.watch(1, 7)
    machine.log.write_text("3,9,1,-;Memory cgroup out of memory: Killed process 7 (python) anon-rss:512kB\n")
    events.write_text(EVENTS.format(1))
    found = machine.kills.found(1, 7)
    assert found.out_of_memory is True
    assert found.text.startswith("memory.events of its control group /job counts 1 out-of-memory kill more")
    assert "limit 512 MiB" in found.text
    assert "Killed process 7 (python)" in found.text
    machine.log.write_text("3,9,1,-;Memory cgroup out of memory: Killed process 77 (python)\n")
    assert "kernel log" not in machine.kills.found(1, 7).text


def test_without_a_kill_the_counters_speak_against_it(tmp_path: Path) -> None:
    """Then it was another process that sent SIGKILL; the counters that were read are named."""
    machine = Machine(tmp_path, "5:cpu,memory:/job\n0::/\n")
    (machine.groups / "memory" / "job" / "memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    )
    machine.kills.watch(0, 7)
    found = machine.kills.found(0, 7)
    assert found == (False, "no out-of-memory kill by the kernel (memory.oom_control of its control group /job)")
    # A kill in the group of the rank would have been counted there, too.
    (machine.proc / "vmstat").write_text("oom_kill 4\n")
    assert machine.kills.found(0, 7).out_of_memory is False


def test_where_the_group_has_no_counter_that_of_the_machine_tells(tmp_path: Path) -> None:
    """It counts all processes."""
    machine = Machine(tmp_path, "0::/\n")
    machine.kills.watch(0, 7)
    (machine.proc / "vmstat").write_text("oom_kill 4\n")
    whole_machine = machine.kills.found(0, 7)
    assert whole_machine.out_of_memory is True
    assert whole_machine.text.startswith("/proc/vmstat counts 1 out-of-memory kill more")
    # The next generation of ranks begins with the counters of then.
    machine.kills.forget()
    machine.kills.watch(0, 7)
    assert machine.kills.found(0, 7).out_of_memory is False


def test_a_kill_of_long_before_says_nothing_of_the_end(tmp_path: Path) -> None:
    """Another process was killed for memory an hour before somebody killed the rank."""
    machine = Machine(tmp_path, "0::/job\n")
    events = machine.groups / "job" / "memory.events"
    events.write_text(EVENTS.format(0))
    machine.kills.watch(1, 7)
    machine.now += RECENT_S
    machine.kills.turn()
    events.write_text(EVENTS.format(1))
    # The counters were read just after the kill, and the end is noticed only now.
    machine.now += RECENT_S
    machine.kills.turn()
    assert machine.kills.found(1, 7).out_of_memory is True
    machine.kills.turn()
    assert machine.kills.found(1, 7).out_of_memory is True
    machine.now += RECENT_S
    machine.kills.turn()
    assert machine.kills.found(1, 7).out_of_memory is False


@pytest.mark.parametrize("group", ["", "nonsense\n::::\n0::/../../etc\n", "0::/not-here\n"])
def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path, group: str) -> None:
    """Neither does a rank say anything that was not watched."""
    machine = Machine(tmp_path, group)
    (machine.proc / "vmstat").unlink()
    machine.kills.watch(0, 7)
    assert machine.kills.found(0, 7) == (None, "")
    assert machine.kills.found(5, 7) == (None, "")

"""What is quoted of the kernel's log: the line on the very process, or on the GPU of which it has just died."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes.events import SaidEvents

from ddptop.agent.observer.end import kernel
from ddptop.agent.observer.end.rank_ends import RankEnds
from ddptop.agent.observer.hosts.ends import OtherEnds
from ddptop.agent.observer.hosts.questions import OtherHosts
from ddptop.agent.run.rundir import Member, Process, RunDir

NOW_S = 1000.0
ILLEGAL = "NVRM: Xid (PCI:0000:07:00): 31, pid=7, name=python, Ch 00000008, intr 00000000. MMU Fault"
FALLEN = "NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
MEMORY = "NVRM: Xid (PCI:0000:07:00): 48, An uncorrectable double bit error (DBE) has been detected on GPU"


def record(text: str, at_s: float = NOW_S - 5) -> str:
    """Return a record as /dev/kmsg gives it."""
    return f"4,1234,{round(at_s * 1e6)},-;{text}\n SUBSYSTEM=pci\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The kernel's log."""
    return tmp_path / "kmsg"


def said(log: Path, text: str, pid: int = 7) -> str:
    """Return what is quoted of a log with this text."""
    log.write_text(text)
    return kernel.device_error(pid, NOW_S, log)


def test_the_error_of_the_process_is_quoted(log):
    """The line that names the process counts, however long ago it was written."""
    assert said(log, record(ILLEGAL)) == ILLEGAL
    assert said(log, record(ILLEGAL, 1.0)) == ILLEGAL
    assert said(log, record(ILLEGAL.replace("pid=7,", "pid='7',"))) != ""


def test_the_error_of_another_process_is_not(log):
    """Two jobs may share a machine: 77 and 17 are not 7."""
    for other in ("pid=77,", "pid=17,", "pid='17',"):
        assert said(log, record(ILLEGAL.replace("pid=7,", other))) == ""


@pytest.mark.parametrize("text", [FALLEN, MEMORY])
def test_an_error_that_names_no_process_counts_while_it_is_new(log, text):
    """A GPU that is gone cannot say whose it was; an error of an hour ago has nothing to do with this end."""
    assert said(log, record(text)) == text
    assert said(log, record(text, NOW_S - kernel.ERROR_RECENT_S - 1)) == ""


@pytest.mark.parametrize("text", ["", ";", "NVRM: Xid", "4,1,x,-;NVRM: loading driver", "\x00" * 9000])
def test_other_text_is_nothing(log, text):
    """Whatever else the log has."""
    assert said(log, text) == ""


def test_what_cannot_be_read_is_nothing(log, tmp_path):
    """No log, or a folder in its place."""
    assert kernel.device_error(7, NOW_S, tmp_path / "missing") == ""
    assert kernel.killed(7, tmp_path) == ""


def test_the_quote_is_one_clean_line(log):
    """A kernel's log may hold what another process has written there."""
    found = said(log, record(f"{ILLEGAL}\x1b[2J" + "x" * 1000))
    assert found.isprintable()
    assert len(found) <= 160


@pytest.mark.parametrize(("status", "quoted"), [(-signal.SIGABRT, True), (1, True), (0, False), (None, False)])
def test_the_end_of_a_rank_has_the_quote(tmp_path, monkeypatch, status, quoted):
    """A rank that failed has the driver's line in what is recorded of its end; one that ended well has none."""
    monkeypatch.setattr(kernel, "device_error", lambda pid, now_s: f"{ILLEGAL} {pid}")
    exits: Any = SimpleNamespace(status={} if status is None else {1: status}, at_ns={1: 5})
    orders: Any = SimpleNamespace(ranks_killed_by={}, killed_by=None)
    ends = RankEnds(RunDir(tmp_path), exits, orders, SaidEvents(), OtherEnds("node1", OtherHosts()))
    ends.note(1, Member(1, 1, 2, Process(7, 1.0), "host", 0, "ipc://p", "ipc://c", None, None), launched=True)
    assert (ends.seen[1].out_of_memory, ends.seen[1].evidence) == (
        None,
        f'kernel log: "{ILLEGAL} 7"' if quoted else "",
    )

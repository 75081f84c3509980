"""How a rank ended can be read, whatever ended it and however little room there is."""

from __future__ import annotations

import os
import sys
import threading
import traceback

import msgspec
import pytest

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import ending
from ddptop.agent.rank.process.account import LONGEST_ERROR, LONGEST_TRACEBACK, Account
from ddptop.agent.run.rundir import Member, Process, RunDir
from ddptop.agent.text import shorten

HOSTILE = {
    "long": "raise ValueError('first ' + 'x' * 3_000_000 + ' last')",
    "silent": "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E",
    "surrogates": "raise ValueError('a\\udcff\\ud800b')",
    "zeros": "raise ValueError('\\0' * 200_000)",
    "notes": "error = ValueError('noted')\nerror.__notes__ = 5\nraise error",
    "deep": "def f(): f()\nf()",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_any_exception_leaves_a_readable_record(rank, kind):
    """Its length, its text and its methods are the script's; the record is ours."""
    account = Account(rank.directory, Member(0, 0, 1, Process(os.getpid(), 1.0), "h", 0, "p", "c", None), Faults())
    account.begin()
    with pytest.raises(Exception) as raised:  # noqa: PT011 # whichever it is
        exec(HOSTILE[kind], {})
    account.end(1, *ending.texts(raised.value, raised.value.__traceback__), None, 7)
    ended = rank.member.ended
    assert ended.exit_code == 1
    assert 0 < len(ended.error.encode()) <= LONGEST_ERROR
    assert 0 < len(ended.traceback.encode()) <= LONGEST_TRACEBACK


def test_a_long_exception_is_cut_in_its_middle(rank):
    """The record of a real rank has its beginning and its end."""
    assert rank.run("raise ValueError('first ' + 'x' * 3_000_000 + ' last')").returncode == 1
    ended = rank.member.ended
    assert ended.exit_code == 1
    assert ended.error.startswith("ValueError: first x")
    assert "bytes cut out" in ended.error
    assert ended.error.endswith("x last")
    assert "bytes cut out" in ended.traceback
    assert len(ended.error.encode()) <= LONGEST_ERROR


def test_an_exit_with_an_object_that_has_no_text_is_recorded(rank):
    """It is told by its class."""
    hostile = "class Code:\n    def __str__(self): raise RuntimeError\nraise SystemExit(Code())"
    assert rank.run(hostile).returncode == 1
    assert (rank.member.ended.exit_code, rank.member.ended.error) == (1, "SystemExit: Code")


@pytest.mark.parametrize(
    ("code", "status"), [(None, 0), (0, 0), (7, 7), (-1, 255), (256, 0), (2**80, 255), (True, 1), ("bad", 1)]
)
def test_the_status_is_the_systems(rank, code, status):
    """What is written down is what the process ends with."""
    assert ending.status(code) == status
    if code in (-1, 2**80, "bad"):
        assert rank.run(f"raise SystemExit({code!r})").returncode == rank.member.ended.exit_code == status
    if code != 0:
        assert rank.run(f"raise SystemExit({code!r})").returncode == rank.member.ended.exit_code == status


FULL = """
import os
with open(os.environ["DISK"] + "/ballast", "wb", buffering=0) as ballast:
    for size in (4096, 1):
        try:
            while True:
                ballast.write(bytes(size))
        except OSError:
            pass
number = 0
try:
    while True:
        os.close(os.open(os.environ["DISK"] + f"/f{number}", os.O_CREAT))
        number += 1
except OSError:
    pass
raise ValueError("the end")
"""


def test_the_end_is_written_down_on_a_full_disk(small_runtime, rank):
    """No room for another byte nor another file: the record that is there takes the end, with that of its traceback."""
    done = rank.run(FULL, DISK=str(small_runtime))
    assert done.returncode == 1
    assert (rank.member.ended.exit_code, rank.member.ended.error) == (1, "ValueError: the end")
    opening, place, *_, error = rank.member.ended.traceback.splitlines()
    assert opening == "Traceback (most recent call last):"
    assert ", line 17, in <module>" in place
    assert error == "ValueError: the end"


@pytest.mark.parametrize(("kib", "kept"), [(1, 0), (4, 39), (200, 2000)])
def test_where_there_is_little_room_the_innermost_lines_of_the_last_traceback_are_kept(rank, kib, kept):
    """A disk takes so many KiB: all of it, the end in whole lines, or the error alone."""

    class FullDisk(RunDir):
        def write_member(self, member: Member) -> None:
            raise_if_larger(member)
            super().write_member(member)

    class AccountOnIt(Account):
        def _overwrite(self, member: Member) -> None:
            raise_if_larger(member)
            super()._overwrite(member)

    def raise_if_larger(member: Member) -> None:
        if len(msgspec.json.encode(member)) > kib << 10:
            raise OSError(28, "No space left on device")

    frames = [f'  File "train.py", line {1000 + number}, in step' for number in range(2000)]
    opening = "Traceback (most recent call last):"
    trace = "\n".join([opening, "OSError: first", "", opening, *frames, "ValueError: last"])
    member = Member(0, 0, 1, Process(1, 1.0), "host", 0, "pub", "cmd", None)
    account = AccountOnIt(FullDisk(rank.directory.path), member, Faults())
    account.begin()
    account.end(1, "ValueError: last", trace, None, 7)
    ended = msgspec.json.decode((rank.directory.path / "ranks" / "0.json").read_bytes(), type=Member).ended
    assert ended is not None
    assert (ended.error, ended.step) == ("ValueError: last", 7)
    if kept == 0:
        assert ended.traceback is None
    elif kept == len(frames):
        assert ended.traceback == shorten(trace, LONGEST_TRACEBACK)
    else:
        assert (ended.traceback or "").splitlines() == [opening, *frames[-kept:], "ValueError: last"]


def test_a_record_that_found_no_room_is_written_once_there_is(rank):
    """A rank that could not say that it is there says so later, and never over its end."""
    faults = Faults()
    ranks = rank.directory.path / "ranks"
    ranks.rmdir()
    member = Member(0, 0, 1, Process(1, 1.0), "host", 0, "pub", "cmd", None)
    account = Account(rank.directory, member, faults)
    account.begin()
    assert (account.written, faults.count) == (False, 1)
    ranks.mkdir()
    account.begin()
    assert account.written
    account.end(0, None, None, "ada" * 1000, 7)
    account.begin()
    ended = msgspec.json.decode((ranks / "0.json").read_bytes(), type=Member).ended
    assert ended is not None
    assert (ended.exit_code, len(ended.stopped_by or ""), ended.step) == (0, 200, 7)


def test_the_script_goes_on_only_once_the_record_is_there(rank):
    """Two threads say that the rank is there: neither goes on while the other still writes."""
    writing, go = threading.Event(), threading.Event()

    class SlowDisk(RunDir):
        def write_member(self, member: Member) -> None:
            writing.set()
            assert go.wait(60)
            super().write_member(member)

    account = Account(SlowDisk(rank.directory.path), Member(0, 0, 1, Process(1, 1.0), "h", 0, "p", "c", None), Faults())
    publisher = threading.Thread(target=account.begin)
    publisher.start()
    assert writing.wait(60)
    found: list[bool] = []

    def begins() -> None:
        account.begin()
        found.append(account.written)

    script = threading.Thread(target=begins)
    script.start()
    # Where it does not wait, it is through long before.
    script.join(0.2)
    go.set()
    publisher.join()
    script.join()
    assert found == [True]
    assert rank.member.rank == 0


def test_a_folder_that_is_gone_changes_nothing_for_the_script(rank):
    """The whole run directory removed under it: its output is lost, its end is its own."""
    script = "import os, shutil, sys\nshutil.rmtree(os.environ['DDPTOP_RUN_DIR'])\nprint('on')\nsys.exit(5)"
    done = rank.run(script)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")


def test_a_signal_handler_that_raises_while_the_traceback_is_made_changes_nothing(monkeypatch):
    """Torch's does, when it hears of the death of a data worker just after the loader has failed of it."""
    made = traceback.format_exception
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        return made(*arguments)

    monkeypatch.setattr(traceback, "format_exception", interrupted)
    try:
        raise ConnectionResetError("reset")
    except ConnectionResetError as failure:
        error, trace = ending.texts(failure, failure.__traceback__)
    assert error == "ConnectionResetError: reset"
    assert trace is not None
    assert trace.splitlines()[-1] == error


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes since Python 3.11")
def test_the_error_is_the_message_and_not_a_note(rank):
    """What somebody has added to an exception stands in the traceback."""
    done = rank.run("error = ValueError('the shard is missing')\nerror.add_note('try another seed')\nraise error")
    assert done.returncode == 1
    ended = rank.member.ended
    assert ended.error == "ValueError: the shard is missing"
    assert "try another seed" in ended.traceback

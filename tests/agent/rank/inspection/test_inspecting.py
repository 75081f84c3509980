"""Where a rank stands, by its agent: where little is known, where something fails, and where there is very much."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from support.fakes.torch_records import dump, entry, torch_with

from ddptop.agent import wire
from ddptop.agent.rank.collectives.backends import RECENT, Counted
from ddptop.agent.rank.collectives.timing import HOOKS, Collectives
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.inspecting import Inspecting
from ddptop.agent.rank.inspection.stacks import own_sources
from ddptop.agent.rank.records.stamps import Call, Stamps
from ddptop.agent.run.rundir import identify
from ddptop.agent.run.script.stacks import ROOM
from ddptop.agent.wire import GroupCalls, PastCall


def test_where_no_hook_works_torchs_record_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts, the newest calls and those that have not completed are all torch's then."""
    monkeypatch.setitem(
        sys.modules, "torch", torch_with(_dump_fr_trace_json=dump(*map(entry, range(1, 20)), entry(20, retired=False)))
    )
    process = identify(os.getpid())
    assert process is not None
    inspecting = Inspecting(Collectives(Stamps(), Faults()), Faults(), process, time.time_ns())
    told = inspecting.inspect(3, stacks=False)
    assert told.groups == (GroupCalls("0", 20, (), (PastCall("all_reduce", 800),) * 16),)
    (call,) = told.open
    assert (call.op, call.number, call.bytes, call.sure) == ("all_reduce", 20, 800, True)
    assert (told.observed, told.problem, told.status != "") == (True, "", True)


def test_what_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that has failed the stacks are told all the same, and the reason why the rest is missing."""
    process = identify(os.getpid())
    assert process is not None
    collectives, faults = Collectives(Stamps(), Faults()), Faults()

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(collectives, "open", fail)
    inspecting, found = Inspecting(collectives, faults, process, time.time_ns()), []
    # From a thread, as the agent does: its own stack is left out.
    thread = threading.Thread(target=lambda: found.append(inspecting.inspect(3, stacks=True)))
    thread.start()
    thread.join()
    (told,) = found
    assert told.threads[0].main
    assert "illegal memory access" in told.problem
    assert (told.open, told.groups, told.observed, faults.count) == ((), (), False, 1)


def test_very_many_groups_and_calls_fit_into_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups with the newest calls and the oldest open calls are told; the reply stays well below 256 KiB."""
    collectives = Collectives(Stamps(), Faults())
    collectives.mechanism = HOOKS
    for number in range(500):
        counted = collectives.groups[f"{number:012}"] = Counted(lambda: SimpleNamespace())
        for _ in range(RECENT):
            call = Call("x" * 100, number, 1 << 53, 1, False, group=f"{number:012}")
            call.number = counted.calls = counted.calls + 1
            counted.noted.append(call)
            collectives._flying[id(call)] = call
    distributed = SimpleNamespace(get_process_group_ranks=lambda _: list(range(60_000, 61_024)))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    process = identify(os.getpid())
    assert process is not None
    told = Inspecting(collectives, Faults(), process, time.time_ns()).inspect(3, stacks=False)
    assert [each.group for each in told.groups] == [f"{number:012}" for number in range(436, 500)]
    assert sum(bool(each.ranks) for each in told.groups) == 8
    assert [(call.group, call.number) for call in told.open[::16]] == [(f"{number:012}", 1) for number in range(8)]
    assert len(wire.encode(wire.Reply(1, True, inspection=told))) + ROOM < 240 << 10


def test_a_program_of_a_package_has_the_whole_package_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a namespace, which others share, only its part; of a script the folder."""
    main = ModuleType("__main__")
    main.__package__, main.__file__ = (
        "shared.net.programs",
        "/venv/lib/python3.12/site-packages/shared/net/programs/a.py",
    )
    monkeypatch.setitem(sys.modules, "__main__", main)
    for name, file in (("shared", None), ("shared.net", "shared/net/__init__.py")):
        module = ModuleType(name)
        module.__file__ = file and f"/venv/lib/python3.12/site-packages/{file}"
        monkeypatch.setitem(sys.modules, name, module)
    sources = own_sources()
    assert not sources.is_library("/venv/lib/python3.12/site-packages/shared/net/training/loop.py")
    assert sources.is_library("/venv/lib/python3.12/site-packages/shared/other/loop.py")
    main.__package__, main.__file__ = None, "/venv/lib/python3.12/site-packages/scripts/a.py"
    assert own_sources().name("/venv/lib/python3.12/site-packages/scripts/b.py") == "b.py"


def test_the_agents_own_reading_is_told_so_that_it_is_not_taken_for_work() -> None:
    """Of what the process has read since, by the system's count, an inspection with sources explains nearly all."""
    process = identify(os.getpid())
    assert process is not None
    inspecting, found = Inspecting(Collectives(Stamps(), Faults()), Faults(), process, time.time_ns()), []

    def moved() -> int:
        fields = Path("/proc/self/io").read_text().split()
        return int(fields[1]) + int(fields[3])

    def inspect() -> None:
        for _ in range(2):
            before = moved()
            told = inspecting.inspect(3, stacks=True)
            assert told.own_bytes is not None
            found.append((moved() - before, told.own_bytes))

    thread = threading.Thread(target=inspect)
    thread.start()
    thread.join()
    (_, first), (really, second) = found
    assert really > 4_000, "the source of this file is read"
    assert second - first == pytest.approx(really, abs=2_000)


def test_an_exception_that_is_handled_is_told_with_its_line() -> None:
    """In a `finally` that waits, by the agent's thread; not one in whose handling the training makes its steps."""
    process = identify(os.getpid())
    assert process is not None
    inspecting = Inspecting(Collectives(Stamps(), Faults()), Faults(), process, time.time_ns())
    told: list[wire.Inspection] = []

    def ask() -> None:
        thread = threading.Thread(target=lambda: told.append(inspecting.inspect(3, stacks=True)))
        thread.start()
        thread.join()

    def load() -> None:
        raise ValueError("label 1000 is out of range")

    ask()
    try:
        try:
            load()
        finally:
            inspecting.notice(7)
            ask()
            inspecting.notice(8)
            ask()
    except ValueError:
        pass
    line = load.__code__.co_firstlineno + 1
    before, during, training = ((each.exception, each.raised_at.rpartition("/")[2]) for each in told)
    assert during == ("ValueError: label 1000 is out of range", f"test_inspecting.py:{line} load")
    assert before == training == ("", "")

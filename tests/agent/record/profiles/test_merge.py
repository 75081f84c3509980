"""One trace of all ranks: as torch.profiler has recorded them, and as no sound file could be."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.values import traces
from support.values.traces import kineto, rank, spent, step

from ddptop.agent.record.profiles import parts, trace
from ddptop.agent.text import Complaint


def _titles(document: dict[str, Any], kind: str = "process_name") -> dict[Any, str]:
    events = [event for event in document["traceEvents"] if event["name"] == kind]
    return {event["pid"] if kind == "process_name" else event["tid"]: event["args"]["name"] for event in events}


def _times(document: dict[str, Any], name: str) -> list[tuple[int, int]]:
    """Return the process of each event of that name, and its moment in nanoseconds since the epoch."""
    base = document["baseTimeNanoseconds"]
    events = [event for event in document["traceEvents"] if event["name"] == name and event["ph"] != "M"]
    return sorted((event["pid"], base + round(event["ts"] * 1000)) for event in events)


def test_times_are_on_one_clock(tmp_path: Path) -> None:
    """What happened at the same moment stands there, whatever the days from which each version and host counts."""
    base = 1_790_857_026_000_000_000
    folder = traces.write(
        tmp_path,
        {
            0: kineto(step(5, 1000.125, 90), spent("aten::mm", 1001.5, 3), base=base),
            # A host whose clock is 7 ms ahead, with torch from before the base.
            1: (
                rank(1, host="node2", offset_ns=-7_000_000, error_ns=230_000),
                kineto(step(5, base / 1000 + 8000, 90), spent("aten::mm", base / 1000 + 8001.5, 3)),
            ),
        },
    )
    assert traces.merge(folder).returncode == 0
    document = traces.read(folder / "trace.json.gz")
    assert list(_titles(document).values()) == ["rank 0 · node1", "rank 1 · node2 ± 0.23 ms"]
    (_, first), (_, second) = _times(document, "aten::mm")
    assert first == base + 1_001_500
    # A float of microseconds since the epoch is exact to a quarter of one.
    assert abs(second - first) <= 250
    assert traces.faults(document) == []


def test_phases_lie_in_their_steps(tmp_path: Path) -> None:
    """A step of the rank begins before that of the profiler, and ends with it; no phase reaches into the next step."""
    phases = [[5, [[0, 30_000, "data"], [30_000, 90_000, "forward"], [90_000, 150_000, "wait"]]]]
    document = kineto(step(5, 1000, 100), step(6, 1100, 100), base=0)
    folder = traces.write(tmp_path, {0: (rank(0, phases=phases), document)})
    assert traces.merge(folder).returncode == 0
    document = traces.read(folder / "trace.json.gz")
    assert traces.faults(document) == []
    found = [event for event in document["traceEvents"] if event.get("cat") == "ddptop phase"]
    begin = next(event["ts"] for event in document["traceEvents"] if event.get("cat") == "ddptop step")
    assert [(event["name"], round(event["ts"] - begin, 3), event["dur"]) for event in found] == [
        ("forward", 0, 40),
        ("wait", 40, 60),
    ]


def test_a_gpu_stands_under_its_rank(tmp_path: Path) -> None:
    """Kineto gives a GPU a process of its own; the arrow from the launch to the kernel goes on."""
    gpu = {"pid": 0, "tid": 7}
    folder = traces.write(
        tmp_path,
        {
            3: kineto(
                step(5, 0, 100),
                spent("cudaLaunchKernel", 10, 2, cat="cuda_runtime"),
                spent("sgemm", 20, 50, cat="kernel") | gpu,
                # The mark of a step on the stream neither holds the kernel nor ends before it.
                spent("a span", 10, 20, cat="gpu_user_annotation") | gpu,
                {"ph": "M", "name": "thread_name", **gpu, "ts": 0, "args": {"name": "stream 7 "}},
                {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 4, "pid": 77, "tid": 77, "ts": 10},
                {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 4, "bp": "e", **gpu, "ts": 20},
                {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 5, "bp": "e", **gpu, "ts": 20},
                base=1_790_857_026_000_000_000,
            )
        },
    )
    assert traces.merge(folder).returncode == 0
    document = traces.read(folder / "trace.json.gz")
    assert traces.faults(document) == []
    assert list(_titles(document).values()) == ["rank 3 · node1"]
    names = _titles(document, "thread_name")
    assert list(names.values()) == ["steps", "thread 77", "GPU 0 · stream 7", "GPU 0 · stream 7 (2)"]
    at = {event["name"]: event["tid"] for event in document["traceEvents"] if event["ph"] in "Xf"}
    assert at["sgemm"] == at["ac2g"]


def _cut(folder: Path) -> None:
    path = folder / "rank-1.json.gz"
    path.write_bytes(path.read_bytes()[:-20])


def _pipe(folder: Path) -> None:
    (folder / "rank-1.json.gz").unlink()
    os.mkfifo(folder / "rank-1.json.gz")


def _replace(content: bytes) -> Any:
    return lambda folder: (folder / "rank-1.json.gz").write_bytes(gzip.compress(content))


def _parts(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        path = folder / "parts.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _outside(folder: Path) -> None:
    shutil.copy(folder / "rank-1.json.gz", folder.parent)
    _parts(ranks=[rank(0, file="../rank-1.json.gz")])(folder)


_STEP = json.dumps(step(5, 0, 90)).encode()
HOSTILE = {
    "cut off": _cut,
    "no gzip": lambda folder: (folder / "rank-1.json.gz").write_bytes(b"hello"),
    "a missing file": lambda folder: (folder / "rank-1.json.gz").unlink(),
    "a pipe": _pipe,
    "no JSON": _replace(b"hello"),
    "no trace": _replace(b'{"traceEvents": 5}'),
    "no steps": _replace(b'{"traceEvents": []}'),
    "a step of text": _replace(b'{"traceEvents": [{"ph": "X", "name": 5}]}'),
    "no text": _replace(b'{"traceEvents": [{"ph": "X", "name": "\xff"}]}'),
    "a name that is a list": _replace(
        b'{"traceEvents": [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": []}]}'
    ),
    "a time beyond all": _replace(b'{"traceEvents": [%s, {"ph": "X", "pid": 77, "ts": 1e300}]}' % _STEP),
    "a base beyond all": _replace(b'{"baseTimeNanoseconds": 1%s, "traceEvents": [%s]}' % (b"0" * 300, _STEP)),
    "deep": _replace(b'{"traceEvents": ' + b"[" * 500_000),
    "another folder's file": _outside,
    "a rank twice": _parts(ranks=[rank(0), rank(0)]),
    "no ranks": _parts(ranks=[]),
    "a rank below zero": _parts(ranks=[rank(-1)]),
    "a clock beyond all": _parts(ranks=[rank(0, offset_ns=1 << 80)]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_profile_gets_one_line_and_stays_as_it_is(name: str, tmp_path: Path) -> None:
    """The exit code is 2, stderr one line without a traceback, and no file is made or removed."""
    folder = tmp_path / "0001"
    documents = {number: kineto(step(5, 1, 90), spent("aten::mm", 2, 3)) for number in (0, 1)}
    HOSTILE[name](traces.write(folder, documents, culprit=1, peer=0))
    before = {path.name: path.lstat().st_ino for path in folder.iterdir()}
    done = traces.merge(folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("profile 0001: ")
    assert done.stderr.count("\n") == 1
    assert {path.name: path.lstat().st_ino for path in folder.iterdir()} == before


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that unpacks to a thousand million numbers no more is read than a trace may have."""
    monkeypatch.setattr(trace, "LARGEST", 1 << 20)
    million = gzip.compress(b"1," * (1 << 20))
    folder = traces.write(tmp_path, {0: kineto(step(5, 0, 90))})
    (folder / "rank-0.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [') + million * 1000)
    part = parts.read(folder).ranks[0]
    tracemalloc.start()
    try:
        with pytest.raises(Complaint, match=r"rank-0\.json\.gz: more than 1 MiB; profile fewer steps"):
            trace.read(folder, part)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    """Where a file may not become larger than a kilobyte, the traces of the ranks stay, and no other file."""
    events = [spent(f"aten::mm{number}", number, 1) for number in range(20_000)]
    folder = traces.write(tmp_path / "0001", {0: kineto(step(5, 0, 30_000), *events)})
    before = sorted(path.name for path in folder.iterdir())
    program = (
        "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        f"sys.argv = ['profiles', {str(folder)!r}];"
        "runpy.run_module('ddptop.agent.record.profiles', None, '__main__')"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before


def test_neither_torch_nor_sockets_are_imported() -> None:
    """The process begins in a tenth of a second, beside a training that has the cores."""
    program = (
        "import sys, ddptop.agent.record.profiles.__main__ as main;"
        "print([name for name in ('torch', 'textual', 'zmq', 'numpy', 'psutil') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_process_takes_at_most_half_of_the_free_memory() -> None:
    """A trace of millions of events fails in it with one line, and does not push the training out of the memory."""
    program = (
        "import resource; from ddptop.agent.record.profiles.__main__ import _bound_memory; _bound_memory();"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    half = psutil.virtual_memory().available / 2
    assert int(done.stdout) == pytest.approx(max(half, 1 << 30), rel=0.3)

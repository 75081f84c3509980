"""Folders of profiles as an observer leaves them, with traces by the real torch.profiler, and a check of Chrome traces.

As a program, `traces.py FOLDER`: profiles two ranks of different work, with steps 5 to 7, and writes what
torch.profiler itself says of the own time of each operator to `rank-N.averages`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

STEPS: Final = range(5, 8)
CULPRIT: Final = 2
PEER: Final = 0
PLANTED_MS: Final = 5.0
"""Least milliseconds a step of the sort that only the culprit does."""


def profile(folder: Path) -> dict[str, Any]:
    """Make the folder of a profile in a process that has torch, and return what its `parts.json` says."""
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, __file__, folder], check=True, capture_output=True)
    parts: dict[str, Any] = json.loads((folder / "parts.json").read_text())
    return parts


def merge(folder: Path) -> subprocess.CompletedProcess[str]:
    """Have the traces of a folder joined by the program that the observer starts for it, in this process."""
    from ddptop.agent.record.profiles import __main__ as program

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setattr(sys, "argv", ["profiles", str(folder)])
        # That would bound this process.
        patch.setattr(program, "_bound_memory", lambda: None)
        code = program.main()
    return subprocess.CompletedProcess(["profiles", str(folder)], code, "", said.getvalue())


def read(path: Path) -> dict[str, Any]:
    """Return the trace in a file."""
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def kineto(*events: dict[str, Any], base: int | None = None) -> dict[str, Any]:
    """Return a trace as Kineto writes it, of a process 77 that has a GPU 0."""
    labels = {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0, "args": {"labels": "GPU 0"}}
    document = {"schemaVersion": 1, "traceEvents": [labels, *events]}
    return document if base is None else {**document, "baseTimeNanoseconds": base}


def spent(name: str, ts: float, dur: float, tid: int = 77, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    """Return an event with a duration on a thread of that process; times in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 77, "tid": tid, "ts": ts, "dur": dur, **more}


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    """Return the event of a whole step."""
    return spent(f"ddptop step {number}", ts, dur, cat="user_annotation")


def rank(number: int, **more: Any) -> dict[str, Any]:
    """Return a rank as `parts.json` has it."""
    name = f"rank-{number}.json.gz"
    return {"rank": number, "host": "node1", "offset_ns": 0, "error_ns": None, "file": name, "phases": [], **more}


def write(folder: Path, ranks: dict[int, Any], **more: Any) -> Path:
    """Make the folder of a profile of hand-written traces, by rank: a document, or a pair of rank and document."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, given in ranks.items():
        part, document = given if isinstance(given, tuple) else (rank(number), given)
        (folder / part["file"]).write_bytes(gzip.compress(json.dumps(document).encode()))
        parts.append(part)
    head = {"run": "r", "steps": [5, 7], "asked": [], "culprit": None, "peer": None, "at": 1.5e9, "ranks": parts}
    (folder / "parts.json").write_text(json.dumps(head | more))
    return folder


def faults(document: dict[str, Any]) -> list[str]:
    """Return in what a Chrome trace breaks its format, or would lose events in Perfetto."""
    found = []
    tracks: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    begun: Counter[tuple[int, int]] = Counter()
    arrows: dict[Any, list[str]] = defaultdict(list)
    named: dict[str, set[Any]] = defaultdict(set)
    processes_of: dict[int, set[int]] = defaultdict(set)
    for event in document["traceEvents"]:
        track = event["pid"], event["tid"]
        if not all(isinstance(number, int) and number >= 0 for number in track):
            found.append(f"no numbers: {event}")
        match event["ph"]:
            case "X":
                # In whole nanoseconds, as Perfetto takes them.
                begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
                if begin < 0 or length < 0:
                    found.append(f"below zero: {event}")
                tracks[track].append((begin, -(begin + length), event["name"]))
            case "B":
                begun[track] += 1
            case "E":
                begun[track] -= 1
            case "s" | "f" | "t":
                arrows[event["cat"], event["id"]].append(event["ph"])
            case "M":
                named[event["name"]].add(event["pid"] if event["name"].startswith("process") else track)
            case "i":
                pass
            case other:
                found.append(f"unknown kind {other}")
        if event["ph"] != "M":
            processes_of[event["tid"]].add(event["pid"])
    found += [f"not ended: {track}" for track, number in begun.items() if number]
    found += [f"arrow {key}: {ends}" for key, ends in arrows.items() if sorted(ends) != ["f", "s"]]
    found += [f"process without a name: {pid}" for pid, _ in tracks if pid not in named["process_name"]]
    found += [f"track without a name: {track}" for track in tracks if track not in named["thread_name"]]
    found += [f"track {tid} of several processes" for tid, pids in processes_of.items() if len(pids) > 1]
    for track, events in tracks.items():
        ends: list[float] = []
        for begin, minus_end, name in sorted(events):
            while ends and ends[-1] <= begin:
                ends.pop()
            if ends and -minus_end > ends[-1]:
                found.append(f"{name} on {track} is neither inside of another nor behind it")
            ends.append(-minus_end)
    return found


def _record(folder: Path, number: int) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as profiler

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    many = torch.randn(200_000)
    phases = []

    def work(index: int) -> None:
        begin = time.time_ns()
        with record_function(f"ddptop step {index}"):
            batch = torch.randn(32, 64)
            torch.sort(many if number == CULPRIT else many[:100])
            loaded = time.time_ns()
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        phases.append([index, [[0, loaded - begin, "data"], [loaded - begin, time.time_ns() - begin, "forward"]]])

    work(STEPS[0] - 1)
    phases.clear()
    with profiler(activities=[ProfilerActivity.CPU], record_shapes=True) as made:
        for index in STEPS:
            work(index)
    part = rank(number, phases=phases)
    made.export_chrome_trace(str(folder / part["file"]))
    averages = {each.key: each.self_cpu_time_total for each in made.key_averages()}
    (folder / f"rank-{number}.averages").write_text(json.dumps(averages))
    return part


if __name__ == "__main__":
    target = Path(sys.argv[1])
    made = [_record(target, number) for number in (PEER, CULPRIT)]
    record = {"run": "resnet-7f", "steps": [STEPS[0], STEPS[-1]], "asked": [PEER, CULPRIT], "at": time.time()}
    (target / "parts.json").write_text(json.dumps({**record, "culprit": CULPRIT, "peer": PEER, "ranks": made}))

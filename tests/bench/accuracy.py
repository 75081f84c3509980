"""Compares the agent's numbers with torch.profiler's, in the same run: `python tests/bench/accuracy.py`.

Two ranks train a small net under DDP; each step also does 1, 2 or 5 all-reduces at a time.
Prints, for each kind of number, how far the two are apart. Target: 5 % or 100 us, whichever
is larger, or marked as an estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARMUP = 8
BURSTS = (1, 2, 5)
PHASES = ("forward", "backward", "optimizer", "wait")


def main() -> None:
    """Run the ranks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="steps for each number in flight")
    parser.add_argument("--megabytes", type=float, default=4.0, help="size of each all-reduce")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dta-", dir="/tmp") as folder:
        os.chmod(folder, 0o700)
        # The agent's record of each step is compared.
        own = {"DDPTOP_RUNTIME_DIR": folder, "DDPTOP_RECORD_EVERY": "1", "OUT": folder}
        environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | own
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        worker = ["-m", "ddptop.agent", os.path.abspath(__file__), str(options.steps), str(options.megabytes)]
        done = subprocess.run([*torchrun, *worker], env=environment, capture_output=True, text=True, check=False)
        reports = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank*.json"))]
        if len(reports) != 2:
            raise SystemExit(done.stdout + done.stderr)
    _print(reports)


def _print(reports: list[dict[str, Any]]) -> None:
    print(f"{'':38}{'number':>7}{'profiler':>11}{'median off':>12}{'p95 off':>10}{'in target':>11}{'estimates':>11}")
    for name in reports[0]:
        pairs = [pair for report in reports for pair in report[name]]
        if not pairs:
            continue
        off = sorted(abs(ours - theirs) for ours, theirs, _ in pairs)
        inside = sum(abs(ours - theirs) <= max(0.05 * theirs, 100) for ours, theirs, _ in pairs) / len(pairs)
        marked = sum(estimated for *_, estimated in pairs) / len(pairs)
        p95 = off[min(len(off) - 1, len(off) * 95 // 100)]
        usual = statistics.median(theirs for _, theirs, _ in pairs)
        figures = f"{len(pairs):7}{usual:8.0f} us{statistics.median(off):9.0f} us{p95:7.0f} us"
        print(f"{name:38}{figures}{inside:11.0%}{marked:11.0%}")
    print("target: within 5 % or 100 us of the profiler, whichever is larger; or marked as an estimate")


def _train(steps: int, megabytes: float) -> None:
    """One rank: trains under the profiler, then pairs its spans with the agent's records."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, record_function

    from ddptop import agent
    from ddptop.agent import wire

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    batch = torch.randn(256, 256)
    blocks = [torch.ones(int(megabytes * 2**18)) for _ in range(max(BURSTS))]

    def step(burst: int) -> None:
        with record_function("## forward"):
            loss = model(batch).square().mean()
        with record_function("## backward"):
            loss.backward()
        works = [dist.all_reduce(block, async_op=True) for block in blocks[:burst]]
        with record_function("## wait"):
            for work in works:
                work.wait()
        optimizer.step()
        optimizer.zero_grad()

    plan = [burst for burst in BURSTS for _ in range(steps)]
    for _ in range(WARMUP):
        step(1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for burst in plan:
            with record_function("## step"):
                step(burst)
    session: Any = agent._listener
    expected = WARMUP + len(plan)
    deadline = time.monotonic() + 20
    while session._publisher._seq < expected and time.monotonic() < deadline:
        time.sleep(0.05)
    records: list[wire.Step] = []
    for payload in session._publisher._history.since(0, expected):
        message = wire.read_answer(payload)
        assert isinstance(message, wire.Steps)
        records += message.steps
    events = [(e.name, e.time_range.start, e.time_range.end) for e in profiler.events()]
    report = _pair(plan, records[WARMUP:], events)
    Path(os.environ["OUT"], f"rank{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


def _pair(plan: list[int], records: list[Any], events: list[tuple[str, float, float]]) -> dict[str, Any]:
    """Return (ours, the profiler's, whether marked as an estimate) in us for each kind of number."""
    spans = sorted((begin, end) for name, begin, end in events if name == "## step")
    kinds = [f"{burst} in flight" for burst in BURSTS] + ["DDP's bucket"]
    views = ("call to completion", "on gloo's worker")
    report: dict[str, Any] = {f"{kind}, {view}": [] for view in views for kind in kinds}
    report |= {phase: [] for phase in PHASES}
    for burst, record, (begin, end) in zip(plan, records, spans, strict=True):
        inside = [event for event in events if begin <= event[1] < end]

        def span(name: str, inside: list[Any] = inside) -> tuple[float, float]:
            return next((since, until) for title, since, until in inside if title.startswith(name))

        theirs = sorted((since, until) for name, since, until in inside if name == "gloo:all_reduce")
        ours = [call for call in record.collectives if call.op == "all_reduce"]
        issued = sorted(at for name, at, _ in inside if name == "c10d::allreduce_")
        since, until = span("## backward")
        buckets = len(ours) - burst
        # gloo's span ends after the callbacks of its future. DDP waits for the future alone: what
        # the span says beyond the end of backward is not the all-reduce's.
        theirs[:buckets] = [(begin, min(end, until)) for begin, end in theirs[:buckets]]
        for index, (call, at, (begun, done)) in enumerate(zip(ours, issued, theirs, strict=True)):
            if call.duration_ns is not None:
                kind = f"{burst} in flight" if index >= buckets else kinds[-1]
                whole, worked = call.duration_ns / 1e3, (call.duration_ns - call.queued_ns) / 1e3
                report[f"{kind}, {views[0]}"].append((whole, done - at, False))
                report[f"{kind}, {views[1]}"].append((worked, done - begun, call.estimated))
        in_backward = max(at for _, at in theirs[:buckets]) - max(issued[:buckets])
        waiting = span("## wait")
        took = {phase: getattr(record, f"{phase}_ns") / 1e3 for phase in PHASES}
        optimizer = span("Optimizer.step")
        report["forward"].append((took["forward"], span("## forward")[1] - span("## forward")[0], False))
        report["backward"].append((took["backward"], until - since - in_backward, False))
        report["optimizer"].append((took["optimizer"], optimizer[1] - optimizer[0], False))
        report["wait"].append((took["wait"], in_backward + waiting[1] - waiting[0], False))
    return report


if __name__ == "__main__":
    if "RANK" in os.environ:
        _train(int(sys.argv[1]), float(sys.argv[2]))
    else:
        main()

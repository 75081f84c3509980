"""What it costs to count the work of a step: `python tests/bench/diagnoses/work.py [--rounds 5] [--layers 6]`.

Processes that are a whole group each train a small transformer, in turn with the counting, without it, and without it
again (A/A).  Printed are the wall and the CPU time of the step that is counted and of the usual step of the same
process, the operators that the trace has, and the CPU time of the thread that reads it; and the medians of the training
thread's CPU time in all steps after that thread has ended, as ratios within a round: they are to cost nothing more.
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
from typing import Any, Final

KINDS: Final = ("counted", "not", "again")
STEPS: Final = 120


def train(kind: str, layers: int) -> dict[str, Any]:
    """Return the wall and the CPU time of all steps in ms, and what counting took."""
    from ddptop.agent.rank.hooks import patches
    from ddptop.agent.rank.inspection.work import arithmetic
    from ddptop.agent.rank.session import Session
    from ddptop.agent.run import rundir

    directory = rundir.create(rundir.Run("w", "w", "w.py", (), 1, "gloo", "cpu", time.time_ns(), launched=True))
    session = Session(directory, run_id="w", program="w.py", log=None)
    session.diagnoses.counting.is_armed = kind == "counted"
    session.open()
    import torch
    from torch import nn

    torch.set_num_threads(1)
    patches.install_with_torch(session)
    meeting = f"file://{directory.path.parent}/meet"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    block = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.parallel.DistributedDataParallel(nn.TransformerEncoder(block, layers, enable_nested_tensor=False))
    optimizer, rows = torch.optim.AdamW(model.parameters()), torch.randn(8, 64, 128)
    took: dict[str, Any] = {"steps": []}
    nodes, read = arithmetic._nodes, arithmetic.read

    def numbered(lines: Any) -> Any:
        found = nodes(lines)
        took["operators"] = len(found[0])
        return found

    def timed(lines: Any) -> Any:
        began, cpu = time.perf_counter(), time.thread_time()
        work = read(lines)
        took["read_s"], took["read_cpu_ms"] = time.perf_counter() - began, (time.thread_time() - cpu) * 1e3
        took["until"] = len(took["steps"])
        return work

    arithmetic._nodes, arithmetic.read = numbered, timed
    for _ in range(STEPS):
        began, cpu = time.perf_counter(), time.thread_time()
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        took["steps"].append(((time.perf_counter() - began) * 1e3, (time.thread_time() - cpu) * 1e3))
    session.close(0, None, None)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(options.one, options.layers)))
        return
    ratios: dict[str, list[float]] = {"counted": [], "again": []}
    for number in range(options.rounds):
        found = {}
        for kind in KINDS[number % 3 :] + KINDS[: number % 3]:
            with tempfile.TemporaryDirectory(prefix="dt-") as folder:
                command = [sys.executable, __file__, "--one", kind, "--layers", str(options.layers)]
                given = {**os.environ, "DDPTOP_RUNTIME_DIR": folder}
                out = subprocess.run(command, check=True, capture_output=True, text=True, env=given).stdout
            found[kind] = json.loads(out.splitlines()[-1])
        one, first = found["counted"], found["counted"].get("until", STEPS // 2) + 1
        medians = {kind: statistics.median(cpu for _, cpu in each["steps"][first:]) for kind, each in found.items()}
        wall, cpu = one["steps"][22]
        usual = statistics.median(each for each, _ in one["steps"][first:])
        for kind, each in ratios.items():
            each.append(medians[kind] / medians["not"])
        print(
            f"step 23 {wall:.0f} ms (CPU {cpu:.0f}), usual {usual:.1f} ms (CPU {medians['counted']:.1f}), "
            f"{one['operators']:,} operators, "
            f"read in {one['read_s']:.2f} s with {one['read_cpu_ms']:.0f} ms of CPU, until step {first}",
            flush=True,
        )
    for kind, each in ratios.items():
        print(
            f"{kind:8} {statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f}) "
            "of the CPU time of a step without counting"
        )


if __name__ == "__main__":
    main()

"""How long from the key, or from the shell's verb, to nothing left: a group with data workers, also one that resists.

Nothing left is what /proc says: no process carries the run's marker, and no socket of it is there.

    python tests/bench/control/kill.py [--runs 30] [--world 4] [--workers 2] [--grace 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.harness import carriers, ddptop, until
from support.values.watches import watched

from ddptop.agent.client.watch import Watch
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir

SCRIPT = """
import signal, sys
import torch, torch.distributed as dist
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 10**9
    def __getitem__(self, index): return torch.ones(4)
dist.init_process_group("gloo")
if sys.argv[2] == "deaf" and dist.get_rank() == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in torch.utils.data.DataLoader(Numbers(), batch_size=64, num_workers=int(sys.argv[1])):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def main() -> int:
    """Measure and print one line for each case."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="dk-", dir="/tmp") as folder:
        os.environ[rundir.BASE_VARIABLE] = folder
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        slowest = 0.0
        for resistance, ways in (("", ("key", "shell")), ("deaf", ("key",))):
            times: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(options.runs):
                way = ways[number % len(ways)]
                times[way].append(_one(script, options, resistance, way))
            for way, took in times.items():
                grace = f", rank 1 ignores TERM, grace {options.grace:g} s" if resistance else ""
                excess = max(took) - (options.grace + 1 if resistance else 2)
                slowest = max(slowest, excess)
                print(
                    f"{options.world} ranks with {options.workers} workers each{grace}, by {way}: "
                    f"median {statistics.median(took):.2f} s, worst {max(took):.2f} s, {len(took)} runs",
                    flush=True,
                )
    return 0 if slowest <= 0 else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--grace", type=float, default=2.0)
    return parser.parse_args()


def _one(script: Path, options: argparse.Namespace, resistance: str, way: str) -> float:
    """Start a group, kill it once all its workers are up, and return the seconds until nothing is left."""
    done = ddptop(
        "launch", "--world", str(options.world), "--name", "k", "--grace", str(options.grace), "--detach", str(script),
        "--", str(options.workers), resistance or "polite", timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = rundir.find("k")
    run_id = directory.read().run_id
    expected = 1 + options.world * (1 + options.workers)
    until(lambda: len(carriers(run_id)) >= expected, "all data workers are up", 60)
    link = watched(directory)
    until(lambda: _has_stepped(link), "the first steps", 60)
    began = time.monotonic()
    if way == "shell":
        done = ddptop("kill", "k")
        assert done.returncode == 0, done.stderr
    else:
        link.control.kill(options.grace, None, lambda line: None)
    took = time.monotonic() - began
    link.close()
    assert carriers(run_id) == [], "nothing is left"
    assert not _sockets(directory)
    return took


def _has_stepped(link: Watch) -> bool:
    link.poll()
    return (link.frame().step or 0) > 2


def _sockets(directory: RunDir) -> list[Path]:
    return [path for path in directory.path.iterdir() if path.suffix in (".pub", ".cmd")]


if __name__ == "__main__":
    sys.exit(main())

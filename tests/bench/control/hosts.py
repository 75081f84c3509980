"""Do pause, step and resume hold over two hosts?  `python tests/bench/control/hosts.py [--cycles N] [--ranks N]`.

Two hosts are made out of namespaces, which needs root; torchrun is started by hand on both, and the run is paused,
sometimes stepped, and let go, N times in turn from the one host and from the other.  Where each rank stands is told by
the script, which counts the optimizer steps that it has begun, not by the agent.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.cluster import Host

SHARE: int = 10
"""Cycles in a row from one host."""


def _is_complete(host: Host) -> bool:
    from support.cluster.jobs import status

    return all(rank["step"] for rank in status(host)["ranks"])


def main() -> int:
    """Run the cycles and print a line for each host."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from support.cluster import Cluster, missing
    from support.cluster.jobs import CYCLES, Job, run_of
    from support.harness import until

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if reason := missing():
        print(f"two hosts: {reason}", file=sys.stderr)
        return 2
    took: dict[str, list[float]] = {}
    failed = 0
    with Cluster() as cluster:
        job = Job(cluster, options.ranks).start()
        job.wait_for_first_step()
        for host in cluster.hosts:
            until(partial(_is_complete, host), "all ranks are shown")
        for begun in range(0, options.cycles, SHARE):
            host = cluster.hosts[begun // SHARE % len(cluster.hosts)]
            number = min(SHARE, options.cycles - begun)
            arguments = (run_of(host), str(number), str(begun), job.folder, str(job.world))
            done = host.python(CYCLES, *arguments, timeout=3600.0)
            took.setdefault(host.name, []).extend(float(word) for word in done.stdout.split())
            if done.returncode:
                failed += 1
                print(f"{host.name}: {done.stderr.splitlines()[-1]}", file=sys.stderr)
    print("| from | held at one step | median, ms | worst, ms |\n|---|---|---|---|")
    for name, seconds in took.items():
        if seconds:
            print(f"| {name} | {len(seconds)} | {1e3 * statistics.median(seconds):.1f} | {1e3 * max(seconds):.1f} |")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

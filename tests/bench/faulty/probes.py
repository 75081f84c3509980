"""Probes of healthy ranks: how many name whom, and how far the ranks are apart in each experiment.

    python tests/bench/faulty/probes.py --world 2 --probes 20

Prints a line for each probe that names somebody, and at the end the largest lack of a rank alone, by experiment: the
thresholds of `agent.observer.judge.probe` are to be above what chance does on a machine that is busy.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.harness import status, until, write_script
from support.processes.ranks import observed

from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.observer.judge.probe import LESS, NOTHING, UNSURE
from ddptop.agent.record import diagnoses
from ddptop.agent.wire.diagnoses.probed import Probe, typical

SCRIPT = """
import time
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"""


def main() -> None:
    """Probe, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--probes", type=int, default=20)
    options = parser.parse_args()
    found: list[Probe] = []
    with tempfile.TemporaryDirectory() as folder:
        name = f"probes-{os.getpid()}"
        with observed(name, write_script(Path(folder), SCRIPT), world=options.world) as (run, ranks):
            until(lambda: all((rank["step"] or 0) > 5 for rank in status(name)["ranks"]), "some steps")
            for number in range(options.probes):
                kept = diagnoses.read("probe", Path(RunControl(run, run.read(), "the bench").diagnose("probe")))
                assert kept is not None
                found.append(kept.found)
                if kept.found.sentences != [NOTHING]:
                    print(f"{number + 1}: {'; '.join(kept.found.sentences)}", flush=True)
            os.killpg(ranks.pid, signal.SIGKILL)
    unsure = sum(probe.sentences[0].startswith(UNSURE) for probe in found)
    named = sum(probe.sentences != [NOTHING] for probe in found) - unsure
    print(
        f"of {len(found)} probes of {options.world} healthy ranks {named} named somebody, and {unsure} said `{UNSURE}`"
    )
    took = sorted(probe.took_s for probe in found)
    again = sum(any(rank.again for rank in probe.ranks) for probe in found)
    print(
        f"held for {statistics.median(took):.1f} s (median), {took[-1]:.1f} s at most; {again} looked again at a rank"
    )
    for experiment in LESS:
        lacks = [lack for probe in found for lack in _lacks(probe, experiment)]
        if lacks:
            print(f"{experiment}: a rank alone lacked {max(lacks):.0%} of the others' rate at most (wall time)")


def _lacks(probe: Probe, experiment: str) -> list[float]:
    rates = [rate for rank in probe.ranks if (rate := typical(rank.alone.rates.get(experiment, []))) is not None]
    return [
        1 - rate / statistics.median(rates[:at] + rates[at + 1 :]) for at, rate in enumerate(rates) if len(rates) > 1
    ]


if __name__ == "__main__":
    main()

"""What the hooks cost the training thread in a step: `python tests/bench/hooks.py [--net linear] [--rounds 200]`.

One process is a whole group with gloo, so that no collective waits; with `--world 2` there are two, and rank 0 tells
what the hooks cost it.

Between short blocks of one job the hooks are taken away, put back with every step recorded, and put back with steps
only counted; the CPU time of the training thread alone is compared, which other programs and threads disturb little.
Printed are the median time of a step without hooks, and the medians of the differences to it within a round: of a
second block without hooks (A/A), of counted steps and of recorded ones.  With `--without optimizer`, or `all`, also of
counted steps in which the hooks of one part are left out: by what these are cheaper than counted steps, the hooks of
the part cost.  Without those of `backward`, each collective looks up its caller in addition, so that they cost a little
more than that.

The hooks around the step of an optimizer are called by themselves as well: again and again, and each time after so much
other data was read that they are no longer in the processor's cache, as in a training.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from switching import PARTS, Hooks

NETS = ("linear", "conv", "many")
KINDS = ("off", "again", "counted", "recorded")
WITHOUT = "without "
STEPS = 10
CALLS = 2000
OTHER_DATA = 32 << 20


def network(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return a model, a batch for it, and the options of DDP: one bucket, buffers that are broadcast, ten buckets."""
    import torch
    from torch import nn

    if name == "linear":
        return nn.Linear(128, 10), torch.randn(32, 128), {}
    if name == "conv":
        layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
        return nn.Sequential(*layers), torch.randn(8, 3, 16, 16), {}
    wide = [nn.Linear(64, 64) for _ in range(10)]
    return nn.Sequential(*wide, nn.Linear(64, 10)), torch.randn(8, 64), {"bucket_cap_mb": 0.001}


def alone(optimizer: Any) -> tuple[float, float]:
    """Return what the hooks of an optimizer take in a counted step, in us: called in a row, and out of the cache."""
    from torch.optim import optimizer as module

    hooks = [*module._global_optimizer_pre_hooks.values(), *module._global_optimizer_post_hooks.values()]
    other = bytearray(OTHER_DATA)

    def took(calls: int) -> int:
        began = time.thread_time_ns()
        for _ in range(calls):
            for hook in hooks:
                hook(optimizer, (), {})
        return time.thread_time_ns() - began

    took(CALLS)
    clock = statistics.median(took(0) for _ in range(CALLS))
    cold = []
    for _ in range(CALLS // 10):
        sum(other[::64])
        cold.append(took(1) - clock)
    return took(CALLS) / CALLS / 1e3, statistics.median(cold) / 1e3


def measure(name: str, rounds: int, profile: str, left_out: Sequence[str]) -> dict[str, list[float]]:
    """Return the training thread's microseconds a step in each block, by kind."""
    from ddptop.agent.rank.hooks import patches
    from ddptop.agent.rank.records.cost import EVERY, MEDIAN_OF
    from ddptop.agent.rank.session import Session
    from ddptop.agent.run import rundir

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # A run for each rank: no observer of all of them is to choose what is recorded.
    own_run = f"hooks-{rank}"
    directory = rundir.create(
        rundir.Run(own_run, own_run, "hooks.py", (), world, "gloo", "cpu", time.time_ns(), launched=True)
    )
    session = Session(directory, run_id=own_run, program="hooks.py", log=None)
    session.open()
    import torch
    from torch import distributed, nn
    from torch.utils.data import DataLoader, IterableDataset

    torch.set_num_threads(1)
    patches.install_with_torch(session)
    switch = Hooks()
    meeting = f"file://{directory.path.parent}/meet"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    model, inputs, options = network(name)
    labels = torch.randint(0, 10, (len(inputs),))

    class Endless(IterableDataset[tuple[Any, Any]]):
        def __iter__(self) -> Iterator[tuple[Any, Any]]:
            while True:
                yield inputs, labels

    ddp = nn.parallel.DistributedDataParallel(model, **options)
    sgd = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    # After that: hooks for scripts without an optimizer go with the first one.
    switch.find()
    batches = iter(DataLoader(Endless(), batch_size=None))

    def run(steps: int) -> float:
        begin = time.thread_time_ns()
        for _ in range(steps):
            images, targets = next(batches)
            sgd.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), targets)
            loss.backward()
            sgd.step()
        return (time.thread_time_ns() - begin) / steps / 1e3

    def kind_of_step(kind: str) -> None:
        session.stamps.every = 1 if kind == "recorded" else 1 << 40
        # A step that began as a recorded one still is one, and needs the hooks of all parts to end.
        switch.on()
        run(2)
        if kind not in ("counted", "recorded"):
            switch.off()
        if kind.startswith(WITHOUT):
            switch.on(without=(kind.removeprefix(WITHOUT),))
        run(2)

    kinds = [*KINDS, *(WITHOUT + part for part in left_out)]
    switch.off()
    if profile:
        import cProfile

        kind_of_step(profile)
        profiler = cProfile.Profile()
        profiler.runcall(run, 2000)
        if rank == 0:
            profiler.print_stats("tottime")
        raise SystemExit
    run(50)
    order, times = random.Random(1), dict[str, list[float]]()
    for _ in range(rounds):
        order.shuffle(kinds)
        for kind in kinds:
            kind_of_step(kind)
            times.setdefault(kind, []).append(run(STEPS))
            switch.off()
    switch.on()
    cost = session.stamps.cost
    # What was measured while hooks were left out is forgotten by then.
    session.stamps.every = 1 << 40
    run((MEDIAN_OF + 1) * EVERY)
    own = f"counted {cost.counted_ns} ns, recorded {cost.recorded_ns} ns; its thread {session.record_ns} ns a record"
    if rank == 0:
        print(f"the agent's own measure: {own}")
        in_a_row, out_of_cache = alone(sgd)
        print(f"hooks of an optimizer, counted: {in_a_row:.1f} us in a row, {out_of_cache:.1f} us out of the cache")
    distributed.destroy_process_group()
    session.close(0, None, None)
    assert not session.faults.count, session.faults.last
    return times


def start(world: int) -> int:
    """Run this program once for each rank, and return the first exit code that is not 0."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env=os.environ | {
                    "DDPTOP_RUNTIME_DIR": folder, "DDPTOP_RECORD_EVERY": "1", "OMP_NUM_THREADS": "1",
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
                },
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            while not any(rank.poll() for rank in ranks) and any(rank.poll() is None for rank in ranks):
                time.sleep(0.2)
            # A rank waits in vain for one that has failed.
            return next((code for rank in ranks if (code := rank.poll())), 0)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=NETS, default="linear", help="one bucket, buffers too, or ten buckets")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--profile", default="", choices=KINDS, help="print where the time of such a step goes instead")
    parser.add_argument(
        "--without", action="append", default=[], choices=(*PARTS, "all"), help="leave out one part (may be repeated)"
    )
    parser.add_argument("--world", type=int, default=1, help="ranks, of which rank 0 tells")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit(start(options.world))
    left_out = PARTS if "all" in options.without else tuple(dict.fromkeys(options.without))
    times = measure(options.net, options.rounds, options.profile, left_out)
    if os.environ["RANK"] != "0":
        return
    plain = times["off"]
    print(f"{options.net}: {statistics.median(plain):.1f} us a step without hooks (CPU time of the training thread)")
    for kind, block in times.items():
        more = [with_hooks - without for with_hooks, without in zip(block, plain, strict=True)]
        if kind != "off":
            quarters = statistics.quantiles(more, n=4)
            calm = statistics.quantiles(block, n=10)[0] - statistics.quantiles(plain, n=10)[0]
            print(
                f"  {kind:19} {statistics.median(more):+6.1f} us (quartiles {quarters[0]:+.1f} {quarters[2]:+.1f});"
                f" between the calmest tenths {calm:+.1f} us"
            )


if __name__ == "__main__":
    main()

"""Does the verdict name who was made slow, and nobody else?

    python tests/bench/faulty/verdicts.py [--quick] [--keep DIR]

One job for each model and world: it trains under `ddptop launch` and, through the injector
that `--inject` uses, makes one rank after another slow in one phase after another, with
healthy stretches between; then ranks take turns, and one is slow every so many steps.  The records of
the run are then given to the judge, once as they came, once more for each healthy stretch with a judge
that has seen nothing else.  `--from FILE ...` judges records that `--keep` left, without running a job.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from torch import nn

    from ddptop.agent.run.switches.injection import Injection
    from ddptop.agent.wire import Step, Verdict

MODELS = ("linear", "conv", "resnet18")
WORLDS = (2, 4)
PHASES = ("data", "forward", "backward", "optimizer")
DELAYS_MS = (5, 15, 50)
WARM_UP = 40
PACED_STEPS = 10
HEALTHY_STRETCHES = 4
HEALTHY_S = 8.0
INJECTED_S = 5.5
BETWEEN_S = 3.0
MARGINAL, MARGINAL_S = 0.15, 20.0
"""What costs less than this share of the step is told only after it has lasted."""
WITHIN_STEPS, WITHIN_S = 50, 5.0
MATTERS = 0.10
FELT = 0.5
"""Where cores are shared, a rank that is delayed lends its core to the others: the step grows by less than the
delay, or not at all. The group felt the delay where it grew by this part of it."""
PATTERN_MS, PATTERN_S = 25, 10.0
EVERY: Final = 10
MANY: Final = 50
PATTERNS: Final = (
    ("in turn", "forward"),
    ("in turn", "data"),
    ("at random", "backward"),
    ("now and then", "optimizer"),
)
"""Delays of `PATTERN_MS` a step: of each rank in turn, of one drawn at random for each step, and of rank 1 in one step
of `EVERY`, so many times as long."""
Segment: TypeAlias = dict[str, Any]
"""What is injected in some of the steps, as `_segment` writes it."""
Record: TypeAlias = "tuple[int, Step]"
Row: TypeAlias = tuple[str, int, int, bool, bool]
"""Model, world, delay, whether it matters, and whether it was felt."""
Said: TypeAlias = tuple[str, int | None, str | None]
"""Kind, rank and phase of a verdict."""


# --- the training, inside the job


def train(options: argparse.Namespace) -> None:
    """Train on data that costs nothing, changing what is injected as the plan says."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from ddptop.agent.rank.hooks import injection

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model, shape = _model(options.model)
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    batch = torch.randn(shape), torch.randint(0, 10, shape[:1])

    class Batches(torch.utils.data.IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
        def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            while True:
                yield batch

    batches = iter(torch.utils.data.DataLoader(Batches(), batch_size=None))

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    injector = injection.injector
    assert injector is not None
    plan, first = [], WARM_UP + 1
    for segment in _plan(json.loads(options.cases)):
        begun = time.perf_counter()
        for number in range(first, first + PACED_STEPS):
            injector.order(_injected(segment, rank, dist.get_world_size(), number))
            step()
        # The first steps tell how many fill the segment's time; one rank's word, as all have to do the same.
        pace_s = (time.perf_counter() - begun) / PACED_STEPS
        seconds, least_steps = segment.pop("seconds"), segment.pop("least_steps")
        if 0 < segment["ms"] < 1e3 * MARGINAL * pace_s and not segment["pattern"]:
            seconds = MARGINAL_S
        steps = torch.tensor(max(least_steps, round(seconds / pace_s)))
        dist.broadcast(steps, src=0)
        for number in range(first + PACED_STEPS, first + int(steps)):
            injector.order(_injected(segment, rank, dist.get_world_size(), number))
            step()
        plan.append({**segment, "first": first, "steps": int(steps)})
        first += int(steps)
    if rank == 0:
        Path(options.plan).write_text(json.dumps(plan))
    dist.barrier()
    dist.destroy_process_group()


def _injected(segment: Segment, rank: int, world: int, step: int) -> list[Injection]:
    """Return what a rank is made to suffer in a step."""
    from ddptop.agent.run.switches.injection import Injection

    ms: int = segment["ms"]
    guilty: int | None = segment["rank"]
    match segment["pattern"]:
        case "in turn":
            guilty = step % world
        case "at random":
            guilty = random.Random(step).randrange(world)
        case "now and then":
            ms = EVERY * ms if step % EVERY == 0 else 0
    return [Injection(rank, segment["phase"], ms)] if ms and guilty == rank else []


def _model(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    from torch import nn

    if name == "linear":
        return nn.Linear(256, 10), (32, 256)
    if name == "conv":
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 16), (16, 16)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), (16, 3, 32, 32)
    import torchvision

    return torchvision.models.resnet18(num_classes=10), (4, 3, 32, 32)


def _plan(cases: list[tuple[int, str, int]]) -> Iterator[dict[str, Any]]:
    """Yield the segments, long enough for a verdict to come and to go whatever a step takes."""
    for number in range(HEALTHY_STRETCHES):
        yield _segment(HEALTHY_S, 60, stretch=number)
    for rank, phase, ms in cases:
        yield _segment(INJECTED_S, 60, rank, phase, ms)
        yield _segment(BETWEEN_S, 45)
    for pattern, phase in PATTERNS:
        guilty = 1 if pattern == "now and then" else None
        yield _segment(PATTERN_S, 120, guilty, phase, PATTERN_MS, pattern=pattern)
        yield _segment(BETWEEN_S, 45)


def _segment(
    seconds: float,
    least_steps: int,
    rank: int | None = None,
    phase: str | None = None,
    ms: int = 0,
    stretch: int | None = None,
    pattern: str = "",
) -> dict[str, Any]:
    return {
        "seconds": seconds, "least_steps": least_steps, "rank": rank, "phase": phase, "ms": ms, "stretch": stretch,
        "pattern": pattern,
    }  # fmt: skip


# --- the judging, outside


@dataclass
class Tally:
    """What became of the cases of one row of the table."""

    cases: int = 0
    rank_right: int = 0
    both_right: int = 0
    in_time: int = 0
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)


@dataclass
class Table:
    """What is printed in the end."""

    rows: dict[Row, Tally] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    stretches: int = 0
    """Healthy ones."""
    patterns: list[str] = field(default_factory=list)


def job(
    model: str, world: int, cases: list[tuple[int, str, int]], keep: Path | None
) -> tuple[list[Segment], list[Record]]:
    """Run one job; return its plan and its records as (rank, Step) in the order of their end."""
    from ddptop.agent import wire
    from ddptop.agent.client.start.request import Request
    from ddptop.agent.record import recording
    from ddptop.agent.wire.frames import ENDED
    from ddptop.tui.launch.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        request = Request(
            program=str(Path(__file__).resolve()),
            arguments=("--model", model, "--cases", json.dumps(cases), "--plan", str(plan)),
            world=world,
            # Nothing as yet: it makes the runner patch torch on every rank.
            inject=tuple(f"rank={rank},phase=data,ms=0" for rank in range(world)),
        )
        directory = launch(request).directory
        while (run := directory.read()).state not in ENDED:
            time.sleep(0.5)
        if run.state != "finished":
            sys.exit(f"{run.run} {run.state}: {run.cause}; ddptop logs {run.run}")
        segments = json.loads(plan.read_text())
    records = [
        (message.rank, step)
        for message in recording.read_steps(directory.database)
        if isinstance(message, wire.Steps)
        for step in message.steps
    ]
    records.sort(key=lambda record: record[1].end_at_ns)
    if keep is not None:
        import msgspec

        keep.mkdir(exist_ok=True)
        (keep / f"{model}-{world}.json").write_bytes(msgspec.json.encode((segments, records)))
    return segments, records


def judge(
    world: int, records: list[Record]
) -> tuple[list[tuple[int, int, Said | None]], list[tuple[int, int, Verdict]]]:
    """Return each change of the first verdict as (step, ns, (kind, rank, phase) or None).

    And each verdict as it was last, with the step and the time at which it was first told.
    """
    from ddptop.agent.observer.judge.join import StepJoin
    from ddptop.agent.observer.judge.judge import Judge

    join, judgement = StepJoin(world), Judge(world)
    told: Said | None = None
    changes: list[tuple[int, int, Said | None]] = []
    by_number: dict[int, tuple[int, int, Verdict]] = {}
    for rank, step in records:
        if (together := join.take(rank, step)) is not None:
            judgement.step(together)
        verdicts = judgement.verdicts(step.end_at_ns)
        for verdict in verdicts:
            at_step, at_ns, _ = by_number.get(verdict.number, (step.step, step.end_at_ns, verdict))
            by_number[verdict.number] = at_step, at_ns, verdict
        said = (verdicts[0].kind, verdicts[0].rank, verdicts[0].phase) if verdicts else None
        if said != told:
            told = said
            changes.append((step.step, step.end_at_ns, said))
    return changes, list(by_number.values())


def assess(model: str, world: int, segments: list[Segment], records: list[Record], table: Table) -> None:
    """Add what the verdict said of one job to the table."""
    rows, alarms = table.rows, table.alarms
    walls: dict[int, list[int]] = {}
    ends: dict[int, int] = {}
    for _, step in records:
        walls.setdefault(step.step, []).append(step.wall_ns)
        ends[step.step] = step.end_at_ns
    for segment in segments:
        if segment["stretch"] is not None:
            table.stretches += 1
            until = segment["first"] + segment["steps"]
            alone = [record for record in records if segment["first"] <= record[1].step < until]
            alarms += [
                f"{model} x{world} healthy: {said} at {step}; {_own(world, alone)}"
                for step, _, said in judge(world, alone)[0]
                if said
            ]
    changes, verdicts = judge(world, records)
    healthy_ms = 0.0
    guilty: int | None = None
    for segment in segments:
        first, until = segment["first"], segment["first"] + segment["steps"]
        inside = [change for change in changes if first <= change[0] < until]
        own = _own(world, [record for record in records if first <= record[1].step < until])
        wall_ms = statistics.median(w for n in range(first, until) for w in walls.get(n, [])) / 1e6
        if not segment["ms"]:
            healthy_ms = wall_ms
            # The last culprit may still be named, but nobody else.
            others = [each for each in inside if each[2] is not None and each[2][1] != guilty]
            alarms += [f"{model} x{world} between: {said} at {step}; {own}" for step, _, said in others]
            continue
        guilty = segment["rank"]
        if segment.get("pattern"):
            took = f"step {wall_ms:.0f} ms, before {healthy_ms:.0f}, {own}"
            table.patterns.append(f"{model} x{world} {_pattern(segment, verdicts, ends)}; {took}")
            continue
        share = segment["ms"] / healthy_ms
        felt = wall_ms - healthy_ms >= FELT * segment["ms"]
        row = rows.setdefault((model, world, segment["ms"], share >= MATTERS, felt), Tally())
        row.cases += 1
        named = next((c for c in inside if c[2] is not None and c[2][:2] == ("slow_rank", guilty)), None)
        accused = [c for c in inside if c[2] is not None and c[2][1] is not None]
        wrong = [c for c in accused if c[2] != ("slow_rank", guilty, segment["phase"])]
        what = f"{model} x{world} rank {guilty} {segment['phase']} {segment['ms']} of {healthy_ms:.0f} ms"
        what += f" (step {wall_ms:.0f} ms; {own})"
        if named is None:
            row.misses.append(f"{what}: not named; {[c[2] for c in inside]}")
            continue
        row.rank_right += 1
        row.both_right += named[2] == ("slow_rank", guilty, segment["phase"]) and not wrong
        if wrong:
            row.misses.append(f"{what}: {[c[2] for c in inside]}")
        steps, seconds = named[0] - first, (named[1] - _begun(ends, first)) / 1e9
        row.in_time += steps <= WITHIN_STEPS or seconds <= WITHIN_S
        row.steps.append(steps)
        row.seconds.append(seconds)


def _own(world: int, records: list[Record]) -> str:
    """Tell the median of each rank's own time: equal ranks may differ on a busy machine, and who is named be slow."""
    own: list[list[int]] = [[] for _ in range(world)]
    for rank, step in records:
        own[rank].append(step.wall_ns - (step.wait_ns or 0))
    return "own " + ", ".join(f"{statistics.median(each) / 1e6:.1f}" if each else "–" for each in own) + " ms"


def _begun(ends: dict[int, int], first: int) -> int:
    """Return the end of a step, or of the next one that was recorded."""
    return min(at_ns for number, at_ns in ends.items() if number >= first)


def _pattern(segment: Segment, verdicts: list[tuple[int, int, Verdict]], ends: dict[int, int]) -> str:
    """Return what was said of delays that are not those of one rank in each step, and whether it is right."""
    first, until, guilty = segment["first"], segment["first"] + segment["steps"], segment["rank"]
    kind = "slow_rank" if segment["pattern"] == "now and then" else "taking_turns"
    inside = [each for each in verdicts if first <= each[0] < until]
    right = [each for each in inside if (each[2].kind, each[2].rank, each[2].phase) == (kind, guilty, segment["phase"])]
    what = f"{segment['pattern']}, {segment['phase']}, {segment['ms']} ms a step"
    if not right:
        return f"{what}: MISSED; {[each[2].text for each in inside]}"
    step, at_ns, verdict = right[0]
    others = f"; ALSO {[each[2].text for each in inside if each not in right]}" if len(inside) > len(right) else ""
    return f"{what}: after {step - first} steps, {(at_ns - _begun(ends, first)) / 1e9:.1f} s: {verdict.text}{others}"


def report(table: Table) -> None:
    """Print the table."""
    rows, alarms, stretches = table.rows, table.alarms, table.stretches
    print("model     ranks  delay  of step  felt  cases  rank  rank+phase  in time  steps p50/max  s p50/max")
    for (model, world, ms, matters, felt), row in sorted(rows.items(), key=str):
        steps = f"{statistics.median(row.steps):.0f}/{max(row.steps)}" if row.steps else "–"
        seconds = f"{statistics.median(row.seconds):.1f}/{max(row.seconds):.1f}" if row.steps else "–"
        share = "≥ 10 %" if matters else "< 10 %"
        print(
            f"{model:<9} {world:>5} {ms:>3} ms  {share:>7} {'yes' if felt else 'no':>5} {row.cases:>6}"
            f" {row.rank_right / row.cases:>5.0%} {row.both_right / row.cases:>11.0%} {row.in_time / row.cases:>8.0%}"
            f" {steps:>14} {seconds:>10}"
        )
    mattering = {key: row for key, row in rows.items() if key[3]}
    _print_total("10 % and more", mattering.values())
    _print_total("10 % and more, and felt by the group", [row for key, row in mattering.items() if key[4]])
    accusing = [alarm for alarm in alarms if "None, " not in alarm]
    print(
        f"healthy: {stretches} stretches; ranks accused {len(accusing)}, other verdicts {len(alarms) - len(accusing)}"
    )
    for text in [*alarms, *(miss for row in rows.values() for miss in row.misses)]:
        print("  " + text)
    for text in table.patterns:
        print(text)


def _print_total(name: str, rows: Iterable[Tally]) -> None:
    rows = list(rows)
    cases = sum(row.cases for row in rows)
    if not cases:
        return
    right, both, timely = (
        sum(getattr(row, count) for row in rows) / cases for count in ("rank_right", "both_right", "in_time")
    )
    print(f"{name}: {cases} cases, rank {right:.1%}, rank and phase {both:.1%}, in time {timely:.1%}")


def main() -> None:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="15 ms and rank 1 only, linear and conv")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--worlds", default=",".join(map(str, WORLDS)))
    parser.add_argument("--ranks", default="", help="only these ranks are made slow (default: all)")
    parser.add_argument("--delays", default=",".join(map(str, DELAYS_MS)), help="in ms")
    parser.add_argument("--keep", type=Path, help="folder for the records of the jobs")
    parser.add_argument(
        "--from", dest="kept", type=Path, nargs="+", default=[], help="judge these kept records instead of running jobs"
    )
    options = parser.parse_args()
    models = options.models.split(",") if not options.quick else ["linear", "conv"]
    delays = [int(each) for each in options.delays.split(",")] if not options.quick else [15]
    table = Table()
    for path in options.kept:
        model, _, world = path.stem.rpartition("-")
        assess(model, int(world), *kept(path), table)
    for world in [] if options.kept else list(map(int, options.worlds.split(","))):
        ranks = [int(each) for each in options.ranks.split(",") if each] or list(range(world))
        ranks = [1] if options.quick else [rank for rank in ranks if rank < world]
        cases = [(rank, phase, ms) for ms in delays for phase in PHASES for rank in ranks]
        for model in models:
            begun = time.monotonic()
            segments, records = job(model, world, cases, options.keep)
            assess(model, world, segments, records, table)
            recorded = sorted({step.step for _, step in records})
            # The distance of two records differs, that of many is the number.
            rarest = max((after - before) / MANY for before, after in zip(recorded, recorded[MANY:], strict=False))
            print(
                f"{model} x{world}: {len(records)} records, at times one step in {rarest:.0f};"
                f" {time.monotonic() - begun:.0f} s",
                flush=True,
            )
    report(table)


def kept(path: Path) -> tuple[list[Segment], list[Record]]:
    """Return the plan and the records of a job that was kept."""
    import msgspec

    from ddptop.agent.wire import Step

    return msgspec.json.decode(path.read_bytes(), type=tuple[list[Segment], list[tuple[int, Step]]])


if __name__ == "__main__":
    if "RANK" in os.environ:
        training = argparse.ArgumentParser()
        for name in ("--model", "--cases", "--plan"):
            training.add_argument(name)
        train(training.parse_args())
    else:
        main()

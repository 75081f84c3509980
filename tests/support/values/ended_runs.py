"""Ended runs with a history of noisy steps, each in a folder of its own as an observer leaves it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
from msgspec.structs import replace

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.record.history.stored import Writer
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.wire.frames import RankFrame, RunFrame
from support.values.recordings import record_frames

NOBODY = Process(2**22 + 1, 1.0)
PHASES = {"data": 10.0, "forward": 25.0, "backward": 45.0, "optimizer": 10.0, "other": 2.0}
"""ms of each in a usual step; waiting is what is missing to 100 ms."""


def recorded(
    name: str,
    steps: int = 400,
    *,
    longer: Mapping[tuple[int, str], float] | None = None,
    pace: float = 1.0,
    noise: float = 0.05,
    state: str = "finished",
    torch: str = "2.14.1",
    sent: int = 4_000_000,
    seed: int = 0,
    broken: Mapping[int, int] | None = None,
    **record: Any,
) -> RunDir:
    """Make a run of two ranks.

    Args:
        name: its name.
        steps: steps that each rank has made.
        longer: by rank and phase, how many ms more it takes.
        pace: times all phases take.
        noise: relative deviation of each phase, correlated over some ten steps.
        state: how it has ended.
        torch: the version that its ranks had.
        sent: bytes of an all-reduce of each step.
        seed: of the noise.
        broken: by rank, the step from which on its loss is NaN.
        record: fields of its record.
    """
    random, begun = np.random.default_rng(seed), time.time() - 3600
    run = Run(name, name, "train.py", (), 2, "gloo", "cpu", int(begun * 1e9), True, state=state)
    directory = rundir.create(
        replace(run, observer=NOBODY, torchrun=NOBODY, ended_at_ns=int(time.time() * 1e9), **record)
    )
    for rank in range(2):
        directory.write_member(Member(rank, rank, 2, NOBODY, "host", 0, "", "", None))
    own = np.empty((2, len(PHASES), steps))
    for rank in range(2):
        for index, (phase, usual) in enumerate(PHASES.items()):
            shaped = np.convolve(random.normal(size=steps + 9), np.ones(10) / np.sqrt(10), "valid")
            own[rank, index] = usual * pace * (1 + noise * shaped) + (longer or {}).get((rank, phase), 0.0)
    wall = own.sum(axis=1).max(axis=0) + 8.0 * pace
    ends = begun + np.cumsum(wall) / 1e3
    with closing(recording.open_file(directory.database)) as connection, connection:
        history = Writer(connection, 2)
        for number in range(steps):
            for rank in range(2):
                data, forward, backward, optimizer, other = (int(each * 1e6) for each in own[rank, :, number])
                whole = int(wall[number] * 1e6)
                wait = whole - data - forward - backward - optimizer - other
                call = wire.Collective("all_reduce", whole - wait - 1, wait, sent, 1, "0", True)
                is_broken = number + 1 >= (broken or {}).get(rank, steps + 1)
                loss = math.nan if is_broken else 2.5 * 0.998**number + 0.1
                step = wire.Step(
                    number + 1, number + 1, int(ends[number] * 1e9), whole, data, forward, backward, optimizer, wait,
                    other, loss, 32, (call,),
                )  # fmt: skip
                message = wire.Steps(rank, (step,))
                connection.execute(*recording.row(message, wire.encode(message)))
                history.rows.memory(rank, int(ends[number] * 1e9), 10**9)
                history.rows.steps(rank, [step], 0)
        history.settle()
        history.write()
        history.written()
    shown = RunFrame(run=name, at=time.time(), state=state, program="train.py", world=2, backend="gloo", step=steps)
    ranks = [
        RankFrame(rank=rank, state=state, activity="", host="host", step=steps, device="cpu", torch_version=torch)
        for rank in range(2)
    ]
    record_frames(directory, replace(shown, run_id=run.run_id), ranks)
    return directory

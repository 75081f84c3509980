"""A report on a run that was killed for want of memory while another rank hung."""

from __future__ import annotations

from ddptop.agent import wire
from ddptop.agent.end import kinds
from ddptop.agent.run.records import Run
from ddptop.agent.wire.report import EndKind, RankEnd, Report

RUN = Run(
    "toy-1", "id", "toy.py", ("--key", "***"), 3, "gloo", "cpu", 1_000_000_000, True, state="failed",
    ended_at_ns=66_000_000_000,
)  # fmt: skip
FIRST = RankEnd(
    1, "node7", 41, "killed", "killed by SIGKILL", signal="SIGKILL", ended_at_ns=65_000_000_000, step=1200,
    memory_bytes=800 << 20, memory_total_bytes=1 << 30, heard_at_ns=64_500_000_000, device="cpu",
    health="loss is nan since step 900", where="toy.py:3 main", output=("epoch 1", "```"),
)  # fmt: skip
OTHER = RankEnd(0, "node7", 40, "failed", "RuntimeError: Connection closed by peer", exit_code=1)
HANG = wire.Verdict(
    1, "hang", "rank 1 hangs", 60_000_000_000, rank=1,
    hang=wire.Hang("spinning", (1,), "toy.py:3 main", "all_reduce 4 MB, group 0, rank 0"),
)  # fmt: skip
REPORT = Report(
    run=RUN.run, program=RUN.program, world=3, backend="gloo", device="cpu", launched=True,
    begun_at_ns=RUN.created_at_ns, ended_at_ns=RUN.ended_at_ns, state="failed", exit_code=137,
    cause="rank 1 was killed by SIGKILL (out of memory: memory.events)", kind=EndKind(*kinds.HOST_MEMORY[:3]),
    evidence="memory.events counts 1 out-of-memory kill more, limit 1.00 GiB", first=FIRST, ranks=(OTHER, FIRST),
    collateral="rank 0: RuntimeError: Connection closed by peer",
    traceback="Traceback (most recent call last):\n  <b>\nKeyError: 1",
    stack=("Traceback (most recent call last):", "  <b>", "KeyError: 1"), traceback_rank=0,
    events=(wire.Event(65_000_000_000, "rank 1 was killed", 1, "error"),), verdicts=(HANG,),
    versions={"ddptop": "0.1", "torch": "2.15"}, launched_as="toy.py --key '***'",
)  # fmt: skip

"""Actions on ranks of two hosts that somebody leaves half done, and the end that a scheduler asks for."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from support.cluster import Cluster
from support.cluster.jobs import Job, on_all, run_of, status
from support.harness import until

SAVES = """dist.init_process_group("gloo")
import ddptop.agent


def save(where=None):
    with open(f"saved-{dist.get_rank()}", "a") as file:
        file.write(f"{saved_at()}\\n")


def saved_at():
    return struct.unpack("<q", Path(f"count-{dist.get_rank()}").read_bytes())[0]


ddptop.agent.on_checkpoint(save)"""


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Job:
    """A training of two ranks on each host that can save, and whose ranks answer SIGTERM with a checkpoint.

    The tests share it, and the last of them ends it.
    """
    cluster.reset()
    job = Job(cluster, 2)
    job.prepare()
    script = job.folder / "train.py"
    script.write_text(script.read_text().replace('dist.init_process_group("gloo")', SAVES, 1))
    job.prepare = lambda: None  # type: ignore[method-assign]
    job.start_by_hand(env={"DDPTOP_ON_TERM": "checkpoint"})
    job.wait_for_first_step()
    until(lambda: all(_running(told) == {0, 1, 2, 3} for told in on_all(cluster.hosts, status)), "both show all ranks")
    return job


def _running(told: dict[str, Any]) -> set[int]:
    return {rank["rank"] for rank in told.get("ranks", []) if rank["step"] and rank["state"] == "running"}


def test_a_pause_is_for_both_hosts_or_none(job: Job) -> None:
    """Asked for at a branch, the head does it; with the cable cut a resume is refused, and no rank begins a step."""
    node1, node2 = job.cluster.hosts
    run = run_of(node2)
    assert node2.run(["ddptop", "pause", run], check=True).stdout.startswith(f"{run}: held at step ")
    held = job.counts()
    assert len(set(held)) == 1
    both = job.cluster.hosts
    until(lambda: [told["state"] for told in on_all(both, status)] == ["paused", "paused"], "both say so")
    node1.run(["ddptop", "step", run, "3"], check=True)
    assert job.counts() == [count + 3 for count in held]
    node2.cut()
    refused = ""

    def is_unheard() -> bool:
        nonlocal refused
        refused = node1.run(["ddptop", "resume", run]).stderr
        return "is not heard" in refused

    until(is_unheard, "the head misses node2")
    assert "all ranks or none" in refused
    assert job.counts() == [count + 3 for count in held]
    node2.mend()
    until(lambda: node1.run(["ddptop", "resume", run]).returncode == 0, "a resume of both hosts")
    job.goes_on()


def test_a_scheduler_that_ends_one_host_has_all_of_them_save(job: Job) -> None:
    """SIGTERM reaches the ranks and the observer of node2 alone: all ranks save once, at one step, and all end well."""
    node1, node2 = job.cluster.hosts
    run = run_of(node1)
    found = [pid for pid, words in node2.processes().items() if "ddptop" in words and not words.startswith("sh ")]
    node2.run(["kill", f"-{signal.SIGTERM.value}", *map(str, found)], check=True)
    # Torch itself may abort a process that is done.
    assert set(job.wait_for_end()) <= {0, 128 + signal.SIGABRT}
    saved = [(job.folder / f"saved-{rank}").read_text().split() for rank in range(4)]
    assert len({tuple(each) for each in saved}) == 1
    assert len(saved[0]) == 1
    until(lambda: {told["state"] for told in on_all((node1, node2), status)} == {"stopped"}, "both say stopped")
    assert run_of(node1) == run

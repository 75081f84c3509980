"""Hosts and observers of a training on two hosts that are gone from one moment to the next."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from support.cluster import Cluster, Host
from support.cluster.jobs import Job, events, on_all, status
from support.harness import starved_s, until

TOLD_S = 5.0
"""Seconds after which the loss of a host is told at the latest."""


@pytest.fixture
def job(cluster: Cluster, hosts: tuple[Host, ...]) -> Job:
    """A training of a rank on each host, which both hosts show."""
    return _begun(cluster)


@pytest.fixture(scope="module")
def first(cluster: Cluster) -> Job:
    """One that the first two tests share."""
    cluster.reset()
    return _begun(cluster)


def _begun(cluster: Cluster) -> Job:
    hosts = cluster.hosts
    job = Job(cluster, 1).start_by_hand()
    job.wait_for_first_step()
    until(lambda: all(_heard(told) == {0, 1} for told in on_all(hosts, status)), "both show all ranks")
    return job


def _heard(told: dict[str, Any]) -> set[int]:
    return {rank["rank"] for rank in told.get("ranks", []) if rank["step"] and rank["state"] == "running"}


def _both_say(job: Job, state: str) -> None:
    until(lambda: {told["state"] for told in on_all(job.cluster.hosts, status)} == {state}, f"both say {state}")


def _words(host: Host) -> str:
    return host.ask("status").stdout + "\n".join(each["text"] for each in events(host))


def test_an_observer_that_is_killed_is_replaced_and_linked_again(first: Job) -> None:
    """`kill -9` of each host's observer, one after the other: the training goes on, and both show all ranks again."""
    for host in first.cluster.hosts:
        (pid,) = (pid for pid, words in host.processes().items() if "observer" in words and "ddptop" in words)
        host.run(["kill", "-9", str(pid)], check=True)
        first.goes_on()
        until(
            lambda: all(_heard(told) == {0, 1} for told in on_all(first.cluster.hosts, status)),
            f"all ranks after the observer of {host.name} was killed",
        )


def test_the_ranks_of_a_host_that_is_killed_are_told(first: Job) -> None:
    """All processes of a host are killed at once: within five seconds the other one names it and its rank.

    The training fails with it, and that host is the cause.
    """
    _kill(first, 2)


def test_the_ranks_of_the_host_of_rank_0_are_told_likewise(job: Job) -> None:
    """With its observer goes what all hosts are shown by."""
    _kill(job, 1)


def _kill(job: Job, number: int) -> None:
    other, rank = job.cluster.hosts[2 - number], number - 1
    killed, starved = time.monotonic(), starved_s()
    job.cluster.kill_host(number)
    while True:
        asked = time.monotonic()
        told = status(other)
        named = re.search(rf"node{number}.*\brank {rank}\b|rank {rank}\b.*node{number}", _words(other))
        if named and told["ranks"][rank]["state"] not in ("running", "starting"):
            break
        assert asked < killed + 60, f"{json.dumps(told)}\n{_words(other)}"
    assert asked < killed + TOLD_S + starved_s() - starved
    until(lambda: status(other)["state"] == "failed", "the run has failed")
    assert f"node{number}" in (status(other)["cause"] or ""), status(other)["cause"]


def test_the_failure_of_a_rank_is_told_with_its_host(job: Job) -> None:
    """A rank of node2 raises: both hosts say so, and call the other deaths what follows from it."""
    (job.folder / "raise").write_text("1")
    job.wait_for_end()
    _both_say(job, "failed")
    causes = [told["cause"] for told in on_all(job.cluster.hosts, status)]
    assert causes[0] == causes[1]
    assert "rank 1" in causes[0]
    assert "told to fail" in causes[0]
    reports = [host.ask("report").stdout for host in job.cluster.hosts]
    assert all("node2" in report for report in reports), reports

"""A probe over three hosts, of which the link from one to another one is slow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.cluster import Cluster, Host, missing
from support.cluster.jobs import Job, run_of, status
from support.harness import until


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    """One rank on each host, under DDP, seen whole from all of them."""
    if reason := missing():
        pytest.skip(reason)
    with Cluster(3) as cluster:
        job = Job(cluster, per_host=1).start("1000000000")
        job.wait_for_first_step()
        for host in cluster.hosts:
            until(partial(_is_whole, host), f"all ranks on {host.name}")
        yield job


def _is_whole(host: Host) -> bool:
    return sum(bool(rank["step"]) for rank in status(host).get("ranks", [])) == 3


def probed(host: Host) -> dict[str, Any]:
    """Probe from a host."""
    done = host.ddptop("probe", run_of(host), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_slow_link_is_named_in_its_direction(job: Job) -> None:
    """From the second host to the third one alone, at 80 Mbit/s; nobody is named before.

    Another host that asks is told that the probe is kept where rank 0 is.
    """
    head, second, third = job.cluster.hosts
    before = probed(head)
    assert {rank["host"] for rank in before["ranks"]} == {"node1", "node2", "node3"}
    assert not any("carries" in text for text in before["sentences"]), before
    for line in (
        # What no filter takes passes by: a class of its own would send each packet by a timer, late on a busy machine.
        "qdisc add dev e0 root handle 1: htb",
        "class add dev e0 parent 1: classid 1:2 htb rate 80mbit",
        f"filter add dev e0 parent 1: protocol ip prio 1 u32 match ip dst {third.address}/32 flowid 1:2",
    ):
        done = second.run(["tc", *line.split()], cwd="/")
        if done.returncode:
            pytest.skip(f"needs the kernel's shaping of traffic (htb, u32): {done.stderr.strip()}")
    found = probed(head)
    slow = [text for text in found["sentences"] if "carries" in text]
    assert slow, found
    assert slow[0].startswith("node2 to node3 carries "), found
    # What acknowledges the messages of node3 goes over the slow link, too.
    assert all(text.startswith("node3 to node2 carries ") for text in slow[1:]), found
    done = second.ddptop("probe", run_of(second))
    assert done.returncode == 1, done.stdout
    assert "on the host of rank 0" in done.stderr
    job.goes_on()

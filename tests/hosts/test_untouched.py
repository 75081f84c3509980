"""Training over two hosts with and without ddptop."""

from __future__ import annotations

from functools import partial

import pytest
from support.cluster import Cluster, Host
from support.cluster.jobs import Job, on_all, runs, status
from support.harness import until

STEPS = "60"
ABORTED = 134
"""Exit code, by the shell, of a rank that torch aborts after its script has ended: rarely, and without ddptop too."""
ATTEMPTS = 3


@pytest.fixture(scope="module")
def digests(cluster: Cluster) -> list[dict[int, str]]:
    """Return the digests of the parameters without the agent and with it, after sixty steps on two hosts."""
    return [_digests(cluster, agent=agent) for agent in (False, True)]


def _digests(cluster: Cluster, *, agent: bool) -> dict[int, str]:
    """Train, once more where torch has aborted; what aborts each time is a failure."""
    codes, said = list[int](), list[str]()
    for attempt in range(ATTEMPTS):
        cluster.reset()
        job = Job(cluster, 1, agent=agent, port=29400 + 2 * attempt + agent).start_by_hand(STEPS)
        codes, said = job.wait_for_end(), [job.said(host) for host in cluster.hosts]
        found = job.digests()
        for host in cluster.hosts:
            (cluster.shared / f"out-{host.name}").unlink()
        if ABORTED not in codes:
            break
    assert codes == [0, 0], f"{'with' if agent else 'without'} the agent: {said}"
    return found


def test_the_parameters_are_the_same_bit_by_bit(digests: list[dict[int, str]]) -> None:
    plain, observed = digests
    assert len(plain) == len(set(plain)) == 2
    assert plain == observed


@pytest.mark.usefixtures("digests")
def test_what_ends_well_ends_on_both_hosts(cluster: Cluster) -> None:
    """A training that ends by itself is finished, on both hosts, and no process of ours stays."""
    hosts = cluster.hosts
    assert all(len(runs(host)) == 1 for host in hosts)
    until(lambda: [told["state"] for told in on_all(hosts, status)] == ["finished"] * 2, "both say finished")
    for host in hosts:
        until(partial(_is_clean, host), f"nothing of ours is left on {host.name}: {host.left()}")


def _is_clean(host: Host) -> bool:
    return not host.left("ddptop")

"""Training over two hosts with and without ddptop."""

from __future__ import annotations

from functools import partial

from support.cluster import Cluster, Host
from support.cluster.jobs import Job, on_all, runs, status
from support.harness import until

STEPS = "60"
ABORTED = 134
"""Exit code, by the shell, of a rank that torch aborts after its script has ended: rarely, and without ddptop too."""
ATTEMPTS = 3


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


def test_the_parameters_are_the_same_bit_by_bit_and_nothing_stays(cluster: Cluster) -> None:
    """After sixty steps; a training that ends by itself is finished on both hosts, and no process of ours stays."""
    plain, observed = (_digests(cluster, agent=agent) for agent in (False, True))
    assert len(plain) == len(set(plain)) == 2
    assert plain == observed
    hosts = cluster.hosts
    assert all(len(runs(host)) == 1 for host in hosts)
    until(lambda: [told["state"] for told in on_all(hosts, status)] == ["finished"] * 2, "both say finished")
    for host in hosts:
        until(partial(_is_clean, host), f"nothing of ours is left on {host.name}: {host.left()}")


def _is_clean(host: Host) -> bool:
    return not host.left("ddptop")

"""Training over two hosts with and without ddptop."""

from __future__ import annotations

from support.cluster import Cluster, Host
from support.cluster.jobs import Job, runs

STEPS = "60"


def test_the_parameters_are_the_same_bit_by_bit(cluster: Cluster, hosts: tuple[Host, ...]) -> None:
    """After sixty steps on two hosts, with the agent and without."""
    found = []
    for agent in (False, True):
        job = Job(cluster, 1, agent=agent, port=29400 + agent).start_by_hand(STEPS)
        codes = job.wait_for_end()
        assert codes == [0, 0], [job.said(host) for host in hosts]
        found.append(job.digests())
        for host in hosts:
            (cluster.shared / f"out-{host.name}").unlink()
    plain, observed = found
    assert len(plain) == len(set(plain)) == 2
    assert plain == observed
    assert all(len(runs(host)) == 1 for host in hosts)

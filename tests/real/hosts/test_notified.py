"""A run on two hosts with a notifier on each: one of them tells, whichever host is still heard."""

from __future__ import annotations

import json
from typing import Any

from support.cluster import Cluster, Host
from support.cluster.jobs import Job, on_all, run_of, status
from support.harness import until

NAMED_S = 90.0


def told(host: Host) -> list[dict[str, Any]]:
    """Return the messages that the notifier of a host has sent."""
    file = host.shared / f"told-{host.name}"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_one_host_tells(cluster: Cluster) -> None:
    """That the other one is not heard, each of the two where they are apart; the end is told by the host of rank 0."""
    first, second = cluster.hosts
    job = Job(cluster, 1).start()
    job.wait_for_first_step()
    name = run_of(first)
    assert run_of(second) == name
    # A host that was never heard is not missed.
    until(lambda: not any(status(host, name)["unlinked"] for host in cluster.hosts), "the link")
    done = on_all(
        cluster.hosts,
        lambda host: host.ddptop("notify", name, "--to", f"exec:tee -a {host.shared / f'told-{host.name}'}"),
    )
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    second.cut()
    until(lambda: [each for each in told(first) if each["class"] == "host"], "the word on node2", NAMED_S)
    (message,) = told(first)
    assert (message["where"], message["ranks"], message["resolved"]) == ("node2", [1], False)
    second.mend()
    until(lambda: [each for each in told(first) if each["class"] == "host" and each["resolved"]], "its return", NAMED_S)
    assert first.ddptop("kill", name).returncode == 0
    until(lambda: [each for each in told(first) if each["kind"] == "end"], "the end", NAMED_S)
    assert not [each for each in told(second) if each["kind"] == "end"]

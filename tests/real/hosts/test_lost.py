"""Hosts and observers of a training on two hosts that are gone from one moment to the next."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from support.cluster import Cluster, Host
from support.cluster.jobs import Job, events, on_all, runs, status
from support.harness import starved_s, until

from ddptop.agent.run import hosts as known

TOLD_S = 5.0
"""Seconds after which the loss of a host is told at the latest."""


def _heard(told: dict[str, Any]) -> set[int]:
    return {rank["rank"] for rank in told.get("ranks", []) if rank["step"] and rank["state"] == "running"}


def _both_show_both(hosts: tuple[Host, ...]) -> None:
    until(lambda: all(_heard(told) == {0, 1} for told in on_all(hosts, status)), "both show all ranks")


def _words(host: Host) -> str:
    return host.ask("status").stdout + "\n".join(each["text"] for each in events(host))


def test_an_observer_that_is_killed_is_replaced_and_a_host_that_is_killed_is_named(
    cluster: Cluster, hosts: tuple[Host, ...]
) -> None:
    """`kill -9` of each host's observer, one after the other: the training goes on, and both show all ranks again.

    Then all processes of the host of rank 0, which is node2, are killed at once: with its observer goes what all hosts
    are shown by, and within five seconds the other one names it and its rank.  The training fails with it, and that
    host is the cause.
    """
    job = Job(cluster, 1).start_by_hand(turned=True)
    job.wait_for_first_step()
    _both_show_both(hosts)
    heads = [known.read_listen(runs(host)[0], known.LISTEN) for host in hosts]
    assert [head and head.host for head in heads] == [None, "node2"]
    for host in hosts:
        (pid,) = (pid for pid, words in host.processes().items() if "observer" in words and "ddptop" in words)
        host.run(["kill", "-9", str(pid)], check=True)
        job.goes_on()
        _both_show_both(hosts)
    other, killed, starved = hosts[0], time.monotonic(), starved_s()
    cluster.kill_host(2)
    while True:
        asked = time.monotonic()
        told = status(other)
        named = re.search(r"node2.*\brank 0\b|rank 0\b.*node2", _words(other))
        if named and told["ranks"][0]["state"] not in ("running", "starting"):
            break
        assert asked < killed + 60, f"{json.dumps(told)}\n{_words(other)}"
    assert asked < killed + TOLD_S + starved_s() - starved
    until(lambda: status(other)["state"] == "failed", "the run has failed")
    assert "node2" in (status(other)["cause"] or ""), status(other)["cause"]

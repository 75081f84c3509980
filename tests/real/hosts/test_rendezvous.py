"""Hosts that have no store in common, or one that dies, and two trainings of one name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from support.cluster import Cluster, Host
from support.cluster.jobs import Job, a_store, on_all, runs, status
from support.harness import until


def _shown(told: dict[str, Any]) -> dict[int, str]:
    return {rank["rank"]: rank["host"] for rank in told.get("ranks", []) if rank["step"]}


def _both_show_both(hosts: Sequence[Host]) -> None:
    until(
        lambda: all(_shown(told) == {0: "node1", 1: "node2"} for told in on_all(hosts, status)), "both show both ranks"
    )


NO_STORE = '''
"""Trains over a file in the shared folder: there is no store that others could use."""
import os, sys, torch.distributed as dist
first = dist.init_process_group
dist.init_process_group = lambda backend: first(
    backend, init_method=f"file://{os.getcwd()}/rendezvous", rank=int(os.environ["RANK"]), world_size=2
)
exec(compile(open("train.py").read(), "train.py", "exec"))
'''


def test_a_shared_key_file_links_hosts_without_a_store(cluster: Cluster, hosts: tuple[Host, ...]) -> None:
    """A key file at the same path and the address of the head, and both show both ranks."""
    key = cluster.shared / "key"
    key.write_bytes(os.urandom(48))
    key.chmod(0o600)
    job = Job(cluster, 1)
    (job.folder / "without.py").write_text(NO_STORE)
    job.prepare()
    for rank, host in enumerate(hosts):
        position = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
        told = {"DDPTOP_KEY_FILE": str(key), "DDPTOP_LISTEN": "node1:4711"}
        job.popen(host, [sys.executable, "-m", "ddptop.agent", "without.py"], {**position, **told})
    job.wait_for_first_step()
    _both_show_both(hosts)


def test_a_store_that_dies_changes_nothing_and_two_trainings_of_one_name_stay_apart(
    cluster: Cluster, hosts: tuple[Host, ...]
) -> None:
    """The store is killed once both show all ranks: the training goes on, and both go on to show all.

    Then the same script in the same folder is started once more: two runs with names of their own, each with its two
    ranks.
    """
    job = Job(cluster, 1)
    store = a_store(hosts[0])
    job.processes.append(store)
    job.start_by_hand(kept=True)
    job.wait_for_first_step()
    _both_show_both(hosts)
    store.kill()
    store.wait()
    job.goes_on()
    _both_show_both(hosts)
    for path in job.folder.glob("first-*"):
        path.unlink()
    # It writes over what the first has counted.
    second = Job(cluster, 1, port=29500).start_by_hand()
    second.wait_for_first_step()

    def apart() -> bool:
        names = [[path.name for path in runs(host)] for host in hosts]
        if names[0] != names[1] or len(set(names[0])) != 2:
            return False
        told = [status(host, name) for host in hosts for name in names[0]]
        return all(_shown(each) == {0: "node1", 1: "node2"} for each in told)

    until(apart, "both hosts show two runs of two ranks")

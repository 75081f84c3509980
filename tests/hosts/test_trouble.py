"""What goes wrong between hosts: it is told in one clear line each, and the training goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster, Host
from support.cluster.jobs import Job, a_store, events, on_all, run_of, runs, status
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.run import hosts as known


def _shown(told: dict[str, Any]) -> dict[int, str]:
    return {rank["rank"]: rank["host"] for rank in told.get("ranks", []) if rank["step"]}


def _both_show_both(hosts: Sequence[Host]) -> None:
    until(
        lambda: all(_shown(told) == {0: "node1", 1: "node2"} for told in on_all(hosts, status)), "both show both ranks"
    )


def _lines(host: Host, run: str, *words: str) -> list[str]:
    """Return the texts of warnings and errors that have all words."""
    told = (each["text"] for each in events(host, run) if each["level"] != "info")
    return [text for text in told if all(word in text for word in words)]


NO_STORE = '''
"""Trains over a file in the shared folder: there is no store that others could use."""
import os, sys, torch.distributed as dist
first = dist.init_process_group
dist.init_process_group = lambda backend: first(
    backend, init_method=f"file://{os.getcwd()}/rendezvous", rank=int(os.environ["RANK"]), world_size=2
)
exec(compile(open("train.py").read(), "train.py", "exec"))
'''


def _without_a_store(cluster: Cluster, env: Sequence[dict[str, str]]) -> Job:
    job = Job(cluster, 1)
    (job.folder / "without.py").write_text(NO_STORE)
    job.prepare()
    for rank, (host, more) in enumerate(zip(cluster.hosts, env, strict=True)):
        standing = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
        job.popen(host, [sys.executable, "-m", "ddptop.agent", "without.py"], {**standing, **more})
    job.wait_for_first_step()
    return job


def test_without_store_and_key_a_host_says_that_it_shows_itself_alone(
    cluster: Cluster, hosts: tuple[Host, ...]
) -> None:
    """A training over a file, where node1 has no key file: it shows its own rank and says which it cannot hear.

    Nobody listens at the address that node2 was given with its key: that is told once there.
    """
    key = _key(cluster, "key")
    job = _without_a_store(cluster, ({}, {"DDPTOP_KEY_FILE": str(key), "DDPTOP_LISTEN": "node1:4711"}))
    said = str(until(partial(_not_linked, hosts[0]), "node1 says that it is not linked"))
    assert "rank 1" in said
    assert "not linked (its ranks do not meet in a TCPStore, and there is no DDPTOP_KEY_FILE)" in said
    name = run_of(hosts[1])
    until(lambda: _lines(hosts[1], name, "4711"), "it is told")
    job.goes_on()
    job.goes_on()
    assert len(_lines(hosts[1], name, "4711")) == 1


def _key(cluster: Cluster, name: str, size: int = 48, mode: int = 0o600) -> Path:
    path = cluster.shared / name
    path.write_bytes(os.urandom(size))
    path.chmod(mode)
    return path


def _says(host: Host, what: str) -> bool:
    return what in (_not_linked(host) or "")


def _not_linked(host: Host) -> str | None:
    text = host.ask("status").stdout
    return text if "not linked" in text else None


def test_a_shared_key_file_links_hosts_without_a_store(cluster: Cluster, hosts: tuple[Host, ...]) -> None:
    """A key file at the same path and the address of the head, and both show both ranks."""
    told = {"DDPTOP_KEY_FILE": str(_key(cluster, "key")), "DDPTOP_LISTEN": "node1:4711"}
    _without_a_store(cluster, (told, told))
    _both_show_both(hosts)


def test_a_key_file_that_cannot_be_used_is_told_with_the_reason(cluster: Cluster, hosts: tuple[Host, ...]) -> None:
    """Others can read that of one host, that of the other is too short: one line each, and the training goes on."""
    keys = [_key(cluster, "open", mode=0o644), _key(cluster, "short", 16)]
    first, second = ({"DDPTOP_KEY_FILE": str(key), "DDPTOP_LISTEN": "node1:4711"} for key in keys)
    job = _without_a_store(cluster, (first, second))
    for host, reason in zip(hosts, (f"{keys[0]}: others can read it", f"{keys[1]}: 16 bytes are too few"), strict=True):
        name = run_of(host)
        until(partial(_lines, host, name, reason), f"an event: {reason}")
        assert len(_lines(host, name, reason)) == 1
        until(partial(_says, host, f"not linked ({reason}"), reason)
    job.goes_on()


OTHER = """
import sys, msgspec, zmq
from pathlib import Path
from ddptop.agent import wire
from ddptop.agent.run import hosts

run, world, protocol, name = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
listen = hosts.read_listen(run, hosts.HEAD)
dealer = zmq.Context().socket(zmq.DEALER)
dealer.linger = 0
dealer.curve_serverkey = listen.server.encode()
dealer.curve_publickey, dealer.curve_secretkey = listen.client_public.encode(), listen.client_secret.encode()
dealer.connect(listen.addresses[0])
name = listen.run if name == "same" else name
hello = wire.HostHello(protocol, "9.9", name, listen.run_id, "node3", world, 0, (0, 1))
dealer.send_multipart([b"H", wire.encode(hello)])
while dealer.poll(60_000):
    kind, *frames = dealer.recv_multipart()
    if kind == b"X":
        print(frames[0].decode())
        break
"""


@pytest.mark.parametrize(
    ("world", "protocol", "name"),
    [(7, wire.PROTOCOL, "same"), (2, wire.PROTOCOL + 1, "same"), (2, wire.PROTOCOL, "another")],
)
def test_a_host_of_another_world_protocol_or_run_is_refused_with_the_reason(
    job: Job, world: int, protocol: int, name: str
) -> None:
    """Although it has the keys, it gets one line, the run is shown as before, and the training goes on."""
    node1, node2 = job.cluster.hosts
    run = f"/{runs(node2)[0].relative_to(node2.root)}"
    done = node2.python("-c", OTHER, run, str(world), str(protocol), name)
    assert not done.returncode, done.stderr
    assert len(done.stdout.splitlines()) == 1, done.stdout + done.stderr
    job.goes_on()
    _both_show_both((node1, node2))
    assert all(len(told["ranks"]) == 2 for told in on_all(job.cluster.hosts, status))


def test_a_store_that_dies_changes_nothing_for_hosts_that_have_met(job: Job) -> None:
    """The store is killed once both show all ranks: the training goes on, and both go on to show all."""
    store = job.processes[0]
    store.kill()
    store.wait()
    job.goes_on()
    _both_show_both(job.cluster.hosts)


def test_two_trainings_of_one_name_stay_apart(job: Job) -> None:
    """The same script in the same folder twice at once: two runs with names of their own, each with its two ranks."""
    hosts = job.cluster.hosts
    for path in job.folder.glob("first-*"):
        path.unlink()
    # It writes over what the first has counted.
    second = Job(job.cluster, 1, port=29500).start_by_hand()
    second.wait_for_first_step()

    def apart() -> bool:
        names = [[path.name for path in runs(host)] for host in hosts]
        if names[0] != names[1] or len(set(names[0])) != 2:
            return False
        told = [status(host, name) for host in hosts for name in names[0]]
        return all(_shown(each) == {0: "node1", 1: "node2"} for each in told)

    until(apart, "both hosts show two runs of two ranks")


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Job:
    """A training of a rank on each host with a store of its own, for the tests above, which leave it training."""
    cluster.reset()
    job = Job(cluster, 1)
    job.processes.append(a_store(cluster.hosts[0]))
    job.start_by_hand(kept=True)
    job.wait_for_first_step()
    _both_show_both(cluster.hosts)
    assert known.read_listen(runs(cluster.hosts[0])[0], known.LISTEN)
    return job

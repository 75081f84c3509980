"""What the other tests here rely on: that the hosts are hosts, and that nothing is left of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import REPOSITORY, Cluster, Host, missing
from support.harness import started, until

ECHO = """
import socket
listener = socket.create_server(("0.0.0.0", 4000))
open("listens", "w").close()
connection, _ = listener.accept()
while received := connection.recv(100):
    connection.sendall(received)
"""
ASK = """
import socket, sys
connection = socket.create_connection(("node1", 4000), 5)
for line in sys.stdin:
    connection.sendall(line.encode())
    print(connection.recv(100).decode(), end="", flush=True)
"""
HOLD = """
import signal, sys
from support.cluster import Cluster
with Cluster() as cluster:
    cluster.hosts[1].popen(["setsid", "tail", "-f", "/dev/null"])
    print(cluster._folder, *(host.pid for host in cluster.hosts), flush=True)
    signal.pause()
"""


def test_each_host_has_its_own_names_files_and_processes(cluster: Cluster, hosts: tuple[Host, ...]) -> None:
    """A host sees its own name, its own /tmp and its own processes, and the shared folder, which it can write."""
    node1, node2 = hosts
    assert [host.run(["hostname"], check=True).stdout for host in hosts] == ["node1\n", "node2\n"]
    node1.run(["touch", "/tmp/here", "shared"], check=True)
    assert (cluster.shared / "shared").exists()
    assert (node1.root / "tmp/here").exists()
    assert not (node2.root / "tmp/here").exists()
    node1.popen(["tail", "-f", "/dev/null"])
    until(lambda: "tail -f /dev/null" in node1.processes().values(), "it runs")
    assert not node2.processes()
    assert node2.run(["touch", REPOSITORY / "never"]).returncode != 0


def test_a_cut_cable_loses_nothing_that_comes_later(hosts: tuple[Host, ...]) -> None:
    """A connection over a cable that was cut and mended delivers what was sent meanwhile."""
    node1, node2 = hosts
    node1.popen([sys.executable, "-c", ECHO])
    until((node1.shared / "listens").exists, "the server listens")
    client = node2.popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdin is not None
    assert client.stdout is not None

    def send(line: str) -> None:
        assert client.stdin is not None
        client.stdin.write(line)
        client.stdin.flush()

    send("before\n")
    assert client.stdout.readline() == "before\n"
    node2.cut()
    unreachable = "import socket\ntry: socket.create_connection(('node1', 4000), 1)\nexcept OSError: print('no')"
    assert node2.python("-c", unreachable).stdout == "no\n"
    send("meanwhile\n")
    node2.mend()
    assert client.stdout.readline() == "meanwhile\n"


def test_a_signal_reaches_the_command_alone(hosts: tuple[Host, ...]) -> None:
    """`signal` is received by the command, whose exit code comes back."""
    script = "import signal; signal.signal(signal.SIGINT, lambda *_: exit(7)); print(flush=True); signal.pause()"
    process = hosts[0].popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    hosts[0].signal(process, signal.SIGINT)
    assert process.wait() == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_cluster_whose_process_is_ended(number: int) -> None:
    """Ctrl-C as well as a kill of the process that has made a cluster ends all its hosts."""
    if reason := missing():
        pytest.skip(reason)
    path = {"PYTHONPATH": str(REPOSITORY / "tests")}
    with started(sys.executable, "-c", HOLD, stdout=subprocess.PIPE, env={**os.environ, **path}) as holder:
        assert holder.stdout is not None
        folder, *pids = holder.stdout.readline().split()
        holder.send_signal(number)
        holder.communicate()
    until(lambda: not any(Path("/proc", pid).exists() for pid in pids), "the hosts are gone")
    if number == signal.SIGKILL:  # which could not remove what is on the disk
        shutil.rmtree(folder)
    assert not Path(folder).exists()

"""A real Slurm on the hosts of a cluster: munged and slurmd on each, slurmctld on the first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.harness import until

if TYPE_CHECKING:
    from support.cluster import Host

TOOLS: Final = ("munged", "slurmctld", "slurmd", "srun")
_UP_S: Final = 60.0
# `config_overrides`: four CPUs a host, whatever slurmd counts.  cgroup/v1: slurmd 22.05 does not start without such a
# plugin, and this one needs no mount as long as nothing uses it.  KillWait: seconds from SIGTERM to SIGKILL.
_CONFIGURATION: Final = """
ClusterName=tests
SlurmctldHost=node1({first})
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=0
SlurmctldLogFile=/run/slurm/slurmctld.log
StateSaveLocation=/run/slurm/ctld
SlurmdLogFile=/run/slurm/slurmd.log
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmUser=root
{nodes}
PartitionName=all Nodes={names} Default=YES OverSubscribe=FORCE:4
"""


def configure(etc: Path, addresses: Sequence[str]) -> None:
    """Write what the hosts see as /etc/slurm."""
    folder = etc / "slurm"
    folder.mkdir()
    names = [f"node{number}" for number in range(1, len(addresses) + 1)]
    nodes = "\n".join(
        f"NodeName={name} NodeAddr={address} CPUs=4" for name, address in zip(names, addresses, strict=True)
    )
    text = _CONFIGURATION.format(first=addresses[0], nodes=nodes, names=",".join(names))
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))


def start(hosts: Sequence[Host]) -> None:
    """Start the daemons; return once all hosts are idle."""
    for host in hosts:
        _run(host, "mkdir", "-p", "/run/slurm/ctld", "/run/slurm/spool", "/run/munge")
        paths = "--socket=/run/munge/munge.socket.2", "--pid-file=/run/munge/munged.pid"
        files = "--key-file=/etc/slurm/munge.key", "--log-file=/run/munge/munged.log", "--seed-file=/run/munge/seed"
        _run(host, "munged", *files, *paths)
    _run(hosts[0], "slurmctld")
    for host in hosts:
        _run(host, "slurmd", "-N", host.name)

    def idle() -> bool:
        return hosts[0].run(["sinfo", "-h", "-o", "%D %t"], cwd="/").stdout.strip() == f"{len(hosts)} idle"

    until(idle, "Slurm has idle hosts", _UP_S)


def _run(host: Host, *arguments: str) -> None:
    done = host.run(arguments, cwd="/")
    assert not done.returncode, f"{host.name}: {' '.join(arguments)}: {done.stderr}"

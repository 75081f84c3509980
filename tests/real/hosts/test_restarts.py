"""A training on two hosts whose group is started again: by torchrun after a failure, or with fewer hosts.

Of several hosts torchrun restarts all ranks, those of each host by a torchrun of its own.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from support.cluster import Cluster, Host
from support.cluster.jobs import COLD_S, Job, events, on_all, run_of, runs, status
from support.harness import until

pytestmark = pytest.mark.timeout(900)

QUICK: Final = ("--monitor-interval", "0.2")
ELASTIC: Final = (
    *("--nnodes", "1:2", "--max-restarts", "3"),
    *("--rdzv-conf", "last_call_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=6"),
)
OWN_STORE: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Each start of the group gets a store of its own. In the one that torchrun shares gloo finds the addresses of the last
start, and fails to connect once or twice; each failure costs another start."""
RECORDED: Final = """
import json, sys
from pathlib import Path
from ddptop.agent.record.recording import read_steps
print(json.dumps(sorted({(message.generation, message.rank) for message in read_steps(Path(sys.argv[1]))})))
"""


def _places(told: dict[str, Any]) -> dict[int, str]:
    ranks = told.get("ranks", [])
    return {rank["rank"]: rank["host"] for rank in ranks if rank["step"] and rank["state"] == "running"}


def _restarts(host: Host) -> set[int]:
    text = host.ask("ps", "--json").stdout
    found = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    return {run["restarts"] for run in found}


def _all_show(hosts: Sequence[Host], places: dict[int, str], restarts: int = 0) -> None:
    if restarts:
        # The group may fail to connect in the first of them, and torchrun restarts it once more.
        until(
            lambda: all(min(told, default=0) >= restarts for told in on_all(hosts, _restarts)),
            f"{restarts} restarts are told",
            COLD_S,
        )
    until(lambda: all(_places(told) == places for told in on_all(hosts, status)), f"all hosts show {places}", COLD_S)


def _started_again(job: Job, ranks: Sequence[int], since: float) -> None:
    paths = [job.folder / f"first-{rank}" for rank in ranks]
    until(lambda: all(path.stat().st_mtime > since for path in paths), "the group is started again", COLD_S)


def _firsts(job: Job) -> float:
    return max(path.stat().st_mtime for path in Path(job.folder).glob("first-*"))


def test_a_group_that_torchrun_restarts_is_shown_and_told_as_before(cluster: Cluster, hosts: tuple[Host, ...]) -> None:
    """A rank of node2 fails once: both hosts show the next generation, hold it at one step, and record both."""
    job = Job(cluster, 1)
    job.prepare()
    script = job.folder / "train.py"
    once = 'Path("raise").unlink()\n            raise RuntimeError("told to fail")'
    script.write_text(script.read_text().replace('raise RuntimeError("told to fail")', once, 1))
    job.prepare = lambda: None  # type: ignore[method-assign]
    job.start(options=(*QUICK, "--max-restarts", "4"), env=OWN_STORE)
    job.wait_for_first_step()
    both = {0: "node1", 1: "node2"}
    _all_show(hosts, both)
    before = _firsts(job)
    (job.folder / "raise").write_text("1")
    _started_again(job, (0, 1), before)
    _all_show(hosts, both, restarts=1)
    paused = hosts[1].ddptop("pause")
    assert not paused.returncode, paused.stderr
    assert len(set(job.counts())) == 1, paused.stdout
    resumed = hosts[0].ddptop("resume")
    assert not resumed.returncode, resumed.stderr
    job.goes_on()
    (job.folder / "slow").write_text("1 120")
    until(
        lambda: all((told["verdict"] or {}).get("rank") == 1 for told in on_all(hosts, status)), "it is judged", COLD_S
    )
    told = [[each["text"] for each in events(host) if each["text"].startswith("restart 1")] for host in hosts]
    assert len(told[0]) == 1, told
    assert told[0] == told[1]
    assert re.search("rank 1.*told to fail", told[0][0])
    (job.folder / "stop").touch()
    assert job.wait_for_end() == [0, 0]
    until(lambda: {told["state"] for told in on_all(hosts, status)} == {"finished"}, "both say finished")
    path = f"/{runs(hosts[0])[0].relative_to(hosts[0].root)}/run.db"
    found = json.loads(hosts[0].python("-c", RECORDED, path, check=True).stdout)
    last = max(generation for generation, _ in found)
    assert last >= 1
    assert {(0, 0), (0, 1), (last, 0), (last, 1)} <= {tuple(each) for each in found}


def test_an_elastic_training_that_loses_a_host_goes_on_as_the_same_run(
    cluster: Cluster, hosts: tuple[Host, ...]
) -> None:
    """On node1 torchrun goes on with its own rank: the run has this one alone then, and is shown as one of one host.

    A machine that takes the place of the lost one has seen nothing of the starts before: it is shown all the same, on
    both, and nothing is told to have been started again that was not.
    """
    job = Job(cluster, 1).start(options=(*QUICK, *ELASTIC), env=OWN_STORE)
    job.wait_for_first_step()
    _all_show(hosts, {0: "node1", 1: "node2"})
    name, before = run_of(hosts[0]), _firsts(job)
    hosts[1].kill_all()
    shutil.rmtree(runs(hosts[1])[0])
    _started_again(job, (0,), before)
    _all_show(hosts[:1], {0: "node1"}, restarts=1)
    assert run_of(hosts[0]) == name
    assert len(status(hosts[0])["ranks"]) == 1
    text = "\n".join(each["text"] for each in events(hosts[0]))
    assert "its world is 1, and was 2" in text
    assert not hosts[0].ddptop("pause").returncode
    assert not hosts[0].ddptop("resume").returncode
    before = _firsts(job)
    job.start_on(hosts[1], options=(*QUICK, *ELASTIC), env=OWN_STORE)
    _started_again(job, (0, 1), before)
    _all_show(hosts, {0: "node1", 1: "node2"}, restarts=2)
    told = [
        [each["text"] for each in events(host) if re.match("restart|the group was", each["text"])] for host in hosts
    ]
    assert "its world is 2, and was 1" in told[0][-1]
    assert set(told[1]) <= set(told[0])
    paused = hosts[1].ddptop("pause")
    assert not paused.returncode, paused.stderr
    assert len(set(job.counts())) == 1, paused.stdout
    resumed = hosts[0].ddptop("resume")
    assert not resumed.returncode, resumed.stderr
    job.goes_on()

"""One training of four ranks on two hosts: what both say of it, what may be done to it, and how it is ended.

The tests share the run, and the last of them ends it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.cluster import Cluster, Host
from support.cluster.jobs import CYCLES, Job, accusations, events, on_all, run_of, runs, status
from support.harness import starved_s, until

from ddptop.agent.run.switches import recording

CYCLES_A_HOST = 5
SEEN_S = 5.0
"""Seconds after the first step within which all ranks are shown on all hosts."""
CUT_S = 10.0
NAMED_S = 60.0
GONE_S = 15.0
"""Seconds after a kill in which observers and launchers have gone, too."""
SLOW_MS = 120
UNPUBLISHED = 20
"""Steps that a rank may have begun, on a machine with much to do, since it has published some."""


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Job:
    """A training on both hosts, by the command of the manual."""
    # Where steps are short or the machine is slow, ranks record one step in so many: here each is to be found again.
    return Job(cluster, marked=True).start(env={recording.VARIABLE: "1"})


def _complete(told: dict[str, Any]) -> bool:
    ranks = told.get("ranks", [])
    places = {rank["rank"]: rank["host"] for rank in ranks if rank["step"]}
    return places == {0: "node1", 1: "node1", 2: "node2", 3: "node2"}


def test_both_hosts_show_all_ranks_and_name_the_slow_one_and_the_leak_in_the_same_words(job: Job) -> None:
    """Within five seconds of the first step every rank is told with its step and its host, under one name of the run.

    Rank 3, on node2, is made slow: it is named, with its host and its line, and both hosts say the same, byte for
    byte.  It is profiled with an ordinary rank, whichever host asks: one trace of the same steps, on one clock.  Where
    it leaks, the line and what holds it are named; the census is kept at the head.
    """
    first = job.wait_for_first_step()
    starved = starved_s()

    def seen(host: Any) -> tuple[float, str]:
        while True:
            asked = time.time()
            told = status(host)
            if _complete(told):
                return asked, told["run"]
            assert asked < first + 12 * SEEN_S, f"{host.name}: {json.dumps(told)}"

    hosts = job.cluster.hosts
    shown = on_all(hosts, seen)
    assert [max(0.0, asked - first) for asked, _ in shown] == pytest.approx([0, 0], abs=SEEN_S + starved_s() - starved)
    assert len({name for _, name in shown}) == 1
    assert [run_of(host) for host in hosts] == [name for _, name in shown]
    with slow(job, 3):

        def same() -> bool:
            told = [each["verdict"] for each in on_all(hosts, status)]
            named = all(verdict and verdict["rank"] == 3 and verdict["line"] for verdict in told)
            # It is judged anew each second: a second may pass between the two.
            return named and json.dumps(told[0]) == json.dumps(told[1])

        until(same, "the same verdict about rank 3 on both hosts", NAMED_S)
        lines = [host.ask("status").stdout for host in hosts]
        profile(job)
    script = (job.folder / "train.py").read_text().splitlines()
    slept = next(at for at, text in enumerate(script, 1) if "time.sleep(slow_s" in text)
    for text in lines:
        said = rf"rank 3 \(node2\) holds the group back by .* train\.py:{slept} <module> \(\d+ of \d+ ms\)"
        assert re.search(said, text), text
    until(lambda: all(told["verdict"] is None for told in on_all(hosts, status)), "it is over", NAMED_S)
    look_for_the_leak(job)


def profile(job: Job) -> None:
    """Profile the accused rank from both hosts; the trace is at the head."""
    node1, node2 = job.cluster.hosts
    far = node2.run(["ddptop", "profile", run_of(node2), "--ranks", "culprit"])
    assert "on the host of rank 0" in far.stderr, far.stdout + far.stderr
    # The hosts' own folders are not seen from here.
    trace = job.folder / "trace.json.gz"
    done = node1.run(["ddptop", "profile", run_of(node1), "--ranks", "all", "--json", "--out", str(trace)])
    assert not done.returncode, done.stderr
    made = json.loads(done.stdout)
    assert (made["ranks"], made["culprit"]) == ([0, 1, 2, 3], 3)
    listed = json.loads(node1.run(["ddptop", "profile", run_of(node1), "--list", "--json"], check=True).stdout)
    assert [each["culprit"] for each in listed] == [3, 3]
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    titles = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    named = [title.split(" \u00b1")[0] for title in titles.values()]
    assert named == [f"rank {rank} \u00b7 node{rank // 2 + 1}" for rank in range(4)]
    steps = {
        pid: [(each["name"], each["ts"]) for each in events if each["pid"] == pid and each.get("cat") == "ddptop step"]
        for pid in titles
    }
    one, *others = steps.values()
    assert len(one) == 3
    for other in others:
        assert [name for name, _ in one] == [name for name, _ in other]
        # Ranks leave a collective together, near the end of a step: by one clock the next one begins at the same time.
        for (_, here), (_, there) in zip(one[1:], other[1:], strict=True):
            assert abs(here - there) < SLOW_MS * 1e3 / 2


def look_for_the_leak(job: Job) -> None:
    """Have rank 3 leak, and look at its memory from both hosts, and at that of a healthy rank over the same steps."""
    node1, node2 = job.cluster.hosts
    before = job.counts()[3]
    (job.folder / "leak").write_text("3")
    try:
        # The rank looks for the file at every fifth step.
        until(lambda: job.counts()[3] > before + 6, "it leaks")
        done = node1.run(["ddptop", "memory", run_of(node1), "--ranks", "0,3", "--json"])
    finally:
        (job.folder / "leak").unlink()
    assert not done.returncode, done.stderr
    grown, other = json.loads(done.stdout)["ranks"]
    assert (grown["rank"], other["rank"]) == (3, 0), "the one that grows comes first"
    script = (job.folder / "train.py").read_text().splitlines()
    kept = next(at for at, text in enumerate(script, 1) if "kept.append(" in text)
    assert (grown["host"], other["host"]) == ("node2", "node1")
    said = f"train.py:{kept} made 3 more float32[128, 128] in 3 steps (192 KiB), held by list `kept` of train.py"
    assert grown["cause"] == said
    assert f"train.py:{kept}" not in other["cause"]
    far = node2.run(["ddptop", "memory", run_of(node2), "--ranks", "3"])
    assert (far.returncode, "on the host of rank 0" in far.stderr) == (1, True), far.stdout + far.stderr
    job.goes_on()


@contextlib.contextmanager
def slow(job: Job, rank: int) -> Iterator[None]:
    """Make a rank slow for the block."""
    (job.folder / "slow").write_text(f"{rank} {SLOW_MS}")
    try:
        yield
    finally:
        (job.folder / "slow").unlink()


@contextlib.contextmanager
def cut(host: Host) -> Iterator[None]:
    """Cut the cable to a host for the block."""
    host.cut()
    try:
        yield
    finally:
        host.mend()


def act_by_verbs(job: Job, node2: Host) -> None:
    """Pause, step and resume by the command line on the host without rank 0; both hosts tell what was done."""
    paused = node2.ddptop("pause")
    assert not paused.returncode, paused.stderr
    before = job.counts()
    assert len(set(before)) == 1, f"{paused.stdout}: {before}"
    stepped = node2.ddptop("step", "3")
    assert not stepped.returncode, stepped.stderr
    assert job.counts() == [before[0] + 3] * job.world
    resumed = node2.ddptop("resume")
    assert not resumed.returncode, resumed.stderr
    job.goes_on()

    def said() -> bool:
        # Those of the cycles stand in front.
        actions = [[each["action"] for each in events(host) if each["action"]][-3:] for host in job.cluster.hosts]
        return actions == [["pause", "step 3", "resume"]] * 2

    until(said, "both hosts tell what was done")


def test_actions_are_for_both_hosts_or_none_and_a_cut_cable_accuses_nobody(job: Job) -> None:
    """From either host all ranks are held at one step, go the steps that were asked for, and go on.

    With the cable cut for ten seconds a resume is refused, and no rank begins a step; each host names the silent ranks
    of the other, and nothing has failed.  Mended, all goes on, and no verdict has named anybody.
    """
    for host in job.cluster.hosts:
        arguments = (run_of(host), str(CYCLES_A_HOST), host.name, job.folder, str(job.world))
        done = host.python(CYCLES, *arguments)
        assert not done.returncode, f"{host.name}: {done.stderr}"
        assert len(done.stdout.split()) == CYCLES_A_HOST
    node1, node2 = job.cluster.hosts
    run = run_of(node2)
    act_by_verbs(job, node2)
    verdicts = [accusations(events(host)) for host in job.cluster.hosts]
    assert node2.run(["ddptop", "pause", run], check=True).stdout.startswith(f"{run}: held at step ")
    held = job.counts()
    assert len(set(held)) == 1
    with cut(node2):
        until(lambda: "all ranks or none" in node1.run(["ddptop", "resume", run]).stderr, "the head misses node2")
        assert job.counts() == held
    until(lambda: node1.run(["ddptop", "resume", run]).returncode == 0, "a resume of both hosts")
    job.goes_on()
    until(lambda: [told["state"] for told in on_all(job.cluster.hosts, status)] == ["running"] * 2, "both say so")
    with cut(node2):
        begun = time.monotonic()
        told: list[dict[str, Any]] = []
        while time.monotonic() < begun + CUT_S:
            told = on_all(job.cluster.hosts, status)
            assert not [each["verdict"] for each in told if each["verdict"] and each["verdict"]["rank"] is not None]
            # On a machine with much to do the ranks of the host itself may be heard too late for a look.
            assert {each["state"] for each in told} <= {"running", "stalled", "silent"}
    states = [{rank["rank"]: rank["state"] for rank in each["ranks"]} for each in told]
    assert [states[0][rank] for rank in (2, 3)] == ["silent", "silent"], states
    assert [states[1][rank] for rank in (0, 1)] == ["silent", "silent"], states
    job.goes_on()
    until(lambda: all(_complete(each) for each in on_all(job.cluster.hosts, status)), "all are heard again")
    assert [accusations(events(host)) for host in job.cluster.hosts] == verdicts
    assert re.search("node2.*2-3", "\n".join(each["text"] for each in events(node1)))
    assert re.search("node1.*is not heard.*2-3", "\n".join(each["text"] for each in events(node2)))


def _empty(host: Host) -> bool:
    return not host.left()


RECORDED = """
import json, sys
from pathlib import Path
from ddptop.agent.record.recording import read_steps
found = {}
for message in read_steps(Path(sys.argv[1])):
    found.setdefault(message.rank, []).extend(step.step for step in message.steps)
print(json.dumps(found))
"""


def test_a_kill_on_one_host_leaves_nothing_on_any_but_a_whole_record(job: Job) -> None:
    """Asked for on node2, it ends all ranks, launchers and helpers on both hosts, and counts them.

    Nothing was lost from the record, not even what happened while the cable was cut: the host of rank 0 has the steps
    of all ranks, the other one those of its own.
    """
    job.goes_on()
    done = job.cluster.hosts[1].ddptop("kill", run_of(job.cluster.hosts[1]), timeout=60)
    assert re.search(r"4 ranks.* on 2 hosts ended, 0 left", done.stdout + done.stderr), done
    assert not done.returncode
    for host in job.cluster.hosts:
        assert not host.left("train.py"), f"{host.name}, at once: {host.left()}"
    for host in job.cluster.hosts:
        until(partial(_empty, host), f"nothing is left on {host.name}: {host.left()}", GONE_S)
    told = on_all(job.cluster.hosts, status)
    assert [each["state"] for each in told] == ["killed", "killed"]
    listed = on_all(job.cluster.hosts, events)
    texts = [[f"{each['at']:.3f} {each['text']}" for each in events] for events in listed]
    assert texts[0] == texts[1], "the same events on both hosts"
    counts, published = job.counts(), job.published()
    for host, ranks in zip(job.cluster.hosts, ((0, 1, 2, 3), (2, 3)), strict=True):
        (run,) = runs(host)
        database = f"/{run.relative_to(host.root)}/run.db"
        found = json.loads(host.python("-c", RECORDED, database, check=True).stdout)
        for rank in ranks:
            steps, last = found[str(rank)], published[rank]
            assert steps == sorted(set(steps)), f"{host.name}, rank {rank}: not each once, in order"
            # What a rank has not published yet goes with its process: the steps since the last tenth of a second.
            missing = sorted(set(range(1, last + 1)) - set(steps))
            assert not missing, f"{host.name}, rank {rank}, of {last} published: {len(missing)}, such as {missing[:20]}"
            assert last > counts[rank] - UNPUBLISHED, f"rank {rank}: {last} published of {counts[rank]}"

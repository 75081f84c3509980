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

from ddptop.agent.run import hosts as known
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


def test_both_hosts_show_all_ranks_within_five_seconds_of_the_first_step(job: Job) -> None:
    """Every rank is told with its step and its host, on both hosts, under the same name of the run."""
    first = job.wait_for_first_step()
    starved = starved_s()

    def seen(host: Any) -> tuple[float, str]:
        while True:
            asked = time.time()
            told = status(host)
            if _complete(told):
                return asked, told["run"]
            assert asked < first + 12 * SEEN_S, f"{host.name}: {json.dumps(told)}"

    told = on_all(job.cluster.hosts, seen)
    assert [max(0.0, asked - first) for asked, _ in told] == pytest.approx([0, 0], abs=SEEN_S + starved_s() - starved)
    assert len({name for _, name in told}) == 1
    assert [run_of(host) for host in job.cluster.hosts] == [name for _, name in told]


def test_a_slow_rank_is_named_on_both_hosts_in_the_same_words(job: Job) -> None:
    """Rank 3, on node2, is named, with its host and its line; both hosts say the same, byte for byte.

    It is profiled with an ordinary rank, whichever host asks: one trace of the same steps, on one clock.
    """
    with slow(job, 3):

        def same() -> bool:
            told = [each["verdict"] for each in on_all(job.cluster.hosts, status)]
            named = all(verdict and verdict["rank"] == 3 and verdict["line"] for verdict in told)
            # It is judged anew each second: a second may pass between the two.
            return named and json.dumps(told[0]) == json.dumps(told[1])

        until(same, "the same verdict about rank 3 on both hosts", NAMED_S)
        lines = [host.ask("status").stdout for host in job.cluster.hosts]
        profile(job)
    script = (job.folder / "train.py").read_text().splitlines()
    slept = next(at for at, text in enumerate(script, 1) if "time.sleep(slow_s" in text)
    for text in lines:
        said = rf"rank 3 \(node2\) holds the group back by .* train\.py:{slept} <module> \(\d+ of \d+ ms\)"
        assert re.search(said, text), text
    until(lambda: all(told["verdict"] is None for told in on_all(job.cluster.hosts, status)), "it is over", NAMED_S)


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


def test_a_leak_of_the_other_host_is_named(job: Job) -> None:
    """By its line and its host, over the same steps as a healthy rank; the census is kept at the head."""
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


def test_the_run_is_paused_stepped_and_resumed_from_either_host(job: Job) -> None:
    """Each time all ranks are held at one step, go the steps that were asked for, and go on."""
    for host in job.cluster.hosts:
        arguments = (run_of(host), str(CYCLES_A_HOST), host.name, job.folder, str(job.world))
        done = host.python(CYCLES, *arguments)
        assert not done.returncode, f"{host.name}: {done.stderr}"
        assert len(done.stdout.split()) == CYCLES_A_HOST


def test_the_verbs_act_on_all_ranks_from_the_host_without_rank_zero(job: Job) -> None:
    """`pause`, `step` and `resume` of the command line on node2."""
    node2 = job.cluster.hosts[1]
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

    def told() -> bool:
        # The pauses, steps and resumes of the test before stand in front.
        actions = [[each["action"] for each in events(host) if each["action"]][-3:] for host in job.cluster.hosts]
        return actions == [["pause", "step 3", "resume"]] * 2

    until(told, "both hosts tell what was done")


STRANGER = """
import contextlib, select, socket, sys, zmq
address, server = sys.argv[1:]
context = zmq.Context()

def ask(name, prepare):
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    prepare(dealer)
    dealer.connect(address)
    # What is refused at once is given up, and a send that waited would wait for ever.
    with contextlib.suppress(zmq.Again):
        for _ in range(3):
            for message in ([b"H", b"hello"], [b"S", b""], [b"C", b"me", b"kill"]):
                dealer.send_multipart(message, zmq.NOBLOCK)
    print(name, "answered" if dealer.poll(1500) else "nothing", flush=True)
    dealer.close()

def curve(dealer):
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.curve_serverkey = server.encode()

def plain(dealer):
    dealer.plain_username, dealer.plain_password = b"root", b"root"

ask("none", lambda dealer: None)
ask("plain", plain)
ask("curve", curve)
host, port = address.removeprefix("tcp://").rsplit(":", 1)
idle = [socket.create_connection((host, int(port)), 5) for _ in range(100)]
for number, connection in enumerate(idle[:50]):
    connection.sendall(bytes(range(256)) * (number + 1))
select.select(idle[:50], [], [], 10)
print("done")
"""


def test_a_stranger_on_the_network_gets_no_word_and_slows_nothing(job: Job) -> None:
    """Without the key of the run: no mechanism, a password, another key, garbage, connections that stay idle."""
    node1, node2 = job.cluster.hosts
    listen = known.read_listen(runs(node1)[0], known.LISTEN)
    assert listen is not None
    for address in listen.addresses:
        assert not address.startswith(("tcp://0.0.0.0", "tcp://[::]", "tcp://*")), address
    before, began = min(job.counts()), time.monotonic()
    done = node2.python("-c", STRANGER, listen.addresses[0], listen.server)
    rate = (min(job.counts()) - before) / (time.monotonic() - began)
    assert done.stdout.split() == ["none", "nothing", "plain", "nothing", "curve", "nothing", "done"], done.stderr
    assert rate > 0
    assert all(_complete(told) for told in on_all(job.cluster.hosts, status))
    until(lambda: any("refused" in each["text"] for each in events(node1)), "it is told that some were refused")


def test_a_cut_cable_is_told_and_accuses_nobody(job: Job) -> None:
    """For ten seconds neither host hears the other: each names the silent ranks of the other, and nothing has failed.

    Mended, all goes on, and no verdict has named anybody.
    """
    node1, node2 = job.cluster.hosts
    verdicts = [accusations(events(host)) for host in job.cluster.hosts]
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


def test_a_kill_on_one_host_leaves_nothing_on_any(job: Job) -> None:
    """Asked for on node2, it ends all ranks, launchers and helpers on both hosts, and counts them."""
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


def _empty(host: Host) -> bool:
    return not host.left()


RECORDED = """
import json, sys
from pathlib import Path
from ddptop.agent.observer.record.recording import read_steps
found = {}
for message in read_steps(Path(sys.argv[1])):
    found.setdefault(message.rank, []).extend(step.step for step in message.steps)
print(json.dumps(found))
"""


def test_the_record_has_every_step_of_every_rank(job: Job) -> None:
    """Nothing was lost from the record, not even what happened while the cable was cut.

    The host of rank 0 has the steps of all ranks, the other one those of its own.
    """
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

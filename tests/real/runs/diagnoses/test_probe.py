"""Probes of real ranks: they change nothing of the training, and name the rank that was made slow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.harness import ddptop, started, status, until, write_script
from support.processes.ranks import Ranks, observed, plain

from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.record import diagnoses
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.diagnoses.probed import Probe
from ddptop.agent.wire.vocabulary.refusals import Cancelled, Refused

SCRIPT = """
import hashlib, random, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = int(sys.argv[1])
if sys.argv[2:] != ["alone"]:
    dist.init_process_group("gloo")
rank = dist.get_rank() if dist.is_initialized() else 0
torch.manual_seed(7)
random.seed(7)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
model = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 16)), batch_size=8, shuffle=True)
count = 0
while count < steps:
    for batch, in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch).float().square().mean() + 0.01 * random.random()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        count += 1
        time.sleep(0.01)
digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
for each in [*net.parameters(), *net.buffers()]:
    digest.update(each.detach().numpy().tobytes())
modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_num_threads(), torch.get_default_dtype()
sys.stdout.write(f"rank {rank}: {count} {digest.hexdigest()} {modes}\\n")
sys.stdout.flush()
if dist.is_initialized():
    dist.destroy_process_group()
"""


def probed(run: RunDir) -> Probe:
    """Probe a run."""
    found = diagnoses.read("probe", Path(RunControl(run, run.read(), "a test").diagnose("probe")))
    assert found is not None
    probe: Probe = found.found
    return probe


def digests(text: str) -> dict[str, str]:
    """Return what each rank has printed at its end."""
    return dict(re.findall(r"rank (\d): (.*)", text))


@pytest.fixture
def ranks(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[RunDir, Ranks]]:
    """Two ranks that train without end."""
    path = write_script(tmp_path, SCRIPT)
    name = f"probe-{request.node.name.removeprefix('test_')[:20]}"
    with observed(name, path, "1000000000") as (run, ranks):
        until(lambda: all((rank["step"] or 0) > 20 for rank in status(name)["ranks"]), "some steps")
        yield run, ranks
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)


def test_the_training_computes_the_same_bits(tmp_path: Path) -> None:
    """Parameters, buffers, generators and modes, after probes of a run that goes on and of one that is paused."""
    path = write_script(tmp_path, SCRIPT)
    with plain(path, "400") as without:
        without.wait()
    with observed("probe-bits", path, "400") as (run, with_probes):
        control = RunControl(run, run.read(), "a test")
        until(lambda: all((rank["step"] or 0) > 5 for rank in status("probe-bits")["ranks"]), "some steps")
        first = probed(run)
        control.pause()
        before = calls("probe-bits")
        second = probed(run)
        assert calls("probe-bits") == before
        assert {rank["state"] for rank in status("probe-bits")["ranks"]} == {"paused"}
        control.resume()
        assert with_probes.wait() == 0, with_probes.said
    assert len(digests(without.said)) == 2, without.said
    assert digests(with_probes.said) == digests(without.said)
    assert [rank["fault"] for rank in status("probe-bits")["ranks"]] == [None, None]
    assert 0 < first.step < second.step < 400
    for each in (first, second):
        # On a machine that is busy with other things some of it may have to be left out.
        assert all(text.endswith("for lack of time") for text in each.left_out), each.left_out
        if not each.left_out:
            assert {(made.sender, made.receiver) for made in each.connections} == {(0, 1), (1, 0)}
            assert each.large_s
        for rank in each.ranks:
            assert rank.alone.rates.keys() == MEASURED
            assert min(map(min, rank.alone.rates.values())) > 0
    assert not list(run.path.glob(".ddptop-probe*"))


def calls(name: str) -> list[list[tuple[str, int]]]:
    """Return the calls of each process group that the agent has counted as the training's, by rank."""
    told = json.loads(ddptop("stacks", name, "--json").stdout)
    found = [[(group["group"], group["calls"]) for group in rank["groups"]] for rank in told["ranks"]]
    assert len(found) == 2
    assert all(number > 0 for groups in found for _, number in groups)
    return found


MEASURED = {"compute", "disk_write", "disk_read"}


def test_a_rank_on_a_busy_core_is_named_with_the_processes_there(ranks: tuple[RunDir, Ranks]) -> None:
    """Pinned to a core on which others compute without end; the other rank has a core without them."""
    run, _ = ranks
    if len(cores := sorted(os.sched_getaffinity(0))) < 2:
        pytest.skip("needs two cores")
    for rank, core in ((0, cores[0]), (1, cores[-1])):
        pid = run.members()[rank].process.pid
        subprocess.run(["taskset", "-acp", str(core), str(pid)], check=True, capture_output=True)
    busy = f"import os; os.sched_setaffinity(0, {{{cores[-1]}}}); print(1, flush=True)\nwhile True: pass"
    command = (sys.executable, "-c", busy)
    with contextlib.ExitStack() as stack:
        # Each of a session of its own: the kernel shares a core among sessions first.
        rivals = [
            stack.enter_context(started(*command, start_new_session=True, stdout=subprocess.PIPE)) for _ in range(3)
        ]
        for each in rivals:
            assert each.stdout is not None
            each.stdout.readline()

        def slow() -> list[str]:
            """Return the sentence on rank 1, or none where a moment of other work was as much in the way of rank 0."""
            said = probed(run).sentences
            if any(text.startswith("rank 0") for text in said):
                return []
            return [text for text in said if re.match(r"rank 1 .*computes \d+ % slower than the others", text)]

        (sentence,) = until(slow, "rank 1 is named")
        pids = re.search(rf"core {cores[-1]} \(pids ([\d, ]+)", sentence)
        assert pids is not None, sentence
        assert {str(each.pid) for each in rivals} & set(pids[1].split(", ")), sentence


GROUP = Path("/sys/fs/cgroup/cpu/ddptop-test-probe")


@pytest.fixture
def half_a_core() -> Iterator[Path]:
    """Return a control group with half a core, of version 1 or 2."""
    two = GROUP.parents[1] / "cgroup.controllers"
    group = GROUP if GROUP.parent.is_dir() else GROUP.parents[1] / GROUP.name
    try:
        if two.exists() and "cpu" in two.read_text().split():
            (two.parent / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
    except OSError as problem:
        pytest.skip(f"needs a control group of its own: {problem}")
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text("50000 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text("50000")
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        until(lambda: _removed(group), "the control group is empty")


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def test_a_rank_in_a_control_group_with_half_a_core_is_named(ranks: tuple[RunDir, Ranks], half_a_core: Path) -> None:
    """With the limit."""
    run, _ = ranks
    (half_a_core / "cgroup.procs").write_text(str(run.members()[1].process.pid))
    found = probed(run)
    assert found.sentences[0].startswith("rank 1"), found.sentences
    assert "its control group is limited to 0.5 cores" in found.sentences[0]
    assert not any(text.startswith("rank 0") for text in found.sentences), found.sentences


def test_a_probe_can_be_cancelled_and_one_alone_goes_on(ranks: tuple[RunDir, Ranks]) -> None:
    """Somebody else who asks meanwhile is refused in one line; afterwards the run goes on, and nothing is kept."""
    run, _ = ranks
    waiting, ended = Waiting(), list[str]()

    def ask() -> None:
        try:
            RunControl(run, run.read(), "one").diagnose("probe", waiting)
        except Cancelled as outcome:
            ended.append(str(outcome))

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: waiting.line.startswith("probing"), "the first probe")
    with pytest.raises(Refused, match="probe by one is under way"):
        RunControl(run, run.read(), "another").diagnose("probe")
    waiting.cancel()
    thread.join()
    assert ended == ["cancelled; the run goes on"]
    assert not run.diagnoses("probe").exists()
    before = [rank["step"] for rank in status(run.name)["ranks"]]
    until(
        lambda: all(rank["step"] > step for rank, step in zip(status(run.name)["ranks"], before, strict=True)), "steps"
    )


def test_ranks_go_on_where_the_observer_is_killed_meanwhile(ranks: tuple[RunDir, Ranks]) -> None:
    """Their leases run out, after what they have begun together."""
    run, made = ranks
    waiting = Waiting()

    def ask() -> None:
        with contextlib.suppress(Refused):
            RunControl(run, run.read(), "one").diagnose("probe", waiting)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    until(lambda: " alone" in waiting.line, "the first experiment")
    observer = run.read().observer
    assert observer is not None
    held = [rank["step"] for rank in status(run.name)["ranks"]]
    os.kill(observer.pid, signal.SIGKILL)
    thread.join()
    until(lambda: all(rank["step"] > step for rank, step in zip(status(run.name)["ranks"], held, strict=True)), "steps")
    assert made.code is None


def test_a_rank_that_dies_meanwhile_ends_the_probe(ranks: tuple[RunDir, Ranks]) -> None:
    """The others are let go."""
    run, made = ranks
    waiting, ended = Waiting(), list[str]()

    def ask() -> None:
        try:
            RunControl(run, run.read(), "one").diagnose("probe", waiting)
        except Refused as refusal:
            ended.append(str(refusal))

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: waiting.line.startswith("probing"), "the probe")
    os.kill(run.members()[1].process.pid, signal.SIGKILL)
    thread.join()
    assert len(ended) == 1
    assert "rank 1" in ended[0] or "over" in ended[0], ended
    # As without a probe: the next call of its training ends the other.
    until(lambda: made.code is not None, "the end of the run")


def test_a_rank_without_a_group_computes_alone(tmp_path: Path) -> None:
    """And it is said that it has none to be compared with."""
    path = write_script(tmp_path, SCRIPT)
    with observed("probe-alone", path, "1000000000", "alone", world=1) as (run, ranks):
        until(lambda: (status("probe-alone")["ranks"][0]["step"] or 0) > 5, "some steps")
        found = probed(run)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
    assert found.sentences == ["a single rank has none to be compared with"]
    assert found.ranks[0].alone.rates.keys() == MEASURED
    assert found.connections == []

"""The hosts of a launch: one name and one id on all of them, ranks that divide, one line for what cannot work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.agent.client.runs import Run
from ddptop.agent.client.start import hosts
from ddptop.agent.client.start import run as start
from ddptop.agent.client.start.checks import problems, ranks, ranks_here
from ddptop.agent.client.start.request import Request, RequestError
from ddptop.agent.launcher import machine, observers
from ddptop.agent.run import rundir, states
from ddptop.agent.run.hosts import next_id
from ddptop.tui.launch import launch

TWO = Request("train.py", nnodes="2", rdzv_endpoint="localhost:29400")


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script, on a machine without GPUs and with many cores, whose runs get no observer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "gpus", lambda: 0)
    monkeypatch.setattr(machine, "cores", lambda: 64)
    monkeypatch.setattr(observers, "start", lambda directory: None)
    (tmp_path / "train.py").write_text("")


def told(request: Request) -> str:
    """Return all that is wrong with a request."""
    return "; ".join(problems(request).values())


def test_ranks_are_divided_among_the_hosts() -> None:
    """`--world` is the number over all hosts, `--nproc-per-node` that on each; both mean the same."""
    by_world, by_host = TWO._replace(world=8), TWO._replace(nproc_per_node=4)
    assert (ranks(by_world), ranks_here(by_world)) == (ranks(by_host), ranks_here(by_host)) == (8, 4)
    elastic = TWO._replace(nnodes="1:4", nproc_per_node=2)
    assert (ranks(elastic), ranks_here(elastic)) == (8, 2)
    assert told(by_world) == told(by_host) == told(elastic) == ""


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (TWO._replace(world=3), "--world 3: 2 hosts get as many ranks each: say 2 or 4"),
        (TWO._replace(world=1), "say 2"),
        (TWO._replace(world=4, nproc_per_node=1), "2 hosts with 1 ranks each have 2"),
        (TWO._replace(nnodes="1:2", world=4), "--nproc-per-node"),
        (TWO._replace(rdzv_endpoint=""), "--rdzv-endpoint HOST:29400"),
        (TWO._replace(rdzv_endpoint="node1:"), "say HOST:PORT"),
        (TWO._replace(rdzv_endpoint="node1:70000"), "say HOST:PORT"),
        (TWO._replace(rdzv_endpoint="a b"), "say HOST:PORT"),
        (TWO._replace(rdzv_endpoint="--x"), "say HOST:PORT"),
        (TWO._replace(node_rank=2), "2 hosts have the numbers 0 to 1"),
        (TWO._replace(nnodes="1:2", nproc_per_node=1, node_rank=0), "number themselves"),
        (TWO._replace(node_rank=1, max_restarts=2), "leave out --node-rank"),
        (TWO._replace(start="spawn"), "--start torchrun"),
        (TWO._replace(nnodes="40000", nproc_per_node=2), "80,000 ranks"),
        (Request("train.py", rdzv_endpoint="node1"), "needs --nnodes"),
        (Request("train.py", rdzv_id="7"), "needs --nnodes"),
        (Request("train.py", node_rank=0), "needs --nnodes"),
        (Request("train.py", world=2, nproc_per_node=3), "one host"),
    ],
)
def test_what_cannot_work_is_told_in_one_line(request_: Request, said: str) -> None:
    """Before anything starts, with what to do."""
    found = problems(request_)
    assert said in told(request_)
    assert all("\n" not in line for line in found.values())


def test_an_endpoint_without_a_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, for somebody who types it; a scheduler may still be giving the name away, and gets half a minute."""
    nowhere = TWO._replace(rdzv_endpoint="nowhere.invalid:1234")
    before = set(rundir.base().glob("train-*"))
    with pytest.raises(RequestError, match=r"nowhere\.invalid:1234: no host"):
        launch.launch(nowhere)
    assert set(rundir.base().glob("train-*")) == before
    found = hosts.read(nowhere)
    assert found is not None
    waits: list[float] = []
    clock = iter(range(0, 100, 7))
    monkeypatch.setattr("ddptop.agent.client.start.hosts.time.monotonic", lambda: next(clock))
    with pytest.raises(ValueError, match="no host"):
        hosts.check_endpoint(found, patient=True, sleep=waits.append)
    assert len(waits) == 4


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=120),
    st.from_regex(r"[A-Za-z][A-Za-z0-9.-]{0,60}[a-z]", fullmatch=True),
    st.from_regex(r"[^/.\0]{1,60}", fullmatch=True),
)
def test_any_id_names_a_run(ident: str, host: str, program: str) -> None:
    """Whatever the id, the host and the program: the name is one that a run can have, the same on every host."""
    by_port = hosts.read(TWO._replace(nproc_per_node=1, rdzv_endpoint=f"{host}:29400", rdzv_id=ident))
    plain = hosts.read(TWO._replace(nproc_per_node=1, rdzv_endpoint=host.upper(), rdzv_id=ident))
    assert by_port is not None
    assert plain is not None
    name = hosts.name_of(program, by_port)
    assert rundir.check_name(name) == name == hosts.name_of(f"/elsewhere/{program}.py", plain)
    assert hosts.run_id_of(program, by_port) == hosts.run_id_of(program, plain)


def test_names_tell_runs_apart() -> None:
    """A job's number stands in the name; other endpoints, ids and programs are other runs."""
    ours = hosts.read(TWO._replace(nproc_per_node=1, rdzv_id="4711"))
    unnamed = hosts.read(TWO._replace(nproc_per_node=1))
    elsewhere = hosts.read(TWO._replace(nproc_per_node=1, rdzv_endpoint="localhost:29401"))
    assert ours is not None
    assert unnamed is not None
    assert elsewhere is not None
    assert hosts.name_of("resnet", ours) == "resnet-4711"
    assert len({hosts.name_of("train.py", each) for each in (ours, unnamed, elsewhere)}) == 3
    assert len({hosts.run_id_of("train.py", each) for each in (ours, unnamed, elsewhere)}) == 3
    assert hosts.run_id_of("a.py", ours) != hosts.run_id_of("b.py", ours)


def test_a_run_over_hosts_is_written_down_as_one() -> None:
    """Its record has all ranks and those of this host, whose observer waits for no others."""
    request = TWO._replace(world=8, node_rank=1, rdzv_id="demo")
    run = launch.launch(request).record()
    assert (run.run, run.world, run.local_world, run.nodes, run.node) == ("train-demo", 8, 4, 2, 1)
    assert states.ranks_here(run, 0) == 4
    assert "--rdzv-endpoint=localhost:29400" in run.command
    assert "--node-rank=1" in run.command
    assert "--nproc-per-node=4" in run.command
    assert "--standalone" not in run.command


def test_an_ended_run_of_the_same_name_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts cannot count the runs that had their name: the old one gets another, with all that it has."""
    request = TWO._replace(world=2, rdzv_id="again")
    first = launch.launch(request).directory
    first.rank_log(0).write_text("last words\n")
    with pytest.raises(rundir.RunDirError, match="already there"):
        launch.launch(request)
    first.update(state="finished")
    lines: list[str] = []
    second = launch.launch(request, lines.append).directory
    assert second.path == first.path
    assert second.read().run_id == first.read().run_id
    aside = rundir.find("train-again.2")
    assert (aside.read().run, aside.read().state) == ("train-again.2", "finished")
    assert aside.rank_log(0).read_text() == "last words\n"
    # It may also tell of old runs of other tests that it removes.
    assert "the last run of this name is now train-again.2" in lines
    rundir.remove(aside)
    assert second.read().state == "starting"


def test_a_restart_is_one_run_again() -> None:
    """Each host restarts it by itself, and gets the same name and id."""
    request = TWO._replace(world=2, rdzv_id="restarted")
    found = []
    for _ in "two hosts":
        old = launch.launch(request).directory
        old.update(state="failed")
        new = start.restart(Run(old)).directory
        found.append((new.read().run, new.read().run_id, new.read().command, new.read().local_world))
        new.update(state="failed")
        rundir.remove(new)
        rundir.remove(old)
        break
    assert found[0][0] == "train-restarted.2"
    assert found[0][1] == next_id(hosts.run_id_of("train.py", hosts.read(request) or pytest.fail("no hosts")))
    assert found[0][3] == 1


def test_one_host_needs_no_endpoint() -> None:
    """`--nnodes 1`, as a script for any number of hosts says it, is a launch on this one."""
    assert hosts.read(Request("train.py", nnodes="1", node_rank=0)) is None
    assert os.getpid()

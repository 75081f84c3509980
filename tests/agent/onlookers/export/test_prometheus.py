"""Samples of Prometheus: what is known of runs, with bounded labels, to those who may know it."""

from __future__ import annotations

import json
import re
import socket
import stat
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from support.fakes.observers import observed
from support.fakes.ranks import beat
from support.harness import DDPTOP, ddptop, started, until
from support.screens.frames import NOW, frame
from support.servers import free_port

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.runs import Run
from ddptop.agent.onlookers.export import prometheus
from ddptop.agent.onlookers.export.prometheus import Samples
from ddptop.agent.run import rundir

SLOW = wire.Verdict(1, "slow_rank", "rank 2 is slow", int((NOW - 60) * 1e9), rank=2, host="node-a")
EVIL = 'x"} 1\nevil{a="\\'


@contextmanager
def served(shown: Sequence[Frame], token: str = "") -> Iterator[str]:
    """Serve the samples of these frames; the address."""
    with prometheus.Server(("127.0.0.1", 0), lambda: shown, token) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        finally:
            server.shutdown()
            thread.join()


def read(address: str, **headers: str) -> str:
    """Return what is answered there."""
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=20) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return values by name and labels, as the parser of another project reads them."""
    return {
        (each.name, *(f"{label}={value}" for label, value in sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_a_run_is_served_with_bounded_labels() -> None:
    """What is not known is not there; whatever stands in a name is read back as that name."""
    with served([frame(verdicts=(SLOW,), mfu=0.4), frame(run=EVIL, state="failed")]) as address:
        found = samples(read(address))
    of = "run=resnet-7f3a"
    assert found["ddptop_runs",] == 1
    assert found["ddptop_run_up", of] == 1
    assert found["ddptop_run_mfu_ratio", of] == 0.4
    assert ("ddptop_run_tokens_per_second", of) not in found
    assert found["ddptop_rank_step_seconds", "host=node-a", "rank=2", of] == pytest.approx(0.0934)
    assert found["ddptop_verdict", "host=node-a", "kind=slow_rank", "rank=2", of] == NOW - 60
    assert found["ddptop_run_failed", f"run={EVIL}"] == 1
    labels = {label.partition("=")[0] for name in found for label in name[1:]}
    assert labels == {"run", "rank", "host", "kind"}


def last_step(**changes: Any) -> float | None:
    """Return the sample by which a run is found to be stuck."""
    with served([frame(**changes)]) as address:
        return samples(read(address)).get(("ddptop_last_step_timestamp_seconds", "run=resnet-7f3a"))


def test_a_run_that_is_stuck_is_found_by_one_number() -> None:
    """The time of the last step; of one that is not to make steps, because it is paused or over, there is none."""
    assert last_step() == pytest.approx(NOW - 0.1)
    ranks = frame().ranks
    assert last_step(ranks=[replace(rank, step_age_s=900.0) for rank in ranks]) == pytest.approx(NOW - 900)
    assert last_step(ranks=[replace(rank, step_age_s=None) for rank in ranks]) == frame().started_at
    assert last_step(state="paused") is None
    assert last_step(state="finished") is None


def test_a_token_is_asked_for_and_only_metrics_are_there() -> None:
    """In the header that Prometheus sends."""
    with served([frame()], token="a token of some letters") as address:
        for headers in ({}, {"Authorization": "Bearer another"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                read(address, **headers)
        right = {"Authorization": "Bearer a token of some letters"}
        assert "ddptop_run_up" in read(address, **right)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(address.replace("metrics", "etc/passwd"), **right)


def test_somebody_who_is_gone_before_the_answer_leaves_no_trace(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed where the exporter runs, and the next one is answered."""
    asked, gone = threading.Event(), threading.Event()

    def look() -> list[Frame]:
        asked.set()
        assert gone.wait(20)
        return [frame()]

    with prometheus.Server(("127.0.0.1", 0), look) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            port = server.server_address[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                assert asked.wait(20)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.set()
            until(lambda: not [each for each in threading.enumerate() if "process_request" in each.name], "its end")
            assert "ddptop_run_up" in read(f"http://127.0.0.1:{port}/metrics")
        finally:
            server.shutdown()
            thread.join()
    assert capfd.readouterr().err == ""


def test_many_who_ask_share_a_look() -> None:
    """The observer answers once a second, however many ask."""
    moments = iter((0.0, 0.0, 0.0, 0.9, 1.0, 1.0, 1.1))
    looks = iter([[frame()], [frame(step=2)]])
    look = Samples(lambda: next(looks), lambda: next(moments))
    steps = [{each.name: each for each in look.collect()}["ddptop_run_steps"].samples[0].value for _ in range(4)]
    assert steps == [1284, 1284, 2, 2]


def test_live_runs_and_those_that_ended_just_now_are_shown(own_base: Path) -> None:
    """By one look at each; one that ended long ago is left out."""
    run = rundir.Run("live", "live", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True)
    for name, age_s in (("over", 60), ("old", 3600)):
        at = time.time_ns() - age_s * 10**9
        rundir.create(replace(run, run=name, run_id=name, state="failed", ended_at_ns=at))
    with observed(run) as observer, ThreadPoolExecutor() as threads:
        observer.tell(beat(0, 1), beat(1, 1))
        asked = threads.submit(prometheus.frames, [], "test")
        until(lambda: observer.turn() and asked.done(), "the frames")
        assert {each.run: each.state for each in asked.result()} == {"live": "running", "over": "failed"}
        assert not prometheus.frames([Run.at(own_base / "old")], "test")


def test_a_file_is_replaced_as_a_whole(own_base: Path, tmp_path: Path) -> None:
    """For the node exporter, which runs as somebody else; what cannot be is said in one line."""
    file = tmp_path / "ddptop.prom"
    prometheus.write(str(file), lambda: [frame()])
    assert samples(file.read_text())["ddptop_run_up", "run=resnet-7f3a"] == 1
    assert file.stat().st_mode & stat.S_IROTH
    assert ddptop("export", "--textfile", str(file), "--once").returncode == 0
    assert samples(file.read_text()) == {("ddptop_runs",): 0}
    assert list(tmp_path.iterdir()) == [file]
    for bad in (tmp_path / "ddptop.txt", tmp_path / "none" / "ddptop.prom"):
        refused = ddptop("export", "--textfile", str(bad), "--once")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_what_cannot_be_served_is_refused(own_base: Path, tmp_path: Path) -> None:
    """A port in use; other machines without a token, or with one that others can read: one line, exit code 2."""
    token = tmp_path / "token"
    token.write_text("a" * 32)
    mine = tmp_path / "mine"
    mine.touch(0o600)
    mine.write_text("a" * 32)
    port = free_port()
    with started(*DDPTOP, "export", "--prometheus", str(port), stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"http://127.0.0.1:{port}/metrics; ctrl+c ends it\n"
        assert samples(read(f"http://127.0.0.1:{port}/metrics")) == {("ddptop_runs",): 0}
        for words, said in (
            (["--prometheus", str(port)], "in use"),
            (["--prometheus", "0", "--host", "0.0.0.0"], "go together"),
            (["--prometheus", "0", "--host", "0.0.0.0", "--token-file", str(token)], "chmod 600"),
            (["--prometheus", "0", "no-such-run"], "no such run"),
            (["--prometheus", "0", "--host", "a..b", "--token-file", str(mine)], "a..b port 0: no name of a host"),
        ):
            refused = ddptop("export", *words)
            assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
            assert said in refused.stderr


def test_dashboard_and_rules_ask_for_what_is_served() -> None:
    """Each name in them is one of the samples."""
    with served([frame(verdicts=(SLOW,))]) as address:
        text = read(address)
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    folder = files("ddptop.agent.onlookers.export")
    asked = json.dumps(json.loads((folder / "dashboard.json").read_text())) + (folder / "rules.yml").read_text()
    used = set(re.findall(r"\bddptop_\w+", asked))
    assert used <= known
    assert "ddptop_last_step_timestamp_seconds" in used
    assert ddptop("export", "--rules").stdout == (folder / "rules.yml").read_text()
    assert json.loads(ddptop("export", "--dashboard").stdout)["panels"]

"""A real Prometheus scrapes a run, and finds by one rule that it is stuck. Needs `prometheus` and `promtool`."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from support.harness import DDPTOP, WAIT, ddptop, started, until, write_script
from support.servers import free_port

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no Prometheus here: apt-get install prometheus",
)

STANDS = f"""
import torch, torch.distributed as dist
from light import *
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(20):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
{WAIT}
"""
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: ddptop
    authorization: {{credentials_file: {token}}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def asked(port: int, path: str, **query: str) -> Any:
    """Return what Prometheus answers."""
    address = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def test_a_run_that_is_stuck_raises_an_alert(own_base: Path, tmp_path: Path) -> None:
    """Its samples and rules are taken as they are, but for the seconds after which the alert comes."""
    rules, token = tmp_path / "rules.yml", tmp_path / "token"
    text = (files("ddptop.agent.onlookers.export") / "rules.yml").read_text()
    rules.write_text(text)
    assert subprocess.run(["promtool", "check", "rules", rules], check=False).returncode == 0
    rules.write_text(text.replace("> 600", "> 3"))
    token.write_text("a" * 32)
    token.chmod(0o600)
    script = write_script(tmp_path, STANDS)
    launched = subprocess.run(
        [*DDPTOP, "launch", "--world", "2", "--no-wait", "--name", "stands", str(script)],
        check=False, stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    mine, theirs = free_port(), free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(rules=rules, token=token, port=mine))
    exporter = (*DDPTOP, "export", "--prometheus", str(mine), "--host", "127.0.0.1", "--token-file", str(token))
    prometheus = (
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{theirs}", "--log.level=error",
    )  # fmt: skip
    try:
        with started(*exporter, stdout=subprocess.DEVNULL), started(*prometheus):
            steps = 'ddptop_rank_steps{run="stands",rank="1"}'
            until(lambda: (found := asked(theirs, "query", query=steps)) and found["result"], "its steps", 90)
            until(lambda: asked(theirs, "query", query=steps)["result"][0]["value"][1] == "20", "all of its steps", 90)

            def raised() -> bool:
                alerts = (asked(theirs, "alerts") or {}).get("alerts", ())
                return any(
                    each["labels"]["alertname"] == "DdptopStuck" and each["labels"]["run"] == "stands"
                    for each in alerts
                )

            until(raised, "the alert", 90)
            (target,) = asked(theirs, "targets")["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
            content = subprocess.run(
                ["curl", "-s", "-H", f"Authorization: Bearer {'a' * 32}", f"http://127.0.0.1:{mine}/metrics"],
                check=True, capture_output=True,
            ).stdout  # fmt: skip
            checked = subprocess.run(["promtool", "check", "metrics"], input=content, capture_output=True, check=False)
            assert checked.returncode == 0, checked.stderr
    finally:
        ddptop("kill", "stands")

"""Two ranks under DDP whose parameters are compared every five steps; one of them changes a value by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.harness import ddptop, status, until, write_script
from support.processes.ranks import Ranks, observed, plain

from ddptop.agent.run.switches import checking

SCRIPT = '''
"""Trains two ranks; after step 12 one value of rank 1 moves by one unit in the last
place, unless KEEP is set.

After step 30 the ranks print what they have, and go on slowly until there is a file `enough`.
"""
import hashlib, os, pathlib, sys, time
import torch, torch.distributed as dist, torch.nn as nn

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 1100), nn.BatchNorm1d(1100), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1100, 1))
ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4, momentum=0.9)
torch.manual_seed(rank)
step, goes_on = 0, torch.ones(1)
while goes_on.item():
    step += 1
    optimizer.zero_grad()
    ddp(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    if step == 12 and rank == 1 and "KEEP" not in os.environ:
        weight = model[0].weight.data.view(-1)
        weight[5] = torch.nextafter(weight[5], torch.tensor(9.0))
    if step == 30:
        state = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
        digest = hashlib.sha256(state + torch.get_rng_state().numpy().tobytes()).hexdigest()
        versions = [parameter._version for parameter in model.parameters()]
        sys.stdout.write(f"rank {rank} {digest} {versions}\\n")
        sys.stdout.flush()
    if step >= 30:
        time.sleep(0.05)
        goes_on.fill_(not pathlib.Path("enough").exists())
        dist.broadcast(goes_on, 0)
dist.destroy_process_group()
'''


def printed(ranks: Ranks) -> list[str]:
    """Return what each rank has after step 30."""
    until(lambda: len(re.findall(r"^rank .*\n", ranks.said, re.M)) == 2, "step 30 of both")
    return sorted(re.findall(r"^rank .*\n", ranks.said, re.M))


@pytest.mark.parametrize("keeps", [False, True])
def test_one_value_that_differs_is_told_with_its_step_and_name(tmp_path: Path, keeps: bool) -> None:
    """One unit in the last place of one of 11,002 values: told by the observer, and by `ddptop checksum`. While the
    ranks stay the same nothing is told but that they are compared, although their BatchNorm buffers differ. What
    they have after 30 steps, random state and version counters included, is what they have without the agent.
    """
    name = "same" if keeps else "diverged"
    script = write_script(tmp_path, SCRIPT)
    told = {checking.VARIABLE: "5"} | ({"KEEP": "1"} if keeps else {})
    with observed(name, script, env=told) as (_, ranks):
        found = printed(ranks)
        until(lambda: (status(name)["step"] or 0) >= 35, "a comparison after the change")
        until(lambda: keeps or status(name)["verdicts"], "the verdict")
        asked = ddptop("checksum", name, "--json")
        answer = json.loads(asked.stdout)
        verdicts = [each for each in status(name)["verdicts"] if each["kind"] == "diverged"]
        (tmp_path / "enough").touch()
        ranks.wait()
    events = ddptop("events", name).stdout
    # The observer may have met a rank only after its first check.
    compared = re.search(r"parameters are compared every 5 steps: 6 tensors on 2 ranks, equal at step (\d+)", events)
    assert compared is not None, events
    assert int(compared[1]) in range(5, 35, 5)
    (module,) = answer["modules"]
    assert (module["ranks"], module["tensors"]) == ([0, 1], 6)
    assert answer["step"] > 30
    if keeps:
        assert (asked.returncode, answer["differ"], verdicts) == (0, False, [])
        assert "differ since" not in events
        return
    assert (asked.returncode, answer["differ"]) == (1, True)
    assert (module["differing_ranks"], module["first"], module["differing_tensors"]) == ([0, 1], "0.weight", 1)
    (verdict,) = verdicts
    assert verdict["text"] == "the parameters of ranks 0 and 1 differ since step 15: 0.weight (equal at step 10)"
    assert (verdict["rank"], verdict["since_step"]) == (None, 15)
    assert verdict["text"] in events
    (tmp_path / "enough").unlink()
    with plain(script) as without:
        assert printed(without) == found

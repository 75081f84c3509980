"""The line that starts a run of the same kind again, as the verb `launch` reads it."""

from __future__ import annotations

import shlex

import msgspec

from ddptop.agent.end import report
from ddptop.agent.run.records import Run
from ddptop.tui.launch.options import OPTIONS

RUN = Run(
    "toy-1", "id", "my toy.py", ("--lr", "0.1"), 2, "gloo", "cpu", 1, True,
    command=("python", "torch.distributed.run"), environment={"DDPTOP_BACKEND": "gloo", "A_KEY": "***"},
)  # fmt: skip


def test_the_line_can_be_pasted() -> None:
    """Each word is quoted for a shell, the script's options come after `--`, and what is the default is left out."""
    assert report.launching(RUN) == "ddptop launch --world 2 --backend gloo --env 'A_KEY=***' 'my toy.py' -- --lr 0.1"


def test_every_option_that_the_record_knows_is_one_of_launch() -> None:
    """The verb's own table of options reads them; a module keeps its `-m`; a job started by hand has no launch."""
    environment = {"DDPTOP_INJECT": "slow:1;nan:0", "DDPTOP_CHECK_PARAMETERS": "50", "PYTHONPATH": "/x"}
    run = msgspec.structs.replace(
        RUN, program="-m pkg.train", arguments=(), environment=environment, grace_s=9.0, on_term="checkpoint",
        max_restarts=2, command=("python", "train.py"),
    )  # fmt: skip
    words = shlex.split(report.launching(run))
    assert words[-2:] == ["-m", "pkg.train"]
    assert words.count("--inject") == 2
    assert "--env" not in words
    assert {word for word in words if word.startswith("--")} <= {option.flag for option in OPTIONS}
    assert {"--start", "--grace", "--on-term", "--max-restarts", "--check-parameters"} <= set(words)
    by_hand = msgspec.structs.replace(RUN, launched=False, command=())
    assert report.launching(by_hand) == "'my toy.py' --lr 0.1"


def test_a_run_on_several_hosts_is_launched_as_one_of_them_was() -> None:
    """The number of hosts, where they meet and the ranks of a host, instead of the ranks of all."""
    options = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=demo")
    torchrun = (
        "python",
        "starter.py",
        "torch.distributed.run",
        *options,
        "--nproc-per-node=4",
        "main.py",
        "--nnodes=9",
    )
    run = msgspec.structs.replace(RUN, command=torchrun, world=8, environment={}, backend=None)
    words = "--nnodes 2 --nproc-per-node 4 --rdzv-endpoint node1:29400 --rdzv-id demo"
    assert report.launching(run) == f"ddptop launch {words} 'my toy.py' -- --lr 0.1"

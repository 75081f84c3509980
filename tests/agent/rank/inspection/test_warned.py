"""What torch warns of in a rank's log is found once, and nothing else is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddptop.agent.rank.inspection.warned import Warned

UNUSED = (
    "[rank0]:[W1128 15:53:31.412345678 reducer.cpp:1457] Warning: find_unused_parameters=True was specified in DDP "
    "constructor, but did not find any unused parameters in the forward pass. (function operator())\n"
)
KERNEL = (
    "/home/train.py:31: UserWarning: c10d::allreduce_: an autograd kernel was not registered to the Autograd key(s). "
    "(Triggered internally at /pytorch/torch/csrc/autograd/autograd_not_implemented_fallback.cpp:62.)\n"
    "  loss.backward()\n"
)
SCHEDULER = "/v/site-packages/torch/optim/lr_scheduler.py:209: UserWarning: Detected call of `lr_scheduler.step()`\n"
OTHERS = "/home/data.py:3: DeprecationWarning: old\n[W] my own log\nWARNING: low disk\nepoch 1\n"


def test_each_warning_of_torch_is_found_once_as_the_log_grows(tmp_path: Path) -> None:
    """Of C++ and of Python, without the place in torch's sources; not those of the script, and no half line."""
    log = tmp_path / "0.log"
    log.write_text(f"{SCHEDULER}of an earlier start\n")
    warned = Warned(str(log), log.stat().st_size)
    assert warned.turn() == []
    with log.open("a") as file:
        file.write(OTHERS + UNUSED + UNUSED + KERNEL[:60])
    unused, *more = warned.turn()
    assert unused.startswith("find_unused_parameters=True was specified")
    assert unused.endswith("in the forward pass.")
    assert more == []
    with log.open("a") as file:
        file.write(KERNEL[60:] + UNUSED + SCHEDULER)
    assert warned.turn() == [
        "c10d::allreduce_: an autograd kernel was not registered to the Autograd key(s).",
        "Detected call of `lr_scheduler.step()`",
    ]
    assert warned.turn() == []
    assert Warned(None, 0).turn() == []
    missing = Warned(str(tmp_path / "1.log"), 0)
    with pytest.raises(OSError, match=r"1\.log"):
        missing.turn()
    assert missing.turn() == []


def test_a_log_that_grows_without_end_costs_no_more_than_a_bounded_read(tmp_path: Path) -> None:
    """Of a megabyte that came in one second the newest part is looked at, and the rest is passed over."""
    log = tmp_path / "0.log"
    log.write_text(UNUSED + "x" * (1 << 20) + "\n" + SCHEDULER)
    warned = Warned(str(log), 0)
    assert warned.turn() == ["Detected call of `lr_scheduler.step()`"]
    assert warned.turn() == []


def test_a_long_line_without_a_warning_takes_the_training_no_time(tmp_path: Path) -> None:
    """An expression is matched with the GIL held: 16 KiB of the longest lines take less than a step."""
    log = tmp_path / "0.log"
    log.write_text("".join(f"{each * 4095:.4095}\n" for each in ("x", "a.py:1", "[W123 ", "a/")))
    began = time.thread_time()
    assert Warned(str(log), 0).turn() == []
    assert time.thread_time() - began < 0.1

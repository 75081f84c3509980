"""Lines of logs, as the usual trainers write them, and logs that grow."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ddptop.agent.observer.sampling.logs import Log, Named, Patterns, named

LINES = [
    (" 37%|███▋      | 37/100 [00:12<00:21,  3.01it/s]", Named(37, 100)),
    ("train:  37%|###7      | 37/100 [00:12<00:21,  1.20s/it, loss=0.51]", Named(37, 100, 0.51)),
    ("Epoch 0:  37%|███▋      | 37/100 [00:12<00:21,  3.01it/s, v_num=0, train_loss=1.25e-1]", Named(37, 100, 0.125)),
    ("{'loss': 1.2345, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.03}", Named(loss=1.2345)),
    ("{'loss': '2.306', 'grad_norm': '0.08', 'epoch': '0.2'}", Named(loss=2.306)),
    ("iter 100: loss 3.2051, time 123.45ms, mfu 2.10%", Named(100, None, 3.2051)),
    ("step 500: train loss 2.1034, val loss 2.3000", Named(500, None, 2.1034)),
    ("[2026-01-02 10:00:00] step=12/4000 loss: 0.25 lr=1e-3", Named(12, 4000, 0.25)),
    (" iteration      100/  500000 | consumed samples: 25600 | lm loss: 1.000000E+01 |", Named(100, 500000, 10.0)),
    ("Epoch: [0][  10/1251]\tTime  0.4 ( 0.6)\tLoss 6.9012e+00 (6.9500e+00)", Named(10, 1251, 6.9012)),
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.293032", Named(loss=2.293032)),
    ("\x1b[32mGlobal step 7\x1b[0m | training loss = nan", Named(7, None, math.nan)),
    # What is no step of the training.
    ("Loading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01,  1.00it/s]", Named()),
    ("Validation DataLoader 0:  50%|█████     | 5/10 [00:01<00:01,  5.00it/s]", Named()),
    ("model.safetensors:  45%|████▌     | 450/1000 [00:04<00:05, 105MB/s]", Named()),
    ("step 3: build the model", Named()),
    ("validation step 4: val_loss 0.5", Named()),
    ("the loss is computed in float32", Named()),
    ("", Named()),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_lines_of_the_usual_trainers_are_understood(line: str, expected: Named) -> None:
    """Bars, dictionaries and sentences name steps and losses; bars of other work, and losses of evaluations, do not."""
    assert repr(named(line)) == repr(expected)


def test_a_hostile_line_costs_little() -> None:
    """Patterns of ours have no repetition inside of another, and a line is cut."""
    for line in ("|" * 100_000, "step " * 50_000, "loss" + " " * 100_000, "1%|" + "0" * 100_000, "Epoch: [" * 20_000):
        assert named(line) in (Named(), Named(loss=None))


def test_a_log_is_followed_by_what_is_new(tmp_path: Path) -> None:
    """A bar goes back to the beginning of its line; a line may come in two pieces; a log may be made anew."""
    path = tmp_path / "log"
    log = Log(path, Patterns(()))
    assert log.read() == Named()
    path.write_text("iter 1: loss 3.0, time 1ms\niter 2: lo")
    assert log.read() == Named(1, None, 3.0)
    with path.open("a") as file:
        file.write("ss 2.5, time 1ms\n\r 10%|█         | 10/100 [00:01<00:09, 10.00it/s]")
    assert log.read() == Named(10, 100, 2.5)
    assert log.read() == Named()
    path.write_text("iter 1: loss 9.0\n")
    assert log.read() == Named(1, None, 9.0)


def test_patterns_of_the_user_come_first(tmp_path: Path) -> None:
    """What they do not fit is understood as before."""
    patterns = Patterns([r"it=(?P<step>\d+) of (?P<total>\d+)", r"obj=(?P<loss>\S+)"])
    path = tmp_path / "log"
    path.write_text("it=5 of 9 obj=2\nobj=0.75\nobj=none\n")
    assert Log(path, patterns).read() == Named(5, 9, 0.75)
    path.write_text("iter 8: loss 3.0\n")
    assert Log(path, patterns).read() == Named(8, None, 3.0)


def test_a_pattern_that_takes_forever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in a process of its own, which is ended; the reason is said, and the log goes on to be read."""
    monkeypatch.setattr("ddptop.agent.observer.sampling.logs._PATIENCE_S", 1.0)
    patterns = Patterns([r"(?P<step>(a+)+)$"])
    path = tmp_path / "log"
    path.write_text(f"{'a' * 60}!\niter 3: loss 1.5\n")
    assert Log(path, patterns).read() == Named(3, None, 1.5)
    assert patterns.problem.startswith("the patterns of [outside] log are not tried any more")

"""How many steps there are, as the libraries say that run loops: asked by the methods that these call themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks import totals
from ddptop.agent.rank.hooks.totals import Totals

LIBRARIES = {
    "transformers/trainer_callback.py": """
class CallbackHandler:
    def on_train_begin(self, args, state, control):
        return control
""",
    "lightning/pytorch/loops/fit_loop.py": """
class _FitLoop:
    def __init__(self, trainer):
        self.trainer = trainer

    def on_run_start(self):
        pass
""",
    "deepspeed/runtime/lr_schedules.py": """
class WarmupDecayLR:
    def __init__(self, optimizer, total_num_steps):
        self.total_num_steps = total_num_steps
""",
    "tqdm/std.py": """
class tqdm:
    def __init__(self, total=None, disable=False, initial=0):
        self.total, self.disable, self.n = total, disable, initial
""",
}
"""The classes of these libraries that tell, with the names and arguments that they have there."""


class Training:
    """A training that counts its steps, in which these libraries are imported as usual."""

    def __init__(self) -> None:
        self.steps, self.faults = 0, Faults()
        self.totals = Totals(lambda: self.steps)

    def told(self) -> tuple[int, str] | None:
        found = self.totals.current()
        assert not self.faults.count, self.faults.last
        return None if found is None else (found.steps, found.by)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    for name, text in LIBRARIES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in tuple(sys.modules):
        if name.partition(".")[0] in {file.partition("/")[0] for file in LIBRARIES}:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    found = Training()
    totals.watch(found.totals, found.faults)
    return found


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    __import__(name)
    found = sys.modules[name]
    for each in tuple(sys.modules):
        if each.partition(".")[0] == name.partition(".")[0]:
            monkeypatch.setitem(sys.modules, each, sys.modules[each])
    return found


def test_the_trainer_says_its_steps(training, monkeypatch):
    """Those that are left, where it goes on from a checkpoint: the steps of this process are counted."""
    handler = module("transformers.trainer_callback", monkeypatch).CallbackHandler()
    assert training.told() is None
    assert handler.on_train_begin("args", SimpleNamespace(max_steps=3000, global_step=1000), "control") == "control"
    assert training.told() == (2000, "Trainer")


@pytest.mark.parametrize(("steps", "told"), [(800, (800, "Lightning")), (float("inf"), None), (-1, None)])
def test_lightning_says_its_steps(training, monkeypatch, steps, told):
    """Not where it trains until somebody ends it."""
    loops = module("lightning.pytorch.loops.fit_loop", monkeypatch)
    loops._FitLoop(SimpleNamespace(estimated_stepping_batches=steps, global_step=0)).on_run_start()
    assert training.told() == told


def test_a_schedule_of_deepspeed_says_its_steps(training, monkeypatch):
    """Its configuration has them for the decay of the learning rate."""
    module("deepspeed.runtime.lr_schedules", monkeypatch).WarmupDecayLR(None, total_num_steps=500)
    assert training.told() == (500, "DeepSpeed")


def test_a_bar_that_moves_with_the_steps_says_how_many_there_are(training, monkeypatch):
    """Not one that is over, nor one that was given no total; four batches a step are a quarter of the steps."""
    bars = module("tqdm.std", monkeypatch).tqdm
    over, endless, moving = bars(total=7), bars(), bars(total=4000, initial=400)
    over.n = over.total
    assert endless.total is None
    assert training.told() is None
    for _ in range(10):
        training.steps += 1
        moving.n += 4
    assert training.told() == (900, "tqdm")


def test_a_bar_in_the_place_of_one_that_is_gone_says_its_own_steps(training, monkeypatch):
    """A bar of tokenizing is freed before that of the training, which then is where it was in memory."""
    bars = module("tqdm.std", monkeypatch).tqdm
    for _ in range(1_000):
        before = bars(total=10_000)
        before.n = 5000
        assert training.told() is None
        place = id(before)
        del before
        moving = bars(total=300)
        if id(moving) == place:
            break
    assert id(moving) == place, "Python has used no place again"
    training.told()
    training.steps = moving.n = 10
    assert training.told() == (300, "tqdm")


def test_of_a_bar_for_each_epoch_only_all_epochs_tell(training, monkeypatch):
    """With a bar of the epochs around it the product; without one, nothing once the first epoch is over."""
    bars = module("tqdm.std", monkeypatch).tqdm
    epochs = bars(total=3)
    batches = bars(total=200)
    training.told()
    training.steps, batches.n = 20, 20
    assert training.told() == (600, "tqdm")
    epochs.disable = True
    alone = Training()
    inner = bars(total=200)
    alone.totals.tell_bar(inner)
    alone.told()
    alone.steps, inner.n = 20, 20
    assert alone.told() == (200, "tqdm")
    alone.steps = 201
    assert alone.told() is None

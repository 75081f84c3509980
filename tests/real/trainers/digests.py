"""A program that in the end prints a digest of its rank's parameters and of what its optimizer remembers.

And the length of its last gradient, which an optimizer that divides by it would hide.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import pickle

from ddptop.trainers.training import loop
from ddptop.trainers.training.task import Outcome


def main(arguments: list[str]) -> int:
    """Run `module arguments…`."""
    original = loop.Training.run

    def run(self: loop.Training) -> Outcome:
        outcome = original(self)
        optimizer = self.technique.optimizer
        tensors = [*self.model.state_dict().values()]
        tensors += [value for state in optimizer.state.values() for value in state.values()]
        content = pickle.dumps([tensor.tolist() for tensor in tensors])
        print("digest", hashlib.sha256(content).hexdigest(), self.progress, flush=True)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        print("gradient", math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients)), flush=True)
        return outcome

    loop.Training.run = run  # type: ignore[method-assign]
    return int(importlib.import_module(arguments[0]).main(arguments[1:]))

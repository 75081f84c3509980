"""What a training script may say to ddptop; every call is free and harmless without it.

The agent itself is started by the runner (`python -m ddptop.agent script.py`), so a script
needs none of this.  Importing it loads neither torch nor textual.
"""

# Before any other import, `__future__` included: with `python -m ddptop.agent` the user's folder is still first.
from ddptop.agent import importpath

importpath.leave_current_directory(__name__)

import os  # noqa: E402 - the line above must come first
from collections.abc import Callable, Mapping  # noqa: E402
from typing import Protocol  # noqa: E402

__all__ = ["log", "on_checkpoint", "start"]

CheckpointFunction = Callable[[int], "str | os.PathLike[str] | None"]


class Listener(Protocol):
    """The agent of this process, as the public functions see it."""

    def announce(self, total_steps: int | None, note: str | None, coordinates: Mapping[str, int] | None) -> None:
        """Take in how long the training will be, what it says of itself, and where this rank stands in it."""

    def log(self, metrics: dict[str, float]) -> None:
        """Take in values for the step now in work."""

    def register(self, save: CheckpointFunction) -> None:
        """Take in how to save a checkpoint."""


_listener: Listener | None = None


def start(
    *, total_steps: int | None = None, note: str | None = None, coordinates: Mapping[str, int] | None = None
) -> None:
    """Tell the dashboard how many optimizer steps the training takes, so that it can show progress.

    Args:
        total_steps: Optimizer steps of the whole run, None where nobody knows.
        note: One line that every screen shows, for example that the data is synthetic.
        coordinates: Where this rank stands where ranks are not alike: `{"data": 0, "tensor": 1}` on a device mesh,
            `{"stage": 2}` in a pipeline. Ranks that differ only along `tensor`, `stage`, `pipeline`, `context` or
            `sequence` (or tp, pp, cp, sp) work on the same samples, and the dashboard counts these once.
    """
    if _listener is not None:
        _listener.announce(total_steps, note, coordinates)


def log(**metrics: float) -> None:
    """Attach values to the step now in work: `log(accuracy=0.91, lr=0.1)`.

    Values must be Python numbers: a tensor would have to be waited for, so call `.item()`
    where the script can afford it. Anything else is left out and counted as a fault.
    """
    if _listener is not None:
        _listener.log(metrics)


def on_checkpoint(save: CheckpointFunction) -> CheckpointFunction:
    """Tell how to save a checkpoint, so that `c`, `ddptop checkpoint` and `ddptop stop` can ask for one.

    Returns `save` itself, so that it works as a decorator; a later call replaces it.

    Args:
        save: Called as `save(step)` on every rank at the end of the same optimizer step, on the thread that
            trains, so that it may use collectives. `step` counts the optimizer steps of this process, as the
            dashboard shows them. It is called inside of `optimizer.step()`, when that has done its work: a
            counter or schedule that the script moves afterwards is still one behind. It returns where it saved,
            or None on ranks that save nothing. What it raises is reported with the rank; the training goes on.
    """
    if _listener is not None:
        _listener.register(save)
    return save

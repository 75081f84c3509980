"""What a training script may say to ddptop; every call is free and harmless without it.

The agent itself is started by the runner (`python -m ddptop.agent script.py`), so a script
needs none of this.  Importing it loads neither torch nor textual.  No call raises, whatever it
is given: it takes what it can, and the rest is counted as a fault of the rank, which the screens
show.

observer  beside the ranks: supervisor, recording, ending
rank      inside a rank: hooks, records, sockets
control   what a controller asks of ranks
run       what a run leaves on disk
wire      the messages
text      text of unknown origin, made fit for a terminal
startup   how our processes start

Each imports only what stands below it here; `observer` and `rank` do not know each other.
"""

# Before any other import, `__future__` included: with `python -m ddptop.agent` the user's folder is still first.
from ddptop.agent.startup import importpath

importpath.leave_current_directory(__name__)

import contextlib  # noqa: E402 - the line above must come first
import functools  # noqa: E402
import os  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from typing import ParamSpec, Protocol, TypeVar  # noqa: E402

__all__ = ["log", "on_checkpoint", "start"]

CheckpointFunction = Callable[[int], "str | os.PathLike[str] | None"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Save = TypeVar("_Save", bound=CheckpointFunction)


class Listener(Protocol):
    """The agent of this process, as the public functions see it."""

    def announce(self, total_steps: object, note: object, coordinates: object) -> None:
        """Take in how long the training will be, what it says of itself, and where this rank stands in it."""

    def log(self, metrics: Mapping[str, object]) -> None:
        """Take in values for the step now in work."""

    def register(self, save: object) -> None:
        """Take in how to save a checkpoint."""

    def misused(self, call: str, error: Exception) -> None:
        """Count a call that could not be taken in."""


_listener: Listener | None = None


def _harmless(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Return `call` as one that raises no `Exception`, also where it is given arguments that it does not have."""

    @functools.wraps(call)
    def harmless(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            _count(call.__name__, error)
            # What decorates a function must leave that function behind.
            return args[0] if args and call.__name__ == on_checkpoint.__name__ else None  # type: ignore[return-value]

    return harmless


def _count(call: str, error: Exception) -> None:
    if _listener is not None:
        # At the end of the stack, or of the memory, there is nothing left to count with.
        with contextlib.suppress(Exception):
            _listener.misused(call, error)


@_harmless
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


@_harmless
def log(**metrics: float) -> None:
    """Attach values to the step now in work: `log(accuracy=0.91, lr=0.1)`.

    Values must be numbers of Python's or NumPy's: a tensor would have to be waited for, so call `.item()`
    where the script can afford it. Anything else is left out and counted as a fault.
    """
    if _listener is not None:
        _listener.log(metrics)


@_harmless
def on_checkpoint(save: _Save) -> _Save:
    """Tell how to save a checkpoint, so that `c`, `ddptop checkpoint` and `ddptop stop` can ask for one.

    Returns `save` itself, so that it works as a decorator; a later call replaces it.

    Args:
        save: A `CheckpointFunction`, called as `save(step)` on every rank at the end of the same optimizer step,
            on the thread that trains, so that it may use collectives. `step` counts the optimizer steps of this
            process, as the dashboard shows them. It is called inside of `optimizer.step()`, when that has done its
            work: a counter or schedule that the script moves afterwards is still one behind. It returns where it
            saved, or None on ranks that save nothing; anything else is counted as a fault, and it has saved all the
            same. What it raises is reported with the rank; the training goes on.
    """
    if _listener is not None:
        _listener.register(save)
    return save

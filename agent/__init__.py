"""The calls by which a training script tells ddptop more; where no agent runs, each of them does nothing.

The runner (`python -m ddptop.agent script.py`) starts the agent, so a script needs none of these calls.
Importing this package loads neither torch nor textual.  No call raises an `Exception`, whatever its
arguments are: a value that cannot be used is left out and counted as a fault of the rank, which the
screens show.

__main__   the runner of a rank: the script and, beside it, the agent
onlookers  programs that tell others of runs
observer   beside the ranks, one process a run: starts them, relays, records, judges, ends
rank       inside a rank: hooks, records, sockets
client     whoever looks on at runs, or acts on them
outside    training groups that nobody prepared
end        the end of a run, and the processes that it leaves
launcher   the start of runs
record     what is kept of a run: its history over steps and time, its events and diagnoses
control    the way to an observer, for whoever acts on a run
run        what a run leaves on disk
wire       the messages
text       text of unknown origin, made fit for a terminal
startup    how our processes start

Each imports only entries below it in this list; `observer`, `rank` and `client` do not import each other.
"""

# Before any other import, `__future__` included: `python -m ddptop.agent` has put the user's folder first.
from ddptop.agent.startup import importpath

importpath.leave_current_directory(__name__)

import contextlib  # noqa: E402 - the line above must come first
import functools  # noqa: E402
import os  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from typing import ParamSpec, Protocol, TypeVar  # noqa: E402

__all__ = ["log", "on_checkpoint", "start", "step"]

CheckpointFunction = Callable[[int], "str | os.PathLike[str] | None"]

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Save = TypeVar("_Save", bound=CheckpointFunction)


class Listener(Protocol):
    """The part of this process's agent that the public functions call."""

    def announce(self, total_steps: object, note: object, coordinates: object, samples: object, tokens: object) -> None:
        """Accept what a script says of itself; see `start`."""

    def log(self, metrics: Mapping[str, object]) -> None:
        """Accept values for the current step."""

    def step(self) -> None:
        """Take the end of a step."""

    def register(self, save: object) -> None:
        """Accept the function that saves a checkpoint."""

    def misused(self, call: str, error: Exception) -> None:
        """Count a call that failed with this error."""


_listener: Listener | None = None


def _harmless(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Return a function that does as `call` does and raises no `Exception`, not even for unknown arguments."""

    @functools.wraps(call)
    def harmless(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            _count(call.__name__, error)
            # A decorator must return the function.
            return args[0] if args and call.__name__ == on_checkpoint.__name__ else None  # type: ignore[return-value]

    return harmless


def _count(call: str, error: Exception) -> None:
    if _listener is not None:
        # Counting fails too where the stack or the memory is used up.
        with contextlib.suppress(Exception):
            _listener.misused(call, error)


@_harmless
def start(
    *,
    total_steps: int | None = None,
    note: str | None = None,
    coordinates: Mapping[str, int] | None = None,
    samples: int | None = None,
    tokens: int | None = None,
) -> None:
    """Announce how many optimizer steps the training takes, so that the dashboard can show progress.

    Args:
        total_steps: Optimizer steps of the whole run, None where nobody knows.
        note: One line that every screen shows, for example that the data is synthetic.
        coordinates: The position of this rank, where ranks are not alike: `{"data": 0, "tensor": 1}` on a device mesh,
            `{"stage": 2}` in a pipeline. Ranks that differ only along `tensor`, `stage`, `pipeline`, `context` or
            `sequence` (or tp, pp, cp, sp) work on the same samples, and the dashboard counts these once.
        samples: Samples of one optimizer step of this rank, of all its backward passes together, where batches do not
            come from a `DataLoader`.
        tokens: Tokens of one such step, likewise, and where batches do not show them.
    """
    if _listener is not None:
        _listener.announce(total_steps, note, coordinates, samples, tokens)


@_harmless
def log(**metrics: float) -> None:
    """Attach values to the current step: `log(accuracy=0.91, lr=0.1)`.

    Values must be numbers of Python or NumPy. To read a tensor means to wait for the device, so the script calls
    `.item()` itself where it can afford that. Anything else is left out and counted as a fault.
    """
    if _listener is not None:
        _listener.log(metrics)


@_harmless
def step() -> None:
    """Mark the end of a training step, where optimizer steps are not what should be counted, or are not seen.

    For an optimizer that is none of torch's, or a loop with several that is to count as one. Once it was called, only
    its calls are steps. The training is paused, and saved, inside of it, so every rank has to call it as often.
    """
    if _listener is not None:
        _listener.step()


@_harmless
def on_checkpoint(save: _Save) -> _Save:
    """Register the function that saves a checkpoint, for the key `c`, `ddptop checkpoint` and `ddptop stop`.

    Returns `save` itself, so that this function works as a decorator; a later call replaces the function.

    Args:
        save: A `CheckpointFunction`, called as `save(step)` on every rank at the end of the same optimizer step,
            on the training thread, so that it may use collectives. `step` counts the optimizer steps of this
            process, as the dashboard shows them. The call happens inside of `optimizer.step()`, after the optimizer
            has done its work: a counter or schedule that the script moves afterwards is still one behind. The function
            returns the path of the checkpoint, or None on ranks that save nothing; anything else is counted as a
            fault, and the checkpoint counts as saved. An exception is reported with the rank; the training goes on.
    """
    if _listener is not None:
        _listener.register(save)
    return save

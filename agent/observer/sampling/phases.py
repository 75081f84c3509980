"""The phase in which a stack stands, and the part of its time that a thread spends in each, by many stacks. Pure.

Frames of Python do not show whether a backward pass computes or waits for the gradients of others: both are inside of
torch's engine. So there are looks of two kinds: some find the thread whatever it does, others only while it runs or is
ready to run. With the time that it ran, which the system counts exactly, both together say how much of the time in
each place was idle; idle inside of the engine is `wait`. A `time.sleep` in the user's forward pass is idle, too, and
stays `forward`: its innermost frame is a line of the user's.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ddptop.agent.run.script.stacks import function_name

_OTHER: Final = "other"
_ENGINE: Final = "engine"
"""Inside of a backward pass, with no frame of the user's below: computing, or waiting for others."""
_IDLE: Final = ("wait", _ENGINE, "data")
"""Phases in which a training is idle, if it is, the most likely first."""
_FADES: Final = 0.8
"""What a window counts for at the next one, in the estimate of what was idle: about five windows matter."""
_ROUNDS: Final = 60
_CROWDED: Final = 0.01
"""Part of the time that a thread is late to wake up, from which on its host has no core to spare."""
_PRIOR: Final = 30.0
"""Looks for which it counts that looks come at any moment, as they do with a core to spare."""
_REMEMBERED: Final = 8
"""Windows by which it is estimated how far looks depend on their neighbours."""
MOST_FRAMES: Final = 300
_LONGEST: Final = 2048
"""Characters of a frame at most: its names are the program's, which may be any."""

_FRAME: Final = re.compile(r"(.*) \((.*?)(?::(\d+))?\)")
_THREAD: Final = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: (.*))?")
_DIST: Final = r"torch/distributed/"

_WAITS: Final = (
    (_DIST + r"distributed_c10d\.py", r"(?!init_process_group|_create_|_?new_|destroy_|get_)\w+"),
    (_DIST + r"_functional_collectives\.py", r"wait_tensor|_maybe_wait_tensor|wait"),
    (r"torch/nn/parallel/distributed\.py", r"_\w*(?:sync|broadcast)\w*"),
    (_DIST + r"(?:fsdp/_fully_shard|_composable/fsdp)/\w+\.py", r"wait_for_unshard|_wait_all_gather\w*"),
    (r"horovod/torch/mpi_ops\.py", r"synchronize"),
)
_BACKWARD: Final = (
    (r"torch/autograd/(?:__init__|graph)\.py", r"backward|grad|_engine_run_backward"),
    (r"torch/_tensor\.py", r"backward"),
)
_OPTIMIZER: Final = (
    (r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py", r"(?!zero_grad)\w+"),
    (r"torch/optim/_multi_tensor/\w+\.py", r"\w+"),
    (r"torch/(?:cuda/)?amp/grad_scaler\.py", r"step|unscale_|_unscale_grads_|update|_maybe_opt_step"),
    (r"torch/nn/utils/clip_grad\.py", r"\w+"),
    (_DIST + r"(?:optim/\w+|fsdp/_optim_utils)\.py", r"\w+"),
    (r"(?:apex/(?:contrib/)?optimizers|bitsandbytes/optim|deepspeed/ops|torch_optimizer)/.*\.py", r"\w+"),
    (r"deepspeed/runtime/.*\.py", r"step|_take_model_step|unscale_and_clip_grads"),
)
_DATA: Final = (
    (r"torch/utils/data/.*\.py", r"\w+"),
    (r"accelerate/data_loader\.py", r"\w+"),
    (r"transformers/data/.*\.py", r"\w+"),
    (r"transformers/trainer\.py", r"get_batch_samples"),
    (r"(?:pytorch_lightning|lightning/pytorch)/(?:loops/fetchers|utilities/combined_loader)\.py", r"\w+"),
    (r"(?:torchvision/(?:transforms|datasets)|datasets|webdataset|torchdata|streaming|nvidia/dali)/.*\.py", r"\w+"),
)
_FORWARD: Final = (
    (r"torch/nn/modules/module\.py", r"_call_impl|_wrapped_call_impl|_slow_forward|__call__|inner"),
    (r"torch/nn/functional\.py", r"\w+"),
    (r"torch/nn/parallel/\w+\.py", r"forward|_run_ddp_forward|_pre_forward|_post_forward"),
    (_DIST + r"pipelining/stage\.py", r"forward_one_chunk"),
    (r"(?:pytorch_lightning|lightning/pytorch)/strategies/\w+\.py", r"training_step"),
    (r"transformers/trainer\.py", r"compute_loss"),
)
_STARTS: Final = {
    "_find_and_load (<frozen importlib": "imports",
    "init_process_group (": "rendezvous",
}
"""Frames of what a program does before it trains."""
_CALL_OF_C: Final = re.compile(r"\.wait\(\)|\bdist\.barrier\(")
"""Waits of a line of the user's that have no frame of their own."""
_RULES: Final = tuple(
    (phase, re.compile(rf"(?:.*/)?(?:{file})"), re.compile(function))
    for phase, rules in (
        ("wait", _WAITS),
        ("optimizer", _OPTIMIZER),
        ("data", _DATA),
        ("backward", _BACKWARD),
        ("forward", _FORWARD),
    )
    for file, function in rules
)
"""By phase, files and functions in which torch and the usual libraries are in it; the first that fits."""


class Frame(NamedTuple):
    """A frame of a stack."""

    function: str
    file: str
    line: int

    @property
    def name(self) -> str:
        """The name of its function without the class."""
        return self.function.rpartition(".")[2]


class Place(NamedTuple):
    """Where a stack stands."""

    phase: str
    """One of `PHASES`, or inside of torch's engine."""
    where: Frame | None
    """The innermost line of the user's code."""


class Look(NamedTuple):
    """What the main thread of a process was found in, by stacks with the number of looks at each."""

    seen: Mapping[str, int]
    """Whatever it did."""
    active: Mapping[str, int] | None
    """While it ran, or was ready to. None: py-spy does not know when, as of Python 3.10 and older."""
    busy: float | None
    """The part of the time that it ran, or was kept from it by others. None: the system does not say it."""
    late: float = 0.0
    """The part that it was ready to run after it had been idle, and had no CPU yet: its wait lasted longer."""
    starved: float | None = None
    """The part that it was ready to run and had no CPU, for whatever reason."""


class Shares(NamedTuple):
    """The parts of a window."""

    phases: dict[str, float]
    lines: list[tuple[str, Frame, float]]
    """By phase and line, the most first."""
    blocks: int
    """Looks that count as independent of each other."""
    busy: float | None
    """The part that it ran, or was kept from it; None where there are no looks."""
    still: str
    """The only stack that was found, where nothing says that it moved."""


def read(raw: bytes, pid: int) -> Counter[str]:
    """Return the stacks of a process's main thread in the output of `py-spy record --format raw --threads`."""
    found: Counter[str] = Counter()
    for line in raw.decode("utf-8", "replace").splitlines():
        stack, _, number = line.rpartition(" ")
        thread, _, frames = stack.partition(";")
        head = _THREAD.fullmatch(thread)
        if head and number.isdecimal() and (head[1] == str(pid) or head[2] == "MainThread"):
            found[frames] += int(number[:9])
    return found


def frames_of(stack: str) -> list[Frame]:
    """Return the frames of a stack, the innermost first."""
    frames = reversed(stack.split(";")[-MOST_FRAMES:])
    found = (_FRAME.fullmatch(each) for each in frames if len(each) <= _LONGEST)
    return [Frame(function_name(each[1]), each[2], int((each[3] or "0")[:9])) for each in found if each]


def place_of(stack: str, is_library: Callable[[str], bool], source: Callable[[Frame], str] = lambda _: "") -> Place:
    """Return where a stack stands.

    The innermost frame that says it decides: a loss that is computed inside of an optimizer's step is no part of that.
    But a module that a backward pass calls, or the making of a batch, belongs to these.

    Args:
        stack: its frames.
        is_library: says of a file whether it is no code of the user's.
        source: returns the text of a line, empty where it is not known: a call of C leaves no frame, `work.wait()` too.
    """
    frames = frames_of(stack)
    found = [(phase, depth) for depth, frame in enumerate(frames) if (phase := _phase_of(frame)) is not None]
    if found and found[0][0] == "forward":
        found = [each for each in found if each[0] in ("backward", "data")] or found
    phase, depth = found[0] if found else (_OTHER, len(frames))
    where = next((each for each in frames if not is_library(each.file)), None)
    if phase == "backward" and all(is_library(each.file) for each in frames[: depth + 1]):
        phase = _ENGINE
    elif where is not None and where == frames[0] and _CALL_OF_C.search(source(where)):
        phase = "wait"
    return Place(phase, where)


def _phase_of(frame: Frame) -> str | None:
    return _phase(frame.file, frame.name)


@functools.lru_cache(4096)
def _phase(file: str, name: str) -> str | None:
    return next((phase for phase, files, names in _RULES if files.fullmatch(file) and names.fullmatch(name)), None)


def in_worker(stack: str, is_library: Callable[[str], bool]) -> Frame | None:
    """Return the innermost line of the user's code by which a data worker makes a batch; None where it makes none."""
    for frame in frames_of(stack):
        if frame.file.endswith("torch/utils/data/_utils/fetch.py"):
            return None
        if not is_library(frame.file):
            return frame if "torch/utils/data/_utils/fetch.py" in stack else None
    return None


def waits_for_workers(seen: Mapping[str, int]) -> bool:
    """Say whether a tenth of all looks found the thread waiting for its data workers."""
    return _part_with("_try_get_data (", seen) > 0.1


def start_in(seen: Mapping[str, int]) -> str:
    """Return what a program does before it trains, where most looks found it in that; else empty."""
    return next((name for frame, name in _STARTS.items() if _part_with(frame, seen) > 0.5), "")


def _part_with(frame: str, seen: Mapping[str, int]) -> float:
    return sum(number for stack, number in seen.items() if frame in stack) / sum(seen.values())


def waits_in(stack: str, where: Frame | None) -> str:
    """Return the call in which a stack waits, by its innermost frames: `all_reduce`, `wait (threading.py)`; empty
    where it is none, but the user's own line `where`.
    """
    frames = frames_of(stack)
    if not frames or frames[0] == where:
        return ""
    found = next((phase for each in frames[:6] if (phase := _phase_of(each)) in ("backward", "wait")), None)
    if found == "wait":
        # The outermost one is what the program has called.
        return [each.name for each in frames if _phase_of(each) == "wait"][-1]
    return found or f"{frames[0].name} ({frames[0].file.rpartition('/')[2]})"


class Thread:
    """The main thread of one rank, window after window."""

    def __init__(self, is_library: Callable[[str], bool], source: Callable[[Frame], str] = lambda _: "") -> None:
        """Know nothing yet; for the arguments see `place_of`."""
        self._place = functools.lru_cache(4096)(functools.partial(place_of, is_library=is_library, source=source))
        self._seen: defaultdict[str, float] = defaultdict(float)
        self._active: defaultdict[str, float] = defaultdict(float)
        self._busy = self._late = self._weight = 0.0
        self._windows: deque[dict[str, float]] = deque(maxlen=_REMEMBERED)

    def take(self, look: Look, *, engine_waits: bool = True) -> Shares:
        """Take in a window and return the shares in it, which are none where there are no looks.

        Args:
            look: the stacks.
            engine_waits: False where another thread computes the backward pass, as it is of tensors on a device: the
                main thread is idle meanwhile, whether or not there is anything to wait for.
        """
        total = sum(look.seen.values())
        if not total:
            return Shares({}, [], 0, None, "")
        active = look.active or {}
        busy = look.busy if look.busy is not None else min(1.0, sum(active.values()) / total)
        for kept in (self._seen, self._active):
            for phase in kept:
                kept[phase] *= _FADES
        self._busy, self._late = self._busy * _FADES + busy, self._late * _FADES + look.late
        self._weight = self._weight * _FADES + 1
        places: Counter[Place] = Counter()
        for stack, number in look.seen.items():
            places[self._place(stack)] += number
        for place, number in places.items():
            self._seen[place.phase] += number
        for stack, number in active.items():
            self._active[self._place(stack).phase] += number
        ran, late = self._busy / self._weight, self._late / self._weight
        found = supposed(self._seen, ran) if look.active is None else times(self._seen, self._active, ran, late)
        # Looks of a phase count as much as the phase takes time: see `times`.
        worth = {each: sum(found[each]) / number for each, number in self._seen.items() if number}
        whole = sum(worth[place.phase] * number for place, number in places.items())
        phases: defaultdict[str, float] = defaultdict(float)
        lines: defaultdict[tuple[str, Frame], float] = defaultdict(float)
        for place, number in places.items():
            share = worth[place.phase] * number / whole if whole else number / total
            parts = {place.phase: 1.0}
            if place.phase == _ENGINE:
                idle = found[_ENGINE].part if engine_waits else 0.0
                parts = {"wait": idle, "backward": 1 - idle}
            for phase, part in parts.items():
                phases[phase] += part * share
                if place.where is not None and part:
                    lines[phase, place.where] += part * share
        self._windows.append(dict(phases))
        ordered = sorted(((phase, where, part) for (phase, where), part in lines.items()), key=lambda each: -each[2])
        only = next(iter(look.seen)) if len(look.seen) == 1 and total >= 10 else ""
        # One that waits for nearly all of each step is found nowhere else; its CPU time shows that it moves.
        is_still = only and not 0.005 < busy < 0.5 and not active.keys() - {only}
        blocks = max(1, round(total / self._spread(total)))
        return Shares(dict(phases), ordered, blocks, round(busy, 4), only if is_still else "")

    def _spread(self, looks: int) -> float:
        """Return how many times more the shares vary from window to window than independent looks would."""
        number = len(self._windows)
        if number < 3:
            return 1.0
        found = expected = 0.0
        for phase in {phase for each in self._windows for phase in each}:
            values = [each.get(phase, 0.0) for each in self._windows]
            mean = sum(values) / number
            found += sum((value - mean) ** 2 for value in values) / (number - 1)
            expected += mean * (1 - mean) / looks
        return max(1.0, found / expected) if expected else 1.0


class Time(NamedTuple):
    """The parts of all time that a thread ran, and was idle, in one phase."""

    ran: float
    idle: float

    @property
    def part(self) -> float:
        """The part of the phase that was idle."""
        return _part(self.idle, self.ran)


def times(seen: Mapping[str, float], active: Mapping[str, float], busy: float, late: float = 0.0) -> dict[str, Time]:
    """Return the time in each phase, by maximum likelihood (EM).

    Where all cores are in use, looks come rather when the thread is idle and has left one of them free: how much so is
    estimated, too. With the time that it ran, which is known, few looks are enough.

    Args:
        seen: looks at the thread whatever it did.
        active: looks that found it running or ready to run.
        busy: the part of all time that it ran or was kept from it.
        late: the part that it was idle, though ready to run.
    """
    phases = seen.keys() | active.keys()
    runs = dict.fromkeys(phases, busy / max(1, len(phases)))
    idles = dict.fromkeys(phases, (1 - busy) / max(1, len(phases)))
    ready, favor = min(1.0, late / (1 - busy)) if busy < 1 else 0.0, 1.0
    for _ in range(_ROUNDS):
        ran = {each: seen.get(each, 0.0) * _part(favor * runs[each], idles[each]) for each in phases}
        also = {each: active.get(each, 0.0) * _part(runs[each], ready * idles[each]) for each in phases}
        all_ran, all_seen = sum(ran.values()), sum(seen.values())
        if late > _CROWDED and 0 < busy < 1:
            favor = (all_ran / busy + _PRIOR) / ((all_seen - all_ran) / (1 - busy) + _PRIOR)
        stood = {each: seen.get(each, 0.0) - ran[each] + active.get(each, 0.0) - also[each] for each in phases}
        ran = {each: ran[each] + also[each] for each in phases}
        all_ran, all_stood = sum(ran.values()), sum(stood.values())
        if all_ran:
            runs = {each: busy * ran[each] / all_ran for each in phases}
        if all_stood:
            idles = {each: (1 - busy) * stood[each] / all_stood for each in phases}
    return {each: Time(runs[each], idles[each]) for each in phases}


def supposed(seen: Mapping[str, float], busy: float) -> dict[str, Time]:
    """Return the time in each phase where nothing shows when the thread ran: idle is what most likely is."""
    total = sum(seen.values()) or 1.0
    found, left = {}, 1 - busy
    for phase in sorted(seen, key=lambda each: _IDLE.index(each) if each in _IDLE else len(_IDLE)):
        idle = min(seen[phase] / total, left)
        found[phase], left = Time(seen[phase] / total - idle, idle), left - idle
    return found


def _part(one: float, other: float) -> float:
    return one / (one + other) if one + other else 0.0

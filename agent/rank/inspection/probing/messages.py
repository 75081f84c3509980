"""Messages between ranks, by the default process group of the script: of pairs in turn, and of the whole group.

No group is made for it, because the numbers and names of groups are a state of the training.  The group numbers its
calls, and a rank that had made one more or fewer than the others would never find them again.  So no rank makes one
before all have said, in the store in which they have met, that they are there, with all memory that they need
(`agreed`); and each then makes all calls of its part, whatever becomes of them.  A message of a pair is an exchange of
the whole group in which all others send nothing: gloo ends all connections of a rank where a wait for a `recv` runs out
of time, and NCCL makes another communicator for each pair.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ddptop.agent.rank.faults import describe, is_ours
from ddptop.agent.rank.inspection.probing.experiments import Unmeasured, spare
from ddptop.agent.wire import Carried, Pair, Probe, Probed

COME_S: Final = 2.0
"""Seconds within which all ranks have to come."""
WAIT_S: Final = 3.0
"""Seconds that a message may take."""
LARGE: Final = 3
SMALL: Final = 5
"""Messages of each size."""
_LATE: Final = "a message took longer than 3 s"


def agreed(store: Any, name: str, world: int) -> bool:
    """Say whether all ranks have come, alike on all ranks; the first one that decides has decided for all.

    Args:
        store: in which the ranks of the group have met.
        name: of the keys there.
        world: number of the ranks.

    Raises:
        RuntimeError: the store does not answer.
    """
    give_up, nap = time.monotonic() + COME_S, max(0.001, world * 5e-5)
    come = store.add(f"{name}/here", 1)
    while come < world and time.monotonic() < give_up:
        time.sleep(nap)
        come = store.add(f"{name}/here", 0)
    return _decide(store, name, come >= world)


def _decide(store: Any, name: str, goes: bool) -> bool:
    """Decide for all ranks, unless one has decided already; return the decision."""
    return bytes(store.compare_set(f"{name}/decided", "", "go" if goes else "stay")) == b"go"


def _forget(store: Any, name: str, world: int) -> None:
    """Remove the keys, once no rank needs them any more."""
    if store.add(f"{name}/left", 1) == world:
        try:
            for key in ("here", "decided", "left"):
                store.delete_key(f"{name}/{key}")
        except RuntimeError as error:
            # A store in a file may not remove keys.
            if not is_ours(error):
                raise


class _Call(NamedTuple):
    """A call of the group that is planned."""

    name: str
    arguments: tuple[Any, ...]
    takes: list[float]
    """Where the seconds of it go."""


class Messages:
    """The calls of one part, the same on all ranks and in the same order."""

    def __init__(self, torch: Any, device: Any) -> None:
        """Find the group.

        Raises:
            Unmeasured: there is none.
        """
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            raise Unmeasured("its script has no process group")
        c10d = torch.distributed.distributed_c10d
        self.store, self._group = c10d._get_default_store(), c10d._get_default_group()
        self.rank, self.world = self._group.rank(), self._group.size()
        self._torch = torch
        self._device = _device_of(torch, self._group, device)
        self._begun: list[tuple[Any, _Call]] = []
        """Calls that nobody has waited for, with their tensors."""

    def run(self, command: Probe) -> Probed:
        """Do a part, as soon as all ranks have come to it.

        Raises:
            Unmeasured: some have not.
        """
        small: list[float] = []
        large: list[float] = []
        times: dict[int, tuple[list[float], list[float]]] = {}
        size = command.size
        if self._device.type == "cuda" and spare(self._torch, self._device) < 2 * size:
            raise Unmeasured("no room on the device below its peak of memory for messages")
        # All memory first: who has agreed makes all calls.
        plan = self._of_all(size, small, large) if command.kind == "group" else self._of_rounds(command, times)
        calls = iter(plan)
        # A group may have a backend for each kind of device, and each of them numbers its calls.
        name = f"ddptop/probe/{command.token}/{command.part}/{self._device.type}"
        try:
            goes = agreed(self.store, name, self.world)
            problem = self._make(calls) if goes else ""
        except BaseException:
            # A signal handler of the script has raised. The others may have decided without it.
            with contextlib.suppress(RuntimeError):
                if _decide(self.store, name, False):
                    for call in calls:
                        self._try(call, waits=False)
            raise
        _forget(self.store, name, self.world)
        if not goes:
            raise Unmeasured(f"not all ranks have come within {COME_S:.0f} s")
        carried = [
            Carried(source, self.rank, size, tuple(many), tuple(few)) for source, (few, many) in times.items() if many
        ]
        return Probed(carried=tuple(carried), small_s=tuple(small), large_s=tuple(large), problem=problem)

    def _of_all(self, size: int, small: list[float], large: list[float]) -> list[_Call]:
        one, many = self._bytes(4), self._bytes(size)
        # A small one before each large one, so that all begin together.
        plan = [_Call("allreduce", ([one],), []), *[_Call("allreduce", ([one],), small)] * SMALL]
        return plan + [_Call("allreduce", ([one],), []), _Call("allreduce", ([many],), large)] * LARGE

    def _of_rounds(self, command: Probe, times: dict[int, tuple[list[float], list[float]]]) -> list[_Call]:
        """Plan the messages of pairs; `times` has, by sender, where the seconds of those to this rank go."""
        sent, received = self._bytes(command.size), self._bytes(command.size)
        plan: list[_Call] = []
        for pairs in command.rounds:
            for directed in (pairs, tuple((receiver, sender) for sender, receiver in pairs)):
                source = {receiver: sender for sender, receiver in directed}.get(self.rank)
                few: list[float] = []
                many: list[float] = []
                plan += self._of_pairs(directed, sent, received, few, many)
                if source is not None:
                    times[source] = few, many
        return plan

    def _of_pairs(
        self, pairs: Sequence[Pair], sent: Any, received: Any, small: list[float], large: list[float]
    ) -> list[_Call]:
        target = dict(pairs).get(self.rank)
        source = {receiver: sender for sender, receiver in pairs}.get(self.rank)
        plan = []
        for size, count, takes in ((4, SMALL, small), (len(sent), LARGE, large)):
            out = [size if rank == target else 0 for rank in range(self.world)]
            into = [size if rank == source else 0 for rank in range(self.world)]
            exchanged = received[: sum(into)], sent[: sum(out)], into, out
            plan.append(_Call("allreduce", ([self._bytes(4)],), []))
            plan += [_Call("alltoall_base", exchanged, takes)] * count
        return plan

    def _bytes(self, number: int) -> Any:
        return self._torch.full((number,), 0, dtype=self._torch.uint8, device=self._device)

    def _make(self, calls: Iterator[_Call]) -> str:
        """Make all calls, after an error without waiting for any: the others make them, too. Return the problem."""
        problem = ""
        for call in calls:
            problem = self._try(call, waits=not problem) or problem
        return problem

    def _try(self, call: _Call, *, waits: bool) -> str:
        began = time.perf_counter()
        try:
            work = getattr(self._group, call.name)(*call.arguments)
            if not waits:
                self._begun.append((work, call))
                return ""
            if work is not None:
                _await(work, self._device)
        except (RuntimeError, TimeoutError) as error:
            if not is_ours(error):
                raise
            self._begun.append((None, call))
            return _LATE if time.perf_counter() - began >= WAIT_S else describe(error)
        call.takes.append(time.perf_counter() - began)
        return ""


def _await(work: Any, device: Any) -> None:
    """Wait for a call, for `WAIT_S` at most.

    Raises:
        RuntimeError, TimeoutError: it takes longer, or has failed.
    """
    if device.type == "cpu":
        work.wait(datetime.timedelta(seconds=WAIT_S))
        return
    # NCCL's own wait aborts the communicators of the training where it runs out of time.
    give_up = time.monotonic() + WAIT_S
    while not work.is_completed():
        if time.monotonic() > give_up:
            raise TimeoutError(_LATE)
        time.sleep(20e-6)
    work.wait()


def _device_of(torch: Any, group: Any, device: Any) -> Any:
    """Return the device whose tensors the group takes: that of the training, or else the host."""
    kinds = {str(each).partition(":")[0] for each in getattr(group, "_device_types", [])}
    return device if not kinds or device.type in kinds else torch.device("cpu")

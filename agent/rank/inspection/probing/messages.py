"""Messages between ranks, by the default process group of the script: of pairs in turn, and of the whole group.

No group is made for it, because the numbers and names of groups are a state of the training.  The group numbers its
calls, and a rank that had made one more or fewer than the others would never find them again.  So no rank makes one
before all have said, in the store in which they have met, that they are there (`agreed`); and each then makes all calls
of its part, whatever becomes of them.  A message of a pair is an exchange of the whole group in which all others send
nothing: gloo ends all connections of a rank where a wait for a `recv` runs out of time, and NCCL makes another
communicator for each pair.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from ddptop.agent.rank.faults import describe
from ddptop.agent.rank.inspection.probing.experiments import Unmeasured, finish
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
        name: of the keys there, which are removed.
        world: number of the ranks.

    Raises:
        RuntimeError: the store does not answer.
    """
    here, decided, left = (f"{name}/{key}" for key in ("here", "decided", "left"))
    give_up, nap = time.monotonic() + COME_S, max(0.001, world * 5e-5)
    come = store.add(here, 1)
    while come < world and time.monotonic() < give_up:
        time.sleep(nap)
        come = store.add(here, 0)
    decision = store.compare_set(decided, "", "go" if come >= world else "stay")
    if store.add(left, 1) == world:
        # A store in a file may not remove keys.
        with contextlib.suppress(RuntimeError):
            for key in (here, decided, left):
                store.delete_key(key)
    return bytes(decision) == b"go"


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
        c10d = getattr(torch, "distributed", None)
        if c10d is None or not c10d.is_available() or not c10d.is_initialized():
            raise Unmeasured("its script has no process group")
        self.store = c10d.distributed_c10d._get_default_store()
        self._group = c10d.distributed_c10d._get_default_group()
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
        if not agreed(self.store, f"ddptop/probe/{command.token}/{command.part}", self.world):
            raise Unmeasured(f"not all ranks have come within {COME_S:.0f} s")
        if command.kind == "group":
            small: list[float] = []
            large: list[float] = []
            problem = self._make(self._of_all(command.size, small, large))
            return Probed(small_s=tuple(small), large_s=tuple(large), problem=problem)
        found: list[Carried] = []
        sent, received = self._bytes(command.size), self._bytes(command.size)
        plan: list[_Call] = []
        times: dict[int, tuple[list[float], list[float]]] = {}
        for pairs in command.rounds:
            for directed in (pairs, tuple((receiver, sender) for sender, receiver in pairs)):
                source = {receiver: sender for sender, receiver in directed}.get(self.rank)
                small, large = [], []
                plan += self._of_pairs(directed, sent, received, small, large)
                if source is not None:
                    times[source] = small, large
        problem = self._make(plan)
        found = [
            Carried(source, self.rank, command.size, tuple(large), tuple(small))
            for source, (small, large) in times.items()
            if large
        ]
        return Probed(carried=tuple(found), problem=problem)

    def _of_all(self, size: int, small: list[float], large: list[float]) -> list[_Call]:
        one, many = self._bytes(4), self._bytes(size)
        # A small one before each large one, so that all begin together.
        plan = [_Call("allreduce", ([one],), []), *[_Call("allreduce", ([one],), small)] * SMALL]
        return plan + [_Call("allreduce", ([one],), []), _Call("allreduce", ([many],), large)] * LARGE

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

    def _make(self, plan: Iterable[_Call]) -> str:
        """Make all calls, after an error without waiting for any: the others make them, too. Return the problem."""
        problem = ""
        calls = iter(plan)
        try:
            for call in calls:
                problem = self._try(call, waits=not problem) or problem
        finally:
            # A signal handler of the script has raised.
            for call in calls:
                self._try(call, waits=False)
        return problem

    def _try(self, call: _Call, *, waits: bool) -> str:
        began = time.perf_counter()
        try:
            work = getattr(self._group, call.name)(*call.arguments)
            if not waits:
                self._begun.append((work, call))
                return ""
            if work is not None:
                work.wait(datetime.timedelta(seconds=WAIT_S))
            finish(self._torch, self._device, WAIT_S)
        except (RuntimeError, TimeoutError) as error:
            self._begun.append((None, call))
            return _LATE if time.perf_counter() - began >= WAIT_S else describe(error)
        call.takes.append(time.perf_counter() - began)
        return ""


def _device_of(torch: Any, group: Any, device: Any) -> Any:
    """Return the device whose tensors the group takes: that of the training, or else the host."""
    kinds = {str(each).partition(":")[0] for each in getattr(group, "_device_types", [])}
    return device if not kinds or device.type in kinds else torch.device("cpu")

"""Timing of every collective of every process group, DDP's own C++ calls included.

Uses the pre and post hooks of `torch.distributed.ProcessGroup`, which see calls from C++ as
well as from Python.  Where torch has none of them, nothing is observed and the screen says
so.  The arguments of a hook hold the tensors: nothing here keeps them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.tape import Call, Tape

_OWN_HOOK = 0xDD70
"""Our id among the hooks of a process group."""

_NAMES = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce_coalesced",
    "ALLGATHER": "all_gather",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "ALLGATHER_BASE": "all_gather_into_tensor",
    "_ALLGATHER_BASE": "all_gather_into_tensor",
    "REDUCE_SCATTER": "reduce_scatter",
    "REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
    "RECVANYSOURCE": "recv_any_source",
}
"""torch's names of operations that are not simply the function's name in capitals."""


class Collectives:
    """Hooks on process groups; writes calls to the tape."""

    def __init__(self, tape: Tape, faults: Faults) -> None:
        self._tape = tape
        self._faults = faults
        self._flying: dict[int, Call] = {}
        self.mechanism: str | None = None
        """What collectives are seen by, None where nothing is."""

    @property
    def outstanding(self) -> int:
        """Collectives entered and not yet complete."""
        return len(self._flying)

    def watch(self, group: Any) -> None:
        """Hook a process group of torch; does nothing where torch cannot be hooked."""
        if not hasattr(group, "register_pre_hook") or not hasattr(group, "register_post_hook"):
            return
        entered: dict[int, Call] = {}

        def before(args: Any) -> None:
            size = sum(tensor.nbytes for tensor in args.input_tensors)
            name = args.name.name
            call = Call(
                _NAMES.get(name, name.lower()),
                self._tape.clock(),
                size,
                len(self._flying) + 1,
                not args.async_op,
            )
            entered[args.op_id] = call
            self._flying[id(call)] = call
            self._tape.call(call)

        def after(args: Any) -> None:
            call = entered.pop(args.op_id)
            if args.work is None:
                self._finish(call, None)
            else:
                args.work.get_future().add_done_callback(partial(self._finish, call))

        group.register_pre_hook(_OWN_HOOK, self._faults.guard(before))
        group.register_post_hook(_OWN_HOOK, self._faults.guard(after))
        self.mechanism = "process-group hooks"
        self._tape.observed = True

    def _finish(self, call: Call, _future: object) -> None:
        # Runs on a thread of the backend; a single attribute and a dict deletion need no lock.
        call.done = self._tape.clock()
        self._flying.pop(id(call), None)

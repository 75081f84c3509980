"""The start of torch.distributed and its process groups: each new one gets the hooks of the collectives."""

from __future__ import annotations

import atexit
import functools
import os
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent.rank.collectives import backends, timing
from ddptop.agent.rank.hooks import injection
from ddptop.agent.rank.hooks.around import Hooks, on_leaving, replace

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

_GROUP_HOOKS: Final = (timing.HOOK_ID, injection.HOOK_ID)


def distributed(session: Session, torch: Any) -> None:
    """Note the start of torch.distributed, and hook each new process group."""
    if not torch.distributed.is_available():
        session.collectives.expects_groups = True
        return
    from torch.distributed import distributed_c10d as c10d

    def make(_size: int, group_rank: int | None, ranks: list[int], *given: Any, timeout: Any = None, **_: Any) -> None:
        # A rank that is no member waits for nobody.
        if group_rank is not None:
            session.collectives.form(str(given[2]), ranks, None if timeout is None else timeout.total_seconds())

    def made(result: Any) -> None:
        try:
            if isinstance(result, tuple) and result and isinstance(result[0], torch.distributed.ProcessGroup):
                session.collectives.watch(result[0])
        finally:
            session.collectives.forming = None

    def split(result: Any) -> None:
        if result is not None:
            session.collectives.watch(result)

    asked: list[Any] = []

    def enter_init(_backend: Any = None, _method: Any = None, timeout: Any = None, *_: Any, **__: Any) -> None:
        asked[:] = [timeout]
        session.starting("rendezvous")

    def leave_init(_: Any) -> None:
        backend = str(torch.distributed.get_backend())
        session.backend = backends.described(torch, backend)
        timeout = asked[0] or c10d._get_default_timeout(c10d.Backend(backend))
        session.timeout_s = timeout.total_seconds()
        session.starting("building the model")
        session.rendezvous.joined(torch)

    hooks = Hooks(session, torch)
    hooks.around(c10d, "_new_process_group_helper", make, made)
    if hasattr(torch.distributed.ProcessGroup, "split_group"):
        hooks.around(torch.distributed.ProcessGroup, "split_group", lambda *_, **__: None, split)
    hooks.around(c10d, "init_process_group", enter_init, leave_init)
    session.collectives.expects_groups = True
    # Device meshes have a reference of their own.
    for module in (torch.distributed, torch.distributed.device_mesh):
        replace(module, "init_process_group", c10d.init_process_group)
    session.rendezvous.prepare(torch)
    unhook = functools.partial(session.faults.guard(_unhook), session, c10d)
    atexit.register(unhook)
    on_leaving(functools.partial(atexit.unregister, unhook))
    on_leaving(unhook)


def _unhook(session: Session, c10d: Any) -> None:
    # In a forked child no thread calls the groups, and their locks may be held forever.
    if os.getpid() != session.owner:
        return
    # A group that outlives the interpreter would call hooks that are gone by then.
    for group in tuple(c10d._world.pg_map):
        for hook in _GROUP_HOOKS:
            if hasattr(group, "unregister_pre_hook"):
                group.unregister_pre_hook(hook)
                group.unregister_post_hook(hook)

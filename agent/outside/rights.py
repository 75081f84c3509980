"""The permission to look into a process from outside, found out before; each reason is one line with its cure.

Linux asks twice: whether the user may at all (owner, capability), and, where Yama is there, whether the process that
looks is an ancestor, or was allowed by the other one.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

from ddptop.agent.end.processes import lineage
from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process

_PROC: Final = Path("/proc")
_SCOPE: Final = _PROC / "sys/kernel/yama/ptrace_scope"
_SYS_PTRACE: Final = 1 << 19
"""The bit of CAP_SYS_PTRACE, by linux/capability.h."""
_ALLOW: Final = "sudo sysctl kernel.yama.ptrace_scope=0"
_ANCESTORS: Final = 1
"""The restriction under which ancestors may look, and who was allowed by the process itself."""
_NOBODY: Final = 3


def may_look(process: Process, program: str = "") -> str:
    """Return why this process, and what it starts, may not read the memory of another one; empty where they may.

    A `program` that looks may have capabilities of its own.
    """
    pid = process.pid
    row = identity.look(process)
    if row is None:
        return f"process {pid} is gone"
    if (held := held_by(process)) is not None:
        return f"process {pid} is held by a debugger (process {held}): end that first"
    scope = ptrace_scope()
    if scope < _NOBODY and (_has_capability() or (program and _is_privileged(program))):
        return ""
    if row.uid != os.geteuid():
        return f"process {pid} belongs to user {_user(row.uid)}: sudo ddptop, or as that user"
    if identity.namespace_of(pid) not in ("", identity.namespace()):
        return f"process {pid} lives in a container: run ddptop in there, with --cap-add SYS_PTRACE"
    return "" if scope == _ANCESTORS and os.getpid() in lineage(pid, identity.table()) else by_scope()


def by_scope() -> str:
    """Return why a user may not look by the restriction that Yama sets, and what allows it; empty without one."""
    scope = ptrace_scope()
    if scope >= _NOBODY:
        return f"kernel.yama.ptrace_scope is {scope}, which forbids it until the next boot"
    return f"kernel.yama.ptrace_scope is {scope}, which forbids it; {_ALLOW} allows it" if scope else ""


def held_by(process: Process) -> int | None:
    """Return the pid of the debugger that traces a process, None where none does."""
    for line in _lines(_PROC / str(process.pid) / "status"):
        if line.startswith("TracerPid:"):
            return int(line.split()[1]) or None
    return None


def ptrace_scope() -> int:
    """Return the restriction that Yama sets, 0 where there is none."""
    lines = _lines(_SCOPE)
    return int(lines[0]) if lines and lines[0].isdecimal() else 0


def _has_capability() -> bool:
    held = [int(line.split()[1], 16) for line in _lines(_PROC / "self/status") if line.startswith("CapEff:")]
    return bool(held and held[0] & _SYS_PTRACE)


def _is_privileged(program: str) -> bool:
    """Say whether a program gets capabilities by its file, as after `setcap cap_sys_ptrace=ep`, or by its owner."""
    try:
        return "security.capability" in os.listxattr(program) or bool(
            os.stat(program).st_mode & 0o4000 and os.stat(program).st_uid == 0
        )
    except (OSError, AttributeError):
        return False


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

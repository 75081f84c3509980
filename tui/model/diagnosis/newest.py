"""The newest diagnosis that is kept with a run, as lines.

What makes lines of one is loaded once it is shown, because few runs are diagnosed while somebody looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.agent.run.rundir import RunDir
    from ddptop.tui.model.diagnosis.report import ReportLine


def newest(kind: str, directory: RunDir) -> list[ReportLine]:
    """Return the newest diagnosis of a kind of `KINDS`, or a line that says that there is none."""
    if kind == "probe":
        from ddptop.agent.observer.record import probes
        from ddptop.tui.model.diagnosis import probe

        return probe.newest(probes.kept(directory.probes))
    if kind == "memory":
        from ddptop.agent.observer.record import memory as record
        from ddptop.tui.model.diagnosis import memory

        return memory.newest(record.kept(directory.memory))
    assert kind == "profile"
    from ddptop.agent.observer.record.profiles import kept
    from ddptop.tui.model.diagnosis import profile

    return profile.newest(kept.kept(directory.profiles))

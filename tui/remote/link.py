"""A run of another machine as a `Source`: telemetry by the forwarded sockets, all else by the near end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ddptop.agent.run.rundir import RunDirError
from ddptop.tui.control.consent import Aim, Consent, ProcessLine
from ddptop.tui.control.waiting import Waiting
from ddptop.tui.link.live import Link
from ddptop.tui.link.source import Control, Inspector, Refused
from ddptop.tui.model.diagnosis.stacks import Stacks
from ddptop.tui.remote.messages import Call
from ddptop.tui.remote.near import FarDir, Near
from ddptop.tui.settings import Thresholds

if TYPE_CHECKING:
    from ddptop.agent.observer.status.report import Report


class FarLink(Link):
    """One run of another machine, as seen and controlled from here."""

    def __init__(self, directory: FarDir, who: str, thresholds: Thresholds, *, looks_back: bool = False) -> None:
        self._near = directory.near
        super().__init__(directory, who, thresholds, looks_back=looks_back)

    def _controls(self) -> tuple[Control, Inspector]:
        """Act there: the processes are there."""
        return FarControl(self._near, self.store.count_down), FarInspector(self._near)

    def poll(self) -> None:
        """Take in what has arrived; see `Source.poll`.

        Raises:
            Unreachable: the connection has ended.
        """
        self._near.check()
        super().poll()

    def _survey(self) -> None:
        """Take in who is alive, as the process table there says."""
        if self._near.liveness is not None:
            self.store.know_liveness(self._near.liveness)

    def open(self, run: str) -> None:
        """Refuse: the other runs of that machine are not shown here."""
        host = self._near.target.host
        raise Refused(f"this dashboard shows one run of {host}; for another: `ddptop attach {host}:{run}`")

    def report(self) -> Report:
        """Return the report on the run, made there; see `Source.report`."""
        from ddptop.agent.observer.status.report import Report

        try:
            return self._near.ask(Call(0, "report"), Report)
        except Refused as problem:
            raise RunDirError(str(problem)) from problem

    def close(self) -> None:
        """Close the sockets and the connection; the run goes on."""
        super().close()
        self._near.close()


class FarControl:
    """The `Control` of a run on another machine: each action is carried out there, by the same code."""

    def __init__(self, near: Near, count_down: Callable[[str], None] = lambda line: None) -> None:
        """Act on the run of a connection; `count_down` takes what is left of an end that no observer sees to."""
        self._near = near
        self._count_down = count_down

    def _do(self, call: Call, waiting: Waiting | None = None) -> str:
        turn = waiting or Waiting()
        return self._near.ask(call, str, told=turn.tell, cancelled=turn.is_cancelled)

    def pause(self, waiting: Waiting | None = None) -> str:
        """Pause all ranks; see `Control.pause`."""
        return self._do(Call(0, "pause"), waiting)

    def freeze(self) -> str:
        """Stop all processes; see `Control.freeze`."""
        return self._do(Call(0, "freeze"))

    def step(self, steps: int, waiting: Waiting | None = None) -> str:
        """Let a paused group do so many steps; see `Control.step`."""
        return self._do(Call(0, "step", steps=steps), waiting)

    def checkpoint(self, waiting: Waiting | None = None) -> str:
        """Have all ranks save; see `Control.checkpoint`."""
        return self._do(Call(0, "checkpoint"), waiting)

    def stop(self, waiting: Waiting | None = None, *, checkpoint: bool) -> str:
        """End all scripts at the same step; see `Control.stop`."""
        return self._do(Call(0, "stop", checkpoint=checkpoint), waiting)

    def resume(self) -> str:
        """Resume all ranks; see `Control.resume`."""
        return self._do(Call(0, "resume"))

    def kill(self, grace_s: float, aim: Aim, progress: Callable[[str], None], consent: Consent | None = None) -> str:
        """End the run, or one rank or process of it; see `Control.kill`."""
        _begin(consent)
        call = Call(0, "kill", grace_s=grace_s, aim=aim)
        return self._near.ask(call, str, told=progress, countdown=self._count_down)

    def signal(self, number: int, aim: Aim, consent: Consent | None = None) -> str:
        """Send a signal; see `Control.signal`."""
        _begin(consent)
        return self._do(Call(0, "signal", number=number, aim=aim))

    def resumable(self) -> bool:
        """Say whether the run could be restarted from a checkpoint."""
        return self._near.ask(Call(0, "resumable"), bool)

    def restart(self, *, resume: bool) -> str:
        """Start the ended run again; this dashboard goes on to show the ended one."""
        done = self._do(Call(0, "restart", resume=resume))
        return f"{done}; see it by `ddptop attach {self._near.target.host}:…`"

    def victims(self, aim: Aim) -> str:
        """Say what `kill` would end."""
        return self._do(Call(0, "victims", aim=aim))

    def processes(self) -> list[ProcessLine]:
        """Return every live process of the run."""
        return self._near.ask(Call(0, "processes"), list[ProcessLine])


def _begin(consent: Consent | None) -> None:
    if consent is not None and not consent.begin():
        raise Refused("cancelled; nothing was killed")


class FarInspector:
    """The `Inspector` of a run on another machine."""

    def __init__(self, near: Near) -> None:
        self._near = near

    def recorded(self, since: float) -> Stacks | None:
        """Return where the ranks stood in a hang since then; see `Inspector.recorded`."""
        found: Stacks | None = self._near.ask(Call(0, "recorded", since=since), Stacks | None)  # type: ignore[arg-type]
        return found

    def ask(
        self,
        ranks: Collection[int] | None = None,
        *,
        native: bool = False,
        heard: Callable[[int, int], None] = lambda heard, asked: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Stacks:
        """Ask some ranks where they stand; see `Inspector.ask`."""
        call = Call(0, "stacks", ranks=None if ranks is None else tuple(ranks), native=native)
        return self._near.ask(call, Stacks, heard=heard, cancelled=cancelled)

"""Shows a run, as the dashboard or as lines, and says at the end how to come back."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from ddptop.agent.client import look
from ddptop.agent.client.acting.actor import reached, who
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.settings import Settings
from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.client.watch import Watch
from ddptop.agent.text import clean
from ddptop.agent.wire.frames import ENDED
from ddptop.tui.cli.output import plain, status
from ddptop.tui.cli.parsing import as_called, complain
from ddptop.tui.link.source import Home, Refused, Source
from ddptop.tui.model.sentences import lasting, waits_for

OTHERS_S: Final = 10.0
"""Seconds from the first step of one rank that others have for theirs: a server of parameters makes none."""
NO_STEP_S: Final = 60.0
"""Seconds from the processes of all ranks on after which no step is awaited any more: a script may make none."""

_FAILED: Final = frozenset({"failed", "killed", "lost"})
"""How a rank ends that is not done."""


def show_dashboard(run: Run | None, settings: Settings, *, listed: bool = False) -> int:
    """Show the dashboard until it is left, then say how to come back.

    It begins with the run, with all runs `listed` if so asked, or with nothing but their list where there is no run.
    """
    actor = who("dashboard")
    shown = partial(Watch, who=actor, looks_back=True)

    source: Source
    if run is None:
        source = Home(shown)
    else:
        source = shown(run)
        # The observer answers while the dashboard, which takes half a second, is imported.
        source.poll()

    # What is imported stays: to look through all of it for garbage takes a tenth of the time.
    gc.disable()
    try:
        from ddptop.tui.app.program import run_dashboard
        from ddptop.tui.link.runs import Runs
    finally:
        gc.enable()

    # Closes the source when it ends; the last frame is still there.
    others = Runs(lambda each: Watch(each, actor), actor)
    code = run_dashboard(source, settings=settings, fleet=others, listed=listed)
    frame = source.frame()
    if not frame.run:
        return code
    for text in farewell(frame):
        print(as_called(text))
    return code or (exit_code(frame) if frame.state in ENDED else 0)


def stream_json(run: Run, settings: Settings, count: int | None) -> int:
    """Write a frame a line until the run has ended, or `count` of them; return the exit code.

    The first is written once the live ranks have been heard, the last when the run is over.
    """
    with Watch(run, who("shell")) as watch:
        for frame in look.follow(watch, settings.plain.interval_s):
            print(status.encoded(status.as_json(frame)), flush=True)
            count = None if count is None else count - 1
            if frame.state in ENDED:
                return exit_code(frame)
            if count == 0:
                break
    return 0


def await_start(run: Run, settings: Settings, said: Callable[[str], None]) -> str | None:
    """Wait until the ranks have made a step, and return the cause where the run has failed by then.

    A rank that fails while torchrun may still restart the group is not the end of it. Once all ranks have processes,
    `NO_STEP_S` is the longest wait.

    Args:
        run: The run.
        settings: The user's.
        said: Takes a line on what the start has come to, again and again.
    """
    watch = Watch(run, who("shell"))
    present: float | None = None
    stepped: float | None = None
    try:
        while True:
            watch.poll()
            frame, now = watch.frame(), time.monotonic()
            if frame.state == "finished":
                return None
            if frame.state in ENDED or _has_failed(frame):
                return frame.cause or f"it is {frame.state}"
            if any(rank.state in _FAILED for rank in frame.ranks):
                # The next start of the group is awaited, however long torchrun takes until then.
                present = stepped = None
            elif all(rank.pid is not None or rank.heard_age_s is not None for rank in frame.ranks):
                present = now if present is None else present
                steps = [bool(rank.step) for rank in frame.ranks]
                stepped = now if stepped is None and any(steps) else stepped
                if all(steps) or now - present > NO_STEP_S or (stepped is not None and now - stepped > OTHERS_S):
                    return None
            said(waits_for(frame) or next((rank.activity for rank in frame.ranks if not rank.step), ""))
            time.sleep(plain.POLL_S)
    finally:
        watch.close()


def _has_failed(frame: Frame) -> bool:
    """Say whether a rank has failed and torchrun does not restart the group."""
    # Right after a restart the cause may still be that of the start before, of which no rank is left.
    ended = any(state in ENDED for state in frame.values("state"))
    return frame.cause is not None and ended and frame.generation >= frame.max_restarts


def write_snapshot(run: Run, file: Path, size: tuple[int, int], settings: Settings) -> int:
    """Write a snapshot of the dashboard into a file; return the exit code."""
    from ddptop.tui.app import snapshot
    from ddptop.tui.app.program import FAILED

    watch = Watch(run, who("shell"), looks_back=True)
    try:
        file.write_text(snapshot.take(watch, size, settings), encoding="utf-8")
    except OSError as problem:
        return complain(f"{file}: {problem.strerror}", 2)
    except Refused as problem:
        return complain(f"no snapshot: {problem}", FAILED)
    finally:
        watch.close()
    print(clean(str(file)))
    return 0


def farewell(frame: Frame) -> list[str]:
    """Return the two lines that stand on the terminal after the dashboard."""
    run = reached(frame.run)
    if frame.state in ENDED:
        code = f", exit code {frame.exit_code}" if frame.exit_code is not None else ""
        why = " · ".join(filter(None, (frame.cause, lasting(frame))))
        cause = f": {why}" if why else ""
        return [
            f"{run} {frame.state}{code}{cause}",
            f"its report:    ddptop report {run}"
            if frame.state in ("failed", "lost", "killed")
            else f"its logs:      ddptop logs {run}",
        ]
    if frame.action.startswith("stop "):
        return [f"{run} is stopping; it ends at its next step", f"its logs:      ddptop logs {run}"]
    return goes_on(run)


def goes_on(run: str) -> list[str]:
    """Return how to come back to a run, and how to end it."""
    return [f"{run} goes on.  Come back: ddptop attach {run}", f"End it:        ddptop kill {run}"]


def exit_code(frame: Frame) -> int:
    """Return the exit code that stands for how a run ended."""
    if frame.state == "killed":
        return 128 + signal.SIGTERM
    if frame.exit_code is None:
        return 0 if frame.state in ("finished", "stopped") else 1
    return frame.exit_code if frame.exit_code >= 0 else 128 - frame.exit_code


def follow_plainly(run: Run, settings: Settings, *, launched_here: bool) -> int:
    """Print the run as lines until it ends; Ctrl-C asks what to do where somebody can answer."""
    watch = Watch(run, who("shell"))
    view = plain.PlainView(watch, sys.stdout, settings.plain.interval_s, partial(_ending_report, watch))
    previous = signal.signal(signal.SIGTERM, _as_interrupt) if launched_here else None
    stopping: list[threading.Thread] = []
    try:
        if not launched_here:
            # Before anything is known of the ranks, the run would be said to be starting.
            look.heard([watch])
        while True:
            try:
                frame = view.follow()
                for each in stopping:
                    each.join(timeout=5)
                return exit_code(frame)
            except KeyboardInterrupt as interrupt:
                terminated = isinstance(interrupt, _Terminated)
            if not launched_here:
                name = reached(run.name)
                print(as_called(f"\n{name} goes on.  End it: ddptop kill {name}"), file=sys.stderr)
                return 130
            answer = "" if terminated else _answer(watch.frame())
            if not answer and run.record().on_term:
                answer = "s"
            if answer != "s":
                code = _interrupted(watch, view, run, answer or "k")
                return code if answer else 128 + signal.SIGTERM
            # Should it not end at a step, another Ctrl-C asks again.
            stopping.append(threading.Thread(target=_stop, args=(watch,), daemon=True))
            stopping[-1].start()
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
        watch.close()


def _ending_report(watch: Watch) -> list[str]:
    """Return the short report on a run that has failed; nothing where its directory is gone meanwhile."""
    if watch.frame().state not in ("failed", "lost"):
        return []
    from ddptop.tui.model.diagnosis import report

    try:
        lines = report.summary(watch.report())
    except RunDirError:
        return []
    # The cause is in the lines above.
    found = [report.plain(line) for line in lines if line.label != "cause"]
    return [*found, as_called(f"all of it: ddptop report {reached(watch.run.name)}")] if found else []


class _Terminated(KeyboardInterrupt):
    """SIGTERM has come: there is nobody to ask."""


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _answer(frame: Frame) -> str:
    """Return what Ctrl-C was meant to do; empty where SIGTERM came while that was asked."""
    try:
        return _ask(frame) if sys.stdin.isatty() and sys.stderr.isatty() else "k"
    except _Terminated:
        return ""


def _interrupted(watch: Watch, view: plain.PlainView, run: Run, answer: str) -> int:
    if answer == "l":
        for text in farewell(watch.frame()):
            print(as_called(text), file=sys.stderr)
        return 130
    # In a thread, so that what happens meanwhile is printed as it happens.
    ending = threading.Thread(target=_end, args=(watch, run.record().grace_s), daemon=True)
    ending.start()
    view.follow()
    ending.join(timeout=5)
    return 130


def _stop(watch: Watch) -> None:
    try:
        watch.control.stop(checkpoint=True)
    except Refused as refusal:
        complain(refusal, 1)


def _ask(frame: Frame) -> str:
    """Ask once; after another Ctrl-C, or an answer that is none of the choices, the run goes on."""
    stop = "[s]top it at a step" + (", after a checkpoint" if frame.checkpoints else "")
    question = f"\n{frame.run}: [l]eave it running, {stop}, [k]ill it (SIGTERM, then SIGKILL)? [l] "
    try:
        answer = input(question).strip().lower()[:1]
    except _Terminated:
        print(file=sys.stderr)
        raise
    except (KeyboardInterrupt, EOFError):
        print(file=sys.stderr)
        return "l"
    return answer if answer in ("s", "k") else "l"


def _end(watch: Watch, grace_s: float) -> None:
    try:
        watch.control.kill(grace_s, None, lambda _: None)
    except Refused as refusal:
        # It may have ended by itself meanwhile; the summary says it.
        complain(refusal, 1)

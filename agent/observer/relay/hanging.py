"""A run that makes no steps: its ranks are asked where they stand, and what follows from that is told and recorded.

As long as steps come nothing is asked; `agent.observer.judge.hang` decides what is asked when, and what it means.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from ddptop.agent import wire
from ddptop.agent.end.freezer import frozen
from ddptop.agent.end.last_words import went_on
from ddptop.agent.observer.inspection.inspections import Inspections
from ddptop.agent.observer.judge.hang.classes import STANDS_AT_EXIT
from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.observer.judge.hang.verdict import Conclusion, at_exit
from ddptop.agent.observer.judge.hang.watch import Watch
from ddptop.agent.observer.judge.standstill import ENDED_S
from ddptop.agent.record.recorder import Recorder
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.agent.run.states import ranks_here

_log = logging.getLogger("ddptop.observer")

MOST_RECORDED: Final = 64
"""Ranks whose stacks are recorded of one hang, those that are the cause first."""
MOST_BYTES: Final = 4 << 20
"""Bytes of all of them."""


class Hanging:
    """The watch over the run, its questions and the record of its answers; for use from one thread."""

    def __init__(
        self,
        directory: RunDir,
        run: Run,
        inspections: Inspections,
        recorder: Recorder,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Know nothing yet.

        Args:
            directory: of the run.
            run: its record.
            inspections: asks the ranks where they stand.
            recorder: records where the ranks stand, once for each hang.
            clock: returns nanoseconds since the epoch.
        """
        self._directory = directory
        # Of a job whose ranks here nobody has told, those on other hosts cannot be told from ranks that do not start.
        self._watch = Watch(run.world, everyone=ranks_here(run, 0) == run.world)
        self._inspections = inspections
        self._recorder = recorder
        self._generation = 0
        self._recorded: tuple[int, str, tuple[int, ...]] | None = None
        """The hang of which the inspections were recorded."""
        self._printed: tuple[object, str] = None, ""
        """The hang of which the log was read, and the words on what the rank printed."""
        self._clock = clock
        self.unheard: Collection[int] = ()
        """Ranks of hosts that are not heard. As long as there are any no rank is accused: another may wait for them."""
        self._shown: Conclusion | None = None
        """What was to be told at the last turn."""

    def restart(self, generation: int) -> None:
        """Begin anew with other processes, or with another one of a rank."""
        met = self._watch.progress.met if generation == self._generation else set()
        self._generation = generation
        self._watch.restart()
        # They are told one after the other.
        self._watch.progress.met |= met

    def meet(self, rank: int, world: int) -> None:
        """Take note of a rank whose process was found, and of the number of ranks that it was told there are."""
        self._watch.progress.meet(rank, self._clock(), world)

    def lose(self, rank: int) -> None:
        """Take note of a rank whose process is gone."""
        self._watch.progress.lose(rank)

    def note(self, message: wire.Telemetry) -> None:
        """Take in a sign of life or a summary."""
        if type(message) is wire.Beat:
            if message.generation in (None, self._generation):
                self._watch.beat(message, self._clock())
        elif type(message) is wire.Summary:
            self._watch.progress.summary(message)
        elif type(message) is wire.Sampled and message.generation == self._generation:
            self._watch.sampled(message, self._clock())

    @property
    def is_looking(self) -> bool:
        """Say whether `turn` is to be called more often than once a second."""
        return self._watch.is_suspicious or self._watch.conclusion is not self._shown

    @property
    def lingers(self) -> bool:
        """True where the process of a rank stands at its exit, while the others may wait for it."""
        progress = self._watch.progress
        ended = (progress.beats[rank] for rank in progress.beats.keys() - progress.gone if progress.has_ended(rank))
        return any(beat.activity.startswith(STANDS_AT_EXIT) for beat in ended)

    def turn(self) -> bool:
        """Ask the ranks where that is due; return whether something else is to be told than at the last turn."""
        watch, now_ns = self._watch, self._clock()
        if self.unheard:
            if watch.conclusion is None or watch.conclusion.kind != "hang":
                watch.rest(now_ns)
        # A freeze is somebody's wish, and what the ranks do in it says nothing.
        elif frozen(self._directory) is not None:
            watch.rest(now_ns)
        elif watch.stands(now_ns) and (question := watch.question(now_ns)) is not None:
            self._ask(question.ranks, stacks=question.stacks)
        if not watch.progress.present and watch.conclusion is None:
            self._look_at_exits(now_ns)
        before, self._shown = self._shown, watch.conclusion
        return before is not watch.conclusion

    def _look_at_exits(self, now_ns: int) -> None:
        """Tell of scripts that have finished while their processes wait for something, where no other rank works."""
        progress = self._watch.progress
        if not any(progress.has_ended(rank) for rank in progress.beats.keys() - progress.gone):
            return
        found = {
            rank: ended
            for rank, member in sorted(self._directory.members().items())
            if rank not in progress.gone and (ended := member.ended) is not None and ended.awaits
            if now_ns - ended.at_ns >= ENDED_S * ONE
        }
        if found:
            self._watch.accept(at_exit({rank: ended.awaits for rank, ended in found.items()}), now_ns)

    def finding(self) -> tuple[wire.Verdict | None, int | None]:
        """Return the fault of this moment, None where there is none, and the time at which the run went on last."""
        return self._watch.finding(self._clock()), self._watch.ceased_at_ns

    def _ask(self, ranks: Collection[int], *, stacks: bool) -> None:
        asked = self._watch.round

        def then(found: dict[int, wire.Inspection]) -> None:
            if asked == self._watch.round:
                self._watch.answer(found, self._clock())
                self._write()
                self._tell_printed()

        self._inspections.ask(ranks, then, stacks=stacks)

    def _tell_printed(self) -> None:
        """Add to the hang the exception that the rank which left the others printed before, and went on after."""
        conclusion = self._watch.conclusion
        if conclusion is None or conclusion.kind != "hang" or len(conclusion.hang.ranks) != 1:
            return
        this = self._watch.round, conclusion.hang.kind, conclusion.hang.ranks
        if this != self._printed[0]:
            member = self._directory.members().get(conclusion.hang.ranks[0])
            since_ns = self._watch.progress.since_ns or 0
            self._printed = this, "" if member is None else went_on(member, self._directory, since_ns)
        if self._printed[1] and self._printed[1] not in conclusion.text:
            self._watch.conclusion = replace(conclusion, text=f"{conclusion.text}; {self._printed[1]}")

    def _write(self) -> None:
        conclusion = self._watch.conclusion
        if conclusion is None or conclusion.kind != "hang":
            return
        this = self._watch.round, conclusion.hang.kind, conclusion.hang.ranks
        if this == self._recorded:
            return
        self._recorded = this
        _log.warning("%s (%s; %s)", conclusion.text, conclusion.hang.waiting, conclusion.hang.evidence)
        causes = set(conclusion.hang.ranks)
        found = sorted(self._watch.inspections, key=lambda each: (each.rank not in causes, each.rank))
        chosen, room = [], MOST_BYTES
        for each in found[:MOST_RECORDED]:
            room -= len(wire.encode(wire.Reply(0, True, inspection=each)))
            if room < 0:
                break
            chosen.append(each)
        self._recorder.inspect(chosen)

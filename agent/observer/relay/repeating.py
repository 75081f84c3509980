"""What a rank has published, handed on: to who looks on, to the judge, to the watch for hangs."""

from __future__ import annotations

import time

from ddptop.agent import wire
from ddptop.agent.control.wakeup import WakeUp
from ddptop.agent.observer.hosts.common import CommonRecord, Newest
from ddptop.agent.observer.model.run_model import RunModel
from ddptop.agent.observer.relay.hanging import Hanging
from ddptop.agent.observer.relay.suspects import Suspects
from ddptop.agent.observer.relay.verdicts import RunVerdicts
from ddptop.agent.observer.service.service import Service
from ddptop.agent.record.budget import Budget
from ddptop.agent.wire import EACH_RECORD


class Repeating:
    """The takers of what ranks publish; for use from one thread."""

    def __init__(
        self,
        world: int,
        service: Service,
        newest: Newest,
        verdicts: RunVerdicts,
        hanging: Hanging,
        suspects: Suspects,
        budget: Budget,
        model: RunModel,
        common: CommonRecord,
        ended: WakeUp,
    ) -> None:
        """Hand on to these; `ended` is set when a rank says that its script has ended.

        Its record then says why, and its process may take seconds to end.
        """
        self.judges = False
        """True while this host judges the run."""
        self.repeats_newest = True
        """True where the observers of other hosts may want the newest of each rank."""
        self.generation = 0
        """The newest generation of which a rank was found; one rank may claim that the next has begun."""
        self._is_large = world > EACH_RECORD
        self._service = service
        self._newest = newest
        self._verdicts = verdicts
        self._hanging = hanging
        self._suspects = suspects
        self.budget = budget
        self._model = model
        self._common = common
        self._ended = ended

    def take(self, message: wire.Telemetry, payload: bytes) -> None:
        """Hand a message of a rank to onlookers, as it was sent, and to the judge."""
        # By comparison: `isinstance` asks the metaclass of these classes, which takes ten times as long.
        if type(message) is wire.Beat or type(message) is wire.Summary or type(message) is wire.Hello:
            if self.repeats_newest:
                self._newest.note(message, payload)
            self._model.store.apply(message, time.time())
            if self.judges:
                self._verdicts.take(message)
            self._hanging.note(message)
            if type(message) is wire.Beat:
                if self.judges:
                    self.budget.note(message)
                if message.state == "ended":
                    self._ended.set()
        elif type(message) is wire.Checksums:
            if self.judges:
                self._verdicts.take(message)
            self._service.publish(wire.TOPIC_CHECKSUMS, payload)
            return
        elif type(message) is wire.Event:
            self._common.note(message)
            self._model.store.apply(message, time.time())
            self._service.publish(wire.TOPIC_EVENT, payload)
            return
        elif type(message) is not wire.Steps:
            return
        if self._service.repeats(type(message)):
            self._service.repeat(message, payload)

    def take_in_order(self, message: wire.Steps) -> None:
        """Hand on records of a rank in order."""
        if not self._has_begun(message.generation):
            return
        self._model.store.apply(message, time.time())
        if self.judges:
            if self._is_large:
                self._suspects.steps(message)
            else:
                self._verdicts.take(message)

    def _has_begun(self, generation: int | None) -> bool:
        return generation is None or generation <= self.generation

"""What is recorded around a pause, whatever else is: the step at which the rank stands, the one after it, the last."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import RunDir


class Training:
    """A training thread without torch, whose steps take no time."""

    def __init__(self, folder: Path, every: int) -> None:
        (folder / "ranks").mkdir()
        self.session = Session(RunDir(folder), run_id="held", program="held", log=None)
        self.session.stamps.every = every
        self.session.stamps.finished = deque(maxlen=100)
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        with contextlib.suppress(SystemExit):
            while True:
                self.session.end_step()
                self.session.count()
                # Lets the test's thread ask.
                time.sleep(0.0001)

    def held(self, step: int) -> int:
        """Wait until it stands at the end of a step."""
        gate = self.session.gate
        while not (gate.held and gate.completed == step):
            time.sleep(0.0001)
        return step

    def recorded(self) -> list[int]:
        """Return the newest steps that are recorded."""
        return [each.step for each in self.session.stamps.finished]

    def end(self) -> None:
        self.session.gate.end("the test")
        self._thread.join()


@pytest.mark.parametrize("every", [2, 8, 64])
def test_the_step_at_which_a_rank_stands_is_recorded_and_so_are_single_steps(tmp_path: Path, every: int) -> None:
    """At whichever step it is paused: that one, each single step, the last of several, and the first one afterwards."""
    training, chance = Training(tmp_path, every), random.Random(every)
    gate = training.session.gate
    try:
        for pause in range(30):
            promised = gate.promise(str(pause), 60)
            gate.commit(str(pause), promised + chance.randrange(3), 60)
            gate.keep(str(pause))
            assert gate.limit is not None
            wanted = [training.held(gate.limit)]
            for steps in (1, 1, 5):
                first = wanted[-1] + 1
                gate.advance(wanted[-1] + steps)
                wanted += sorted({first, training.held(wanted[-1] + steps)})
            assert set(wanted) <= set(training.recorded())
            since = wanted[-1]
            gate.resume()
            while gate.completed <= since + 20:
                time.sleep(0.0001)
    finally:
        training.end()
    assert training.recorded()[-1] == gate.completed

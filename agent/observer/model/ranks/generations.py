"""Which start of the group is shown, and which newer one is known of. Pure."""

from __future__ import annotations

from ddptop.agent.run import generations
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire import Hello
from ddptop.agent.wire.frames import Restart


class Generations:
    """The starts of a group, by what its ranks' records and its ranks themselves say of them."""

    def __init__(self) -> None:
        self.shown = 0
        self.newest = 0
        """The newest generation that is known of, by the ranks' records or by their word: its steps may come later."""
        self.restarts: tuple[Restart, ...] = ()
        self._recorded = False
        """The ranks' records are known: what no record says yet, no rank begins by its word alone."""
        self._early: dict[int, Hello] = {}
        """By rank, a greeting that came before the record of its generation was read; it comes once."""

    def hold(self, hello: Hello, run: Run) -> None:
        """Hold a greeting of a generation that is not shown yet, until that begins."""
        if self.shown < hello.generation <= generations.most(run, self.newest):
            self._early[hello.rank] = hello

    def release(self, besides: int) -> list[Hello]:
        """Let go of the greetings of the generation shown, and return those of the ranks `besides` one."""
        self._early.pop(besides, None)
        begun = [hello for hello in self._early.values() if hello.generation == self.shown]
        for hello in begun:
            del self._early[hello.rank]
        return begun

    def release_one(self, rank: int, generation: int) -> Hello | None:
        """Let go of a rank's greeting of a generation."""
        held = self._early.get(rank)
        return self._early.pop(rank) if held is not None and held.generation == generation else None

    def is_possible(self, generation: int, run: Run) -> bool:
        """Say whether the group can have been started so often."""
        return generation <= generations.most(run, self.newest)

    def is_begun(self, generation: int, world: int) -> bool:
        """Say whether a generation that is spoken of has begun: it is recorded, or more than half of the ranks say so.

        Its record may not have been read yet, or say something else; on a full disk there is none.
        """
        if generation <= self.newest or not self._recorded:
            return True
        return 2 * sum(hello.generation == generation for hello in self._early.values()) > world

    def begin(self, generation: int, at: float, step: int) -> None:
        """Show a newer generation, whose steps follow `step`."""
        self.shown = generation
        self.restarts += (Restart(generation, at, step),)

    def fall_back(self, recorded: int) -> bool:
        """Take in the newest generation that is recorded; return whether the one shown was only claimed.

        Whoever had claimed a newer one was alone with that.
        """
        self._recorded = True
        if recorded >= self.newest:
            return False
        self.newest = recorded
        if self.shown <= recorded:
            return False
        self.shown = recorded
        self.restarts = tuple(each for each in self.restarts if each.generation <= recorded)
        return True

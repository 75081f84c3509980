"""What a rank is asked for within steps ahead of it: the question, and why it has no answer."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ddptop.agent.rank.records.stamps import Stamps


class Passed(Exception):
    """The rank has made the first of these steps before it was asked."""


class Unanswered(Exception):
    """There is no answer, and none will come; the text is the reason."""


_Answer = TypeVar("_Answer")


class Asked(Generic[_Answer]):
    """A question over some whole steps, until its answer was read."""

    def __init__(self, token: str, first: int, steps: int) -> None:
        """Take the question of this token, over so many steps from the first one on."""
        self.token = token
        self.first = first
        """Number of the first one. 0: the one that begins next."""
        self.steps = steps
        self.answer: _Answer | None = None
        """None until it is known."""
        self.problem = ""
        """The reason why there is none."""
        self.has_passed = False

    @property
    def last(self) -> int:
        """The last of the steps."""
        return self.first + self.steps - 1

    def is_ahead_of(self, step: int) -> bool:
        """Say whether the first of the steps is to begin later than behind this one."""
        return not (self.has_passed or self.problem) and (not self.first or self.first > step + 1)

    def check(self) -> None:
        """Raise `Passed` or `Unanswered` where there is no answer."""
        if self.has_passed:
            raise Passed
        if self.problem:
            raise Unanswered(self.problem)


_Question = TypeVar("_Question", bound="Asked[Any]")


class OverSteps(Generic[_Question]):
    """Answers one question at a time, at the boundaries before and behind some steps.

    The agent's thread asks; the training thread calls `boundary` of the class that inherits from this one.
    """

    def __init__(self, stamps: Stamps) -> None:
        """Wait for a question; `stamps` are those of the training thread."""
        self._stamps = stamps
        self._asked: _Question | None = None
        """The newest."""
        self.is_armed = False
        """True while the training thread is to call `boundary` at the end of each step."""

    def _take(self, asked: _Question) -> None:
        """Take a new question."""
        self._asked = asked
        self._arm()

    def _arm(self) -> None:
        self.is_armed = True
        # From now on the boundary of each step has something to do.
        self._stamps.eventful = 0

    def _go_on(self, step: int, *, is_under_way: bool) -> None:
        """Have the boundary behind the next step called, where there is something to do."""
        # Before it looks: a question that the agent's thread takes meanwhile arms it again.
        self.is_armed = False
        if is_under_way or (self._asked is not None and self._asked.is_ahead_of(step)):
            self._arm()

    def cancel(self, token: str) -> None:
        """Give no answer to this question any more; what has begun ends with the step."""
        if (asked := self._asked) is not None and asked.token == token:
            asked.problem = asked.problem or "it was cancelled"

    def close(self) -> None:
        """End with the script: there is no answer about steps that are not made."""
        self.is_armed = False
        if self._asked is not None and self._asked.answer is None:
            self._asked.problem = self._asked.problem or "its script has ended before these steps"

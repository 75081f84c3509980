"""The part of a run's steps that a plot shows: the recent ones, the whole run, or as many as were asked for.

Pure and immutable; each key of the plot makes another extent of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

FEWEST: Final = 16
"""Steps in the narrowest extent."""
RECENT: Final = 500
"""Steps that count as recent in a short run."""
SMOOTHINGS: Final = ("off", "light", "strong")


def recent(steps: int) -> int:
    """Return how many steps of so many are recent: a tenth to a quarter, and a round number that seldom changes."""
    wanted = max(RECENT, steps // 4)
    power = int("1" + "0" * (len(str(wanted)) - 1))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= wanted)


@dataclass(frozen=True)
class Extent:
    """A part of the run. `first` and `last` in the methods are the run's own."""

    span: int | None = None
    """Steps that are shown; None for the recent ones, or for all where it is `whole`."""
    whole: bool = False
    """True for all steps there are."""
    end: int | None = None
    """The last step shown; None for the newest of the run."""
    log: bool = False
    band: bool = False
    """True for the mean of the ranks within their least and greatest; of many ranks that is shown anyway."""
    smoothing: str = "off"
    """One of `SMOOTHINGS`."""

    def steps(self, first: int, last: int) -> tuple[int, int]:
        """Return the first and the last step shown."""
        if self.whole:
            return first, last
        every = last - first + 1
        span = min(recent(every) if self.span is None else self.span, every)
        end = last if self.end is None else max(first + span - 1, min(self.end, last))
        return end - span + 1, end

    def zoomed(self, factor: float, first: int, last: int, at: float | None = None) -> Extent:
        """Show so many times as many steps, with step `at` staying where it is on the screen.

        Without `at` the last step does while the run is followed, and the middle otherwise.
        """
        low, high = self.steps(first, last)
        before = high - low + 1
        span = max(FEWEST, round(before * factor))
        if span > last - first:
            return replace(self, span=None, whole=True, end=None)
        if self.end is None and at is None:
            return replace(self, span=span, whole=False)
        fixed = (low + high) / 2 if at is None else at
        share = (high - fixed) / before
        return replace(self, span=span, whole=False)._ending(round(fixed + share * span), last)

    def scrolled(self, by: float, first: int, last: int) -> Extent:
        """Move by a share of what is shown, back where it is negative; at the end of the run, follow it."""
        low, high = self.steps(first, last)
        span = high - low + 1
        if span > last - first:
            return self
        return replace(self, span=span)._ending(max(first + span - 1, round(high + by * span)), last)

    def _ending(self, end: int, last: int) -> Extent:
        return replace(self, end=None if end >= last else end)

    def other(self) -> Extent:
        """Show the whole run; after it, the recent steps."""
        return replace(self, span=None, whole=not self.whole, end=None)

    def smoother(self) -> Extent:
        """Smooth more; after the strongest, not at all."""
        return replace(self, smoothing=SMOOTHINGS[(SMOOTHINGS.index(self.smoothing) + 1) % len(SMOOTHINGS)])

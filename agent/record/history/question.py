"""Questions that the record of a run answers, and the answer that has nothing. Light to import."""

from __future__ import annotations

from ddptop.agent import wire

Question = wire.History | wire.WholeSteps


def nothing(query: Question, reply: wire.Reply, *, complete: bool = True) -> list[wire.HistoryAnswer]:
    """Return an answer that has nothing; not `complete` while the record cannot be read."""
    first = wire.KeptSteps if isinstance(query, wire.WholeSteps) else wire.Extent
    return [first(query.id, complete=complete), reply]

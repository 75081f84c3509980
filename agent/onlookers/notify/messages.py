"""One message on a run, for programs as JSON and for people as a title and some lines."""

from __future__ import annotations

import time

import msgspec

from ddptop.agent.text import plural, ranks_in_spans

_TITLES = {
    "hang": "hangs",
    "death": "has lost a process",
    "nan": "computes with numbers that are not finite",
    "slow": "is held back",
    "memory": "grows in memory",
    "end": "is over",
    "heartbeat": "lives",
    "test": "test",
}
"""What has happened to the run, by the kind of the message."""


class Message(msgspec.Struct, frozen=True, kw_only=True, rename={"kind_of": "class"}):
    """Something that is wrong with a run, or has been; `None` and empty are "not known"."""

    run: str
    """Its name."""
    program: str = ""
    host: str = ""
    """The machine on which the run can be looked at."""
    kind: str
    """One of `settings.KINDS`, or `heartbeat` or `test`."""
    kind_of: str = ""
    """The class of a hang, the kind of an end, the kind of a verdict: a word for programs."""
    text: str
    """All of it in one line."""
    resolved: bool = False
    """True where it is over: the message that began it had the same `id`."""
    id: str
    """The same in the message that tells of something and in the one that says that it is over."""
    ranks: tuple[int, ...] = ()
    """The ranks that are the cause."""
    where: str = ""
    """The host of the cause, of a run on several."""
    line: str = ""
    """The line of code: `train.py:31 main`."""
    since: float | None = None
    """When it began, in seconds since the epoch."""
    at: float
    """When this was found."""
    state: str = ""
    """The state of the run."""
    step: int | None = None
    attach: str = ""
    """The command that shows the run."""
    lost: int = 0
    """Earlier messages that this target was sent and has not taken."""

    @property
    def title(self) -> str:
        """One line on what has happened, as the subject of a mail."""
        if self.kind == "end" and self.state:
            return f"{self.run}{' has' if self.state in ('finished', 'failed') else ':'} {self.state}"
        return f"{self.run}{': no longer so:' if self.resolved else ''} {_TITLES[self.kind]}"

    @property
    def body(self) -> str:
        """The lines below the title."""
        who = [ranks_in_spans(self.ranks) if self.ranks else "", self.where and f"on {self.where}"]
        what = " ".join(filter(None, who)), "" if self.kind_of == self.state else self.kind_of, self.line
        when = "ended" if self.kind == "end" else "since"
        began = "" if self.since is None else f"{when} {time.strftime('%H:%M:%S', time.localtime(self.since))}"
        step = "" if self.step is None else f"step {self.step:,}"
        lost = f"{plural(self.lost, 'earlier message')} could not be delivered" if self.lost else ""
        lines = self.text, " · ".join(filter(None, what)), ", ".join(filter(None, (began, step))), self.attach, lost
        return "\n".join(filter(None, lines))

    @property
    def json(self) -> bytes:
        """The message for programs; `title` and `body` stand there besides."""
        return msgspec.json.encode({**msgspec.to_builtins(self), "title": self.title, "body": self.body}) + b"\n"

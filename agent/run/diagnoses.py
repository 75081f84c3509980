"""The diagnoses that are made of a run on request and kept with it: what each is, for keys, verbs, ranks and folders.

It does without the messages, which take long to load, because `--help` needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Diagnosis(NamedTuple):
    """A kind of diagnosis."""

    folder: str
    """In the directory of the run, where those that are made are kept."""
    several: str
    """Several of them, in words."""
    none: str
    """The line where none is kept with a run."""
    key: str
    """Of the dashboard."""
    key_does: str
    """What that key does."""
    does: str
    """What its verb does, in a line."""
    about: str
    """The same in the help of the verb."""
    examples: str
    """Command lines, below that."""
    steps: int | None = None
    """Steps over which it is made, where nobody says how many. None: over none; all ranks are held at a step."""
    most_steps: int = 1
    """Steps at most."""
    culprit: str = ""
    """The ranks that a verdict points to, in words."""
    held_ms: tuple[int, int] | None = None
    """Milliseconds for which a rank is held, where nobody says how many, and at most; None where nobody can say it."""
    has_trace: bool = False
    """True where its file is a trace, which can be copied elsewhere."""
    is_in_key_bar: bool = False
    """True where its key stands there."""


DIAGNOSES: Final[Mapping[str, Diagnosis]] = {
    "profile": Diagnosis(
        folder="profiles",
        several="profiles",
        none="no profile is kept with this run",
        key="P",
        key_does="Profile three steps: say in what the slow rank differs; of a paused or ended run, the newest",
        does="profile the same steps of some ranks, and say in what two of them differ",
        about="Runs torch's profiler over the same whole steps of the rank that a verdict accuses and of an ordinary "
        "one, or of the ranks named; no rank is held. Writes one trace of all of them, and says which operators take "
        "longer.",
        examples="""
        ddptop profile resnet-7f                # the accused rank and another one
        ddptop profile resnet-7f --ranks 0,2 --steps 5
        ddptop profile resnet-7f --out p.json   # copy the trace to here
        ddptop profile resnet-7f --list         # the profiles kept with the run
        """,
        steps=3,
        most_steps=50,
        culprit="the accused rank and an ordinary one",
        has_trace=True,
        is_in_key_bar=True,
    ),
    "probe": Diagnosis(
        folder="probes",
        several="probes",
        none="no probe is kept with this run",
        key="D",
        key_does="Hold all ranks, try what each can do, and say which is slow; of an ended run, the newest probe",
        does="hold all ranks and try what each can do, and say which is slow, and why",
        about="Pauses all ranks at a step, for ten seconds at most. Alone and together they multiply matrices, copy "
        "memory, write and read a file, and send each other messages by the script's own group; then they go on. "
        "Nothing of the training changes.",
        examples="""
        ddptop probe resnet-7f                  # ctrl-c lets the run go on at once
        ddptop probe resnet-7f --list           # the probes kept with the run
        """,
    ),
    "memory": Diagnosis(
        folder="memory",
        several="looks at the memory",
        none="no look at the memory is kept with this run",
        key="M",
        key_does="Look at the memory over three steps: what lives, what grows; of a paused or ended run, the newest",
        does="say what lives in the memory of some ranks, and what grows",
        about="Counts the tensors, arrays and Python objects of some ranks before and after the same steps, and says "
        "what there is more of: the line that made it, and what holds it. The ranks are held for the counts alone.",
        examples="""
        ddptop memory resnet-7f                 # the one that grows, or the first 8
        ddptop memory resnet-7f --ranks 0,2 --steps 20
        ddptop memory resnet-7f --list          # the looks kept with the run
        """,
        steps=3,
        most_steps=1000,
        culprit="the rank whose memory grows",
        # `wire.CENSUS_MS`.
        held_ms=(3_000, 5_000),
    ),
}
"""By the name of its action, as keys, verbs and messages have it."""

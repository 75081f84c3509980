"""Whether all onlookers say the same at the same moment, and how many sockets each of them opens.

    python tests/bench/onlooker/agreement.py [--world 64] [--seconds 60] [--quick]

The ranks are those of `load.py`, one of which becomes slow and so gets a verdict whose figures change every second.
There are two `watch --json`, `status --json` again and again, and a dashboard that comes at the end.  What a JSON
onlooker shows at a moment must be, byte for byte, one of the verdicts that the observer published within the `NEWS_S`
before (heard at its socket by nobody's code but ZeroMQ's); the text on the screen of the dashboard likewise.  Two
onlookers that look within `APART_S` are compared with each other where no other word came in between.  The sockets are
those of /proc/net/unix.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load
from observer.heard import Heard, Word
from observer.sockets import connections
from onlooker.status import DDPTOP, answer
from onlooker.terminal import Terminal

from ddptop.agent import wire
from ddptop.agent.run.rundir import RunDir

NEWS_S: Final = 2.0
"""How long a word may take from the observer into a frame of an onlooker."""
APART_S: Final = 0.5
"""Two looks that are no further apart are of the same moment."""
SHOWN_S: Final = 60.0
"""How long a dashboard may take to come up."""
NAMED_S: Final = 120.0
FIELDS: Final = ("kind", "rank", "phase", "cost_ms", "share", "since_step", "confidence", "text")
"""What is in the JSON of a verdict as the observer tells it."""


class Look(NamedTuple):
    """What an onlooker showed."""

    at: float
    verdict: str
    """As JSON; `null` where none is shown."""

    @property
    def told(self) -> str:
        """The part of it that is as the observer tells it."""
        verdict = json.loads(self.verdict)
        return "null" if verdict is None else json.dumps({name: verdict[name] for name in FIELDS})


class Watch:
    """A `watch --json` whose lines are taken in by a thread."""

    def __init__(self, run: str) -> None:
        self.looks: list[Look] = []
        self._process = subprocess.Popen(
            [*DDPTOP, "watch", run, "--json", "--interval", "0.5"], stdout=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.looks.append(look(line))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        self._thread.join()


def look(text: str) -> Look:
    """Return what is shown by an answer in JSON."""
    told = json.loads(text)
    return Look(told["at"], json.dumps(told["verdict"]))


def published(verdict: wire.Verdict | None) -> str:
    """Return the JSON in which an onlooker has to show a verdict."""
    if verdict is None:
        return "null"
    told: dict[str, Any] = {name: getattr(verdict, name) for name in FIELDS}
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in told.items()}
    return json.dumps(rounded)


def current(words: Sequence[Word], at: float) -> list[Word]:
    """Return what the observer had said up to a moment, as far as it may still be on an onlooker's screen."""
    before = [word for word in words if word.at <= at - NEWS_S][-1:]
    return before + [word for word in words if at - NEWS_S < word.at <= at + 0.1]


def unlike(looks: Sequence[Look], words: Sequence[Word]) -> tuple[int, int]:
    """Return how many looks there are from the first word on, and how many show what the observer did not say."""
    mine = [each for each in looks if words and each.at > words[0].at + NEWS_S]
    wrong = [each for each in mine if each.told not in {published(word.first) for word in current(words, each.at)}]
    for each in wrong[:1]:
        print(f"at {each.at:.3f}: {each.told}; the observer: {[published(w.first) for w in current(words, each.at)]}")
    return len(mine), len(wrong)


def unequal(one: Sequence[Look], other: Sequence[Look], words: Sequence[Word]) -> tuple[int, int]:
    """Return how often both have looked at the same moment, and how often they then show different verdicts."""
    moments = different = 0
    changed = [
        word.at for before, word in itertools.pairwise(words) if published(before.first) != published(word.first)
    ]
    for mine in one:
        for theirs in other:
            first, last = sorted((mine.at, theirs.at))
            if last - first <= APART_S and not any(first - APART_S < at < last + 0.1 for at in changed):
                moments += 1
                different += mine.verdict != theirs.verdict
    return moments, different


def opened(directory: RunDir, before: dict[str, int]) -> dict[str, int]:
    """Return by name of a socket of the run how many connections have come since `before`."""
    now = connections(directory)
    return {name: now[name] - before.get(name, 0) for name in sorted(now) if now[name] > before.get(name, 0)}


def main() -> int:
    """Compare; 1 where anybody says something else, or has more than two sockets."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--world", type=int, default=64)
    options.add_argument("--seconds", type=float, default=60.0, help="from the moment in which the rank is named")
    options.add_argument("--quick", action="store_true", help="twenty ranks, a few seconds: does it work?")
    given = options.parse_args()
    load.allow_files()
    if given.quick:
        given.world, given.seconds = 20, 10.0
    with load.started(world=given.world, keep=True, slow_after=10) as run:
        heard = Heard(run.directory)
        time.sleep(2)  # its own connection, and those of the observer to the ranks
        alone = connections(run.directory)
        watches = [Watch(run.name)]
        while not watches[0].looks:
            time.sleep(0.1)
        time.sleep(3)
        mine = opened(run.directory, alone)
        watches.append(Watch(run.name))
        terminal: Terminal | None = None
        asked: list[Look] = []
        try:
            named = heard.wait(lambda word: word.first is not None, NAMED_S)
            until = time.monotonic() + given.seconds
            while time.monotonic() < until:
                asked.append(look(answer("status", run.name, "--json")[1]))
            terminal = Terminal(run.name)
            # The next word has not come when this is on the screen, or it comes before.
            shown = terminal.wait(lambda text: any(word.first is not None and word.first.text in text
                                                   for word in heard.words[-3:]), SHOWN_S)  # fmt: skip
        finally:
            if terminal is not None:
                terminal.leave()
            for watch in watches:
                watch.close()
            heard.close()
    words = heard.words
    if named is None:
        print(f"the observer named nobody within {NAMED_S:.0f} s ({len(words)} words)")
    looks = {"watch 1": watches[0].looks, "watch 2": watches[1].looks, "status": asked}
    wrong = 0
    for name, found in looks.items():
        count, bad = unlike(found, words)
        wrong += bad
        print(f"{name}: {count} looks, {bad} show what the observer did not say")
    print(f"dashboard: {'the same' if shown is not None else 'not what the observer says'}")
    pairs = [unequal(watches[0].looks, each, words) for each in (watches[1].looks, asked)]
    different = sum(bad for _, bad in pairs)
    count = sum(mine.values())
    print(f"connections of the first onlooker: {mine}")
    print(f"| two onlookers and `status`, byte for byte: different | {different} of {sum(n for n, _ in pairs)} | 0 |")
    print(f"| sockets of an onlooker, {given.world} ranks | {count} | 2 |")
    return 1 if named is None or wrong or different or shown is None or count > 2 else 0


if __name__ == "__main__":
    sys.exit(main())

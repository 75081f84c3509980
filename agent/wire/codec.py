"""Messages as bytes: `encode` makes them, and the `read_*` functions return what was read, clean and bounded.

Text is cleaned by `incoming`, but the names in steps, which make up most messages, together and once.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from ddptop.agent.wire.answers import AlignedSteps, Answer, HistoryAnswer, HistoryPart
from ddptop.agent.wire.commands import Command
from ddptop.agent.wire.frames import EncodedRows, RankFrame, Rows, RunFrame
from ddptop.agent.wire.hosts import Bundle, HostHello
from ddptop.agent.wire.incoming import clean_name, cleaned, is_plain
from ddptop.agent.wire.telemetry import (
    Beat,
    Collective,
    EncodedSteps,
    Hello,
    NumberedSteps,
    Recorded,
    Step,
    Steps,
    Summary,
    Telemetry,
    Verdict,
)

_encoder = msgspec.msgpack.Encoder()
_telemetry: msgspec.msgpack.Decoder[Telemetry] = msgspec.msgpack.Decoder(Telemetry)
_frame: msgspec.msgpack.Decoder[RunFrame | RankFrame | Rows] = msgspec.msgpack.Decoder(RunFrame | RankFrame | Rows)
_numbers: msgspec.msgpack.Decoder[NumberedSteps] = msgspec.msgpack.Decoder(NumberedSteps)
_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_history: msgspec.msgpack.Decoder[HistoryAnswer] = msgspec.msgpack.Decoder(HistoryAnswer)
_bundle: msgspec.msgpack.Decoder[Bundle] = msgspec.msgpack.Decoder(Bundle)
_host_hello: msgspec.msgpack.Decoder[HostHello] = msgspec.msgpack.Decoder(HostHello)
_verdict: msgspec.msgpack.Decoder[Verdict] = msgspec.msgpack.Decoder(Verdict)
_recorded: msgspec.msgpack.Decoder[Recorded] = msgspec.msgpack.Decoder(Recorded)

# Most messages are steps, ten a second of every rank: the names in a step are checked together, and once.
_plain_calls: Final[set[str]] = set()
"""Names of all calls of a step, joined, that need no cleaning; they are the same from step to step."""
_plain_metrics: Final[set[tuple[str, ...]]] = set()
MOST_PLAIN: Final = 4096
"""Bound on the entries of each of these, and on the characters of one."""
MOST_NAMES: Final = 100
"""A step with so many metrics, or more, is not remembered."""

Unreadable = msgspec.MsgspecError
"""Raised by the `read_*` functions for anything that is not a message of this protocol."""
_REPLY: Final = b"\xa5reply"
"""The tag of a `Reply`, after the one or the three bytes that begin it."""


def encode(
    message: Telemetry
    | EncodedSteps
    | Bundle
    | Command
    | Answer
    | HistoryAnswer
    | HostHello
    | Recorded
    | Step
    | Verdict
    | RunFrame
    | RankFrame
    | Rows
    | EncodedRows,
) -> bytes:
    """Return the msgpack form of any message."""
    return _encoder.encode(message)


_T = TypeVar("_T")
_OfRank = Hello | Beat | Steps | Summary


def _typed(decoder: msgspec.msgpack.Decoder[_T], payload: bytes) -> _T:
    # Deep nesting raises RecursionError, and bad UTF-8 UnicodeDecodeError.
    try:
        return decoder.decode(payload)
    except (RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error


def read_telemetry(payload: bytes) -> Telemetry:
    """Decode a message of a PUB socket and clean its text; raises `Unreadable`."""
    message = _typed(_telemetry, payload)
    # `isinstance` asks the metaclass of these classes, and takes ten times as long.
    if type(message) is Steps or type(message) is Summary:
        return _cleaned_of_rank(message)
    return cleaned(message)


def _cleaned_of_rank(message: _OfRank) -> _OfRank:
    # In the order of their frequency.
    if type(message) is Steps:
        return _cleaned_steps(message)
    if type(message) is Summary:
        return _cleaned_summary(message)
    return cleaned(message)


def read_frame(payload: bytes) -> RunFrame | RankFrame | Rows:
    """Decode what an observer publishes of the run at a moment and clean its text; raises `Unreadable`."""
    return cleaned(_typed(_frame, payload))


def read_numbers(payload: bytes) -> NumberedSteps:
    """Decode the numbers of a `Steps` message; raises `Unreadable`, but not for what is wrong in the rest of it."""
    return _typed(_numbers, payload)


def read_bundle(payload: bytes) -> Bundle:
    """Decode a bundle, but not its parts, each of which is to be read by `read_telemetry`."""
    return _typed(_bundle, payload)


def read_command(payload: bytes) -> Command:
    """Decode a command and clean its text; raises `Unreadable`."""
    return cleaned(_typed(_command, payload))


def read_answer(payload: bytes) -> Answer:
    """Decode an answer of a ROUTER socket and clean its text; raises `Unreadable`."""
    answer = _typed(_answer, payload)
    return _cleaned_steps(answer) if isinstance(answer, Steps) else cleaned(answer)


def is_reply(payload: bytes) -> bool:
    """Say whether an answer is a `Reply`, its last part, without reading it."""
    return payload[1:7] == _REPLY or payload[3:9] == _REPLY


def read_host_hello(payload: bytes) -> HostHello:
    """Decode the first message of one side of a link and clean its text; raises `Unreadable`."""
    return cleaned(_typed(_host_hello, payload))


def read_recorded(payload: bytes) -> Recorded:
    """Decode what the observer of another host has recorded and clean its text; raises `Unreadable`."""
    return cleaned(_typed(_recorded, payload))


def read_verdict(payload: bytes) -> Verdict:
    """Decode a recorded verdict and clean its text; raises `Unreadable`."""
    return cleaned(_typed(_verdict, payload))


def read_history(payload: bytes) -> HistoryAnswer:
    """Decode an answer about the history: its tables have the size that they claim, its text is clean. Raises
    `Unreadable`.

    The values in the tables are any that four bytes can be; see `agent.record.history.columns`.
    """
    answer = _typed(_history, payload)
    if isinstance(answer, HistoryPart):
        _check_tables(answer)
    elif isinstance(answer, AlignedSteps) and any(
        len(each.splits) != len(each.step.collectives) for each in answer.steps
    ):
        raise msgspec.ValidationError("a step does not have as many splits as collectives")
    return cleaned(answer)


def _check_tables(part: HistoryPart) -> None:
    rows, rest = divmod(len(part.ranks), 4)
    size = 4 * rows * part.columns
    others = (part.low, part.high, part.count, part.at)
    if rest or len(part.mean) != size or any(len(table) not in (0, size) for table in others):
        raise msgspec.ValidationError("a table does not have the size of its rows and columns")
    if part.by == "step" and not all(len(table) == size for table in others):
        raise msgspec.ValidationError("a table is missing")
    if (part.begin + part.columns) * part.width > 1 << 54:
        raise msgspec.ValidationError("the columns are beyond what can be counted")


def _cleaned_steps(message: Steps) -> Steps:
    for step in message.steps:
        metrics, calls = step.metrics, step.collectives
        if metrics and (names := tuple(metrics)) not in _plain_metrics and not _are_plain_metrics(names):
            break
        if calls and not _have_plain_names(calls):
            break
    else:
        return message
    return msgspec.structs.replace(message, steps=tuple(map(_cleaned_step, message.steps)))


def _have_plain_names(calls: tuple[Collective, ...]) -> bool:
    # The decoder has checked the length of each.
    ops, groups = "".join([call.op for call in calls]), "".join([call.group for call in calls])
    return (ops in _plain_calls or _are_plain(ops)) and (groups in _plain_calls or _are_plain(groups))


def _cleaned_step(step: Step) -> Step:
    calls = tuple(map(cleaned, step.collectives))
    return msgspec.structs.replace(step, collectives=calls, metrics=_cleaned_metrics(step.metrics))


def _cleaned_summary(summary: Summary) -> Summary:
    if not summary.metrics or _are_plain_metrics(tuple(summary.metrics)):
        return summary
    return msgspec.structs.replace(summary, metrics=_cleaned_metrics(summary.metrics))


def _cleaned_metrics(metrics: dict[str, float]) -> dict[str, float]:
    return {clean_name(name): value for name, value in metrics.items()}


def _are_plain(names: str) -> bool:
    found = is_plain(names)
    if found and len(names) < MOST_PLAIN and len(_plain_calls) < MOST_PLAIN:
        _plain_calls.add(names)
    return found


def _are_plain_metrics(names: tuple[str, ...]) -> bool:
    if names in _plain_metrics:
        return True
    found = all(clean_name(name) == name for name in names)
    if found and len(names) < MOST_NAMES and len(_plain_metrics) < MOST_PLAIN:
        _plain_metrics.add(names)
    return found

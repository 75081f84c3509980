"""The line of a process's output that says best why the process ended; one clean line, whatever the output is.

A program that ends by `sys.exit(2)`, or by a crash in native code, leaves no exception: the reason stands only in what
it has printed.  Output is hostile, and is in one file for stdout and stderr, so that its last line may be any.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.run.files import tail
from ddptop.agent.text import clean_line

_LONGEST: Final = 200
"""Characters of the line that are shown."""
_BYTES: Final = 16 << 10
"""Bytes at the end of a log that are read."""
_LINES: Final = 20
"""Last lines among which the reason is looked for."""

# Patterns are compiled at their first use: each rank imports this module, and few ranks fail.
_TORCHRUN: Final = r"[IWEF]\d{4} \S{1,20} \d+ torch/distributed/"
"""A line of torchrun's own log, which stands between lines of the ranks."""
_FAILED: Final = r"failed \(exitcode: "
"""The words of such a line once a rank has failed; ranks that print after it are of the next start of the group."""
_GROUP: Final = r"(?:torch[\w.]+\.)?(?:ChildFailedError|SignalException)\b"
"""The last line of torchrun's traceback on the end of its ranks; the summary after it gives no reason."""
_NOISE: Final = (
    r"\[?[IW]\d{4} \d\d:\d\d|.*(?:Warning\b|warnings\.warn|resource_tracker)|(?i:usage:|Try )"
    r"|Traceback \(most recent call last\)|During handling of the above|The above exception was"
)
"""Logs and warnings of libraries, the usage above an error, and what stands above the lines of a traceback."""
_CRASH: Final = (
    r"Fatal Python error: (?:Aborted|Bus error|Floating|Illegal instruction|Segmentation fault)"
    r"|(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):|Extension modules: "
)
"""Lines of what `faulthandler` writes on a signal: these stacks give no reason."""
_WHAT: Final = r"\s+what\(\): +(.+)"
"""The message of a C++ exception that nobody caught, on the line after `terminate called`."""
_FRAME: Final = "╭╮╰╯─━┌┐└┘│┃| "
"""The characters that some libraries draw around a message."""
_ERROR: Final = (
    r"(?i)(?!.*[:=] ?(?:\[\]|\{\}|\(\)|0|none)$)(?:[\w./\\-]+: )??(?:(?:fatal error|fatal|error): (?=.*[a-z])(.+)"
    r"|((?:unrecognized|unknown|invalid|missing|ambiguous|no such|cannot|can't|could not|unable to) .+))"
)
"""The last line of argparse, of click and of many others: behind the name of the program, or with words of theirs.
A report that there is none, `Missing keys: []`, is no such line."""
_EXCEPTION: Final = (
    r"[\w.]*\w(?:Error|Exception|Interrupt)(?:: .+)?$|Fatal Python error: .+|terminate called .+"
    r"|[\w:]+::\w+: \[enforce .+"
)
_HINT: Final = (
    r"(?i)\b(?:\w*error|fatal|failed|failure|cannot|can't|could not|unable|no such|not found|missing|required|invalid"
    r"|unknown|unsupported|refused|denied|out of memory|abort(?:ed|ing)?)\b"
)
"""Words of a line that is more likely the reason than the lines around it."""


class LastOutput(NamedTuple):
    """One line of an output."""

    text: str
    is_error: bool
    """True where the line says of itself that it is an error, and nothing was printed after it."""


def last_output(text: str) -> LastOutput | None:
    """Return the line that says best why the process that printed `text` ended, None where it printed nothing."""
    lines = _told_lines(text)[-_LINES:][::-1]
    for after, line in enumerate(lines):
        if re.match(_EXCEPTION, line):
            return LastOutput(clean_line(line, _LONGEST), not after)
        if found := re.match(_ERROR, line):
            return LastOutput(clean_line(found[1] or found[2], _LONGEST), not after)
    best = next((line for line in lines if re.search(_HINT, line)), next(iter(lines), None))
    return None if best is None else LastOutput(clean_line(best, _LONGEST), False)


def in_log(path: Path | str, begin: int = 0) -> LastOutput | None:
    """Return the same of a log from the byte `begin` on; None where the log cannot be read."""
    return last_output(tail.end(Path(path), _BYTES, begin))


def explain(end: str, output: LastOutput | None) -> str:
    """Return the text of an end that names no reason, such as `rank 0 was killed by SIGABRT`, with what was printed."""
    return end if output is None else f"{end}; last output: {output.text}"


def explain_exit(error: str, output: LastOutput | None) -> str:
    """Return the same for `SystemExit: 2`, which says nothing beside an error that was printed."""
    return output.text if output is not None and output.is_error else explain(error, output)


def _told_lines(text: str) -> list[str]:
    """Return the lines that may be the reason; of torchrun's log those since the group was started last."""
    lines: list[str] = []
    failed = False
    for raw in text.splitlines():
        if re.match(_TORCHRUN, raw):
            failed = failed or re.search(_FAILED, raw[:_BYTES]) is not None
        elif re.match(_GROUP, raw):
            break
        elif re.match(_CRASH, raw):
            continue
        elif lines and (said := re.match(_WHAT, raw)):
            kind = lines[-1].rpartition(" instance of ")[2].strip("'")
            lines[-1] = clean_line(f"{kind}: {said[1]}", 4 * _LONGEST)
        elif line := _told(raw):
            if failed:
                lines, failed = [], False
            lines.append(line)
    return lines


def _told(raw: str) -> str:
    """Return what a line says, empty where that is no reason for an end."""
    # A progress bar writes over its line.
    written = raw.rstrip("\r").rpartition("\r")[2]
    line = clean_line(written, 4 * _LONGEST)
    line = re.sub(r"^(?:\[(?:default\d+|rank\d+)\]:? ?)+", "", line)
    bare = line.strip(_FRAME)
    indented = written[:1].isspace()
    if indented or not re.search(r"[^\W\d_]", bare):
        return ""
    return "" if re.match(_NOISE, bare) and not re.match(_EXCEPTION, bare) else bare

"""A launched rank's output goes to its log, and the log is never why a script fails."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest
from support.bases import marked

from ddptop.agent.rank.process import output
from ddptop.agent.rank.process.output import Output
from ddptop.agent.run import rundir

FILL = """
import os
with open(os.environ["DISK"] + "/ballast", "wb", buffering=0) as ballast:
    try:
        while True:
            ballast.write(bytes(4096))
    except OSError:
        pass
"""
"""Leaves no room on the disk."""

STREAMS = """
import io, json, os, sys
print(json.dumps([
    [type(s).__name__, type(s.buffer).__name__, isinstance(s.buffer, io.RawIOBase), s.fileno(), s.isatty(), s.name,
     s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s is getattr(sys, f"__{s.name[1:-1]}__")]
    for s in (sys.stdout, sys.stderr)]))
sys.stdout.reconfigure(line_buffering=True)
print(sys.stdout.line_buffering, sys.stdout.buffer.write(b"bytes\\n"))
os.write(1, b"")
sys.stdout.flush()
"""


def test_a_full_disk_loses_output_and_raises_nothing(rank, small_disk):
    """The script's own prints succeed, on both streams; the log says how much is missing once there is room again."""
    small_disk(64, rank.directory.logs)
    script = f"""
import sys
print("first", flush=True)
{FILL}
for line in range(4000):
    print("line", line, "x" * 60, flush=line % 2 == 0)
    print("complaint", line, "x" * 60, file=sys.stderr)
sys.stdout.flush()
os.unlink(os.environ["DISK"] + "/ballast")
print("last", flush=True)
print("to stderr", file=sys.stderr)
"""
    done = rank.run(script, DISK=str(rank.directory.logs))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert rank.log.startswith("first\n")
    assert "bytes lost here: No space left on device]\nlast\n" in rank.log
    assert "bytes lost here: No space left on device]\nto stderr\n" in rank.log
    assert rank.member.ended.exit_code == 0


def test_a_limit_on_files_loses_output_and_raises_nothing(rank):
    """The same where the limit is the user's: `ulimit -f`."""
    script = "for line in range(4000): print('line', line, flush=True)\nopen('/dev/null', 'w').write('x')\n"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    done = rank.run(script, before=limit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(rank.log) == 8192


def test_a_loss_is_counted(tmp_path, small_disk, capfd):
    """How much is lost, and why, is known to who asks."""
    disk = tmp_path / "disk"
    disk.mkdir()
    small_disk(16, disk)
    kept = Output()
    with open(disk / "log", "wb", buffering=0) as file:
        raw = output._Lossy(file.fileno(), kept)
        written = sum(raw.write(bytes(4096)) for _ in range(10))
    assert written == 40960
    assert kept.lost == 40960 - (disk / "log").stat().st_size > 0
    assert kept.reason == "No space left on device"


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "latin-1:replace"}])
def test_the_streams_stay_what_they_were(rank, environment):
    """Type, descriptor, name, encoding and line mode of both are those of plain Python whose output goes to a file."""
    with_agent = rank.run(STREAMS, **environment)
    assert (with_agent.returncode, with_agent.stdout) == (0, ""), with_agent.stderr
    plain = rank.run(STREAMS, plain=True, **environment)
    found, expected = (text.splitlines() for text in (rank.log, plain.stdout))
    assert found[1:] == expected[1:]
    for ours, theirs in zip(json.loads(found[0]), json.loads(expected[0]), strict=True):
        assert ours[:1] + ours[2:] == theirs[:1] + theirs[2:]


def test_where_no_log_can_be_written_output_goes_where_it_went(rank):
    """A file stands where the folder of the logs should: the script runs, prints to its launcher, and that is told."""
    rank.directory.logs.rmdir()
    rank.directory.logs.write_text("")
    done = rank.run("import sys\nprint('trained')\nprint('warned', file=sys.stderr)")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    told, warned = done.stderr.splitlines()
    log = rank.directory.rank_log(0)
    assert told.startswith(
        f"ddptop: rank 0's output goes to the launcher's log: cannot write {log} (a link or a file in "
    )
    assert warned == "warned"
    assert rank.member.log is None


def test_a_descriptor_that_cannot_be_replaced_leaves_both_as_they_are(tmp_path, monkeypatch):
    """Where the second of the two fails, the first goes back to where it went."""
    calls = []
    real = os.dup2

    def dup2(source: int, target: int, *rest: bool) -> int:
        calls.append(target)
        if calls == [1, 2]:
            raise OSError(24, "Too many open files")
        return real(source, target, *rest)

    before = [os.fstat(number).st_ino for number in (1, 2)]
    monkeypatch.setattr(os, "dup2", dup2)
    output = Output()
    output.redirect(marked(tmp_path) / "log")
    assert output.log is None
    assert output.problem is not None
    assert output.problem.endswith(f"cannot write {tmp_path / 'log'} (Too many open files)")
    assert [os.fstat(number).st_ino for number in (1, 2)] == before


@pytest.mark.parametrize("closed", ["1", "2", "1, 2", "0, 1, 2"])
def test_closed_streams_stay_closed_to_the_script(rank, closed):
    """Started with descriptors closed, the script finds `None` as ever, and what it opens is its own."""
    script = f"""
import sys
with open({str(rank.folder / "seen")!r}, "w") as file:
    print([stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)], file=file)
"""

    def close() -> None:
        for number in closed.split(", "):
            os.close(int(number))

    done = rank.run(script, before=close)
    assert done.returncode == 0
    numbers = [int(number) for number in closed.split(", ")]
    assert (rank.folder / "seen").read_text() == f"{[number in numbers for number in range(3)]}\n"


def test_a_broken_pipe_ends_as_under_plain_python(tmp_path):
    """A job started by hand whose reader has gone: the same exit code, and its end is written down."""
    (tmp_path / "end.py").write_text("print('x' * 10)")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    codes = []
    for runner in ((), ("-m", "ddptop.agent")):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, *runner, "end.py"]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, env=environment, check=False)
        os.close(write)
        codes.append(done.returncode)
    assert codes == [120, 120]
    (directory,) = (found for found in rundir.runs() if found.read().cwd == str(tmp_path))
    ended = directory.members()[0].ended
    assert ended is not None
    assert ended.exit_code == 0


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_what_is_taken_in_part_is_counted_in_part(rank, unbuffered):
    """A file that takes 50 of 112 bytes has lost 62, and the script has printed all."""
    script = """
import os, resource, signal, sys
have = os.fstat(1).st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (have + 50, resource.RLIM_INFINITY))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
print("x" * 111, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("last", flush=True)
"""
    done = rank.run(script, **({"PYTHONUNBUFFERED": unbuffered} if unbuffered else {}))
    assert done.returncode == 0, done.stderr
    assert rank.log == "x" * 50 + "\n[ddptop: 62 bytes lost here: File too large]\nlast\n"

"""A real run of two ranks on another machine, which is a real sshd on the loopback: seen, acted on, and let go."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import sshd
from support.bases import base_of_its_own
from support.harness import DDPTOP, until, write_script
from support.screens.terminal import Terminal
from support.sshd import Machine

from ddptop.agent.run import rundir
from ddptop.agent.version import VERSION

pytestmark = pytest.mark.skipif(bool(sshd.missing()), reason=sshd.missing())

TALKING = """
import sys, time
import light, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 2)
optimizer = light.Descent(model)
step = 0
while True:
    step += 1
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    print(f"rank {dist.get_rank()} says: step {step}", flush=True)
    time.sleep(0.05)
"""
NAME = "far-toy"


@pytest.fixture(scope="module")
def there() -> Iterator[Machine]:
    """The other machine, with a run of two ranks."""
    with base_of_its_own() as base:
        path = write_script(base, TALKING)
        with sshd.machine(base) as machine:
            environment = {**os.environ, "DDPTOP_RUNTIME_DIR": str(base)}
            launch = [*DDPTOP, "launch", "--world", "2", "--name", NAME, "--detach", str(path)]
            subprocess.run(launch, env=environment, check=True, capture_output=True, timeout=200)
            yield machine
            subprocess.run([*DDPTOP, "kill", NAME, "--grace", "0"], env=environment, check=False, capture_output=True)


@pytest.fixture(autouse=True)
def here(there: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Be on this machine: nothing of a connection is left on it, nor on the other one, once a test is over."""
    folder = Path(tempfile.mkdtemp(prefix="dt-here-", dir="/tmp"))
    for name, value in {**there.environment, "TMPDIR": str(folder)}.items():
        monkeypatch.setenv(name, value)
    # Else a first press of a key is hinted at.
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    there.write_config()
    yield folder
    until(lambda: not _left(folder, there), f"nothing to be left: {_left(folder, there)}")
    shutil.rmtree(folder)


def _left(folder: Path, machine: Machine) -> list[str]:
    """Return what is left of connections: folders here, processes of ssh here, far ends there."""
    left = [str(each) for each in folder.glob("ddptop-far-*")]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                own = f"DDPTOP_RUNTIME_DIR={machine.base}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if any(str(folder) in word for word in words) or ("--far" in words and own):
                    left.append(" ".join(words))
    return left


def _ddptop(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DDPTOP, *arguments], capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL
    )


def _state(machine: Machine) -> str:
    """Return the state of the run, asked on its own machine."""
    done = subprocess.run(
        [*DDPTOP, "status", NAME, "--json"], env={**os.environ, "DDPTOP_RUNTIME_DIR": str(machine.base)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return str(json.loads(done.stdout)["state"])


def _attached() -> Terminal:
    return Terminal(
        "from ddptop.tui.screens.dialogs import dialog; dialog.SETTLE_S = 0.0\n"
        f"import sys; sys.argv = ['ddptop', 'attach', 'node1:{NAME}']\nfrom ddptop.tui.cli.main import main; main()"
    )


@contextlib.contextmanager
def _dashboard() -> Iterator[Terminal]:
    terminal = _attached()
    try:
        terminal.read_until(b"Leave")
        yield terminal
    finally:
        terminal.close()


def test_status_is_that_of_the_machine_itself(there: Machine) -> None:
    """Every rank is heard by the forwarded sockets, as `status` over there hears it."""

    def told() -> dict[str, Any]:
        done = _ddptop("status", f"node1:{NAME}", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found if all(rank["step"] for rank in found["ranks"]) else {}

    found = until(told, "steps")
    assert found["run"] == f"node1:{NAME}"
    assert [rank["state"] for rank in found["ranks"]] == ["running", "running"]
    assert all(rank["step"] for rank in found["ranks"])
    members = rundir.RunDir(there.base / NAME).members()
    assert [rank["pid"] for rank in found["ranks"]] == [member.process.pid for member in members.values()]
    assert found["ranks"][0]["log"] == str(there.base / NAME / "logs" / "rank-0.log")


def test_the_runs_of_a_host_are_listed() -> None:
    """`ps HOST:` lists what `ps` lists there, and the only live run needs no name."""
    done = _ddptop("ps", "node1:", "--json")
    assert [run["run"] for run in json.loads(done.stdout)] == [NAME], done.stderr
    assert f"node1:{NAME}" in _ddptop("status", "node1:").stdout


def test_watch_prints_lines_as_here() -> None:
    """One JSON object a line, for as many lines as were asked for."""
    done = _ddptop("watch", "node1:far", "--json", "--count", "2", "--interval", "0")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["state"] for line in lines] == ["running", "running"], done.stderr


def test_verbs_act_on_the_run_and_say_who_did_it(there: Machine) -> None:
    """`pause`, `step` and `resume` are carried out there; the events name the user and that it came by ssh."""
    user, host = getpass.getuser(), socket.gethostname().partition(".")[0]
    assert _ddptop("pause", f"node1:{NAME}").returncode == 0
    assert _state(there) == "paused"
    assert _ddptop("step", f"node1:{NAME}", "3").returncode == 0
    done = _ddptop("resume", f"node1:{NAME}")
    assert done.returncode == 0, done.stderr
    assert _state(there) == "running"
    assert f"{user}@{host} (shell, ssh)" in _ddptop("events", f"node1:{NAME}").stdout
    assert "says: step 3" in _ddptop("logs", f"node1:{NAME}", "--rank", "1", "--grep", "step 3").stdout
    assert "rank" in _ddptop("stacks", f"node1:{NAME}").stdout
    assert _ddptop("kill", f"node1:{NAME}", "--rank", "9").returncode == 1


def test_a_dashboard_pauses_and_resumes_by_key(there: Machine) -> None:
    """The panels and the log come from the other machine, and a key is carried out there."""
    with _dashboard() as terminal:
        terminal.read_until(b"says: step")
        os.write(terminal.master, b" ")
        # The event of the pause may come a frame before the state, by which the key is understood.
        terminal.read_until(b"space resumes")
        assert _state(there) == "paused"
        os.write(terminal.master, b" ")
        until(lambda: _state(there) == "running", "the run to go on")
        os.write(terminal.master, b"q")
        assert terminal.wait() == 0
        assert f"ddptop attach node1:{NAME}".encode() in terminal.written
    assert "(dashboard, ssh)" in _ddptop("events", f"node1:{NAME}").stdout


def test_a_cut_connection_is_told_and_leaves_the_run_alone(there: Machine) -> None:
    """The session of sshd is killed: the dashboard ends with one line that says how to come back."""
    with _dashboard() as terminal:
        for pid in there.sessions:
            os.kill(pid, signal.SIGKILL)
        assert terminal.wait() == 1
        assert b"node1: the connection ended; `ddptop attach node1:far-toy` connects again" in terminal.written
        assert b"Traceback" not in terminal.written
    assert _state(there) == "running"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_killed_dashboard_takes_its_connection_along(number: signal.Signals, here: Path) -> None:
    """After SIGTERM nothing is left; after SIGKILL no process, and the next connection removes the folder."""
    with _dashboard() as terminal:
        os.kill(terminal.process.pid, number)
        assert terminal.wait() == (-number if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:
        assert list(here.glob("ddptop-far-*"))
        assert _ddptop("status", f"node1:{NAME}").returncode == 0


def test_ctrl_c_ends_a_verb_there_too(there: Machine) -> None:
    """`logs --follow` there ends with the one here."""
    command = [*DDPTOP, "logs", f"node1:{NAME}", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) != 0

    def follows() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if entry.name.isdigit() and b"--follow" in words and NAME.encode() in words:
                    found.append(entry.name)
        return found

    until(lambda: not follows(), "the verb there to end")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of a refusal."""
    assert done.returncode == 2, done.stderr
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    return line


def test_a_host_that_is_none() -> None:
    """Its name is not known."""
    for verb in ("status", "pause"):
        assert "no-such-host.invalid: no such host" in _said(_ddptop(verb, "no-such-host.invalid:a"))


def test_a_key_that_is_refused(there: Machine) -> None:
    """Another key than the one that is allowed."""
    if not (there.folder / "other").exists():
        sshd.make_key(there.folder / "other")
    there.write_config(IdentityFile=there.folder / "other")
    for verb in ("status", "pause"):
        assert "node1: it refuses your key: `ssh node1` has to work first" in _said(_ddptop(verb, f"node1:{NAME}"))


def test_host_keys(there: Machine) -> None:
    """One that is not known is not accepted, and one that has changed is told from that."""
    known = (there.folder / "known").read_text()
    (there.folder / "unknown").write_text("")
    there.write_config(UserKnownHostsFile=there.folder / "unknown")
    assert "node1: its host key is not known here" in _said(_ddptop("status", f"node1:{NAME}"))
    if not (there.folder / "another").exists():
        sshd.make_key(there.folder / "another")
    changed = (there.folder / "another.pub").read_text()
    (there.folder / "changed").write_text(f"{known.split(' ')[0]} {changed}")
    there.write_config(UserKnownHostsFile=there.folder / "changed")
    for verb in ("status", "events"):
        assert "node1: its host key is another one than before" in _said(_ddptop(verb, f"node1:{NAME}"))


def test_no_ddptop_there() -> None:
    """What a shell for ssh does not find on its PATH can be named."""
    for verb in ("status", "pause"):
        line = _said(_ddptop(verb, f"node1:{NAME}", "--remote-command", "/no/such/ddptop"))
        assert "node1: no `/no/such/ddptop` on the PATH" in line
        assert "--remote-command" in line


def _program(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    file = folder / "ddptop"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_another_version_there(there: Machine, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions are said; where both understand each other, it goes on."""
    before = _program(here / "old", 'case "$1" in --version) echo "ddptop 0.0.9";; *) exit 2;; esac')
    line = _said(_ddptop("status", f"node1:{NAME}", "--remote-command", before))
    assert f"node1: has ddptop 0.0.9, here is {VERSION}" in line
    real = there.folder / "there" / "ddptop"
    later = _program(
        here / "new", f"""{real} "$@" | sed -u 's/"form":1/"form":2/; s/"version":"[^"]*"/"version":"9.9"/'"""
    )
    line = _said(_ddptop("status", f"node1:{NAME}", "--remote-command", later))
    assert f"node1: has ddptop 9.9, here is {VERSION}, and they do not understand each other" in line
    near = _program(here / "near", f"""{real} "$@" | sed -u '1,2s/"version":"[^"]*"/"version":"0.1.1"/'""")
    done = _ddptop("status", f"node1:{NAME}", "--remote-command", near)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"ddptop: node1 has ddptop 0.1.1, here is {VERSION}; they understand each other\n"


def test_no_such_run_there() -> None:
    """Those that are there are named."""
    line = _said(_ddptop("status", "node1:nope"))
    assert "node1: run 'nope': no such run; there: far-toy (running)" in line
    assert "DDPTOP_RUNTIME_DIR" in line


def test_a_far_end_that_sends_anything(here: Path) -> None:
    """What is no message, or names a file outside of the run, is refused; nothing is written."""
    told = '{"version":"0.1.0","form":1,"protocol":1,"host":"h","at":1e9}'
    greeting = f"echo 'welcome to node1'; printf '%s\\n' 'ddptop-far {told}'"
    for answer in (r"printf '\377\377\377\377'", "head -c 5000 /dev/urandom", "exit 3", "kill -9 $$"):
        program = _program(here / "hostile", f"{greeting}; {answer}")
        done = _ddptop("status", f"node1:{NAME}", "--remote-command", program)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("ddptop: node1: ")


ESCAPING = """
import os, sys
from pathlib import Path
from ddptop.tui.remote import messages
print(end="", flush=True)
out = sys.stdout.buffer
out.write(messages.GREETING + b'{"version":"0.1.0","form":1,"protocol":1,"host":"h","at":1e9}\\n')
out.write(messages.framed(messages.Opened("x", "/tmp", "/tmp")))
out.write(messages.framed(MESSAGE))
out.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "message",
    [
        'messages.Record("../evil", b"x")',
        'messages.Record("ranks/../../evil", b"x")',
        'messages.Piece("logs/../../../evil", 0, b"x")',
        'messages.Piece("run.json", 0, b"x")',
    ],
)
def test_no_file_outside_of_the_copy_is_written(message: str, here: Path) -> None:
    """A far end that names another file than those of a run is one that cannot be understood."""
    script = here / "escaping.py"
    script.write_text(ESCAPING.replace("MESSAGE", message))
    program = _program(here / "escaping", f"exec {sys.executable} {script}")
    line = _said(_ddptop("status", f"node1:{NAME}", "--remote-command", program)).splitlines()[-1]
    assert "node1: what comes from there is unreadable (a file" in line
    assert not list(here.rglob("evil"))


def test_without_ssh(there: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what to install."""
    monkeypatch.setenv("PATH", str(there.folder / "there"))
    assert "no ssh on this machine" in _said(_ddptop("status", f"node1:{NAME}"))


def test_verbs_of_the_machine_itself_say_so() -> None:
    """`serve`, `restart` and `clean` are not carried out over ssh."""
    for verb in ("serve", "restart", "clean"):
        assert f"there: `ssh -t node1 ddptop {verb} {NAME}`" in _said(_ddptop(verb, f"node1:{NAME}"))


def test_kill_by_key_ends_it_there_and_its_record_can_be_looked_at(there: Machine) -> None:
    """The run of two ranks is ended from elsewhere, and nothing of it is left; the ended run is shown whole."""
    directory = rundir.RunDir(there.base / NAME)
    members, torchrun = directory.members(), directory.read().torchrun
    assert torchrun is not None
    with _dashboard() as terminal:
        os.write(terminal.master, b"k")
        terminal.read_until(b"Kill all ranks")
        os.write(terminal.master, b"\t")
        terminal.read_until(f"torchrun {torchrun.pid}, 2 ranks".encode())
        os.write(terminal.master, b"\r")
        until(lambda: not any(rundir.is_alive(member.process) for member in members.values()), "the ranks to end")
        terminal.read_until(b"KILLED")
        # The dialog that tells what was ended may still be there, and takes other keys for itself.
        os.write(terminal.master, b"\x03")
        assert terminal.wait() == 143
    assert _state(there) == "killed"
    done = _ddptop("status", f"node1:{NAME}", "--json")
    assert json.loads(done.stdout)["state"] == "killed", done.stderr
    assert all(rank["step"] for rank in json.loads(done.stdout)["ranks"])
    assert "killed" in _ddptop("report", f"node1:{NAME}").stdout
    # No hang was recorded, and no rank is there to be asked.
    with _dashboard() as terminal:
        os.write(terminal.master, b"s")
        terminal.read_until(b"is over (killed)")
        os.write(terminal.master, b"R")
        terminal.read_until(b"Restart from step 0")
        os.write(terminal.master, b"\x03")
        assert terminal.wait() == 143

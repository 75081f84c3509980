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
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.bases import base_of_its_own
from support.harness import DDPTOP, DEADLINE_S, until, write_script
from support.processes import sshd
from support.processes.sshd import Machine
from support.screens.terminal import Terminal

from ddptop.agent.run import rundir
from ddptop.agent.startup.version import VERSION
from ddptop.tui.remote import errand

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
    """Return what is left of connections: files here, processes of ssh here, verbs there."""
    left = [str(each) for each in folder.glob("ddptop-ssh-*")]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                own = f"DDPTOP_RUNTIME_DIR={machine.base}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if any(str(folder) in word for word in words) or ("ddptop.tui.cli.main" in words and own):
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


@contextlib.contextmanager
def _dashboard() -> Iterator[Terminal]:
    terminal = Terminal(
        f"import sys; sys.argv = ['ddptop', 'attach', 'node1:{NAME}']\nfrom ddptop.tui.cli.main import main; main()"
    )
    try:
        terminal.read_until(b"Leave")
        assert not list(Path(os.environ["TMPDIR"]).glob("ddptop-ssh-*"))
        yield terminal
    finally:
        terminal.close()


def test_status_is_that_of_the_machine_itself(there: Machine) -> None:
    """What `status` writes here is what it writes there, and the log that it names is there."""

    def told() -> dict[str, Any]:
        done = _ddptop("status", f"node1:{NAME}", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found if all(rank["step"] for rank in found["ranks"]) else {}

    found = until(told, "steps")
    assert found["run"] == NAME
    assert [rank["state"] for rank in found["ranks"]] == ["running", "running"]
    members = rundir.RunDir(there.base / NAME).members()
    assert [rank["pid"] for rank in found["ranks"]] == [member.process.pid for member in members.values()]
    assert found["ranks"][0]["log"] == str(there.base / NAME / "logs" / "rank-0.log")


def test_the_runs_of_a_host_are_listed() -> None:
    """`ps HOST:` lists what `ps` lists there, and the only live run needs no name."""
    done = _ddptop("ps", "node1:", "--json")
    assert [run["run"] for run in json.loads(done.stdout)] == [NAME], done.stderr
    assert NAME in _ddptop("status", "node1:").stdout


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
    """It is drawn there, and keys get there; Ctrl-Z, from which no shell could bring it back, does nothing."""
    with _dashboard() as terminal:
        terminal.read_until(b"says: step")
        os.write(terminal.master, b"\x1a ")
        # The event of the pause may come a frame before the state, by which the key is understood.
        terminal.read_until(b"space resumes")
        assert _state(there) == "paused"
        os.write(terminal.master, b" ")
        until(lambda: _state(there) == "running", "the run to go on")
        os.write(terminal.master, b"q")
        assert terminal.wait() == 0
        assert f"ddptop attach node1:{NAME}".encode() in terminal.written
        assert termios.tcgetattr(terminal.master) == terminal.before
    assert "(dashboard, ssh)" in _ddptop("events", f"node1:{NAME}").stdout


def test_a_dashboard_has_the_size_of_the_terminal_here() -> None:
    """It is drawn anew where that changes."""
    with _dashboard() as terminal:
        terminal.read_until(b"\x1b[30;")
        assert b"\x1b[44;" not in terminal.written
        terminal.resize(120, 44)
        terminal.read_until(b"\x1b[44;")
        os.write(terminal.master, b"q")
        assert terminal.wait() == 0


def test_a_cut_connection_is_told_and_leaves_the_run_alone(there: Machine) -> None:
    """The session of sshd is killed: the terminal is left as it was, and one line says how to come back."""
    with _dashboard() as terminal:
        for pid in there.sessions:
            os.kill(pid, signal.SIGKILL)
        assert terminal.wait() == 1
        before, line = terminal.written.rsplit(b"ddptop: ", 1)
        assert line == (
            b"node1: the connection has ended; `ddptop attach node1:far-toy` connects again; the run is untouched\r\n"
        )
        assert all(before.rindex(b"\x1b[?%dl" % mode) > before.rindex(b"\x1b[?%dh" % mode) for mode in (1000, 2004))
        assert before.rindex(b"\x1b[?25h") > before.rindex(b"\x1b[?25l")
        assert b"\x1b[?1047l" in before
        assert termios.tcgetattr(terminal.master) == terminal.before
    assert _state(there) == "running"


def test_a_cut_connection_of_a_verb(there: Machine) -> None:
    """Its exit code is 1, whatever it has printed before."""
    command = [*DDPTOP, "logs", f"node1:{NAME}", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        for pid in there.sessions:
            os.kill(pid, signal.SIGKILL)
        process.stdout.read()
        assert b"node1: the connection has ended" in process.stderr.read()
        assert process.wait() == 1


@pytest.mark.parametrize("code", [0, 3, 127, 253, 255])
def test_the_exit_code_is_that_of_the_verb(code: int, here: Path) -> None:
    """None of them is taken for one of ssh or of a shell; 253, which nothing of ours has, comes as 255."""
    program = _program(here / "there", f"exit {code}")
    done = _ddptop("watch", f"node1:{NAME}", "--remote-command", program)
    assert (done.returncode, done.stderr) == (255 if code == 253 else code, "")


def test_the_verb_knows_the_terminal_of_here(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What says how it can draw goes along, and so does the name that this machine has here."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("LANG", "C")
    program = _program(here / "there", "env")
    done = _ddptop("watch", f"node1:{NAME}", "--remote-command", f"SAID=so {program}")
    lines = done.stdout.splitlines()
    who = f"{getpass.getuser()}@{socket.gethostname().partition('.')[0]}/ssh"
    assert {"NO_COLOR=1", "LC_CTYPE=C.UTF-8", f"DDPTOP_FROM={who}", "DDPTOP_HOST=node1", "SAID=so"} <= set(lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_killed_dashboard_takes_its_connection_along(number: signal.Signals) -> None:
    """No process and no file is left."""
    with _dashboard() as terminal:
        os.kill(terminal.process.pid, number)
        assert terminal.wait() == (-number if number == signal.SIGKILL else 128 + number)


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
        assert line.startswith("ddptop: node1: no `/no/such/ddptop` there; name it: --remote-command")


def _program(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    file = folder / "ddptop"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_another_version_there(here: Path) -> None:
    """Where it refuses the words of a line, both versions are said; the same version is not."""
    answer = 'case "$1" in --version) echo "ddptop %s";; *) echo "ddptop: no verb $1" >&2; exit 2;; esac'
    for version, told in (("0.0.9", f"ddptop: node1 has ddptop 0.0.9; here is {VERSION}: "), (VERSION, "")):
        program = _program(here / "there", answer % version)
        done = _ddptop("checksum", f"node1:{NAME}", "--remote-command", program)
        first, *more = done.stderr.splitlines()
        assert (done.returncode, first) == (2, "ddptop: no verb checksum")
        assert len(more) == bool(told)
        assert all(line.startswith(told) for line in more)


def test_no_such_run_there() -> None:
    """The machine is named on which it was looked for."""
    assert _said(_ddptop("status", "node1:nope")).startswith("ddptop: node1: run 'nope': no such run")


def test_without_ssh(there: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what to install."""
    monkeypatch.setenv("PATH", str(there.folder / "there"))
    assert "no ssh on this machine" in _said(_ddptop("status", f"node1:{NAME}"))


def test_verbs_of_the_machine_itself_say_so() -> None:
    """`serve`, `restart` and `clean` are not carried out over ssh, nor what writes a file."""
    for verb in ("serve", "restart", "clean"):
        assert f"there: `ssh -t node1 ddptop {verb} {NAME}`" in _said(_ddptop(verb, f"node1:{NAME}"))
    said = _said(_ddptop("attach", f"node1:{NAME}", "--screenshot", "a.svg"))
    assert f"`ssh node1 ddptop attach {NAME} --screenshot a.svg`" in said


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
        pressed = 0

        def ended() -> bool:
            nonlocal pressed
            # Right after the dialog has opened, Enter is ignored, and that is said.
            if terminal.written.count(b"Enter ignored") >= pressed:
                pressed += 1
                os.write(terminal.master, b"\r")
            return not any(rundir.is_alive(member.process) for member in members.values())

        until(ended, "the ranks to end")
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


@pytest.mark.parametrize("command", ["'{folder}/a b/ddptop'", "DDPTOP_X=1 '{folder}/a b/ddptop'"])
def test_a_command_whose_path_needs_quotes_is_found(command: str, tmp_path: Path) -> None:
    """The shell there gets it as it was written: as one word."""
    program = tmp_path / "a b" / "ddptop"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho $DDPTOP_X $1\n")
    program.chmod(0o755)
    words = errand.line(command.format(folder=tmp_path), ["status"], {"DDPTOP_X": "2"}, "node1", "install it")
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[-1] == "status"

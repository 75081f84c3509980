"""The runner is invisible: a script behaves under it as under plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.harness import own_words

from ddptop.agent.run import rundir
from ddptop.agent.run.switches import checking, recording

PROBE = """
import json, sys
print(json.dumps([__name__, sys.argv, sys.path[0], __file__, sys.modules["__main__"].__dict__ is globals()]))
"""


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=cwd, check=False)


def test_a_script_sees_what_it_sees_under_python(tmp_path):
    """Name, arguments, first import path, file and main module are the same with and without the agent."""
    (tmp_path / "probe.py").write_text(PROBE)
    plain = run("probe.py", "--lr", "0.1", "--", "-x", cwd=tmp_path)
    under = run("-m", "ddptop.agent", "probe.py", "--lr", "0.1", "--", "-x", cwd=tmp_path)
    assert json.loads(under.stdout) == json.loads(plain.stdout)


def test_a_module_sees_what_it_sees_under_python(tmp_path):
    """The same for -m, with a package's __main__."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "__main__.py").write_text(PROBE)
    plain = run("-m", "pack", "a", cwd=tmp_path)
    under = run("-m", "ddptop.agent", "-m", "pack", "a", cwd=tmp_path)
    assert json.loads(under.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import sys; sys.exit('bad')", 1),
        ("import sys; sys.exit()", 0),
        ("raise ValueError('no')", 1),
        ("import os; os._exit(9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("raise KeyboardInterrupt", -2),
    ],
)
def test_the_exit_is_the_scripts_own(tmp_path, body, code):
    """Every way to end gives the launcher the same code, and the user the same words, as plain Python."""
    (tmp_path / "end.py").write_text(body)
    plain = run("end.py", cwd=tmp_path)
    under = run("-m", "ddptop.agent", "end.py", cwd=tmp_path)
    assert (under.returncode, plain.returncode) == (code, code)
    assert own_words(under.stderr).replace(str(tmp_path) + "/", "") == plain.stderr.replace(str(tmp_path) + "/", "")


def test_the_end_is_written_down(tmp_path):
    """The run directory keeps exit code and traceback of the rank."""
    (tmp_path / "fail.py").write_text("def f():\n    raise ValueError('bad lr')\nf()\n")
    run("-m", "ddptop.agent", "fail.py", cwd=tmp_path)
    (directory,) = (found for found in rundir.runs() if found.read().cwd == str(tmp_path))
    ended = directory.members()[0].ended
    assert ended is not None
    assert ended.exit_code == 1
    assert ended.error == "ValueError: bad lr"
    assert ended.traceback is not None
    assert "in f" in ended.traceback
    assert "ddptop" not in ended.traceback


def test_children_of_the_script_find_its_main_module(tmp_path):
    """Spawned workers import the script again, as DataLoader workers do."""
    (tmp_path / "pool.py").write_text(
        "import multiprocessing\n"
        "def twice(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(twice, [1, 2]))\n"
    )
    assert run("-m", "ddptop.agent", "pool.py", cwd=tmp_path).stdout == "[2, 4]\n"


def test_a_process_forked_by_the_script_carries_the_marker(tmp_path):
    """Also a job started by hand can be found whole: /proc shows the marker in a plain fork."""
    (tmp_path / "fork.py").write_text(
        "import os\n"
        "if os.fork() == 0:\n"
        "    text = open('/proc/self/environ').read()\n"
        "    print(int('DDPTOP_RUN_ID=' in text), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert run("-m", "ddptop.agent", "fork.py", cwd=tmp_path).stdout == "1\n"


def test_a_script_that_waits_for_any_child_gets_its_own(tmp_path):
    """The start of the observer of a job started by hand is over before the script begins."""
    (tmp_path / "wait.py").write_text(
        "import os, time\n"
        "if (child := os.fork()) == 0:\n"
        "    time.sleep(0.3)\n"
        "    os._exit(0)\n"
        "print(os.wait()[0] == child)\n"
    )
    assert run("-m", "ddptop.agent", "wait.py", cwd=tmp_path).stdout == "True\n"


@pytest.mark.parametrize("arguments", [(), ("missing.py",), ("--lr",)])
def test_bad_input_gives_one_line(tmp_path, arguments):
    """A missing script is told in one line, exit code 2."""
    under = run("-m", "ddptop.agent", *arguments, cwd=tmp_path)
    assert under.returncode == 2
    assert len(under.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("variable", "text", "right"),
    [
        ("DDPTOP_INJECT", "rank=0,phase=sideways,ms=3", "sideways"),
        (checking.VARIABLE, "often", "say a number of steps"),
        (recording.VARIABLE, "7", "say one of 1, 2, 4"),
        (recording.MEMORY_VARIABLE, "much", "say a number of MiB"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused_before_the_script(tmp_path, monkeypatch, variable, text, right):
    """One line that names it and what would be right, and exit code 2."""
    (tmp_path / "ok.py").write_text("print('trained')")
    monkeypatch.setenv(variable, text)
    done = run("-m", "ddptop.agent", "ok.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert variable in done.stderr
    assert right in done.stderr


def test_without_a_place_for_the_run_the_script_still_runs(tmp_path):
    """A runtime directory that cannot be used costs the agent, not the training."""
    (tmp_path / "file").write_text("")
    (tmp_path / "ok.py").write_text("print('trained')")
    environment = {**os.environ, rundir.BASE_VARIABLE: str(tmp_path / "file" / "no")}
    done = subprocess.run(
        [sys.executable, "-m", "ddptop.agent", "ok.py"],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "goes on without" in done.stderr


def test_in_a_folder_that_is_gone_the_script_still_runs(tmp_path):
    """A script by its whole path trains; one by a path into that folder is refused in one line."""
    (tmp_path / "ok.py").write_text("print('trained')")
    (tmp_path / "gone").mkdir()
    inside = f"import os, sys\nos.chdir({str(tmp_path / 'gone')!r})\nos.rmdir({str(tmp_path / 'gone')!r})\n"
    code = inside + "os.execv(sys.executable, [sys.executable, '-m', 'ddptop.agent', sys.argv[1]])"
    done = run("-c", code, str(tmp_path / "ok.py"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (tmp_path / "gone").mkdir()
    done = run("-c", code, "ok.py", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no script ok.py in a folder that is gone" in line

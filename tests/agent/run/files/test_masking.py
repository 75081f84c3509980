"""Secrets of a run stand nowhere but in a file for the owner alone, and a repetition gets them back."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.harness import WAIT, started, until

from ddptop.agent import text
from ddptop.agent.client import runs
from ddptop.agent.client.acting import membership
from ddptop.agent.client.host import state
from ddptop.agent.client.start import checks
from ddptop.agent.client.start import run as start
from ddptop.agent.client.start.request import Request
from ddptop.agent.end import processes
from ddptop.agent.launcher import launcher, observers
from ddptop.agent.run import rundir
from ddptop.agent.run.files import masking
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.tui.launch import form, launch, remembered

SECRET = "hunter2-and-more"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("WANDB_API_KEY", True), ("APIKEY", True), ("HF_TOKEN", True), ("authToken", True), ("PGPASSWORD", True),
        ("mysql_passwd", True), ("AWS_SECRET_ACCESS", True), ("GOOGLE_CREDENTIALS", True), ("http-auth", True),
        ("AUTHORIZATION", True), ("--api-key", True), ("API_TOKENS", True),
        ("OMP_NUM_THREADS", False), ("TOKENIZERS_PARALLELISM", False), ("--tokenizer", False), ("AUTHOR", False),
        ("KEYBOARD", False), ("PATH", False),
    ],
)  # fmt: skip
def test_names_that_say_secret(name: str, expected: bool) -> None:
    """Whatever the case, and as a part of a longer word; words that only look alike are none."""
    assert text.is_secret(name, "a value") is expected


def test_numbers_of_tokens_are_no_secret() -> None:
    """`--max-tokens 512` stays readable."""
    words = ("--max-tokens", "512", "--max-tokens=4k", "--tokens", "abcdef", "--token", "512")
    assert text.masked_words(words) == (*words[:4], "***", "--token", "***")


def test_command_lines_are_masked_word_by_word() -> None:
    """An option's value behind it or behind a sign of equality, and assignments; nothing else is touched."""
    words = ("--lr", "0.1", "--api-key=a=b", "--token", "abc", "wandb.api_key=x y", "--use-auth", "--seed", "1", "key")
    shown = ("--lr", "0.1", "--api-key=***", "--token", "***", "wandb.api_key=***", "--use-auth", "--seed", "1", "key")
    assert text.masked_words(words) == shown
    assert text.masked_words(("/data/keys/lr=1/train.py",)) == ("/data/keys/lr=1/train.py",)


@given(st.lists(st.text(max_size=20) | st.sampled_from(["--token", "--key=x", "TOKEN=y", "-k"]), max_size=8))
@settings(deadline=None, max_examples=200)
def test_a_mask_is_masked_to_itself(words: list[str]) -> None:
    """A record that is read, changed and written again stays what it is; no word is lost."""
    once = text.masked_words(words)
    assert text.masked_words(once) == once
    assert len(once) == len(words)


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run with secrets whose observer is not started."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.setattr(observers, "start", lambda directory: None)
    return launch.launch(
        Request(
            "train.py",
            arguments=("--api-key", SECRET, f"--password={SECRET}", "--lr", "0.1"),
            world=1,
            backend="gloo",
            environment=("MY_TOKEN", f"DB_PASSWORD={SECRET}", "LEVEL=3"),
        )
    ).directory


def test_secrets_stand_in_a_file_of_their_own(launched: RunDir) -> None:
    """No file of the run has them but one, which is for the owner alone; the record can still be read."""
    holders = [path for path in launched.path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    (holder,) = holders
    assert stat.S_IMODE(holder.stat().st_mode) == 0o600
    run = launched.read()
    assert run.arguments == ("--api-key", "***", "--password=***", "--lr", "0.1")
    assert run.environment["LEVEL"] == "3"
    assert run.environment["MY_TOKEN"] == run.environment["DB_PASSWORD"] == "***"


def test_a_restart_gets_the_secrets_back(launched: RunDir) -> None:
    """Command line, arguments and environment are those that were given, though the variable is gone by now."""
    del os.environ["MY_TOKEN"]
    launched.update(state="finished")
    again = start.restart(runs.Run(launched)).directory
    assert SECRET not in (again.path / "run.json").read_text()
    whole = masking.whole(again.path, again.read())
    assert whole.arguments == ("--api-key", SECRET, f"--password={SECRET}", "--lr", "0.1")
    assert whole.command[-5:] == whole.arguments
    assert whole.environment["MY_TOKEN"] == whole.environment["DB_PASSWORD"] == SECRET
    assert whole.environment == masking.whole(launched.path, launched.read()).environment


def test_a_restart_without_that_file(launched: RunDir) -> None:
    """A record from before it is complete; a masked one is refused in one line, and never run with its masks."""
    old = masking.whole(launched.path, launched.read())
    (launched.path / "secrets.json").unlink()
    launched.update(state="finished")
    with pytest.raises(rundir.RunDirError, match="its secrets are not to be had"):
        start.restart(runs.Run(launched))
    with pytest.raises(OSError, match="its secrets are not to be had"):
        launcher.Torchrun.start(launched, launched.read())
    launched.update(environment=old.environment, arguments=old.arguments, command=old.command)
    again = start.restart(runs.Run(launched)).directory
    assert masking.whole(again.path, again.read()).arguments == old.arguments


def test_what_is_started_gets_the_secrets(launched: RunDir, tmp_path: Path) -> None:
    """Environment and command line are whole; the process list and the search for the process work with the mask."""
    code = f"import os, sys; open('told', 'w').write(os.environ['MY_TOKEN'] + sys.argv[2]); {WAIT}"
    run = launched.read()
    given = masking.whole(launched.path, run)
    run = Run(
        "masked", "id-of-masked", "x", (), 1, None, None, 0, True, cwd=str(tmp_path), environment=given.environment,
        command=(sys.executable, "-c", code, "--token", SECRET), owner=os.getuid(),
    )  # fmt: skip
    directory = rundir.create(run)
    torchrun = launcher.Torchrun.start(directory, directory.read())
    try:
        told = tmp_path / "told"
        until(lambda: told.exists() and told.read_text(), "the process has told")
        assert told.read_text() == SECRET * 2
        assert processes.find_torchrun(directory.read()) == torchrun.process
        known = directory.update(torchrun=torchrun.process)
        (entry,) = membership.processes(known, {})
        assert entry.command.endswith("--token ***")
    finally:
        psutil.Process(torchrun.process.pid).kill()
        until(torchrun.is_over, "its end")
        directory.update(state="killed")


@pytest.mark.parametrize("value", ["0", "", None])
def test_the_users_own_buffering_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """PYTHONUNBUFFERED is set where nobody has said otherwise, by `--env` or in the environment."""
    code = "import os; open('told', 'w').write('=' + os.environ['PYTHONUNBUFFERED'])"
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    run = Run(
        f"buffered-{value}", "id", "x", (), 1, None, None, 0, True, cwd=str(tmp_path), owner=os.getuid(),
        environment={} if value is None else {"PYTHONUNBUFFERED": value}, command=(sys.executable, "-c", code),
    )  # fmt: skip
    directory = rundir.create(run)
    torchrun = launcher.Torchrun.start(directory, run)
    until(torchrun.is_over, "its end")
    directory.update(state="finished")
    assert (tmp_path / "told").read_text() == ("=1" if value is None else f"={value}")


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [("NOT_SET_ANYWHERE", "not set here"), ("MY_TOKEN=***", "say it again"), ("A B", "say KEY=VALUE"), ("=x", "KEY")],
)
def test_bad_variables_get_one_line(assignment: str, problem: str) -> None:
    """What is wrong and what to do."""
    with pytest.raises(ValueError, match=problem) as caught:
        checks.variables([assignment])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("assignment", [f"1KEY={SECRET}", f"DDPTOP_KEY={SECRET}"])
def test_a_refusal_does_not_tell_the_value(assignment: str) -> None:
    """Only the name stands in the message."""
    with pytest.raises(ValueError, match="KEY") as caught:
        checks.variables([assignment])
    assert SECRET not in str(caught.value)


def test_the_dialog_neither_shows_nor_keeps_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line and the remembered draft have masks; recalled, the form asks for what they stand for."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    draft = form.Draft(
        program="",
        script=str(tmp_path / "train.py"),
        launch={"environment": f"A=1 API_KEY={SECRET}"},
        arguments=f"--lr 0.1 --token {SECRET}",
        options={"toy": {"--auth": SECRET, "--lr": "0.1"}},
    )
    assert SECRET not in form.command(draft, ())
    assert not form.problems(draft, ()).keys() & {"environment", "arguments"}
    assert remembered.remember(draft) is None
    assert SECRET not in state.place("launch.json").read_text()
    recalled, _ = remembered.recall()
    assert (recalled.launch["environment"], recalled.options["toy"]["--lr"]) == ("A=1 'API_KEY=***'", "0.1")
    assert form.problems(recalled, ()).keys() >= {"environment", "arguments"}


def test_the_process_list_of_another_program_is_masked() -> None:
    """What is printed of a command line has no secret, however it is written there."""
    with started(sys.executable, "-c", WAIT, f"--api-key={SECRET}") as process:
        identity = rundir.identify(process.pid)
        assert identity is not None
        assert SECRET not in membership._command(identity)

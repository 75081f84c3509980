"""The table of launch options: each is on the command line, in the form, in the line that the form shows, and acts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.client.host import state
from ddptop.agent.client.runs import Run
from ddptop.agent.client.start import run as start
from ddptop.agent.client.start.checks import CHECKS
from ddptop.agent.client.start.request import Request
from ddptop.agent.launcher import machine, observers
from ddptop.agent.run.rundir import RunDir
from ddptop.tui.cli import main
from ddptop.tui.cli.verbs.launch import requested
from ddptop.tui.launch import form, launch, remembered
from ddptop.tui.launch.form import Draft
from ddptop.tui.launch.options import OPTIONS, LaunchOption

POOL = (
    "1", "2", "007", "0", "0.5", "1e2", "mine", "run-2.b", "rank=0,crash", "rank=0,phase=data,ms=5 rank=0,nan,from=9",
    "1:4", "node1:29400", "job 7",
    "A=1 B='x y'", "C='it\\'s' D=", "PATH", *(choice for option in OPTIONS for choice in option.offered),
)  # fmt: skip
"""What may be typed; each option can use some of it."""
PARSER = main._parser()


HOSTS = {"nnodes": "2", "rdzv_endpoint": "127.0.0.1:29400"}
BESIDE = dict.fromkeys(("nnodes", "node_rank", "rdzv_endpoint", "rdzv_id"), HOSTS)
"""What has to be filled in beside an option that means nothing alone."""


def drafted(option: LaunchOption, text: str) -> Draft:
    """Return what is filled in where an option is."""
    return Draft(launch={**BESIDE.get(option.key, {}), option.key: text})


def usable(option: LaunchOption) -> list[str]:
    """Return what of the pool can be filled in for an option."""
    return [text for text in POOL if option.key not in form.problems(drafted(option, text), ())]


USABLE = {option.key: usable(option) for option in OPTIONS}


def asked(line: str) -> Request:
    """Return what a command line asks for, as `ddptop` itself reads it."""
    words, arguments = main._split(shlex.split(line)[1:])
    options = PARSER.parse_args(words)
    options.arguments = tuple(arguments)
    return requested(options, "somebody")


def other(option: LaunchOption) -> Any:
    """Return a value of an option that is not its default."""
    key = option.key
    values = (getattr(form.request(drafted(option, text), (), "somebody"), key) for text in USABLE[key])
    return next(value for value in values if value != option.default)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_an_option_is_everywhere(option: LaunchOption) -> None:
    """A field of the request, an argument with help, words for the form; what is typed stands in the line shown."""
    assert option.key in Request._fields
    assert option.title
    assert f" {option.flag} " in " ".join(_launch_help().split())
    assert USABLE[option.key], "give the pool something that this option can use"
    for text in USABLE[option.key]:
        assert f"{option.flag} " in form.command(Draft(launch={option.key: text}), ())


def _launch_help() -> str:
    verbs: Any = next(each for each in PARSER._actions if each.dest == "verb")
    return str(verbs.choices["launch"].format_help())


def test_nothing_beside_the_table() -> None:
    """What is checked is an option, and no field of a request is left out but the program, its arguments and who."""
    keys = {option.key for option in OPTIONS}
    assert CHECKS.keys() <= keys
    assert set(Request._fields) - keys == {"program", "as_module", "arguments", "who"}
    assert len({option.flag for option in OPTIONS}) == len(keys) == len(OPTIONS)


@given(st.fixed_dictionaries({}, optional={key: st.sampled_from(texts) for key, texts in USABLE.items()}), st.data())
@settings(deadline=None, max_examples=100)
def test_the_line_shown_asks_for_the_same(launch: dict[str, str], data: st.DataObject) -> None:
    """Whatever is filled in: the command line that the form shows makes the request that the form makes."""
    arguments = data.draw(st.lists(st.sampled_from(["--lr", "0.1", "x y", "--", "-h", "$HOME", "it's"]), max_size=4))
    draft = Draft(program="", script="my train.py", arguments=shlex.join(arguments), launch=launch)
    request = form.request(draft, (), "somebody")
    assert asked(form.command(draft, ())) == request
    assert request.arguments == tuple(arguments)


@pytest.mark.parametrize(
    ("key", "text"),
    [("world", "many"), ("world", "-1"), ("grace", "nan"), ("grace", "3601"), ("max_restarts", "1001"),
     ("start", "fork"), ("backend", "tcp"), ("on_term", "exit")],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_both(key: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The form says why beside the field, the command line in one line that names the flag, with exit code 2."""
    (option,) = (option for option in OPTIONS if option.key == key)
    problem = form.problems(Draft(launch={key: text}), ())[key]
    with pytest.raises(SystemExit) as ended:
        PARSER.parse_args(["launch", f"{option.flag}={text}", "toy"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert option.flag in line
    assert repr(text) in line
    assert option.choices or problem in line


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script, on a machine with two GPUs, whose runs get no observer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "gpus", lambda: 2)
    monkeypatch.setattr(observers, "start", lambda directory: None)
    (tmp_path / "train.py").write_text("")
    return tmp_path / "train.py"


def settings_of(directory: RunDir) -> dict[str, Any]:
    """Return what is written down of a run, but for what differs between two of the same settings."""
    ours: dict[str, Any] = msgspec.to_builtins(directory.read())
    for key in ("run_id", "created_at_ns", "state", "removed", "removal"):
        del ours[key]
    return ours


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_an_option_acts_and_is_repeated(option: LaunchOption, record: Path) -> None:
    """A run with it is written down as another one than a run without; its restart gets the same, but for the name."""
    name = f"acts-{option.key.replace('_', '-')}"
    beside: dict[str, Any] = dict(BESIDE.get(option.key, {}))
    plain = launch.launch(Request("train.py", name=name)._replace(**beside)).directory
    before = settings_of(plain)
    # An endpoint that has a name here.
    value = "localhost:29400" if option.key == "rdzv_endpoint" else other(option)
    value = "3" if option.key == "nnodes" else value
    changed: dict[str, Any] = beside | {option.key: value}
    with_option = launch.launch(Request("train.py", name=f"{name}-with")._replace(**changed)).directory
    after = settings_of(with_option)
    assert after != before | {"run": f"{name}-with"}
    with_option.update(state="finished")
    assert settings_of(start.restart(Run(with_option)).directory) == after | {"run": f"{with_option.name}.2"}


def test_the_programs_that_are_remembered_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last twenty, each with its own options, none with its faults and its name; a script by its path."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        draft, _ = remembered.recall()
        draft.choose(f"train{number}.py")
        draft.launch = {"world": str(number), "inject": "rank=0,crash", "name": "mine"}
        assert remembered.remember(draft) is None
    stored = json.loads(state.place("launch.json").read_text())["launches"]
    assert stored == {str(tmp_path / f"train{number}.py"): {"world": str(number)} for number in range(10, 30)}

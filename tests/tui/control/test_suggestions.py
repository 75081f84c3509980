"""What a half typed program may mean, in folders that the test makes, and what is remembered of launches."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.client.host import state
from ddptop.agent.client.start.request import Request
from ddptop.agent.launcher import observers
from ddptop.agent.text import MASK
from ddptop.trainers import CATALOGUE
from ddptop.tui.launch import form, launch, remembered
from ddptop.tui.launch.form import Draft
from ddptop.tui.launch.programs import Suggestion, completed, modules, paths, suggestions

FILES = ("train.py", "toy_train.py", "pkg/__init__.py", "pkg/train.py", "pkg/deep/eval.py", ".hidden.py", "notes.txt")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some scripts, in which we are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "project"
    for name in FILES:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    monkeypatch.chdir(folder)
    return folder


def offered(typed: str, *recent: Suggestion) -> list[str]:
    """Return the texts that are offered."""
    return [each.text for each in suggestions(typed, recent)]


def test_nothing_typed_offers_all_recent_ones_first() -> None:
    """Recent programs, scripts of this folder, the catalogue, and last the folders; each of them once."""
    assert offered("", Suggestion("resnet", "recent")) == [
        "resnet", "toy_train.py", "train.py", *(name for name in CATALOGUE if name != "resnet"), "pkg/",
    ]  # fmt: skip


def test_a_word_filters_names_and_techniques() -> None:
    """What begins with it comes before what contains it, and that before a technique; a path has no technique."""
    assert offered("train")[:2] == ["train.py", "toy_train.py"]
    assert offered("toy")[0] == "toy"
    assert "resnet" in offered("data parallel")
    assert offered("./data") == []


def test_what_is_typed_to_its_end_is_offered_first(project: Path) -> None:
    """Enter takes the first one: neither a recent program nor a longer name may stand before the one that is typed."""
    assert offered("toy", Suggestion("toy_train.py", "recent"))[0] == "toy"
    (project / "run").write_text("")
    assert offered("run", Suggestion("run.py", "recent"))[0] == "run"


def test_paths_and_modules_are_completed_as_a_shell_does(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders and Python files alone, hidden ones once their dot is typed, `~` for the home, absolute ones too."""
    assert paths("pkg/") == ["pkg/__init__.py", "pkg/deep/", "pkg/train.py"]
    assert paths(".h") == [".hidden.py"]
    assert paths(f"{project}/tr") == [f"{project}/train.py"]
    monkeypatch.setenv("HOME", str(project))
    assert paths("~/pkg/d") == ["~/pkg/deep/"]
    assert paths("/no/such/folder/") == []
    assert modules("") == ["pkg.", "toy_train", "train"]
    assert modules("pkg.") == ["pkg.deep.", "pkg.train"]
    assert offered("-m pkg.deep.") == ["-m pkg.deep.eval"]
    assert offered("-m")[0] == "-m pkg."


def test_a_name_that_cannot_be_typed_is_not_offered(project: Path) -> None:
    """A file whose name has an escape sequence or a line break in it is left out."""
    for name in ("a\x1b[31m.py", "b\n.py", "c\u202e.py"):
        (project / name).write_text("")
    assert not {"a", "b", "c"} & {path[0] for path in paths("")}


@given(st.text(alphabet="abc/.-~ ", max_size=6), st.lists(st.text(alphabet="abc/", max_size=6), max_size=5))
@settings(max_examples=100)
def test_completion_adds_what_all_share(typed: str, texts: list[str]) -> None:
    """Every suggestion that begins as it was typed begins with the result, and with no longer one."""
    whole = completed(typed, [Suggestion(text, "") for text in texts])
    fitting = [text for text in texts if text.startswith(typed)]
    assert whole.startswith(typed)
    assert all(text.startswith(whole) for text in fitting)
    assert not fitting or any(text == whole for text in fitting) or len({text[len(whole)] for text in fitting}) > 1


def test_a_launch_is_remembered_with_its_arguments(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By any launch, the last one first; a path is written from where one is; what is gone is left out."""
    monkeypatch.setattr(observers, "start", lambda directory: None)
    for number, request in enumerate((
        Request("toy"),
        Request("pkg/train.py", arguments=("--lr", "0.1", "x y")),
        Request("pkg.train", as_module=True),
        Request("train.py", arguments=("--api-key", "hush")),
        Request("toy"),
    )):  # fmt: skip
        launch.launch(request._replace(name=f"remembered-{number}", world=1))
    found = {each.text: each.arguments for each in remembered.recent()}
    assert list(found) == ["toy", "train.py", "-m pkg.train", "pkg/train.py"]
    assert found == {
        "toy": None, "train.py": f"--api-key '{MASK}'", "-m pkg.train": "", "pkg/train.py": "--lr 0.1 'x y'",
    }  # fmt: skip
    monkeypatch.chdir(project / "pkg")
    (project / "train.py").unlink()
    assert [each.text for each in remembered.recent()] == ["toy", "train.py"]


def test_a_script_with_the_name_of_a_program_stays_a_script(project: Path) -> None:
    """`./toy` comes back as a path with its arguments, beside the program of the catalogue."""
    (project / "toy").write_text("")
    remembered.note_launch(Request("toy"))
    file = state.place("launched.json")
    (entry,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**entry, "program": str(project / "toy"), "arguments": "--lr 1"}, entry]))
    assert [(each.text, each.arguments) for each in remembered.recent()] == [("./toy", "--lr 1"), ("toy", None)]


def test_no_folder_is_read_for_the_name_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for at every key: only the folder that is typed is read."""
    read: list[str] = []
    scan = os.scandir

    def noted(folder: str) -> object:
        read.append(folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", noted)
    assert "pkg." in modules("")
    assert read == ["."]


def test_what_was_launched_may_be_damaged_or_unwritable(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is offered then, and a launch is noted again, or not at all."""
    remembered.note_launch(Request("toy"))
    file = state.place("launched.json")
    assert json.loads(file.read_text())
    assert file.stat().st_mode & 0o077 == 0
    for content in ("{", '[{"program": 1}]', "[]"):
        file.write_text(content)
        assert remembered.recent() == []
    remembered.note_launch(Request("toy"))
    assert [each.text for each in remembered.recent()] == ["toy"]
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    remembered.note_launch(Request("toy"))
    assert remembered.recent() == []
    monkeypatch.setattr(os, "getcwd", lambda: (_ for _ in ()).throw(FileNotFoundError()))
    assert remembered.recent() == []


@pytest.mark.parametrize(
    ("typed", "line", "program", "as_module"),
    [
        ("toy", "ddptop launch toy", "toy", False),
        (" train.py ", "ddptop launch train.py -- --lr 1", "train.py", False),
        ("-m pkg.train", "ddptop launch -m pkg.train -- --lr 1", "pkg.train", True),
        ("~/train.py", "ddptop launch {home}/train.py -- --lr 1", "{home}/train.py", False),
    ],
)
def test_what_is_typed_is_launched(
    typed: str, line: str, program: str, as_module: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name, a path, one from the home, or a module: the line shown and the request say the same."""
    monkeypatch.setenv("HOME", str(project))
    draft = Draft(arguments="--lr 1")
    draft.fill("program", typed)
    assert form.problems(draft, ()) == {}
    assert form.command(draft, ()) == line.format(home=project)
    request = form.request(draft, (), "somebody")
    assert (request.program, request.as_module) == (program.format(home=project), as_module)


@pytest.mark.parametrize(
    ("typed", "reason"),
    [("", "the path of a script, or -m MODULE"), ("-m", "-m MODULE"), ("resnt", "did you mean 'resnet'?"),
     ("pkg/", "is a directory"), ("-m pkg.nothing", "no module")],
)  # fmt: skip
def test_what_is_no_program_is_said_beside_the_field(typed: str, reason: str) -> None:
    """Under the key of the program's field, with what to do."""
    draft = Draft()
    draft.fill("program", typed)
    assert reason in form.problems(draft, ())["program"]

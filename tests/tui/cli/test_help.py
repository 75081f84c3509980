"""The manual: every page is found, rendered, paged and linked; a wrong topic is told."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.screens.terminal import Terminal

from ddptop.trainers import CATALOGUE
from ddptop.tui.cli.main import _parser, main
from ddptop.tui.cli.output import pages

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tui" / "cli" / "manual"
FILES = sorted(FOLDER.glob("*.md"))
READABLE = [*FILES, ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md"]
HELP = "import sys; sys.argv = ['ddptop', 'help', 'trouble']; from ddptop.tui.cli.main import main; main()"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def prose(text: str) -> list[str]:
    """Return the words of a Markdown text without code, comments and signs."""
    text = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    return re.findall(r"[A-Za-z]{4,}", text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_page_is_rendered(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its words are there, in lines that fit, and nothing is left of Markdown's signs."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = file.read_text()
    styled = pages.rendered(text)
    assert "\x1b[" in styled
    plain = ESCAPES.sub("", styled)
    assert max(map(len, plain.splitlines())) <= 80
    assert not re.search(r"^#|\]\(|<!--|\|---", plain, re.MULTILINE)
    # A table breaks a word that is wider than its cell, and cuts none.
    assert text.count("…") >= plain.count("…")
    joined = re.sub(r"\W", "", plain)
    missing = [word for word in prose(text) if word not in plain and word not in joined]
    assert missing == []


def test_an_option_is_shown_as_it_is_typed() -> None:
    """Markdown would take a pair of asterisks as its own."""
    assert "100,buffers=*.running_*" in pages.rendered(pages.read("programs"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see [verdicts](verdicts.md#profile), too", "see ddptop help verdicts, too"),
        ("behind a [profile](diagnosis.md#profile): press P", "behind a profile (ddptop help diagnosis): press P"),
        ("see [below](#here)", "see below"),
        ("at <https://ui.perfetto.dev>", "at https://ui.perfetto.dev"),
    ],
)
def test_a_link_is_a_command(text: str, shown: str) -> None:
    """That of another page, behind what the sentence calls it where that is another word."""
    assert ESCAPES.sub("", pages.rendered(text)).strip() == shown


def test_a_page_begins_with_its_topic() -> None:
    """The list of topics takes what stands behind it."""
    titles = {file.stem: file.read_text().partition("\n")[0] for file in FILES}
    assert len(titles) >= 10
    for topic, title in titles.items():
        assert title.lower().startswith(f"# {topic}: "), title


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str, str]]:
    """`ddptop help` in this process, into a pipe: exit code, output, errors."""

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["ddptop", "help", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_without_a_topic_all_are_listed(told: Callable[..., tuple[object, str, str]]) -> None:
    """A line each, with what the page is about."""
    code, output, _ = told()
    assert code == 0
    listed = dict(line.split(maxsplit=1) for line in output.split("\n\n")[0].splitlines())
    assert set(listed) == {file.stem for file in FILES}
    assert all(
        f"{topic}: {title}".lower() in (FOLDER / f"{topic}.md").read_text().lower() for topic, title in listed.items()
    )


@pytest.mark.parametrize("topic", ["control", "programs"])
def test_a_pipe_gets_plain_text(topic: str, told: Callable[..., tuple[object, str, str]]) -> None:
    """The page as a terminal shows it, without escape sequences, comments and signs of Markdown."""
    code, output, errors = told(topic)
    assert (code, errors) == (0, "")
    assert not re.search(r"\x1b|<!--|^#|\]\(| $", output, re.MULTILINE)
    assert prose((FOLDER / f"{topic}.md").read_text())[0] in output


@pytest.mark.parametrize("pager", ["tee {file}", "no-such-pager-here", ""])
def test_a_terminal_gets_the_page_through_its_pager(
    pager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pager that the user has named is given the rendered page; without one, it is printed."""
    file = tmp_path / "paged"
    monkeypatch.setenv("PAGER", pager.format(file=file))
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal(HELP)
    try:
        assert terminal.wait() == 0, terminal.written
    finally:
        terminal.close()
    assert b"No run is found" in terminal.written
    assert b"\x1b[" in terminal.written
    assert file.exists() == pager.startswith("tee")
    if file.exists():
        assert file.read_bytes() == terminal.written.replace(b"\r\n", b"\n")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("contrl", "control"),
        ("Keys", "keys"),
        ("lanch", "launch"),
        ("timeline", "keys"),
        ("xyzzy", None),
        ("../../main", None),
    ],
)
def test_a_wrong_topic(told: Callable[..., tuple[object, str, str]], word: str, meant: str | None) -> None:
    """One line that names the page with that word in its headings, and exit code 2."""
    code, output, errors = told(word)
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert ("did you mean" in errors) == (meant is not None)
    assert f"{meant!r}?" in errors or meant is None


@pytest.mark.parametrize("verb", ["launch", "kill", "help"])
def test_a_verb_is_a_topic(told: Callable[..., tuple[object, str, str]], verb: str) -> None:
    """It shows what `--help` of the verb does."""
    by_topic = told(verb)
    assert by_topic[0] == 0
    assert f"usage: ddptop {verb}" in by_topic[1]
    assert "exit codes:" in by_topic[1]


def anchors(text: str) -> set[str]:
    """Return what GitHub makes of the headings."""
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", READABLE, ids=lambda file: file.stem)
def test_every_link_leads_somewhere(file: Path) -> None:
    """To a file of the repository, and to a heading of it where one is named; a page links pages alone."""
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)]+)\)", text)
    for link in links:
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (file.parent / name).resolve() if name else file
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target.read_text()), link
        assert file.parent != FOLDER or target.parent == FOLDER, f"{link}: not in the package"


def test_the_readme_links_every_page() -> None:
    """And is short enough to be read: 200 lines."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    for file in FILES:
        assert f"(tui/cli/manual/{file.name})" in text


@pytest.mark.parametrize("file", READABLE, ids=lambda file: file.stem)
def test_only_verbs_that_there_are(file: Path) -> None:
    """What follows `ddptop` in a code span or at the start of a line of code is a verb of the parser."""
    verbs = next(each.choices for each in _parser()._actions if each.dest == "verb")
    assert verbs is not None
    named = re.findall(r"(?:^ *|`)ddptop ([a-z]+)", file.read_text(), re.MULTILINE)
    assert set(named) <= set(verbs)


def test_each_program_is_told() -> None:
    """The catalogue's page has a line for each, with its module."""
    page = (FOLDER / "programs.md").read_text()
    for program in CATALOGUE.values():
        module = program.module.removeprefix("ddptop.trainers.programs.")
        assert re.search(rf"^\| `{program.name}` \| .* \| `{re.escape(module)}` \|$", page, re.MULTILINE), program.name


def test_help_loads_rich_alone() -> None:
    """A page comes at once: with Rich, and with neither Textual nor ZeroMQ, NumPy or torch."""
    code = f"""
import sys
try:
    {HELP.replace("; ", chr(10) + "    ")}
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in done.stderr.split()} & {"zmq", "textual", "torch", "numpy"}

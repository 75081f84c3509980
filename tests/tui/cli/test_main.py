"""Bad input gets one clear line and exit code 2, and nothing is left behind."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.harness import DDPTOP, ddptop

from ddptop.agent.run import rundir
from ddptop.tui.cli.main import _parser, main
from ddptop.tui.cli.parsing import FAMILIES, Parser


@pytest.fixture
def folder(tmp_path):
    """A folder with a script that cannot be run and one that can."""
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "ok.py").write_text("print('ok')\n")
    (tmp_path / "pack").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["launch"], "give one program"),
        (["launch", "--world", "0", "ok.py"], "world"),
        (["launch", "--world", "100000", "ok.py"], "world"),
        (["launch", "--world", "two", "ok.py"], "--world"),
        (["launch", "resnt"], "did you mean 'resnet'"),
        (["launch", "missing.py"], "missing.py"),
        (["launch", "broken.py"], "line 2"),
        (["launch", "pack"], "is a directory"),
        (["launch", "-m", "no.such.module"], "no.such"),
        (["launch", "--name", "a b", "ok.py"], "run name"),
        (["launch", "--backend", "mpi", "ok.py"], "--backend"),
        (["launch", "okk.py"], "did you mean 'ok.py'?"),
        (["launch", "./borken.py"], "did you mean 'broken.py'?"),
        (["launch", "nothing_like_it.py"], "give the path of a script"),
        (["launch", "--worl", "2", "ok.py"], "unknown option --worl (did you mean --world?)"),
        (["launch", "--worl=2", "ok.py"], "unknown option --worl (did you mean --world?)"),
        (["--worl", "2", "ok.py"], "unknown option --worl (did you mean `ddptop launch --world`?)"),
        (["--world", "2", "ok.py"], "unknown option --world (did you mean `ddptop launch --world`?)"),
        (
            ["launch", "ok.py", "--lr", "0.1"],
            "unknown option --lr (arguments of the program go after --: `ddptop launch ok.py -- --lr 0.1`)",
        ),
        (["launch", "ok.py", "--lr", "a b", "--world=2"], "`ddptop launch ok.py --world=2 -- --lr 'a b'`)"),
        (["launch", "--world", "2", "ok.py", "-x", "--", "y"], "`ddptop launch --world 2 ok.py -- -x y`)"),
        (["launch", "--lr", "0.1", "ok.py"], "after --: `ddptop launch train.py -- --lr 0.1`)"),
        (["launch", "--wrld", "2", "simplenet"], "unknown option --wrld (did you mean --world?)"),
        (["launch", "--wrld=2", "simplenet"], "unknown option --wrld (did you mean --world?)"),
        (["launch", "--nproc-pr-node", "2", "simplenet"], "did you mean --nproc-per-node?"),
        (["launch", "simplenet", "0.1"], "unexpected argument '0.1' (arguments of the program go after --"),
        (["ps", "--jsn"], "ddptop ps: unknown option --jsn (did you mean --json?); `ddptop ps --help`"),
        (["kill", "--grce", "3"], "unknown option --grce (did you mean --grace?)"),
        (["kill", "-9", "resnet-7f"], "unknown option -9 (did you mean --signal 9?)"),
        (["kill", "resnet-7f", "-TERM"], "unknown option -TERM (did you mean --signal TERM?)"),
        (["kill", "resnet-7f", "--grace", "-5"], "--grace: '-5'"),
        (["ps", "all"], "ddptop: ps: 'all': a host is named with a colon: `ddptop ps all:`"),
        (["--ps"], "ddptop: unknown option --ps;"),
        (["launch", "--world", "2", "--inject", "rank=2,phase=data,ms=5", "ok.py"], "ranks 0 to 1"),
        (["launch", "--inject", "rank=0,phase=sideways,ms=5", "ok.py"], "backward"),
        (["launch", "--inject", "rank=0,phase=data,ms=-5", "ok.py"], "milliseconds"),
        (["attach", "--size", "120"], "'120': say WIDTHxHEIGHT, from 20x5"),
        (["watch", "--count", "x"], "'x': say a whole number from 1 to"),
        (["serve", "--port", "65536"], "'65536': say a whole number from 0 to 65,535"),
        (["clean", "--older", "x"], "'x': say a number of days"),
        (["attach", "nothing"], "no such run"),
        (["status", "nothing"], "ddptop ps"),
        (["kill"], "RUN"),
        (["atach"], "did you mean 'attach'"),
    ],
)
def test_bad_input_gives_one_line(folder, runtime, monkeypatch, capsys, arguments, says):
    """What is wrong and what to do, in one line; no run is made."""
    before = {path.name for path in runtime.iterdir()}
    # In this process: an interpreter for each of these lines would take most of the time.
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["ddptop", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    output, errors = capsys.readouterr()
    assert (ended.value.code, output) == (2, "")
    assert len(errors.splitlines()) == 1, errors
    assert says in errors
    # Runs that ended long ago may be tidied away meanwhile.
    assert {path.name for path in runtime.iterdir()} <= before | {".ddptop"}


def test_nccl_without_enough_gpus_is_refused(folder):
    """A backend that cannot work here is refused before anything starts."""
    done = ddptop("launch", "--world", "30", "--backend", "nccl", "ok.py", cwd=folder)
    assert done.returncode == 2
    assert "nccl" in done.stderr.lower()


def test_an_unwritable_runtime_directory_is_told(folder, monkeypatch):
    """One line that names the variable to set."""
    monkeypatch.setenv(rundir.BASE_VARIABLE, "/proc/no")
    done = ddptop("launch", "ok.py", cwd=folder)
    assert done.returncode == 2
    assert rundir.BASE_VARIABLE in done.stderr


def test_without_torch_it_says_what_to_install(folder):
    """An environment without torch gives the pip command, not a traceback."""
    code = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "sys.argv = ['ddptop', 'launch', 'ok.py']\n"
        "from ddptop.tui.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 2
    assert "pip install" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_programs_are_listed():
    """The catalogue shows each program with what it teaches."""
    text = ddptop("programs").stdout
    assert "resnet" in text
    assert "simplenet" in text


def test_ps_without_runs_says_what_to_do(monkeypatch):
    """An empty list is explained, and is an empty list in JSON."""
    base = Path("/tmp") / f"dt-{os.getpid()}-empty"
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(base))
    try:
        assert "ddptop launch" in ddptop("ps").stdout
        assert json.loads(ddptop("ps", "--json").stdout) == []
        assert ddptop("attach").returncode == 2
    finally:
        shutil.rmtree(base)


def _parsers(parser):
    """Return a parser, and those of its verbs."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [each for verb in action.choices.values() for each in _parsers(verb)]
    return found


@pytest.mark.parametrize("verb", FAMILIES)
def test_help_of_a_verb_has_a_sentence_an_example_and_the_exit_codes(verb: str) -> None:
    """Each example is a command line of that verb which the parser takes, and stays in one line."""
    (parser,) = (each for each in _parsers(_parser(verb)) if each.prog == f"ddptop {verb}")
    assert re.fullmatch(r"[A-Z][^\n]+\.", parser.description or "")
    head, examples, codes = re.split(r"^examples?:\n|^exit codes:\n", parser.epilog or "", flags=re.MULTILINE)
    assert head == ""
    lines = [shlex.split(line, comments=True) for line in examples.splitlines() if line]
    assert lines
    for words in lines:
        ours = words[words.index("ddptop") + 1 :]
        assert _parser(verb).parse_args(ours[: ours.index("--")] if "--" in ours else ours).verb == verb
    assert all(re.match(r"  (\d+|N) +\S", line) for line in codes.splitlines())
    # In 80 columns argparse breaks what is longer.
    assert all(len(line) <= 78 for line in (parser.epilog or "").splitlines())


@pytest.mark.parametrize(
    ("words", "name"), [("compare a --json b", "other"), ("gate a --junit x.xml b", "file"), ("keep a b", "name")]
)
def test_what_may_be_left_out_is_taken_behind_an_option(words: str, name: str) -> None:
    """As Python's own reader does from 3.13 on."""
    options = _parser(words.split()[0]).parse_args(words.split())
    assert (options.run, str(getattr(options, name))) == ("a", "b")


@pytest.mark.parametrize("verb", FAMILIES)
def test_no_option_is_unknown_that_argparse_knows(verb: str) -> None:
    """In full, with `=` and a value, and beside a negative number; one that is cut short is unknown to both."""
    (parser,) = (each for each in _parsers(_parser(verb)) if each.prog == f"ddptop {verb}")
    assert isinstance(parser, Parser)
    names = [name for action in parser._actions for name in action.option_strings]
    for name in names:
        assert parser._unknown([name, "-9", f"{name}=x", "-"]) is None
    assert parser.allow_abbrev is False
    cut = [name[:-1] for name in names if len(name) > 4]
    assert all(parser._unknown([name]) == name for name in cut if name not in names)
    assert parser._unknown(["a", "--no-such-option=1"]) == "--no-such-option"


def test_help_prints_anywhere():
    """It is printed before signs are chosen for the terminal: so it has none that any could be without."""
    parsers = _parsers(_parser())
    assert len(parsers) > 10
    for parser in parsers:
        assert parser.format_help().isascii(), parser.prog
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*DDPTOP, "launch", "--help"], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_is_quick():
    """`--help` loads neither ZeroMQ nor Textual nor torch, so it costs little more than Python itself."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ddptop.tui.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert not loaded & {"zmq", "textual", "torch", "msgspec", "psutil", "numpy"}


def test_each_verb_is_that_of_its_family() -> None:
    """The parser of a single verb is made from its family alone, and has the same options as in the list of all."""
    everything = {each.prog: each.format_help() for each in _parsers(_parser())}
    assert {prog.removeprefix("ddptop ") for prog in everything if " " in prog} == FAMILIES.keys()
    for verb in FAMILIES:
        alone = {each.prog: each.format_help() for each in _parsers(_parser(verb))}
        assert alone[f"ddptop {verb}"] == everything[f"ddptop {verb}"]
        assert len(alone) < len(everything)


def test_help_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width is the one that `shutil` tells, as argparse has it."""
    for columns in ("64", "133"):
        monkeypatch.setenv("COLUMNS", columns)
        ours = next(each for each in _parsers(_parser("attach")) if each.prog == "ddptop attach")
        lines = ours.format_help().splitlines()
        assert max(map(len, lines)) <= shutil.get_terminal_size().columns
        assert max(map(len, lines)) > shutil.get_terminal_size().columns - 20

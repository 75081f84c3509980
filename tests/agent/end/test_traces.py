"""Stacks in tracebacks and crash dumps."""

from __future__ import annotations

import faulthandler
import tempfile
import traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.end import traces

DUMP = """\
loss 3
terminate called after throwing an instance of 'gloo::EnforceNotMet'
Fatal Python error: Aborted

Thread 0x00007f50226ff6c0 (most recent call first):
  File "/v/lib/python3.11/site-packages/zmq/sugar/poll.py", line 106 in poll
  File "/v/lib/python3.11/threading.py", line 1045 in _bootstrap

Thread 0x00007f834fe41b80 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4181 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/ada/train.py", line 12 in main
  File "/home/ada/train.py", line 25 in <module>

Extension modules: numpy._core._multiarray_umath (total: 1)
"""


def test_letters_of_any_script_are_read_from_a_dump_which_is_ascii() -> None:
    """As `faulthandler` itself writes them; what would act on a terminal stays as it is written."""
    with tempfile.TemporaryFile() as file:
        code = compile("faulthandler.dump_traceback(file)", "/a/hang ü 試 \U0001f40d\x9b.py", "exec")
        exec(code, {"file": file, "faulthandler": faulthandler})
        file.seek(0)
        dump = file.read().decode("ascii")
    crash = traces.crash(f"Fatal Python error: Aborted\n\n{dump}")
    assert crash is not None
    assert crash.stack.frames[0].file == "/a/hang ü 試 \U0001f40d\\x9b.py"
    assert "hang ü 試" in crash.text


def test_a_dump_of_faulthandler_gives_the_line_and_the_collective() -> None:
    """Where the thread that crashed is none of Python's, the one that ran the user's code counts."""
    crash = traces.crash(DUMP)
    assert crash is not None
    assert crash.what == "Aborted"
    assert crash.before.endswith("'gloo::EnforceNotMet'")
    assert "Extension modules" not in crash.text
    assert crash.stack.user == traces.Spot("/home/ada/train.py", 12, "main")
    assert crash.stack.collective == "all_reduce"
    current = DUMP.replace("Thread 0x00007f5", "Current thread 0x00007f5")
    assert traces.crash(current) == crash._replace(
        text=crash.text.replace("Thread 0x00007f5", "Current thread 0x00007f5")
    )
    assert traces.crash("Segmentation fault\n") is None


def test_what_faulthandler_of_this_python_writes_is_read(tmp_path: Path) -> None:
    """The innermost frame is that of this test, whatever the version calls its threads."""
    file = tmp_path / "dump"
    with file.open("w") as out:
        out.write("Fatal Python error: Aborted\n\n")
        out.flush()
        faulthandler.dump_traceback(out)
    crash = traces.crash(file.read_text())
    assert crash is not None
    assert crash.stack.user is not None
    assert crash.stack.user.function == "test_what_faulthandler_of_this_python_writes_is_read"
    assert Path(crash.stack.user.file).name == "test_traces.py"


def test_a_traceback_of_this_python_is_read_behind_the_prefix_of_torch() -> None:
    """The last of several, innermost first; without the lines around it."""
    try:
        raise ValueError("two\nlines")
    except ValueError:
        told = traceback.format_exc()
    prefixed = "".join(f"[rank1]: {line}\n" for line in told.splitlines())
    text = f"Traceback (most recent call last):\n  old\nKeyError\nepoch 2\n{prefixed}bye\n"
    assert traces.of_traceback(text) == traces.of_traceback(told)
    stack = traces.of_traceback(told)
    assert stack.user is not None
    assert stack.user.text.endswith("test_a_traceback_of_this_python_is_read_behind_the_prefix_of_torch")
    assert traces.traceback(text) == told.rstrip()
    assert traces.traceback("no trace") == ""


def test_the_collective_is_the_one_that_the_user_called() -> None:
    """Not one that it calls in turn; the start of a group is none."""
    file = "/v/site-packages/torch/distributed/distributed_c10d.py"
    user = traces.Spot("/home/ada/train.py", 3, "main")
    inner = (
        traces.Spot(file, 1, "all_gather"),
        traces.Spot(file, 2, "wrapper"),
        traces.Spot(file, 3, "all_gather_object"),
    )
    assert traces.Stack((*inner, user)).collective == "all_gather_object"
    assert traces.Stack((traces.Spot(file, 1, "init_process_group"), user)).collective == ""
    assert traces.Stack((user, *inner)).collective == ""


@settings(deadline=None, max_examples=100)
@given(
    st.text(st.sampled_from('File "/x.py", line 12 in main\n Fatal Python error: Thread 0x Traceback'), max_size=400)
)
def test_any_text_is_read(text: str) -> None:
    """Whatever a rank prints."""
    for each in (text, f"Fatal Python error: x\n{text}", f"Traceback (most recent call last):\n{text}"):
        traces.crash(each)
        traces.of_traceback(each)
        traces.printed(each)
        traces.before(each)


def _told(script: str, folder: Path) -> str:
    """Return the traceback of a script as Python formats it."""
    file = folder / "train.py"
    file.write_text(script)
    try:
        exec(compile(script, str(file), "exec"), {})
    except Exception:
        return traceback.format_exc()
    raise AssertionError("it has to raise")


QUOTES = """import traceback
def load():
    try:
        int("x")
    except ValueError:
        text = traceback.format_exc()
    raise RuntimeError({message})
load()
"""


@pytest.mark.parametrize(
    "message",
    [
        r"'a loader failed.\n\nOriginal traceback:\n' + text",
        r"f'a loader failed\n{text}'",
        r"'worker 3: ' + text + '(see above)'",
        r"f'failed:\n{text}\nand again:\n{text}'",
    ],
)
def test_a_traceback_that_a_message_quotes_is_not_that_of_the_exception(message: str, tmp_path: Path) -> None:
    """In the record of a rank, however the message introduces it."""
    told = _told(QUOTES.format(message=message), tmp_path)
    user = traces.of_traceback(told, recorded=True).user
    assert user is not None
    assert (Path(user.file).name, user.line, user.function) == ("train.py", 7, "load")


def test_the_traceback_of_a_data_worker_is_that_of_the_exception() -> None:
    """Torch raises another one in its place, and quotes it; the dataset's line is the one that explains it."""
    text = (
        'Traceback (most recent call last):\n  File "/home/ada/train.py", line 9, in main\n'
        "KeyError: Caught KeyError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "/home/ada/data.py", line 5, in __getitem__\nKeyError: 3\n'
    )
    user = traces.of_traceback(text, recorded=True).user
    assert user is not None
    assert user.text == "data.py:5 __getitem__"


def test_the_output_before_an_exception_is_that_before_all_its_tracebacks(tmp_path: Path) -> None:
    """Also before that of the exception during whose handling it was raised, and of none before."""
    chain = "try:\n    int('x')\nexcept ValueError:\n    raise KeyError('y')\n"
    told = _told(chain, tmp_path)
    assert told.count("Traceback") == 2
    old = "Traceback (most recent call last):\n  old\nKeyError: 1\nepoch 2"
    assert traces.before(f"epoch 1\n{old}\n{told}") == f"epoch 1\n{old}"
    assert traces.before("epoch 1\nepoch 2") == "epoch 1\nepoch 2"


def test_what_a_rank_prints_and_goes_on_after_is_found_only_at_its_end(tmp_path: Path) -> None:
    """With the words of `logging`; what was followed by many lines has nothing to do with the end."""
    told = _told("def load():\n    raise ValueError('scene 20 has no lanes')\nload()\n", tmp_path)
    output = f"step 1\nERROR:root:scene 20 was left out\n{told}\n\nleaving\n"
    assert traces.printed(output).splitlines()[-1] == "ValueError: scene 20 has no lanes"
    assert traces.printed(output + "step 2\n" * 20) == ""
    assert traces.printed("step 1\n") == ""


def test_frames_of_libraries_are_folded_in_the_stack() -> None:
    """Several in a row become one line; one alone, and the user's own, stay."""
    library = '  File "/opt/lib/python3.11/site-packages/torch/x.py", line 2, in f\n    f()\n    ~~^'
    mine = '  File "/home/me/train.py", line 7, in <module>\n    step()'
    trace = "\n".join(
        ("Traceback (most recent call last):", mine, library, library, mine, library, "KeyError: 1", "  more")
    )
    folded = "  … 2 frames of libraries"
    assert "\n".join(traces.folded(trace.splitlines())) == "\n".join(
        ("Traceback (most recent call last):", mine, folded, mine, library, "KeyError: 1", "  more")
    )


@pytest.mark.parametrize("names", [("deeper",), ("even", "odd"), ("a", "b", "c")])
def test_frames_of_a_recursion_are_told_once(names: tuple[str, ...]) -> None:
    """Of one function or of several that call each other, with their number; what is around them stays."""
    frames = [f'  File "/home/ada/train.py", line {line}, in {name}\n    x' for line, name in enumerate(names, 5)]
    opening = ["Traceback (most recent call last):", '  File "/home/ada/train.py", line 90, in <module>\n    main()']
    trace = "\n".join([*opening, *(frames * 12), "RecursionError: maximum recursion depth exceeded"])
    shown = traces.folded(trace.splitlines())
    for frame in frames:
        assert shown.count(frame.splitlines()[0]) == 1
    this = "that" if len(names) == 1 else f"these {len(names)}"
    assert f"  … {this} 11 times more" in shown
    assert "RecursionError: maximum recursion depth exceeded" in shown

"""Stacks in tracebacks and crash dumps."""

from __future__ import annotations

import faulthandler
import traceback
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.observer.end import traces

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

"""The line of an output that tells why its process ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.run.script.last_output import LastOutput, explain_exit, in_log, last_output
from ddptop.agent.text import clean_line

TORCHRUN = (
    "W1123 00:21:21.607000 23 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 25 SIGTERM\n"
    "Traceback (most recent call last):\n"
    '  File "/v/site-packages/torch/distributed/run.py", line 1142, in <module>\n    main()\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n"
)
FAILED = (
    "E1123 01:45:32.671000 25 torch/distributed/elastic/multiprocessing/api.py:1002] "
    "failed (exitcode: 3) local_rank: 0 (pid: 26) of binary: /v/bin/python\n"
)
OCCUPIED = (
    "W1123 01:45:30.1 25 torch/distributed/run.py:766] Setting OMP_NUM_THREADS for each process to be 1 in default\n"
    "Traceback (most recent call last):\n"
    '  File "/v/site-packages/torch/distributed/run.py", line 1142, in <module>\n    main()\n'
    '  File "/v/site-packages/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", line 67, in x\n'
    "    self._store = TCPStore(  # type: ignore[call-arg]\n                  ^^^^^^^^^\n"
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 47201, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n\n"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("usage: train.py [-h]\n                [--lr LR]\ntrain.py: error: unrecognized arguments: 2\n",
         "unrecognized arguments: 2"),
        ("Usage: train [OPTIONS]\nTry 'train --help' for help.\n\nError: No such option: --foo\n",
         "No such option: --foo"),
        ("resnet: unrecognized arguments: 2; see --help\n", "unrecognized arguments: 2; see --help"),
        ("could not open /data\n", "could not open /data"),
        ("ValueError: the Warning flag\n", "ValueError: the Warning flag"),
        ("ValueError: bad\n" + FAILED + "error: no data\n" + FAILED + TORCHRUN, "no data"),
        (OCCUPIED, OCCUPIED.splitlines()[-2]),
        ("Traceback (most recent call last):\n  File x\n    y\n[rank0]: ValueError: bad\n"
         "[rank0]:[W1123 00:00:00.1 ProcessGroup.cpp:12] Warning: destroy_process_group() was not called\n",
         "ValueError: bad"),
        ("╭─ Error ──╮\n│ No such option: --foo   │\n╰────────╯\n", "No such option: --foo"),
        ("x.py:3: UserWarning: slow\n  warnings.warn('slow')\nAssertionError\n" + TORCHRUN, "AssertionError"),
    ],
)  # fmt: skip
def test_an_error_is_found_among_the_lines_around_it(text: str, says: str) -> None:
    """Usage, source lines, warnings, torch's and torchrun's own lines are none."""
    assert last_output(text) == LastOutput(says, True)
    assert explain_exit("SystemExit: 2", last_output(text)) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epoch 1\nepoch 2 loss 0.3\n", "epoch 2 loss 0.3"),
        ("could not open /data\nbye\n", "could not open /data"),
        ("fatal: no data\nsaved the log\n", "no data"),
        ("Missing keys: []\n", "Missing keys: []"),
        ("KeyError: 'x'\nskipped\nno card\n", "KeyError: 'x'"),
        ("ValueError: bad\n" + FAILED + "no card\n" + FAILED + TORCHRUN, "no card"),
        ("loss failed to fall\nbye\n", "loss failed to fall"),
        ("val: error: 0.31\n", "val: error: 0.31"),
        ("loading\r 10%\rloaded 3 files\n", "loaded 3 files"),
        (TORCHRUN, None),
        ("\n====\n  3%|#  | 1/3\r", None),
    ],
)
def test_a_line_that_is_no_error_is_only_the_last_output(text: str, says: str | None) -> None:
    """It does not replace the exit code; where nothing was printed there is none."""
    found = last_output(text)
    assert found == (None if says is None else LastOutput(says, False))
    said = "" if says is None else f"; last output: {says}"
    assert explain_exit("SystemExit: 3", found) == f"SystemExit: 3{said}"


@settings(deadline=None, max_examples=200)
@given(st.text(st.sampled_from("aE:/ .[]|\x1b[31m\r\n\u202e\ud800error"), max_size=300))
def test_any_output_gives_one_clean_line(text: str) -> None:
    """Bounded, without what a terminal would obey."""
    found = last_output(text * 20)
    assert found is None or (found.text and found.text == clean_line(found.text, 200))


def test_a_log_is_read_from_where_a_process_began_it(tmp_path: Path) -> None:
    """What the processes before it have printed is no reason; a log that was cut short is read whole."""
    log = tmp_path / "rank-0.log"
    log.write_text("ValueError: of the process before\n")
    assert in_log(log, log.stat().st_size) is None
    before = log.stat().st_size
    with log.open("a") as more:
        more.write("no card\n")
    assert in_log(log, before) == LastOutput("no card", False)
    log.write_text("short\n")
    assert in_log(log, before) == LastOutput("short", False)


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    """Neither does a folder or a pipe in its place."""
    assert in_log(tmp_path / "no.log") is None
    assert in_log(tmp_path) is None

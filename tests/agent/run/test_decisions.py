"""A decision is made once, whole, and by one."""

from __future__ import annotations

import errno
import os
import threading

from ddptop.agent.run.decisions import Decisions


def test_of_many_at_once_one_decides(tmp_path):
    """Eight writers of each of 100 numbers: one succeeds, and everybody reads what that one wrote."""
    winners: list[list[int]] = [[] for _ in range(100)]
    start = threading.Barrier(8)

    def write(writer: int) -> None:
        decisions = Decisions(tmp_path)
        start.wait()
        for serial in range(100):
            if decisions.decide(serial + 1, bytes([writer]) * 2000):
                winners[serial].append(writer)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(each) for each in winners] == [1] * 100
    decisions = Decisions(tmp_path)
    assert decisions.newest() == 100
    assert decisions.read(101) is None
    for serial in range(90, 100):
        assert decisions.read(serial + 1) == bytes(winners[serial]) * 2000
    assert sorted(path.name for path in (tmp_path / "decisions").iterdir()) == sorted(map(str, range(1, 101)))


def test_a_refusal_says_what_helps_where_the_disk_is_full(tmp_path):
    """And no such thing where something else is the matter."""
    decisions = Decisions(tmp_path)
    for number in (errno.ENOSPC, errno.EDQUOT):
        text = decisions.refusal(OSError(number, os.strerror(number)))
        assert text.endswith("nothing can be decided there: make room (`df -h`, `df -i`), and ask again")
    assert decisions.refusal(OSError(errno.EACCES, "Permission denied")).endswith("nothing can be decided there")

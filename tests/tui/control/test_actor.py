"""Who acts on a run, as its events name him."""

from __future__ import annotations

import socket

import pytest

from ddptop.agent.client.acting import actor


@pytest.mark.parametrize("name", ["ada (dashboard, pts/3)", "ada (non-interactive shell)"])
def test_on_several_hosts_an_actor_has_the_name_of_his(name: str) -> None:
    """`pts/3` is a terminal of one of them; of a run on one host nothing is added."""
    here = socket.gethostname().partition(".")[0]
    assert actor.in_run(name, True) == name.replace("ada (", f"ada@{here} (", 1)
    assert actor.in_run(name, False) == name


def test_who_comes_from_another_machine_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine at which he sits is told, and not the one that does it."""
    assert actor.in_run("ada@laptop (dashboard, ssh)", True) == "ada@laptop (dashboard, ssh)"
    monkeypatch.setattr(actor, "asked_by", ("ada@laptop", "ssh"))
    assert actor.in_run(actor.who("shell"), True) == "ada@laptop (shell, ssh)"

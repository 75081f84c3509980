"""The ranks of a job that something else launched find each other's run, and no earlier one."""

from __future__ import annotations

import secrets

import pytest

from ddptop.agent.rank.process import enrolment
from ddptop.agent.run.rundir import RunDir


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of a rank whose launcher tells host and port alone, and not how many ranks are here."""
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", secrets.token_hex(4))
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("WORLD_SIZE", "4")


def test_a_job_that_is_started_again_gets_a_run_of_its_own() -> None:
    """From the same shell on the same port: ranks of one job join one run, and the runs of ended ones stay."""
    names = []
    for _ in range(3):
        directory, run_id = enrolment._find_or_make("train.py", ())
        again, same = enrolment._find_or_make("train.py", ())
        assert (again.path, same) == (directory.path, run_id)
        assert directory.read().run_id == run_id
        directory.update(state="finished")
        names.append((directory.name, run_id))
    assert len(set(names)) == len({run_id for _, run_id in names}) == 3
    assert all(RunDir(directory.path.with_name(name)).read().run_id == run_id for name, run_id in names)


@pytest.mark.parametrize(
    ("told", "world", "expected"),
    [
        ("2", "4", 2),
        ("4", "4", 4),
        ("5", "4", None),
        ("0", "4", None),
        ("-1", "4", None),
        (None, "4", None),
        (None, "1", 1),
    ],
)
def test_ranks_on_this_host(
    monkeypatch: pytest.MonkeyPatch, told: str | None, world: str, expected: int | None
) -> None:
    """As many as the launcher tells; nothing where it tells none, or what cannot be."""
    monkeypatch.setenv("WORLD_SIZE", world)
    if told is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    directory, _ = enrolment._find_or_make("train.py", ())
    assert directory.read().local_world == expected

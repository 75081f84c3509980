"""What tests of the dashboard share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from functools import cache

import pytest
from support.processes import quiet
from textual.css import stylesheet
from textual.css.model import RuleSet
from textual.css.parse import parse
from textual.css.tokenize import tokenize_values
from textual.css.tokenizer import Token
from textual.css.types import CSSLocation
from textual.widgets import Input

from ddptop.agent.run import rundir
from ddptop.tui.screens.dialogs import dialog


@pytest.fixture(scope="session", autouse=True)
def shared_rules() -> Iterator[None]:
    """Parse each style sheet once under each theme, not again for every app: Textual only reads what was parsed."""

    @cache
    def tokenized(variables: tuple[tuple[str, str], ...]) -> dict[str, list[Token]]:
        return tokenize_values(dict(variables))

    known: dict[tuple[object, ...], list[RuleSet]] = {}

    def parsed(
        scope: str,
        css: str,
        read_from: CSSLocation,
        *,
        variable_tokens: dict[str, list[Token]],
        is_default_rules: bool,
        tie_breaker: int,
    ) -> list[RuleSet]:
        # `tokenized` keeps its dictionaries, so that their identities stand for what is in them.
        key = (scope, css, read_from, id(variable_tokens), is_default_rules, tie_breaker)
        if key not in known:
            known[key] = list(
                parse(
                    scope,
                    css,
                    read_from,
                    variable_tokens=variable_tokens,
                    is_default_rules=is_default_rules,
                    tie_breaker=tie_breaker,
                )
            )
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stylesheet, "tokenize_values", lambda values: tokenized(tuple(values.items())))
        patch.setattr(stylesheet, "parse", parsed)
        yield


@pytest.fixture(autouse=True)
def steady_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no cursor blink: what a frame shows of it would be a matter of the moment."""
    # To turn the blinking off would hide the cursor.
    monkeypatch.setattr(Input, "_toggle_cursor", lambda self: None)


@pytest.fixture(autouse=True)
def settled_dialogs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dialogs take an Enter at once: a test presses keys faster than anybody reads."""
    monkeypatch.setattr(dialog, "SETTLE_S", 0.0)


@pytest.fixture
def quiet_run() -> Iterator[str]:
    """A run that is alive as far as anybody can tell."""
    with quiet.run() as name:
        yield name


@pytest.fixture
def ended_run() -> Iterator[str]:
    """A run that has ended with exit code 3."""
    name = f"ended-{time.monotonic_ns() % 10**9}"
    now = time.time_ns()
    directory = rundir.create(
        rundir.Run(
            name, name, "toy.py", (), 2, "gloo", "cpu", now - 10**10, True,
            state="failed", exit_code=3, ended_at_ns=now, cause="rank 1: ValueError: bad lr", cause_rank=1,
        )
    )  # fmt: skip
    yield name
    shutil.rmtree(directory.path)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let times of day be those of Greenwich, wherever the test is run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()

"""How a run of another machine is written."""

from __future__ import annotations

import pytest

from ddptop.tui.remote.target import Target, Unreachable, parse


@pytest.mark.parametrize("text", [None, "resnet-7f", "7f3a", "a.2"])
def test_a_name_without_a_colon_is_of_this_machine(text: str | None) -> None:
    """No name of a run has a colon."""
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "host", "run", "address"),
    [
        ("node1:resnet-7f", "node1", "resnet-7f", "node1"),
        ("node1:", "node1", "", "node1"),
        ("ada@gpu-3.example.org:7f3a", "ada@gpu-3.example.org", "7f3a", "ada@gpu-3.example.org"),
        ("ada@[fe80::1%eth0]:a.2", "ada@[fe80::1%eth0]", "a.2", "ada@fe80::1%eth0"),
        ("10.1.2.3:a", "10.1.2.3", "a", "10.1.2.3"),
    ],
)
def test_a_host_and_a_run_are_told_apart(text: str, host: str, run: str, address: str) -> None:
    """The last colon outside of brackets divides them."""
    found = parse(text)
    assert found == Target(host, run)
    assert found.address == address


@pytest.mark.parametrize(
    "text", ["-oProxyCommand=x:a", "node1:-a", "fe80::1:a", ":a", "a b:c", "$(x):a", "node1:a/../b", "n;x:a", "a@-x:b"]
)
def test_nothing_else_gets_to_ssh_or_to_a_shell(text: str) -> None:
    """What could be an option, or means something to a shell, is refused in one line that quotes it."""
    with pytest.raises(Unreachable) as refused:
        parse(text)
    assert repr(text) in str(refused.value)
    assert "\n" not in str(refused.value)

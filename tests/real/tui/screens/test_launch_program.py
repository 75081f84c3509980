"""What a program says of its options, which the launch dialog offers."""

from __future__ import annotations

from ddptop.tui.launch import programs


def test_a_program_describes_its_own_options() -> None:
    """Asked in a process of its own, a program tells the options that its `--help` names, with their limits."""
    told = {option.flag: option for option in programs.ask("simplenet")}
    assert told["--epochs"].problem("0") == "must be at least 1, not 0"
    assert told["--lr"].problem("nan") is not None
    assert told["--lr"].problem("0.1") is None
    assert told["--resume"].switch
    assert "%(" not in "".join(option.help for option in told.values())
    assert {"--steps", "--batch-size", "--workers", "--data-dir"} <= told.keys()

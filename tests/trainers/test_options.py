"""The catalogue, and the command line that its programs share; what they compute is tried in tests/real."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddptop.trainers
from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank import options
from ddptop.trainers.rank.options import Defaults, Options
from ddptop.trainers.rank.refusal import Refusal

ROOT = Path(ddptop.trainers.__file__).parent
DEFAULTS = Defaults(device="CPU", epochs=3, batch_size=6, lr=0.02, samples=None, workers=0)


def test_every_program_is_a_module_and_documents_every_shared_option() -> None:
    """It is found under its name, and its help says what each option does."""
    modules = {path.stem for path in (ROOT / "programs").glob("*/*.py")} - {"__init__"}
    assert set(CATALOGUE) <= modules
    for name, program in CATALOGUE.items():
        assert program.name == name
        path = ROOT.joinpath(*program.module.split(".")[2:])
        assert path.with_suffix(".py").is_file()
        text = options.parser(program, DEFAULTS).format_help()
        for option in (
            "epochs",
            "steps",
            "batch-size",
            "lr",
            "seed",
            "data-dir",
            "download",
            "checkpoint-dir",
            "resume",
        ):
            assert f"--{option} " in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--batch-size", "-3"), "--batch-size: must be at least 1, not -3"),
        (("--lr", "nan"), "--lr: must be a positive number"),
        (("--steps", "many"), "--steps: must be a whole number"),
        (("--resume",), "--resume needs --checkpoint-dir"),
        (("--download",), "--download needs --data-dir"),
        (("--speed", "9"), "unrecognized arguments: --speed 9"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    """Before anything is made for them."""
    with pytest.raises(Refusal) as refused:
        options.check(options.parser(CATALOGUE["simplenet"], DEFAULTS).parse_args(arguments, Options()))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)

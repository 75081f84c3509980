"""The keys of a link: made for a run, or derived from a file that only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from ddptop.agent.observer.hosts.link import keys, opening
from ddptop.agent.text import Complaint

SECRET = bytes(range(64))


def test_every_key_is_a_key_of_curve_whose_public_half_belongs_to_its_secret() -> None:
    for pair in (*keys.generate(), *keys.derive(SECRET, "run")):
        assert len(z85.decode(pair.public)) == 32
        assert zmq.curve_public(pair.secret.encode()).decode() == pair.public


def test_derived_keys_are_the_same_everywhere_and_forever() -> None:
    """An upgrade on one host must not lock it out: the form of the derivation is part of the protocol."""
    # By `openssl kdf -keylen 32 -kdfopt digest:SHA256` with salt, key and info: its own HKDF.
    head, branch = keys.derive(SECRET, "run")
    assert keys.derive(SECRET, "run") == (head, branch)
    assert z85.decode(head.secret).hex() == "9ce0c1f1236fc287ccb4cf681176e5cdbb98c967c51d14352da7c1cb75389ba8"
    assert z85.decode(branch.secret).hex() == "cadb26537f8e4a47281b94a3e1c0fad76cdf47f25592dafff5a22600a08ad8c8"


def test_another_run_another_secret_or_the_other_side_has_other_keys() -> None:
    found = {
        pair.secret
        for secret, run in ((SECRET, "a"), (SECRET, "b"), (SECRET + b"\n", "a"), (SECRET[:32], "a"))
        for pair in keys.derive(secret, run)
    }
    assert len(found) == 8


def test_a_secret_is_in_no_text_of_an_error() -> None:
    head, _ = keys.generate()
    assert head.secret not in repr(head)


def test_a_key_file_of_its_owner_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(SECRET)
    assert keys.read_key_file(path) == SECRET
    assert opening.agreed_pairs({"DDPTOP_KEY_FILE": str(path)}, "run") == keys.derive(SECRET, "run")
    assert opening.agreed_pairs({}, "run") is None


@pytest.mark.parametrize(
    ("mode", "content", "what"),
    [
        (0o644, SECRET, "others can read it"),
        (0o640, SECRET, "others can read it"),
        (0o600, SECRET[:31], "31 bytes are too few"),
        (0o600, b"", "0 bytes are too few"),
        (0o600, bytes(70_000), "larger than any record"),
        (0o600, None, "No such file"),
    ],
)
def test_any_other_file_is_refused_in_one_line_that_says_the_cure(
    tmp_path: Path, mode: int, content: bytes | None, what: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(Complaint, match=what) as found:
        keys.read_key_file(path)
    assert "\n" not in str(found.value)
    assert str(path) in str(found.value)
    assert "chmod 600" in str(found.value) or "DDPTOP_KEY_FILE names a file" in str(found.value)


def test_neither_link_nor_pipe_nor_folder_is_a_key_file(tmp_path: Path) -> None:
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "link").symlink_to(tmp_path / "key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", "."):
        with pytest.raises(Complaint, match="not a plain file"):
            keys.read_key_file(tmp_path / name)


@pytest.mark.parametrize("listen", ["", "node1", "node1:0", "10.0.0.1:"])
def test_with_a_key_file_the_address_of_the_head_has_to_be_told(tmp_path: Path, listen: str) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(SECRET)
    with pytest.raises(Complaint, match="DDPTOP_LISTEN"):
        opening.agreed_listen({"DDPTOP_KEY_FILE": str(path), "DDPTOP_LISTEN": listen}, "run", "id")


def test_a_key_file_and_an_address_say_where_the_head_is(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(SECRET)
    found = opening.agreed_listen({"DDPTOP_KEY_FILE": str(path), "DDPTOP_LISTEN": "[fd00::1]:4321"}, "run", "id")
    assert found is not None
    assert found.addresses == ("tcp://[fd00::1]:4321",)
    assert found.server == keys.derive(SECRET, "id")[0].public

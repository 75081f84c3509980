"""The CURVE keys of a run: the head's pair, and the one pair of all branches.

They are made for the run and handed out through the training's own store, or derived from a file that all hosts share.
This module knows no socket.
"""

from __future__ import annotations

import hmac
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from ddptop.agent.run.files import private
from ddptop.agent.run.hosts import KEY_FILE_VARIABLE
from ddptop.agent.text import Complaint

SHORTEST: Final = 32
"""Bytes of such a file at least."""
_LONGEST: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Pair:
    """A CURVE key pair; both keys in Z85, 40 characters each."""

    public: str
    secret: str

    def __repr__(self) -> str:
        # A secret in the text of an error ends in a log.
        return f"Pair(public={self.public!r})"


def generate() -> tuple[Pair, Pair]:
    """Return new pairs: the head's, and that of the branches."""
    return _new(), _new()


def _new() -> Pair:
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


def derive(secret: bytes, run_id: str) -> tuple[Pair, Pair]:
    """Return the pairs of a run that all who have the secret derive alike: the head's, and that of the branches."""
    return _derived(secret, run_id, "head"), _derived(secret, run_id, "branch")


def _derived(secret: bytes, run_id: str, side: str) -> Pair:
    # HKDF (RFC 5869) with SHA-256 and one block. Any 32 bytes are a secret key of X25519 (RFC 7748, section 5).
    key = hmac.digest(b"ddptop link 1", secret, "sha256")
    content = f"{side}\0{run_id}".encode("utf-8", "surrogatepass")
    own = z85.encode(hmac.digest(key, content + b"\x01", "sha256"))
    return Pair(zmq.curve_public(own).decode(), own.decode())


def read_key_file(path: str | Path) -> bytes:
    """Return the content of a key file.

    Raises:
        Complaint: it cannot be read, is too short or too long, or others than its owner can read it.
    """
    cure = f"{KEY_FILE_VARIABLE} names a file of {SHORTEST} bytes or more that only its owner can read"
    try:
        status = os.stat(path, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise Complaint(f"{path}: not a plain file; {cure}")
        if status.st_uid not in (os.getuid(), 0):
            raise Complaint(f"{path}: belongs to user {status.st_uid}, not to you; {cure}")
        if status.st_mode & 0o077:
            raise Complaint(f"{path}: others can read it (mode {stat.S_IMODE(status.st_mode):04o}); chmod 600 it")
        content = private.read(path, _LONGEST)
    except (OSError, ValueError) as problem:
        raise Complaint(f"{path}: cannot be read ({getattr(problem, 'strerror', None) or problem}); {cure}") from None
    if len(content) < SHORTEST:
        raise Complaint(f"{path}: {len(content)} bytes are too few for a key; {cure}")
    return content

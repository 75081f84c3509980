"""Before the script of a rank: notes in `published-RANK` the last step that the agent has published for sure.

That is the last one of the message before the newest. A thread of the socket sends what it is handed; what it had no
time for goes with a process that is killed.
"""

import mmap as _mmap
import os as _os
import struct as _struct
from pathlib import Path as _Path

from ddptop.agent import wire as _wire
from ddptop.agent.rank.publisher import Publisher as _Publisher

_path = _Path(f"published-{_os.environ['RANK']}")
_path.write_bytes(bytes(8))
with _path.open("r+b") as _file:
    _mark = _mmap.mmap(_file.fileno(), 8)
_send = _Publisher._send
_newest = 0


def _marked(self: _Publisher, topic: bytes, payload: bytes) -> None:
    global _newest
    _send(self, topic, payload)
    if topic == _wire.TOPIC_STEPS:
        told = _wire.read_telemetry(payload)
        assert isinstance(told, _wire.Steps)
        _mark[:] = _struct.pack("<q", _newest)
        _newest = max(step.step for step in told.steps if step.step is not None)


_Publisher._send = _marked  # type: ignore[method-assign]

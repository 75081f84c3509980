"""Decoders that are made while other threads decode."""

from __future__ import annotations

import subprocess
import sys

AT_ONCE = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import msgspec
from ddptop.agent.run.files import decoding

sys.setswitchinterval(1e-6)


def classes(number):
    space = {"Struct": msgspec.Struct}
    exec("from __future__ import annotations\\nfrom typing import Annotated\\nimport msgspec", space)
    fields = "".join(f"    f{each}: Annotated[int, msgspec.Meta(ge={each})] | None = None\\n" for each in range(20))
    exec(f"class Inner(Struct):\\n{fields}", space)
    exec("class Outer(Struct):\\n    first: Inner | None = None\\n    second: list[Inner] | None = None\\n", space)
    return space


for number in range(200):
    space = classes(number)
    begin = threading.Barrier(6)

    def work(name):
        begin.wait()
        decoding.of(space[name]).decode(b'{"f1": 5, "first": {"f1": 5}}')

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, ("Inner", "Outer") * 3))
print("alive")
"""


def test_threads_may_decode_into_a_class_at_the_same_time_as_soon_as_it_is_made() -> None:
    """Six at once into two hundred pairs of classes: made without a lock, the process would die by SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr[-2000:]

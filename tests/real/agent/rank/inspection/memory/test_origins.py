"""The record of allocations does no harm to the threads of a rank."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = 30
PROGRAM = f"""
import ctypes, threading
from ddptop.agent.rank.inspection.memory.origins import Origins

# A library that is called so lets go of the interpreter lock.
library = ctypes.CDLL(None)
library.PyMem_RawMalloc.restype = ctypes.c_void_p
library.PyMem_RawFree.argtypes = [ctypes.c_void_p]
is_over = False

def allocate():
    while not is_over:
        library.PyMem_RawFree(library.PyMem_RawMalloc(100))

threads = [threading.Thread(target=allocate) for _ in range(8)]
for each in threads:
    each.start()
for number in range({ROUNDS}):
    print(number, flush=True)
    Origins().end()
is_over = True
for each in threads:
    each.join()
"""


def test_threads_without_the_interpreter_lock_may_allocate_while_it_begins_and_ends() -> None:
    """Before Python 3.12.9 the end of any record could crash them: https://github.com/python/cpython/issues/128679."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}after {done.stdout.splitlines()[-1:]} rounds"

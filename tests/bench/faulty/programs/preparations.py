"""A rank that prepares something for half a minute while the others wait for it: nothing of it is a hang."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
import torch.distributed as dist
from training import Training, fault, main

PREPARING_S: Final = 30.0
SERVER: Final = """
import socket, sys, time
piece, pause, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
pieces = int(seconds / pause)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
for _ in range(int(sys.argv[4])):
    asked, _ = listening.accept()
    asked.recv(4096)
    asked.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % (piece * pieces))
    for _ in range(pieces):
        time.sleep(pause)
        asked.sendall(bytes(piece))
    asked.close()
"""
COMPUTES: Final = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""


preparation: Final = fault(by=(1,), blamed=(), line=False)


def serve(*, piece: int, pause: float, seconds: float = PREPARING_S, times: int = 1) -> str:
    """Start a server that has a file of so many bytes at a time; return its address."""
    given = [str(each) for each in (piece, pause, seconds, times)]
    # It is no child of the rank's that would be seen to work.
    process = subprocess.Popen(
        ["setsid", "--fork", sys.executable, "-c", SERVER, *given], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return f"http://127.0.0.1:{process.stdout.readline().strip()}/weights.pt"


def compute(seconds: float) -> None:
    """Compute in Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@preparation
def download(training: Training) -> None:
    """It fetches a file, which grows on the disk."""
    address = serve(piece=5_000, pause=0.02)
    with tempfile.TemporaryDirectory() as folder:
        urllib.request.urlretrieve(address, f"{folder}/weights.pt")


@preparation
def download_to_memory(training: Training) -> None:
    """It fetches something that goes to no disk."""
    with urllib.request.urlopen(serve(piece=5_000, pause=0.05)) as answer:
        answer.read()


@preparation
def download_in_bursts(training: Training) -> None:
    """It fetches from a server that sends a lot every four seconds."""
    with urllib.request.urlopen(serve(piece=400_000, pause=4.0)) as answer:
        answer.read()


@preparation
def many_downloads(training: Training) -> None:
    """It fetches one small file after the other, each on a connection of its own."""
    address = serve(piece=20_000, pause=0.5, seconds=1.0, times=int(PREPARING_S))
    for _ in range(int(PREPARING_S)):
        with urllib.request.urlopen(address) as answer:
            answer.read()


@preparation
def pool_of_processes(training: Training) -> None:
    """It tokenizes in a pool of processes, of which each piece takes some seconds."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(compute, [PREPARING_S / 3] * 6, chunksize=1)


@preparation
def pool_of_threads(training: Training) -> None:
    """It computes checksums in a pool of threads, in native code."""

    def checksum(_: int) -> None:
        end, piece = time.monotonic() + PREPARING_S, bytes(1 << 20)
        while time.monotonic() < end:
            hashlib.sha256(piece)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(checksum, range(2)))


@preparation
def child(training: Training) -> None:
    """It waits for a program that computes."""
    subprocess.run([sys.executable, "-c", COMPUTES, str(PREPARING_S)], check=True)


@preparation
def grandchild(training: Training) -> None:
    """It waits for a shell that waits for a program that computes."""
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{COMPUTES}' {PREPARING_S}; true"], check=True)


@preparation
def short_children(training: Training) -> None:
    """It builds something: one short-lived program after the other."""
    commands = "; ".join([f"{sys.executable} -c '{COMPUTES}' 0.3"] * int(PREPARING_S / 0.5))
    subprocess.run(["sh", "-c", commands], check=True)


@preparation
def unpacking(training: Training) -> None:
    """It writes a large file in pieces, with pauses."""
    with tempfile.TemporaryFile() as file:
        for _ in range(int(PREPARING_S / 0.3)):
            file.write(bytes(100_000))
            file.flush()
            time.sleep(0.3)


@preparation
def reads_a_slow_disk(training: Training) -> None:
    """It reads a file that comes slowly, as from a network's file system."""
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as file:
            for _ in range(int(PREPARING_S / 0.2)):
                file.write(bytes(50_000))
                file.flush()
                time.sleep(0.2)

    threading.Thread(target=write).start()
    with open(reading, "rb") as file:
        file.read()


@preparation
def child_copies(training: Training) -> None:
    """It waits for a program that copies files, which takes hardly any CPU."""
    with tempfile.TemporaryDirectory() as folder:
        copy = f"head -c 400000 /dev/zero >> {folder}/copy; sleep 0.5; "
        subprocess.run(["sh", "-c", copy * int(PREPARING_S / 0.5)], check=True)


@preparation
def first_batch(training: Training) -> None:
    """It waits for the first batch of a data worker, which builds an index for it."""
    numbers = torch.utils.data.DataLoader(Slow(), num_workers=1)
    next(iter(numbers))


@fault(by=None, blamed=(), line=False)
def late_group(training: Training) -> None:
    """It computes before it makes a group with the others, who wait for it there."""
    if training.rank == 1:
        compute(PREPARING_S)
    dist.new_group(range(training.world))


@preparation
def loads_checkpoint(training: Training) -> None:
    """It reads a file again and again, in a function whose name says something else."""
    end = time.monotonic() + PREPARING_S
    while time.monotonic() < end:
        with open(torch.__file__, "rb") as file:
            file.read()
        time.sleep(0.01)


@preparation
def under_a_lock(training: Training) -> None:
    """It waits for a lock that a thread of its own holds, which computes."""
    guard, held = threading.Lock(), threading.Event()

    def work() -> None:
        with guard:
            held.set()
            compute(PREPARING_S)

    threading.Thread(target=work, daemon=True).start()
    held.wait()
    with guard:
        pass


class Slow(torch.utils.data.Dataset[Any]):
    """A dataset that computes before its first item."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        compute(PREPARING_S)
        return torch.zeros(1)


if __name__ == "__main__":
    main()

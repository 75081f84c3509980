"""The kinds of ends, by what torch, gloo, NCCL, Python and the system say."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ddptop.agent.end import kinds

TEXTS = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
     "device_memory"),
    ("RuntimeError: CUDA error: out of memory", "device_memory"),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
     "tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)", "host_memory"),
    ("MemoryError", "host_memory"),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1. TiB for an array", "host_memory"),
    ("RuntimeError: DataLoader worker (pid 301) is killed by signal: Killed. ", "data_worker"),
    ("RuntimeError: DataLoader worker (pid(s) 301, 302) exited unexpectedly", "data_worker"),
    ("RuntimeError: DataLoader worker (pid 41) is killed by signal: Bus error. It is possible that dataloader's "
     "workers are out of shared memory. Please try to raise your shared memory limit.", "shared_memory"),
    ("RuntimeError: unable to write to file </torch_41_2_0>: No space left on device (28)", "shared_memory"),
    ("OSError: [Errno 28] No space left on device", "disk_full"),
    ("RuntimeError: [enforce fail at inline_container.cc:671] . unexpected pos 1024 vs 918", "disk_full"),
    ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", "disk_full"),
    ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
     "29877, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", "port_in_use"),
    ("torch.distributed.DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 clients joined.",
     "rendezvous"),
    ("torch.distributed.DistNetworkError: The client socket has timed out after 2000ms while trying to connect to "
     "(127.0.0.1, 29873).", "rendezvous"),
    ("torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /x", "rendezvous"),
    ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "rendezvous"),
    ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: Collective",
     "mismatch"),
    ("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for "
     "recv operation to complete", "collective_timeout"),
    ("torch.distributed.DistBackendError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
     "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60000 milliseconds before timing out.",
     "collective_timeout"),
    ("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer "
     "[127.0.0.1]:36251. This is typically caused by a remote worker crashing.", "lost_peer"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, "
     "NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error", "lost_peer"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error\nncclUnhandledCudaError: Call "
     "to CUDA function failed.", "device_error"),
    ("RuntimeError: CUDA error: device-side assert triggered", "device_error"),
    ("RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.", "nan"),
    ("ValueError: loss is nan, stopping training", "nan"),
    ("FloatingPointError: gradients are Nan/Inf", "nan"),
    ("ModuleNotFoundError: No module named 'einops'", "import_error"),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "import_error"),
    ("SystemExit: 3", "exit"),
    ("KeyboardInterrupt", "interrupted"),
    ("ValueError: bad lr", "exception"),
    ("KeyError: 'nancy'", "exception"),
    ("RuntimeError: information about tensor shapes differs", "exception"),
    ("train.<locals>.Bad", "exception"),
    ("unrecognized arguments: --lr2 0.1", "exit"),
    ("No such option: --lr2", "exit"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "name"), TEXTS, ids=[f"{name}-{number}" for number, (_, name) in enumerate(TEXTS)])
def test_an_exception_is_recognized_by_its_own_words(error: str, name: str) -> None:
    """Those of torch 2.15 on the CPU are as it wrote them; those of a device are from its sources."""
    assert kinds.recognize(error, 1).name == name


@pytest.mark.parametrize(
    ("code", "output", "out_of_memory", "name"),
    [
        (-signal.SIGKILL, "", True, "host_memory"),
        (-signal.SIGKILL, "", False, "killed"),
        (-signal.SIGKILL, "MemoryError", None, "killed"),
        (-signal.SIGSEGV, "step 3", None, "native_crash"),
        (-signal.SIGBUS, "", None, "shared_memory"),
        (-signal.SIGTERM, "OutOfMemoryError", None, "terminated"),
        (-signal.SIGABRT, "terminate called without an active exception", None, "terminate"),
        (-signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'", None, "host_memory"),
        (-signal.SIGABRT, "  what():  [enforce fail at pair.cc:464] op.preamble.length <= op.nbytes. 1000 vs 12. "
                          "Received data size doesn't match expected size.", None, "mismatch"),
        (-signal.SIGABRT, "[E1123 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: x",
         None, "collective_timeout"),
        (3, "", None, "exit"),
        (None, "", None, "unknown"),
    ],
)  # fmt: skip
def test_an_end_without_an_exception_is_recognized_by_its_signal_and_last_words(
    code: int | None, output: str, out_of_memory: bool | None, name: str
) -> None:
    """What was printed before a signal from outside has nothing to do with it."""
    assert kinds.recognize(None, code, output, out_of_memory=out_of_memory).name == name


def test_a_worker_that_was_killed_while_it_handed_over_a_tensor_is_recognized_by_the_traceback() -> None:
    """Torch 2.15 then raises what the socket said, without a word of the worker; the same error elsewhere is none."""
    trace = (
        'Traceback (most recent call last):\n  File "/v/torch/utils/data/dataloader.py", line 1293, in _try_get_data\n'
        '    data = self._data_queue.get(timeout=timeout)\n  File "/v/torch/multiprocessing/reductions.py", line 543, '
        'in rebuild_storage_fd\n    fd = df.detach()\n  File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", '
        "line 57, in detach\nConnectionResetError: [Errno 104] Connection reset by peer\n"
    )
    reset = "ConnectionResetError: [Errno 104] Connection reset by peer"
    assert kinds.recognize(reset, 1, trace=trace).name == "data_worker"
    assert kinds.recognize("EOFError", 1, trace=trace).name == "data_worker"
    assert kinds.recognize(reset, 1).name == "lost_peer"
    assert kinds.recognize("EOFError", 1).name == "exception"


def test_a_traceback_of_nothing_but_the_words_looked_for_is_read_at_once() -> None:
    """Otherwise the observer stands for half a minute for each rank, and this test with it."""
    for trace in ("dataloader.py_try_get_data" * 2_500, "dataloader.py" * 2_500 + "_try_get_data" * 2_500):
        assert kinds.recognize("EOFError: x", 1, trace=trace[: 1 << 16]) is not kinds.DATA_WORKER


def test_advice_agrees_with_what_is_known_of_the_end() -> None:
    """A wrong option shows before the first step; memory is not blamed where the kernel has counted no kill for it."""
    assert "wrong option" in kinds.advised(kinds.EXIT, 0, None).advice
    assert "wrong option" in kinds.advised(kinds.EXIT, None, None).advice
    assert "wrong option" not in kinds.advised(kinds.EXIT, 60, None).advice
    counted = kinds.advised(kinds.KILLED, 60, False)
    assert counted.name == "killed"
    assert "dmesg" not in counted.advice
    assert counted.advice.startswith("Not for want of memory")
    assert len(counted.advice) < 260
    for known in (True, None):
        assert kinds.advised(kinds.KILLED, 60, known) is kinds.KILLED


def test_every_kind_has_a_name_of_its_own_and_one_line_of_advice() -> None:
    """The name is for programs, the advice for a terminal."""
    distinct = {kind.name: kind for kind in kinds.ALL}
    assert len(distinct) == len({kind.title for kind in kinds.ALL})
    for kind in kinds.ALL:
        assert kind.name.isidentifier()
        assert kind.advice.endswith(".")
        assert kind.advice.isprintable()
        assert len(kind.advice) < 260


def test_advice_speaks_of_no_rank_and_no_host_that_is_not_there() -> None:
    """A run of one rank has no others, and one on one host no other machine and no network to look at."""
    exception, lost = kinds.EXCEPTION, kinds.LOST_PEER
    assert "the other ranks" in kinds.advised(exception, 5, None, ranks=2).advice
    assert "other" not in kinds.advised(exception, 5, None, ranks=1).advice
    assert "network" in kinds.advised(lost, 5, None, ranks=4, hosts=2).advice
    alone = kinds.advised(lost, 5, None, ranks=4, hosts=1).advice
    assert "network" not in alone
    assert "machine" not in alone


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("RecursionError: maximum recursion depth exceeded while calling a Python object", "recursion"),
        ("bdb.BdbQuit", "breakpoint"),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:580] Application timeout caused pair closure", "lost_peer"),
    ],
)
def test_ends_of_the_field_are_recognized(error: str, name: str) -> None:
    """By their own words."""
    assert kinds.recognize(error, 1).name == name


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            "ImportError: cannot import name 'Old' from 'pack.layers' ({folder}/pack/layers.py)",
            "The installed pack 2.7.1 has no Old ({folder}/pack/layers.py)",
        ),
        ("ImportError: cannot import name 'Old' from 'models' (/home/ada/models.py)", "/home/ada/models.py has no Old"),
        (
            "ImportError: cannot import name 'Net' from partially initialized module 'nets' (most likely due to a "
            "circular import) (/home/ada/nets.py)",
            "circle",
        ),
        ("ModuleNotFoundError: No module named 'timm'", "Install timm "),
        ("monai.utils.OptionalImportError: from nibabel import x (No module named 'nibabel').", "Install nibabel "),
        ("RuntimeError: needs an extra. ModuleNotFoundError: No module named 'flash_attn'", "Install flash_attn "),
    ],
)
def test_the_remedy_of_an_import_that_failed_names_what_is_missing(error: str, says: str, tmp_path: Path) -> None:
    """A name that the installed version lacks is not to be installed; a module inside a library's own error is."""
    packages = tmp_path / "site-packages"
    (packages / "pack-2.7.1.dist-info").mkdir(parents=True)
    (packages / "pack-2.7.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pack\nVersion: 2.7.1\n")
    error, says = error.format(folder=packages), says.format(folder=packages)
    kind = kinds.recognize(error, 1)
    assert kind.name == "import_error"
    advice = kinds.advised(kind, None, None, cause=f"rank 0: {error}").advice
    assert says in advice
    assert advice.startswith("Install ") == says.startswith("Install ")
    assert advice.endswith(".")

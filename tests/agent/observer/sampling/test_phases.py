"""Stacks as py-spy writes them, of each of the usual loops, and the arithmetic of what was idle in them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ddptop.agent.observer.sampling.phases import Look, Thread, in_worker, place_of, read, times, waits_in
from ddptop.agent.run.script.sources import is_library

MODULE = (
    "Module._wrapped_call_impl (torch/nn/modules/module.py:1783);Module._call_impl (torch/nn/modules/module.py:1794)"
)
DDP = (
    f"{MODULE};DistributedDataParallel.forward (torch/nn/parallel/distributed.py:1891)"
    ";DistributedDataParallel._run_ddp_forward (torch/nn/parallel/distributed.py:1716)"
)
BACKWARD = (
    "Tensor.backward (torch/_tensor.py:623);backward (torch/autograd/__init__.py:395)"
    ";_engine_run_backward (torch/autograd/graph.py:1072)"
)
DRAW = (
    "_BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)"
    ";_SingleProcessDataLoaderIter._next_data (torch/utils/data/dataloader.py:785)"
    ";_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)"
)
WORKERS = (
    "_BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)"
    ";_MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1293)"
    ";Queue.get (multiprocessing/queues.py:122)"
)
STEP = "Optimizer.profile_hook_step.<locals>.wrapper (torch/optim/optimizer.py:549);Adam.step (torch/optim/adam.py:248)"
ADAM = f"{STEP};_single_tensor_adam (torch/optim/adam.py:544)"
LIGHTNING = (
    "<module> (/u/train.py:25);Trainer.fit (lightning/pytorch/trainer/trainer.py:584)"
    ";Strategy.optimizer_step (lightning/pytorch/strategies/strategy.py:239)"
    f";{STEP};Closure.closure (lightning/pytorch/loops/optimization/automatic.py:140)"
)
FSDP = (
    "_dynamo_disable.<locals>.wrapper (torch/distributed/fsdp/_fully_shard/_fsdp_common.py:30)"
    ";FSDPParamGroup.unshard (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:417)"
    ";foreach_all_gather (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:364)"
)
LOGGED = "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)"

STACKS = [
    # A loop of one's own, and DDP.
    (f"<module> (/u/train.py:28);{DDP};Net.forward (/u/net.py:20)", "forward", "/u/net.py:20 Net.forward"),
    (f"<module> (/u/train.py:28);{DDP};{MODULE};Conv2d.forward (torch/nn/modules/conv.py:565)", "forward", "28"),
    ("main (/u/train.py:28);cross_entropy (torch/nn/functional.py:3561)", "forward", "28"),
    (f"main (/u/train.py:28);{BACKWARD}", "engine", "28"),
    (f"main (/u/train.py:28);{BACKWARD};hook (/u/train.py:9)", "backward", "/u/train.py:9 hook"),
    (f"main (/u/train.py:28);{BACKWARD};recompute_fn (torch/utils/checkpoint.py:1);{MODULE}", "engine", "28"),
    (f"main (/u/train.py:28);{ADAM}", "optimizer", "28"),
    ("main (/u/train.py:28);clip_grad_norm_ (torch/nn/utils/clip_grad.py:9)", "optimizer", "28"),
    ("main (/u/train.py:28);Optimizer.zero_grad (torch/optim/optimizer.py:1086)", "other", "28"),
    (f"main (/u/train.py:27);{DRAW};Images.__getitem__ (/u/data.py:8)", "data", "/u/data.py:8 Images.__getitem__"),
    (f"main (/u/train.py:27);{DRAW};Images.__getitem__ (/u/data.py:8);{MODULE}", "data", "/u/data.py:8"),
    (f"main (/u/train.py:27);{WORKERS}", "data", "27"),
    (f"main (/u/train.py:30);{LOGGED};all_reduce (torch/distributed/distributed_c10d.py:3300)", "wait", "30"),
    (f"main (/u/train.py:30);{LOGGED};barrier (torch/distributed/distributed_c10d.py:4900)", "wait", "30"),
    (
        "main (/u/train.py:3);init_process_group (torch/distributed/distributed_c10d.py:1800)"
        ";rendezvous (torch/distributed/rendezvous.py:9)",
        "other",
        "3",
    ),
    (
        f"main (/u/train.py:28);{DDP.replace('_run_ddp_forward', '_pre_forward')}"
        ";DistributedDataParallel._distributed_broadcast_coalesced (torch/nn/parallel/distributed.py:2200)",
        "wait",
        "28",
    ),
    ("main (/u/train.py:50)", "other", "/u/train.py:50 main"),
    # FSDP2, in the forward and in the backward pass.
    (
        f"main (/u/train.py:43);{MODULE};{FSDP};{LOGGED}"
        ";all_gather_single (torch/distributed/distributed_c10d.py:5161)",
        "wait",
        "43",
    ),
    (
        f"main (/u/train.py:43);{BACKWARD};{FSDP};{LOGGED}"
        ";reduce_scatter_single (torch/distributed/distributed_c10d.py:5916)",
        "wait",
        "43",
    ),
    (f"main (/u/train.py:43);{BACKWARD};{FSDP}", "engine", "43"),
    # Lightning, whose loop runs inside of the optimizer's step.
    (f"{LIGHTNING};LightningModule.backward (lightning/pytorch/core/module.py:1137);{BACKWARD}", "engine", "25"),
    (
        f"{LIGHTNING};Strategy.training_step (lightning/pytorch/strategies/strategy.py:390)"
        ";Net.training_step (/u/net.py:23)",
        "forward",
        "/u/net.py:23",
    ),
    (f"<module> (/u/train.py:25);{ADAM}", "optimizer", "25"),
    # HF Trainer and Accelerate.
    (
        "<module> (/u/train.py:17);Trainer.train (transformers/trainer.py:1400)"
        ";Trainer.get_batch_samples (transformers/trainer.py:1900)"
        ";DataLoaderShard.__iter__ (accelerate/data_loader.py:598)",
        "data",
        "17",
    ),
    (
        "<module> (/u/train.py:17);Trainer.training_step (transformers/trainer.py:2000)"
        f";Trainer.compute_loss (transformers/trainer.py:2100);{MODULE}",
        "forward",
        "17",
    ),
    (
        f"<module> (/u/train.py:17);Accelerator.backward (accelerate/accelerator.py:2861);{BACKWARD}",
        "engine",
        "17",
    ),
    (f"<module> (/u/train.py:31);AcceleratedOptimizer.step (accelerate/optimizer.py:186);{ADAM}", "optimizer", "31"),
]


def belongs_to_library(file: str) -> bool:
    """Files of libraries are named without the folder of their environment here, as py-spy does by default."""
    return not file.startswith("/u/") or is_library(file)


@pytest.mark.parametrize(("stack", "phase", "line"), STACKS)
def test_each_frame_of_the_usual_loops_has_its_phase(stack: str, phase: str, line: str) -> None:
    """Innermost decides, but for what a backward pass or a loader calls; the line is the innermost of the user's."""
    place = place_of(stack, belongs_to_library)
    assert place.phase == phase
    assert place.where is not None
    assert line in f"{place.where.file}:{place.where.line} {place.where.function}"


def test_a_wait_in_c_is_known_by_the_text_of_its_line() -> None:
    """`work.wait()` leaves no frame; a sleep on such a line stays what it is."""
    for text, phase in (("for work in works: work.wait()", "wait"), ("time.sleep(1)", "other"), ("", "other")):
        place = place_of("main (/u/train.py:30)", belongs_to_library, lambda _, text=text: text)  # type: ignore[misc]
        assert place.phase == phase


def test_only_the_main_thread_is_read() -> None:
    """Of what py-spy writes: its own words, threads beside the training, and lines that are none are left out."""
    raw = b"""py-spy> Sampling process 10 times a second for 3 seconds. Press Control-C to exit.
thread (17): MainThread;<module> (/u/train.py:28);Tensor.backward (torch/_tensor.py:623) 12
thread (18): pin_memory;run (threading.py:975);wait (threading.py:324) 29
thread (17): MainThread;<module> (/u/a b (1).py:27);x;y (z:9) 3
thread (0x7F00): MainThread
"""
    found = read(raw, 17)
    assert found == Counter(
        {
            "<module> (/u/train.py:28);Tensor.backward (torch/_tensor.py:623)": 12,
            "<module> (/u/a b (1).py:27);x;y (z:9)": 3,
        }
    )
    assert read(raw.replace(b"(17): MainThread", b"(17)"), 17) == found


@pytest.mark.parametrize(("favor", "late"), [(1.0, 0.0), (1.0, 0.1), (0.5, 0.1)])
def test_a_wait_is_told_from_computing_by_what_ran(favor: float, late: float) -> None:
    """A rank that computes for 30 % and waits for 40 % of its time in backward, with a sleep in its forward pass of
    20 %, is found to do so from a few windows of 25 looks, with no bias above 4 points; also where looks come rather
    while it is idle, as on a host without a free core, and where it takes time to wake up there.
    """
    numbers = random.Random(5)
    runs, idles = {"forward": 0.1, "engine": 0.3}, {"forward": 0.2, "engine": 0.4}
    seen = {each: favor * runs[each] + idles[each] for each in runs}
    active = {each: runs[each] + late / 0.6 * idles[each] for each in runs}
    errors = []
    for _ in range(60):
        looks = Counter(numbers.choices([*seen], [*seen.values()], k=125))
        ran = Counter(numbers.choices([*active], [*active.values()], k=50))
        errors.append(times(looks, ran, 0.4, late)["engine"].idle - 0.4)
    assert abs(sum(errors) / len(errors)) < 0.04
    assert max(map(abs, errors)) < 0.2


FORKED = f"main (/u/train.py:27);{WORKERS};_worker_loop (torch/utils/data/_utils/worker.py:300)"
FETCH = "_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)"


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        (f"{FORKED};{FETCH};Images.__getitem__ (/u/data.py:8);open (PIL/Image.py:3)", 8),
        # It waits for work, below the loop of the process that it was forked from; or it is torch that makes the batch.
        (f"{FORKED};Queue.get (multiprocessing/queues.py:122)", None),
        (f"{FORKED};{FETCH};default_collate (torch/utils/data/_utils/collate.py:3)", None),
    ],
)
def test_the_line_by_which_a_data_worker_makes_a_batch(stack: str, line: int | None) -> None:
    """And none where it makes none, or without the user's code."""
    found = in_worker(stack, belongs_to_library)
    assert (None if found is None else found.line) == line


SLEEPS = f"main (/u/train.py:28);{DDP};Net.forward (/u/net.py:20)"
ENGINE = f"main (/u/train.py:28);{BACKWARD}"


def test_a_sleep_of_the_user_is_no_wait() -> None:
    """Two ranks are idle for the same time: one sleeps in its forward pass, the other waits for it in backward."""
    late = Thread(belongs_to_library).take(Look({SLEEPS: 20, ENGINE: 10}, {ENGINE: 10}, 1 / 3))
    waits = Thread(belongs_to_library).take(Look({ENGINE: 30}, {ENGINE: 10}, 1 / 3))
    assert late is not None
    assert waits is not None
    assert late.phases == pytest.approx({"forward": 2 / 3, "backward": 1 / 3, "wait": 0}, abs=0.05)
    assert waits.phases == pytest.approx({"backward": 1 / 3, "wait": 2 / 3}, abs=0.01)
    phase, where, _ = late.lines[0]
    assert (phase, where.line) == ("forward", 20)
    assert sum(part for *_, part in waits.lines) == pytest.approx(1)


def test_nothing_is_called_a_wait_where_a_device_computes_the_backward_pass() -> None:
    """The main thread is idle meanwhile, whether it waits for others or for its own kernels."""
    found = Thread(belongs_to_library).take(Look({ENGINE: 30}, {}, 0.01), engine_waits=False)
    assert found is not None
    assert found.phases == {"backward": 1.0, "wait": 0.0}


def test_where_nothing_shows_when_it_ran_it_is_supposed_to_be_idle_in_waits() -> None:
    """Of Python 3.10: first in collectives, then in the backward pass; never for longer than it was idle."""
    found = Thread(belongs_to_library).take(Look({ENGINE: 20, SLEEPS: 10}, None, 0.8))
    assert found is not None
    assert found.phases == pytest.approx({"backward": 2 / 3 - 0.2, "wait": 0.2, "forward": 1 / 3})


@pytest.mark.parametrize(
    ("look", "still"),
    [
        (Look({ENGINE: 29}, {}, 0.0), True),
        (Look({ENGINE: 29}, {ENGINE: 28}, 0.99), True),
        # It waits for nearly all of each step, and is found elsewhere by hardly any look.
        (Look({ENGINE: 29}, {}, 0.02), False),
        (Look({ENGINE: 29}, {SLEEPS: 1}, 0.001), False),
        (Look({ENGINE: 28, SLEEPS: 1}, {}, 0.0), False),
        (Look({ENGINE: 3}, {}, 0.0), False),
    ],
)
def test_a_thread_is_still_only_where_nothing_says_that_it_moves(look: Look, still: bool) -> None:
    """All looks at the same lines are not enough: the time that it ran must agree, and there must be enough of them."""
    found = Thread(belongs_to_library).take(look)
    assert found is not None
    assert bool(found.still) == still


def test_looks_count_less_where_phases_last_longer_than_a_window() -> None:
    """Thirty looks at steps of a minute say as much as one."""
    long, short = Thread(belongs_to_library), Thread(belongs_to_library)
    for number in range(8):
        blocks = long.take(Look({ENGINE if number % 2 else SLEEPS: 30}, {}, 0.0))
        mixed = short.take(Look({ENGINE: 15, SLEEPS: 15}, {}, 0.0))
    assert blocks is not None
    assert mixed is not None
    assert blocks.blocks < 3
    assert mixed.blocks == 30


@pytest.mark.parametrize(
    ("stack", "call"),
    [
        (f"main (/u/train.py:30);{LOGGED};all_reduce (torch/distributed/distributed_c10d.py:3300)", "all_reduce"),
        (ENGINE, "backward"),
        ("main (/u/train.py:30);Thread.join (threading.py:1119)", "join (threading.py)"),
        ("main (/u/train.py:30);fetch (/u/train.py:6)", ""),
    ],
)
def test_the_call_that_a_stack_waits_in_is_named(stack: str, call: str) -> None:
    """By the collective, or by the innermost function; a line of the user's is no call."""
    assert waits_in(stack, place_of(stack, belongs_to_library).where) == call

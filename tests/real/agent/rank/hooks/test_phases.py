"""Training loops of many kinds, run for real by two ranks; what the agent made of rank 0's steps.

The loops, and the delays slept in them, are in `phase_cases.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.harness import started

from ddptop.agent.wire import PHASES

DELAY_NS = 20_000_000
SLACK_NS = 3 * DELAY_NS
"""What a busy machine may add to a phase in which nothing is slept; a mistake would add more."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The records of every loop, by its name."""
    script, file = Path(__file__).with_name("phase_cases.py"), tmp_path_factory.mktemp("phases") / "meet"
    # Both ranks are of its session, and end with it.
    with started(
        sys.executable, script, file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as ranks:
        try:
            out, errors = ranks.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
    # Torch itself may abort a process that is done.
    assert ranks.returncode in (0, -signal.SIGABRT), errors
    told: dict[str, Any] = json.loads(out)
    return told


def phase(step: dict[str, Any], name: str) -> int:
    spent: int | None = step[f"{name}_ns"]
    return spent or 0


def test_phases_add_up_everywhere(cases):
    """In every record of every loop the phases make up the wall time within 1 %; on the CPU there are no copies."""
    steps = [step for name, case in cases.items() if name != "faults" for step in case["steps"]]
    assert len(steps) > 50
    for step in steps:
        assert step["copy_ns"] is None
        known = [name for name in PHASES if name != "copy"]
        assert sum(phase(step, name) for name in known) == pytest.approx(step["wall_ns"], rel=0.01)


def test_the_agent_itself_never_failed(cases):
    """No loop made a hook raise."""
    assert cases["faults"] == [0, None]


def test_steps_are_counted_without_gap(cases):
    """Whatever the loop, a record follows each optimizer step or those that were only counted, numbered in turn."""
    steps = [step for name, case in cases.items() if name != "faults" for step in case["steps"]]
    assert [step["step"] for step in steps] == list(itertools.accumulate(step["counted"] + 1 for step in steps))


def test_accumulation_is_one_step_with_the_mean_loss(cases):
    """Four micro-batches under `no_sync`: one record with all their data, passes and samples."""
    case = cases["accumulation"]
    assert len(case["steps"]) == 2
    for number, step in enumerate(case["steps"]):
        for name in ("data", "forward", "backward"):
            assert phase(step, name) >= 4 * DELAY_NS
        assert step["samples"] == 16
        assert step["loss"] == pytest.approx(sum(case["losses"][4 * number : 4 * number + 4]) / 4, rel=1e-6)


def test_a_loss_that_was_divided_for_accumulation_is_told_as_the_script_knows_it(cases):
    """By `/ k`, `* (1 / k)`, in place, by a tensor, under a GradScaler, with a weight: the mean of the four losses."""
    case = cases["divided"]
    assert [step["loss"] for step in case["steps"]] == pytest.approx(case["losses"], rel=1e-6)


def test_the_learning_rate_is_that_of_the_step(cases):
    """Each record tells the rate of the optimizer that stepped."""
    assert [step["lr"] for step in cases["accumulation"]["steps"]] == [1e-3, 1e-3]


def test_data_is_the_wait_for_a_batch_of_a_worker(cases):
    """With a worker process, its start and the first batch are data; then what the training has to wait."""
    first, *rest = cases["workers"]["steps"]
    assert [step["samples"] for step in (first, *rest)] == [4, 4, 4]
    assert phase(first, "data") >= 4 * DELAY_NS
    assert min(phase(step, "forward") for step in rest) < SLACK_NS


def test_every_optimizer_of_a_gan_is_a_step(cases):
    """Two records an iteration: the critic's with the batch, the generator's with its own passes."""
    steps = cases["gan"]["steps"]
    assert len(steps) == 4
    assert min(phase(generator, "data") for generator in steps[1::2]) < SLACK_NS
    for critic, generator in (steps[:2], steps[2:]):
        assert (critic["samples"], generator["samples"]) == (4, None)
        assert phase(critic, "data") >= 4 * DELAY_NS > SLACK_NS
        assert phase(critic, "forward") >= DELAY_NS
        assert phase(generator, "forward") >= DELAY_NS
        assert phase(generator, "backward") >= DELAY_NS


def test_optimizers_that_step_one_after_the_other_are_one_step(cases):
    """Each iteration is a step, and from the second on its end is after the last of them."""
    case = cases["one_optimizer_after_the_other"]
    assert len(case["steps"]) == 4
    assert case["made"] == [[1], [2, 2], [3, 3], [4, 4]]
    assert [step["lr"] for step in case["steps"]] == [0.1, 0.2, 0.2, 0.2]
    assert min(phase(step, name) for step in case["steps"] for name in ("forward", "backward")) >= DELAY_NS


def test_an_optimizer_that_does_not_always_follow_makes_no_step_more_or_less(cases):
    """Whether the others were expected or not, an iteration is a step."""
    assert len(cases["the_second_optimizer_now_and_then"]["steps"]) == 12


def test_optimizers_inside_of_a_backward_pass_are_one_step_at_its_end(cases):
    """All parameters have been updated there, and the backward pass is over."""
    case = cases["inside_backward"]
    assert len(case["steps"]) == 3
    assert case["at"] == [["other", True, True, True, True]] * 3


def test_the_compiler_does_not_see_the_agent(cases):
    """With the agent the same graphs are compiled, with no more breaks, to the same result, and steps are seen."""
    case = cases["compiled"]
    for way, without in case["without"].items():
        agent = case["agent"][way]
        assert agent["breaks"] <= without["breaks"], way
        for fact in ("graphs", "operations", "loss"):
            assert agent[fact] == without[fact], (way, fact)
    assert len(case["steps"]) == 9
    assert all(phase(step, name) > 0 for step in case["steps"] for name in ("forward", "backward", "optimizer"))


def test_a_scaled_loss_is_shown_unscaled_and_a_skipped_step_counts(cases):
    """GradScaler leaves the second of four steps out; all four are records, with the script's own losses."""
    steps, losses = cases["scaler"]["steps"], cases["scaler"]["losses"]
    assert len(steps) == 4
    shown = [step["loss"] for step in steps]
    assert math.isinf(shown[1])
    assert [shown[0], *shown[2:]] == pytest.approx([losses[0], *losses[2:]], rel=1e-6)
    assert all(phase(step, "optimizer") > 0 for step in steps)


@pytest.mark.parametrize("how", ["recorded", "counted", "fused_recorded", "fused_counted"])
def test_what_a_scaler_skips_now_and_then_is_no_trouble(cases, how):
    """Eight skipped steps of 200, with infinite gradients that the script clips: not a word, whatever is recorded."""
    case = cases[f"overflowing_{how}"]
    assert sum(step["counted"] + 1 for step in case["steps"]) == 200
    assert (len(case["steps"]) < 100) == how.endswith("counted")
    assert case["events"] == []


def test_a_loss_that_is_lost_under_a_scaler_is_told_once_it_stays_so(cases):
    """One line, with the step at which it began, though each step is skipped."""
    case = cases["lost_under_a_scaler"]
    since = case["steps"][5]["step"]
    text = f"loss is nan since step {since:,}: GradScaler skips every step"
    assert case["events"] == [{"text": text, "level": "error", "rank": 0}]


def test_what_is_computed_from_a_scaled_loss_has_no_value(cases):
    """Rather no loss than one that is a thousand times too large."""
    assert [step["loss"] for step in cases["derived_from_scaled"]["steps"]] == [None]


@pytest.mark.parametrize("how", ["without_gradients", "through_ddp", "that_forgets"])
def test_an_evaluation_inside_the_loop_is_other(cases, how):
    """Ten batches of another loader between two epochs leave the next step's data and forward alone."""
    steps = cases[f"evaluation_{how}"]["steps"]
    after, others = steps[2::2], steps[1::2]
    # Each of these would have what is not its own, ten delays; a machine with much to do lengthens the others as well.
    for name in ("data", "forward"):
        assert min(phase(step, name) for step in after) < min(phase(step, name) for step in others) + 8 * DELAY_NS
    assert min(phase(step, "forward") for step in after) >= DELAY_NS
    assert all(phase(step, "other") + phase(step, "wait") >= 20 * DELAY_NS for step in after)
    assert [step["samples"] for step in steps] == [4] * 8


def test_clipping_is_part_of_the_update_and_tells_of_gradients(cases):
    """The norm that clipping computes says, with a finite loss, that the gradients are not finite."""
    case = cases["clipping"]
    assert all(math.isfinite(step["loss"]) for step in case["steps"])
    last = case["steps"][-1]["step"]
    assert case["events"] == [{"text": f"gradients are nan since step {last}", "level": "error", "rank": 0}]


def test_whose_gradients_are_lost_is_told_in_that_step(cases):
    """With a finite loss and no clipping; a rank that was given the other's gradients tells of its next loss."""
    for name, wrong, late in (("spoiled_here", "gradients are nan", 0), ("spoiled_elsewhere", "loss is nan", 1)):
        steps = cases[name]["steps"]
        assert [math.isfinite(step["loss"]) for step in steps] == [True, True, False]
        at = steps[1]["step"] + late
        assert cases[name]["events"] == [{"text": f"{wrong} since step {at}", "level": "error", "rank": 0}]


def test_without_a_loader_making_a_batch_is_other(cases):
    """Nothing is taken for data that no loader gave."""
    for step in cases["no_loader"]["steps"]:
        assert step["data_ns"] == 0
        assert step["samples"] is None
        assert phase(step, "other") >= DELAY_NS
        assert phase(step, "forward") >= DELAY_NS


def test_gradients_synced_by_hand_are_waited_for(cases):
    """Without DDP, standing in an all-reduce for a late rank is wait, and the passes are seen."""
    for step in cases["synced_by_hand"]["steps"]:
        assert phase(step, "wait") >= 2 * DELAY_NS
        assert phase(step, "forward") >= DELAY_NS
        assert phase(step, "backward") >= DELAY_NS
    assert min(phase(step, "other") for step in cases["synced_by_hand"]["steps"]) < SLACK_NS


def test_an_optimizer_with_a_closure_is_one_step(cases):
    """LBFGS evaluates twice inside its step: both passes are seen, and what is left is the optimizer's."""
    steps = cases["closure"]["steps"]
    assert len(steps) == 4
    for step in steps:
        assert phase(step, "forward") >= 2 * DELAY_NS
        assert phase(step, "backward") >= 2 * DELAY_NS
        assert phase(step, "optimizer") > 0
    assert min(phase(step, "other") for step in steps[1:]) < SLACK_NS


def test_losses_of_all_kinds(cases):
    """Several losses are summed; a tensor subclass and a tensor of many have none; checkpointing changes nothing."""
    case = cases["losses_of_all_kinds"]
    several, subclass, many, checkpointed = (step["loss"] for step in case["steps"])
    assert several == pytest.approx(case["sum"], rel=1e-6)
    assert (subclass, many) == (None, None)
    assert checkpointed is not None


def test_a_step_that_raises_is_none_and_the_next_one_counts(cases):
    """The script catches what its closure raised, and goes on; so does the agent."""
    case = cases["a_step_that_raises"]
    assert (case["raised"], len(case["steps"])) == (1, 2)


def test_the_forward_pass_of_fsdp2_is_seen(cases):
    """Also without a loader, the root module's forward begins the phase."""
    for step in cases["sharded"]["steps"]:
        assert phase(step, "forward") >= DELAY_NS
        assert phase(step, "backward") >= DELAY_NS
        assert step["loss"] is not None


def test_a_nan_is_told_once_and_its_end_once(cases):
    """One bad loss, then good ones: an error with its step, and later that all is well again."""
    case = cases["nan"]
    bad = case["steps"][1]["step"]
    assert math.isnan(case["steps"][1]["loss"])
    assert [event["level"] for event in case["events"]] == ["error", "info"]
    assert case["events"][0]["text"] == f"loss is nan since step {bad}"
    assert case["events"][1]["text"].startswith(f"finite again since step {bad + 1}")


def test_where_a_collective_could_not_be_noted_the_wait_is_unknown(cases):
    """Not zero; of the steps before and after it is known."""
    case = cases["unnoted"]
    assert [step["wait_ns"] is None for step in case["steps"]] == [False, True, False]
    assert case["fault"] == "a call of a collective: OSError: a fault of ours"


def test_a_loop_without_an_optimizer_of_torch_is_running(cases):
    """There is no boundary to see; state and activity are told all the same."""
    case = cases["own_optimizer"]
    assert case["steps"] == []
    assert (case["state"], case["activities"]) == ("running", ["backward"])

"""A run that nobody prepared hangs: its ranks are known by looks from outside alone, and less is said, not wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.processes.standing import Run, Spot, Where, in_library, in_user_code

from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.wire import Beat, Frame, Sampled, Verdict

WINDOW_S = 3.0
ENGINE = Frame("_engine_run_backward", "torch/autograd/graph.py", 841, library=True)
IN_BACKWARD = Spot((ENGINE, Frame("main", "train.py", 40)), by="py-spy", cpu=0.5)
BARRIER = Spot(in_library("torch/distributed/distributed_c10d.py", "barrier", 5, "save", 60), by="py-spy", cpu=0.5)
CALLS = {"barrier": "barrier", "recv": "recv", "_engine_run_backward": "backward"}
"""By the innermost function, the call that looks name."""


class Outside(Run):
    """A run whose observer looks at its ranks for three seconds after three seconds; no rank tells of a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.every_s = WINDOW_S
        self._still: dict[int, tuple[tuple[Frame, ...], int]] = {}
        self._looked_ns = self.now_ns

    def make_step(self) -> None:
        """Make a step that nobody sees."""

    def _training(self, rank: int) -> Spot:
        line = self.now_ns // 7 % 1000
        return Spot(in_library("torch/nn/modules/linear.py", "forward", line), by="py-spy", cpu=90.0, status="running")

    def _tick(self, place: Where, since: float) -> None:
        if self.now_ns - self._looked_ns >= WINDOW_S * ONE:
            for rank in range(self.world):
                if (spot := place(rank, since)).status != "stopped":
                    self.watch.sampled(self._looked(rank, spot), self.now_ns)
            self._looked_ns = self.now_ns
        super()._tick(place, since)

    def _looked(self, rank: int, spot: Spot) -> Sampled:
        before, since_ns = self._still.get(rank, ((), 0))
        stays = spot.frames == before
        self._still[rank] = spot.frames, since_ns if stays else self._looked_ns
        call = CALLS.get(spot.frames[0].function)
        moves = spot.cpu is not None and 5 < spot.cpu < 99
        phase = "wait" if call else "forward" if stays else "backward"
        since = None if moves else self._still[rank][1]
        span_ns, still_at = int(WINDOW_S * ONE), f"train.py:1 f, in {call or 'x'}"
        busy = float(spot.status == "running")
        return Sampled(rank, self.now_ns, span_ns, 30, {phase: 1.0}, (), since, still_at, blocks=30, busy=busy)

    def _beat(self, rank: int, spot: Spot) -> Beat:
        return Beat(rank, self.now_ns, "running", spot.activity, 0, None, 0, cpu_percent=spot.cpu)


def at(spot: Spot, others: Spot = IN_BACKWARD, culprit: int = 1) -> Where:
    """Return where the ranks stand: one here, the others there."""
    return lambda rank, _: spot if rank == culprit else others


def outside(frames: tuple[Frame, ...], **more: object) -> Spot:
    """Return a place that only looks from outside show."""
    return Spot(frames, by="py-spy", **more)  # type: ignore[arg-type]


def hang_told(run: Run, where: Where, seconds: float = 60.0) -> Verdict:
    """Return the hang that is told within so many seconds."""
    run.spend(seconds, where)
    assert run.hangs, run.told
    return run.hangs[-1]


LOOP = in_user_code(33, "spin", "while number: pass")
NATIVE = in_library("re/__init__.py", "match", 166, "main", 35)


LOADER = in_library("torch/utils/data/dataloader.py", "_try_get_data", 9, "draw", 36)
CULPRITS = {
    "sleep": (outside(in_user_code(31, source="time.sleep(3600)"), cpu=0.0), "not_entered", 31),
    "spin": (outside(LOOP, cpu=99.5, status="running", holds_gil=True), "spinning", 33),
    # On a machine under load, where it is ready to run and seldom does.
    "starved": (outside(LOOP, cpu=20.0, status="running", holds_gil=True), "spinning", 33),
    "lock": (outside(in_user_code(32, source="PyDLL(None).sleep(60)"), cpu=0.0, holds_gil=True), "lock_held", 32),
    "lock busy": (outside(NATIVE, cpu=99.5, status="running", holds_gil=True), "lock_held", 35),
    "stopped": (outside(in_user_code(34), cpu=0.0, status="stopped"), "stopped", 34),
    "data": (outside(LOADER, cpu=0.0), "data", 36),
    "deadlock": (outside(in_user_code(37, source="with second:"), cpu=0.0), "waiting", 37),
    "never notified": (outside(in_library("threading.py", "wait", 320, "notify", 38), cpu=0.0), "waiting", 38),
}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(("culprit", "kind", "where"), CULPRITS.values(), ids=CULPRITS)
def test_the_rank_that_does_not_come_is_named_with_its_line(world: int, culprit: Spot, kind: str, where: int) -> None:
    """The others wait in a backward pass, which no frame of Python shows; the judge is that of prepared runs."""
    run = Outside(world)
    run.train(20)
    assert run.told == []
    found = hang_told(run, at(culprit))
    assert found.hang is not None
    assert (found.hang.ranks, found.hang.kind) == ((1,), kind)
    assert found.hang.where.startswith(f"train.py:{where}")
    assert "in backward" in found.text
    assert {verdict.hang.ranks for verdict in run.hangs if verdict.hang} == {(1,)}


def test_a_run_that_hung_before_anybody_looked_is_told_as_one() -> None:
    """What people attach to first. No step was ever seen, so it takes as long as a start may."""
    run = Outside(2)
    found = hang_told(run, at(outside(in_user_code(31, source="time.sleep(3600)"), cpu=0.0)), 50)
    assert found.hang is not None
    assert (found.hang.ranks, found.hang.where) == ((1,), "train.py:31 main")


def test_a_rank_that_does_not_come_to_the_rendezvous_is_named() -> None:
    """The imports before it go through files of optimizers, which is no step yet."""
    run = Outside(2)
    for rank in range(2):
        imports = Sampled(rank, run.now_ns, ONE, 30, {"other": 0.9, "optimizer": 0.1}, blocks=30, busy=1.0)
        run.watch.sampled(imports, run.now_ns)
    joins = outside(in_library("torch/distributed/distributed_c10d.py", "_create", 669, "join", 62), cpu=0.0)
    joins.activity = "rendezvous"
    found = hang_told(run, at(outside(in_user_code(31, source="time.sleep(3600)"), cpu=0.0), joins), 50)
    assert found.hang is not None
    assert (found.hang.ranks, found.hang.where) == ((1,), "train.py:31 main")
    assert "rank 0 waits for it in init_process_group" in found.text


def test_all_ranks_that_are_stopped_are_named() -> None:
    """Nobody looks at a stopped process again and again; its state says it."""
    run = Outside(2)
    run.train(20)
    found = hang_told(run, lambda rank, _: outside(in_user_code(34), cpu=0.0, status="stopped"))
    assert found.hang is not None
    assert found.hang.kind == "stopped"


@pytest.mark.parametrize(
    ("where", "says", "blamed"),
    [
        pytest.param(lambda rank: rank == 2, "they wait for each other", (2,), id="odd one"),
        pytest.param(lambda rank: rank < 2, "they wait for each other", (), id="two and two"),
        pytest.param(lambda rank: False, "the network, or one is a call ahead", (), id="the same call"),
    ],
)
def test_where_all_are_in_calls_it_is_not_said_who_has_entered_which(
    where: Callable[[int], bool], says: str, blamed: tuple[int, ...]
) -> None:
    """Without records of collectives a stack shows the name of a call, and not its number."""
    run = Outside(4)
    run.train(20)
    found = hang_told(run, lambda rank, _: BARRIER if where(rank) else IN_BACKWARD)
    assert found.hang is not None
    assert (found.hang.ranks, found.hang.sure) == (blamed, False)
    assert says in found.text
    assert "entered" not in found.text


def test_receives_that_nobody_answers_are_told_as_such() -> None:
    """Where all ranks are in one nobody is left who could send: for that no number of a call is needed."""
    run = Outside(2)
    run.train(20)
    receives = outside(in_library("torch/distributed/distributed_c10d.py", "recv", 5, "swap", 61), cpu=0.5)
    found = hang_told(run, lambda rank, _: receives)
    assert found.hang is not None
    assert (found.hang.kind, "none sends" in found.text) == ("mismatch", True)


def test_work_of_one_rank_for_which_the_others_wait_is_no_hang() -> None:
    """An evaluation moves from line to line; it is told as a standstill that may be in order."""
    run = Outside(2)
    run.train(20)

    def where(rank: int, since: float) -> Spot:
        line = int(since * 10) % 50
        busy = outside(
            in_library("torch/nn/modules/linear.py", "forward", line, "evaluate", 70), cpu=90.0, status="running"
        )
        return busy if rank == 0 else IN_BACKWARD

    run.spend(90, where)
    run.train(20)
    assert run.hangs == []
    assert any(verdict.kind == "standing" and "rank 0" in verdict.text for _, verdict in run.told)
    assert run.watch.finding(run.now_ns) is None


def test_long_pauses_between_looks_are_no_standstill() -> None:
    """Of many ranks the looks cost more, and come less often."""
    run = Outside(2)
    run.every_s = 12.0
    run.train(120)
    assert run.asked == []

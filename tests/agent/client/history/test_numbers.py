"""The history as an onlooker has it, by questions and answers, against the observer's own and the steps themselves."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from support.values.histories import Kept

from ddptop.agent import wire
from ddptop.agent.client.history.asked import ANSWER_S, EDGE_S, SIGHT_S
from ddptop.agent.client.history.history import History
from ddptop.agent.client.history.numbers import COLUMNS
from ddptop.agent.record.history.columns import fold, stride_of

BASE_S = 1_800_000_000


class Scene:
    """An observer, an onlooker, and the time between them."""

    def __init__(self, world: int = 2) -> None:
        self.now = 0.0
        self.kept = Kept(world)
        self.history = History(world, clock=lambda: self.now)
        self.asked = self.history.asked
        self.steps = 0
        self.values: dict[tuple[int, int], float] = {}
        self.rng = random.Random(5)
        self.sent = 0
        """Bytes of answers."""
        self.queries: list[wire.History] = []

    def train(self, steps: int) -> None:
        """Let each rank do so many steps of 100 ms."""
        for _ in range(steps):
            self.steps += 1
            for rank in range(self.kept.world):
                loss = self.values[rank, self.steps] = self.rng.uniform(1, 2)
                phases = 10**7, 2 * 10**7, 3 * 10**7, 10**7, 2 * 10**7, 10**7
                end_ns = BASE_S * 10**9 + self.steps * 10**8
                self.kept.take(rank, wire.Step(self.steps, self.steps, end_ns, 10**8, *phases, loss))

    def exchange(self, seconds: float = 0.0) -> list[wire.History]:
        """Let questions and answers go back and forth once, so many seconds later."""
        self.now += seconds
        queries = self.asked.wanted()
        for query in queries:
            read = wire.read_command(wire.encode(query))
            assert isinstance(query, wire.History)
            assert isinstance(read, wire.History)
            for each in self.kept.answer(read):
                payload = wire.encode(each)
                self.sent += len(payload)
                self.asked.take(wire.read_history(payload))
            self.queries.append(query)
        return self.queries[len(self.queries) - len(queries) :]

    def check(self, first: int, last: int, width: int = 90) -> None:
        """Compare what is drawn in so many columns with the steps."""
        stride = stride_of(first, last, width)
        ranks = range(self.kept.world)
        drawn = fold(ranks, *self.history.by_step.read_many(ranks, "loss", first, last), first, last, stride)
        for column, end in enumerate(drawn.steps.tolist()):
            begin = max(first, (math.ceil(end / stride) - 1) * stride + 1)
            for rank in ranks:
                inside = [self.values[rank, step] for step in range(begin, int(end) + 1)]
                assert drawn.known[rank, column] == len(inside)
                assert drawn.low[rank, column] == pytest.approx(min(inside))
                assert drawn.high[rank, column] == pytest.approx(max(inside))
                assert drawn.mean[rank, column] == pytest.approx(sum(inside) / len(inside), rel=1e-4)
                assert drawn.at[rank, column] == pytest.approx(BASE_S + end * 0.1, abs=0.1)


def test_what_a_plot_draws_first_is_there_after_one_question() -> None:
    """Before, nothing is drawn and nothing waits; then all of it, with the extent of the run."""
    scene = Scene()
    scene.train(3000)
    by_step = scene.history.by_step
    assert by_step.span(0) is None
    assert not by_step.complete
    assert len(scene.exchange()) == 1
    assert by_step.span(0) == (1, 3000)
    assert by_step.last == 3000
    scene.check(1, 3000)
    assert by_step.complete
    assert scene.exchange() == []


def test_the_right_edge_goes_on_by_a_few_columns() -> None:
    """As the run goes on, each second costs some hundred bytes, and the plot says what the steps say."""
    scene = Scene()
    scene.train(2000)
    scene.exchange()
    for second in range(60):
        scene.train(10)
        before = scene.sent
        scene.check(1, scene.history.by_step.last)
        scene.exchange(1.0)
        assert scene.sent - before < 1000 or second == 0
    scene.check(1, 2600)


def test_a_run_that_grows_is_asked_for_anew_in_wider_columns() -> None:
    """What is held stays bounded, however far the run goes on while it is looked at."""
    scene = Scene()
    most = 0
    for _ in range(60):
        scene.train(200)
        if scene.history.by_step.last:
            whose, _ = scene.history.by_step.read_many([0, 1], "loss", 1, scene.history.by_step.last)
            most = max(most, len(whose))
        scene.exchange(1.0)
    assert most <= 2 * 3 * COLUMNS
    scene.history.by_step.read_many([0, 1], "loss", 1, 12_000)
    scene.exchange(1.0)
    _, series = scene.history.by_step.read_many([0], "loss", 1, 12_000)
    assert series.count.sum() == 2 * 12_000


def test_zooming_in_asks_finer_and_shows_what_there_is_until_then() -> None:
    """A part is drawn from the whole at once, and from its own columns when they came; the whole stays held."""
    scene = Scene()
    scene.train(9000)
    scene.exchange()
    whole = scene.history.by_step.read_many([0, 1], "loss", 1, 9000)[1].steps
    coarse = scene.history.by_step.read_many([0, 1], "loss", 8497, 8896)[1].steps
    assert 0 < len(coarse) < 2 * 400
    (query,) = scene.exchange()
    assert (query.first, query.last) == (8497, 8896)
    fine = scene.history.by_step.read_many([0, 1], "loss", 8497, 8896)[1].steps
    assert len(fine) > 4 * len(coarse)
    scene.check(8497, 8896)
    again = scene.history.by_step.read_many([0, 1], "loss", 1, 9000)[1].steps
    assert len(again) >= len(whole)


def test_a_zoomed_view_that_follows_stays_fine() -> None:
    """Whatever is answered of other numbers meanwhile, a window at the right edge is never drawn in wide columns."""
    scene = Scene()
    scene.train(6000)
    scene.exchange()
    by_step = scene.history.by_step
    for _ in range(40):
        last = by_step.last
        by_step.read_many([0, 1], "loss", last - 299, last)
        scene.exchange(0.2)
    for _ in range(20):
        scene.train(3)
        by_step.read_many([0, 1], "step", 1, by_step.last)
        scene.exchange(0.3)
        last = by_step.last
        whose, series = by_step.read_many([0, 1], "loss", last - 299, last)
        # The newest steps are held one by one, those before in pairs.
        assert len(whose) > 2 * 140
        assert series.count.max() <= 2


def test_a_view_that_scrolls_gets_what_it_comes_to() -> None:
    """To the right and to the left, while the run goes on and after its end, down to the last step."""
    scene = Scene()
    scene.train(6000)
    scene.exchange()
    kept, by_step = scene.kept, scene.history.by_step
    ended = History(2, lambda: scene.now)
    ended.asked.end(kept.answer)
    for first in (1000, 1100, 1163, 1400, 1900, 1700, 5609, 5601, 5500):
        for history in (by_step, ended.by_step):
            history.read_many([0, 1], "loss", first, first + 391)
            for _ in range(3):
                scene.exchange(EDGE_S + 0.01)
                history.read_many([0, 1], "loss", first, first + 391)
            _, series = history.read_many([0, 1], "loss", first, first + 391)
            # What is long ago is held in buckets of up to 16 steps, and one that reaches over an edge is left out.
            assert series.steps.max() >= first + 391 - 16
            assert series.steps.min() <= first + 16
            assert abs(series.count.sum() - 2 * 392) <= 2 * 32
            assert series.count.max() <= 16


def test_what_is_out_of_sight_is_not_asked_for() -> None:
    """Nor held for ever; only the extent is asked for, so that it is known how far the run is."""
    scene = Scene()
    scene.train(500)
    scene.exchange()
    for metric in ("step", "data", "forward", "backward", "optimizer", "wait", "other", "samples", "all_reduce") * 2:
        for last in (100, 500):
            scene.history.by_step.read_many([0, 1], metric, 1, last)
            scene.exchange(0.1)
    scene.now += SIGHT_S
    for _ in range(3):
        assert [query.metric for query in scene.exchange(EDGE_S + 0.01)] == [""]
    scene.train(20)
    scene.exchange(EDGE_S + 0.01)
    assert scene.history.by_step.last == 520


def test_a_number_over_time_is_awaited_until_its_first_answer() -> None:
    """So a map that is empty because nobody has answered yet is told from one of which nothing is known."""
    scene = Scene()
    scene.train(50)
    scene.exchange()
    by_time = scene.history.by_time
    assert by_time.complete
    for metric in ("step", "learning_rate"):
        by_time.window(metric, 0, BASE_S, 10)
        assert not by_time.complete
        scene.exchange(0.1)
        assert by_time.complete


def test_what_comes_back_into_sight_is_drawn_to_its_end() -> None:
    """A view is told of the steps made meanwhile, also of a run that makes no more, and then of nothing new."""
    scene = Scene()
    scene.train(40)
    scene.exchange()
    scene.check(1, 40)
    scene.now += SIGHT_S
    scene.train(20)
    for _ in range(2):
        scene.exchange(EDGE_S + 0.01)
    assert scene.history.by_step.last == 60
    scene.history.by_step.read_many([0, 1], "loss", 1, 60)
    told = scene.asked.records
    scene.exchange(EDGE_S + 0.01)
    assert scene.asked.records > told
    scene.check(1, 60)
    told = scene.asked.records
    scene.exchange(EDGE_S + 0.01)
    assert scene.asked.records == told


def test_nothing_is_asked_twice_while_an_answer_is_awaited() -> None:
    """And again once it has been lost, or the connection is another one."""
    scene = Scene()
    scene.train(50)
    assert len(scene.asked.wanted()) == 1
    scene.now += 0.1
    assert scene.asked.wanted() == []
    scene.now += ANSWER_S
    (again,) = scene.asked.wanted()
    scene.asked.lose()
    assert len(scene.asked.wanted()) == 1
    for each in scene.kept.answer(again):
        # Of a connection that is no more.
        assert not scene.asked.take(each)


def test_a_number_without_values_is_not_asked_for_all_the_time() -> None:
    """A metric that no step has costs a question every half second."""
    scene = Scene()
    scene.train(50)
    scene.exchange()
    asked = 0
    for _ in range(100):
        scene.train(2)
        whose, series = scene.history.by_step.read_many([0, 1], "learning_rate", 1, scene.history.by_step.last)
        assert len(whose) == len(series.steps) == 0
        asked += len(scene.exchange(0.05))
        assert scene.history.by_step.complete
    assert 1 <= asked <= 12


def test_windows_over_time_are_those_of_the_observer() -> None:
    """Of all ranks and of one, at each width, while the run goes on and while one scrolls back."""
    scene = Scene(3)
    scene.train(4000)
    for _ in range(30):
        scene.train(10)
        now = BASE_S + scene.steps * 0.1
        wanted = scene.kept
        for _ in range(2):
            for level, back in ((0, 0), (0, 100), (1, 0), (2, 3)):
                by_time = scene.history.by_time
                last = by_time.bucket(level, now) - back
                found = by_time.window("own", level, last, 60)
                one = by_time.window("step", level, last, 40, 1)
                assert found.shape == (3, 60)
                assert one.shape == (1, 40)
            scene.exchange(EDGE_S)
        for metric in ("own", "number"):
            last = by_time.bucket(0, now)
            by_time.window(metric, 0, last, 60)
        scene.exchange(EDGE_S)
        assert np.allclose(
            by_time.window("own", 0, last, 60), wanted.window("own", 0, last, 60), equal_nan=True, rtol=1e-5
        )
        assert by_time.knows(0, last - 1)
        assert not by_time.knows(0, last + 5)


def test_many_ranks_are_asked_for_as_they_are_in_sight() -> None:
    """A few of a large group by their numbers, many of them all together."""
    scene = Scene(100)
    scene.exchange()
    scene.history.by_step.read_many([3, 7], "loss", 1, 10)
    scene.history.by_step.read_many(range(40), "step", 1, 10)
    assert sorted((query.metric, query.ranks) for query in scene.exchange(0.1)) == [("loss", (3, 7)), ("step", None)]


def test_an_ended_run_in_this_process_answers_at_once() -> None:
    """No question waits for a connection; what is read stays until the run is closed."""
    scene = Scene()
    scene.train(1000)
    history = History(2, lambda: scene.now)
    history.asked.end(scene.kept.answer)
    history.asked.ask_source()
    assert history.by_step.complete
    assert history.by_step.read(1, "step").count.sum() == 1000
    assert history.by_time.knows(0, BASE_S + 50)
    assert history.asked.wanted() == []
    scene.now += 100
    history.by_step.read(1, "step")
    assert history.asked.wanted() == []


def test_what_was_answered_from_a_part_of_the_history_is_asked_again() -> None:
    """An observer that cannot read its record yet says so, and is believed until it says otherwise."""
    scene = Scene()
    scene.train(300)
    scene.kept.is_read = False
    scene.exchange()
    assert not scene.history.by_step.complete
    assert scene.history.by_step.read(0, "loss").count.sum() == 0
    scene.kept.is_read = True
    for metric in ("step", "loss"):
        scene.history.by_step.read(0, metric)
        scene.exchange(EDGE_S)
    assert scene.history.by_step.complete
    scene.history.by_step.read(0, "loss")
    scene.exchange(EDGE_S)
    assert scene.history.by_step.read(0, "loss").count.sum() == 300


def test_what_was_empty_while_a_file_was_read_is_there_once_it_has_been() -> None:
    """The first question came before the first step was read: no second goes by until its answer is drawn."""
    scene = Scene()
    scene.train(2)
    scene.kept.is_read = False
    history = History(2, lambda: scene.now)
    history.asked.end(scene.kept.answer)
    assert history.by_step.read(0, "loss").count.sum() == 0
    assert not history.by_step.complete
    scene.kept.is_read = True
    scene.now += EDGE_S
    history.by_step.read(0, "step")
    assert history.by_step.complete
    assert history.by_step.read(0, "loss").count.sum() == 2


def test_no_answer_makes_a_table_without_bounds() -> None:
    """Parts far from each other, of other ranks, another number or another width are not put together."""
    cell = b"\0" * 4

    def part(begin: int, width: int = 1, rank: int = 0, metric: str = "loss") -> wire.HistoryPart:
        ranks = rank.to_bytes(4, "little")
        return wire.HistoryPart(1, metric, "step", width, begin, 1, ranks, cell, cell, cell, cell, cell)

    for parts in (
        [part(0), part(1 << 50)], [part(0), part(0, width=2)], [part(3, metric="step")],
        [part(3, rank=2), part(3, rank=4_000_000_000)],
    ):  # fmt: skip
        history = History(2)
        assert not history.asked.take(wire.Reply(5, True))
        (query,) = history.asked.wanted()
        answer: list[wire.HistoryAnswer] = [wire.Extent(query.id, 1, 9, 9), *parts, wire.Reply(query.id, True)]
        assert all(map(history.asked.take, answer))
        assert history.by_step.read_many([0, 1], "loss", 1, 9)[1].count.sum() == 0


def test_nothing_that_needs_time_is_imported_before_somebody_looks() -> None:
    """What is answered meanwhile waits, and is not asked for again until then."""
    scene = Scene()
    scene.train(120)
    (first,) = scene.exchange()
    assert isinstance(first, wire.History)
    assert first.metric == "loss"
    for _ in range(4):
        scene.train(10)
        assert [query.ranks for query in scene.exchange(EDGE_S)] == [()]
    assert scene.history.complete
    scene.check(1, 120)

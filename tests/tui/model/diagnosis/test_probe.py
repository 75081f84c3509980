"""A probe as lines: tables that fit a terminal, and the ranks and connections that are worth a look."""

from __future__ import annotations

from pathlib import Path

from ddptop.agent.observer.judge.probe import NOTHING
from ddptop.agent.wire import Board, Facts
from ddptop.agent.wire.diagnoses.kept import Kept
from ddptop.agent.wire.diagnoses.probed import Connection, Experiments, Probe, Rank
from ddptop.tui.drawing.units import COLUMNS
from ddptop.tui.model.diagnosis import probe

BOARD = Board("NVIDIA H100", ("heat",), 71.0, 1200.0, 1980.0, 3, 8, 16, 5, 5)
EXPERIMENTS = (
    "host", "compute", "disk_write", "disk_read", "checkpoint_write", "checkpoint_read",
)  # fmt: skip


def _kept(*ranks: Rank, connections: list[Connection] | None = None) -> Kept[Probe]:
    made = Probe("r", 5, 1.5e9, 3.1, [NOTHING], ranks=list(ranks), connections=connections or [])
    return Kept("0001", Path("probe.json"), 1, made)


def _text(kept: Kept[Probe]) -> list[str]:
    return [line.text for line in probe.lines(kept, len(kept.found.ranks))]


def test_what_has_no_room_stands_below() -> None:
    """Of ranks with devices on several hosts: each table begins with the rank, and a number is beside its like."""
    made = Experiments({each: [1234e9] for each in EXPERIMENTS})
    facts = Facts(
        0.5, which="0-15,32-47", threads=16, load=31.5, throttled_ms=12_345, mhz=2596, swapped=99 << 20, board=BOARD
    )
    text = _text(_kept(*(Rank(each, f"a-node-with-a-name-{each}", made, made, facts=facts) for each in range(2))))
    assert max(map(len, text[3:-2])) <= COLUMNS
    heads = [line for line in text if line.startswith("rank ")]
    assert [line.count("together") for line in heads] == [line.count("GFLOP") for line in heads]
    numbers = [number for line in text if line.startswith("   0  a-node-with") for number in line.split()[2:]]
    assert numbers == ["1,234"] * 4 + ["1,234,000"] * 4
    assert text[-1] == "device: NVIDIA H100, heat, 1,200 of 1,980 MHz, 71 °C, PCIe 5 x8 of 5 x16, 3 memory errors"


def test_a_table_of_many_ranks_has_the_slowest() -> None:
    """And says how many are left out."""
    fast, slow = (Experiments({"compute": [rate]}) for rate in (100e9, 1e9))
    text = _text(_kept(*(Rank(each, "", slow if each == 77 else fast) for each in range(100))))
    assert "  77      1.0         –" in text
    assert "and 68 ranks that compute faster: probe.json" in text


def test_the_slowest_connections_are_shown() -> None:
    """With the hosts of both ranks, where there are several."""
    ranks = [Rank(each, f"node{each}") for each in range(12)]
    connections = [Connection(each, each + 1, 1 << 20, [0.001 * (each + 1)], []) for each in range(11)]
    text = _text(_kept(*ranks, connections=connections))
    assert [line.split()[:6] for line in text if line.startswith("rank 10 ")] == [
        ["rank", "10", "(node10)", "to", "11", "(node11)"]
    ]
    assert not any(line.startswith("rank 0 ") for line in text)
    assert "and 1 connection that carry more" in text

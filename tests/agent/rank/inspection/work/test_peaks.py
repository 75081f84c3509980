"""The peaks of devices are those that their vendors name."""

from __future__ import annotations

import pytest

from ddptop.agent.rank.inspection.work.peaks import peak_of

_SPARSE = 2
"""Vendors name twice the number for matrices of which half is left out."""


@pytest.mark.parametrize(
    ("device", "kind", "tera"),
    [
        # As datasheets name them; with sparsity, where they name only that.
        ("Tesla V100-SXM2-32GB", "float16", 125),
        ("Tesla V100-PCIE-16GB", "float16", 112),
        ("Tesla T4", "float16", 65),
        ("NVIDIA A10", "bfloat16", 125),
        ("NVIDIA A10G", "bfloat16", 70),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("NVIDIA A100-PCIE-40GB", "float32", 19.5),
        ("NVIDIA L4", "bfloat16", 242 / _SPARSE),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA GeForce RTX 3090", "bfloat16", 71),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 1979 / _SPARSE),
        ("NVIDIA H100 80GB HBM3", "float8", 3958 / _SPARSE),
        ("NVIDIA H100 PCIe", "bfloat16", 1513 / _SPARSE),
        ("NVIDIA H100 NVL", "bfloat16", 1671 / _SPARSE),
        ("NVIDIA H200", "tf32", 989 / _SPARSE),
        ("NVIDIA GH200 480GB", "bfloat16", 1979 / _SPARSE),
        # A board of eight: 36 PFLOP/s.
        ("NVIDIA B200", "bfloat16", 36_000 / 8 / _SPARSE),
        # A card of two dies.
        ("AMD Instinct MI250X", "bfloat16", 383 / 2),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
    ],
)
def test_peaks_are_those_of_the_datasheets(device: str, kind: str, tera: float) -> None:
    """Dense, within the last digit that a datasheet has."""
    assert peak_of(device, kind) == pytest.approx(tera * 1e12, rel=2e-3)


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "bfloat16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16"),
        ("NVIDIA L40", "bfloat16"),
        ("NVIDIA A800-SXM4-80GB", "bfloat16"),
        ("Tesla V100-SXM2-32GB", "bfloat16"),
        ("NVIDIA A100-SXM4-80GB", "float8"),
        ("NVIDIA A100-SXM4-80GB", "double"),
        ("", "bfloat16"),
    ],
)
def test_what_is_not_known_has_no_peak(device: str, kind: str) -> None:
    """A slice, a sibling of another speed, numbers that the device does not multiply by itself."""
    assert peak_of(device, kind) is None

"""The peak of a device: floating-point operations a second that its vendor names for dense matrices. Pure.

Without sparsity, which training does not use, and summed up in float32, as PyTorch does by default: a GeForce card is
twice as fast where float16 is summed up in float16.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class _Peaks(NamedTuple):
    """TFLOP/s by the type of the numbers that are multiplied, None where the device cannot do that by itself."""

    half: float
    """float16; bfloat16 as well, but for Volta and Turing."""
    tf32: float | None
    single: float
    """float32."""
    eight: float | None = None
    """float8."""
    has_bfloat16: bool = True


_PEAKS: Final = {
    # "NVIDIA Tesla V100 GPU Accelerator", datasheet, 2018; "NVIDIA V100S", 2020
    r"Tesla V100-SXM[23]-(16|32)GB": _Peaks(125.0, None, 15.7, has_bfloat16=False),
    r"Tesla V100-PCIE-(16|32)GB": _Peaks(112.0, None, 14.0, has_bfloat16=False),
    r"Tesla V100S-PCIE-32GB": _Peaks(130.0, None, 16.4, has_bfloat16=False),
    # "NVIDIA T4 Tensor Core GPU", datasheet, 2019
    r"(Tesla )?T4": _Peaks(65.0, None, 8.1, has_bfloat16=False),
    # "NVIDIA A10 GPU Accelerator", datasheet, 2021; "NVIDIA A10G", the same card for AWS G5
    r"A10": _Peaks(125.0, 62.5, 31.2),
    r"A10G": _Peaks(70.0, 35.0, 35.0),
    # "NVIDIA A100 Tensor Core GPU", datasheet, 2021
    r"A100-(SXM4|SXM|PCIE)-(40|80)GB|A100 80GB PCIe": _Peaks(312.0, 156.0, 19.5),
    # "NVIDIA L4 Tensor Core GPU", datasheet, 2023; named with sparsity there, twice as much
    r"L4": _Peaks(121.0, 60.0, 30.3, 242.5),
    # "NVIDIA L40S", datasheet, 2023
    r"L40S": _Peaks(362.05, 183.0, 91.6, 733.0),
    # "NVIDIA Ampere GA102 GPU Architecture", whitepaper, 2020, table 2: FP16 Tensor with FP32 accumulate
    r"GeForce RTX 3090": _Peaks(71.0, 35.6, 35.6),
    # "NVIDIA Ada GPU Architecture", whitepaper, 2022, appendix A
    r"GeForce RTX 4090": _Peaks(165.2, 82.6, 82.6, 330.3),
    # "NVIDIA H100 Tensor Core GPU", datasheet, 2023, without its sparsity; SXM, PCIe, NVL (one of the two cards)
    r"H100 80GB HBM3": _Peaks(989.4, 494.7, 66.9, 1978.9),
    r"H100 PCIe": _Peaks(756.0, 378.0, 51.2, 1513.0),
    r"H100 NVL": _Peaks(835.5, 417.5, 60.0, 1670.5),
    # "NVIDIA H200 Tensor Core GPU", datasheet, 2024: the chip of the H100, SXM
    r"H200": _Peaks(989.4, 494.7, 66.9, 1978.9),
    r"H200 NVL": _Peaks(835.5, 417.5, 60.0, 1670.5),
    # "NVIDIA GH200 Grace Hopper Superchip", datasheet, 2024
    r"GH200 (480GB|120GB|144G HBM3e)": _Peaks(989.4, 494.7, 66.9, 1978.9),
    # "NVIDIA HGX B200", datasheet, 2024: an eighth of a board of eight, without its sparsity
    r"B200": _Peaks(2250.0, 1125.0, 75.0, 4500.0),
    # "AMD Instinct MI250X", datasheet, 2021: half of a card, as each of its two dies is a device of torch
    r"AMD Instinct MI250X": _Peaks(191.5, None, 47.9),
    # "AMD Instinct MI300X", datasheet, 2023
    r"AMD Instinct MI300X": _Peaks(1307.4, 653.7, 163.4, 2614.9),
}  # fmt: skip
"""By the name that torch gives the device, without the `NVIDIA` that newer drivers put before it."""


def peak_of(device: str, kind: str) -> float | None:
    """Return FLOP/s of a device for matrices of one `kind` of numbers; None where that is not known.

    A slice of a device (MIG), a laptop's card and a sibling with another suffix have other names than the table.

    Args:
        device: as `torch.cuda.get_device_name` has it.
        kind: `bfloat16`, `float16`, `tf32`, `float32` or `float8`.
    """
    name = device.removeprefix("NVIDIA ")
    peaks = next((peaks for pattern, peaks in _PEAKS.items() if re.fullmatch(pattern, name)), None)
    if peaks is None or (kind == "bfloat16" and not peaks.has_bfloat16):
        return None
    tera = {
        "bfloat16": peaks.half,
        "float16": peaks.half,
        "tf32": peaks.tf32,
        "float32": peaks.single,
        "float8": peaks.eight,
    }.get(kind)
    return None if tera is None else tera * 1e12

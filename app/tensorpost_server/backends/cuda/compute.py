"""Filling a box of an output on the current CuPy device and stream."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ...operators.base import Box, Kernel

__all__ = ["fill"]


def fill(kernel: Kernel, inputs: Sequence[Any], box: Box, out: Any) -> None:
    """`Kernel.fill` on CuPy arrays; returns before the device is done.

    Args:
        kernel: what to compute.
        inputs: as for `Kernel.fill`, on the current device.
        box: as for `Kernel.fill`.
        out: as for `Kernel.fill`, on the current device.
    """
    kernel.fill(importlib.import_module("cupy"), inputs, box, out)

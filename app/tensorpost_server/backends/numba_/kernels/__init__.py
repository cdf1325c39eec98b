# pyright: basic
# Numba types the kernels.
"""The loops that numba compiles ahead. Only `library.build` imports this folder; a server loads what it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .copy_kernels import gather, runs, transpose
from .expression_kernel import expression
from .reduction_kernels import largest_f16, largest_f32, largest_u8, sum_f16, sum_f32, sum_u32
from .sum_kernels import columns_first, rows_first
from .thread_kernels import await_helpers, compute, help_threads

KERNELS: Mapping[str, Callable[[Any], None]] = {
    "runs": runs,
    "transpose": transpose,
    "gather": gather,
    "columns_first": columns_first,
    "rows_first": rows_first,
    "expression": expression,
    "sum_f32": sum_f32,
    "sum_f16": sum_f16,
    "sum_u32": sum_u32,
    "largest_f32": largest_f32,
    "largest_f16": largest_f16,
    "largest_u8": largest_u8,
    "compute": compute,
    "await_helpers": await_helpers,
    "help_threads": help_threads,
}

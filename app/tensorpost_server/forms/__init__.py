"""The closed set of ways to compute: operators are made of forms, and backends implement forms. See `base.py`."""

from .arrays import Array, BoxFunction, Lines, cut_by_lines
from .axes import AxesForm
from .base import Box, BoxForm, Form, Reads, extents, whole_box
from .copies import Copies
from .copy_loops import Copy, Loop
from .fused_lines import FusedLines
from .index_ranges import IndexRange
from .pointwise import Pointwise
from .separable import Separable
from .squeezed_lines import SqueezedLines
from .windows import Window, WindowFunction

__all__ = [
    "Array",
    "AxesForm",
    "Box",
    "BoxForm",
    "BoxFunction",
    "Copies",
    "Copy",
    "Form",
    "FusedLines",
    "IndexRange",
    "Lines",
    "Loop",
    "Pointwise",
    "Reads",
    "Separable",
    "SqueezedLines",
    "Window",
    "WindowFunction",
    "cut_by_lines",
    "extents",
    "whole_box",
]

"""VALUE_SCALE_2D. FLOAT16 is computed in float32 and rounded once: the page is silent."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml

from ..forms import Box, BoxFunction
from .registry import form_of_class

BLOCK = 1 << 15  # elements at a time, whose products stay in a CPU's cache


@form_of_class(dml.ValueScale2DOperatorDesc)
def value_scale_form(desc: dml.ValueScale2DOperatorDesc) -> BoxFunction:
    """The product is rounded to float32, then the sum."""
    return BoxFunction(_value_scale, 1, (("scale", desc.scale), ("bias", desc.bias)), block=BLOCK)


def _value_scale(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, scale: float, bias: tuple[float, ...]
) -> None:
    x = inputs[0][tuple([slice(*span) for span in box])].astype("float32", copy=False)
    added = xp.asarray(bias[slice(*box[1])], "float32").reshape(-1, 1, 1)
    out[...] = x * xp.float32(scale) + added

"""What a Tile node of any version means: one count of repeats per axis.

Source: ONNX Tile-1, Tile-6 and Tile-13. Tile-1 contradicts itself: its numbers are said to be of the data's type, and
to be int64; its output is said to keep the input's shape. tensorpost's choice: `tiles` and `axis` are one-element
tensors, both int64 ("described T1") or both of the data's own type ("declared T"), the axis may be negative, and the
output grows along it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..values.problems import counted, entry_count
from ..values.sentences import named
from .inference_context import Broken, InferenceContext, InferredOutputs
from .operator_row import OperatorRow
from .parameters import Parameters
from .tensor import too_large

__all__ = ["Tiling", "tiling"]


@dataclass(frozen=True, slots=True)
class Tiling(Parameters):
    """`output[c] = input[c[i] mod shape[i]]`, with `shape[i] * repeats[i]` elements along axis i.

    Attributes:
        repeats: copies along each axis; 0 makes the output empty.
        form: how Tile-1 got its numbers, `declared T` or `described T1`; None for later versions.
    """

    repeats: tuple[int, ...]
    form: str | None = None


def tiling(context: InferenceContext) -> InferredOutputs:
    """The output's shape, and how often the input stands along each axis."""
    parameters = (_tile_1 if context.since == 1 else _tile_6)(context)
    if parameters is None or context.report.violations:
        raise Broken
    tensor = context.first
    shape = tuple(size * repeat for size, repeat in zip(tensor.shape, parameters.repeats, strict=True))
    if too_large(tensor.data_type, shape):
        message = f"the output would have the shape {list(shape)}, whose bytes do not fit a signed 64-bit number"
        path, expected = ("inputs", context.schema.value_inputs[0].name), "an output of fewer than 2^63 bytes"
        context.refuse("output-too-large", path, message, list(parameters.repeats), expected)
    return InferredOutputs([shape], parameters, {"output": tensor.data_type})


TILE_ROW = OperatorRow(tiling, None, reads_broken=True)


def _tile_6(context: InferenceContext) -> Tiling | None:
    repeats, rank, broken = context.values.get("repeats"), len(context.first.shape), context.report.add
    if repeats is None:
        return None
    if len(repeats) != rank:
        message = named("repeats") + f" has {entry_count(len(repeats))} but " + named("input", text="the input")
        message += f" has {counted(rank, 'dimension')}; send one entry per dimension (unlike NumPy's tile, nothing is "
        message += "broadcast)"
        broken("array-length", ("inputs", "repeats"), message, list(repeats), entry_count(rank))
    for axis, repeat in enumerate(repeats):
        if repeat < 0:
            message = named("repeats", axis) + f" is {repeat}; it cannot be negative"
            broken("repeat-negative", ("inputs", "repeats", axis), message, repeat, "0 or more")
    return Tiling(tuple(int(repeat) for repeat in repeats))


def _tile_1(context: InferenceContext) -> Tiling | None:
    rank, broken = len(context.first.shape), context.report.add
    numbers: dict[str, int] = {}
    forms: dict[str, str] = {}
    for name in ("tiles", "axis"):
        for value in context.values.get(name, ()):
            forms[name] = "declared T" if isinstance(value, float) else "described T1"
            if math.isfinite(value) and value == int(value):
                numbers[name] = int(value)
            else:
                message = named(name) + f" is {value}; it must be a whole number (2 and 2.0 are, 2.5 is not)"
                broken("count-not-whole", ("inputs", name), message, str(value), "a whole number")
    if len(set(forms.values())) > 1:
        message = f"tiles is given as {forms['tiles']} but axis as {forms['axis']}; send both as int64, or both as the "
        message += "data's own type"
        broken("forms-differ", ("inputs", "axis"), message, forms["axis"], forms["tiles"])
    if numbers.get("tiles", 0) < 0:
        message = named("tiles") + f" is {numbers['tiles']}; it cannot be negative"
        broken("repeat-negative", ("inputs", "tiles"), message, numbers["tiles"], "0 or more")
    if not -rank <= numbers.get("axis", 0) < max(rank, 1):
        message = named("axis") + f" {numbers['axis']} does not exist in an input of {rank} dimensions"
        broken("axis-out-of-range", ("inputs", "axis"), message, numbers["axis"], f"{-rank} to {rank - 1}")
    elif rank == 0:
        message = "the input has rank 0, so there is no axis to tile along"
        broken("axis-out-of-range", ("inputs", "axis"), message, numbers.get("axis"), "an input of rank 1 or more")
    if len(numbers) < 2 or context.report.violations:
        return None
    repeats = [1] * rank
    repeats[numbers["axis"]] = numbers["tiles"]
    return Tiling(tuple(repeats), forms["tiles"])

"""What a Tile node of any version means: one count of repeats per axis.

Source: ONNX Tile-1, Tile-6 and Tile-13. Tile-1 contradicts itself: its numbers are said to be of the data's type, and
to be int64; its output is said to keep the input's shape. tensorpost's choice: `tiles` and `axis` are one-element
tensors, both int64 ("described T1") or both of the data's own type ("declared T"), the axis may be negative, and the
output grows along it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..values.problems import counted, entry_count
from .report import Report
from .schemas import InputValues, OnnxSchema
from .tensor import OnnxTensor, too_large

__all__ = ["Tiling", "tiling"]


@dataclass(frozen=True, slots=True)
class Tiling:
    """`output[c] = input[c[i] mod shape[i]]`, with `shape[i] * repeats[i]` elements along axis i.

    Attributes:
        repeats: copies along each axis; 0 makes the output empty.
        form: how Tile-1 got its numbers, `declared T` or `described T1`; None for later versions.
    """

    repeats: tuple[int, ...]
    form: str | None = None


def tiling(
    schema: OnnxSchema, tensor: OnnxTensor, values: Mapping[str, InputValues], report: Report
) -> tuple[Tiling, tuple[int, ...]] | None:
    """The meaning and the output's shape; None if anything is wrong, which is then in the report."""
    meaning = (_tile_1 if schema.since_version == 1 else _tile_6)(tensor, values, report)
    if meaning is None or report.found:
        return None
    shape = tuple(size * repeat for size, repeat in zip(tensor.shape, meaning.repeats, strict=True))
    if too_large(tensor.data_type, shape):
        report.add(
            "output-too-large", ("inputs", schema.value_inputs[0].name),
            f"the output would have the shape {list(shape)}, whose bytes do not fit a signed 64-bit number",
            list(meaning.repeats), "an output of fewer than 2^63 bytes",
        )  # fmt: skip
        return None
    return meaning, shape


def _tile_6(tensor: OnnxTensor, values: Mapping[str, InputValues], report: Report) -> Tiling | None:
    if "repeats" not in values:
        return None
    repeats, rank = values["repeats"], len(tensor.shape)
    if len(repeats) != rank:
        report.add(
            "array-length", ("inputs", "repeats"),
            f"repeats has {entry_count(len(repeats))} but the input has {counted(rank, 'dimension')}; send "
            "one entry per dimension (unlike NumPy's tile, nothing is broadcast)", list(repeats),
            entry_count(rank),
        )  # fmt: skip
    for axis, repeat in enumerate(repeats):
        if repeat < 0:
            report.add(
                "repeat-negative", ("inputs", "repeats", axis),
                f"repeats[{axis}] is {repeat}; it cannot be negative", repeat, "0 or more",
            )  # fmt: skip
    return Tiling(tuple(int(repeat) for repeat in repeats))


def _tile_1(tensor: OnnxTensor, values: Mapping[str, InputValues], report: Report) -> Tiling | None:
    rank = len(tensor.shape)
    numbers: dict[str, int] = {}
    forms: dict[str, str] = {}
    for name in ("tiles", "axis"):
        for value in values.get(name, ()):
            forms[name] = "declared T" if isinstance(value, float) else "described T1"
            if math.isfinite(value) and value == int(value):
                numbers[name] = int(value)
            else:
                report.add(
                    "count-not-whole", ("inputs", name),
                    f"{name} is {value}; it must be a whole number (2 and 2.0 are, 2.5 is not)", str(value),
                    "a whole number",
                )  # fmt: skip
    if len(set(forms.values())) > 1:
        report.add(
            "forms-differ", ("inputs", "axis"),
            f"tiles is given as {forms['tiles']} but axis as {forms['axis']}; send both as int64, or both as the "
            "data's own type", forms["axis"], forms["tiles"],
        )  # fmt: skip
    if numbers.get("tiles", 0) < 0:
        message = f"tiles is {numbers['tiles']}; it cannot be negative"
        report.add("repeat-negative", ("inputs", "tiles"), message, numbers["tiles"], "0 or more")
    if not -rank <= numbers.get("axis", 0) < max(rank, 1):
        message = f"axis {numbers['axis']} does not exist in an input of {rank} dimensions"
        report.add("axis-out-of-range", ("inputs", "axis"), message, numbers["axis"], f"{-rank} to {rank - 1}")
    elif rank == 0:
        message = "the input has rank 0, so there is no axis to tile along"
        report.add("axis-out-of-range", ("inputs", "axis"), message, numbers.get("axis"), "an input of rank 1 or more")
    if len(numbers) < 2 or report.found:
        return None
    repeats = [1] * rank
    repeats[numbers["axis"]] = numbers["tiles"]
    return Tiling(tuple(repeats), forms["tiles"])

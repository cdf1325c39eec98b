"""Random documents of operator descriptors, legal and illegal, the same for the same seed.

Each begins as a descriptor that an operator's page allows (types and ranks of its support table mostly, others at
times), with any layout of its tensors; up to two `MUTATIONS` then change something. Nothing of the packages under test
decides what is legal here: that is what the documents are to find out.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorpost.descriptors import OPERATORS as DESCRIPTORS
from tensorpost.descriptors.catalogue import FieldFacts, OperatorFacts, facts_of, operator_names

from .vector_cases import drawn_from_vectors

__all__ = ["OPERATORS", "DescriptorCase", "cases", "legal_case", "readable"]

SEED = 20261122
BITS = {
    "FLOAT32": 32, "FLOAT16": 16, "UINT32": 32, "UINT16": 16, "UINT8": 8, "INT32": 32, "INT16": 16, "INT8": 8,
    "FLOAT64": 64, "UINT64": 64, "INT64": 64, "UINT4": 4, "INT4": 4,
}  # fmt: skip
NUMBERS = {name: number for number, name in enumerate(BITS, 1)}  # DML_TENSOR_DATA_TYPE
TENSORS = ("TENSOR_DESC", "TENSOR_DESC_ARRAY")
_WRITTEN = (
    "ELEMENT_WISE_IDENTITY", "ELEMENT_WISE_ABS", "ELEMENT_WISE_ADD", "ELEMENT_WISE_CLIP", "ELEMENT_WISE_DIVIDE",
    "ELEMENT_WISE_EXP", "ELEMENT_WISE_MAX", "ELEMENT_WISE_MIN", "ELEMENT_WISE_MULTIPLY", "ELEMENT_WISE_SUBTRACT",
    "ACTIVATION_RELU", "CONVOLUTION", "GEMM", "REDUCE", "CAST", "SPLIT", "JOIN", "UPSAMPLE_2D", "GATHER", "TILE",
    "ELEMENT_WISE_IF", "SCATTER_ELEMENTS", "RESAMPLE", "FILL_VALUE_SEQUENCE", "SLICE1", "TOP_K1", "RESAMPLE1",
    "NONZERO_COORDINATES", "RESAMPLE_GRAD", "PADDING1", "ACTIVATION_GELU", "RESAMPLE2", "RESAMPLE_GRAD1",
    "RESAMPLE3",
)  # fmt: skip
"""Those that have a method below."""
_REST = {cls.operator_type for cls in DESCRIPTORS} - set(_WRITTEN)
OPERATORS = (*_WRITTEN, *[name for name in operator_names() if name in _REST])
"""Every operator that has a row; those without a method begin as descriptors of their vectors."""
REDUCE_FUNCTIONS = (
    "ARGMAX", "ARGMIN", "AVERAGE", "L1", "L2", "LOG_SUM", "LOG_SUM_EXP", "MAX", "MIN", "MULTIPLY", "SUM", "SUM_SQUARE",
)  # fmt: skip
ENUMS = {
    "InterpolationMode": 2, "RoundingDirection": 2, "AxisDirection": 2, "PaddingMode": 5, "Function": 12, "TransA": 2,
    "TransB": 2, "Mode": 2, "Direction": 2, "ValueDataType": 14, "PaddingValueDataType": 14, "Antialiased": 2,
}  # fmt: skip
READ_WITHOUT_LOOKING = {"JOIN", "SPLIT", "QUANTIZE", "DEQUANTIZE"}  # null tensors end the process
COUNT_OF_TENSORS = {
    "InputTensors": "InputCount", "OutputTensors": "OutputCount", "QuantizationTensors": "QuantizationTensorCount",
}  # fmt: skip
COUNTS = {"RepeatsCount", "ScaleCount", "DimensionCount", "AxisCount", *COUNT_OF_TENSORS.values()}
UINT_EDGES = (0, 1, 2, 3, 7, 8, 9, 255, 2**31 - 1, 2**31, 2**32 - 1)
INT_EDGES = (0, 1, -1, 2, -2, 2**31 - 1, -(2**31))
FLOAT_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e-42, 3.4e38, -3.4e38, math.inf, -math.inf, math.nan)

Json = dict[str, Any]


@dataclass(frozen=True)
class DescriptorCase:
    """A document and how it was made.

    Attributes:
        index: its number in the run.
        operator: short name.
        fields: every field of the C struct by DirectML's name; null pointers are None.
        mutations: what was changed, by name; empty for a descriptor as the page has it.
    """

    index: int
    operator: str
    fields: Json
    mutations: tuple[str, ...]


def cases(count: int, seed: int = SEED) -> list[DescriptorCase]:
    """So many cases, all operators in turn."""
    return [_case(index, OPERATORS[index % len(OPERATORS)], seed) for index in range(count)]


def _case(index: int, operator: str, seed: int) -> DescriptorCase:
    rng = random.Random(f"{seed}/{index}/{operator}")
    facts = facts_of(operator)
    fields = _Builder(rng, facts).build()
    done: list[str] = []
    wanted = rng.choices((0, 1, 2), (35, 50, 15))[0]
    while len(done) < wanted:
        what = MUTATIONS[rng.choice(list(MUTATIONS))](rng, facts, fields)
        done += [what] if what else []
    return DescriptorCase(index, operator, fields, tuple(done))


def legal_case(index: int, attempt: int, operator: str) -> DescriptorCase:
    """A descriptor as its page allows, mostly: the builder also draws other types and ranks."""
    rng = random.Random(f"{SEED}/{index}/{attempt}/{operator}")
    return DescriptorCase(index, operator, _Builder(rng, facts_of(operator)).build(), ())


def readable(case: DescriptorCase) -> str:
    """The document as one line of JSON; NaN and infinity as Python writes them."""
    return json.dumps({"operator": case.operator, "fields": case.fields, "mutations": case.mutations})


# ---- tensors ---------------------------------------------------------------------------------------------------------


def packed_strides(sizes: Sequence[int]) -> list[int]:
    """Row-major."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def byte_size(data_type: str, sizes: Sequence[int], strides: Sequence[int] | None) -> int:
    """DMLCalcBufferTensorSize; at least 0."""
    steps = packed_strides(sizes) if strides is None else strides
    last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=False))
    return max(0, -(-(last + 1) * BITS.get(data_type, 32) // 32) * 4)


def tensor(data_type: str, sizes: Sequence[int], strides: Sequence[int] | None = None) -> Json:
    """A DML_BUFFER_TENSOR_DESC with the smallest legal size in bytes."""
    return {
        "DataType": data_type, "Flags": 0, "DimensionCount": len(sizes), "Sizes": list(sizes),
        "Strides": None if strides is None else list(strides),
        "TotalTensorSizeInBytes": byte_size(data_type, sizes, strides), "GuaranteedBaseOffsetAlignment": 0,
    }  # fmt: skip


def strides_of_kind(rng: random.Random, kind: str, sizes: Sequence[int]) -> list[int] | None:
    """Strides that are packed, permuted, with gaps, broadcast, overlapping or arbitrary; None for no strides at all."""
    if kind == "none" or not sizes:
        return None
    order = list(range(len(sizes)))
    if kind in ("permuted", "gaps"):
        rng.shuffle(order)
    strides, step = [0] * len(sizes), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= sizes[axis]
        if kind == "gaps" and rng.random() < 0.5:
            step += rng.randint(1, 3)
    if kind == "broadcast":
        strides = [0 if rng.random() < 0.5 else stride for stride in strides]
    if kind == "overlapping":
        strides = [max(0, stride - rng.randint(0, 2)) for stride in strides]
    if kind == "arbitrary":
        strides = [rng.choice((0, 1, 2, 3, 5, 64)) for _ in sizes]
    return strides


def laid_out(rng: random.Random, data_type: str, sizes: Sequence[int], *, output: bool) -> Json:
    """A tensor of these sizes in a layout that its role allows."""
    kinds = ("none", "packed", "permuted", "gaps") if output else ("none", "packed", "permuted", "gaps", "broadcast")
    weights = (60, 10, 10, 15) if output else (60, 10, 10, 10, 10)
    strides = strides_of_kind(rng, rng.choices(kinds, weights)[0], sizes)
    made = tensor(data_type, sizes, strides)
    if rng.random() < 0.1:
        made["TotalTensorSizeInBytes"] += 4 * rng.randint(1, 20)
    if rng.random() < 0.05:
        made["GuaranteedBaseOffsetAlignment"] = rng.choice((8, 16, 256))
    if not output and rng.random() < 0.03:
        made["Flags"] = 1
    return made


# ---- descriptors that the pages allow --------------------------------------------------------------------------------


class _Builder:
    """One descriptor of one operator."""

    def __init__(self, rng: random.Random, facts: OperatorFacts) -> None:
        self.rng, self.facts = rng, facts
        tables = dict(facts.tables())
        self.function = rng.choice(REDUCE_FUNCTIONS) if facts.name == "REDUCE" else None
        self.rows = {name: facts.rows(name, self.function)[-1] for name in tables}
        main = "UpdatesTensor" if facts.name == "SCATTER_ELEMENTS" else self._main()
        low, high = self.rows[main].dimension_counts
        usual = [rank for rank in (1, 2, 3, 4, 4, 5, 6, 7, 8) if low <= rank <= high]
        self.rank = rng.choice(usual) if rng.random() < 0.9 else rng.randint(1, 8)
        self.data_type = self.type_of(main)

    def _main(self) -> str:
        names = [field.name for field in self.facts.fields if field.type in TENSORS]
        return next(name for name in names if name not in ("ConditionTensor", "IndicesTensor"))

    def type_of(self, tensor_name: str) -> str:
        """A DataType of the tensor's table; at times another."""
        row = self.rows[tensor_name]
        if self.rng.random() < 0.88:
            return self.rng.choice(row.data_types).name
        return self.rng.choice(list(BITS))

    def sizes(self, rank: int | None = None, most: int = 6) -> list[int]:
        return [self.rng.choice((1, 1, 2, 3, 4, most)) for _ in range(self.rank if rank is None else rank)]

    def input(self, sizes: Sequence[int], data_type: str | None = None) -> Json:
        return laid_out(self.rng, data_type or self.data_type, sizes, output=False)

    def output(self, sizes: Sequence[int], data_type: str | None = None) -> Json:
        return laid_out(self.rng, data_type or self.data_type, sizes, output=True)

    def build(self) -> Json:
        """The fields, in the order of the struct."""
        if self.facts.name not in _WRITTEN:
            return drawn_from_vectors(self.rng, self.facts, self.sizes, laid_out, NUMBERS)
        made = self._fields()
        return {field.name: made[field.name] for field in self.facts.fields}

    def _fields(self) -> Json:
        name = self.facts.name
        if name == "ELEMENT_WISE_IF":
            sizes = self.sizes()
            condition = self.input(sizes, self.type_of("ConditionTensor"))
            return {"ConditionTensor": condition, "ATensor": self.input(sizes), "BTensor": self.input(sizes),
                    "OutputTensor": self.output(sizes)}  # fmt: skip
        if name.startswith(("ELEMENT_WISE", "ACTIVATION", "CAST")):
            return self._element_wise()
        if name.startswith("RESAMPLE"):
            return self._resample()
        return {
            "TILE": self._tile, "UPSAMPLE_2D": self._upsample, "GATHER": self._gather, "SLICE1": self._slice,
            "SCATTER_ELEMENTS": self._scatter, "NONZERO_COORDINATES": self._nonzero, "TOP_K1": self._top_k,
            "FILL_VALUE_SEQUENCE": self._sequence, "PADDING1": self._padding, "JOIN": self._join, "SPLIT": self._split,
            "GEMM": self._gemm, "CONVOLUTION": self._convolution, "REDUCE": self._reduce,
        }[name]()  # fmt: skip

    def scale_bias(self) -> Json | None:
        number = self.rng.choice
        return {"Scale": number((1.0, 2.0, -0.5)), "Bias": number((0.0, 1.5))} if self.rng.random() < 0.4 else None

    def fused(self) -> Json | None:
        if self.rng.random() < 0.6:
            return None
        return {"Type": self.rng.choice(("ACTIVATION_RELU", "ACTIVATION_GELU")), "Desc": {}}

    def _element_wise(self) -> Json:
        sizes, names = self.sizes(), [field.name for field in self.facts.fields]
        made: Json = {name: self.input(sizes) for name in names if name in ("ATensor", "BTensor", "InputTensor")}
        made["OutputTensor"] = self.output(sizes, self.type_of("OutputTensor") if self.facts.name == "CAST" else None)
        made["ScaleBias"] = self.scale_bias()
        made["Min"], made["Max"] = self.rng.choice(((-1.5, 2.0), (0.0, 6.0), (3.0, -3.0), (0.5, 0.5)))
        return made

    def _tile(self) -> Json:
        sizes = self.sizes(most=5)
        repeats = [self.rng.choice((1, 1, 2, 3)) for _ in sizes]
        target = [size * repeat for size, repeat in zip(sizes, repeats, strict=True)]
        return {"InputTensor": self.input(sizes), "OutputTensor": self.output(target), "RepeatsCount": len(sizes),
                "Repeats": repeats}  # fmt: skip

    def _upsample(self) -> Json:
        sizes, (width, height) = self.sizes(), self.rng.choices((1, 2, 3), k=2)
        target = [*sizes[:-2], sizes[-2] * height, sizes[-1] * width] if len(sizes) > 1 else sizes
        return {
            "InputTensor": self.input(sizes), "OutputTensor": self.output(target),
            "ScaleSize": {"Width": width, "Height": height}, "InterpolationMode": self.rng.randint(0, 1),
        }  # fmt: skip

    def _resample(self) -> Json:
        first, second = ("InputGradientTensor", "OutputGradientTensor") if "GRAD" in self.facts.name else (
            "InputTensor", "OutputTensor")  # fmt: skip
        sizes, target, rank = self.sizes(), self.sizes(), self.rank
        scales = [out / size for size, out in zip(sizes, target, strict=True)]
        if self.rng.random() < 0.5:
            scales = [self.rng.choice((0.25, 0.5, 1.0, 1.7, 3.0)) for _ in sizes]
            if self.rng.random() < 0.7:
                target = [max(1, math.floor(size * scale)) for size, scale in zip(sizes, scales, strict=True)]
        offsets = [self.rng.choice((0.5, 0.0, -0.5, 0.25)) for _ in range(2 * rank)]
        return {
            first: self.input(sizes), second: self.output(target), "InterpolationMode": self.rng.randint(0, 1),
            "RoundingDirection": self.rng.randint(0, 1), "ScaleCount": rank, "DimensionCount": rank, "Scales": scales,
            "InputPixelOffsets": offsets[:rank], "OutputPixelOffsets": offsets[rank:],
            "Antialiased": self.rng.randint(0, 1),
        }  # fmt: skip

    def _gather(self) -> Json:
        sizes, rng = self.sizes(), self.rng
        axis = rng.randrange(len(sizes))
        counted = rng.randint(0, min(3, axis + 1))
        sizes[: max(0, counted - 1)] = [1] * max(0, counted - 1)  # room for the dimensions that the indices add
        indices = [rng.choice((1, 2, 3)) for _ in range(counted)]
        whole = [*sizes[:axis], *indices, *sizes[axis + 1 :]]
        kept = whole[max(0, len(whole) - len(sizes)) :]
        target = [1] * (len(sizes) - len(kept)) + kept
        rank = len(sizes) if rng.random() < 0.85 else max(counted, rng.randint(1, 8))
        indices = [1] * (rank - counted) + indices
        return {"InputTensor": self.input(sizes), "IndicesTensor": self.input(indices, self.type_of("IndicesTensor")),
                "OutputTensor": self.output(target), "Axis": axis, "IndexDimensions": counted}  # fmt: skip

    def _scatter(self) -> Json:
        sizes = self.sizes()
        axis = self.rng.randrange(len(sizes))
        indices = list(sizes)
        indices[axis] = self.rng.choice((1, 2, 3, sizes[axis]))
        if self.rng.random() < 0.15:
            indices = [self.rng.randint(1, size) for size in sizes]
        return {"InputTensor": self.input(sizes), "IndicesTensor": self.input(indices, self.type_of("IndicesTensor")),
                "UpdatesTensor": self.input(indices), "OutputTensor": self.output(sizes), "Axis": axis}  # fmt: skip

    def _nonzero(self) -> Json:
        sizes, rng = self.sizes(most=3), self.rng
        leading = next((axis for axis, size in enumerate(sizes) if size != 1), len(sizes))
        width = len(sizes) if rng.random() < 0.7 else rng.randint(max(1, len(sizes) - leading), len(sizes))
        front = [1] * (rng.choice((0, 0, len(sizes) - 2, 2)))
        counts = [1] * rng.choice((1, len(sizes), 4))
        coordinates = [*front, math.prod(sizes), width]
        return {
            "InputTensor": self.input(sizes),
            "OutputCountTensor": self.output(counts, self.type_of("OutputCountTensor")),
            "OutputCoordinatesTensor": self.output(coordinates, self.type_of("OutputCoordinatesTensor")),
        }

    def _slice(self) -> Json:
        sizes, rng = self.sizes(), self.rng
        offsets = [rng.randrange(size) for size in sizes]
        windows = [rng.randint(1, size - offset) for size, offset in zip(sizes, offsets, strict=True)]
        steps = [rng.choice((1, 1, 2, -1, -2, 3)) for _ in sizes]
        target = [1 + (window - 1) // abs(step) for window, step in zip(windows, steps, strict=True)]
        if rng.random() < 0.1:
            target = [rng.randint(1, size) for size in target]
        return {"InputTensor": self.input(sizes), "OutputTensor": self.output(target), "DimensionCount": len(sizes),
                "InputWindowOffsets": offsets, "InputWindowSizes": windows, "InputWindowStrides": steps}  # fmt: skip

    def _top_k(self) -> Json:
        sizes = self.sizes()
        axis = self.rng.randrange(len(sizes))
        k = self.rng.randint(1, sizes[axis])
        target = [*sizes[:axis], k, *sizes[axis + 1 :]]
        return {
            "InputTensor": self.input(sizes), "OutputValueTensor": self.output(target),
            "OutputIndexTensor": self.output(target, self.type_of("OutputIndexTensor")), "Axis": axis, "K": k,
            "AxisDirection": self.rng.randint(0, 1),
        }  # fmt: skip

    def scalar(self) -> float:
        return self.rng.choice((0, 1, 2, 5)) if "INT" in self.data_type else self.rng.choice((0.0, 1.5, -2.0))

    def _sequence(self) -> Json:
        return {"OutputTensor": self.output(self.sizes()), "ValueDataType": NUMBERS[self.data_type],
                "ValueStart": self.scalar(), "ValueDelta": self.scalar()}  # fmt: skip

    def _padding(self) -> Json:
        sizes, rng = self.sizes(), self.rng
        mode = rng.randint(0, 4)
        most = [size - 1 if mode == 2 else size for size in sizes] if mode > 1 else [4] * len(sizes)
        paddings = [[rng.randint(0, limit) if rng.random() < 0.6 else 0 for limit in most] for _ in range(2)]
        if rng.random() < 0.1:
            paddings = [[rng.randint(0, 9) for _ in sizes] for _ in range(2)]
        target = [sum(three) for three in zip(sizes, *paddings, strict=True)]
        return {
            "InputTensor": self.input(sizes), "OutputTensor": self.output(target), "PaddingMode": mode,
            "PaddingValueDataType": NUMBERS[self.data_type], "PaddingValue": self.scalar(),
            "DimensionCount": len(sizes), "StartPadding": paddings[0], "EndPadding": paddings[1],
        }  # fmt: skip

    def parts(self) -> tuple[int, list[int], list[list[int]]]:
        sizes = self.sizes()
        axis = self.rng.randrange(len(sizes))
        lengths = [self.rng.randint(1, 4) for _ in range(self.rng.choice((1, 2, 2, 3, 5)))]
        sizes[axis] = sum(lengths)
        return axis, sizes, [[*sizes[:axis], length, *sizes[axis + 1 :]] for length in lengths]

    def _join(self) -> Json:
        axis, sizes, parts = self.parts()
        return {"InputCount": len(parts), "InputTensors": [self.input(part) for part in parts],
                "OutputTensor": self.output(sizes), "Axis": axis}  # fmt: skip

    def _split(self) -> Json:
        axis, sizes, parts = self.parts()
        return {"InputTensor": self.input(sizes), "OutputCount": len(parts),
                "OutputTensors": [self.output(part) for part in parts], "Axis": axis}  # fmt: skip

    def _gemm(self) -> Json:
        rng, self.rank = self.rng, max(2, self.rank)
        leading = self.sizes(self.rank - 2)
        m, k, n = (rng.randint(1, 5) for _ in range(3))
        a, b = rng.randint(0, 1), rng.randint(0, 1)
        target = [*leading, m, n]
        return {
            "ATensor": self.input([*leading, *((k, m) if a else (m, k))]),
            "BTensor": self.input([*leading, *((n, k) if b else (k, n))]),
            "CTensor": self.input(target) if rng.random() < 0.5 else None, "OutputTensor": self.output(target),
            "TransA": a, "TransB": b, "Alpha": rng.choice((1.0, 0.5, 0.0)), "Beta": rng.choice((1.0, 0.0, -2.0)),
            "FusedActivation": self.fused(),
        }  # fmt: skip

    def _convolution(self) -> Json:
        rng, self.rank = self.rng, max(3, self.rank)
        spatial, groups, backward = self.rank - 2, rng.choice((1, 1, 2)), rng.random() < 0.35
        batch, inputs, outputs = rng.randint(1, 3), groups * rng.randint(1, 3), groups * rng.randint(1, 3)
        window = [rng.randint(1, 3) for _ in range(spatial)]
        sizes = [rng.randint(3, 8) for _ in range(spatial)]
        strides, dilations = ([rng.choice((1, 1, 2)) for _ in range(spatial)] for _ in range(2))
        start, end = ([rng.choice((0, 0, 1)) for _ in range(spatial)] for _ in range(2))
        extra = [rng.choice((0, 0, 0, 1)) for _ in range(spatial)] if backward or rng.random() < 0.05 else [0] * spatial
        target: list[int] = []
        for size, taps, stride, dilation, front, back, more in zip(
            sizes, window, strides, dilations, start, end, extra, strict=True
        ):
            extent = (taps - 1) * dilation + 1
            if backward:
                target.append(max(1, (size - 1) * stride + extent - front - back + more))
            else:
                target.append(max(1, (size + front + back - extent) // stride + 1 + more))
        filters = [inputs, outputs // groups] if backward else [outputs, inputs // groups]
        bias = self.input([1, outputs, *[1] * spatial]) if rng.random() < 0.5 else None
        return {
            "InputTensor": self.input([batch, inputs, *sizes]), "FilterTensor": self.input([*filters, *window]),
            "BiasTensor": bias, "OutputTensor": self.output([batch, outputs, *target]), "Mode": rng.randint(0, 1),
            "Direction": int(backward), "DimensionCount": spatial, "Strides": strides, "Dilations": dilations,
            "StartPadding": start, "EndPadding": end, "OutputPadding": extra, "GroupCount": groups,
            "FusedActivation": self.fused(),
        }  # fmt: skip

    def _reduce(self) -> Json:
        sizes, function = self.sizes(), self.function or "SUM"
        axes = self.rng.sample(range(len(sizes)), self.rng.randint(1, len(sizes)))
        target = [1 if axis in axes else size for axis, size in enumerate(sizes)]
        index = function in ("ARGMAX", "ARGMIN")
        return {
            "Function": REDUCE_FUNCTIONS.index(function), "InputTensor": self.input(sizes),
            "OutputTensor": self.output(target, self.type_of("OutputTensor") if index else None),
            "AxisCount": len(axes), "Axes": axes,
        }  # fmt: skip


# ---- mutations: each changes the fields in place, and returns what it did, or "" if there was nothing to change ------


Mutation = Callable[[random.Random, OperatorFacts, Json], str]


def _tensors(facts: OperatorFacts, fields: Json) -> list[tuple[str, Json]]:
    found: list[tuple[str, Json]] = []
    for field in facts.fields:
        value = fields[field.name]
        if field.type == "TENSOR_DESC" and value is not None:
            found.append((field.name, value))
        elif field.type == "TENSOR_DESC_ARRAY" and value:
            found += [(field.name, part) for part in value]
    return found


def _of_type(rng: random.Random, facts: OperatorFacts, *types: str) -> FieldFacts | None:
    found = [field for field in facts.fields if field.type in types]
    return rng.choice(found) if found else None


def _on_tensor(name: str) -> Callable[[Callable[[random.Random, Json], bool]], Mutation]:
    def decorate(change: Callable[[random.Random, Json], bool]) -> Mutation:
        def mutation(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
            found = _tensors(facts, fields)
            if not found:
                return ""
            field, chosen = rng.choice(found)
            return f"{field}: {name}" if change(rng, chosen) else ""

        MUTATIONS[name] = mutation
        return mutation

    return decorate


MUTATIONS: dict[str, Mutation] = {}


def _resized(chosen: Json) -> None:
    """The size in bytes that goes with changed sizes or strides."""
    if isinstance(chosen["DataType"], str):
        size = byte_size(chosen["DataType"], chosen["Sizes"], chosen["Strides"])
        chosen["TotalTensorSizeInBytes"] = min(size, 2**64 - 4)


@_on_tensor("a size changed")
def _size(rng: random.Random, chosen: Json) -> bool:
    if not chosen["Sizes"]:
        return False
    axis = rng.randrange(len(chosen["Sizes"]))
    size = chosen["Sizes"][axis]
    chosen["Sizes"][axis] = rng.choice((0, 1, size + 1, size - 1, 2 * size, 7))
    _resized(chosen)
    return True


@_on_tensor("a size very large")
def _large_size(rng: random.Random, chosen: Json) -> bool:
    if not chosen["Sizes"]:
        return False
    chosen["Sizes"][rng.randrange(len(chosen["Sizes"]))] = rng.choice((2**16, 2**31, 2**32 - 1))
    _resized(chosen)
    return True


@_on_tensor("another DataType")
def _data_type(rng: random.Random, chosen: Json) -> bool:
    chosen["DataType"] = rng.choice((*BITS, *BITS, 0, 14, 255))
    _resized(chosen)
    return True


@_on_tensor("a dimension more")
def _more_dimensions(rng: random.Random, chosen: Json) -> bool:
    at = rng.choice((0, len(chosen["Sizes"])))
    chosen["Sizes"].insert(at, 1)
    if chosen["Strides"] is not None:
        chosen["Strides"].insert(at, rng.choice((0, 1, 100)))
    chosen["DimensionCount"] += 1
    _resized(chosen)
    return True


@_on_tensor("a dimension fewer")
def _fewer_dimensions(rng: random.Random, chosen: Json) -> bool:
    if not chosen["Sizes"]:
        return False
    at = rng.choice((0, len(chosen["Sizes"]) - 1))
    for name in ("Sizes", "Strides"):
        if chosen[name] is not None:
            del chosen[name][at]
    chosen["DimensionCount"] -= 1
    _resized(chosen)
    return True


@_on_tensor("no dimensions, or nine")
def _rank(rng: random.Random, chosen: Json) -> bool:
    sizes = rng.choice(([], [1] * 9, [1] * 5 + [2, 1, 1, 2]))
    chosen.update(Sizes=sizes, DimensionCount=len(sizes), Strides=None)
    _resized(chosen)
    return True


def _strides_mutation(kind: str) -> None:
    @_on_tensor(f"{kind} strides")
    def _(rng: random.Random, chosen: Json) -> bool:
        if not chosen["Sizes"]:
            return False
        chosen["Strides"] = strides_of_kind(rng, kind, chosen["Sizes"])
        _resized(chosen)
        return True


for _kind in ("permuted", "gaps", "broadcast", "overlapping", "arbitrary"):
    _strides_mutation(_kind)


@_on_tensor("a stride very large")
def _large_stride(rng: random.Random, chosen: Json) -> bool:
    if not chosen["Sizes"]:
        return False
    chosen["Strides"] = strides_of_kind(rng, "packed", chosen["Sizes"]) or []
    chosen["Strides"][rng.randrange(len(chosen["Sizes"]))] = rng.choice((2**16, 2**31, 2**32 - 1))
    _resized(chosen)
    return True


@_on_tensor("TotalTensorSizeInBytes changed")
def _total(rng: random.Random, chosen: Json) -> bool:
    size = chosen["TotalTensorSizeInBytes"]
    # 0 is left out: a document's 0 stands for the minimum, in the struct it is an error.
    totals = (size + 4, size - 4 or 4, size + 1, size + 2, 4, 2**34, 2**64 - 4)
    chosen["TotalTensorSizeInBytes"] = rng.choice(totals) % 2**64
    return True


@_on_tensor("Flags changed")
def _flags(rng: random.Random, chosen: Json) -> bool:
    chosen["Flags"] = rng.choice((1, 1, 2, 3, 2**30))
    return True


@_on_tensor("GuaranteedBaseOffsetAlignment changed")
def _alignment(rng: random.Random, chosen: Json) -> bool:
    chosen["GuaranteedBaseOffsetAlignment"] = rng.choice((1, 2, 3, 4, 6, 8, 12, 16, 256, 2**31, 2**32 - 1))
    return True


def _named(mutation: Mutation) -> Mutation:
    MUTATIONS[(mutation.__doc__ or "").rstrip(".")] = mutation
    return mutation


@_named
def _null_tensor(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """A tensor null."""
    field = _of_type(rng, facts, "TENSOR_DESC")
    if field is None or fields[field.name] is None or facts.name in READ_WITHOUT_LOOKING:
        return ""
    fields[field.name] = None
    return f"{field.name}: null"


@_named
def _optional_tensor(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """An optional field null or there."""
    found = [field for field in facts.fields if field.optional and fields[field.name] is not None]
    if not found:
        return ""
    field = rng.choice(found)
    fields[field.name] = None
    return f"{field.name}: null"


@_named
def _tensor_count(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """An array of tensors longer, shorter or empty."""
    field = _of_type(rng, facts, "TENSOR_DESC_ARRAY")
    if field is None or not fields[field.name]:
        return ""
    parts = fields[field.name]
    fields[field.name] = rng.choice((parts[:-1], [*parts, json.loads(json.dumps(parts[-1]))], [], parts * 20))
    fields[COUNT_OF_TENSORS[field.name]] = len(fields[field.name])
    return f"{field.name}: {len(fields[field.name])} tensors"


@_named
def _uint(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """A UINT at an edge."""
    found = [field for field in facts.fields if field.type in ("UINT", "BOOL") and field.name not in COUNTS]
    if not found:
        return ""
    field = rng.choice(found)
    value = fields[field.name]
    fields[field.name] = rng.choice((*UINT_EDGES, ENUMS.get(field.name, value + 1), max(0, value - 1), value + 1))
    return f"{field.name}: {fields[field.name]}"


@_named
def _enum(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """An enum of another value."""
    found = [field for field in facts.fields if field.name in ENUMS]
    if not found:
        return ""
    field = rng.choice(found)
    fields[field.name] = rng.randrange(ENUMS[field.name] + 1)
    return f"{field.name}: {fields[field.name]}"


@_named
def _integers(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """An entry of an array of integers at an edge."""
    field = _of_type(rng, facts, "UINT_ARRAY", "INT_ARRAY")
    if field is None or not fields[field.name]:
        return ""
    axis = rng.randrange(len(fields[field.name]))
    value = fields[field.name][axis]
    near = (value + 1, max(0, value - 1))
    fields[field.name][axis] = rng.choice((*(INT_EDGES if field.type == "INT_ARRAY" else UINT_EDGES), *near, *near))
    return f"{field.name}: {fields[field.name][axis]}"


@_named
def _length(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """Arrays of numbers longer or shorter, with their count."""
    found = [field for field in facts.fields if field.type in ("UINT_ARRAY", "INT_ARRAY", "FLOAT_ARRAY")]
    count = next((field for field in facts.fields if field.name in COUNTS and "put" not in field.name), None)
    if not found or count is None:
        return ""
    length = rng.choice((0, 1, fields[count.name] + 1, fields[count.name] - 1, 8, 9))
    if length < 0:
        return ""
    for field in found:
        values = fields[field.name] or [1]
        fields[field.name] = [*values, *[values[-1]] * length][:length]
    fields[count.name] = length
    return f"{count.name}: {length} with arrays"


@_named
def _floats(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """A FLOAT, or an entry of an array of them, at an edge."""
    field = _of_type(rng, facts, "FLOAT", "FLOAT_ARRAY", "SCALE_BIAS")
    if field is None or not fields[field.name]:
        return ""
    value = rng.choice(FLOAT_EDGES)
    if field.type == "FLOAT":
        fields[field.name] = value
    elif field.type == "SCALE_BIAS":
        fields[field.name][rng.choice(("Scale", "Bias"))] = value
    else:
        fields[field.name][rng.randrange(len(fields[field.name]))] = value
    return f"{field.name}: {value}"


@_named
def _scalar(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """A DML_SCALAR_UNION at an edge."""
    field = _of_type(rng, facts, "SCALAR_UNION")
    if field is None:
        return ""
    fields[field.name] = rng.choice((-1, 255, 256, 2**31, 2**63 - 1, 1e30, math.inf, math.nan))
    return f"{field.name}: {fields[field.name]}"


@_named
def _activation(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """Another fused activation."""
    field = _of_type(rng, facts, "OPERATOR_DESC")
    if field is None:
        return ""
    kinds = ("ACTIVATION_RELU", "ACTIVATION_GELU", "ELEMENT_WISE_ABS", "ELEMENT_WISE_IDENTITY")
    fields[field.name] = {"Type": rng.choice(kinds), "Desc": {}}
    return f"{field.name}: {fields[field.name]['Type']}"


@_named
def _whole_size(rng: random.Random, facts: OperatorFacts, fields: Json) -> str:
    """A DML_SIZE_2D at an edge."""
    field = _of_type(rng, facts, "SIZE_2D")
    if field is None:
        return ""
    name = rng.choice(("Width", "Height"))
    fields[field.name][name] = rng.choice(UINT_EDGES)
    return f"{field.name}.{name}: {fields[field.name][name]}"

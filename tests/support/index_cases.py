"""Calls whose data decide which elements are read or written, with indices, lengths and regions that lead outside.

Descriptors and nodes are legal; what stands in the tensors is not what their operators' pages ask for. No answers are
known here (`Case.expected` is empty): these calls are for what no answer may do, and for comparing one backend with
another. Needs NumPy and the packages under test, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.vectors import Case, cases_of

from tensorpost.descriptors import OperatorDesc, parse_operator
from tensorpost.onnx import OnnxNode
from tensorpost.values.operation import Operation, Slot

__all__ = ["ADDRESSING", "INDEXED", "any_numbers", "drawn_case", "hostile", "hostile_vectors", "indices"]

Array = NDArray[Any]

ADDRESSING: Mapping[str, tuple[str, ...]] = {
    "GATHER": ("indices",),
    "GATHER_ELEMENTS": ("indices",),
    "GATHER_ND": ("indices",),
    "GATHER_ND1": ("indices",),
    "SCATTER_ELEMENTS": ("indices",),
    "SCATTER_ND": ("indices",),
    "ONE_HOT": ("indices",),
    "REVERSE_SUBSEQUENCES": ("sequence_lengths",),
    "MAX_UNPOOLING": ("indices",),
    "MAX_POOLING_GRAD": ("input",),
    "MAX_POOLING1": ("input",),
    "MAX_POOLING2": ("input",),
    "ROI_POOLING": ("roi",),
    "ROI_ALIGN": ("roi", "batch_indices"),
    "ROI_ALIGN1": ("roi", "batch_indices"),
    "ROI_ALIGN_GRAD": ("roi", "batch_indices"),
    "RNN": ("sequence_lengths",),
    "GRU": ("sequence_lengths",),
    "LSTM": ("sequence_lengths",),
    "MULTIHEAD_ATTENTION": ("mask",),
    "MULTIHEAD_ATTENTION1": ("mask", "past_sequence_lengths"),
    "NONZERO_COORDINATES": ("input",),
    "TOP_K": ("input",),
    "TOP_K1": ("input",),
    "ARGMIN": ("input",),
    "ARGMAX": ("input",),
    "REDUCE": ("input",),
    "RANDOM_GENERATOR": ("input_state",),
    "ADAM_OPTIMIZER": ("training_step",),
    "QUANTIZE": ("quantization_0", "quantization_1"),
    "DEQUANTIZE": ("quantization_0", "quantization_1"),
    "DYNAMIC_QUANTIZE_LINEAR": ("input",),
}
"""DirectML's operators whose data decide what is read, what is written or how much of it, and the inputs that do."""

_INTEGERS = (
    0, 1, -1, 2, -2, 3, 7, 8, 127, 128, -128, -129, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, -(2**31),
    -(2**31) - 1, 2**32 - 1, 2**32, 2**32 + 1, 2**33, -(2**32), 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64 - 1,
    2**64 - 2,
)  # fmt: skip
_REALS = (
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, 7.0, 8.0, -9.0, 1e-45, 1e-7, 65504.0, 1e9, -1e9, 2.0**31, 2.0**32,
    -(2.0**31), 2.0**63, 2.0**64, 1e30, -1e30, 3.4e38, -3.4e38, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip


def any_numbers(random: np.random.Generator, count: int, dtype: np.dtype[Any]) -> Array:
    """Elements for inputs that address nothing: small numbers, and some of every kind."""
    if dtype.kind == "b":
        return random.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        return random.integers(0 if dtype.kind == "u" else -9, 10, count).astype(dtype)
    found = (random.integers(-32, 33, count) / 8).astype(dtype)
    if random.random() < 0.3:
        rare = random.random(count) < 0.1
        with np.errstate(over="ignore"):
            found[rare] = random.choice(np.array(_REALS), np.count_nonzero(rare)).astype(dtype)
    return found


def indices(random: np.random.Generator, count: int, dtype: np.dtype[Any], length: int = 4) -> Array:
    """Numbers around 0 and a length, and out of every range that an implementation may compute in.

    Args:
        random: where the numbers are from.
        count: how many.
        dtype: of the tensor; of floating-point types NaN and infinities are among them.
        length: elements of the axis.
    """
    share = random.choice([0.0, 0.2, 1.0], p=[0.2, 0.5, 0.3])  # of what is not simply inside
    if dtype.kind == "b":
        return random.integers(0, 2, count).astype(bool)
    if dtype.kind not in "iu":
        near = random.uniform(-2, length + 2, count)
        odd = np.array([*_REALS, length - 1, length, length + 0.5, -float(length)], np.float64)
        with np.errstate(over="ignore"):
            return np.where(random.random(count) < share, random.choice(odd, count), near).astype(dtype)
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    odd = [*_INTEGERS, length - 1, length, length + 1, -length, -length - 1, low, high, low + 1, high - 1]
    odd = [number for number in odd if low <= number <= high]
    inside = range(0 if low == 0 else max(-length, low), min(length, high + 1))
    return np.array(
        [
            odd[random.integers(len(odd))] if random.random() < share else inside[random.integers(len(inside))]
            for _ in range(count)
        ],
        dtype,
    )


def _fill(slot: Slot, random: np.random.Generator, addressing: Sequence[str], length: int) -> bytes:
    """A whole buffer, the bytes between elements as well."""
    layout = slot.layout
    name = layout.data_type.numpy_name
    if name == "bfloat16":
        return random.bytes(layout.size_in_bytes)
    dtype = np.dtype(name)
    count = -(-layout.size_in_bytes // dtype.itemsize)
    make = indices(random, count, dtype, length) if slot.name in addressing else any_numbers(random, count, dtype)
    return make.tobytes()[: layout.size_in_bytes]


def hostile(case: Case, random: np.random.Generator, addressing: Sequence[str]) -> Case:
    """The same call with other data: those inputs address elements that there are not."""
    lengths = [size for slot in case.desc.inputs for size in slot.layout.sizes] or [1]
    length = max(1, int(random.choice(lengths)))
    inputs = [
        _fill(slot, random, addressing, length) if slot.name in addressing or random.random() < 0.5 else data
        for slot, data in zip(case.desc.inputs, case.inputs, strict=True)
    ]
    return replace(case, inputs=tuple(inputs), expected=b"")


def hostile_vectors(random: np.random.Generator, operator: str) -> Iterator[Case]:
    """Every case of an operator's vectors, with other data."""
    for case in cases_of(operator):
        yield hostile(case, random, ADDRESSING.get(operator, ()))


# ---- calls of drawn sizes --------------------------------------------------------------------------------------------

_TYPES = ("FLOAT32", "FLOAT16", "INT8", "UINT8", "INT32", "UINT16", "INT64", "UINT64")
_INDEX_TYPES = ("INT32", "INT64", "UINT32", "UINT64")
Draw = np.random.Generator


def _one(random: Draw, among: Sequence[Any]) -> Any:
    return among[int(random.integers(len(among)))]


def _sizes(random: Draw, low: int = 1, high: int = 4) -> list[int]:
    return random.integers(1, 6, int(random.integers(low, high + 1))).tolist()


def _tensor(data_type: str, sizes: Sequence[int]) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


def _gather(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random)
    counted = int(random.integers(0, 2))
    shape = [1] * (len(sizes) - counted) + random.integers(1, 6, counted).tolist()
    axis = int(random.integers(len(sizes)))
    return {
        "InputTensor": _tensor(_one(random, _TYPES), sizes),
        "IndicesTensor": _tensor(_one(random, _INDEX_TYPES), shape),
        "Axis": axis,
        "IndexDimensions": counted,
    }


def _gather_elements(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random)
    axis, shape = int(random.integers(len(sizes))), list(sizes)
    shape[axis] = int(random.integers(1, 7))
    source, picked = _tensor(_one(random, _TYPES), sizes), _tensor(_one(random, _INDEX_TYPES), shape)
    return {"InputTensor": source, "IndicesTensor": picked, "Axis": axis}


def _gather_nd(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random)
    rank = len(sizes)
    shape = [*[1] * (rank - 2), int(random.integers(1, 6)), int(random.integers(1, rank + 1))]
    shape = shape[-rank:]
    return {
        "InputTensor": _tensor(_one(random, _TYPES), sizes),
        "IndicesTensor": _tensor(_one(random, _INDEX_TYPES), shape),
        "InputDimensionCount": rank,
        "IndicesDimensionCount": min(2, rank),
    }


def _scatter_elements(random: Draw) -> dict[str, Any]:
    sizes, kind = _sizes(random), _one(random, _TYPES)
    axis, shape = int(random.integers(len(sizes))), list(sizes)
    shape[axis] = int(random.integers(1, sizes[axis] + 1))
    return {
        "InputTensor": _tensor(kind, sizes), "IndicesTensor": _tensor(_one(random, _INDEX_TYPES), shape),
        "UpdatesTensor": _tensor(kind, shape), "Axis": axis,
    }  # fmt: skip


def _scatter_nd(random: Draw) -> dict[str, Any]:
    sizes, kind, rows = _sizes(random, 2, 2), _one(random, _TYPES), int(random.integers(1, 4))
    length = int(random.integers(1, 3))
    updates = [rows, sizes[1]] if length == 1 else [1, rows]
    return {
        "InputTensor": _tensor(kind, sizes), "IndicesTensor": _tensor(_one(random, _INDEX_TYPES), [rows, length]),
        "UpdatesTensor": _tensor(kind, updates), "InputDimensionCount": 2, "IndicesDimensionCount": 2,
    }  # fmt: skip


def _one_hot(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random)
    axis, kind, rank = int(random.integers(len(sizes))), _one(random, _TYPES), len(sizes)
    shape = [1 if at == axis else size for at, size in enumerate(sizes)]
    return {
        "IndicesTensor": _tensor(_one(random, _INDEX_TYPES), shape),
        "ValuesTensor": _tensor(kind, [1] * (rank - 1) + [2]),
        "OutputTensor": _tensor(kind, sizes), "Axis": axis,
    }  # fmt: skip


def _reverse(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random)
    axis = int(random.integers(len(sizes)))
    shape = [1 if at == axis else size for at, size in enumerate(sizes)]
    lengths = _tensor(_one(random, _INDEX_TYPES), shape)
    return {"InputTensor": _tensor(_one(random, _TYPES), sizes), "SequenceLengthsTensor": lengths, "Axis": axis}


def _max_unpooling(random: Draw) -> dict[str, Any]:
    kind, sizes = _one(random, ("FLOAT32", "FLOAT16", "INT64", "UINT64", "INT8", "UINT8")), _sizes(random, 4, 4)
    output = [size + int(random.integers(0, 3)) for size in sizes]
    return {
        "InputTensor": _tensor(kind, sizes), "IndicesTensor": _tensor(_one(random, ("UINT32", "UINT64")), sizes),
        "OutputTensor": _tensor(kind, output),
    }  # fmt: skip


def _roi_pooling(random: Draw) -> dict[str, Any]:
    kind, size = _one(random, ("FLOAT32", "FLOAT16")), {"Width": int(random.integers(1, 5)), "Height": 3}
    rois = _tensor(kind, [1, 1, int(random.integers(1, 5)), 5])
    scale = float(_one(random, (1, 0.5, 0.0625, 3, 1e30)))
    return {
        "InputTensor": _tensor(kind, _sizes(random, 4, 4)), "ROITensor": rois, "SpatialScale": scale,
        "PooledSize": size,
    }  # fmt: skip


def _aligned(random: Draw) -> dict[str, Any]:
    most = int(_one(random, (1, 2, 5, 2**32 - 1)))
    return {
        "ReductionFunction": _one(random, ("AVERAGE", "MAX")),
        "InterpolationMode": _one(random, ("NEAREST_NEIGHBOR", "LINEAR")),
        "SpatialScaleX": float(_one(random, (1, 0.5, 0, 1e30))), "SpatialScaleY": float(_one(random, (1, 2, 0))),
        "InputPixelOffset": 0.5, "OutputPixelOffset": -0.5, "MinimumSamplesPerOutput": min(most, 1),
        "MaximumSamplesPerOutput": most, "AlignRegionsToCorners": bool(random.integers(2)),
    }  # fmt: skip


def _roi_align1(random: Draw) -> dict[str, Any]:
    kind, source, count = _one(random, ("FLOAT32", "FLOAT16")), _sizes(random, 4, 4), int(random.integers(1, 5))
    return {
        "InputTensor": _tensor(kind, source), "ROITensor": _tensor(kind, [count, 4]),
        "BatchIndicesTensor": _tensor("UINT32", [count]), "OutputTensor": _tensor(kind, [count, source[1], 3, 2]),
        "OutOfBoundsInputValue": float(random.integers(0, 2)), **_aligned(random),
    }  # fmt: skip


def _roi_align_grad(random: Draw) -> dict[str, Any]:
    kind, source, count = _one(random, ("FLOAT32", "FLOAT16")), _sizes(random, 4, 4), int(random.integers(1, 5))
    return {
        "InputTensor": _tensor(kind, source), "InputGradientTensor": _tensor(kind, [count, source[1], 3, 2]),
        "ROITensor": _tensor(kind, [count, 4]), "BatchIndicesTensor": _tensor("UINT32", [count]),
        "OutputGradientTensor": _tensor(kind, source), "OutputROIGradientTensor": _tensor(kind, [count, 4]),
        **_aligned(random),
    }  # fmt: skip


_DIRECTML: Mapping[str, Callable[[Draw], dict[str, Any]]] = {
    "GATHER": _gather,
    "GATHER_ELEMENTS": _gather_elements,
    "GATHER_ND": _gather_nd,
    "SCATTER_ELEMENTS": _scatter_elements,
    "SCATTER_ND": _scatter_nd,
    "ONE_HOT": _one_hot,
    "REVERSE_SUBSEQUENCES": _reverse,
    "MAX_UNPOOLING": _max_unpooling,
    "ROI_POOLING": _roi_pooling,
    "ROI_ALIGN1": _roi_align1,
    "ROI_ALIGN_GRAD": _roi_align_grad,
}

_ONNX_TYPES = ("float", "float16", "int8", "uint8", "int32", "int64", "uint64")


def _onnx(kind: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"data_type": kind, "shape": list(shape)}


def _onnx_gather(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random)
    picked = _onnx(_one(random, ("int32", "int64")), _sizes(random, 1, 2))
    axis = int(random.integers(-len(sizes), len(sizes)))
    return {
        "inputs": {"data": _onnx(_one(random, _ONNX_TYPES), sizes), "indices": picked},
        "attributes": {"axis": axis},
    }


def _onnx_gather_elements(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random)
    axis, shape = int(random.integers(len(sizes))), list(sizes)
    shape[axis] = int(random.integers(1, 7))
    picked = _onnx(_one(random, ("int32", "int64")), shape)
    return {
        "inputs": {"data": _onnx(_one(random, _ONNX_TYPES), sizes), "indices": picked},
        "attributes": {"axis": axis},
    }


def _onnx_gather_nd(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random)
    picked = _onnx("int64", [int(random.integers(1, 5)), int(random.integers(1, len(sizes) + 1))])
    return {"inputs": {"data": _onnx(_one(random, _ONNX_TYPES), sizes), "indices": picked}}


def _onnx_scatter_elements(random: Draw) -> dict[str, Any]:
    made, kind = _onnx_gather_elements(random), _one(random, ("float", "int32", "int64"))
    shape = [min(pair) for pair in zip(*[made["inputs"][name]["shape"] for name in ("data", "indices")], strict=True)]
    made["inputs"] = {
        "data": _onnx(kind, made["inputs"]["data"]["shape"]), "indices": _onnx("int64", shape),
        "updates": _onnx(kind, shape),
    }  # fmt: skip
    made["attributes"]["reduction"] = _one(random, ("none", "add", "mul", "max", "min"))
    return made


def _onnx_scatter_nd(random: Draw) -> dict[str, Any]:
    sizes, kind, rows = _sizes(random), _one(random, ("float", "int32", "int64")), int(random.integers(1, 5))
    length = int(random.integers(1, len(sizes) + 1))
    inputs = {
        "data": _onnx(kind, sizes), "indices": _onnx("int64", [rows, length]),
        "updates": _onnx(kind, [rows, *sizes[length:]]),
    }  # fmt: skip
    return {"inputs": inputs, "attributes": {"reduction": _one(random, ("none", "add", "mul", "max", "min"))}}


def _onnx_one_hot(random: Draw) -> dict[str, Any]:
    picked = _onnx(_one(random, ("int32", "int64", "float")), _sizes(random, 1, 2))
    return {"inputs": {"indices": picked, "depth": int(random.integers(1, 9)), "values": _onnx("float", [2])}}


def _onnx_reverse(random: Draw) -> dict[str, Any]:
    sizes = _sizes(random, 2, 4)
    time = int(random.integers(2))
    lengths = _onnx("int64", [sizes[1 - time]])
    inputs = {"input": _onnx(_one(random, _ONNX_TYPES), sizes), "sequence_lens": lengths}
    return {"inputs": inputs, "attributes": {"batch_axis": 1 - time, "time_axis": time}}


_ONNX: Mapping[str, tuple[Callable[[Draw], dict[str, Any]], str]] = {
    "Gather": (_onnx_gather, "indices"),
    "GatherElements": (_onnx_gather_elements, "indices"),
    "GatherND": (_onnx_gather_nd, "indices"),
    "ScatterElements": (_onnx_scatter_elements, "indices"),
    "ScatterND": (_onnx_scatter_nd, "indices"),
    "OneHot": (_onnx_one_hot, "indices"),
    "ReverseSequence": (_onnx_reverse, "sequence_lens"),
}
_OPSET = 18

INDEXED = (*ADDRESSING, *_ONNX)
"""All operators that `drawn_case` makes calls of, DirectML's and ONNX's."""


def drawn_case(random: Draw, operator: str) -> Case:
    """A call of one of `INDEXED`: of drawn sizes and types, or one of the vectors', with hostile data."""
    if operator in _ONNX:
        make, name = _ONNX[operator]
        node = OnnxNode.from_json({"op_type": operator, "opset": _OPSET, **make(random)})
        return _filled(node, random, (name,))
    addressing = ADDRESSING[operator]
    if operator in _DIRECTML and random.random() < 0.7:
        return _filled(_descriptor(operator, _DIRECTML[operator](random)), random, addressing)
    return hostile(_one(random, cases_of(operator)), random, addressing)


def _descriptor(operator: str, fields: Mapping[str, Any]) -> OperatorDesc:
    return parse_operator({"type": operator, "desc": dict(fields)}, complete=True)


def _filled(operation: Operation, random: Draw, addressing: Sequence[str]) -> Case:
    blank = Case(f"{operation.name}, drawn", operation, tuple([b""] * len(operation.inputs)), b"")
    lengths = [size for slot in operation.inputs for size in slot.layout.sizes] or [1]
    length = max(1, int(random.choice(lengths)))
    return replace(blank, inputs=tuple([_fill(slot, random, addressing, length) for slot in operation.inputs]))

"""Every row of `to_onnx` on ONNX Runtime's CPU provider, held against the backend numpy: the same bytes, or sums within
a few units in the last place; and what has no row is refused with a reason."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost import descriptors as dml
from tensorpost.descriptors import operator_class
from tensorpost_server.backends import Backend
from tensorpost_server.backends.directml import DirectmlBackend
from tensorpost_server.backends.directml.to_onnx import _ROWS, to_onnx
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import Plan, make_plan

needs_onnxruntime = pytest.mark.skipif(
    find_spec("onnxruntime") is None, reason="onnxruntime has no wheel for every Python"
)
Call = tuple[str, dict[str, Any]]
BROADCAST = {"Strides": [0, 1, 3]}


def t(data_type: str, *sizes: int, **fields: Any) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes), **fields}


def unary(name: str, *types: str, **fields: Any) -> list[Call]:
    return [(name, {"InputTensor": t(kind, 2, 3, 4), **fields}) for kind in types]


def binary(name: str, *types: str) -> list[Call]:
    return [
        (f"ELEMENT_WISE_{name}", {"ATensor": t(kind, 2, 3, 4), "BTensor": t(kind, 2, 3, 4, **BROADCAST)})
        for kind in types
    ]


IMAGE = {"InputTensor": t("FLOAT32", 2, 4, 7, 6), "FilterTensor": t("FLOAT32", 6, 2, 3, 2), "GroupCount": 2}
EXACT: list[Call] = [
    *unary("ELEMENT_WISE_IDENTITY", "FLOAT32", "FLOAT16", "INT32", "UINT8"),
    *unary("ELEMENT_WISE_ABS", "FLOAT32", "FLOAT16", "INT32"),
    *unary("ELEMENT_WISE_CLIP", "FLOAT32", "FLOAT16", "INT8", "UINT32", Min=-1.5, Max=2.25),
    *[call for name in ("ADD", "SUBTRACT", "MULTIPLY", "MAX", "MIN")
      for call in binary(name, "FLOAT32", "FLOAT16", "INT32", "UINT8")],
    *binary("DIVIDE", "FLOAT32", "FLOAT16"),
    *[("ELEMENT_WISE_IF", {"ConditionTensor": t("UINT8", 2, 5), "ATensor": t(kind, 2, 5), "BTensor": t(kind, 2, 5)})
      for kind in ("FLOAT32", "UINT32", "INT64", "UINT8")],
    *unary("ACTIVATION_RELU", "FLOAT32", "FLOAT16"),
    *[("CAST", {"InputTensor": t(source, 20), "OutputTensor": t(target, 20)})
      for source, target in (("FLOAT32", "FLOAT16"), ("INT32", "UINT8"), ("INT8", "FLOAT32"), ("UINT16", "INT64"))],
    *[("SLICE1", {"InputTensor": t(kind, 5, 7), "InputWindowOffsets": [0, 1], "InputWindowSizes": [5, 6],
                  "InputWindowStrides": steps})
      for kind in ("FLOAT32", "UINT16", "INT64") for steps in ([1, 2], [-1, -3], [2, -1])],
    ("SLICE1", {"InputTensor": t("UINT8", 5, 7), "OutputTensor": t("UINT8", 2, 2), "InputWindowOffsets": [0, 1],
                "InputWindowSizes": [5, 6], "InputWindowStrides": [-2, 2]}),
    ("JOIN", {"InputTensors": [t("FLOAT16", 2, length) for length in (3, 1, 4)], "Axis": 1}),
    ("SPLIT", {"InputTensor": t("INT8", 2, 8), "OutputTensors": [t("INT8", 2, 3), t("INT8", 2, 5, Strides=[7, 1])],
               "Axis": 1}),
    *[("PADDING1", {"InputTensor": t(kind, 3, 4), "PaddingMode": mode, "PaddingValue": value, "StartPadding": [1, 2],
                    "EndPadding": [2, 0]})
      for kind, value in (("FLOAT32", -1.5), ("INT8", -3)) for mode in ("CONSTANT", "EDGE", "REFLECTION", "WRAP")],
    *[("GATHER", {"InputTensor": t("FLOAT16", 5, 3), "IndicesTensor": t(kind, 1, 4), "Axis": axis,
                  "IndexDimensions": 1})
      for kind in ("INT32", "INT64", "UINT32") for axis in (0, 1)],
    ("GATHER", {"InputTensor": t("FLOAT32", 1, 5, 3), "IndicesTensor": t("INT32", 1, 2, 4), "Axis": 1,
                "IndexDimensions": 2}),
    ("SCATTER_ELEMENTS", {"InputTensor": t("FLOAT32", 5, 3), "IndicesTensor": t("UINT32", 5, 2),
                          "UpdatesTensor": t("FLOAT32", 5, 2), "Axis": 1}),
    *[("REDUCE", {"Function": function, "InputTensor": t(kind, 2, 3, 4), "Axes": [1]})
      for kind in ("FLOAT32", "INT32") for function in ("ARGMAX", "ARGMIN", "MAX", "MIN")],
    *[("REDUCE", {"Function": function, "InputTensor": t("INT32", 2, 3, 4), "Axes": [0, 2]})
      for function in ("L1", "SUM", "SUM_SQUARE")],
    *[("TOP_K1", {"InputTensor": t(kind, 2, 9), "Axis": 1, "K": 4, "AxisDirection": direction})
      for kind in ("FLOAT32", "FLOAT16", "INT32", "INT8") for direction in ("INCREASING", "DECREASING")],
]  # fmt: skip
SUMS: list[Call] = [
    *unary("ELEMENT_WISE_EXP", "FLOAT32", "FLOAT16"),
    *unary("ACTIVATION_GELU", "FLOAT32", "FLOAT16"),
    *[("REDUCE", {"Function": function.name, "InputTensor": t("FLOAT32", 2, 3, 4), "Axes": [0, 2]})
      for function in dml.ReduceFunction if not function.is_index],
    ("GEMM", {"ATensor": t("FLOAT32", 2, 3, 4), "BTensor": t("FLOAT32", 2, 4, 5)}),
    ("GEMM", {"ATensor": t("FLOAT32", 1, 1, 4, 3), "BTensor": t("FLOAT32", 1, 1, 5, 4), "TransA": 1, "TransB": 1,
              "CTensor": t("FLOAT32", 1, 1, 3, 5, Strides=[0, 0, 0, 1]), "Alpha": 0.5, "Beta": -2}),
    ("CONVOLUTION", IMAGE),
    ("CONVOLUTION", {**IMAGE, "BiasTensor": t("FLOAT32", 1, 6, 1, 1), "Strides": [2, 1], "Dilations": [2, 1],
                     "StartPadding": [1, 0], "EndPadding": [0, 2]}),
    ("CONVOLUTION", {"InputTensor": t("FLOAT32", 2, 6, 4, 5), "FilterTensor": t("FLOAT32", 6, 2, 3, 2),
                     "BiasTensor": t("FLOAT32", 1, 4, 1, 1), "GroupCount": 2, "Direction": "BACKWARD",
                     "Strides": [2, 2], "StartPadding": [1, 0]}),
]  # fmt: skip
PADDED = {"InputTensor": t("FLOAT32", 3), "StartPadding": [3], "EndPadding": [0]}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (*binary("DIVIDE", "INT32")[0], "ONNX leaves open what an integer divided by 0 is"),
    (*unary("ELEMENT_WISE_CLIP", "FLOAT32", Min=1, Max=0)[0], "ONNX leaves open which bound wins"),
    (*unary("ELEMENT_WISE_ABS", "FLOAT32", ScaleBias={"Scale": 2, "Bias": 0})[0], "no ONNX node has a ScaleBias"),
    ("CAST", {"InputTensor": t("FLOAT32", 2), "OutputTensor": t("INT8", 2)}, "ONNX leaves open what numbers become"),
    ("PADDING1", {**PADDED, "PaddingMode": "SYMMETRIC"}, "ONNX's Pad has no mode SYMMETRIC"),
    ("PADDING1", {**PADDED, "PaddingMode": "REFLECTION"}, "ONNX leaves open how reflect goes on"),
    ("GATHER", {"InputTensor": t("FLOAT32", 5), "IndicesTensor": t("UINT64", 2), "Axis": 0}, "no indices of type UINT"),
    ("REDUCE", {"Function": "ARGMAX", "InputTensor": t("FLOAT32", 2, 2), "Axes": [0, 1]}, "ArgMax takes one axis"),
    ("GEMM", {"ATensor": t("FLOAT32", 2, 3, 4), "BTensor": t("FLOAT32", 2, 4, 5), "Alpha": 2}, "Gemm has two dim"),
    ("GEMM", {"ATensor": t("FLOAT32", 3, 4), "BTensor": t("FLOAT32", 4, 5),
              "FusedActivation": {"Type": "ACTIVATION_RELU"}}, "no ONNX node has a FusedActivation"),
    ("CONVOLUTION", {**IMAGE, "Mode": "CONVOLUTION"}, "do not turn the filter round"),
    ("CONVOLUTION", {**IMAGE, "OutputPadding": [1, 0]}, "no output that is larger"),
    ("CONVOLUTION", {"InputTensor": t("FLOAT32", 1, 1, 4), "FilterTensor": t("FLOAT32", 1, 1, 3),
                     "Direction": "BACKWARD", "OutputPadding": [1]}, "append no zeros"),
    ("FILL_VALUE_SEQUENCE", {"OutputTensor": t("FLOAT32", 3), "ValueStart": 1, "ValueDelta": 2}, "no ONNX node is"),
]  # fmt: skip


def plan_of(call: Call) -> Plan:
    name, fields = call
    return make_plan(operator_class(name).completed(fields), 1 << 20)


def data(plan: Plan) -> list[NDArray[Any]]:
    """Numbers small enough for no sum to overflow; indices without repetition along the last axis."""
    rng = np.random.default_rng(1)
    found: list[NDArray[Any]] = []
    for slot in plan.inputs:
        dtype = slot.layout.data_type.dtype
        count = slot.layout.size_in_bytes // dtype.itemsize
        if slot.name == "indices":
            numbers = np.arange(count) * 2 % 3
        elif dtype.kind == "f":
            numbers = np.abs(rng.normal(size=count)) + 0.1 if plan.operator == "REDUCE" else rng.normal(size=count) * 3
        else:
            numbers = rng.integers(0 if dtype.kind == "u" else -20, 20, count)
        found.append(numbers.astype(dtype))
    return found


def outcome(backend: Backend, plan: Plan, arrays: list[NDArray[Any]]) -> list[bytes]:
    run = backend.start(plan, [memoryview(array.tobytes()) for array in arrays])
    blocks = [b""] * len(plan.outputs)
    for index in range(len(plan.slices)):
        blocks[plan.slices.piece(index).output] += bytes(run.compute(index))
    run.close()
    return blocks


def named(call: Call) -> str:
    return call[0] + "-" + str(call[1]).replace("'", "").replace(" ", "")[:80]


@pytest.fixture(scope="module")
def backend() -> DirectmlBackend:
    return DirectmlBackend(provider="CPUExecutionProvider")


@needs_onnxruntime
@pytest.mark.parametrize("call", EXACT, ids=named)
def test_the_same_bytes(backend: DirectmlBackend, call: Call) -> None:
    plan = plan_of(call)
    arrays = data(plan)

    assert backend.refuses(plan) is None
    assert outcome(backend, plan, arrays) == outcome(NumpyBackend(), plan, arrays)


@needs_onnxruntime
@pytest.mark.parametrize("call", SUMS, ids=named)
def test_the_same_but_for_rounding(backend: DirectmlBackend, call: Call) -> None:
    plan = plan_of(call)
    arrays = data(plan)
    dtype = plan.outputs[0].layout.data_type.dtype

    assert backend.refuses(plan) is None
    found, expected = (
        np.frombuffer(outcome(one, plan, arrays)[0], dtype).astype(float) for one in (backend, NumpyBackend())
    )
    # Terms of sums are about 10; a few units in their last place.
    assert np.abs(found - expected).max() <= 64 * float(np.finfo(dtype).eps)
    assert len(np.unique(expected)) > 1


@pytest.mark.parametrize(("name", "fields", "reason"), REFUSED, ids=[f"{name}-{why}" for name, _, why in REFUSED])
def test_what_no_node_computes(name: str, fields: dict[str, Any], reason: str) -> None:
    found = to_onnx(plan_of((name, fields)))

    assert isinstance(found, str)
    assert reason in found


def test_every_row_is_tried() -> None:
    elsewhere = {"TILE", "UPSAMPLE_2D", "RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3"}

    assert {name for name, _ in [*EXACT, *SUMS]} == _ROWS.keys() - elsewhere


@needs_onnxruntime
def test_a_condition_holds_where_it_is_not_0(backend: DirectmlBackend) -> None:
    """An ONNX bool has one value for true, DirectML's condition 255."""
    fields = {"ConditionTensor": t("UINT8", 4), "ATensor": t("INT32", 4), "BTensor": t("INT32", 4)}
    plan = plan_of(("ELEMENT_WISE_IF", fields))
    arrays = [np.array([0, 1, 2, 255], np.uint8), np.arange(4, dtype=np.int32), np.full(4, 9, np.int32)]

    (found,) = outcome(backend, plan, arrays)

    assert np.frombuffer(found, np.int32).tolist() == [9, 1, 2, 3]


@needs_onnxruntime
def test_every_bit_of_a_moved_element_arrives(backend: DirectmlBackend) -> None:
    """A signalling NaN among floats is changed by arithmetic on some processors, never by a move."""
    plan = plan_of(("JOIN", {"InputTensors": [t("FLOAT32", 1), t("FLOAT32", 1)], "Axis": 0}))
    payloads = np.array([0x7F800001, 0xFFC12345], np.uint32)

    assert outcome(backend, plan, [payloads[:1], payloads[1:]]) == [payloads.tobytes()]

"""An operator's outputs by the numpy backend, and a node's by ONNX Runtime on the CPU, to compare them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost.descriptors import OperatorDesc, parse_operator
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

__all__ = ["completed", "onnxruntime", "run", "tensor"]

Array = NDArray[Any]


def tensor(x: Array) -> dict[str, Any]:
    return {"DataType": x.dtype.name.upper(), "Sizes": list(x.shape)}


def completed(operator: str, **fields: Any) -> OperatorDesc:
    return parse_operator({"type": operator, "desc": fields}, complete=True)


def run(desc: OperatorDesc, *inputs: Array, slice_bytes: int = 1 << 20) -> list[Array]:
    plan = make_plan(desc, slice_bytes)
    started = NumpyBackend().start(plan, [np.ascontiguousarray(x).reshape(-1).view(np.uint8).data for x in inputs])
    found = [bytearray() for _ in plan.outputs]
    for index, piece in enumerate(plan.slices):
        found[piece.output] += bytes(started.compute(index))
    return [
        np.frombuffer(made, slot.layout.data_type.dtype).reshape(slot.layout.sizes)
        for made, slot in zip(found, plan.outputs, strict=True)
    ]


def onnxruntime(op_type: str, inputs: Mapping[str, Array], outputs: int = 1, *, opset: int, **attributes: Any) -> Any:
    """A node's outputs by ONNX Runtime on the CPU; the test is skipped where it is missing."""
    onnx: Any = pytest.importorskip("onnx", reason="onnx has no wheel for every Python")
    ort: Any = pytest.importorskip("onnxruntime", reason="onnxruntime has no wheel for every Python")
    helper = importlib.import_module("onnx.helper")
    names = [f"y{index}" for index in range(outputs)]
    domain = attributes.pop("domain", "")
    node = helper.make_node(op_type, list(inputs), names, domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
        if name
    ]
    graph = helper.make_graph([node], "node", given, [onnx.ValueInfoProto(name=name) for name in names])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(x) for name, x in inputs.items() if name})

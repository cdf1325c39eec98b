"""ONNX nodes for tests: read from a NodeProto, computed with NumPy's kernels, or by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.onnx import OnnxNode
from tensorpost_server.backends.base import Backend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import Plan, make_plan

__all__ = ["compute", "data_arrays", "model_of", "run_plan", "runtime"]


def compute(
    node: OnnxNode, arrays: Mapping[str, NDArray[Any]], backend: Backend | None = None, slice_bytes: int = 1 << 22
) -> list[NDArray[Any]]:
    """The outputs of a node, from its tensors by name: planned, cut, computed."""
    return run_plan(make_plan(node, slice_bytes), arrays, backend or NumpyBackend())


def run_plan(plan: Plan, arrays: Mapping[str, NDArray[Any]], backend: Backend) -> list[NDArray[Any]]:
    """The outputs of a plan, from its tensors by name."""
    memory = [np.ascontiguousarray(arrays[slot.name]).reshape(-1).view(np.uint8).data for slot in plan.inputs]
    run = backend.start(plan, memory)
    blocks = b"".join([bytes(run.compute(index)) for index in range(len(plan.slices))])
    run.close()
    found: list[NDArray[Any]] = []
    for slot in plan.outputs:
        size = slot.layout.size_in_bytes
        found.append(slot.layout.view(blocks[:size]))
        blocks = blocks[size:]
    assert not blocks
    return found


def data_arrays(node: OnnxNode, names: Sequence[str], values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays of a node's tensors by formal name, from those of a graph; `names` are a NodeProto's inputs."""
    formal = [slot.name for slot in node.schema.inputs if not slot.variadic]
    for slot in node.schema.inputs:
        if slot.variadic:
            formal += [f"{slot.name}_{index}" for index in range(len(names) - len(formal))]
    by_formal = {own: values[name] for own, name in zip(formal, names, strict=False) if name}
    return {slot.name: by_formal[slot.name] for slot in node.inputs}


def model_of(op_type: str, opset: int, arrays: Sequence[Any], outputs: int, attributes: Mapping[str, Any]) -> Any:
    """A model of one node with these arrays as its inputs, None for one that is left out."""
    import onnx
    from onnx import helper

    names = [f"x{index}" if array is not None else "" for index, array in enumerate(arrays)]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
        if array is not None
    ]
    made = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, made, **attributes)
    results = [helper.make_empty_tensor_value_info(name) for name in made]
    graph = helper.make_graph([node], "one", given, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def runtime(op_type: str, opset: int, arrays: Sequence[Any], outputs: int = 1, **attributes: Any) -> list[Any]:
    """What ONNX Runtime's CPU provider makes of a node, on inputs by position."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = model_of(op_type, opset, arrays, outputs, attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    found: Any = session.run(None, {f"x{index}": array for index, array in enumerate(arrays) if array is not None})
    return list(found)

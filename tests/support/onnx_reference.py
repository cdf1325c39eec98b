"""ONNX's reference evaluator on one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["reference_outputs"]


def reference_outputs(
    op_type: str, opset: int, arrays: Sequence[NDArray[Any]], attributes: Mapping[str, Any], outputs: int = 1
) -> list[NDArray[Any]]:
    """What a node computes.

    Args:
        op_type: ONNX's name of the operator.
        opset: its version.
        arrays: the inputs, none left out.
        attributes: of the node.
        outputs: how many it has.

    Raises:
        ModuleNotFoundError: the package onnx is not installed.
    """
    from onnx.reference import ReferenceEvaluator

    from onnx import helper

    names = [f"x{index}" for index in range(len(arrays))]
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
    made = [f"y{index}" for index in range(outputs)]
    infos = [helper.make_empty_tensor_value_info(name) for name in made]
    graph = helper.make_graph([helper.make_node(op_type, names, made, **attributes)], "one", inputs, infos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    return [np.asarray(array) for array in found]

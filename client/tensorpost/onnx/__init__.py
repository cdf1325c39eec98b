"""ONNX nodes as frozen values. The server imports this package too: both sides must agree on it.

`ONNX_OPERATORS` lists every version of every operator there is, `OnnxNode` reads any node, and `lower` says whether
DirectML can express it.
"""

from __future__ import annotations

from .lowering import Lowering, Verdict, lower
from .node import OnnxNode
from .resize import ResizeAxis, Resizing
from .schemas import NEWEST_OPSET, ONNX_OPERATORS, OnnxAttribute, OnnxInput, OnnxOutput, OnnxSchema, find_schema
from .tensor import OnnxTensor
from .tile import Tiling

__all__ = [
    "NEWEST_OPSET",
    "ONNX_OPERATORS",
    "Lowering",
    "OnnxAttribute",
    "OnnxInput",
    "OnnxNode",
    "OnnxOutput",
    "OnnxSchema",
    "OnnxTensor",
    "ResizeAxis",
    "Resizing",
    "Tiling",
    "Verdict",
    "find_schema",
    "lower",
]

"""ONNX nodes as frozen values. The server imports this package too: both sides must agree on it.

`ONNX_OPERATORS` lists every version of every operator there is, `OnnxNode` reads any node, and `lower` says whether
DirectML can express it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .node import OnnxNode
from .resize import ResizeAxis, Resizing
from .schemas import NEWEST_OPSET, ONNX_OPERATORS, OnnxAttribute, OnnxInput, OnnxOutput, OnnxSchema, find_schema
from .tensor import OnnxTensor
from .tile import Tiling

if TYPE_CHECKING:
    from .lowering import Lowering, Verdict, lower
else:  # with DirectML's descriptors, which take long to load
    import importlib

    def __getattr__(name: str) -> Any:
        if name in ("lowering", "operator_lowering"):
            return importlib.import_module(f".{name}", __name__)
        if name not in ("Lowering", "Verdict", "lower"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(".lowering", __name__), name)


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

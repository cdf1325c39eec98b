"""DirectML on Windows, through ONNX Runtime: one operator, one cached session of one node.

plan -> `express` (a node, or why there is none) -> `model` (its bytes) -> `sessions` (made once, then kept) -> a run.
Everything up to running works on any system; `DirectmlBackend` opens where ONNX Runtime has the execution provider.
"""

from .backend import DirectmlBackend
from .express import express
from .model import Constant, Node, model_bytes

__all__ = ["Constant", "DirectmlBackend", "Node", "express", "model_bytes"]

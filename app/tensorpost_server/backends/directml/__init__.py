"""DirectML on Windows, through ONNX Runtime: one operator, one cached session of one node.

plan -> `to_onnx` (a node, or why there is none) -> `model` (its bytes) -> `sessions` (made once, then kept) -> a run.
Everything up to running works on any system; `DirectmlBackend` opens where ONNX Runtime has the execution provider.
`probes` asks DirectML itself, through `raw` and `c_structs`.
"""

from .backend import DirectmlBackend
from .model import Constant, Node, TensorType, model_bytes
from .to_onnx import to_onnx

__all__ = ["Constant", "DirectmlBackend", "Node", "TensorType", "model_bytes", "to_onnx"]

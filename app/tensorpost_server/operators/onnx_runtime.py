"""ONNX operators without a row of their own, computed by ONNX Runtime's CPU provider as models of one node.

The extra `onnx` installs it. What the node means, and its outputs' shapes, the package `onnx` has found.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.extras import install_command
from tensorpost.onnx import OnnxNode, OnnxSchema
from tensorpost.onnx.schemas import find_schema
from tensorpost.problems import InvalidDescriptor, NoBackend, Violation

from ..forms import Array

__all__ = ["LIBRARY", "model_form"]

LIBRARY = "onnxruntime"
_MOST_SESSIONS = 64
_HIGHEST_OPSET = re.compile(r"support for domain ai\.onnx is till opset ([0-9]{1,4})")
_PREFIX = re.compile(r"\[ONNXRuntimeError\] : [0-9]+ : [A-Z_]+ : ")
_ORIGIN = re.compile(r"/[^ ]+:[0-9]+ [^(]*\([^()]*(?:\([^()]*\)[^()]*)*\)(?: const)? ")
"""A file and a function of C++, at the begin of a message."""


def model_form(node: OnnxNode) -> Array:
    """The form of a node that ONNX Runtime computes.

    Its work is estimated as that of a product: each element of an output reads a part of each further input, all but
    the longest dimension of it. Memory beside inputs and outputs as twice theirs.

    Raises:
        NoBackend: ONNX Runtime is not installed, or does not compute the operator for these types.
    """
    model = dict(node.parameters)["model"]
    _session(model, node.name)
    outputs = sum([tensor.element_count for _, tensor in node.results])
    further = [tensor for _, tensor in node.tensors[1:] if tensor.shape]
    reads = [tensor.element_count // max(1, *tensor.shape) for tensor in further]
    work = 2 * outputs * max([1, *reads]) + sum([tensor.element_count for _, tensor in node.tensors])
    scratch = 2 * sum([tensor.size_in_bytes for _, tensor in (*node.tensors, *node.results)])
    names = tuple([name for name, _ in node.tensors])
    parameters = (("model", model), ("names", names), ("operator", node.name))
    return Array(_run, len(names), work, parameters, scratch, LIBRARY)


@lru_cache(maxsize=_MOST_SESSIONS)
def _session(model: bytes, operator: str) -> Any:
    try:
        runtime: Any = importlib.import_module(LIBRARY)
    except ModuleNotFoundError:
        raise NoBackend(
            f"{operator} is computed by ONNX Runtime, which is not installed: {install_command('onnx')}"
        ) from None
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is raised
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions are of C++
        highest = _HIGHEST_OPSET.search(str(error))
        if highest is not None:
            raise NoBackend(_too_new(operator, runtime.__version__, int(highest[1]))) from error
        raise NoBackend(f"ONNX Runtime does not compute {operator} for these types: {_reason(error)}") from error


def _too_new(operator: str, version: str, highest: int) -> str:
    """Why ONNX Runtime does not take this version of the operator, and which opset would do."""
    op_type = operator.rpartition("-")[0]
    older = find_schema(op_type, highest)
    known = f"ONNX Runtime {version} computes {op_type} up to opset {highest}, and {operator} is newer"
    if not isinstance(older, OnnxSchema):
        return f"{known}; there is no older {op_type}"
    return f"{known}; pass opset={highest}, which means {older.name}"


def _reason(error: Exception) -> str:
    """What its message says, without its own name, numbers and places in its source."""
    text = " ".join(str(error).split()).rpartition("Status Message: ")[2]
    return _ORIGIN.sub("", _PREFIX.sub("", text))[:300]


def _run(xp: ModuleType, *inputs: Any, model: bytes, names: tuple[str, ...], operator: str) -> Any:
    assert xp is np
    arrays = [np.ascontiguousarray(array) for array in inputs]
    try:
        found = _session(model, operator).run(None, dict(zip(names, arrays, strict=True)))
    except Exception as error:
        raise InvalidDescriptor.of(
            [Violation("onnx-runtime", ("inputs",), f"ONNX Runtime refuses these inputs: {_reason(error)}", None)]
        ) from error
    return tuple(found)

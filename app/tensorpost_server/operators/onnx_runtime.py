"""ONNX operators without a row of their own, computed by ONNX Runtime's CPU provider as models of one node.

The extra `onnx` installs it. The package `onnx` has checked the node and inferred its outputs' shapes. ONNX Runtime
runs in child processes (`child_processes/`), which make the session too, after the request was admitted.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode, OnnxSchema
from tensorpost.onnx.parameters import ModelParameters
from tensorpost.onnx.schemas import find_schema
from tensorpost.values.datatypes import data_type
from tensorpost.values.extras import install_command
from tensorpost.values.problems import InvalidDescriptor, NoBackend, Violation

from ..child_processes.libraries import ONNX_RUNTIME
from ..child_processes.process import FunctionRefused
from ..child_processes.segment import SharedSegment
from ..forms import Array
from ..forms.base import away_from_processor, raise_if_abandoned
from .onnx_runtime_cost import extra_bytes, work_of

LIBRARY = ONNX_RUNTIME.name
_LEAST_BYTES = 64 << 20
"""Memory that a call may take in its process beside its tensors and what follows from its attributes: the session, what
the allocator wastes, temporaries of a fixed size."""
_LONG_WORK = 1 << 24
"""Work that ONNX Runtime may take some tenths of a second for."""
_HIGHEST_OPSET = re.compile(r"support for domain ai\.onnx is till opset ([0-9]{1,4})")
_PREFIX = re.compile(r"\[ONNXRuntimeError\] : [0-9]+ : [A-Z_]+ : ")
_ORIGIN = re.compile(r"/[^ ]+:[0-9]+ [^(]*\([^()]*(?:\([^()]*\)[^()]*)*\)(?: const)? ")
"""A file and a function of C++, at the begin of a message."""


def model_form(node: OnnxNode) -> Array:
    """The form of a node that ONNX Runtime computes; see `onnx_runtime_cost` for its work and memory.

    Raises:
        NoBackend: ONNX Runtime is not installed.
    """
    if not ONNX_RUNTIME.installed:
        raise NoBackend(
            f"{node.name} is computed by ONNX Runtime, which is not installed: {install_command('onnx')}"
        ) from None
    inputs = [tensor for _, tensor in node.tensors]
    outputs = [tensor for _, tensor in node.results]
    tensor_bytes = sum([tensor.size_in_bytes for tensor in (*inputs, *outputs)])
    # ONNX Runtime may copy a tensor to cast or transpose it.
    memory_bytes = 2 * tensor_bytes + extra_bytes(node) + _LEAST_BYTES
    work = work_of(node)
    parameters = (
        ("model", node.parameters_as(ModelParameters).model),
        ("names", tuple([name for name, _ in node.tensors])),
        ("operator", node.name),
        ("results", tuple([(tensor.row.numpy_name, tensor.shape) for tensor in outputs])),
        ("memory_bytes", memory_bytes),
        ("is_long", work > _LONG_WORK),
    )
    shared_bytes = tensor_bytes  # what the two processes share
    return Array(_run, len(inputs), work, parameters, memory_bytes + shared_bytes, LIBRARY)


def _run(
    xp: ModuleType, *inputs: Any, model: bytes, names: tuple[str, ...], operator: str,
    results: tuple[tuple[str, tuple[int, ...]], ...], memory_bytes: int, is_long: bool,
) -> Any:  # fmt: skip
    assert xp is np
    arrays = [np.frombuffer(model, np.uint8), *[np.ascontiguousarray(array) for array in inputs]]
    sizes = [data_type(kind).dtype.itemsize * int(np.prod(shape, dtype=object)) for kind, shape in results]
    try:
        with away_from_processor():
            _, found = ONNX_RUNTIME.call(
                "run_node", {"names": names}, arrays, subject=operator, memory_bytes=memory_bytes,
                output_bytes=SharedSegment.bytes_of(sizes), key=model, check=raise_if_abandoned, long=is_long,
            )  # fmt: skip
    except FunctionRefused as refusal:
        raise _problem(refusal, operator) from refusal
    made = [(array.dtype.name, array.shape) for array in found]
    if [*map(_without_ones, made)] != [*map(_without_ones, results)]:
        shapes = ", ".join([f"{kind} {list(shape)}" for kind, shape in made])
        raise _refused(f"for {operator}, ONNX Runtime makes {shapes}, which is not what the package onnx infers")
    return tuple(found)


def _without_ones(tensor: tuple[str, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    """Type and shape without dimensions of 1, of which ONNX Runtime makes more or fewer (Det)."""
    kind, shape = tensor
    return kind, tuple([size for size in shape if size != 1])


def _problem(refusal: FunctionRefused, operator: str) -> NoBackend | InvalidDescriptor:
    version, _, text = refusal.message.partition("\n")
    if refusal.kind == "inputs":
        return _refused(f"ONNX Runtime refuses these inputs: {_reason(text or version)}")
    highest = _HIGHEST_OPSET.search(text)
    if highest is not None:
        return NoBackend(_too_new(operator, version, int(highest[1])))
    return NoBackend(f"ONNX Runtime does not compute {operator} for these types: {_reason(text)}")


def _refused(message: str) -> InvalidDescriptor:
    return InvalidDescriptor.of([Violation("onnx-runtime", ("inputs",), message, None)])


def _too_new(operator: str, version: str, highest: int) -> str:
    """Why ONNX Runtime does not take this version of the operator, and which opset would do."""
    op_type = operator.rpartition("-")[0]
    older = find_schema(op_type, highest)
    known = f"ONNX Runtime {version} computes {op_type} up to opset {highest}, and {operator} is newer"
    if not isinstance(older, OnnxSchema):
        return f"{known}; there is no older {op_type}"
    return f"{known}; pass opset={highest}, which means {older.name}"


def _reason(text: str) -> str:
    """What its message says, without its own name, numbers and places in its source."""
    text = " ".join(text.split()).rpartition("Status Message: ")[2]
    return _ORIGIN.sub("", _PREFIX.sub("", text))[:300]

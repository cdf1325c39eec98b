"""ONNX operators without a row of their own, computed by ONNX Runtime's CPU provider as models of one node.

The extra `onnx` installs it. The package `onnx` has checked the node and inferred its outputs' shapes. ONNX Runtime
runs in child processes (`child_processes/`), which make the session too, after the request was admitted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode, OnnxSchema, OnnxTensor
from tensorpost.onnx.package import missing_on_server
from tensorpost.onnx.parameters import ModelParameters
from tensorpost.onnx.proto_node import OnnxProtoNode
from tensorpost.onnx.schemas import find_schema
from tensorpost.values.datatypes import data_type
from tensorpost.values.problems import InvalidDescriptor, NoBackend, Violation

from ..child_processes.libraries import ONNX_RUNTIME
from ..child_processes.process import FunctionRefused
from ..child_processes.process_pool import KeptArrays
from ..child_processes.segment import SharedSegment
from ..forms import Array
from ..forms.base import away_from_processor, raise_if_abandoned
from .onnx_model_writer import WrittenNode, model_bytes
from .onnx_runtime_cost import extra_bytes, work_of

LEAST_OPSET = 8
"""The lowest opset of a partition: before, Max and Min do not broadcast, as which Relu and Clip are written."""
LIBRARY = ONNX_RUNTIME.name
OPTIMIZED_LIBRARY = f"{LIBRARY}-optimized"
"""What answers and metrics call it where it optimizes a graph whose weights it holds, so that results may differ."""
_MAKING_FACTOR = 4
"""Memory, in that of the weights, that making a session with them takes for a while: the model, its tensors, and both
orders of their elements."""
_LEAST_BYTES = 64 << 20
"""Memory that a call may take in its process beside its tensors and what follows from its attributes: the session, what
the allocator wastes, temporaries of a fixed size."""
_LONG_WORK = 1 << 24
"""Work that ONNX Runtime may take some tenths of a second for."""
_HIGHEST_OPSET = re.compile(r"support for domain ai\.onnx is till opset ([0-9]{1,4})")
_NODE = re.compile(r"(?:Name:|with name |node \(|Node \()'?n([0-9]{1,5})\b")
"""A node of a model of several, as messages name it."""
_PREFIX = re.compile(r"\[ONNXRuntimeError\] : [0-9]+ : [A-Z_]+ : ")
_ORIGIN = re.compile(r"/[^ ]+:[0-9]+ [^(]*\([^()]*(?:\([^()]*\)[^()]*)*\)(?: const)? ")
"""A file and a function of C++, at the begin of a message."""


def model_form(node: OnnxNode) -> Array:
    """The form of a node that ONNX Runtime computes; see `onnx_runtime_cost` for its work and memory.

    Raises:
        NoBackend: ONNX Runtime is not installed.
    """
    require_runtime(node.name)
    outputs = [tensor for _, tensor in node.results]
    for tensor in (*[tensor for _, tensor in node.tensors], *outputs):
        if tensor.row.in_ml_dtypes:
            message = f"ONNX Runtime computes {node.name}, and takes no arrays of {tensor.row.onnx}; cast them to float"
            raise NoBackend(message)
    tensor_bytes = sum([tensor.size_in_bytes for tensor in (*[tensor for _, tensor in node.tensors], *outputs)])
    if isinstance(node, OnnxProtoNode):
        named = WrittenNode(node, "n0", [name for name, _ in node.tensors], [name for name, _ in node.results])
        model = model_bytes([named], node.tensors, node.results, {"": LEAST_OPSET, **dict(node.opsets)})
    else:
        model = node.parameters_as(ModelParameters).model
    return array_form(
        model, node.tensors, outputs, work_of(node), tensor_bytes, extra_bytes(node), node.name, node.name
    )


def require_runtime(operator: str) -> None:
    """Refuse an operator that ONNX Runtime would compute, if it is not installed.

    Raises:
        NoBackend: it is not.
    """
    if not ONNX_RUNTIME.installed:
        raise NoBackend(missing_on_server(operator))


def array_form(
    model: bytes, inputs: Sequence[tuple[str, OnnxTensor]], outputs: Sequence[OnnxTensor], work: int, held_bytes: int,
    bytes_beside: int, subject: str, newest: str, nodes: tuple[tuple[str, str], ...] = (),
    kept: KeptArrays | None = None, *, is_bounded: bool = False,
) -> Array:  # fmt: skip
    """The form of a model.

    Args:
        model: the bytes of a `ModelProto`.
        inputs: its inputs by name.
        outputs: its outputs.
        work: elements that are read and combined.
        held_bytes: the most bytes that its tensors take at a time.
        bytes_beside: what its nodes take beside them.
        subject: what messages call it.
        newest: the operator with the highest version in it.
        nodes: the name in the graph and the operator of each node, which it calls `n0`, `n1` and so on; empty for one.
        kept: constants that its session holds.
        is_bounded: whether the model's outputs have the bytes of these at most, but of the last, which is their sizes.
    """
    shared_bytes = sum([tensor.size_in_bytes for tensor in (*[tensor for _, tensor in inputs], *outputs)])
    # ONNX Runtime may copy a tensor to cast or transpose it.
    memory_bytes = 2 * held_bytes + bytes_beside + _LEAST_BYTES
    if kept is not None:
        shared_bytes += kept.size_in_bytes
        memory_bytes += _MAKING_FACTOR * kept.size_in_bytes
    parameters = (
        ("model", model),
        ("names", tuple([name for name, _ in inputs])),
        ("subject", subject),
        ("newest", newest),
        ("nodes", nodes),
        ("results", tuple([(tensor.row.numpy_name, tensor.shape) for tensor in outputs])),
        ("memory_bytes", memory_bytes),
        ("is_long", work > _LONG_WORK),
        ("kept", kept),
        ("is_bounded", is_bounded),
    )
    library = LIBRARY if kept is None else OPTIMIZED_LIBRARY
    return Array(_run, len(inputs), work, parameters, memory_bytes + shared_bytes, library)


def _run(
    xp: ModuleType, *inputs: Any, model: bytes, names: tuple[str, ...], subject: str, newest: str,
    nodes: tuple[tuple[str, str], ...], results: tuple[tuple[str, tuple[int, ...]], ...], memory_bytes: int,
    is_long: bool, kept: KeptArrays | None, is_bounded: bool,
) -> Any:  # fmt: skip
    assert xp is np
    arrays = [np.frombuffer(model, np.uint8), *[np.asarray(array, order="C") for array in inputs]]
    sizes = [data_type(kind).dtype.itemsize * int(np.prod(shape, dtype=object)) for kind, shape in results]
    try:
        with away_from_processor():
            _, found = ONNX_RUNTIME.call(
                "run_model", {"names": names}, arrays, subject=subject, memory_bytes=memory_bytes,
                output_bytes=SharedSegment.bytes_of(sizes), key=model, check=raise_if_abandoned, long=is_long,
                kept=kept,
            )  # fmt: skip
    except FunctionRefused as refusal:
        raise _problem(refusal, newest, nodes) from refusal
    if is_bounded:
        return as_lines(np, found, [shape[0] for _, shape in results[:-1]])
    found = [_of_no_elements(array, *result) for array, result in zip(found, results, strict=True)]
    made = [(array.dtype.name, array.shape) for array in found]
    if [*map(_without_ones, made)] != [*map(_without_ones, results)]:
        shapes = ", ".join([f"{kind} {list(shape)}" for kind, shape in made])
        raise _refused(f"for {subject}, ONNX Runtime returned outputs of {shapes}, which differ from the inferred ones")
    return tuple(found)


def _of_no_elements(array: Any, kind: str, shape: tuple[int, ...]) -> Any:
    """The array, in the inferred shape if neither has elements: ONNX Runtime drops axes of what a Loop would stack."""
    return array.reshape(shape) if array.size == 0 and array.dtype.name == kind and 0 in shape else array


def as_lines(xp: ModuleType, arrays: Sequence[Any], most: Sequence[int]) -> tuple[Any, ...]:
    """What a bounded node makes: each array as the begin of a line of as many elements, and the sizes of all."""
    lines: list[Any] = []
    for array, elements in zip(arrays, most, strict=True):
        line = xp.zeros(elements, array.dtype)
        line[: array.size] = array.reshape(-1)
        lines.append(line)
    sizes = [size for array in arrays for size in array.shape]
    return (*lines, xp.asarray(np.array(sizes, np.int64)))


def _without_ones(tensor: tuple[str, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    """Type and shape without dimensions of 1, of which ONNX Runtime makes more or fewer (Det)."""
    kind, shape = tensor
    return kind, tuple([size for size in shape if size != 1])


def _problem(
    refusal: FunctionRefused, newest: str, nodes: tuple[tuple[str, str], ...]
) -> NoBackend | InvalidDescriptor:
    version, _, text = refusal.message.partition("\n")
    where, operator = "", newest
    if (named := _NODE.search(text)) is not None and int(named[1]) < len(nodes):
        node, operator = nodes[int(named[1])]
        where = f"node {node!r}: "
    if refusal.kind == "inputs":
        return _refused(f"{where}ONNX Runtime refuses these inputs: {_reason(text or version)}")
    highest = _HIGHEST_OPSET.search(text)
    if highest is not None:
        return NoBackend(_too_new(newest, version, int(highest[1])))
    return NoBackend(f"{where}ONNX Runtime does not compute {operator} for these types: {_reason(text)}")


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

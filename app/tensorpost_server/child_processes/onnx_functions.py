"""Functions of a child process that call ONNX Runtime and the package onnx."""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorpost.values.datatypes import data_type
from tensorpost.values.onnx_package import infer_model, schema_version

from ..machine import free_unused_memory, private_memory
from .refusal import FunctionRefusal

_MOST_SESSIONS = 32
_MOST_KEPT_MODEL_BYTES = 256 << 10
"""A larger model holds constants by value; its session is not kept, for it holds them too. ResNet-50 has
20 KiB without its weights."""

_LEAST_VALUE_BYTES = 4096
_VALUE_TYPES = frozenset({"float16", "float32", "float64", "int8", "uint8"})

_sessions: OrderedDict[bytes, Any] = OrderedDict()


class _WeightedSession(NamedTuple):
    """A session that holds a model's weights, and the memory that it takes, in bytes."""

    session: Any
    size_in_bytes: int


_weighted: OrderedDict[str, _WeightedSession] = OrderedDict()
_OUT_OF_MEMORY = ("bad alloc", "bad_alloc", "failed to allocate", "out of memory", "cannot allocate memory")


def version_of_schema(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """See `tensorpost.values.onnx_package.schema_version`; the answer is `version`."""
    del arrays
    return {"version": schema_version(head["op_type"], head["opset"])}, []


def infer_node(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """See `tensorpost.values.onnx_package.infer_model`; the answer is `problem`, `outputs`, and the model's bytes."""
    del arrays
    found = infer_model(head["node"])
    return {"problem": found.problem, "outputs": found.outputs}, [np.frombuffer(found.model, np.uint8)]


def run_model(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Compute a model; the first array is the model, the others are the inputs in the order of `names`.

    Raises:
        FunctionRefusal: ONNX Runtime does not compute the model (`unsupported`), or not these inputs (`inputs`).
    """
    model, *inputs = arrays
    count = len(head["names"])
    if key := head.get("session", ""):
        session = _weighted_session(key, model, head, inputs[count:])
    else:
        session = _session(model.tobytes(), head["threads"])
    try:
        found = session.run(None, dict(zip(head["names"], inputs[:count], strict=True)))
    except MemoryError:
        raise
    except Exception as error:  # its exceptions are of C++
        raise _refusal("inputs", error) from error
    del session
    return {"sessions": [*_weighted]}, [np.asarray(array, order="C") for array in found]


def forget_sessions(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Drop the sessions `keys`, whose weights nobody needs any more; the answer is `sessions`, those that stay."""
    del arrays
    for key in head["keys"]:
        _weighted.pop(key, None)
    free_unused_memory()
    return {"sessions": [*_weighted]}, []


def _weighted_session(key: str, model: Any, head: Mapping[str, Any], weights: Sequence[Any]) -> Any:
    """The session of a model with its weights: a kept one, or a new one if these were sent.

    Raises:
        FunctionRefusal: it is not kept, and there are no weights (`forgotten`).
    """
    known = _weighted.get(key)
    if known is not None:
        _weighted.move_to_end(key)
        return known.session
    if len(weights) != len(head["weights"]) or not weights:
        raise FunctionRefusal("forgotten", "")
    before = private_memory()
    session = _session_with(model.tobytes(), dict(zip(head["weights"], weights, strict=True)), head["threads"])
    free_unused_memory()
    size = max(private_memory() - before, sum([array.nbytes for array in weights]))
    while _weighted and size + weighted_bytes() > head["session_bytes"]:
        _weighted.popitem(last=False)
    if size <= head["session_bytes"]:
        _weighted[key] = _WeightedSession(session, size)
    return session


def _session_with(model: bytes, weights: Mapping[str, Any], threads: int) -> Any:
    """A session that holds these constants; large ones by values, which it copies less often than those of a model."""
    runtime: Any = importlib.import_module("onnxruntime")
    options = _options(threads)
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    parts = [model]  # a field that comes twice is one whose parts are joined: the graph gets its initializers here
    values: dict[str, Any] = {}
    for name, array in weights.items():
        parts.append(initializer_field(name, array, by_value=_is_by_value(array)))
        if _is_by_value(array):
            values[name] = runtime.OrtValue.ortvalue_from_numpy(array.copy())  # shared memory is the next call's
    options.add_external_initializers([*values], [*values.values()])
    return _made(b"".join(parts), options)


def _is_by_value(array: Any) -> bool:
    """Whether a constant is given as a value: a large one, and none that may be the sizes of another tensor."""
    return array.nbytes >= _LEAST_VALUE_BYTES and array.dtype.name in _VALUE_TYPES


def initializer_field(name: str, array: Any, *, by_value: bool) -> bytes:
    """A constant as a field of a ModelProto: its elements, or only that they are given as a value."""
    from tensorpost.onnx.protobuf import message_field, text_field, whole_field  # loads all of ONNX's nodes

    parts = [whole_field(1, size) for size in array.shape]
    parts += [whole_field(2, data_type(array.dtype.name).onnx_code), text_field(8, name)]
    if by_value:  # external data, of a place that ONNX Runtime does not look at
        parts += [message_field(13, text_field(1, "location") + text_field(2, "value"))]
        parts += [message_field(13, text_field(1, "length") + text_field(2, str(array.nbytes))), whole_field(14, 1)]
    else:
        parts.append(message_field(9, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data))
    return message_field(7, message_field(5, b"".join(parts)))


def weighted_bytes() -> int:
    """Memory of the sessions that hold weights."""
    return sum([each.size_in_bytes for each in _weighted.values()])


def _session(model: bytes, threads: int) -> Any:
    """The session of a model: a kept one, or a new one that computes nothing while it is made."""
    known = _sessions.get(model)
    if known is not None:
        _sessions.move_to_end(model)
        return known
    session = _made(model, _options(threads))
    if len(model) <= _MOST_KEPT_MODEL_BYTES:
        _sessions[model] = session
        if len(_sessions) > _MOST_SESSIONS:
            _sessions.popitem(last=False)
    return session


def _options(threads: int) -> Any:
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is raised
    # Constants are not folded while the session is made, and an arena would keep the memory of the largest call.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _made(model: bytes, options: Any) -> Any:
    """A session, which computes nothing while it is made unless its options say so."""
    runtime: Any = importlib.import_module("onnxruntime")
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except Exception as error:  # its exceptions are of C++
        raise _refusal("unsupported", error) from error


def forget_plain_sessions() -> None:
    """Drop the kept sessions that hold no weights."""
    _sessions.clear()


def _refusal(kind: str, error: Exception) -> FunctionRefusal:
    text = str(error)
    if any(words in text.lower() for words in _OUT_OF_MEMORY):
        return FunctionRefusal("memory", "")
    version = getattr(sys.modules.get("onnxruntime"), "__version__", "")
    return FunctionRefusal(kind, f"{version}\n{text}"[:4000])

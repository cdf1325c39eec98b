"""A model's configuration as Triton writes it (`ModelConfig` of its model_config.proto, as JSON).

What an ONNX model or a graph says itself, the configuration may repeat, and what this server does not have is refused,
unless its value is empty: Triton's own answers hold every field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors import NEWEST
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidParameter

from ...planning.batch_rows import why_rows_mix
from ..calls.batch_settings import BatchSettings
from .call_parser import MOST_JSON_CONTAINERS
from .graph_sources import DeclaredTensor, GraphSource

MOST_BATCH = 1 << 16
"""Largest `max_batch_size`."""
MOST_DELAY_MICROSECONDS = 10_000_000
"""Longest `max_queue_delay_microseconds`."""

_DELAY = "max_queue_delay_microseconds"
BATCH_PARAMETERS = ("max_batch_size", _DELAY)
"""Query parameters of `PUT /v1/graphs/{name}`."""

_KIND_OF_PLATFORM = {"onnxruntime_onnx": "onnx", "onnx": "onnx", "tensorpost_graph": "graph"}
_BACKENDS = ("", "onnxruntime", "tensorpost")
_READ = (
    "name", "platform", "backend", "max_batch_size", "version_policy", "input", "output", "dynamic_batching",
    "default_model_filename",
)  # fmt: skip
_READ_OF_TENSORS = ("name", "data_type", "dims")
_NO_FORMAT = "FORMAT_NONE"
_MOST_DIGITS = 9
_TRIAL_SIZES = (224, 32, 8, 4, 1)
_FLOAT32 = data_type("float32")


def read_model_config(text: str | bytes) -> Mapping[str, Any]:
    """Read a configuration, a JSON object.

    Raises:
        InvalidJson: it is no JSON.
        InvalidParameter: it is another value.
    """
    document: object = read_json(text.encode() if isinstance(text, str) else text, max_containers=MOST_JSON_CONTAINERS)
    if not isinstance(document, Mapping):
        raise InvalidParameter("the model's config must be a JSON object, as Triton's ModelConfig")
    return cast("Mapping[str, Any]", document)


def configured_batches(
    config: Mapping[str, Any] | None, name: str, source: GraphSource, file_name: str | None
) -> BatchSettings | None:
    """Compare a configuration with a version of the model; `version_policy` is read by `read_version_policy`.

    Args:
        config: the configuration; None if there is none.
        name: the model's name.
        source: the version of the model.
        file_name: name of the file that it was read from; None if that is not known.

    Returns:
        What it says of batches; None with a `max_batch_size` of 0, the default.

    Raises:
        InvalidParameter: it contradicts the model, or asks for what this server does not have.
    """
    if config is None:
        return None
    _refuse_others(config, _READ, "the model's config")
    _compare("name", config, (name,))
    kinds = [platform for platform, kind in _KIND_OF_PLATFORM.items() if kind == source.kind]
    _compare("platform", config, kinds)
    _compare("backend", config, _BACKENDS)
    if file_name is not None:
        _compare("default_model_filename", config, (file_name,))
    most = config.get("max_batch_size") or 0
    if type(most) is not int or not 0 <= most <= MOST_BATCH:
        raise _mistake("max_batch_size", most, f"a whole number from 0 to {MOST_BATCH:,}")
    for member, tensors in (("input", source.inputs), ("output", source.outputs)):
        _check_tensors(member, config.get(member), tensors, skipped=1 if most else 0)
    delay = _delay(config.get("dynamic_batching"))
    if delay is not None and not most:
        raise InvalidParameter("config.dynamic_batching needs config.max_batch_size above 0: the most rows of a batch")
    if not most:
        return None
    batches = BatchSettings(most, delay)
    check_batches(source, batches)
    return batches


def batches_from_query(parameters: Mapping[str, str], source: GraphSource) -> BatchSettings | None:
    """What the query of `PUT /v1/graphs/{name}` says: `max_batch_size` joins calls, the delay is 0 by default.

    Raises:
        InvalidParameter: a number is malformed, or calls of the graph cannot be joined.
    """
    found: list[int] = []
    for name, least, most in ((BATCH_PARAMETERS[0], 1, MOST_BATCH), (_DELAY, 0, MOST_DELAY_MICROSECONDS)):
        text = parameters.get(name, "0")
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else -1
        if name in parameters and not least <= number <= most:
            raise InvalidParameter(
                f"{name} is {text[:40]!r}; it must be a whole number from {least} to {most:,}",
                extra={"parameter": name},
            )
        found.append(number)
    if not found[0]:
        if _DELAY in parameters:
            raise InvalidParameter(
                f"{_DELAY} needs max_batch_size, the most rows of a batch", extra={"parameter": _DELAY}
            )
        return None
    batches = BatchSettings(found[0], found[1])
    check_batches(source, batches)
    return batches


def check_batches(source: GraphSource, batches: BatchSettings) -> None:
    """Refuse batches of a graph whose first sizes are not a batch's, and joined calls where rows may mix.

    Raises:
        InvalidParameter: they are refused.
    """
    for tensor in (*source.inputs, *source.outputs):
        if not tensor.sizes or isinstance(tensor.sizes[0], int):
            raise InvalidParameter(
                f"max_batch_size needs a free first size (a name) of every input and output, and {tensor.name!r} has "
                f"{'no sizes' if tensor.sizes is None else [*tensor.sizes]}",
                extra={"parameter": "max_batch_size"},
            )
    if batches.max_queue_delay_microseconds is None:
        return
    if (reason := _why_not_joined(source, batches.max_batch_size)) is not None:
        raise InvalidParameter(
            f"calls cannot be joined: {reason}; leave out max_batch_size or dynamic_batching",
            extra={"parameter": "max_batch_size"},
        )


def _why_not_joined(source: GraphSource, most_rows: int) -> str | None:
    reason: str | None = "the sizes or types of its inputs are not known"
    for size in _TRIAL_SIZES:

        def graph_of(rows: int, size: int = size) -> Graph:
            sent: dict[str, Layout] = {}
            for name, row, declared in source.inputs:
                sizes = [each if isinstance(each, int) else size for each in (declared or ())[1:]]
                sent[name] = Layout.row_major(row or _FLOAT32, (rows, *sizes))
            return source.graph(sent, {}, None, NEWEST, source.node_count)

        reason = why_rows_mix(graph_of, most_rows)
        if reason is None:
            return None
    return reason


def _mistake(member: str, value: object, expected: str) -> InvalidParameter:
    return InvalidParameter(
        f"config.{member} is {str(value)[:60]!r}; it must be {expected}", extra={"parameter": "config"}
    )


def _refuse_others(document: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    others = [key for key, value in document.items() if key not in known and value and value != _NO_FORMAT]
    if others:
        raise InvalidParameter(
            f"{what} has {others[0][:60]!r}, which is not read here; leave it out (read: {', '.join(known)})",
            extra={"parameter": "config"},
        )


def _compare(member: str, config: Mapping[str, Any], expected: Sequence[str]) -> None:
    value = config.get(member)
    if value and value not in expected:
        raise _mistake(member, value, " or ".join([repr(each) for each in expected if each]))


def _check_tensors(member: str, given: object, tensors: Sequence[DeclaredTensor], *, skipped: int) -> None:
    """Compare tensors of the configuration with those of the model.

    Args:
        member: `input` or `output`.
        given: the tensors of the configuration.
        tensors: the inputs or the outputs of the model.
        skipped: leading sizes that the configuration leaves out.
    """
    if not given:
        return
    if not isinstance(given, list):
        raise _mistake(member, given, "an array of tensors")
    known, entries = {tensor.name: tensor for tensor in tensors}, cast("list[Any]", given)
    for index, entry in enumerate(entries):
        path = f"{member}[{index}]"
        if not isinstance(entry, Mapping):
            raise _mistake(path, entry, "an object")
        tensor_config = cast("Mapping[str, Any]", entry)
        _refuse_others(tensor_config, _READ_OF_TENSORS, f"config.{path}")
        tensor = known.get(str(tensor_config.get("name")))
        if tensor is None:
            raise _mistake(f"{path}.name", tensor_config.get("name"), " or ".join(map(repr, known)))
        if (kind := tensor_config.get("data_type")) and tensor.data_type is not None:
            name = f"TYPE_{tensor.data_type.open_inference}"
            if kind != name:
                raise _mistake(f"{path}.data_type", kind, f"{name!r}, as the model has it")
        dims: object = tensor_config.get("dims")
        if dims is not None and tensor.sizes is not None:
            sizes = [size if isinstance(size, int) else -1 for size in tensor.sizes][skipped:]
            if _sizes(dims) != sizes:
                without = ", without the first size, which is the batch's" if skipped else ""
                raise _mistake(f"{path}.dims", dims, f"{sizes}, as the model has them{without}")


def _sizes(dims: object) -> list[int | None] | None:
    """The sizes of a tensor; None for what is no array."""
    return [_whole(size) for size in cast("list[Any]", dims)] if isinstance(dims, list) else None


def _delay(batching: object) -> int | None:
    """The longest wait of a call for others, microseconds; None without dynamic batching."""
    if batching is None:
        return None
    if not isinstance(batching, Mapping):
        raise _mistake("dynamic_batching", batching, 'an object, as {"max_queue_delay_microseconds": 500}')
    found = cast("Mapping[str, Any]", batching)
    _refuse_others(found, (_DELAY,), "config.dynamic_batching")
    delay = _whole(found.get(_DELAY) or 0)
    if delay is None or not 0 <= delay <= MOST_DELAY_MICROSECONDS:
        expected = f"a whole number from 0 to {MOST_DELAY_MICROSECONDS:,}"
        raise _mistake("dynamic_batching.max_queue_delay_microseconds", delay, expected)
    return delay


def _whole(value: object) -> int | None:
    """A whole number; protobuf writes those of 64 bits as texts."""
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 20:
        return int(value)
    return value if type(value) is int else None

"""Convert arrays to an operation's request, and its answer to arrays. What does not fit is refused before it is sent.

Elements are copied only where their layout or byte order leaves no choice, and values never change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from .. import descriptors as dml
from ..bodies.frame import encode_head
from ..descriptors.catalogue import FieldFacts, OperatorFacts, facts_of
from ..onnx import NEWEST_OPSET, OnnxNode, OnnxTensor
from ..onnx.schemas import OnnxInput, schema_of
from ..values.checks import shown, whole_number
from ..values.datatypes import DataType, TensorDataType, data_type
from ..values.layout import Layout
from ..values.operation import Operation, Slot
from ..values.problems import InvalidParameter, counted
from ..values.sentences import named
from .array_like import TensorLike, as_array, as_array_of, is_nested_numbers, refuse_mask
from .held_tensors import HeldTensor, references
from .resampling import Resampling, resampling

TensorData: TypeAlias = TensorLike | bytes | bytearray | memoryview
"""A tensor's elements as an array or what `as_array` makes one of, or its buffer as anything bytes-like."""

Inputs: TypeAlias = TensorData | Sequence[TensorData] | Mapping[str, TensorData] | None
"""An operation's inputs: the only one, all of them in the order of its slots, or by name; None for none."""

Outputs: TypeAlias = NDArray[Any] | Sequence[NDArray[Any] | None] | Mapping[str, NDArray[Any]] | None
"""Memory for outputs: for the only one, for all in order, or for some by name."""

_UINT8 = data_type("uint8")
_UNMASKED = "receive into the elements under it: out.data"


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """What all requests of an operation have in common, computed once.

    Attributes:
        name: the operation's name, for messages.
        endpoint: path of the POST.
        inputs: the tensors that are sent.
        outputs: the tensors that are received.
        head: bytes of the request's frame before its tensors.
        fields: the inputs in the words of DirectML's struct (`ATensor`) and of the descriptor class (`a_tensor`).
        may_resume: whether the rest of an answer may be asked for if it breaks off; not of held tensors, which the
            digest of a request says nothing of.
    """

    name: str
    endpoint: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    head: bytes
    may_resume: bool = True
    fields: Mapping[str, FieldFacts] = field(default_factory=dict[str, FieldFacts], compare=False)


def request_template(operation: Operation) -> RequestTemplate:
    """The template of an operation's requests.

    Raises:
        InvalidParameter: this is not an operation, or its sizes depend on elements.
        InvalidDescriptor: a tensor is of a type that a frame cannot carry.
    """
    if isinstance(operation, type) or not hasattr(operation, "to_document_text"):
        how = "parse_operator(document, complete=True) and OnnxNode.from_json(document) read documents"
        if isinstance(operation, Resampling):
            how = "pass its .operation, and an array of its .sent_shape"
        raise InvalidParameter(
            f"desc must be an operator's descriptor or an OnnxNode, not {type(operation).__name__}; {how}"
        )
    if isinstance(operation, OnnxNode) and operation.is_bounded:
        raise InvalidParameter(
            f"the sizes that {operation.name} makes are known when they are computed, and blocks and rows need them "
            "before; receive the results whole, by onnx or run"
        )
    return _template(operation)  # pyright: ignore[reportArgumentType] # frozen models are hashable; Pydantic does not say so


@lru_cache(maxsize=256)  # a caller with the next array of the same shape is the common one
def _template(operation: Operation) -> RequestTemplate:
    inputs, outputs = operation.inputs, operation.outputs
    for slot in (*inputs, *outputs):
        if slot.layout.data_type.safetensors is None:
            OnnxTensor(slot.layout.data_type.numpy_name, slot.layout.sizes).require_carriable("frame")
    head = encode_head([(slot.name, *wire_form(slot)) for slot in inputs], {"op": operation.to_document_text()})
    facts: OperatorFacts | None = getattr(
        operation, "facts", None
    )  # of a descriptor, whose class is not loaded for nodes
    found = () if facts is None else facts.fields_by_kind["input"]
    fields = {name: each for each in found for name in (each.name, each.attribute_name)}
    return RequestTemplate(operation.name, operation.endpoint, inputs, outputs, head, fields=fields)


def wire_form(slot: Slot) -> tuple[DataType, tuple[int, ...]]:
    """Type and shape of a tensor in a frame: its own if packed, otherwise its whole buffer as bytes."""
    layout = slot.layout
    return (layout.data_type, layout.sizes) if layout.packed else (_UINT8, (layout.size_in_bytes,))


def wire_inputs(template: RequestTemplate, inputs: Inputs) -> list[memoryview]:
    """The bytes of what the caller gave for each input of an operation, in wire order.

    Raises:
        InvalidParameter: an input is missing or unknown, or its type, shape or length is not what the slot says.
    """
    slots = template.inputs
    sent: object = inputs
    if isinstance(sent, np.ndarray) and len(slots) == 1:  # the common case
        return [_bytes_of(slots[0], cast("NDArray[Any]", sent))]
    if isinstance(sent, Mapping):
        by_name = _by_slot(template, cast("Mapping[str, object]", sent))
        if set(by_name) != {slot.name for slot in slots}:
            raise _other_inputs(template, ", ".join(map(str, by_name)) or "none")
        return [_bytes_of(slot, by_name[slot.name]) for slot in slots]
    kind, one = type(inputs).__name__, cast("object", inputs)
    if not isinstance(sent, (list, tuple)) or (len(slots) == 1 and is_nested_numbers(one)):
        if len(slots) != (0 if one is None else 1) and (one is not None or len(slots) > 1):
            raise _other_inputs(template, "none" if one is None else f"one {kind}")
        return [_bytes_of(slot, one) for slot in slots]
    arrays = cast("Sequence[object]", sent)
    if len(arrays) != len(slots):
        raise _other_inputs(template, f"a {kind} of {len(arrays)}")
    return [_bytes_of(slot, data) for slot, data in zip(slots, arrays, strict=True)]


def _by_slot(template: RequestTemplate, given: Mapping[str, object]) -> Mapping[str, object]:
    """What was given, by the names that inputs have in a frame: `a` for `ATensor`, `input_1` of `InputTensors`.

    Raises:
        InvalidParameter: an input is given twice, or one tensor in the place of several.
    """
    if not template.fields.keys() & given.keys():
        return given
    found: dict[str, object] = {}
    for name, value in given.items():
        each = template.fields.get(name)
        named = {name: value} if each is None else {each.slot_name: value}
        if each is not None and each.is_array:
            if not isinstance(value, (list, tuple)):
                raise InvalidParameter(f"{name} is a {type(value).__name__}; it must be a list of arrays")
            named = {f"{each.slot_name}_{place}": one for place, one in enumerate(cast("Sequence[object]", value))}
        for slot in named:
            if slot in found:
                raise InvalidParameter(
                    f"the input {slot!r} of {template.name} is given twice, the second time as {name!r}"
                )
        found |= named
    return found


def arrays_by_name(operation: Operation | RequestTemplate, inputs: Inputs) -> dict[str, Any]:
    """What the caller gave for each input of an operation, by name.

    Raises:
        InvalidParameter: the inputs are a sequence of another length.
    """
    sent: object = inputs
    if isinstance(sent, Mapping):
        return dict(cast("Mapping[str, Any]", sent))
    several = isinstance(sent, (list, tuple))
    arrays = cast("Sequence[Any]", sent) if several else [] if sent is None else [sent]
    if len(arrays) != len(operation.inputs):
        raise _other_inputs(operation, f"{len(arrays)} arrays")
    return {slot.name: array for slot, array in zip(operation.inputs, arrays, strict=True)}


def _other_inputs(template: RequestTemplate | Operation, found: str) -> InvalidParameter:
    names = [slot.name for slot in template.inputs]
    if not names:
        return InvalidParameter(f"{template.name} takes no inputs; got {found}")
    if len(names) == 1:
        only = f"{template.name} takes one input, named {names[0]!r}; got {found}"
        return InvalidParameter(f"{only}. Pass the array, or a mapping from this name to it")
    return InvalidParameter(
        f"{template.name} takes the inputs {', '.join(names)}; got {found}. Pass a sequence of arrays in this order, "
        "or a mapping from these names to arrays"
    )


def held_inputs(template: RequestTemplate, inputs: Inputs) -> tuple[RequestTemplate, Inputs]:
    """What a call sends if some of its inputs are held tensors: their names stand in the head, and the others follow.

    Raises:
        InvalidParameter: a held tensor is not of the type and the sizes that its input has.
    """
    sent: object = inputs
    several = cast("Mapping[str, object]", sent).values() if isinstance(sent, Mapping) else sent
    if not isinstance(several, HeldTensor) and not (
        isinstance(sent, (list, tuple, Mapping))
        and any(isinstance(each, HeldTensor) for each in cast("Iterable[object]", several))
    ):
        return template, inputs
    by_name = arrays_by_name(template, inputs)
    if set(by_name) != {slot.name for slot in template.inputs}:
        raise _other_inputs(template, ", ".join(map(str, by_name)) or "none")
    held = {name: each for name, each in by_name.items() if isinstance(each, HeldTensor)}
    for slot in template.inputs:
        if slot.name in held:
            _check_held(slot, held[slot.name])
    others = tuple([slot for slot in template.inputs if slot.name not in held])
    head: dict[str, Any] = json.loads(template.head[8:])
    metadata = {**head.get("__metadata__", {}), "tensors": references(held)}
    begin = encode_head([(slot.name, *wire_form(slot)) for slot in others], metadata)
    return replace(template, inputs=others, head=begin, may_resume=False), {s.name: by_name[s.name] for s in others}


def _check_held(slot: Slot, tensor: HeldTensor) -> None:
    layout = slot.layout
    if layout.packed:
        right = tensor.dtype == layout.data_type.dtype and tensor.shape == layout.sizes
        wanted = f"{layout.data_type.dtype.name} of {layout.sizes}"
    else:
        is_same = tensor.dtype in (layout.data_type.dtype, np.dtype(np.uint8))
        right = is_same and tensor.nbytes >= layout.size_in_bytes
        wanted = f"a buffer of {layout.data_type.dtype.name} or uint8 of at least {layout.size_in_bytes} bytes"
    if not right:
        raise InvalidParameter(
            f"{slot.name} is a held tensor of {tensor.dtype.name} and shape {tensor.shape}, but its descriptor says "
            f"{wanted}; change one of them"
        )


def _bytes_of(slot: Slot, data: object) -> memoryview:
    name, layout = slot.name, slot.layout
    if isinstance(data, (bytes, bytearray, memoryview)):
        return _bytes_of_buffer(name, layout, cast("memoryview", data))
    if not isinstance(data, np.ndarray):
        data = as_array_of(name, data, layout.data_type)
    array = _plain(name, cast("NDArray[Any]", data))
    dtype, sizes = layout.data_type.dtype, layout.sizes
    if layout.packed:
        if array.dtype == dtype and array.shape == sizes and array.flags.c_contiguous:
            return bytes_of_array(array)
        if array.dtype.newbyteorder("<") != dtype or array.shape != sizes:
            raise InvalidParameter(
                f"{name} is {array.dtype.name} of shape {array.shape}, but its descriptor says {dtype.name} of "
                f"{sizes}; change one of them"
            )
        return bytes_of_array(np.asarray(array, dtype=dtype, order="C"))
    total = layout.size_in_bytes
    # An array of the tensor's sizes is most likely its elements, not the buffer they are spread over.
    looks_logical = array.shape == sizes and array.nbytes != total
    if array.ndim != 1 or not array.flags.c_contiguous or looks_logical:
        raise InvalidParameter(
            f"{name} has strides or padding, so pass its buffer: a one-dimensional contiguous array of {total} "
            f"bytes, not {array.dtype.name} of shape {array.shape}; buffer_of(x) of the tensor's BufferTensorDesc lays "
            "elements out"
        )
    return _first_bytes(name, bytes_of_array(array), total)


def _bytes_of_buffer(name: str, layout: Layout, data: bytes | bytearray | memoryview[int]) -> memoryview:
    memory = memoryview(data)
    if not memory.c_contiguous:
        raise InvalidParameter(f"{name} is a memoryview with gaps; pass a contiguous one")
    return _first_bytes(name, memory.cast("B"), layout.size_in_bytes)


def _first_bytes(name: str, memory: memoryview, count: int) -> memoryview:
    if memory.nbytes < count:
        raise InvalidParameter(f"{name} has {memory.nbytes} bytes, but its descriptor needs {count}")
    return memory[:count]


def _plain(name: str, array: NDArray[Any], *instead: str) -> NDArray[Any]:
    """The same elements without what a subclass makes of them: np.matrix, for one, cannot be flattened."""
    refuse_mask(name, array, *instead)
    return np.asarray(array)


def bytes_of_array(array: NDArray[Any]) -> memoryview:
    """The bytes of a C-contiguous array."""
    try:
        return memoryview(array).cast("B")  # pyright: ignore[reportArgumentType] # arrays have the buffer protocol
    except (TypeError, ValueError, BufferError):  # no elements, or a type that memoryview does not know: bfloat16
        return np.asarray(array).reshape(-1).view(np.uint8).data


def check_out(slots: tuple[Slot, ...], out: Outputs) -> tuple[NDArray[Any] | None, ...]:
    """The memory for each output, None for new memory; what the output does not fit exactly is refused.

    Raises:
        InvalidParameter: wrong type, dtype or shape, masked, not C-contiguous or not writeable; other outputs.
    """
    if out is None:
        return (None,) * len(slots)
    if isinstance(out, Mapping):
        arrays = tuple(out.get(slot.name) for slot in slots)
        right = out.keys() <= {slot.name for slot in slots}
    else:
        arrays = tuple(out) if isinstance(out, (list, tuple)) else (cast("NDArray[Any]", out),)
        right = len(arrays) == len(slots)
    if not right:
        names = ", ".join(slot.name for slot in slots)
        raise InvalidParameter(f"out must have an array for each of the outputs {names}, in this order or by name")
    for slot, array in zip(slots, arrays, strict=True):
        if array is not None:
            _check_memory(slot, array, "out" if len(slots) == 1 else f"out for {slot.name}")
    return arrays


def _check_memory(slot: Slot, out: NDArray[Any], name: str) -> None:
    row, shape = wire_form(slot)
    is_array = isinstance(cast("object", out), np.ndarray)
    if not is_array or out.dtype != row.dtype or out.shape != shape:
        actual = f"{out.dtype} of shape {out.shape}" if is_array else type(out).__name__
        why = "" if slot.layout.packed else ", the output's whole buffer"
        raise InvalidParameter(f"{name} must be an array of {row.dtype} and shape {shape}{why}; it is {actual}")
    _plain(name, out, _UNMASKED)
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidParameter(f"{name} must be C-contiguous and writeable: the answer is received straight into it")


def output_memory(slot: Slot, out: NDArray[Any] | None) -> tuple[memoryview, NDArray[Any]]:
    """Where the output's bytes go, and the array to give back for them: `out` or new memory."""
    row, shape = wire_form(slot)
    block = np.empty(shape, row.dtype) if out is None else out
    return bytes_of_array(block), block if slot.layout.packed else slot.layout.view(block)


_SAME_BITS: Mapping[str, str] = {
    # NumPy's kind or name -> how to move such elements through an operator that only copies them
    "complex128": "x.view(np.uint64).reshape(*x.shape, 2) with one more repeat of 1",
    "M": named("x") + ".view(np.int64)",
    "m": named("x") + ".view(np.int64)",
}
_TILE_TYPES = {t.row.numpy_name: t for t in facts_of("TILE").rows("InputTensor")[-1].data_types}
_MOST_TILED_DIMENSIONS = facts_of("TILE").rows("InputTensor")[-1].dimension_counts[1]


class TileCall(NamedTuple):
    """The request of `tile`.

    Attributes:
        operation: DML_OPERATOR_TILE, or ONNX Tile for a type or a shape that it has not.
        array: the array to send, in the operation's input shape.
        out: memory for its output, if the caller gave some.
        shape: the result's shape.
    """

    operation: dml.TileOperatorDesc | OnnxNode
    array: NDArray[Any]
    out: NDArray[Any] | None
    shape: tuple[int, ...]


def tile_call(x: object, repeats: object, out: Any = None, *, directml: bool = False) -> TileCall:
    """The call that lays copies of an array side by side, with repeats as `numpy.tile` reads them.

    Args:
        x: the array, or what is like one.
        repeats: copies per dimension, or one number; with fewer than x has dimensions, they are of the last ones, and
            with more, x gets dimensions of 1 in front.
        out: memory for the result.
        directml: whether it must be DML_OPERATOR_TILE, for its feature levels.

    Raises:
        InvalidParameter: x is not an array, repeats are malformed, or DirectML's Tile was requested and does not take
        the type.
        InvalidDescriptor: a repeat is not a whole number of at least 1, or x is empty.
    """
    array = as_array("x", x)
    # Tuples and lists are the usual ones; asking what kind of collection any other is takes longer than the rest.
    copies = tuple(cast("Any", repeats)) if isinstance(repeats, (tuple, list)) else _copies(repeats, array.ndim)
    if len(copies) != array.ndim:
        copies = (1,) * (array.ndim - len(copies)) + copies
        array = array.reshape((1,) * (len(copies) - array.ndim) + array.shape)
    if not copies:  # a scalar; DirectML has none
        desc = tile_call(array.reshape(1), (1,), directml=directml).operation
        return TileCall(desc, array.reshape(1), None if out is None else out.reshape(1), ())
    name = array.dtype.name
    if array.dtype.kind in "OUS":
        raise InvalidParameter(named("x") + f" holds elements of {name}; a tensor holds numbers and booleans")
    tile_type = _TILE_TYPES.get(name)
    if (instead := _SAME_BITS.get(name) or _SAME_BITS.get(array.dtype.kind)) is not None:
        message = f"no Tile takes {name}; to copy the same bits: " + instead
        raise InvalidParameter(message + f"; view the result as {name}")
    if tile_type is None or array.ndim > _MOST_TILED_DIMENSIONS:
        if directml:
            raise InvalidParameter(
                f"DML_OPERATOR_TILE takes no {array.dtype.name} of {counted(array.ndim, 'dimension')} at any feature "
                f"level, but {', '.join(_TILE_TYPES)} of up to {_MOST_TILED_DIMENSIONS}; without "
                + named("feature_level", text="a feature level")
                + ", it goes as ONNX Tile, which takes every type"
            )
        whole = [whole_number(named("repeats", at), copy, 1) for at, copy in enumerate(copies)]
        node, _ = onnx_node("Tile", [array, whole], NEWEST_OPSET, None, {})
        return TileCall(node, array, out, node.output.shape)
    # Only whole numbers are remembered: 2.0 equals 2, and must not pass for it once 2 has passed.
    tile = _tile if {*map(type, copies)} == {int} else _tile.__wrapped__
    desc = tile(tile_type, array.shape, copies)
    return TileCall(desc, array, out, desc.output_tensor.sizes)


def _copies(repeats: object, ndim: int) -> tuple[Any, ...]:
    copies = cast("Any", repeats).tolist() if isinstance(repeats, (np.ndarray, np.generic)) else repeats
    if isinstance(copies, int) and not isinstance(copies, bool):
        return (copies,)
    if not isinstance(copies, Iterable) or isinstance(copies, (str, bytes, bytearray, Mapping, Set)):
        value = shown(cast("object", copies))
        raise InvalidParameter(
            f"repeats is {value}; it must be a whole number, or a sequence with one for each of x's {ndim} dimensions, "
            f"for instance {(1,) * (ndim - 1) + (2,)}"
        )
    return tuple(cast("Iterable[object]", copies))


@lru_cache(maxsize=256)
def _tile(data_type: TensorDataType, sizes: tuple[int, ...], repeats: tuple[int, ...]) -> dml.TileOperatorDesc:
    return dml.TileOperatorDesc.of(dml.BufferTensorDesc(data_type=data_type, sizes=sizes), repeats)


def onnx_node(
    op_type: str, inputs: Sequence[Any], opset: int, outputs: int | None, attributes: Mapping[str, Any],
    kind: type[OnnxNode] = OnnxNode,
) -> tuple[OnnxNode, list[Any]]:  # fmt: skip
    """The node of a call with inputs by position or name, and the arrays that travel as its tensors.

    Raises:
        InvalidParameter: more inputs than the operator has, an input given twice, all inputs in one list, a tensor that
        is not an array, or a number that does not fit the element type of the other arrays.
        UnknownOperator: no such operator.
        InvalidDescriptor: the node breaks a rule of ONNX.
    """
    schema = schema_of(op_type, opset)
    slots = list(schema.inputs)
    _refuse_list_of_arrays(op_type, slots, inputs)
    if slots[-1:] and slots[-1].variadic:
        slots += slots[-1:] * (len(inputs) - len(slots))
    if len(inputs) > len(slots):
        names = ", ".join(s.name for s in slots)
        raise InvalidParameter(f"{schema.name} has {counted(len(slots), 'input')} ({names}); got {len(inputs)}")
    values = [*inputs, *[None] * (len(slots) - len(inputs))]
    named = {slot.name: index for index, slot in enumerate(slots) if slot.name in attributes and not slot.variadic}
    for name, index in named.items():
        if values[index] is not None:
            raise InvalidParameter(f"{schema.name}'s input {name} is given by position and by name; give it once")
        values[index] = attributes[name]
    attributes = {name: value for name, value in attributes.items() if name not in named}
    values = _numbers_as_arrays(slots, values)
    inputs_by_name: dict[str, Any] = {}
    arrays: list[Any] = []
    for index, (slot, value) in enumerate(zip(slots, values, strict=True)):
        if slot.data and index >= len(inputs) and value is None and not slot.optional:
            raise InvalidParameter(f"{schema.name} needs the input {slot.name}; pass an array for it")
        if slot.data and not (value is None and slot.optional):
            value = as_array(slot.name, value)  # noqa: PLW2901 # an array from here on
        if value is not None:
            inputs_by_name[f"{slot.name}_{index - schema.inputs.index(slot)}" if slot.variadic else slot.name] = value
            if slot.data:
                arrays.append(value)
    return kind(op_type, inputs_by_name, attributes, opset=opset, outputs=outputs), arrays


def _refuse_list_of_arrays(op_type: str, slots: Sequence[OnnxInput], inputs: Sequence[Any]) -> None:
    """Refuse a list of arrays as the only input: NumPy would make one stacked array of it."""
    only: Any = inputs[0] if len(inputs) == 1 else None
    if not isinstance(only, (list, tuple)) or not slots[:1] or not slots[0].data:
        return
    if any(isinstance(item, np.ndarray) for item in cast("Sequence[object]", only)):
        several = len([slot for slot in slots if slot.data]) > 1 or slots[0].variadic
        takes = f'its inputs one after another: onnx("{op_type}", a, b)' if several else "one array, not a list of them"
        raise InvalidParameter(f"{op_type} takes {takes}; for one stacked array pass np.stack([...])")


def _numbers_as_arrays(slots: Sequence[OnnxInput], values: Sequence[Any]) -> list[Any]:
    """The inputs, with Python's numbers in the element type of the first array of the same type variable."""
    arrays = list(values)
    dtypes: dict[str, np.dtype[Any]] = {}
    for slot, value in zip(slots, values, strict=True):
        if isinstance(value, (np.ndarray, np.generic)):
            dtypes.setdefault(slot.variable, cast("NDArray[Any]", value).dtype)
    for index, (slot, value) in enumerate(zip(slots, values, strict=True)):
        beside = dtypes.get(slot.variable)
        if not slot.data or not slot.variable or type(value) not in (int, float):
            continue
        if beside is None or beside.kind not in "iufc":
            continue
        try:
            arrays[index] = as_array_of(slot.name, value, data_type(beside))
        except InvalidParameter:
            raise InvalidParameter(
                f"{slot.name} is {value}, which {beside.name}, the type of the array beside it, cannot hold; convert "
                f"one of them, as in np.float32({value}) or x.astype(np.float32)"
            ) from None
    return arrays


def resample_arrays(
    x: Any, out: NDArray[Any] | None, **arguments: Any
) -> tuple[Resampling, NDArray[Any], NDArray[Any] | None]:
    """The request of `resample`: the resampling, and the arrays in the operation's shapes.

    Raises:
        InvalidParameter: whatever `resampling` refuses; x is not an array or has a mask; or `out` has another shape
            than the result.
        InvalidDescriptor: whatever `resampling` refuses.
    """
    if not isinstance(cast("object", x), dml.BufferTensorDesc):
        x = as_array("x", x)
    plan = resampling(x, **arguments)
    if not isinstance(cast("object", x), (np.ndarray, HeldTensor)):
        raise InvalidParameter(
            "x must be the array itself; for a description of one, tensorpost.resampling.resampling makes what to run"
        )
    if out is not None:
        if not isinstance(cast("object", out), np.ndarray):
            raise InvalidParameter(
                f"out must be a NumPy array of {x.dtype.name} and shape {plan.output_shape}, not {type(out).__name__}"
            )
        if out.shape != plan.output_shape or not out.flags.c_contiguous:
            raise InvalidParameter(
                f"out must be C-contiguous and of shape {plan.output_shape}; it has shape {out.shape}"
                + ("" if out.flags.c_contiguous else " and gaps")
            )
        out = _plain("out", out, _UNMASKED).reshape(plan.received_shape)
    source = x if isinstance(x, HeldTensor) else _plain("x", x)
    return plan, cast("NDArray[Any]", source.reshape(plan.sent_shape)), out

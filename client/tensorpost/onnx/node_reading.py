"""Reading a node: its tensor, small inputs and attributes, as Python, JSON, a query string or a NodeProto has them.

What is wrong goes into the `Report`, and reading goes on, so that one answer names everything.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count, takewhile
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ..values.datatypes import BOOLEANS, DATA_TYPES, DataType, data_type, type_named
from ..values.onnx_package import tensor_of_proto
from ..values.problems import InvalidDescriptor, entry_count
from ..values.sentences import named
from .operator_schema import AttributeType, AttributeValue, InputValues, OnnxAttribute, OnnxInput, OnnxSchema
from .report import Path, Report, did_you_mean
from .schemas import ONNX_OPERATORS, WRITTEN_BY_HAND
from .tensor import MAX_RANK, OnnxTensor

Number = int | float
MOST_ENTRIES = 2 * MAX_RANK  # of a small input: a roi has two for each dimension

TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "precision", "softmax_precision", "stash_type"})
"""Attributes that name an element type, by its number in ONNX; here by any of its names as well."""
_TYPE_NAMES = ", ".join([
    *[row.numpy_name for row in DATA_TYPES if not (row.is_small or row.numpy_name.startswith("complex"))],
    "float8_e4m3fn, int4 and others of ml_dtypes",
])  # fmt: skip
Kind = Literal["int", "float", "either"]
"""What plain numbers may be: whole, any (whole ones become floats), or either with the difference kept."""

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Numbers that JSON has no other way to write."""
_INT64 = 1 << 63
# AttributeProto.AttributeType in onnx.proto, and the field that holds the value
_PROTO_TYPES: Mapping[int, tuple[AttributeType, str]] = {
    1: ("FLOAT", "f"), 2: ("INT", "i"), 3: ("STRING", "s"), 4: ("TENSOR", "t"), 6: ("FLOATS", "floats"),
    7: ("INTS", "ints"),
}  # fmt: skip
INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
"""A whole number in a query string."""
_REAL = re.compile(r"[+-]?(?:(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,4})?|nan|inf)")


def read_tensors(schema: OnnxSchema, inputs: Mapping[str, Any], report: Report) -> dict[str, OnnxTensor]:
    """Type and shape of every tensor that is worked on and can be read, by name; variadic ones are numbered."""
    tensors: dict[str, OnnxTensor] = {}
    for slot in schema.data_inputs:
        raw = inputs.get(slot.name)
        if slot.variadic:
            several = numbered(slot.name, inputs) if raw is None else list(raw)
            for index, one in enumerate(several):
                _read_tensor(schema, slot, f"{slot.name}_{index}", one, tensors, report)
            missing = not several
        else:
            if raw is not None:
                _read_tensor(schema, slot, slot.name, raw, tensors, report)
            missing = raw is None and not slot.optional
        if missing:
            message = f"{schema.name} needs the input " + named(slot.name) + ", described by its type and shape"
            report.add("input-missing", ("inputs", slot.name), message, None, "a tensor")
    return tensors


def numbered(name: str, inputs: Mapping[str, Any]) -> list[Any]:
    """What is given as `name_0`, `name_1` and so on, without a gap."""
    return [*map(inputs.__getitem__, takewhile(inputs.__contains__, (f"{name}_{index}" for index in count())))]


def _read_tensor(
    schema: OnnxSchema, slot: OnnxInput, name: str, raw: Any, tensors: dict[str, OnnxTensor], report: Report
) -> None:
    try:
        if isinstance(raw, OnnxTensor):
            tensor = raw
        elif hasattr(raw, "dtype") and hasattr(raw, "shape"):
            tensor = OnnxTensor.describe(raw)
        else:
            tensor = OnnxTensor.from_json(raw)
    except InvalidDescriptor as error:
        report.violations += error.prefixed("inputs", name).violations
        return
    tensors[name] = tensor
    if tensor.data_type not in slot.types:
        message = f"{schema.name} does not take tensor({tensor.row.onnx})"
        message += _elsewhere(schema, lambda other: _takes(other, slot.name, tensor.data_type))
        allowed = ", ".join(data_type(name).onnx for name in slot.types)
        path = ("inputs", name, "data_type")
        report.add("data-type-unsupported", path, message, tensor.row.onnx, f"one of {allowed}")


def _both_names(kind: str) -> str:
    """ONNX's name of a type, and NumPy's where it is another: float is float32."""
    name = data_type(kind).onnx
    return name if name == kind else f"{name} ({kind})"


def _takes(schema: OnnxSchema, name: str, kind: str) -> bool:
    slot = schema.input(name)
    return slot is not None and slot.data and kind in slot.types


def read_types(
    schema: OnnxSchema, tensors: Mapping[str, OnnxTensor], inputs: Mapping[str, Any], report: Report
) -> dict[str, str]:
    """Which type each type variable stands for, by the tensors and the small inputs that bind it."""
    types: dict[str, str] = {}
    for slot in schema.inputs:
        if not slot.variable:
            continue
        if slot.data:
            names = [name for name in tensors if name == slot.name or (slot.variadic and _is_of(slot.name, name))]
            kinds = [(name, tensors[name].data_type) for name in names]
        else:
            kinds = [(slot.name, kind) for kind in _kinds_of(inputs.get(slot.name))]
        for name, kind in kinds:
            if types.setdefault(slot.variable, kind) != kind and (slot.data or len(slot.types) > 2):
                expected = data_type(types[slot.variable]).onnx
                message = f"{name} is of {_both_names(kind)}, but the tensors before it are of "
                message += _both_names(types[slot.variable])
                report.add("data-types-differ", ("inputs", name), message, data_type(kind).onnx, expected)
    for slot in schema.value_inputs:  # plain numbers bind a type if nothing else does
        if slot.variable and inputs.get(slot.name) is not None and types.get(slot.variable) in (None, "int64"):
            fraction = any(isinstance(item, float) for item in _items(inputs[slot.name]))
            if slot.variable not in types or fraction:
                types[slot.variable] = "float32" if fraction and "float32" in slot.types else "int64"
    return types


def _items(raw: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", raw) if isinstance(raw, (list, tuple)) else [raw]


def _is_of(variadic: str, name: str) -> bool:
    return name.startswith(f"{variadic}_") and name[len(variadic) + 1 :].isdigit()


def _kinds_of(raw: Any) -> list[str]:
    """The type of a small input, where it says one."""
    if isinstance(raw, Mapping):
        raw = cast("Mapping[str, Any]", raw).get("data_type")
        return [_type_of(raw).numpy_name] if isinstance(raw, str) and _is_type(raw) else []
    return [data_type(raw.dtype).numpy_name] if hasattr(raw, "dtype") else []


def _shown_type(raw: Any) -> str:
    return raw.__name__ if isinstance(raw, type) else repr(str(raw)[:60])


def _is_type(name: Any) -> bool:
    try:
        _type_of(name)
    except KeyError:
        return False
    return True


def _type_of(name: Any) -> DataType:
    return type_named(name) if isinstance(name, str) else data_type(name)


def _elsewhere(schema: OnnxSchema, has: Callable[[OnnxSchema], object]) -> str:
    """The end of a sentence that names the versions of the operator which do have it."""
    others = [
        other.name for other in ONNX_OPERATORS if other.op_type == schema.op_type and other is not schema and has(other)
    ]
    if not others:
        return ""
    return f"; {', '.join(others)} " + ("does" if len(others) == 1 else "do")


def read_values(
    schema: OnnxSchema, inputs: Mapping[str, Any], tensors: Mapping[str, OnnxTensor], report: Report
) -> dict[str, InputValues]:
    """The small inputs that were given and can be read, by name."""
    names = [entry.name for entry in schema.inputs]
    variadic = [entry.name for entry in schema.inputs if entry.variadic]
    for name in inputs:
        if name not in names and not any(_is_of(other, str(name)) for other in variadic):
            message = f"{schema.name} has no input {str(name)[:60]!r}"
            message += _elsewhere(schema, operator.methodcaller("input", name)) or did_you_mean(name, names)
            report.add("input-unknown", ("inputs", str(name)), message, None, ", ".join(names))
    values: dict[str, InputValues] = {}
    tensor = tensors.get(schema.inputs[0].name) if schema.inputs else None
    for slot in schema.value_inputs:
        if inputs.get(slot.name) is not None:
            before = len(report.violations)
            entries = _read_value(schema, slot, inputs[slot.name], tensor, report)
            if len(report.violations) == before:
                values[slot.name] = entries
        elif not slot.optional:
            hint = "; it may be empty" if schema.name == "Resize-11" else ""
            message = f"{schema.name} needs the input " + named(slot.name) + hint
            report.add("input-missing", ("inputs", slot.name), message, None, "an array")
    return values


def kind_of(slot: OnnxInput) -> Kind:
    """The kind of numbers that a small input takes."""
    if "int64" not in slot.types:
        return "float"
    return "int" if {*slot.types} <= {"int64", "int32"} else "either"


def _read_value(
    schema: OnnxSchema, slot: OnnxInput, raw: Any, tensor: OnnxTensor | None, report: Report
) -> InputValues:
    path = ("inputs", slot.name)
    is_number = schema.name == "Tile-1"
    if isinstance(raw, Mapping):
        content = cast("Mapping[str, Any]", raw)
        if not {"data_type", "data"} <= content.keys():
            message = named(slot.name) + " must be given by value: an array of numbers, or its data_type and data"
            report.add("not-an-array", path, message, None, "an array of numbers")
            return ()
        raw = content["data"]
    if schema.op_type not in WRITTEN_BY_HAND and not isinstance(raw, (list, tuple)) and not hasattr(raw, "dtype"):
        raw = [raw]
    if hasattr(cast("Any", raw), "dtype"):
        array: NDArray[Any] = np.asarray(cast("Any", raw))
        allowed = ("int64", tensor.data_type) if is_number and tensor is not None else slot.types
        if array.dtype.name not in allowed:
            names = " or ".join(f"tensor({data_type(name).onnx})" for name in allowed)
            message = named(slot.name) + f" is an array of {array.dtype.name}; it must be {names}"
            report.add("input-type", path, message, array.dtype.name, names)
            return ()
        if array.ndim > 1:
            message = named(slot.name) + f" has {array.ndim} dimensions; it must have one"
            report.add("input-shape", path, message, list(array.shape), "one dimension")
            return ()
        if array.dtype.kind == "b":
            array = array.astype(np.int64)
        flat = array.reshape(-1) if schema.op_type not in WRITTEN_BY_HAND else array
        raw = flat[: MOST_ENTRIES + 1].tolist() if flat.ndim else flat.tolist()
    if is_number and not isinstance(raw, (list, tuple)):
        raw = [raw]
    if not isinstance(raw, (list, tuple)):
        message = named(slot.name) + " must be a one-dimensional array of numbers"
        report.add("not-an-array", path, message, raw, "an array of numbers")
        return ()
    items = cast("Sequence[object]", raw)
    if len(items) > MOST_ENTRIES:
        message = named(slot.name) + f" has more than {MOST_ENTRIES} entries, and no tensor has as many dimensions"
        report.add("array-length", path, message, list(items[:8]), f"at most {MOST_ENTRIES} entries")
        return ()
    if is_number and len(items) != 1:
        message = named(slot.name) + f" has {entry_count(len(items))}; it must be one number"
        report.add("array-length", path, message, list(items), "one number, of rank 0 or shape [1]")
        return ()
    kind = kind_of(slot)
    read = [_read_number(item, path if is_number else (*path, index), kind, report) for index, item in enumerate(items)]
    numbers = [number for number in read if number is not None]
    return tuple(_to_float32(number) for number in numbers) if slot.types == ("float32",) else tuple(numbers)


def _read_number(item: object, path: Path, kind: Kind, report: Report) -> Number | None:
    whole = None
    if not _is_bool(item) and hasattr(item, "__index__"):
        whole = operator.index(cast("Any", item))
    if whole is not None and kind != "float":
        if -_INT64 <= whole < _INT64:
            return whole
        report.add("outside-int64", path, "the number does not fit int64", str(whole)[:40], "an int64")
    elif whole is not None:
        if abs(whole) < 1 << 1023:
            return float(whole)
        report.add("not-a-number", path, "the number is beyond float64", str(whole)[:40], "a number")
    elif (_is_real(item) or item in NOT_FINITE) and kind != "int":
        return float(cast("float", item))
    else:
        expected = "a whole number" if kind == "int" else "a number"
        report.add("not-a-number", path, f"{str(item)[:60]!r} is not {expected}", str(item)[:60], expected)
    return None


def _is_bool(item: object) -> bool:
    return isinstance(item, BOOLEANS)


def _is_real(item: object) -> bool:
    return isinstance(item, (float, np.floating))


def read_attributes(schema: OnnxSchema, attributes: Mapping[str, Any], report: Report) -> dict[str, AttributeValue]:
    """Every attribute that has a value, defaults filled in, by name."""
    names = [entry.name for entry in schema.attributes]
    small = [entry.name for entry in schema.value_inputs]  # callers give them in the place of attributes
    for name in attributes:
        if name not in names:
            message = f"{schema.name} has no attribute " + named(str(name), text=repr(str(name)[:60]))
            message += _elsewhere(schema, operator.methodcaller("attribute", name)) or did_you_mean(
                name, [*names, *small]
            )
            expected = ", ".join([*names, *[f"{name} (an input)" for name in small]]) or "no attributes"
            report.add("attribute-unknown", ("attributes", str(name)), message, attributes[name], expected)
    filled: dict[str, AttributeValue] = {}
    for entry in schema.attributes:
        raw = attributes.get(entry.name)
        value = None
        if raw is not None:
            value = _read_attribute(schema, entry, raw, report)
        elif entry.required:
            message = f"{schema.name} needs the attribute " + named(entry.name)
            report.add("attribute-missing", ("attributes", entry.name), message, None, entry.type)
        if value is None:
            value = entry.default  # after a violation, so that the other rules can still be looked at
        if value is not None:
            filled[entry.name] = value
    return filled


def _read_attribute(schema: OnnxSchema, entry: OnnxAttribute, raw: Any, report: Report) -> AttributeValue | None:
    path = ("attributes", entry.name)
    value: AttributeValue | None
    if entry.type == "STRING":
        value = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
        if not isinstance(value, str):
            report.add("attribute-type", path, named(entry.name) + " must be a text", raw, "a text")
            return None
    elif entry.type == "INT":
        if entry.name in TYPE_ATTRIBUTES and isinstance(raw, (str, type, np.dtype)):
            if not _is_type(raw):
                message = (
                    named(entry.name) + f" is {_shown_type(raw)}; it must be an ONNX type ({_TYPE_NAMES}) or its number"
                )
                report.add("attribute-value", path, message, _shown_type(raw), "an element type")
                return None
            raw = _type_of(raw).onnx_code
        value = _read_number(raw, path, "int", report)
    elif entry.type == "TENSOR":
        return _read_constant(entry, raw, report)
    elif entry.type == "FLOAT":
        value = _read_number(raw, path, "float", report)
        if value is not None:
            value = _to_float32(value)
            if not math.isfinite(value):
                message = named(entry.name) + " must be a finite number that float32 can hold"
                report.add("attribute-value", path, message, str(raw)[:40], "a finite float32")
                return None
    else:
        items = raw.tolist() if hasattr(raw, "tolist") else raw
        if not isinstance(items, (list, tuple)):
            report.add(
                "attribute-type", path, named(entry.name) + " must be an array of numbers", raw, "an array of numbers"
            )
            return None
        before, kind = len(report.violations), "int" if entry.type == "INTS" else "float"
        read = [_read_number(x, (*path, i), kind, report) for i, x in enumerate(cast("Sequence[object]", items))]
        if len(report.violations) > before:
            return None
        numbers = [number for number in read if number is not None]
        return tuple(map(int, numbers)) if kind == "int" else tuple(map(_to_float32, numbers))
    if entry.choices and isinstance(value, str) and value not in entry.choices:
        value = next((choice for choice in entry.choices if str(choice).lower() == value.lower()), value)
    if entry.choices and value is not None and value not in entry.choices:
        message = f"{schema.name} does not take " + named(entry.name) + f" {str(value)[:60]!r}"
        message += _elsewhere(schema, lambda other: _offers(other, entry.name, value)) or (
            did_you_mean(value, map(str, entry.choices)) if isinstance(value, str) else ""
        )
        report.add("attribute-value", path, message, raw, f"one of {', '.join(map(str, entry.choices))}")
        return None
    return value


def _read_constant(entry: OnnxAttribute, raw: Any, report: Report) -> AttributeValue | None:
    """A tensor of one element, as its type and the number."""
    if isinstance(raw, Mapping):
        content = cast("Mapping[str, Any]", raw)
        name, raw = content.get("data_type"), content.get("data")
    else:
        is_array = hasattr(raw, "dtype")
        raw = np.asarray(raw)
        name = "float32" if raw.dtype == np.float64 and not is_array else raw.dtype.name
        raw = raw.reshape(-1).tolist()
    items = cast("Sequence[Any]", raw if isinstance(raw, (list, tuple)) else [raw])
    path = ("attributes", entry.name)
    number = items[0] if len(items) == 1 and isinstance(items[0], (int, float)) else None
    if number is None or not isinstance(name, str) or not _is_type(name):
        message = named(entry.name) + " must be a tensor of one number: its data_type, shape [1] and data"
        report.add("attribute-type", path, message, None, '{"data_type": "float", "shape": [1], "data": [0]}')
        return None
    kind = data_type(name)
    return (kind.numpy_name, float(number) if kind.kind not in "iub" else int(number))


def _offers(schema: OnnxSchema, name: str, value: object) -> bool:
    attribute = schema.attribute(name)
    return attribute is not None and value in attribute.choices


def numbers_of(text: str, path: Path, kind: Kind, report: Report) -> list[Number]:
    """The numbers of a list separated by commas, with or without brackets; an empty text is an empty list."""
    numbers: list[Number] = []
    listed = text.strip()
    listed = listed[1:-1].strip() if listed[:1] == "[" and listed[-1:] == "]" else listed
    for index, item in enumerate(listed.split(",") if listed else []):
        word = item.strip().lower()
        if INTEGER.fullmatch(word) and kind != "float":
            numbers.append(int(word))
        elif _REAL.fullmatch(word) and kind != "int":
            numbers.append(float(word))
        else:
            expected = "a whole number" if kind == "int" else "a number"
            report.add("not-a-number", (*path, index), f"{item[:60]!r} is not {expected}", item[:60], expected)
    return numbers


def proto_value(schema: OnnxSchema, attribute: Any, report: Report) -> object:
    """The value of what is shaped like an `onnx.AttributeProto`; None if it has none of the schema's type."""
    name = str(attribute.name)
    path = ("attributes", name)
    if getattr(attribute, "ref_attr_name", ""):
        message = f"{name[:60]} refers to an attribute of a function; inline the function first"
        report.add("attribute-type", path, message, attribute.ref_attr_name, "a value")
        return None
    entry, proto = schema.attribute(name), _PROTO_TYPES.get(int(attribute.type))
    if proto is None or (entry is not None and entry.type != proto[0]):
        expected = entry.type if entry else ", ".join(known for known, _ in _PROTO_TYPES.values())
        actual = proto[0] if proto else int(attribute.type)
        report.add(
            "attribute-type", path, f"{name[:60]} has the type {actual}; it must be {expected}", actual, expected
        )
        return None
    value: Any = getattr(attribute, proto[1])
    if proto[0] == "TENSOR":
        external = getattr(value, "external_data", ())
        if getattr(value, "data_location", 0) or len(external):  # a file, of any name that a stranger gives it
            message = f"{name[:60]} has external data; load them into the model first"
            report.add("attribute-type", path, message, None, "a tensor that holds its data")
            return None
        return tensor_of_proto(value)
    return list(value) if proto[0].endswith("S") else value


def _to_float32(value: float) -> float:
    """The float32 nearest to the number, as the exact number it is; infinite if float32 cannot hold it."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))


def shortest(value: float) -> float:
    """The number with the fewest digits that float32 rounds to this one: 0.7 for 0.699999988."""
    return float(str(np.float32(value)))

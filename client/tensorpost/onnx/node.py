"""`OnnxNode`: one Tile, Resize or Upsample node as a frozen value, with all that decides the output's shape.

A node knows its attributes and its small inputs by value (repeats, scales, sizes, roi, tiles, axis), and of the tensor it
works on the element type and shape. Everything wrong is reported at once, as one `InvalidDescriptor` whose paths are those
of the JSON form::

    {"op_type": "Resize", "opset": 19, "attributes": {"mode": "linear"},
     "inputs": {"X": {"data_type": "float", "shape": [1, 1, 2, 2]}, "scales": [1, 1, 2, 2]}}

Small inputs given as arrays must have the element types of ONNX's signature. Plain numbers are taken as that type: scales
are rounded to float32, a roi is float64. FLOAT attributes are rounded to float32.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from ..datatypes import data_type
from ..problems import InvalidDescriptor, Violation, nearest
from .resize import Resizing, resizing
from .schemas import AttributeType, OnnxAttribute, OnnxInput, OnnxSchema, find_schema
from .tensor import OnnxTensor
from .tile import Tiling, tiling

__all__ = ["AttributeProtoLike", "NodeProtoLike", "OnnxNode"]

Values = tuple[int | float, ...]
Attribute = str | int | float | tuple[int, ...] | tuple[float, ...]

_INT64 = 1 << 63
_MEMBERS = ("op_type", "opset", "inputs", "attributes")
_DEFAULT_DOMAIN = ("", "ai.onnx")
# AttributeProto.AttributeType in onnx.proto, and the field that holds the value
_PROTO_TYPES: Mapping[int, tuple[AttributeType, str]] = {
    1: ("FLOAT", "f"), 2: ("INT", "i"), 3: ("STRING", "s"), 6: ("FLOATS", "floats"), 7: ("INTS", "ints"),
}  # fmt: skip
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_REAL = re.compile(r"[+-]?(?:(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,4})?|nan|inf)")


class AttributeProtoLike(Protocol):
    """What is read of `onnx.AttributeProto`; the value's field depends on `type`."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> int: ...


class NodeProtoLike(Protocol):
    """What is read of `onnx.NodeProto`."""

    @property
    def op_type(self) -> str: ...
    @property
    def input(self) -> Sequence[str]: ...
    @property
    def output(self) -> Sequence[str]: ...
    @property
    def attribute(self) -> Iterable[Any]: ...


@dataclass(frozen=True, slots=True, init=False)
class OnnxNode:
    """One ONNX node, validated, its output known. Hashable and picklable.

    Attributes:
        op_type: `Tile`, `Resize` or `Upsample`.
        opset: the default-domain opset it is read at.
        schema: the version of the operator that this opset means.
        input: type and shape of the tensor it works on.
        values: the small inputs that were given, by name, in the signature's order. Float32 entries are the exact numbers
            that float32 holds.
        attributes: every attribute that has a value, defaults filled in, by name, in the schema's order.
        output: type and shape of the result.
        meaning: what to compute, with nothing of the version left in it.
        warnings: what other implementations are known to answer differently, as sentences.

    Example:
        >>> x = OnnxTensor("float", (1, 1, 2, 2))
        >>> OnnxNode.of("Resize", {"X": x, "scales": [1, 1, 2, 3]}, opset=19, mode="linear").output.shape
        (1, 1, 4, 6)

    Raises:
        UnknownOperator: no such operator.
        InvalidDescriptor: with every rule that is broken.
    """

    op_type: str
    opset: int
    schema: OnnxSchema
    input: OnnxTensor
    values: tuple[tuple[str, Values], ...]
    attributes: tuple[tuple[str, Attribute], ...]
    output: OnnxTensor
    meaning: Tiling | Resizing
    warnings: tuple[str, ...]

    def __init__(
        self, op_type: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any] | None = None, *, opset: int
    ) -> None:
        found: list[Violation] = []
        schema = _schema(op_type, opset, found)
        if schema is None:
            raise InvalidDescriptor.of(found)
        tensor = _read_tensor(schema, inputs, found)
        values = _read_values(schema, inputs, tensor, found)
        filled = _read_attributes(schema, attributes or {}, found)
        warnings: list[str] = []
        result: tuple[Tiling | Resizing, tuple[int, ...]] | None = None
        if tensor is not None:
            if schema.op_type == "Tile":
                result = tiling(schema, tensor, values, found)
            else:
                result = resizing(schema, tensor, values, filled, found, warnings)
        if found:
            raise InvalidDescriptor.of(found)
        # Without a violation both are there; the type checker cannot see that.
        assert tensor is not None
        assert result is not None
        meaning, shape = result
        fields: dict[str, object] = {
            "op_type": op_type, "opset": opset, "schema": schema, "input": tensor,
            "values": tuple(values.items()), "attributes": tuple(filled.items()),
            "output": OnnxTensor(tensor.data_type, shape), "meaning": meaning, "warnings": tuple(warnings),
        }  # fmt: skip
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, op_type: str, inputs: Mapping[str, Any], *, opset: int, **attributes: Any) -> OnnxNode:
        """Build a node the way it is written in Python.

        Args:
            op_type: `Tile`, `Resize` or `Upsample`.
            inputs: by formal name. The tensor as an `OnnxTensor` or an array, of which only type and shape are kept;
                small inputs as arrays, sequences or numbers; None for one that is left out.
            opset: the default-domain opset.
            attributes: by name.

        Raises:
            UnknownOperator: no such operator.
            InvalidDescriptor: with every rule that is broken.
        """
        return cls(op_type, inputs, attributes, opset=opset)

    @classmethod
    def from_json(cls, document: object) -> OnnxNode:
        """Read the JSON form, see the module.

        Raises:
            UnknownOperator: no such operator.
            InvalidDescriptor: with every rule that is broken.
        """
        if not isinstance(document, Mapping):
            raise InvalidDescriptor.of([_document_violation((), "a node must be a JSON object", document)])
        members = cast("Mapping[str, Any]", document)
        found: list[Violation] = []
        for key in members:
            if key not in _MEMBERS:
                guess = nearest(key, _MEMBERS)
                hint = f"; did you mean {guess!r}?" if guess else ""
                found.append(_document_violation((key,), f"a node has no member {key[:60]!r}{hint}", members[key]))
        if not isinstance(members.get("op_type"), str):
            found.append(_document_violation(("op_type",), "op_type must name the operator", members.get("op_type")))
        for key in ("inputs", "attributes"):
            if not isinstance(members.get(key, {} if key == "attributes" else None), Mapping):
                found.append(_document_violation((key,), f"{key} must be an object", members.get(key)))
        if found:
            raise InvalidDescriptor.of(found)
        return cls(members["op_type"], members["inputs"], members.get("attributes", {}), opset=members.get("opset", 0))

    @classmethod
    def from_query(
        cls,
        op_type: str,
        opset: int | str,
        params: Mapping[str, str],
        tensor: OnnxTensor,
        inputs: Mapping[str, Any] = {},
    ) -> OnnxNode:
        """Read a query string's parameters, each an attribute or a small input; lists are separated by commas.

        Args:
            op_type: `Tile`, `Resize` or `Upsample`.
            opset: a number, or its text.
            params: the other parameters; an empty text is an empty list.
            tensor: type and shape of the tensor in the body.
            inputs: small inputs that came in another way, as arrays by formal name.

        Example:
            >>> OnnxNode.from_query("Tile", "13", {"repeats": "2,1"}, OnnxTensor("int8", (2, 3))).output.shape
            (4, 3)

        Raises:
            UnknownOperator: no such operator.
            InvalidDescriptor: with every rule that is broken.
        """
        found: list[Violation] = []
        schema = _schema(op_type, opset, found)
        if schema is None:
            raise InvalidDescriptor.of(found)
        given: dict[str, Any] = {schema.data_input.name: tensor, **inputs}
        attributes: dict[str, Any] = {}
        for name, text in params.items():
            slot, attribute = schema.input(name), schema.attribute(name)
            if slot is not None and not slot.data:
                if name in inputs:
                    message = f"{name} stands in the query and among the tensors; send it once"
                    found.append(_violation(schema, "input-twice", ("inputs", name), message, text, "one of the two"))
                given[name] = _numbers(schema, ("inputs", name), text, _kinds(slot), found)
                if schema.name == "Tile-1" and len(given[name]) == 1:
                    given[name] = given[name][0]
            elif attribute is None or attribute.type == "STRING":
                attributes[name] = text  # the constructor names what is unknown
            else:
                kind = "int" if attribute.type.startswith("INT") else "float"
                numbers = _numbers(schema, ("attributes", name), text, kind, found)
                attributes[name] = numbers if attribute.type.endswith("S") or len(numbers) != 1 else numbers[0]
        if found:
            raise InvalidDescriptor.of(found)
        return cls(op_type, given, attributes, opset=int(opset))

    @classmethod
    def from_node_proto(cls, node: NodeProtoLike, opset: int, inputs: Mapping[str, Any]) -> OnnxNode:
        """Read an `onnx.NodeProto`, or anything shaped like one; the `onnx` package is not needed.

        Args:
            node: the node. Its inputs are read by position; an empty name is an input left out.
            opset: the model's opset of the default domain.
            inputs: by the graph's value names: arrays, or an `OnnxTensor` for the tensor that is worked on.

        Raises:
            UnknownOperator: no such operator.
            InvalidDescriptor: with every rule that is broken.
        """
        found: list[Violation] = []
        schema = _schema(node.op_type, opset, found)
        domain = str(getattr(node, "domain", ""))
        if domain not in _DEFAULT_DOMAIN:
            found.append(
                Violation(
                    "domain", ("domain",), f"the operators here are those of the default domain, not {domain!r}", domain,
                    '"" or "ai.onnx"', "ONNX IR, operator sets",
                )
            )  # fmt: skip
        if schema is None:
            raise InvalidDescriptor.of(found)
        if len(node.output) != 1:
            message = f"{schema.name} has one output, not {len(node.output)}"
            found.append(_violation(schema, "output-count", ("output",), message, len(node.output), "1"))
        if len(node.input) > len(schema.inputs):
            message = f"{schema.name} has {len(schema.inputs)} inputs, not {len(node.input)}"
            names = ", ".join(entry.name for entry in schema.inputs)
            found.append(_violation(schema, "input-unknown", ("input",), message, len(node.input), names))
        given: dict[str, Any] = {}
        for index, (slot, name) in enumerate(zip(schema.inputs, node.input, strict=False)):
            if name and name not in inputs:
                message = f"{slot.name} is the value {name!r}, which was not given"
                found.append(
                    _violation(schema, "value-missing", ("input", index), message, name, "a value of that name")
                )
            elif name:
                given[slot.name] = inputs[name]
        attributes: dict[str, Any] = {}
        for attribute in node.attribute:
            value = _proto_value(schema, attribute, found)
            if value is not None:
                attributes[attribute.name] = value
        if found:
            raise InvalidDescriptor.of(found)
        return cls(schema.op_type, given, attributes, opset=opset)

    def value(self, name: str) -> Values | None:
        """The entries of a small input; None if it was left out."""
        return dict(self.values).get(name)

    def attribute(self, name: str) -> Attribute | None:
        """An attribute's value, its default included; None if it has neither."""
        return dict(self.attributes).get(name)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, with every attribute written out; `from_json` reads it back to an equal node."""
        inputs: dict[str, Any] = {self.schema.data_input.name: self.input.to_json()}
        for name, entries in self.values:
            slot = self.schema.input(name)
            wide = slot is None or slot.types != ("float32",)
            inputs[name] = [entry if wide else _shortest_float32(entry) for entry in entries]
        attributes: dict[str, Any] = {}
        for name, value in self.attributes:
            entry = self.schema.attribute(name)
            if entry is not None and entry.type == "FLOAT":
                attributes[name] = _shortest_float32(cast("float", value))
            elif entry is not None and entry.type == "FLOATS":
                attributes[name] = [_shortest_float32(number) for number in cast("Values", value)]
            else:
                attributes[name] = list(value) if isinstance(value, tuple) else value
        return {"op_type": self.op_type, "opset": self.opset, "inputs": inputs, "attributes": attributes}

    def to_json_text(self) -> str:
        """`to_json` as compact JSON text, as it travels in a frame's head."""
        return json.dumps(self.to_json(), separators=(",", ":"))


# -- reading --


def _violation(
    schema: OnnxSchema, code: str, path: tuple[str | int, ...], message: str, value: object, expected: str
) -> Violation:
    return Violation(code, path, message, value, expected, f"ONNX {schema.name}")


def _document_violation(path: tuple[str, ...], message: str, value: object) -> Violation:
    return Violation("document", path, message, value, ", ".join(_MEMBERS), "tensorpost's JSON form of an ONNX node")


def _schema(op_type: str, opset: object, found: list[Violation]) -> OnnxSchema | None:
    number = opset
    if isinstance(opset, str) and _INTEGER.fullmatch(opset):
        number = int(opset)
    if isinstance(number, bool) or not isinstance(number, int):
        message = "opset must be the whole number of a default-domain opset"
        found.append(Violation("opset", ("opset",), message, opset, "a whole number", "ONNX IR, operator sets"))
        number = 0
        find_schema(op_type, number)  # an unknown operator is the larger mistake
        return None
    schema = find_schema(op_type, number)
    if isinstance(schema, Violation):
        found.append(schema)
        return None
    return schema


def _read_tensor(schema: OnnxSchema, inputs: Mapping[str, Any], found: list[Violation]) -> OnnxTensor | None:
    slot = schema.data_input
    given = inputs.get(slot.name)
    if given is None:
        message = f"{schema.name} needs the input {slot.name}, described by its type and shape"
        found.append(_violation(schema, "input-missing", ("inputs", slot.name), message, None, "a tensor"))
        return None
    try:
        if isinstance(given, OnnxTensor):
            tensor = given
        elif hasattr(given, "dtype") and hasattr(given, "shape"):
            tensor = OnnxTensor.describe(given)
        else:
            tensor = OnnxTensor.from_json(given)
    except InvalidDescriptor as error:
        found += error.under("inputs", slot.name).violations
        return None
    if tensor.data_type not in slot.types:
        allowed = ", ".join(data_type(name).onnx for name in slot.types)
        message = f"{schema.name} does not take tensor({tensor.row.onnx})"
        path = ("inputs", slot.name, "data_type")
        found.append(_violation(schema, "data-type-unsupported", path, message, tensor.row.onnx, f"one of {allowed}"))
    return tensor


def _read_values(
    schema: OnnxSchema, inputs: Mapping[str, Any], tensor: OnnxTensor | None, found: list[Violation]
) -> dict[str, Values]:
    names = [entry.name for entry in schema.inputs]
    for name in inputs:
        if name not in names:
            guess = nearest(str(name), names)
            hint = f"; did you mean {guess!r}?" if guess else ""
            message = f"{schema.name} has no input {str(name)[:60]!r}{hint}"
            found.append(_violation(schema, "input-unknown", ("inputs", name), message, None, ", ".join(names)))
    values: dict[str, Values] = {}
    for slot in schema.value_inputs:
        if inputs.get(slot.name) is None:
            if not slot.optional:
                hint = "; it may be empty" if schema.name == "Resize-11" else ""
                message = f"{schema.name} needs the input {slot.name}{hint}"
                found.append(_violation(schema, "input-missing", ("inputs", slot.name), message, None, "an array"))
            continue
        before = len(found)
        entries = _entries(schema, slot, inputs[slot.name], tensor, found)
        if len(found) == before:
            values[slot.name] = entries
    return values


def _kinds(slot: OnnxInput) -> str:
    """What plain numbers may be: `int`, `float` (whole numbers too), or `either` with the difference kept."""
    if "int64" not in slot.types:
        return "float"
    return "int" if slot.types == ("int64",) else "either"


def _entries(
    schema: OnnxSchema, slot: OnnxInput, given: Any, tensor: OnnxTensor | None, found: list[Violation]
) -> Values:
    path = ("inputs", slot.name)
    scalar_form = schema.name == "Tile-1"
    kind = _kinds(slot)
    if hasattr(given, "dtype"):
        array = np.asarray(given)
        allowed = slot.types
        if scalar_form and tensor is not None:
            allowed = ("int64", tensor.data_type)
        if array.dtype.name not in allowed:
            names = " or ".join(data_type(name).onnx for name in allowed)
            message = f"{slot.name} is an array of {array.dtype.name}; it must be tensor({names})"
            found.append(_violation(schema, "input-type", path, message, array.dtype.name, names))
            return ()
        given = array.tolist()
        if array.ndim > 1:
            message = f"{slot.name} has {array.ndim} dimensions; it must have one"
            found.append(_violation(schema, "input-shape", path, message, list(array.shape), "one dimension"))
            return ()
    if not isinstance(given, (list, tuple)):
        if scalar_form:
            given = [given]
        else:
            message = f"{slot.name} must be a one-dimensional array of numbers"
            found.append(_violation(schema, "not-an-array", path, message, given, "an array of numbers"))
            return ()
    items = cast("Sequence[object]", given)
    if scalar_form and len(items) != 1:
        message = f"{slot.name} has {len(items)} entries; it must be one number"
        found.append(
            _violation(schema, "array-length", path, message, list(items), "one number, of rank 0 or shape [1]")
        )
        return ()
    as_float32 = slot.types == ("float32",)
    numbers: list[int | float] = []
    for index, item in enumerate(items):
        place = path if scalar_form else (*path, index)
        number = _number(schema, place, item, kind, found)
        if number is not None:
            numbers.append(_to_float32(number) if as_float32 else number)
    return tuple(numbers) if kind != "float" else tuple(float(number) for number in numbers)


def _number(
    schema: OnnxSchema, path: tuple[str | int, ...], item: object, kind: str, found: list[Violation]
) -> int | float | None:
    whole = _index(item)
    if whole is not None and kind != "float":
        if -_INT64 <= whole < _INT64:
            return whole
        found.append(_violation(schema, "outside-int64", path, "does not fit int64", str(whole)[:40], "an int64"))
    elif whole is not None:
        if abs(whole) < 1 << 1023:
            return float(whole)
        found.append(_violation(schema, "not-a-number", path, "is beyond float64", str(whole)[:40], "a number"))
    elif isinstance(item, (float, np.floating)) and kind != "int":
        return float(cast("float", item))
    else:
        what = "a whole number" if kind == "int" else "a number"
        message = f"is {str(item)[:60]!r}, which is not {what}"
        found.append(_violation(schema, "not-a-number", path, message, item, what))
    return None


def _index(item: object) -> int | None:
    try:
        return None if isinstance(item, (bool, np.bool_)) else operator.index(cast("Any", item))
    except TypeError:
        return None


def _read_attributes(schema: OnnxSchema, attributes: Mapping[str, Any], found: list[Violation]) -> dict[str, Attribute]:
    names = [entry.name for entry in schema.attributes]
    for name in attributes:
        if name not in names:
            guess = nearest(str(name), names)
            hint = f"; did you mean {guess!r}?" if guess else ""
            expected = ", ".join(names) or "no attributes"
            message = f"{schema.name} has no attribute {str(name)[:60]!r}{hint}"
            path = ("attributes", str(name))
            found.append(_violation(schema, "attribute-unknown", path, message, attributes[name], expected))
    filled: dict[str, Attribute] = {}
    for entry in schema.attributes:
        given = attributes.get(entry.name)
        if given is None:
            if entry.required:
                message = f"{schema.name} needs the attribute {entry.name}"
                found.append(
                    _violation(schema, "attribute-missing", ("attributes", entry.name), message, None, entry.type)
                )
            elif entry.default is not None:
                filled[entry.name] = entry.default
            continue
        before = len(found)
        value = _attribute(schema, entry, given, found)
        if len(found) == before and value is not None:
            filled[entry.name] = value
        elif entry.default is not None:
            filled[entry.name] = entry.default  # so that the other rules can still be looked at
    return filled


def _attribute(schema: OnnxSchema, entry: OnnxAttribute, given: Any, found: list[Violation]) -> Attribute | None:
    path = ("attributes", entry.name)
    if entry.type == "STRING":
        value = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
        if not isinstance(value, str):
            found.append(_violation(schema, "attribute-type", path, f"{entry.name} must be a text", given, "a text"))
            return None
    elif entry.type in ("INT", "FLOAT"):
        value = _number(schema, path, given, entry.type.lower(), found)
        if value is not None and entry.type == "FLOAT":
            value = _to_float32(value)
            if not math.isfinite(value):
                message = f"{entry.name} must be a finite number that float32 can hold"
                found.append(_violation(schema, "attribute-value", path, message, str(given)[:40], "a finite float32"))
    else:
        if hasattr(given, "tolist"):
            given = given.tolist()
        if not isinstance(given, (list, tuple)):
            message = f"{entry.name} must be an array of numbers"
            found.append(_violation(schema, "attribute-type", path, message, given, "an array of numbers"))
            return None
        kind = "int" if entry.type == "INTS" else "float"
        items = [
            _number(schema, (*path, i), item, kind, found) for i, item in enumerate(cast("Sequence[object]", given))
        ]
        numbers = [item for item in items if item is not None]
        return tuple(int(n) for n in numbers) if kind == "int" else tuple(_to_float32(n) for n in numbers)
    if entry.choices and value is not None and value not in entry.choices:
        allowed = ", ".join(map(str, entry.choices))
        guess = nearest(value, map(str, entry.choices)) if isinstance(value, str) else None
        hint = f"; did you mean {guess!r}?" if guess else ""
        message = f"{str(value)[:60]!r} is no {entry.name} of {schema.name}{hint}"
        found.append(_violation(schema, "attribute-value", path, message, given, f"one of {allowed}"))
        return None
    return value


def _numbers(
    schema: OnnxSchema, path: tuple[str, str], text: str, kind: str, found: list[Violation]
) -> list[int | float]:
    numbers: list[int | float] = []
    for index, item in enumerate(text.split(",") if text.strip() else []):
        word = item.strip().lower()
        if _INTEGER.fullmatch(word) and kind != "float":
            numbers.append(int(word))
        elif _REAL.fullmatch(word) and kind != "int":
            numbers.append(float(word))
        else:
            what = "a whole number" if kind == "int" else "a number"
            message = f"{item[:60]!r} is not {what}"
            found.append(_violation(schema, "not-a-number", (*path, index), message, item[:60], what))
    return numbers


def _proto_value(schema: OnnxSchema, attribute: Any, found: list[Violation]) -> object:
    path = ("attributes", str(attribute.name))
    if getattr(attribute, "ref_attr_name", ""):
        message = f"{attribute.name} refers to an attribute of a function; inline the function first"
        found.append(_violation(schema, "attribute-type", path, message, attribute.ref_attr_name, "a value"))
        return None
    entry = schema.attribute(attribute.name)
    proto = _PROTO_TYPES.get(int(attribute.type))
    if proto is None or (entry is not None and entry.type != proto[0]):
        expected = entry.type if entry else "FLOAT, INT, STRING, FLOATS or INTS"
        actual = proto[0] if proto else int(attribute.type)
        message = f"{attribute.name} has the attribute type {actual}; it must be {expected}"
        found.append(_violation(schema, "attribute-type", path, message, actual, expected))
        return None
    value = getattr(attribute, proto[1])
    return list(value) if proto[0].endswith("S") else value


def _to_float32(value: float) -> float:
    """The float32 nearest to the number, as the exact number it is; infinite if float32 cannot hold it."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))


def _shortest_float32(value: float) -> float:
    """The number with the fewest digits that float32 rounds to this one: 0.7 for 0.699999988."""
    return float(str(np.float32(value)))

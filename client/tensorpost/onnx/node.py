"""`OnnxNode`: one Tile, Resize or Upsample node as a frozen value, with all that decides the output's shape.

A node knows its attributes and its small inputs by value (repeats, scales, sizes, roi, tiles, axis), and of the tensor
it works on the element type and shape. Everything wrong is reported at once, as one `InvalidDescriptor` whose paths are
those of the JSON form::

    {"op_type": "Resize", "opset": 19, "attributes": {"mode": "linear"},
     "inputs": {"X": {"data_type": "float", "shape": [1, 1, 2, 2]}, "scales": [1, 1, 2, 2]}}

Small inputs given as arrays must have the element types of ONNX's signature. Plain numbers are taken as that type:
scales are rounded to float32, a roi is float64. FLOAT attributes are rounded to float32.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ..datatypes import data_type
from ..problems import InvalidDescriptor, Violation
from ._report import Path, Report, did_you_mean
from .resize import Resizing, resizing
from .schemas import ONNX_OPERATORS, AttributeType, OnnxAttribute, OnnxInput, OnnxSchema, find_schema
from .tensor import MAX_RANK, OnnxTensor
from .tile import Tiling, tiling

__all__ = ["NodeProtoLike", "OnnxNode"]

Number = int | float
MOST_ENTRIES = 2 * MAX_RANK  # of a small input: a roi has two for each dimension

Values = tuple[Number, ...]
Attribute = str | int | float | tuple[int, ...] | tuple[float, ...]
Kind = Literal["int", "float", "either"]
"""What plain numbers may be: whole, any (whole ones become floats), or either with the difference kept."""

_INT64 = 1 << 63
_MEMBERS = ("op_type", "opset", "inputs", "attributes")
_JSON_FORM = "tensorpost's JSON form of an ONNX node"
# AttributeProto.AttributeType in onnx.proto, and the field that holds the value
_PROTO_TYPES: Mapping[int, tuple[AttributeType, str]] = {
    1: ("FLOAT", "f"), 2: ("INT", "i"), 3: ("STRING", "s"), 6: ("FLOATS", "floats"), 7: ("INTS", "ints"),
}  # fmt: skip
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_REAL = re.compile(r"[+-]?(?:(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,4})?|nan|inf)")


class NodeProtoLike(Protocol):
    """What is read of `onnx.NodeProto`; the attributes are read like `onnx.AttributeProto`."""

    @property
    def op_type(self) -> str:
        """The operator."""
        ...

    @property
    def input(self) -> Sequence[str]:
        """Names of graph values by position; empty for an input left out."""
        ...

    @property
    def output(self) -> Sequence[str]:
        """Names of graph values by position."""
        ...

    @property
    def attribute(self) -> Iterable[Any]:
        """Objects with `name`, `type` and the field that the type says."""
        ...


@dataclass(frozen=True, slots=True, init=False)
class OnnxNode:
    """One ONNX node, validated, its output known. Hashable and picklable.

    Attributes:
        op_type: `Tile`, `Resize` or `Upsample`.
        opset: the default-domain opset it is read at.
        input: type and shape of the tensor it works on.
        values: the small inputs that were given, by name, in the signature's order. Float32 entries are the exact
            numbers that float32 holds.
        attributes: every attribute that has a value, defaults filled in, by name, in the schema's order.
        schema: the version of the operator that the opset means.
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
    input: OnnxTensor
    values: tuple[tuple[str, Values], ...]
    attributes: tuple[tuple[str, Attribute], ...]
    # What follows from the fields above costs nothing to compare, but much to hash.
    schema: OnnxSchema = field(hash=False, repr=False)
    output: OnnxTensor = field(hash=False)
    meaning: Tiling | Resizing = field(hash=False, repr=False)
    warnings: tuple[str, ...] = field(hash=False)

    def __init__(
        self, op_type: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any] | None = None, *, opset: int
    ) -> None:
        schema = _schema_of(op_type, opset)
        report = Report(f"ONNX {schema.name}")
        tensor = _read_tensor(schema, inputs, report)
        values = _read_values(schema, inputs, tensor, report)
        filled = _read_attributes(schema, attributes or {}, report)
        result: tuple[Tiling | Resizing, tuple[int, ...]] | None = None
        if tensor is not None and schema.op_type == "Tile":
            result = tiling(schema, tensor, values, report)
        elif tensor is not None:
            result = resizing(schema, tensor, values, filled, report)
        if report.found:
            raise InvalidDescriptor.of(report.found)
        # Without a violation both are there; the type checker cannot see that.
        assert tensor is not None
        assert result is not None
        meaning, shape = result
        everything: dict[str, object] = {
            "op_type": op_type, "opset": opset, "input": tensor, "values": tuple(values.items()),
            "attributes": tuple(filled.items()), "schema": schema, "output": OnnxTensor(tensor.data_type, shape),
            "meaning": meaning, "warnings": tuple(report.warnings),
        }  # fmt: skip
        for name, value in everything.items():
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
        report = Report(_JSON_FORM)
        members: Mapping[str, Any] = {}
        if isinstance(document, Mapping):
            members = cast("Mapping[str, Any]", document)
        else:
            report.add("document", (), "a node must be a JSON object", document, ", ".join(_MEMBERS))
            raise InvalidDescriptor.of(report.found)
        for key in members:
            if key not in _MEMBERS:
                message = f"a node has no member {key[:60]!r}{did_you_mean(key, _MEMBERS)}"
                report.add("document", (key,), message, members[key], ", ".join(_MEMBERS))
        if not isinstance(members.get("op_type"), str):
            report.add("document", ("op_type",), "op_type must name the operator", members.get("op_type"), "a text")
        if not isinstance(members.get("inputs"), Mapping):
            report.add("document", ("inputs",), "inputs must be an object", members.get("inputs"), "an object")
        if not isinstance(members.get("attributes", {}), Mapping):
            report.add("document", ("attributes",), "attributes must be an object", members["attributes"], "an object")
        if report.found:
            raise InvalidDescriptor.of(report.found)
        opset = cast("int", members.get("opset"))  # checked there
        return cls(members["op_type"], members["inputs"], members.get("attributes"), opset=opset)

    @classmethod
    def from_query(
        cls,
        op_type: str,
        opset: int | str,
        params: Mapping[str, str],
        tensor: OnnxTensor,
        inputs: Mapping[str, Any] | None = None,
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
        number: Any = int(opset) if isinstance(opset, str) and _INTEGER.fullmatch(opset) else opset
        schema = _schema_of(op_type, number)
        report = Report(f"ONNX {schema.name}")
        given: dict[str, Any] = {schema.data_input.name: tensor, **(inputs or {})}
        attributes: dict[str, Any] = {}
        for name, text in params.items():
            slot, attribute = schema.input(name), schema.attribute(name)
            if slot is not None and not slot.data:
                if name in given:
                    message = f"{name} stands in the query and among the tensors; send it once"
                    report.add("input-twice", ("inputs", name), message, text, "one of the two")
                numbers = _numbers_of(text, ("inputs", name), _kind(slot), report)
                given[name] = numbers[0] if schema.name == "Tile-1" and len(numbers) == 1 else numbers
            elif attribute is None or attribute.type == "STRING":
                attributes[name] = text  # the constructor names what is unknown
            else:
                kind = "int" if attribute.type.startswith("INT") else "float"
                numbers = _numbers_of(text, ("attributes", name), kind, report)
                attributes[name] = numbers[0] if attribute.type[-1] != "S" and len(numbers) == 1 else numbers
        if report.found:
            raise InvalidDescriptor.of(report.found)
        return cls(op_type, given, attributes, opset=number)

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
        schema = _schema_of(node.op_type, opset)
        report = Report(f"ONNX {schema.name}")
        domain = str(getattr(node, "domain", ""))
        if domain not in ("", "ai.onnx"):
            message = f"the operators here are those of the default domain, not {domain[:60]!r}"
            report.add("domain", ("domain",), message, domain, '"" or "ai.onnx"')
        if len(node.output) != 1:
            message = f"{schema.name} has one output, not {len(node.output)}"
            report.add("output-count", ("output",), message, len(node.output), "1")
        if len(node.input) > len(schema.inputs):
            message = f"{schema.name} has {len(schema.inputs)} inputs, not {len(node.input)}"
            names = ", ".join(entry.name for entry in schema.inputs)
            report.add("input-unknown", ("input",), message, len(node.input), names)
        given: dict[str, Any] = {}
        for index, (slot, name) in enumerate(zip(schema.inputs, node.input, strict=False)):
            if name and name not in inputs:
                message = f"{slot.name} is the value {name[:60]!r}, which was not given"
                report.add("value-missing", ("input", index), message, name, "a value of that name")
            elif name:
                given[slot.name] = inputs[name]
        attributes = {str(item.name): _proto_value(schema, item, report) for item in node.attribute}
        if report.found:
            raise InvalidDescriptor.of(report.found)
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
            is_float32 = slot is not None and slot.types == ("float32",)
            inputs[name] = [_shortest(entry) if is_float32 else entry for entry in entries]
        attributes: dict[str, Any] = {}
        for name, value in self.attributes:
            if isinstance(value, tuple):
                attributes[name] = [_shortest(item) if isinstance(item, float) else item for item in value]
            else:
                attributes[name] = _shortest(value) if isinstance(value, float) else value
        return {"op_type": self.op_type, "opset": self.opset, "inputs": inputs, "attributes": attributes}

    def to_json_text(self) -> str:
        """`to_json` as compact JSON text, as it travels in a frame's head."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    def explain(self) -> dict[str, Any]:
        """What the node was understood as, as plain JSON, for a validating answer.

        The version it is read as, its output, the warnings, and for Tile-1 which reading of its contradictory text the
        numbers follow.
        """
        about: dict[str, Any] = {
            "schema": self.schema.name,
            "output": self.output.to_json(),
            "warnings": list(self.warnings),
        }
        if isinstance(self.meaning, Tiling) and self.meaning.form is not None:
            about["form"] = self.meaning.form
        return about


# -- reading --


def _schema_of(op_type: str, opset: object) -> OnnxSchema:
    if isinstance(opset, int) and not isinstance(opset, bool):
        schema = find_schema(op_type, opset)
        if isinstance(schema, OnnxSchema):
            return schema
        raise InvalidDescriptor.of([schema])
    find_schema(op_type, 0)  # an unknown operator is the larger mistake
    message = f"{op_type} means different things at different opsets; say which one, as a whole number"
    raise InvalidDescriptor.of(
        [Violation("opset", ("opset",), message, opset, "a whole number", "ONNX IR, operator sets")]
    )


def _read_tensor(schema: OnnxSchema, inputs: Mapping[str, Any], report: Report) -> OnnxTensor | None:
    slot = schema.data_input
    given = inputs.get(slot.name)
    if given is None:
        message = f"{schema.name} needs the input {slot.name}, described by its type and shape"
        report.add("input-missing", ("inputs", slot.name), message, None, "a tensor")
        return None
    try:
        if isinstance(given, OnnxTensor):
            tensor = given
        elif hasattr(given, "dtype") and hasattr(given, "shape"):
            tensor = OnnxTensor.describe(given)
        else:
            tensor = OnnxTensor.from_json(given)
    except InvalidDescriptor as error:
        report.found += error.under("inputs", slot.name).violations
        return None
    if tensor.data_type not in slot.types:
        message = f"{schema.name} does not take tensor({tensor.row.onnx})"
        message += _elsewhere(schema, lambda other: tensor.data_type in other.data_input.types)
        allowed = ", ".join(data_type(name).onnx for name in slot.types)
        path = ("inputs", slot.name, "data_type")
        report.add("data-type-unsupported", path, message, tensor.row.onnx, f"one of {allowed}")
    return tensor


def _elsewhere(schema: OnnxSchema, has: Callable[[OnnxSchema], object]) -> str:
    """The end of a sentence that names the versions of the operator which do have it."""
    others = [other.name for other in ONNX_OPERATORS if other.op_type == schema.op_type and has(other)]
    if not others:
        return ""
    return f"; {', '.join(others)} " + ("does" if len(others) == 1 else "do")


def _read_values(
    schema: OnnxSchema, inputs: Mapping[str, Any], tensor: OnnxTensor | None, report: Report
) -> dict[str, Values]:
    names = [entry.name for entry in schema.inputs]
    for name in inputs:
        if name not in names:
            message = f"{schema.name} has no input {str(name)[:60]!r}"
            message += _elsewhere(schema, operator.methodcaller("input", name)) or did_you_mean(name, names)
            report.add("input-unknown", ("inputs", str(name)), message, None, ", ".join(names))
    values: dict[str, Values] = {}
    for slot in schema.value_inputs:
        if inputs.get(slot.name) is not None:
            before = len(report.found)
            entries = _read_value(schema, slot, inputs[slot.name], tensor, report)
            if len(report.found) == before:
                values[slot.name] = entries
        elif not slot.optional:
            hint = "; it may be empty" if schema.name == "Resize-11" else ""
            message = f"{schema.name} needs the input {slot.name}{hint}"
            report.add("input-missing", ("inputs", slot.name), message, None, "an array")
    return values


def _kind(slot: OnnxInput) -> Kind:
    if "int64" not in slot.types:
        return "float"
    return "int" if slot.types == ("int64",) else "either"


def _read_value(schema: OnnxSchema, slot: OnnxInput, given: Any, tensor: OnnxTensor | None, report: Report) -> Values:
    path = ("inputs", slot.name)
    is_number = schema.name == "Tile-1"
    if hasattr(given, "dtype"):
        array: NDArray[Any] = np.asarray(given)
        allowed = ("int64", tensor.data_type) if is_number and tensor is not None else slot.types
        if array.dtype.name not in allowed:
            names = " or ".join(f"tensor({data_type(name).onnx})" for name in allowed)
            message = f"{slot.name} is an array of {array.dtype.name}; it must be {names}"
            report.add("input-type", path, message, array.dtype.name, names)
            return ()
        if array.ndim > 1:
            message = f"{slot.name} has {array.ndim} dimensions; it must have one"
            report.add("input-shape", path, message, list(array.shape), "one dimension")
            return ()
        given = array[: MOST_ENTRIES + 1].tolist() if array.ndim else array.tolist()
    if is_number and not isinstance(given, (list, tuple)):
        given = [given]
    if not isinstance(given, (list, tuple)):
        message = f"{slot.name} must be a one-dimensional array of numbers"
        report.add("not-an-array", path, message, given, "an array of numbers")
        return ()
    items = cast("Sequence[object]", given)
    if len(items) > MOST_ENTRIES:
        message = f"{slot.name} has more than {MOST_ENTRIES} entries, and no tensor has so many dimensions"
        report.add("array-length", path, message, list(items[:8]), f"at most {MOST_ENTRIES} entries")
        return ()
    if is_number and len(items) != 1:
        message = f"{slot.name} has {len(items)} entries; it must be one number"
        report.add("array-length", path, message, list(items), "one number, of rank 0 or shape [1]")
        return ()
    kind = _kind(slot)
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
    elif _is_real(item) and kind != "int":
        return float(cast("float", item))
    else:
        expected = "a whole number" if kind == "int" else "a number"
        report.add("not-a-number", path, f"{str(item)[:60]!r} is not {expected}", str(item)[:60], expected)
    return None


def _is_bool(item: object) -> bool:
    return isinstance(item, (bool, np.bool_))


def _is_real(item: object) -> bool:
    return isinstance(item, (float, np.floating))


def _read_attributes(schema: OnnxSchema, attributes: Mapping[str, Any], report: Report) -> dict[str, Attribute]:
    names = [entry.name for entry in schema.attributes]
    for name in attributes:
        if name not in names:
            message = f"{schema.name} has no attribute {str(name)[:60]!r}"
            message += _elsewhere(schema, operator.methodcaller("attribute", name)) or did_you_mean(name, names)
            expected = ", ".join(names) or "no attributes"
            report.add("attribute-unknown", ("attributes", str(name)), message, attributes[name], expected)
    filled: dict[str, Attribute] = {}
    for entry in schema.attributes:
        given = attributes.get(entry.name)
        value = None
        if given is not None:
            value = _read_attribute(schema, entry, given, report)
        elif entry.required:
            message = f"{schema.name} needs the attribute {entry.name}"
            report.add("attribute-missing", ("attributes", entry.name), message, None, entry.type)
        if value is None:
            value = entry.default  # after a violation, so that the other rules can still be looked at
        if value is not None:
            filled[entry.name] = value
    return filled


def _read_attribute(schema: OnnxSchema, entry: OnnxAttribute, given: Any, report: Report) -> Attribute | None:
    path = ("attributes", entry.name)
    value: Attribute | None
    if entry.type == "STRING":
        value = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
        if not isinstance(value, str):
            report.add("attribute-type", path, f"{entry.name} must be a text", given, "a text")
            return None
    elif entry.type == "INT":
        value = _read_number(given, path, "int", report)
    elif entry.type == "FLOAT":
        value = _read_number(given, path, "float", report)
        if value is not None:
            value = _to_float32(value)
            if not math.isfinite(value):
                message = f"{entry.name} must be a finite number that float32 can hold"
                report.add("attribute-value", path, message, str(given)[:40], "a finite float32")
                return None
    else:
        items = given.tolist() if hasattr(given, "tolist") else given
        if not isinstance(items, (list, tuple)):
            report.add(
                "attribute-type", path, f"{entry.name} must be an array of numbers", given, "an array of numbers"
            )
            return None
        before, kind = len(report.found), "int" if entry.type == "INTS" else "float"
        read = [_read_number(x, (*path, i), kind, report) for i, x in enumerate(cast("Sequence[object]", items))]
        if len(report.found) > before:
            return None
        numbers = [number for number in read if number is not None]
        return tuple(map(int, numbers)) if kind == "int" else tuple(map(_to_float32, numbers))
    if entry.choices and value is not None and value not in entry.choices:
        message = f"{str(value)[:60]!r} is no {entry.name} of {schema.name}"
        message += _elsewhere(schema, lambda other: _offers(other, entry.name, value)) or (
            did_you_mean(value, map(str, entry.choices)) if isinstance(value, str) else ""
        )
        report.add("attribute-value", path, message, given, f"one of {', '.join(map(str, entry.choices))}")
        return None
    return value


def _offers(schema: OnnxSchema, name: str, value: object) -> bool:
    attribute = schema.attribute(name)
    return attribute is not None and value in attribute.choices


def _numbers_of(text: str, path: Path, kind: Kind, report: Report) -> list[Number]:
    numbers: list[Number] = []
    for index, item in enumerate(text.split(",") if text.strip() else []):
        word = item.strip().lower()
        if _INTEGER.fullmatch(word) and kind != "float":
            numbers.append(int(word))
        elif _REAL.fullmatch(word) and kind != "int":
            numbers.append(float(word))
        else:
            expected = "a whole number" if kind == "int" else "a number"
            report.add("not-a-number", (*path, index), f"{item[:60]!r} is not {expected}", item[:60], expected)
    return numbers


def _proto_value(schema: OnnxSchema, attribute: Any, report: Report) -> object:
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
    return list(value) if proto[0].endswith("S") else value


def _to_float32(value: float) -> float:
    """The float32 nearest to the number, as the exact number it is; infinite if float32 cannot hold it."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))


def _shortest(value: float) -> float:
    """The number with the fewest digits that float32 rounds to this one: 0.7 for 0.699999988."""
    return float(str(np.float32(value)))

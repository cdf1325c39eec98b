"""`OnnxNode`: one ONNX node as a frozen value, with all that decides the outputs' shapes.

A node knows its attributes and its small inputs by value (repeats, scales, axes, ...), and of the tensors it works on
the element type and shape. What is wrong is one `InvalidDescriptor`, whose paths are those of the JSON form::

    {"op_type": "Resize", "opset": 19, "attributes": {"mode": "linear"},
     "inputs": {"X": {"data_type": "float", "shape": [1, 1, 2, 2]}, "scales": [1, 1, 2, 2]}}

Small inputs given as arrays must have the element types of ONNX's signature. Plain numbers are taken as that type:
scales are rounded to float32, a roi is float64; those of Range are int64, or float32 if one has a fraction. FLOAT
attributes are rounded to float32. The tensors of a variadic input are numbered: `inputs_0`, `inputs_1`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

from ..values.datatypes import data_type
from ..values.problems import InvalidDescriptor
from .inference_context import InferenceContext
from .inferred_node import InferredNode
from .node_reading import (
    INTEGER,
    TYPE_ATTRIBUTES,
    kind_of,
    numbers_of,
    proto_value,
    read_attributes,
    read_tensors,
    read_types,
    read_values,
    shortest,
)
from .report import Report, did_you_mean
from .schemas import is_own, schema_of
from .shapes import infer
from .tile import Tiling

__all__ = ["NodeProtoLike", "OnnxNode"]

_MEMBERS = ("op_type", "opset", "inputs", "attributes", "outputs")
MOST_OUTPUTS = 1024
"""Outputs of a node; a frame has no more tensors."""
_BY_VALUE = (int, float, list, tuple)
_JSON_FORM = "tensorpost's JSON form of an ONNX node"


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
class OnnxNode(InferredNode):
    """One ONNX node, validated, its output known. Hashable and picklable.

    Attributes:
        op_type: the operator, as in `Resize`.
        opset: the default-domain opset it is read at.
        tensors: type and shape of each tensor that it works on, by name, in the signature's order.
        values: the small inputs that were given, by name, in the signature's order. Float32 entries are the exact
            numbers that float32 holds.
        attributes: every attribute that has a value, defaults filled in, by name, in the schema's order.
        results: type and shape of each output, by name.
        schema: the version of the operator that the opset means.
        meaning: what to compute, with nothing of the version left in it; `parameters` gives it as the class that it is.
        warnings: what other implementations are known to answer differently, as sentences.

    Examples:
        >>> from tensorpost.onnx import OnnxTensor
        >>> x = OnnxTensor("float", (1, 1, 2, 2))
        >>> OnnxNode.of("Resize", {"X": x, "scales": [1, 1, 2, 3]}, opset=19, mode="linear").output.shape
        (1, 1, 4, 6)

    Raises:
        UnknownOperator: no such operator.
        InvalidDescriptor: rules are broken; it lists every violation.
    """

    is_bounded: ClassVar[bool] = False
    """Whether results whose sizes depend on elements are as large as they may be."""

    def __init__(
        self,
        op_type: str,
        inputs: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        *,
        opset: int,
        outputs: int | None = None,
    ) -> None:
        schema = schema_of(op_type, opset)
        if not is_own(op_type):  # whatever is given by value is part of the node
            schema = schema.with_values([name for name, value in inputs.items() if isinstance(value, _BY_VALUE)])
        report = Report(f"ONNX {schema.name}")
        tensors = read_tensors(schema, inputs, report)
        values = read_values(schema, inputs, tensors, report)
        filled = read_attributes(schema, attributes or {}, report)
        types = read_types(schema, tensors, inputs, report)
        parts = max(outputs or 0, int(cast("Any", filled.get("num_outputs", 0))))
        if parts > MOST_OUTPUTS or (outputs is not None and outputs < 1):
            report.add("output-count", ("outputs",), f"a node has at most {MOST_OUTPUTS} outputs", parts, "1 or more")
        result = infer(InferenceContext(schema, tensors, values, filled, types, outputs, report, self.is_bounded))
        if report.violations:
            raise InvalidDescriptor.of(report.violations)
        # Without a violation it is there; the type checker cannot see that.
        assert result is not None
        meaning, results = result
        everything: dict[str, object] = {
            "op_type": op_type, "opset": opset, "tensors": tuple(tensors.items()), "values": tuple(values.items()),
            "attributes": tuple(filled.items()), "results": tuple(results), "schema": schema,
            "meaning": meaning, "warnings": tuple(report.warnings),
        }  # fmt: skip
        for name, value in everything.items():
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """See `Operation.name`: the operator and the version that the opset means, as in `Resize-19`."""
        return self.schema.name

    @property
    def opset_version(self) -> int:
        """See `Operation.opset_version`."""
        return self.schema.since_version

    @property
    def endpoint(self) -> str:
        """See `Operation.endpoint`."""
        return f"/v1/onnx/{self.op_type}"

    def to_document_text(self) -> str:
        """See `Operation.to_document_text`: the JSON form."""
        return self.to_json_text()

    @classmethod
    def of(
        cls, op_type: str, inputs: Mapping[str, Any], *, opset: int, outputs: int | None = None, **attributes: Any
    ) -> OnnxNode:
        """Build a node the way it is written in Python.

        Args:
            op_type: the operator, as in `Resize`.
            inputs: values by formal name. Tensors as `OnnxTensor`s or arrays, of which only type and shape are kept, a
                sequence of them for a variadic input; small inputs as arrays, sequences or numbers; None for one that
                is left out.
            opset: the default-domain opset.
            outputs: how many outputs the node has, where that does not follow; see `InferenceContext`.
            attributes: attribute values by name.

        Raises:
            UnknownOperator: no such operator.
            InvalidDescriptor: rules are broken; it lists every violation.
        """
        return cls(op_type, inputs, attributes, opset=opset, outputs=outputs)

    @classmethod
    def from_json(cls, document: object) -> OnnxNode:
        """Read the JSON form, see the module.

        Raises:
            UnknownOperator: no such operator.
            InvalidDescriptor: rules are broken; it lists every violation.
        """
        report = Report(_JSON_FORM)
        members: Mapping[str, Any] = {}
        if isinstance(document, Mapping):
            members = cast("Mapping[str, Any]", document)
        else:
            report.add("document", (), "a node must be a JSON object", document, ", ".join(_MEMBERS))
            raise InvalidDescriptor.of(report.violations)
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
        outputs = members.get("outputs")
        if outputs is not None and (not isinstance(outputs, int) or isinstance(outputs, bool) or outputs < 1):
            report.add("document", ("outputs",), "outputs must be how many outputs there are", outputs, "1 or more")
        if report.violations:
            raise InvalidDescriptor.of(report.violations)
        opset = cast("int", members.get("opset"))  # checked there
        return cls(members["op_type"], members["inputs"], members.get("attributes"), opset=opset, outputs=outputs)

    @classmethod
    def from_query(
        cls,
        op_type: str,
        opset: int | str,
        params: Mapping[str, object],
        inputs: Mapping[str, Any],
    ) -> OnnxNode:
        """Read parameters, each an attribute or a small input: values, or texts of a query with commas in lists.

        Args:
            op_type: the operator, as in `Resize`.
            opset: a number, or its text.
            params: the other parameters, `outputs` among them; an empty text is an empty list.
            inputs: values by formal name: type and shape of the tensors in the body, and small inputs that came in
                another way, as arrays.

        Examples:
            >>> from tensorpost.onnx import OnnxTensor
            >>> x = OnnxTensor("int8", (2, 3))
            >>> OnnxNode.from_query("Tile", "13", {"repeats": "2,1"}, {"input": x}).output.shape
            (4, 3)

        Raises:
            UnknownOperator: no such operator.
            InvalidDescriptor: rules are broken; it lists every violation.
        """
        number: Any = int(opset) if isinstance(opset, str) and INTEGER.fullmatch(opset) else opset
        schema = schema_of(op_type, number)
        report = Report(f"ONNX {schema.name}")
        arguments: dict[str, Any] = dict(inputs)
        attributes: dict[str, Any] = {}
        outputs: int | None = None
        for name, text in params.items():
            slot, attribute = schema.input(name), schema.attribute(name)
            if name == "outputs" and slot is None:
                outputs = int(str(text)) if INTEGER.fullmatch(str(text)) else 0
            elif slot is not None and not slot.data:
                if name in arguments:
                    message = f"{name} is in the query and among the tensors; send it once"
                    report.add("input-twice", ("inputs", name), message, text, "one of the two")
                numbers = _listed(text)
                if isinstance(text, str):
                    numbers = numbers_of(text, ("inputs", name), kind_of(slot), report)
                arguments[name] = numbers[0] if schema.name == "Tile-1" and len(numbers) == 1 else numbers
            elif not isinstance(text, str):
                values = _listed(int(text) if isinstance(text, bool) else text)
                is_list = attribute is not None and (attribute.type.endswith("S") or attribute.type == "TENSOR")
                attributes[name] = values if is_list or len(values) != 1 else values[0]
            elif (
                attribute is None
                or attribute.type == "STRING"
                or (name in TYPE_ATTRIBUTES and not INTEGER.fullmatch(text))
            ):
                attributes[name] = text  # the constructor names what is unknown
            elif attribute.type == "TENSOR":
                attributes[name] = [int(text) if INTEGER.fullmatch(text) else float(text)]
            else:
                kind = "int" if attribute.type.startswith("INT") else "float"
                numbers = numbers_of(text, ("attributes", name), kind, report)
                attributes[name] = numbers[0] if attribute.type[-1] != "S" and len(numbers) == 1 else numbers
        if report.violations:
            raise InvalidDescriptor.of(report.violations)
        return cls(op_type, arguments, attributes, opset=number, outputs=outputs)

    @classmethod
    def from_node_proto(cls, node: NodeProtoLike, opset: int, inputs: Mapping[str, Any]) -> OnnxNode:
        """Read an `onnx.NodeProto`, or anything shaped like one; the `onnx` package is not needed.

        Args:
            node: the node. Its inputs are read by position; an empty name is an input left out.
            opset: the model's opset of the default domain.
            inputs: values by the names in the graph: arrays, or an `OnnxTensor` for the tensor that is worked on.

        Raises:
            UnknownOperator: no such operator.
            InvalidDescriptor: rules are broken; it lists every violation.
        """
        schema = schema_of(node.op_type, opset)
        report = Report(f"ONNX {schema.name}")
        domain = str(getattr(node, "domain", ""))
        if domain not in ("", "ai.onnx"):
            message = f"the operators here are those of the default domain, not {domain[:60]!r}"
            report.add("domain", ("domain",), message, domain, '"" or "ai.onnx"')
        variadic = [slot for slot in schema.inputs if slot.variadic]
        if len(node.input) > len(schema.inputs) and not variadic:
            message = f"{schema.name} has {len(schema.inputs)} inputs, not {len(node.input)}"
            names = ", ".join(entry.name for entry in schema.inputs)
            report.add("input-unknown", ("input",), message, len(node.input), names)
        arguments: dict[str, Any] = {}
        names = [slot.name for slot in schema.inputs if not slot.variadic]
        if variadic:  # always the last
            names += [f"{variadic[0].name}_{index}" for index in range(len(node.input) - len(names))]
        for index, (formal, name) in enumerate(zip(names, node.input, strict=False)):
            if name and name not in inputs:
                message = f"{formal} is the value {name[:60]!r}, which was not given"
                report.add("value-missing", ("input", index), message, name, "a value of that name")
            elif name:
                arguments[formal] = inputs[name]
        attributes = {str(item.name): proto_value(schema, item, report) for item in node.attribute}
        if report.violations:
            raise InvalidDescriptor.of(report.violations)
        return cls(schema.op_type, arguments, attributes, opset=opset, outputs=len(node.output))

    def to_json(self) -> dict[str, Any]:
        """The JSON form, with every attribute written out; `from_json` reads it back to an equal node."""
        inputs: dict[str, Any] = {name: tensor.to_json() for name, tensor in self.tensors}
        bound = {slot.variable for slot in self.schema.data_inputs}
        for name, entries in self.values:
            slot = self.schema.input(name)
            assert slot is not None
            is_float32 = slot.types == ("float32",)
            inputs[name] = [_written(shortest(entry) if is_float32 else entry) for entry in entries]
            if len(slot.types) > 2 and slot.variable and slot.variable not in bound and self.op_type == "Range":
                inputs[name] = {"data_type": self.output.row.onnx, "data": inputs[name]}
        attributes: dict[str, Any] = {}
        for name, value in self.attributes:
            if isinstance(value, tuple) and value and isinstance(value[0], str):
                attributes[name] = {"data_type": data_type(value[0]).onnx, "shape": [1], "data": [_written(value[1])]}
            elif isinstance(value, tuple):
                attributes[name] = [shortest(item) if isinstance(item, float) else item for item in value]
            else:
                attributes[name] = shortest(value) if isinstance(value, float) else value
        document = {"op_type": self.op_type, "opset": self.opset, "inputs": inputs, "attributes": attributes}
        return document | ({"outputs": len(self.results)} if len(self.results) > 1 else {})

    def _repr_html_(self) -> str:
        from ..values import notebooks as _html  # for notebooks only

        return _html.operation_html(self)

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


def _listed(value: object) -> list[Any]:
    """The entries of a list; of anything else, itself."""
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _written(number: Any) -> Any:
    """The number, or its name where JSON has no number for it."""
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return number

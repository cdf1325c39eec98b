"""Read a node of a graph: its operation in DirectML's or ONNX's words, and the tensor that each of its inputs reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

from numpy.typing import NDArray

from ..descriptors import BufferTensorDesc, FeatureLevel, OperatorDesc, operator_class
from ..descriptors.catalogue import slot_name
from ..onnx.bounded_node import BoundedNode
from ..onnx.node import OnnxNode
from ..onnx.node_reading import MOST_ENTRIES
from ..onnx.operator_schema import OnnxSchema
from ..onnx.report import Path
from ..onnx.result_bounds import DEPENDS_ON_ELEMENTS
from ..onnx.schemas import NEWEST_OPSET, is_own, schema_of
from ..onnx.strings import has_strings
from ..onnx.tensor import OnnxTensor
from ..values.graph import Ref
from ..values.layout import Layout
from ..values.operation import Operation
from ..values.problems import InvalidDescriptor, Violation, counted

__all__ = ["SOURCE", "ReadableTensor", "is_list", "is_object", "read_node", "references"]

SOURCE = "tensorpost's form of a graph"
"""The source of the rules of a graph's document."""


class ReadableTensor(NamedTuple):
    """A tensor that nodes may read.

    Attributes:
        ref: where it comes from.
        layout: its type and sizes; packed.
        value: the elements of a constant; None of any other tensor.
    """

    ref: Ref
    layout: Layout
    value: NDArray[Any] | None = None


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value of a JSON document is an object."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value of a document is a list, or a tuple in its place."""
    return isinstance(value, (list, tuple))


def references(inputs: object, path: Path = ("inputs",)) -> Iterator[tuple[str, Path]]:
    """Every text in a node's inputs, which names a tensor, with its path in the node.

    An empty text is an input of ONNX that is left out; texts in `{"data_type": ..., "data": [...]}` are numbers.
    """
    if isinstance(inputs, str):
        if inputs:
            yield inputs, path
    elif is_object(inputs):
        for key, value in () if {*inputs} == {"data_type", "data"} else inputs.items():
            yield from references(value, (*path, str(key)))
    elif is_list(inputs):
        for place, value in enumerate(inputs):
            yield from references(value, (*path, place))


def read_node(
    members: Mapping[str, Any], tensors: Mapping[str, ReadableTensor], level: FeatureLevel
) -> tuple[Operation, tuple[Ref, ...]]:
    """The operation of a node, and where each of its inputs comes from, in binding order.

    Args:
        members: the node's members.
        tensors: the tensor of every text in its inputs.
        level: the DirectML feature level that a descriptor is validated at.

    Raises:
        UnknownOperator: there is no operator of that name.
        InvalidDescriptor: the node breaks rules; the paths begin at the node.
    """
    read = _read_onnx(members, tensors) if "op_type" in members else _read_directml(members, tensors, level)
    operation, sources = read
    if has_strings(operation):
        raise _refused((), f"{operation.name} works on strings, which graphs do not compute", None, "numbers")
    for slot in operation.inputs:
        if slot.name not in sources:
            message = f"the input {slot.name} is described in desc, but reads no tensor; name a tensor in inputs"
            raise _refused(("inputs",), message, None, "a tensor's name for each input")
    for slot in operation.outputs:
        if not slot.layout.packed:
            message = f"the output {slot.name} has strides or padding; tensors of a graph are packed"
            raise _refused(("desc",), message, None, "no Strides")
    return operation, tuple([sources[slot.name].ref for slot in operation.inputs])


def _refused(path: Path, message: str, value: object, expected: str) -> InvalidDescriptor:
    return InvalidDescriptor.of([Violation("graph-node", path, message, value, expected, SOURCE)])


def _read_directml(
    members: Mapping[str, Any], tensors: Mapping[str, ReadableTensor], level: FeatureLevel
) -> tuple[Operation, Mapping[str, ReadableTensor]]:
    """The descriptor, and the tensor of each of its inputs by the input's name in a frame."""
    operator, desc = members.get("type"), members.get("desc", {})
    if not isinstance(operator, str):
        raise _refused(("type",), "type must name the operator", operator, "as in RESAMPLE")
    cls = operator_class(operator)
    if not is_object(desc):
        raise _refused(("desc",), "desc must be an object with the operator's fields", desc, "an object")
    fields = cls.facts.fields_by_kind["input"]
    by_name = {name: entry for entry in fields for name in (entry.name, entry.attribute_name, entry.slot_name)}
    inputs, complete, sources = members.get("inputs", {}), dict[str, Any](desc), dict[str, ReadableTensor]()
    for name, value in _by_name(inputs, [entry.name for entry in fields], cls.operator_type).items():
        entry = by_name.get(name)
        path: Path = ("inputs", name) if is_object(inputs) else ("inputs",)
        if entry is None:
            known = ", ".join([each.name for each in fields])
            raise _refused(path, f"{cls.operator_type} has no input {name[:60]!r}; its inputs: {known}", name, known)
        texts: Sequence[Any] = value if is_list(value) else [value]
        if (is_list(value) and not entry.is_array) or not all(isinstance(text, str) and text for text in texts):
            expected = "a list of tensors' names" if entry.is_array else "a tensor's name"
            raise _refused(path, f"{entry.name} must be {expected}", value, expected)
        if not {entry.name, entry.attribute_name} & desc.keys():
            described = [_described(text, tensors[text].layout, path) for text in texts]
            complete[entry.name] = described if entry.is_array else described[0]
        for place, text in enumerate(texts):
            sources[f"{entry.slot_name}_{place}" if entry.is_array else entry.slot_name] = tensors[text]
    try:
        parsed: OperatorDesc = cls.completed(complete)
        parsed.validate_for(level)
    except InvalidDescriptor as error:
        raise error.prefixed("desc") from None
    for (field, *place), tensor in parsed.tensors("input"):
        slot = "_".join([slot_name(field), *map(str, place)])
        if slot in sources:
            _check_bytes(slot, tensor, sources[slot].layout)
    return parsed, sources


def _check_bytes(name: str, tensor: BufferTensorDesc, source: Layout) -> None:
    """Refuse a tensor that is described in `desc` and has other bytes than the one that it reads."""
    total, needed, made = tensor.total_tensor_size_in_bytes, tensor.data_size_in_bytes, source.size_in_bytes
    if total != made + -made % 4 or needed > made:
        message = f"the input {name} has {total} bytes in desc, and the tensor that it reads has {made}"
        expected = "the same number of bytes, rounded up to 4; or no tensor in desc"
        raise _refused(("desc",), message, total, expected)


def _described(text: str, layout: Layout, path: Path) -> dict[str, Any]:
    """The tensor in DirectML's words."""
    name = layout.data_type.directml
    if name is None:
        message = f"{text!r} is {layout.data_type.numpy_name}, for which DirectML has no type; use ONNX's operators"
        raise _refused(path, message, layout.data_type.numpy_name, "a type of DirectML")
    return {"DataType": name, "Sizes": list(layout.sizes)}


def _read_onnx(
    members: Mapping[str, Any], tensors: Mapping[str, ReadableTensor]
) -> tuple[Operation, Mapping[str, ReadableTensor]]:
    """The node, and the tensor of each of its inputs by the input's formal name."""
    opset = members.get("opset", NEWEST_OPSET)
    schema = schema_of(cast("str", members["op_type"]), opset)
    given: dict[str, Any] = {}
    sources: dict[str, ReadableTensor] = {}
    for name, value in _onnx_inputs(members.get("inputs", []), schema).items():
        entry = schema.input(name)
        if not isinstance(value, str):
            given[name] = value
        elif value and entry is not None and not entry.data:
            given[name] = tensors[value].value
            if given[name] is None:
                message = f"{name} of {schema.name} decides the output's sizes, so it must be numbers or a constant"
                expected = "a list of numbers, or a constant's name"
                raise InvalidDescriptor.of([
                    Violation(DEPENDS_ON_ELEMENTS, ("inputs",), message, value, expected, SOURCE)
                ])  # fmt: skip
        elif value:
            tensor = sources[name] = tensors[value]
            given[name] = OnnxTensor(tensor.layout.data_type.numpy_name, tensor.layout.sizes)
    document = {"op_type": members["op_type"], "opset": opset, "inputs": given}
    document |= {key: members[key] for key in ("attributes", "outputs") if key in members}
    cls = BoundedNode if members.get("bounded") is True else OnnxNode
    if cls is OnnxNode and "bounded" in members:
        raise _refused(("bounded",), "bounded must be true, or left out", members["bounded"], "true")
    try:
        return cls.from_json(document), sources
    except InvalidDescriptor:
        small = {} if is_own(schema.op_type) else _whole_constants(sources)
        if not small:
            raise
    # ONNX infers the sizes of an operator that is not ours from what is given by value.
    node = cls.from_json({**document, "inputs": {**given, **small}})
    return node, {name: tensor for name, tensor in sources.items() if name not in small}


def _whole_constants(sources: Mapping[str, ReadableTensor]) -> dict[str, list[int]]:
    """The inputs that are constants of a few whole numbers."""
    values = {name: tensor.value for name, tensor in sources.items() if tensor.value is not None}
    return {
        name: value.reshape(-1).tolist()
        for name, value in values.items()
        if value.dtype.name in ("int64", "int32") and value.ndim <= 1 and 0 < value.size <= MOST_ENTRIES
    }


def _onnx_inputs(inputs: object, schema: OnnxSchema) -> Mapping[str, Any]:
    """A node's inputs by their formal names; those of a variadic input are numbered."""
    variadic = next((entry.name for entry in schema.inputs if entry.variadic), None)
    if is_object(inputs):
        several = inputs.get(variadic) if variadic is not None else None
        if not is_list(several):
            return inputs
        numbered = {f"{variadic}_{place}": value for place, value in enumerate(several)}
        return {name: value for name, value in inputs.items() if name != variadic} | numbered
    names = [entry.name for entry in schema.inputs if not entry.variadic]
    if variadic is not None:  # always the last
        count = len(inputs) if is_list(inputs) else 1
        names += [f"{variadic}_{place}" for place in range(count - len(names))]
    return _by_name(inputs, names, schema.name)


def _by_name(inputs: object, names: Sequence[str], operator: str) -> Mapping[str, Any]:
    """The inputs of a node by their names: of an object, of a list in the operator's order, or of a single one."""
    if is_object(inputs):
        return inputs
    if not isinstance(inputs, str) and not is_list(inputs):
        message = "inputs must be names of tensors: one, a list in the operator's order, or an object"
        raise _refused(("inputs",), message, inputs, "names of tensors")
    listed: Sequence[Any] = [inputs] if isinstance(inputs, str) else inputs
    if len(listed) > len(names):
        message = f"{operator} has {counted(len(names), 'input')}: {', '.join(names) or 'none'}"
        raise _refused(("inputs",), message, len(listed), f"at most {len(names)}")
    return dict(zip(names, listed, strict=False))

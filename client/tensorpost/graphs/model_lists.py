"""Sequences and optional values as inputs and outputs of a model: each is tensors of the graph that is sent.

An input that is a sequence is given as a list of tensors, an optional one as that, as a tensor or as nothing; the
model that is read has an input for each tensor, and a node that makes the sequence of them. An output is the list of
the outputs that its tensors are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

from ..onnx.model_reader import ModelNode, ModelTensor, OnnxModel
from ..values.problems import InvalidParameter
from .model_sequences import MOST_ELEMENTS

__all__ = ["NO_LISTS", "ListedOutput", "ListedOutputs", "ModelOfTensors", "model_of_tensors", "with_lists"]

ListedOutput: TypeAlias = Sequence[str] | str | None
"""The outputs that are the tensors of a sequence, the one that an optional value is, or None for nothing."""
ListedOutputs: TypeAlias = Mapping[str, ListedOutput]
"""The outputs that are sequences or optional values, by the model's names."""
NO_LISTS: ListedOutputs = {}
"""The lists of a model whose outputs are tensors."""
_OPSET = 16  # of the nodes that are written here


class ModelOfTensors(NamedTuple):
    """A model whose inputs are tensors.

    Attributes:
        model: the model.
        inputs: what its inputs are, by their names.
        has_lists: whether an input is no tensor in the model as it was.
    """

    model: OnnxModel
    inputs: Mapping[str, Any]
    has_lists: bool


def model_of_tensors(model: OnnxModel, inputs: Mapping[str, Any]) -> ModelOfTensors:
    """The model with a tensor for each element of its sequences and optional values.

    Args:
        model: the model.
        inputs: what its inputs are, by their names.

    Raises:
        InvalidParameter: a sequence is given as something else than a list, or has too many tensors.
    """
    if all(tensor.kind == "tensor" for tensor in model.inputs):
        return ModelOfTensors(model, inputs, has_lists=False)
    tensors, nodes, given = list[ModelTensor](), list[ModelNode](), {**inputs}
    for tensor in model.inputs:
        if tensor.kind == "tensor":
            tensors.append(tensor)
            continue
        if tensor.name not in inputs and tensor.kind == "sequence":
            raise InvalidParameter(f"the model's input {tensor.name!r} is missing; it is a sequence, a list of tensors")
        value = given.pop(tensor.name, None)
        elements = _elements(tensor, value)
        names = [f"{tensor.name}/{place}" for place in range(len(elements))]
        tensors += [ModelTensor(name, tensor.data_type) for name in names]
        given |= dict(zip(names, elements, strict=True))
        nodes += _nodes_of(tensor, value, names)
    model = replace(model, inputs=tuple(tensors), nodes=(*nodes, *model.nodes))
    return ModelOfTensors(model, given, has_lists=True)


def _elements(tensor: ModelTensor, value: object) -> list[Any]:
    if isinstance(value, (list, tuple)):
        found = [*cast("Sequence[Any]", value)]
        if len(found) > MOST_ELEMENTS:
            message = f"the model's input {tensor.name!r} is a sequence of {len(found):,} tensors; there may be"
            raise InvalidParameter(f"{message} {MOST_ELEMENTS:,} of them")
        return found
    if tensor.kind == "sequence":
        message = f"the model's input {tensor.name!r} is a sequence: give a list of tensors, not {type(value).__name__}"
        raise InvalidParameter(message)
    return [] if value is None else [value]


def _nodes_of(tensor: ModelTensor, value: object, names: Sequence[str]) -> list[ModelNode]:
    """The nodes that make the sequence or the optional value of these tensors."""
    is_list = isinstance(value, (list, tuple))
    made = f"{tensor.name}/list" if is_list and tensor.kind == "optional" else tensor.name
    nodes = list[ModelNode]()
    if is_list and names:
        nodes.append(ModelNode("", "SequenceConstruct", "", _OPSET, tuple(names), (made,), {}))
    elif is_list:
        attributes = {} if tensor.data_type is None else {"dtype": tensor.data_type.onnx_code}
        nodes.append(ModelNode("", "SequenceEmpty", "", _OPSET, (), (made,), attributes))
    if tensor.kind == "optional":
        source = (made,) if is_list else tuple(names)
        nodes.append(ModelNode("", "Optional", "", _OPSET, source, (tensor.name,), {}))
    return nodes


def with_lists(found: Mapping[str, Any], lists: ListedOutputs, outputs: Sequence[str]) -> dict[str, Any]:
    """The outputs of a model, by its names.

    Args:
        found: the outputs of its graph.
        lists: the outputs that are sequences or optional values.
        outputs: the names in order.
    """

    def output(name: str) -> Any:
        listed = lists.get(name, name)
        if listed is None or isinstance(listed, str):
            return None if listed is None else found[listed]
        return [found[each] for each in listed]

    return {name: output(name) for name in outputs}

"""An ONNX model as a graph's document: nodes by name, small constants by value, large ones as inputs beside it.

Sizes follow node by node from the tensors that arrive, and what follows from sizes alone is computed here
(`constant_folding.py`). Nodes that no output needs are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ..onnx.model_reader import ModelNode, ModelTensor, OnnxModel
from ..onnx.report import did_you_mean
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, InvalidParameter
from .model_graph_reader import ModelGraphReader, UnknownElements
from .model_stages import ModelGraph, ModelStage, StageResult

__all__ = ["ModelGraph", "ModelStage", "StageResult", "model_graph", "model_stage", "needed_nodes"]

_NO_VALUES: Mapping[str, NDArray[Any]] = {}


def model_graph(
    model: OnnxModel, sent: Mapping[str, Layout], outputs: Sequence[str] | None = None,
    values: Mapping[str, NDArray[Any]] = _NO_VALUES,
) -> ModelGraph:  # fmt: skip
    """The graph of a model, for tensors of these types and sizes.

    Args:
        model: the model.
        sent: the tensors that are given, by the names of the model's inputs; an input with an initializer may be left
            out.
        outputs: names of the outputs that are wanted; default all.
        values: the elements of some of the tensors; those that decide sizes become constants of the graph.

    Raises:
        InvalidParameter: there is no such input or output, an input is missing, or it has another type or other sizes.
        InvalidDescriptor: a node breaks a rule, or needs what is not computed; it names the node.
        UnknownOperator: there is no such operator.
        NoBackend: ONNX Runtime computes a node, and is not installed.
    """
    found = _read_model(model, sent, outputs, values, in_stages=False)
    assert isinstance(found, ModelGraph)
    return found


def model_stage(
    model: OnnxModel, sent: Mapping[str, Layout], outputs: Sequence[str] | None = None,
    values: Mapping[str, NDArray[Any]] = _NO_VALUES,
) -> ModelGraph | ModelStage:  # fmt: skip
    """The graph of a model, or of what must be computed before the sizes of the rest are known; see `model_graph`."""
    return _read_model(model, sent, outputs, values, in_stages=True)


def _read_model(
    model: OnnxModel, sent: Mapping[str, Layout], outputs: Sequence[str] | None, values: Mapping[str, NDArray[Any]], *,
    in_stages: bool,
) -> ModelGraph | ModelStage:  # fmt: skip
    wanted = _wanted(model, outputs)
    _check_inputs(model, sent)
    nodes, known = needed_nodes(model, wanted), set[str]()
    used = frozenset([*wanted, *[name for _, node in nodes for name in node.reads if name]])
    while True:
        given = {name: values[name] for name in known}
        reader = ModelGraphReader(model, sent, given, used, {*values} - known, in_stages=in_stages)
        try:
            for place, node in nodes:
                reader.add(place, node)
            return reader.stage(model, wanted) if reader.waits else reader.graph(wanted)
        except UnknownElements as unknown:
            known |= unknown.inputs
        except InvalidDescriptor:
            # What a size is computed from must be known; it is not known in advance which inputs these are.
            more = {name for name in reader.read_by_last(nodes) if name in values} - known
            if not more:
                raise
            known |= more


def _wanted(model: OnnxModel, outputs: Sequence[str] | None) -> list[str]:
    there = [tensor.name for tensor in model.outputs]
    for name in outputs or ():
        if name not in there:
            known = ", ".join(there)
            raise InvalidParameter(f"the model has no output {name[:60]!r}{did_you_mean(name, there)}; it has {known}")
    return there if outputs is None else [*outputs]


def _check_inputs(model: OnnxModel, sent: Mapping[str, Layout]) -> None:
    there = [tensor.name for tensor in model.inputs]
    for name in sent:
        if name not in there and name not in model.defaults:
            known = ", ".join(there) or "none"
            guess = did_you_mean(name, there)
            if name in model.initializers:
                guess = ", which is a constant of it (an initializer that is no input): leave it out"
            raise InvalidParameter(f"the model has no input {name[:60]!r}{guess}; its inputs: {known}")
    bound: dict[str, tuple[int, str]] = {}
    for tensor in model.inputs:
        if (layout := sent.get(tensor.name)) is None:
            raise InvalidParameter(f"the model's input {tensor.name!r} is missing; it is {described(tensor)}")
        sizes = tensor.sizes
        wrong = tensor.data_type is not None and tensor.data_type is not layout.data_type
        wrong = wrong or (sizes is not None and len(sizes) != len(layout.sizes))
        pairs = list(zip(sizes, layout.sizes, strict=True)) if sizes is not None and not wrong else []
        wrong = wrong or any(isinstance(size, int) and size != got for size, got in pairs)
        if wrong:
            got = f"{layout.data_type.numpy_name} of shape {list(layout.sizes)}"
            raise InvalidParameter(f"the model's input {tensor.name!r} is {described(tensor)}, and {got} was sent")
        for size, got in pairs:
            if isinstance(size, str):
                first, where = bound.setdefault(size, (got, tensor.name))
                if first != got:
                    raise InvalidParameter(
                        f"the size {size!r} is {got} in the input {tensor.name!r}, and {first} in {where!r}; it must "
                        "be the same number in the whole model"
                    )


def described(tensor: ModelTensor) -> str:
    """A tensor's type and sizes in words: `float32 of shape [n, 3, 224, 224]`."""
    kind = "of any type" if tensor.data_type is None else tensor.data_type.numpy_name
    if tensor.sizes is None:
        return f"{kind} of any shape"
    return f"{kind} of shape [{', '.join(['?' if size is None else str(size) for size in tensor.sizes])}]"


def needed_nodes(model: OnnxModel, outputs: Sequence[str]) -> list[tuple[int, ModelNode]]:
    """The nodes that the outputs need, in the model's order, each with its place in it."""
    wanted, found = {*outputs}, list[tuple[int, ModelNode]]()
    for place in reversed(range(len(model.nodes))):
        node = model.nodes[place]
        if wanted & {*node.outputs}:
            wanted |= {*node.reads}
            found.append((place, node))
    return found[::-1]

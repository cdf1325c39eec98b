"""Read the node of a graph that is given as a NodeProto: If, Loop, Scan, and the operators of ai.onnx.ml.

What such a node makes follows from its subgraphs, which are read node by node for types and sizes. A tensor whose sizes
change from one iteration of a Loop to the next, or differ between the branches of If, is refused: its sizes depend on
elements. So does a number of iterations that is not known, where results are stacked.

Source: ONNX, If-21, Loop-21, Scan-8, Scan-21; the pages of ai.onnx.ml.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..descriptors import NEWEST
from ..onnx.model_reader import ML_DOMAIN, SOURCE, ModelNode, ModelSubgraph, read_model, refused
from ..onnx.node import OnnxNode
from ..onnx.proto_node import CONTROL_FLOW, OnnxProtoNode
from ..onnx.result_bounds import DEPENDS_ON_ELEMENTS
from ..onnx.tensor import OnnxTensor, too_large
from ..values.datatypes import data_type
from ..values.graph import GraphInput, Ref
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, UnknownOperator, Violation, counted
from .graph_node import ReadableTensor, is_list, read_node
from .model_nodes import called, constants_made, is_alias, node_members

__all__ = ["is_proto_node", "read_proto_node", "taken_branch"]

MOST_PROTO_BYTES = 64 << 20
_MOST_REPEATS = 1 << 31
"""A larger number of iterations is one that a condition ends."""


class _ProtoResults(NamedTuple):
    """What a node makes, and the nodes within it; see `OnnxProtoNode`."""

    results: Sequence[OnnxTensor]
    inner: Sequence[OnnxNode] = ()
    repeats: int | None = 1


def read_proto_node(
    members: Mapping[str, Any], tensors: Mapping[str, ReadableTensor], most_nodes: int
) -> tuple[OnnxProtoNode, tuple[Ref, ...]]:
    """The operation of a node, and where each of its inputs comes from; see `read_node`.

    Args:
        members: the node's members, `proto` among them.
        tensors: the tensor of every text in its inputs.
        most_nodes: nodes that its subgraphs may have.

    Raises:
        InvalidDescriptor, UnknownOperator: it breaks rules, or needs what is not computed; the paths begin at the node.
    """
    text, texts = members["proto"], members.get("inputs", [])
    try:
        content = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content or len(content) > MOST_PROTO_BYTES or not is_list(texts):
        expected = "the bytes of an onnx.ModelProto with one node as base64, and inputs as a list"
        raise refused(("proto",), f"proto must be {expected}", None, expected)
    try:
        model = read_model(content)
    except InvalidDescriptor as error:
        raise error.prefixed("proto") from None
    names = [tensor.name for tensor in model.inputs]
    if len(model.nodes) != 1 or names != [f"i{place}" for place in range(len(texts))]:
        message = f"the model in proto must have one node and the inputs i0 to i{len(texts) - 1}, as inputs lists them"
        raise refused(("proto",), message, names[:8], "one node")
    (node,) = model.nodes
    if not is_proto_node(node):
        message = f"{node.op_type} is given as proto; that is for If, Loop, Scan and the domain {ML_DOMAIN}"
        raise refused(("proto",), message, node.op_type, "op_type and attributes")
    count = sum([graph.node_count for graph in node.subgraphs.values()])
    if count > most_nodes:
        message = f"the subgraphs of {node.op_type} have {count:,} nodes; at most {most_nodes:,} are computed here"
        raise refused(("proto",), message, count, f"at most {most_nodes} nodes")
    given = [tensors[each] for each in texts]
    scope = {name: _constant_tensor(array) for name, array in model.initializers.items()}
    found = _inferred(node, scope | dict(zip(names, given, strict=True)))
    outputs = [tensor for name, tensor in zip(node.outputs, found.results, strict=False) if name]
    for tensor in outputs:
        if too_large(tensor.data_type, tensor.shape) or len(tensor.shape) > 64:
            message = f"an output of {node.op_type} would have the shape {list(tensor.shape)[:64]}"
            raise refused(("proto",), message, None, "fewer than 2^63 bytes, at most 64 dimensions")
    described = [OnnxTensor(each.layout.data_type.numpy_name, each.layout.sizes) for each in given]
    operation = OnnxProtoNode(node, content, model.opsets, described, outputs, found.inner, found.repeats)
    return operation, tuple([each.ref for each in given])


def is_proto_node(node: ModelNode) -> bool:
    """Whether a node of a model becomes one with `proto`."""
    return node.message is not None and (node.op_type in CONTROL_FLOW or node.domain == ML_DOMAIN)


def _inferred(node: ModelNode, tensors: Mapping[str, ReadableTensor]) -> _ProtoResults:
    for name in node.reads:
        if name and name not in tensors:
            message = f"the node {called(node)} reads {name[:60]!r}, which no node before it makes"
            raise refused(("proto",), message, name, "an input, an initializer, or an output of a node before it")
    if not node.opset:
        message = f"the model imports no version of the domain {node.domain or 'ai.onnx'!r}, which {called(node)} needs"
        raise refused(("proto",), message, None, "an opset_import for each domain")
    found = _rule_of(node)(node, tensors)
    if not node.outputs or len(node.outputs) > len(found.results):
        message = f"{called(node)} has {counted(len(node.outputs), 'output')}, and makes {len(found.results)}"
        raise refused(("proto",), message, len(node.outputs), f"1 to {len(found.results)}")
    return found


def _rule_of(node: ModelNode) -> Callable[[ModelNode, Mapping[str, ReadableTensor]], _ProtoResults]:
    if node.domain == ML_DOMAIN:
        return _of_machine_learning
    rule = {"If": _if, "Loop": _loop, "Scan": _scan}.get(node.op_type)
    if node.domain or rule is None:
        message = (
            f"the node {called(node)} has a subgraph; only those of {', '.join(sorted(CONTROL_FLOW))} are computed"
        )
        raise refused(("proto",), message, node.op_type, "If, Loop or Scan")
    return rule


class _SubgraphReader:
    """Reads the nodes of a subgraph for types and sizes alone.

    Attributes:
        operations: the nodes that are computed.
    """

    def __init__(self, owner: ModelNode, which: str, tensors: Mapping[str, ReadableTensor]) -> None:
        self.operations: list[OnnxNode] = []
        self._owner, self._which, self._tensors = owner, which, dict(tensors)

    def read(self, graph: ModelSubgraph) -> list[ReadableTensor]:
        """The outputs."""
        self._tensors |= {name: _constant_tensor(array) for name, array in graph.initializers.items()}
        for node in graph.nodes:
            try:
                self._add(node, graph.opsets)
            except InvalidDescriptor as error:
                first = error.violations[0]
                message, expected = f"in {self._which} of {called(self._owner)}: {first.message}", first.expected or ""
                raise refused(("proto",), message, None, expected) from None
            except UnknownOperator as error:
                message = f"in {self._which} of {called(self._owner)}: the node {called(node)}: {error.detail}"
                raise refused(("proto",), message, node.op_type, "an operator") from None
        return [self._tensor(name, self._owner) for name in graph.outputs]

    def _tensor(self, name: str, node: ModelNode) -> ReadableTensor:
        found = self._tensors.get(name)
        if found is None:
            message = f"the node {called(node)} reads {name[:60]!r}, which no node before it makes"
            raise refused(("proto",), message, name, "an output of a node before it")
        return found

    def _add(self, node: ModelNode, opsets: Mapping[str, int]) -> None:
        given = [self._tensor(name, node) if name else None for name in node.inputs]
        values = [None if each is None else each.value for each in given]
        made = constants_made(node, values, [None if each is None else each.layout for each in given], ("proto",))
        if made is not None:
            self._tensors |= {
                name: _constant_tensor(array) for name, array in zip(node.outputs, made, strict=False) if name
            }
        elif is_alias(node, {*node.outputs[1:]} - {""}):
            self._tensors[node.outputs[0]] = self._tensor(node.inputs[0], node)
        elif (branch := taken_branch(node, given[0] if given else None)) is not None:
            reader = _SubgraphReader(node, branch, self._tensors)
            found = reader.read(node.subgraphs[branch])
            self._tensors |= {name: each for name, each in zip(node.outputs, found, strict=False) if name}
            self.operations += reader.operations
        elif node.message is not None:
            inferred = _inferred(node, self._tensors)
            described = [OnnxTensor(each.layout.data_type.numpy_name, each.layout.sizes) for each in given if each]
            self.operations.append(
                OnnxProtoNode(node, b"", opsets, described, inferred.results, inferred.inner, inferred.repeats)
            )
            self._make(node, [tensor.layout for tensor in inferred.results])
        elif node.domain:
            message = (
                f"the node {called(node)} is of the domain {node.domain!r}; only ONNX's own operators are computed"
            )
            raise refused(("proto",), message, node.domain, "an operator of ONNX")
        else:
            texts = [name if name else "" for name in node.inputs]
            members = node_members(node, node.name, texts, len(node.outputs))
            try:
                operation, _ = read_node(members, {name: self._tensors[name] for name in texts if name}, NEWEST)
            except InvalidDescriptor as error:
                message = f"the node {called(node)}: {error.violations[0].message}"
                raise refused(("proto",), message, None, "") from None
            assert isinstance(operation, OnnxNode)
            self.operations.append(operation)
            self._make(node, [slot.layout for slot in operation.outputs])

    def _make(self, node: ModelNode, layouts: Sequence[Layout]) -> None:
        made = zip(node.outputs, layouts, strict=False)
        self._tensors |= {name: ReadableTensor(GraphInput(0), layout) for name, layout in made if name}


def taken_branch(node: ModelNode, condition: ReadableTensor | None) -> str | None:
    """The attribute with the branch of If that is taken; None of other nodes, or if that is not known."""
    if node.op_type != "If" or node.domain or condition is None or condition.value is None:
        return None
    branch = "then_branch" if condition.value.reshape(-1)[:1].any() else "else_branch"
    return branch if branch in node.subgraphs else None


def _constant_tensor(array: NDArray[Any]) -> ReadableTensor:
    return ReadableTensor(GraphInput(0), Layout.row_major(data_type(array.dtype), array.shape), array)


def _variable(kind: str, shape: Sequence[int]) -> ReadableTensor:
    return ReadableTensor(GraphInput(0), Layout.row_major(data_type(kind), tuple(shape)))


def _described(tensor: ReadableTensor) -> OnnxTensor:
    return OnnxTensor(tensor.layout.data_type.numpy_name, tensor.layout.sizes)


def _words(tensor: OnnxTensor) -> str:
    return f"{tensor.data_type} of shape {list(tensor.shape)}"


# ---- control flow ----------------------------------------------------------------------------------------------------


def _branch(node: ModelNode, name: str) -> ModelSubgraph:
    if (found := node.subgraphs.get(name)) is None:
        raise refused(("proto",), f"the node {called(node)} needs the graph {name}", None, "a graph")
    return found


def _if(node: ModelNode, tensors: Mapping[str, ReadableTensor]) -> _ProtoResults:
    inner: list[OnnxNode] = []
    made: dict[str, list[OnnxTensor]] = {}
    for name in ("then_branch", "else_branch"):
        reader = _SubgraphReader(node, name, tensors)
        made[name] = [*map(_described, reader.read(_branch(node, name)))]
        inner += reader.operations
    one, other = made.values()
    if len(one) != len(other) or len(one) < len(node.outputs):
        message = f"the branches of {called(node)} make {len(one)} and {counted(len(other), 'output')}"
        raise refused(("proto",), message, len(other), counted(len(node.outputs), "output"))
    for name, first, second in zip(node.outputs, one, other, strict=False):
        if name and first != second:
            message = f"{called(node)} makes {_words(first)} in one branch and {_words(second)} in the other, so the "
            message += "result's sizes depend on elements, and they must be known before anything is computed"
            raise _depends(message, "one type and one shape; or a condition that is known")
    return _ProtoResults(one, inner)


def _loop(node: ModelNode, tensors: Mapping[str, ReadableTensor]) -> _ProtoResults:
    body, carried = _branch(node, "body"), node.inputs[2:]
    _need_inputs(node, carried)
    if len(body.inputs) != 2 + len(carried) or len(body.outputs) < 1 + len(carried):
        message = f"the body of {called(node)} has {len(body.inputs)} inputs and {len(body.outputs)} outputs"
        expected = f"{2 + len(carried)} inputs, and at least {counted(1 + len(carried), 'output')}"
        raise refused(("proto",), f"{message}, not {expected}", len(body.inputs), expected)
    count = tensors[node.inputs[0]].value if any(node.inputs[:1]) else None
    given = {
        body.inputs[0].name: _variable("int64", (1,) if body.inputs[0].sizes == (1,) else ()),
        body.inputs[1].name: _variable("bool", (1,) if body.inputs[1].sizes == (1,) else ()),
    }
    before = [tensors[name] for name in carried]
    given |= {
        each.name: ReadableTensor(GraphInput(0), start.layout)
        for each, start in zip(body.inputs[2:], before, strict=True)
    }
    reader = _SubgraphReader(node, "the body", {**tensors, **given})
    _, *after = map(_described, reader.read(body))
    _check_carried(node, [*map(_described, before)], after, [each.name for each in body.inputs[2:]])
    repeats = None if count is None else max(0, int(count.reshape(-1)[0]))
    stacked = after[len(carried) :]
    if stacked and repeats is None:
        message = f"{called(node)} stacks the results of its iterations, whose number depends on elements; it must be "
        message += "known before anything is computed"
        raise _depends(message, "a constant M; or give it by value")
    results = [*map(_described, before), *[OnnxTensor(each.data_type, (repeats or 0, *each.shape)) for each in stacked]]
    known = repeats is not None and repeats < _MOST_REPEATS
    return _ProtoResults(results, reader.operations, repeats if known else None)


def _depends(message: str, expected: str) -> InvalidDescriptor:
    return InvalidDescriptor.of([Violation(DEPENDS_ON_ELEMENTS, ("proto",), message, None, expected, SOURCE)])


def _need_inputs(node: ModelNode, names: Sequence[str]) -> None:
    if not all(names):
        message = f"{called(node)} leaves out an input that is a tensor of each iteration"
        raise refused(("proto",), message, None, "a tensor for each")


def _check_carried(
    node: ModelNode, before: Sequence[OnnxTensor], after: Sequence[OnnxTensor], names: Sequence[str]
) -> None:  # fmt: skip
    """Refuse tensors that an iteration gives back with other sizes."""
    for name, one, other in zip(names, before, after, strict=False):
        if one != other:
            message = f"{name!r} is {_words(one)} before an iteration of {called(node)} and {_words(other)} after it, "
            message += "so its sizes depend on the number of iterations; they must be known before anything is computed"
            if node.op_type == "Loop":  # its number of iterations may be known later
                raise _depends(message, _words(one))
            raise refused(("proto",), message, list(other.shape), _words(one))


def _scan(node: ModelNode, tensors: Mapping[str, ReadableTensor]) -> _ProtoResults:
    """The states as they are given, and the scanned results; in Scan-8, all with an axis of batches before."""
    body, count = _branch(node, "body"), node.attributes.get("num_scan_inputs")
    inputs = node.inputs[1:] if node.opset < 9 else node.inputs  # Scan-8 has the lengths before them
    states = len(inputs) - count if isinstance(count, int) else -1
    if states < 0 or len(body.inputs) != len(inputs) or len(body.outputs) < states or not count:
        message = f"the body of {called(node)} has {len(body.inputs)} inputs and {len(body.outputs)} outputs for "
        message += f"{len(inputs)} inputs, of which num_scan_inputs = {count} are scanned"
        raise refused(("proto",), message, count, "as many inputs as the node, of which some are scanned")
    _need_inputs(node, inputs)
    read = [_described(tensors[name]) for name in inputs]
    batch = _batch(node, read) if node.opset < 9 else ()
    read = [OnnxTensor(each.data_type, each.shape[len(batch) :]) for each in read]
    before = read[:states]
    given = {
        each.name: _variable(start.data_type, start.shape) for each, start in zip(body.inputs, before, strict=False)
    }
    axes, length = _numbers(node, "scan_input_axes"), -1
    for place, (each, tensor) in enumerate(zip(body.inputs[states:], read[states:], strict=True)):
        axis = _axis(node, axes, place, len(tensor.shape))
        if length not in (-1, tensor.shape[axis]):
            message = f"{called(node)} scans axes of the sizes {length} and {tensor.shape[axis]}"
            raise refused(("proto",), message, tensor.shape[axis], "one size")
        length = tensor.shape[axis]
        given[each.name] = _variable(tensor.data_type, [*tensor.shape[:axis], *tensor.shape[axis + 1 :]])
    reader = _SubgraphReader(node, "the body", {**tensors, **given})
    after = [*map(_described, reader.read(body))]
    _check_carried(node, before, after, [each.name for each in body.inputs])
    results, axes = [*before], _numbers(node, "scan_output_axes")
    for place, tensor in enumerate(after[states:]):
        axis = _axis(node, axes, place, len(tensor.shape) + 1)
        results.append(OnnxTensor(tensor.data_type, [*tensor.shape[:axis], length, *tensor.shape[axis:]]))
    results = [OnnxTensor(each.data_type, (*batch, *each.shape)) for each in results]
    return _ProtoResults(results, reader.operations, length * math.prod(batch))


def _batch(node: ModelNode, tensors: Sequence[OnnxTensor]) -> tuple[int]:
    """The first size of every input of Scan-8."""
    sizes = [each.shape[:1] for each in tensors]
    if len({*sizes}) != 1 or not sizes[0]:
        message = f"{called(node)} is Scan-8, whose inputs have the batch as their first axis; they have the shapes "
        message += ", ".join([str([*each.shape]) for each in tensors[:8]])
        raise refused(("proto",), message, None, "inputs whose first sizes are equal")
    return (sizes[0][0],)


def _numbers(node: ModelNode, name: str) -> Sequence[int]:
    found = node.attributes.get(name, ())
    return cast("Sequence[int]", found) if isinstance(found, (list, tuple)) else ()


def _axis(node: ModelNode, axes: Sequence[int], place: int, rank: int) -> int:
    axis = axes[place] if place < len(axes) else 0
    if not -rank <= axis < rank:
        message = f"{called(node)} scans the axis {axis} of a tensor of {counted(rank, 'dimension')}"
        raise refused(("proto",), message, axis, f"an axis below {rank}")
    return axis % rank


# ---- ai.onnx.ml ------------------------------------------------------------------------------------------------------


def _of_machine_learning(node: ModelNode, tensors: Mapping[str, ReadableTensor]) -> _ProtoResults:
    """What an operator of ai.onnx.ml makes. Source: https://onnx.ai/onnx/operators/, as ONNX Runtime computes it."""
    rule = _RULES.get(node.op_type)
    if rule is None or not any(node.inputs[:1]):
        message = f"the node {called(node)} is of {node.domain}, of which these are computed: {', '.join(_RULES)}"
        if node.op_type == "ZipMap":
            message += "; ZipMap makes dictionaries, which skl2onnx leaves out with options={'zipmap': False}"
        raise refused(("proto",), message, node.op_type, "one of those")
    results = rule(node, [_described(tensors[name]) for name in node.inputs if name])
    for name, tensor in zip(node.outputs, results, strict=False):
        if name and tensor.data_type == "str":
            message = f"the node {called(node)} makes strings, {name!r}, which graphs do not compute"
            raise refused(("proto",), message, None, "numbers as labels, or outputs without the labels")
    return _ProtoResults(results)


_MlRule = Callable[[ModelNode, Sequence[OnnxTensor]], Sequence[OnnxTensor]]


def _length(node: ModelNode, name: str) -> int:
    found = node.attributes.get(name, ())
    return len(cast("Sequence[Any]", found)) if isinstance(found, (list, tuple)) else 0


def _rows(tensor: OnnxTensor) -> int:
    return tensor.shape[0] if len(tensor.shape) > 1 else 1


def _columns(tensor: OnnxTensor) -> int:
    return tensor.shape[-1] if tensor.shape else 1


def _floats(node: ModelNode, inputs: Sequence[OnnxTensor]) -> Sequence[OnnxTensor]:
    del node
    return [OnnxTensor("float32", inputs[0].shape)]


def _same(node: ModelNode, inputs: Sequence[OnnxTensor]) -> Sequence[OnnxTensor]:
    del node
    return [inputs[0]]


def _extracted(node: ModelNode, inputs: Sequence[OnnxTensor]) -> Sequence[OnnxTensor]:
    del node
    data, indices = inputs[0], inputs[-1]
    return [OnnxTensor(data.data_type, [*(data.shape[:-1] or (1,)), math.prod(indices.shape)])]


def _classified(scores: Callable[[ModelNode, int], int]) -> _MlRule:
    """Labels and scores, of which the number of columns follows from the attributes and from the number of labels."""

    def rule(node: ModelNode, inputs: Sequence[OnnxTensor]) -> Sequence[OnnxTensor]:
        texts = _length(node, "classlabels_strings")
        numbers = max(_length(node, name) for name in ("classlabels_ints", "classlabels_int64s"))
        rows = _rows(inputs[0])
        return [
            OnnxTensor("str" if texts else "int64", (rows,)),
            OnnxTensor("float32", (rows, scores(node, max(texts, numbers)))),
        ]

    return rule


def _linear_scores(node: ModelNode, labels: int) -> int:
    count = _length(node, "intercepts")
    return 2 if count == 1 and labels == 2 else count or labels


def _vector_scores(node: ModelNode, labels: int) -> int:
    if _length(node, "prob_a") or not _length(node, "vectors_per_class"):
        return labels
    return 2 if labels == 2 else labels * (labels - 1) // 2


def _regressed(name: str) -> _MlRule:
    def rule(node: ModelNode, inputs: Sequence[OnnxTensor]) -> Sequence[OnnxTensor]:
        targets = node.attributes.get(name, 1) if name else 1
        kind = inputs[0].data_type if node.op_type == "TreeEnsemble" else "float32"
        return [OnnxTensor(kind, (_rows(inputs[0]), int(cast("int", targets))))]

    return rule


def _encoded(node: ModelNode, inputs: Sequence[OnnxTensor]) -> Sequence[OnnxTensor]:
    categories = max(_length(node, "cats_int64s"), _length(node, "cats_strings"))
    return [OnnxTensor("float32", (*inputs[0].shape, categories))]


def _vectorized(node: ModelNode, inputs: Sequence[OnnxTensor]) -> Sequence[OnnxTensor]:
    found = node.attributes.get("inputdimensions", ())
    counts = cast("Sequence[int]", found) if isinstance(found, (list, tuple)) else ()
    return [OnnxTensor("float32", (_rows(inputs[0]), sum(counts) or sum(map(_columns, inputs))))]


def _labels(node: ModelNode, inputs: Sequence[OnnxTensor]) -> Sequence[OnnxTensor]:
    kinds = {"values_floats": "float32", "values_int64s": "int64", "values_strings": "str"}
    kind = next((kinds[name] for name in kinds if _length(node, name)), "str")
    table = node.attributes.get("values_tensor")
    if isinstance(table, np.ndarray):
        kind = cast("NDArray[Any]", table).dtype.name
    if _length(node, "classes_strings"):  # LabelEncoder-1
        kind = "int64" if inputs[0].data_type == "str" else "str"
    return [OnnxTensor(kind, inputs[0].shape)]


_RULES: Mapping[str, _MlRule] = {
    "ArrayFeatureExtractor": _extracted,
    "Binarizer": _same,
    "FeatureVectorizer": _vectorized,
    "Imputer": _same,
    "LabelEncoder": _labels,
    "LinearClassifier": _classified(_linear_scores),
    "LinearRegressor": _regressed("targets"),
    "Normalizer": _floats,
    "OneHotEncoder": _encoded,
    "SVMClassifier": _classified(_vector_scores),
    "SVMRegressor": _regressed(""),
    "Scaler": _floats,
    "TreeEnsemble": _regressed("n_targets"),
    "TreeEnsembleClassifier": _classified(lambda _, labels: labels),
    "TreeEnsembleRegressor": _regressed("n_targets"),
}
"""The operators of ai.onnx.ml that work on numbers."""

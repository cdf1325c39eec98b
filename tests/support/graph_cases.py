"""Graphs drawn at random, with inputs; and ways to break them. Nothing here computes what a graph should answer."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidDescriptor

__all__ = ["BREAKS", "POINTWISE", "GraphCase", "drawn_graph", "drawn_photograph", "layouts_of"]

MOST_ELEMENTS = 4096
FLOATS = ("float32", "float16")
UNARY = ("Relu", "Sigmoid", "Exp", "Tanh", "Neg", "Abs", "Erf", "Floor", "Softplus", "HardSigmoid", "Gelu")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
DIRECTML_UNARY = ("ACTIVATION_RELU", "ACTIVATION_SIGMOID", "ELEMENT_WISE_SQRT", "ELEMENT_WISE_ROUND", "ACTIVATION_TANH")


@dataclass(frozen=True)
class GraphCase:
    """A graph with its inputs.

    Attributes:
        document: the graph's JSON document.
        inputs: arrays by the names of the inputs.
    """

    document: dict[str, Any]
    inputs: dict[str, NDArray[Any]]

    def read(self) -> Graph:
        """The graph for these inputs."""
        return read_graph(self.document, layouts_of(self.inputs))


def layouts_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Layout]:
    """The arrays as the tensors that arrive."""
    return {name: Layout.row_major(data_type(array.dtype), array.shape) for name, array in arrays.items()}


class _Drawing:
    """A graph that grows node by node; what is drawn and breaks a rule is drawn again."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.nodes: list[dict[str, Any]] = []
        self.inputs: dict[str, NDArray[Any]] = {}
        self.tensors: dict[str, tuple[str, tuple[int, ...]]] = {}  # type and sizes
        self.read: set[str] = set()
        numbers = np.random.default_rng(chance.randrange(1 << 30))
        for name in ("x", "y")[: chance.randint(1, 2)]:
            sizes = tuple([chance.randint(1, 5) for _ in range(chance.randint(1, 4))])
            if chance.random() < 0.3:  # long rows, which loops treat in another way
                sizes = (*sizes[:1], 300)
            dtype = chance.choice(["float32", "float32", "float16", "uint8"])
            self.inputs[name] = (numbers.normal(size=sizes) * 3).astype(dtype)
            self.tensors[name] = (dtype, sizes)

    def pick(self, dtypes: Sequence[str] = (), rank: int = 0) -> tuple[str, str, tuple[int, ...]]:
        """A tensor of one of these types and at least this rank; the last ones more often."""
        found = [
            (name, dtype, sizes)
            for name, (dtype, sizes) in self.tensors.items()
            if (not dtypes or dtype in dtypes) and len(sizes) >= rank
        ]
        if not found:
            raise LookupError
        return self.chance.choice(found[-3:] if self.chance.random() < 0.7 else found)

    def add(self, node: dict[str, Any]) -> bool:
        """Add a node, unless it breaks a rule or becomes too large."""
        name = f"n{len(self.nodes)}"
        node = {"name": name, **node}
        texts = [text for text in _texts(node["inputs"]) if text]
        outer = {text.replace(".", "_"): self.tensors[text] for text in texts}
        renamed = _renamed(node["inputs"])
        alone = {"inputs": {key: {} for key in outer}, "nodes": [{**node, "inputs": renamed}], "outputs": {}}
        sent = {key: Layout.row_major(data_type(dtype), sizes) for key, (dtype, sizes) in outer.items()}
        try:
            read_graph(alone, sent)
        except InvalidDescriptor as error:
            if any(found.path != ("outputs",) for found in error.violations):
                return False
        slots = (
            read_graph({**alone, "outputs": {"o": self._first_output(alone, sent, name)}}, sent)
            .nodes[0]
            .operation.outputs
        )
        if any(np.prod(slot.layout.sizes, dtype=float) > MOST_ELEMENTS for slot in slots):
            return False
        self.nodes.append(node)
        self.read |= {*texts}
        for slot in slots:
            text = name if len(slots) == 1 else f"{name}.{slot.name}"
            self.tensors[text] = (slot.layout.data_type.numpy_name, slot.layout.sizes)
        return True

    @staticmethod
    def _first_output(alone: dict[str, Any], sent: Mapping[str, Layout], name: str) -> str:
        try:
            read_graph({**alone, "outputs": {"o": name}}, sent)
        except InvalidDescriptor as error:  # it has several, and the message lists them
            return str(error.violations[0].expected).partition(",")[0]
        return name


def _texts(inputs: Any) -> list[str]:
    if isinstance(inputs, str):
        return [inputs]
    values = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, list) else ()
    return [text for value in values for text in _texts(value)]


def _renamed(inputs: Any) -> Any:
    if isinstance(inputs, str):
        return inputs.replace(".", "_")
    if isinstance(inputs, dict):
        return {key: _renamed(value) for key, value in inputs.items()}
    return [_renamed(value) for value in inputs] if isinstance(inputs, list) else inputs


def _onnx(op_type: str, inputs: Any, **attributes: Any) -> dict[str, Any]:
    return {"op_type": op_type, "opset": 21, "inputs": inputs, "attributes": attributes}


def _unary(d: _Drawing) -> dict[str, Any]:
    name, _, _ = d.pick(FLOATS)
    if d.chance.random() < 0.3:
        desc = {"RoundingMode": "FLOOR"} if (kind := d.chance.choice(DIRECTML_UNARY)) == "ELEMENT_WISE_ROUND" else {}
        return {"type": kind, "inputs": name, "desc": desc}
    return _onnx(d.chance.choice(UNARY), [name])


def _binary(d: _Drawing) -> dict[str, Any]:
    a, dtype, sizes = d.pick(("float32", "float16", "int32", "int64"))
    others = [
        name for name, (other, shape) in d.tensors.items() if other == dtype and shape in (sizes, (1,) * len(sizes))
    ]
    return _onnx(d.chance.choice(BINARY), [a, d.chance.choice(others)])


def _cast(d: _Drawing) -> dict[str, Any]:
    name, _, _ = d.pick(("float32", "float16", "uint8", "int32", "bool"))
    return _onnx("Cast", [name], to=d.chance.choice(["float32", "float16", "int32"]))


def _transpose(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(rank=2)
    return _onnx("Transpose", [name], perm=d.chance.sample(range(len(sizes)), len(sizes)))


def _reshape(d: _Drawing) -> dict[str, Any]:
    name, _, _ = d.pick()
    return _onnx("Reshape", {"data": name, "shape": [-1] if d.chance.random() < 0.5 else [1, -1]})


def _slice(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(rank=1)
    axis = d.chance.randrange(len(sizes))
    start = d.chance.randrange(sizes[axis]) if sizes[axis] else 0
    return _onnx("Slice", {"data": name, "starts": [start], "ends": [sizes[axis]], "axes": [axis]})


def _concat(d: _Drawing) -> dict[str, Any]:
    name, dtype, sizes = d.pick(rank=1)
    others = [other for other, (kind, shape) in d.tensors.items() if (kind, shape) == (dtype, sizes)]
    return _onnx("Concat", [name, d.chance.choice(others)], axis=d.chance.randrange(len(sizes)))


def _split(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(rank=1)
    return _onnx("Split", [name], axis=max(range(len(sizes)), key=sizes.__getitem__), num_outputs=2)


def _pad(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(FLOATS, rank=1)
    pads = [d.chance.randint(0, 2) for _ in range(2 * len(sizes))]
    return _onnx("Pad", {"data": name, "pads": pads}, mode=d.chance.choice(["constant", "edge"]))


def _resize(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(FLOATS, rank=2)
    scales = [d.chance.choice([0.5, 1, 2]) for _ in sizes]
    return _onnx("Resize", {"X": name, "scales": scales}, mode=d.chance.choice(["nearest", "linear"]))


def _reduce(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(FLOATS, rank=1)
    kind = d.chance.choice(["ReduceSum", "ReduceMean", "ReduceMax"])
    axes = [d.chance.randrange(len(sizes))]
    return _onnx(kind, {"data": name, "axes": axes}, keepdims=d.chance.randint(0, 1))


def _softmax(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(FLOATS, rank=1)
    return _onnx("Softmax", [name], axis=d.chance.randrange(len(sizes)))


def _largest(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(FLOATS, rank=1)
    axis = d.chance.randrange(len(sizes))
    if d.chance.random() < 0.5:
        return _onnx("ArgMax", [name], axis=axis, keepdims=0)
    return _onnx("TopK", {"X": name, "K": [d.chance.randint(1, max(1, sizes[axis]))]}, axis=axis)


def _gather(d: _Drawing) -> dict[str, Any]:
    """Indices that a node computes; some are outside of the axis."""
    name, _, sizes = d.pick(rank=1)
    indices, _, _ = d.pick(("int64",))
    return _onnx("Gather", [name, indices], axis=d.chance.randrange(len(sizes)))


def _product(d: _Drawing) -> dict[str, Any]:
    name, dtype, sizes = d.pick(FLOATS, rank=2)
    fitting = [
        other
        for other, (kind, shape) in d.tensors.items()
        if kind == dtype and len(shape) == 2 and shape[0] == sizes[-1]
    ]
    return _onnx("MatMul", [name, d.chance.choice(fitting)])


def _join(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(("float32", "float16", "uint8"), rank=1)
    return {"type": "JOIN", "inputs": {"InputTensors": [name, name]}, "desc": {"Axis": d.chance.randrange(len(sizes))}}


def _tile(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(("float32", "float16", "uint8"), rank=1)
    return {"type": "TILE", "inputs": {"input": name}, "desc": {"Repeats": [d.chance.randint(1, 2) for _ in sizes]}}


def _expand(d: _Drawing) -> dict[str, Any]:
    name, _, sizes = d.pick(rank=1)
    lead = [d.chance.randint(1, 3)] if d.chance.random() < 0.5 else []
    return _onnx("Expand", {"input": name, "shape": [*lead, *[3 if size == 1 else size for size in sizes]]})


NODES: Sequence[Callable[[_Drawing], dict[str, Any]]] = (
    _unary, _unary, _binary, _binary, _cast, _transpose, _reshape, _slice, _concat, _split, _pad, _resize, _reduce,
    _softmax, _largest, _gather, _product, _join, _tile, _expand,
)  # fmt: skip


POINTWISE = (_unary, _unary, _binary, _cast)
"""Nodes that may be fused."""
COPYING = (_transpose, _transpose, _reshape, _slice, _slice, _concat, _split, _pad, _tile, _join, _expand)
"""Nodes that copy."""


def drawn_graph(
    chance: random.Random, most_nodes: int = 30, kinds: Sequence[Callable[[_Drawing], dict[str, Any]]] = NODES
) -> GraphCase:
    """A graph of 2 to `most_nodes` nodes of these kinds; every node reaches an output."""
    drawing, count = _Drawing(chance), chance.randint(2, most_nodes)
    for _ in range(20 * count):
        if len(drawing.nodes) == count:
            break
        try:
            drawing.add(chance.choice(kinds)(drawing))
        except (LookupError, ValueError):
            continue
    if not drawing.nodes:
        drawing.add(_onnx("Identity", [next(iter(drawing.inputs))]))
    used = {text.partition(".")[0] for text in drawing.read}
    inputs = {name: array for name, array in drawing.inputs.items() if name in used}
    outputs = [text for text in drawing.tensors if text not in drawing.inputs and text.partition(".")[0] not in used]
    made = [text for text in drawing.tensors if text not in drawing.inputs]
    outputs += [text for text in made if text not in outputs and chance.random() < 0.15]
    nodes = list(drawing.nodes)
    chance.shuffle(nodes)
    document = {
        "inputs": {name: {"data_type": array.dtype.name, "sizes": list(array.shape)} for name, array in inputs.items()},
        "nodes": nodes,
        "outputs": {f"out{place}": text for place, text in enumerate(outputs)},
    }
    return GraphCase(document, inputs)


def drawn_photograph(chance: random.Random) -> GraphCase:
    """A photograph that is converted, made smaller or larger by a filter, and shifted."""
    sizes = [chance.randint(1, 2), chance.randint(8, 90), chance.randint(8, 90), chance.randint(1, 5)]
    rows, columns = chance.choice([(1, 2), (2, 3)])  # channels last or first
    target = [max(1, int(sizes[axis] / chance.choice([1.5, 3.5, 5, 8.6]))) for axis in (rows, columns)]
    numbers = np.random.default_rng(chance.randrange(1 << 30))
    photo = (numbers.normal(size=sizes) * 90).astype(chance.choice(["uint8", "int8", "float16", "float32"]))
    filtered = {"antialias": 1, "exclude_outside": 1, "mode": chance.choice(["linear", "cubic"])}
    if chance.random() < 0.2:
        filtered = {"mode": "linear"}
    small = _onnx("Resize", {"X": "f", "sizes": target}, axes=[rows, columns], **filtered)
    if chance.random() < 0.3 and "antialias" in filtered:
        scales = [
            target[(rows, columns).index(axis)] / size if axis in (rows, columns) else 1
            for axis, size in enumerate(sizes)
        ]
        desc = {"InterpolationMode": "LINEAR", "RoundingDirection": "DECREASING", "Scales": scales, "Antialiased": True}
        desc |= {"InputPixelOffsets": [0.5] * 4, "OutputPixelOffsets": [-0.5] * 4}
        small = {"type": "RESAMPLE3", "inputs": "f", "desc": desc}
    document = {
        "inputs": {"photo": {}},
        "constants": {"mean": {"dtype": "F32", "shape": [1], "data": [0.4]}},
        "nodes": [
            {"name": "f", **_onnx("Cast", ["photo"], to="float32")},
            {"name": "small", **small},
            {"name": "y", **_onnx("Sub", ["small", "mean"])},
        ],
        "outputs": {"y": "y"},
    }
    return GraphCase(document, {"photo": photo})


def drawn_reduction(chance: random.Random) -> GraphCase:
    """Element-wise nodes and a reduction of what they make, along lines of several lengths and directions."""
    sizes = [chance.choice([1, 2, 3, 5, 8, 17, 40]) for _ in range(chance.randint(1, 4))]
    sizes[chance.randrange(len(sizes))] = chance.choice([64, 300, 1031, 5000])
    while np.prod(sizes) > 100_000:
        sizes[chance.randrange(len(sizes))] = 2
    axes = sorted(chance.sample(range(len(sizes)), chance.randint(1, len(sizes))))
    numbers = np.random.default_rng(chance.randrange(1 << 30))
    x = (numbers.normal(size=sizes) * 3).astype(chance.choice(["float32", "float32", "float16", "uint8"]))
    row = numbers.normal(size=[chance.choice([1, size]) for size in sizes]).astype(np.float32)
    kind = chance.choice(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
    nodes = [
        {"name": "f", **_onnx("Cast", ["x"], to="float32")},
        {"name": "d", **_onnx(chance.choice(["Sub", "Mul", "Div"]), ["f", "row"])},
        {"name": "e", **_onnx(chance.choice(["Exp", "Abs", "Tanh", "Neg"]), ["d"])},
        {"name": "p", **_onnx("Mul", ["e", chance.choice(["e", "row"])])},
        {"name": "y", **_onnx(kind, {"data": "p", "axes": axes}, keepdims=1)},
    ]
    return GraphCase({"inputs": {"x": {}, "row": {}}, "nodes": nodes, "outputs": {"y": "y"}}, {"x": x, "row": row})


# ---- broken ----------------------------------------------------------------------------------------------------------


def _a_node(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    return chance.choice(document["nodes"])


def _circle(document: dict[str, Any], chance: random.Random) -> None:
    node = _a_node(document, chance)
    node["inputs"] = [node["name"]]


def _dangling(document: dict[str, Any], chance: random.Random) -> None:
    _a_node(document, chance)["inputs"] = ["nobody"]


def _same_name(document: dict[str, Any], chance: random.Random) -> None:
    document["nodes"].append(copy.deepcopy(_a_node(document, chance)))


def _name_of_an_input(document: dict[str, Any], chance: random.Random) -> None:
    _a_node(document, chance)["name"] = next(iter(document["inputs"]))


def _no_operator(document: dict[str, Any], chance: random.Random) -> None:
    node = _a_node(document, chance)
    node["op_type" if "op_type" in node else "type"] = "NO_SUCH_OPERATOR"


def _no_output(document: dict[str, Any], chance: random.Random) -> None:
    document["outputs"]["one more"] = "nobody.output"


def _unknown_member(document: dict[str, Any], chance: random.Random) -> None:
    _a_node(document, chance)["inputz"] = []


def _wrong_type(document: dict[str, Any], chance: random.Random) -> None:
    next(iter(document["inputs"].values()))["data_type"] = "complex128"


def _wrong_sizes(document: dict[str, Any], chance: random.Random) -> None:
    next(iter(document["inputs"].values()))["sizes"] = [999]


def _unused_input(document: dict[str, Any], chance: random.Random) -> None:
    document["inputs"]["spare"] = {"data_type": "FLOAT32", "sizes": [1]}


def _unused_node(document: dict[str, Any], chance: random.Random) -> None:
    first = next(iter(document["inputs"]))
    document["nodes"].append({"name": "spare", "op_type": "Identity", "inputs": [first]})


def _no_name(document: dict[str, Any], chance: random.Random) -> None:
    _a_node(document, chance)["name"] = chance.choice(["", "a.b", "x" * 101, 7, None])


def _wrong_member(document: dict[str, Any], chance: random.Random) -> None:
    document[chance.choice(["inputs", "nodes", "outputs"])] = chance.choice([None, 7, "text", []])


def _wrong_input(document: dict[str, Any], chance: random.Random) -> None:
    _a_node(document, chance)["inputs"] = chance.choice([7, {"nothing": "x"}, [[["x"]]], None])


BREAKS: Mapping[str, Callable[[dict[str, Any], random.Random], None]] = {
    "a circle": _circle,
    "a dangling end": _dangling,
    "a name twice": _same_name,
    "the name of an input": _name_of_an_input,
    "no such operator": _no_operator,
    "an output of nothing": _no_output,
    "an unknown member": _unknown_member,
    "another type": _wrong_type,
    "other sizes": _wrong_sizes,
    "an input that nobody reads": _unused_input,
    "a node that nobody reads": _unused_node,
    "no name": _no_name,
    "a member of another kind": _wrong_member,
    "inputs of another kind": _wrong_input,
}
"""What makes a document no graph; each gets a copy of its own."""

"""`GraphBuilder`: writes the document of a graph with Python's operators and NumPy's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..bodies.json_tensor import tensor_to_json
from ..descriptors import NEWEST, operator_class
from ..graphs.graph_document import LONGEST_NAME
from ..graphs.graph_node import ReadableTensor, read_node
from ..onnx import NEWEST_OPSET, OnnxNode
from ..onnx.operator_schema import OnnxInput
from ..onnx.schemas import schema_of
from ..values.datatypes import DataType, data_type
from ..values.graph import GraphInput
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, InvalidParameter, counted
from .array_like import TensorLike, as_array
from .numpy_calls import CallOptions, NumpyCalls, TensorOfGraph
from .resampling import Antialias, ResamplingMode, resampling
from .resize_nodes import FILTERED

__all__ = ["GraphBuilder", "GraphTensor"]

_MOST_NAMES = 64
_PRIMES = [n for n in range(1009, 2000) if all(n % divisor for divisor in range(2, 45))]
_TRIALS = (tuple(_PRIMES[:_MOST_NAMES]), tuple(_PRIMES[_MOST_NAMES : 2 * _MOST_NAMES]))
"""Numbers that stand for names of sizes, in turn, when the type and the sizes of a tensor are asked for. A size of a
result that is the name's number in both trials is the name, and one that is the same in both is a number."""


@dataclass(eq=False, slots=True)
class _BuiltNode:
    """A node of the graph.

    Attributes:
        name: what the document calls it.
        members: its members without its name and its inputs.
        inputs: its inputs by name: tensors of the graph, lists of them, or numbers.
        output_names: the names of its outputs in the document.
    """

    name: str
    members: Mapping[str, Any]
    inputs: Mapping[str, Any]
    output_names: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **self.members,
            "inputs": {name: _named(value) for name, value in self.inputs.items()},
        }


@dataclass(eq=False, slots=True)
class GraphTensor(TensorOfGraph):
    """A tensor of a `GraphBuilder`: an input, a constant, or the result of a node.

    It has NumPy's operators (`+ - * / @ -x x[1:]`) and the methods `astype`, `reshape`, `transpose`, `clip`, `sum`,
    `mean`, `max` and `min`; everything else is a method of the builder. Each adds a node to the graph.

    Attributes:
        builder: the graph that it belongs to.
        layouts: its type and sizes in each trial, see `_TRIALS`.
        node: what makes it; None of an input or a constant.
        output: which output of the node it is.
        name: the name of an input or a constant.
        value: the elements of a constant.
    """

    builder: GraphBuilder
    layouts: tuple[Layout, ...]
    node: _BuiltNode | None = None
    output: int = 0
    name: str = ""
    value: NDArray[Any] | None = None

    __array_ufunc__ = None  # so that NumPy's arrays leave `array - tensor` to the tensor

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.reference!r}, {self.dtype}, {self.shape}>"

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
        raise InvalidParameter(f"{self.reference!r} is a tensor of a graph, which has no elements before it is run")

    def __bool__(self) -> bool:
        raise InvalidParameter(f"{self.reference!r} is a tensor of a graph, which has no elements before it is run")

    __iter__ = None  # a tensor is no sequence

    @property
    def reference(self) -> str:
        """What the document calls it: `name`, or `node.output`."""
        if self.node is None:
            return self.name
        return (
            self.node.name
            if len(self.node.output_names) == 1
            else f"{self.node.name}.{self.node.output_names[self.output]}"
        )

    def named(self, name: str) -> GraphTensor:
        """The same tensor, after renaming the node that makes it.

        Raises:
            InvalidParameter: the name is taken, or the tensor is an input or a constant.
        """
        if self.node is None:
            raise InvalidParameter(f"{self.name!r} is an input or a constant, and its name cannot be changed")
        self.builder.rename(self.node, name)
        return self

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.layouts[0].data_type.dtype

    @property
    def shape(self) -> tuple[int | str | None, ...]:
        """The sizes: numbers, names of sizes, or None for a number that follows from a name."""
        return tuple(
            [self.builder.size_of(sizes) for sizes in zip(*[each.sizes for each in self.layouts], strict=True)]
        )

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> GraphTensor:
        """The elements in another type; the tensor itself if it has that type and `copy` is False."""
        return self if not copy and self.dtype == np.dtype(dtype) else self.builder.astype(cast("Any", self), dtype)

    def reshape(self, *shape: int | Sequence[int]) -> GraphTensor:
        """The same elements in another shape; one size may be -1."""
        return self.builder.onnx("Reshape", self, _listed(shape))

    def transpose(self, *axes: int | Sequence[int]) -> GraphTensor:
        """The axes in another order; reversed if none is given."""
        return self.builder.transpose(cast("Any", self), _listed(axes) or None)

    def clip(self, a_min: float | None = None, a_max: float | None = None) -> GraphTensor:
        """Elements limited to the bounds."""
        return self.builder.clip(cast("Any", self), a_min, a_max)

    def sum(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> GraphTensor:
        """Sum along axes."""
        return self.builder.sum(cast("Any", self), axis, keepdims=keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> GraphTensor:
        """Mean along axes."""
        return self.builder.mean(cast("Any", self), axis, keepdims=keepdims)

    def max(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> GraphTensor:
        """Largest element along axes."""
        return self.builder.max(cast("Any", self), axis, keepdims=keepdims)

    def min(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> GraphTensor:
        """Smallest element along axes."""
        return self.builder.min(cast("Any", self), axis, keepdims=keepdims)

    def __add__(self, other: Any) -> GraphTensor:
        return self.builder.add(cast("Any", self), other)

    def __radd__(self, other: Any) -> GraphTensor:
        return self.builder.add(other, cast("Any", self))

    def __sub__(self, other: Any) -> GraphTensor:
        return self.builder.subtract(cast("Any", self), other)

    def __rsub__(self, other: Any) -> GraphTensor:
        return self.builder.subtract(other, cast("Any", self))

    def __mul__(self, other: Any) -> GraphTensor:
        return self.builder.multiply(cast("Any", self), other)

    def __rmul__(self, other: Any) -> GraphTensor:
        return self.builder.multiply(other, cast("Any", self))

    def __truediv__(self, other: Any) -> GraphTensor:
        return self.builder.divide(cast("Any", self), other)

    def __rtruediv__(self, other: Any) -> GraphTensor:
        return self.builder.divide(other, cast("Any", self))

    def __matmul__(self, other: Any) -> GraphTensor:
        return self.builder.matmul(cast("Any", self), other)

    def __rmatmul__(self, other: Any) -> GraphTensor:
        return self.builder.matmul(other, cast("Any", self))

    def __neg__(self) -> GraphTensor:
        return self.builder.onnx("Neg", self)

    def __getitem__(self, key: Any) -> GraphTensor:
        return self.builder.slice(cast("Any", self), key)


def _named(value: Any) -> Any:
    """An input of a node as the document has it."""
    if isinstance(value, GraphTensor):
        return value.reference
    return [_named(each) for each in cast("Sequence[Any]", value)] if isinstance(value, (list, tuple)) else value


@dataclass(eq=False)
class GraphBuilder(NumpyCalls):
    """Builds the document of a graph, one call for each node. Nothing is sent.

    It has the methods that `Client` has in NumPy's words (`astype`, `add`, `transpose`, `concatenate`, `sum`, ...),
    `tile` and `resample`, `onnx` for every ONNX operator, and `directml` for every DirectML operator. Arrays and
    numbers beside tensors become constants. A node that breaks a rule is refused when it is added, unless the rule
    depends on sizes that are names; then `run_graph` refuses it.

    Examples:
        >>> g = GraphBuilder()
        >>> photo = g.input("photo", np.uint8, (1, "h", "w", 3))
        >>> small = g.onnx("Resize", photo, sizes=[224, 224], axes=[1, 2], mode="linear", antialias=1)
        >>> y = (small.astype(np.float32) - np.float32([123.7, 116.3, 103.5])) / 58
        >>> image = y.transpose(0, 3, 1, 2).named("image")
        >>> image
        <GraphTensor 'image', float32, (1, 3, 224, 224)>
        >>> graph = g.build(image=image)
        >>> [node["name"] for node in graph["nodes"]]
        ['resize', 'cast', 'sub', 'div', 'image']
    """

    _inputs: dict[str, GraphTensor] = field(default_factory=dict[str, GraphTensor])
    _constants: dict[str, GraphTensor] = field(default_factory=dict[str, GraphTensor])
    _nodes: dict[str, _BuiltNode] = field(default_factory=dict[str, _BuiltNode])
    _counts: dict[str, int] = field(default_factory=dict[str, int])  # of names that were made here, by their beginning
    _sizes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])  # of names, in each trial

    # ---- inputs and constants ----------------------------------------------------------------------------------------

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[int | str]) -> GraphTensor:
        """An input of the graph: a tensor that is sent.

        Args:
            name: what the call of the graph names it.
            dtype: its element type.
            shape: its sizes. A name, as in `(1, "h", "w", 3)`, is bound by the tensor that arrives.

        Raises:
            InvalidParameter: the name is taken, or type or shape are wrong.
        """
        self._accept(name)
        row, sizes = _row(f"dtype of {name!r}", dtype), [*shape]
        for size in sizes:
            if isinstance(size, str):
                self._bind(size)
            elif type(size) is not int or size < 0:
                raise InvalidParameter(f"shape of {name!r} has {size!r}; a size is a number or a name, as in 'h'")
        layouts = [
            Layout.row_major(row, [self._sizes[size][trial] if isinstance(size, str) else size for size in sizes])
            for trial in range(len(_TRIALS))
        ]
        made = self._inputs[name] = GraphTensor(self, tuple(layouts), name=name)
        return made

    def _bind(self, name: str) -> None:
        if name in self._sizes:
            return
        if len(self._sizes) == _MOST_NAMES:
            raise InvalidParameter(
                f"a graph is built with at most {_MOST_NAMES} names of sizes; {name!r} is one more: write numbers for "
                "sizes that are known"
            )
        self._sizes[name] = tuple([trial[len(self._sizes)] for trial in _TRIALS])

    def size_of(self, numbers: Sequence[int]) -> int | str | None:
        """The number, or the name, of a size that has these numbers in the trials; None if it is neither."""
        if len({*numbers}) == 1:
            return numbers[0]
        return next((name for name, bound in self._sizes.items() if bound == tuple(numbers)), None)

    def constant(self, value: TensorLike | NDArray[Any], name: str = "") -> GraphTensor:
        """A constant of the graph. Arrays beside tensors become constants by themselves.

        Args:
            value: an array, or what NumPy can make one of.
            name: what the document calls it; default `constant`, with a number if there are several.

        Raises:
            InvalidParameter: the name is taken, or the value is no array of numbers.
        """
        array = np.asarray(as_array("value", value))
        row = _row("the constant", array.dtype)
        found = name or self._free_name("constant")
        self._accept(found)
        layout = Layout.row_major(row, array.shape)
        made = self._constants[found] = GraphTensor(self, (layout,) * len(_TRIALS), name=found, value=array)
        return made

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def tile(self, x: Any, repeats: int | Sequence[int]) -> GraphTensor:
        """Copies of a tensor side by side, as `numpy.tile`; see `Client.tile`."""
        tensor = self._tensor(x)
        counts = [repeats] if isinstance(repeats, int) else [*repeats]
        if (more := len(counts) - tensor.ndim) > 0:
            axes = list(range(more))
            tensor = self.onnx("Unsqueeze", tensor, axes)
        return self.onnx("Tile", tensor, [1] * -more + counts)

    def resample(
        self,
        x: Any,
        *,
        sizes: int | Sequence[int] | None = None,
        scales: float | Sequence[float] | None = None,
        axes: int | Sequence[int] | None = None,
        mode: ResamplingMode = "linear",
        antialias: Antialias = False,
    ) -> GraphTensor:
        """A tensor resized along any of its axes, as by `Client.resample`.

        Raises:
            InvalidParameter: a size of x has no number, on which the descriptor depends: use `onnx("Resize", ...)`.
        """
        tensor = self._tensor(x)
        shape = tensor.shape
        if any(not isinstance(size, int) for size in shape):
            given = "sizes=[...]" if scales is None else "scales=[...]"
            filtered = ", antialias=1, exclude_outside=1" if antialias else ""
            raise InvalidParameter(
                f"x has the sizes {shape}, and resample() needs numbers; declare them as numbers, or send "
                f'onnx("Resize", x, {given}, axes=[...], mode="{mode}"{filtered}), which takes any'
            )
        like = np.broadcast_to(np.zeros((), tensor.dtype), cast("tuple[int, ...]", shape))
        plan = resampling(like, sizes=sizes, scales=scales, axes=axes, mode=mode, antialias=antialias)
        if isinstance(plan.operation, OnnxNode):
            values: dict[str, Any] = {name: list(numbers) for name, numbers in plan.operation.values}
            return self.onnx("Resize", tensor, mode="linear", **values, **FILTERED)
        if len(plan.sent_shape) != len(shape):
            tensor = tensor.reshape(plan.sent_shape)
        follows = ("InputTensor", "OutputTensor", "DimensionCount")
        fields = {key: value for key, value in plan.desc.to_json().items() if key not in follows}
        y = self.directml(plan.desc.operator_type, tensor, **fields)
        return y if len(plan.sent_shape) == len(shape) else y.reshape(plan.output_shape)

    def directml(self, operator_type: str, *inputs: Any, **fields: Any) -> Any:
        """A node of a DirectML operator.

        Args:
            operator_type: `DML_OPERATOR_RESAMPLE`, `RESAMPLE` or `resample`.
            inputs: its inputs in the order of the operator's struct; None for one that is left out, and a list for an
                array of tensors.
            fields: its fields but for tensors, in DirectML's words: `Scales=[1, 0.5]` or `scales=[1, 0.5]`.

        Returns:
            The output; a tuple of several.

        Raises:
            UnknownOperator: there is no such operator.
            InvalidDescriptor: the node breaks a rule.
        """
        cls = operator_class(operator_type)
        names = [entry.name for entry in cls.facts.fields_by_kind["input"]]
        if len(inputs) > len(names):
            raise InvalidParameter(
                f"{cls.operator_type} has {counted(len(names), 'input')} ({', '.join(names)}); got {len(inputs)}"
            )
        given = {
            name: [self._tensor(each) for each in cast("Sequence[Any]", value)]
            if isinstance(value, (list, tuple))
            else self._tensor(value)
            for name, value in zip(names, inputs, strict=False)
            if value is not None
        }
        short = cls.operator_type.removeprefix("DML_OPERATOR_")
        return self._add(short.lower(), {"type": short, "desc": _plain(fields)}, given)

    def onnx(
        self, op_type: str, *inputs: Any, opset: int = NEWEST_OPSET, outputs: int | None = None, **attributes: Any
    ) -> Any:
        """A node of an ONNX operator; see `Client.onnx`.

        Args:
            op_type: the operator's name in ONNX.
            inputs: its inputs by position, None for one that is left out, or by their names among the attributes.
                Those that decide the output's sizes are numbers; of the others arrays and numbers become constants.
            opset: opset of the default domain; default the newest known.
            outputs: how many outputs the node has; default those that it must have.
            attributes: the operator's attributes by name, and inputs.

        Returns:
            The output; a tuple of several.

        Raises:
            UnknownOperator: there is no such operator.
            InvalidDescriptor: the node breaks a rule.
        """
        schema = schema_of(op_type, opset)
        slots = list(schema.inputs)
        names = [slot.name for slot in slots]
        if slots and slots[-1].variadic:
            extra = len(inputs) - len(slots)
            slots += slots[-1:] * extra
            names[-1:] = [f"{slots[-1].name}_{place}" for place in range(extra + 1)]
        if len(inputs) > len(slots):
            raise InvalidParameter(
                f"{schema.name} has {counted(len(slots), 'input')} ({', '.join(names)}); got {len(inputs)}"
            )
        given: dict[str, Any] = {name: value for name, value in zip(names, inputs, strict=False) if value is not None}
        for name in names:
            if name in attributes and schema.attribute(name) is None:
                if name in given:
                    raise InvalidParameter(
                        f"{schema.name}'s input {name} is given by position and by name; give it once"
                    )
                if (value := attributes.pop(name)) is not None:
                    given[name] = value
        kinds = dict(zip(names, slots, strict=True))
        values = {name: self._onnx_input(kinds, given, name) for name in given}
        members: dict[str, Any] = {"op_type": op_type, "opset": opset}
        if attributes:
            members["attributes"] = _plain(attributes)
        if outputs is not None:
            members["outputs"] = outputs
        return self._add(op_type.lower(), members, values)

    def _onnx_input(self, kinds: Mapping[str, OnnxInput], given: Mapping[str, Any], name: str) -> Any:
        """An input as the node has it: a tensor, or numbers. A number takes on the type of the tensors beside it."""
        slot, value = kinds[name], given[name]
        if not slot.data:
            return value if isinstance(value, GraphTensor) else np.asarray(value).tolist()
        if isinstance(value, (bool, int, float, list, tuple)):
            beside = [
                given[other].dtype
                for other, kind in kinds.items()
                if kind.variable == slot.variable and hasattr(given.get(other), "dtype")
            ]
            value = np.asarray(value, beside[0] if beside else None)
        return self._tensor(value)

    def _node(self, op_type: str, inputs: Sequence[Any], options: CallOptions, **attributes: Any) -> Any:
        for name in options:
            raise InvalidParameter(
                f"{name} belongs to the call of a graph, run_graph(..., {name}=...), not to its nodes"
            )
        return self.onnx(op_type, *inputs, **attributes)

    def _add(self, stem: str, members: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """Add a node, and return its outputs."""
        node = _BuiltNode(self._free_name(stem), members, inputs)
        trials = [self._outputs_of(node, trial) for trial in range(len(_TRIALS))]
        node.output_names = tuple(trials[0])
        self._nodes[node.name] = node
        made = [
            GraphTensor(self, tuple([found[name] for found in trials]), node, place)
            for place, name in enumerate(node.output_names)
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def _outputs_of(self, node: _BuiltNode, trial: int) -> dict[str, Layout]:
        """The outputs of a node by name, if the names of sizes stand for the numbers of a trial."""
        tensors = {
            each.reference: ReadableTensor(GraphInput(0), each.layouts[trial], each.value)
            for value in node.inputs.values()
            for each in (cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else [value])
            if isinstance(each, GraphTensor)
        }
        try:
            operation, _ = read_node(node.to_json(), tensors, NEWEST)
        except InvalidDescriptor as error:
            bound = ", ".join([f"{name} = {numbers[trial]}" for name, numbers in self._sizes.items()])
            where = f"node {node.name!r}" + (f", where {bound} stand for the names of sizes" if bound else "")
            raise type(error)(f"{where}: {error.detail}", error.violations) from None
        return {slot.name: slot.layout for slot in operation.outputs}

    # ---- the document ------------------------------------------------------------------------------------------------

    def build(self, **outputs: GraphTensor) -> dict[str, Any]:
        """The document of the graph, for `run_graph`, `json.dump` and `POST /v1/graphs`.

        Args:
            outputs: the tensors that come back, by the names that they have there. Nodes that none of them needs are
                left out.

        Raises:
            InvalidParameter: there is no output, or an output is not the result of a node of this graph.
        """
        if not outputs:
            raise InvalidParameter("a graph needs an output, as in build(image=y)")
        reached: dict[int, GraphTensor | _BuiltNode] = {}
        for name, tensor in outputs.items():
            if not isinstance(cast("object", tensor), GraphTensor) or tensor.builder is not self or tensor.node is None:
                raise InvalidParameter(
                    f"the output {name!r} must be the result of a node of this graph, not {tensor!r}"
                )
            self._reach(tensor, reached)
        kept = {id(each) for each in reached.values()}
        document: dict[str, Any] = {
            "inputs": {
                name: {"data_type": tensor.layouts[0].data_type.numpy_name, "sizes": [*tensor.shape]}
                for name, tensor in self._inputs.items()
                if id(tensor) in kept
            }
        }
        constants = {
            name: tensor_to_json(cast("NDArray[Any]", tensor.value))
            for name, tensor in self._constants.items()
            if id(tensor) in kept
        }
        if constants:
            document["constants"] = constants
        document["nodes"] = [node.to_json() for node in self._nodes.values() if id(node) in kept]
        document["outputs"] = {name: tensor.reference for name, tensor in outputs.items()}
        return document

    def _reach(self, tensor: GraphTensor, reached: dict[int, GraphTensor | _BuiltNode]) -> None:
        """Add what a tensor needs: itself, its node, and what the node reads."""
        waiting: list[Any] = [tensor]
        while waiting:
            each = waiting.pop()
            if isinstance(each, (list, tuple)):
                waiting += cast("Sequence[Any]", each)
            elif isinstance(each, (GraphTensor, _BuiltNode)) and id(each) not in reached:
                reached[id(each)] = each
                waiting += [each.node] if isinstance(each, GraphTensor) else [*each.inputs.values()]

    # ---- names -------------------------------------------------------------------------------------------------------

    def rename(self, node: _BuiltNode, name: str) -> None:
        """Give a node another name; see `GraphTensor.named`."""
        if name != node.name:
            self._accept(name)
            nodes = [*self._nodes.values()]
            node.name = name
            self._nodes = {each.name: each for each in nodes}

    def _accept(self, name: object) -> None:
        if not isinstance(name, str) or not name or "." in name or len(name) > LONGEST_NAME:
            raise InvalidParameter(f"the name {name!r} must have 1 to {LONGEST_NAME} characters and no dot")
        if name in self._inputs or name in self._constants or name in self._nodes:
            raise InvalidParameter(
                f"the name {name!r} is used twice in this graph; each input, constant and node needs its own name"
            )

    def _free_name(self, stem: str) -> str:
        taken = {*self._inputs, *self._constants, *self._nodes}
        number = self._counts[stem] = self._counts.get(stem, -1) + 1
        while (name := f"{stem}_{number}" if number else stem) in taken:
            number = self._counts[stem] = number + 1
        return name

    def _tensor(self, value: Any) -> GraphTensor:
        """The tensor of this graph that an argument is; an array becomes a constant."""
        if not isinstance(value, GraphTensor):
            return self.constant(value)
        if value.builder is not self:
            raise InvalidParameter(f"{value.reference!r} is a tensor of another graph")
        return value


def _listed(values: Sequence[Any]) -> list[int]:
    """The numbers of `f(1, 2)` or of `f((1, 2))`."""
    return [*(values[0] if len(values) == 1 and isinstance(values[0], (list, tuple)) else values)]


def _row(what: str, dtype: DTypeLike) -> DataType:
    try:
        return data_type(np.dtype(dtype))
    except (KeyError, TypeError):
        raise InvalidParameter(
            f"{what} is {dtype!r}; graphs compute numbers and booleans, for instance np.float32"
        ) from None


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes and fields as JSON has them."""
    return {
        name: value.tolist()
        if isinstance(value, (np.ndarray, np.generic))
        else [*cast("Sequence[Any]", value)]
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
        if value is not None
    }

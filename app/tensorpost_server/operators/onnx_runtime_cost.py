"""What a node costs in ONNX Runtime: elements that it reads and combines, and memory beside its tensors.

Both are estimates from the tensors' sizes and from the attributes that say how much is read for an element: windows,
kernels, samples, lengths of transforms. A small request can ask for much by those alone. What is estimated too low is
ended by the limits of the child process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.onnx.proto_node import OnnxProtoNode

_UNKNOWN_WORK = 1 << 25
"""Work of iterations whose number is not known: a call of so much may take long."""
_MOST_ITEM_BYTES = 8  # half types are computed in float32, others in their own


@dataclass(frozen=True, slots=True)
class _Sizes:
    """A node's sizes, as the estimates read them.

    Attributes:
        attributes: values by name.
        inputs: type and shape of each tensor that travels, in the signature's order.
        named: the same by name.
        values: numbers that were given by value, by name.
        output: the first output.
        outputs: elements of all outputs.
    """

    attributes: Mapping[str, Any]
    inputs: list[OnnxTensor]
    named: Mapping[str, OnnxTensor]
    values: Mapping[str, Any]
    output: OnnxTensor
    outputs: int

    @staticmethod
    def of(node: OnnxNode) -> _Sizes:
        named = dict(node.tensors)
        outputs = sum([tensor.element_count for _, tensor in node.results])
        return _Sizes(dict(node.attributes), [*named.values()], named, dict(node.values), node.results[0][1], outputs)

    def product(self, attribute: str) -> int:
        """The product of an attribute's entries without their signs; 1 without the attribute."""
        entries = self.attributes.get(attribute) or ()
        return math.prod([max(1, abs(int(entry))) for entry in entries])

    def number(self, attribute: str, default: int = 0) -> int:
        """An attribute of one number without its sign."""
        return abs(int(self.attributes.get(attribute, default) or 0))

    def per_channel(self, *names: str) -> int:
        """Weights of one channel: all but the first dimension of the first of these inputs that there is."""
        for name in names:
            if name in self.named and self.named[name].shape:
                return math.prod(self.named[name].shape[1:])
        return self.product("kernel_shape")

    def spatial(self, tensor: OnnxTensor) -> int:
        """Elements of one channel."""
        return math.prod(tensor.shape[2:])


class _Cost(NamedTuple):
    """Elements that are read and combined, and elements of temporaries."""

    work: Callable[[_Sizes], int]
    elements_beside: Callable[[_Sizes], int] = lambda _: 0


def work_of(node: OnnxNode) -> int:
    """Estimate of the elements that a node reads and combines.

    Where no row says more, it is that of a product: each element of an output reads a part of each further input, all
    but the longest dimension of it. Of Loop and Scan it is that of all iterations; where their number is not known, of
    enough for a long call.
    """
    if isinstance(node, OnnxProtoNode) and node.inner:
        once = sum([work_of(inner) for inner in node.inner])
        return max(once, _UNKNOWN_WORK) if node.repeats is None else once * node.repeats
    sizes = _Sizes.of(node)
    further = [tensor for tensor in sizes.inputs[1:] if tensor.shape]
    reads = [tensor.element_count // max(1, *tensor.shape) for tensor in further]
    least = 2 * sizes.outputs * max([1, *reads]) + sum([tensor.element_count for tensor in sizes.inputs])
    cost = _COSTS.get(node.op_type)
    return least if cost is None else max(least, cost.work(sizes))


def extra_bytes(node: OnnxNode) -> int:
    """Estimate of the memory that a node takes beside its inputs and outputs, bytes."""
    if isinstance(node, OnnxProtoNode):  # what an iteration makes, and what the one before it made
        made = sum([tensor.size_in_bytes for inner in node.inner for _, tensor in inner.results])
        return 2 * made + max([extra_bytes(inner) for inner in node.inner], default=0)
    cost = _COSTS.get(node.op_type)
    return 0 if cost is None else cost.elements_beside(_Sizes.of(node)) * _MOST_ITEM_BYTES


def _convolution(sizes: _Sizes) -> int:
    return sizes.outputs * sizes.per_channel("W", "w")


def _transposed(sizes: _Sizes) -> int:
    return sizes.inputs[0].element_count * sizes.per_channel("W")


def _columns(sizes: _Sizes) -> int:
    """Columns of a convolution as a product: what each place of an output reads, for one image."""
    return sizes.per_channel("W", "w") * max(1, sizes.number("group", 1)) * sizes.spatial(sizes.output)


def _transposed_columns(sizes: _Sizes) -> int:
    return sizes.per_channel("W") * max(1, sizes.number("group", 1)) * sizes.spatial(sizes.inputs[0])


def _window(sizes: _Sizes) -> int:
    return sizes.outputs * sizes.product("kernel_shape")


def _samples(sizes: _Sizes) -> int:
    """Samples of RoiAlign for each element of an output; by its regions if `sampling_ratio` is 0, then all of X."""
    ratio = sizes.number("sampling_ratio")
    if ratio:
        return ratio * ratio
    x, y = sizes.inputs[0].shape[2:], sizes.output.shape[2:]
    return math.prod([-(-size // max(1, pooled)) for size, pooled in zip(x, y, strict=False)])


def _roi_align(sizes: _Sizes) -> int:
    return 4 * sizes.outputs * _samples(sizes)


def _roi_align_table(sizes: _Sizes) -> int:
    """Eight numbers of 4 bytes for each sample of a region, in each thread; threads share the rest of the estimate."""
    return 4 * sizes.spatial(sizes.output) * _samples(sizes)


def _max_roi_pool(sizes: _Sizes) -> int:
    return sizes.outputs * (2 + sizes.spatial(sizes.inputs[0]) // max(1, sizes.spatial(sizes.output)))


def _recurrent(sizes: _Sizes) -> int:
    steps = math.prod(sizes.inputs[0].shape[:2])
    return steps * sum([sizes.named[name].element_count for name in ("W", "R") if name in sizes.named])


def _gates(sizes: _Sizes) -> int:
    steps, hidden = math.prod(sizes.inputs[0].shape[:2]), sizes.number("hidden_size", 1)
    return 2 * 8 * (steps + 1) * max(1, hidden)


def _determinant(sizes: _Sizes) -> int:
    return sizes.inputs[0].element_count * (sizes.inputs[0].shape[-1] if sizes.inputs[0].shape else 1)


def _transform(sizes: _Sizes) -> int:
    """A Fourier transform; lengths that are no power of two are computed as several of twice the length."""
    length = _transform_length(sizes)
    return max(sizes.outputs, length) * 32 * max(1, length.bit_length())


def _transform_buffers(sizes: _Sizes) -> int:
    return 16 * _transform_length(sizes)


def _transform_length(sizes: _Sizes) -> int:
    """The length that the node names, at least that of all of its input."""
    lengths = [number for name in ("dft_length", "frame_length") for number in sizes.values.get(name, ())]
    return max([sizes.inputs[0].element_count, *[abs(int(length)) for length in lengths]])


def _einsum_space(sizes: _Sizes) -> int:
    """All combinations of the equation's indices."""
    left = re.sub(r"\s", "", str(sizes.attributes.get("equation", ""))).partition("->")[0]
    lengths: dict[str, int] = {}
    for term, tensor in zip(left.split(","), sizes.inputs, strict=False):
        named = term.replace("...", "")
        free = len(tensor.shape) - len(named)
        at = term.find("...")
        letters = [*named] if at < 0 else [*term[:at], *[f".{i}" for i in range(max(0, free))], *term[at + 3 :]]
        for letter, size in zip(letters, tensor.shape, strict=False):
            lengths[letter] = max(size, lengths.get(letter, 1))
    return math.prod(lengths.values())


def _einsum(sizes: _Sizes) -> int:
    return 2 * _einsum_space(sizes)


def _einsum_products(sizes: _Sizes) -> int:
    """Elements of copies; of more than two tensors also of the first product, which may have all indices."""
    return _einsum_space(sizes) if len(sizes.inputs) > 2 else 2 * sum([x.element_count for x in sizes.inputs])


def _scores(sizes: _Sizes) -> int:
    """Scores of attention: one for each query with each key, in each head."""
    query, key = sizes.inputs[0], sizes.inputs[min(1, len(sizes.inputs) - 1)]
    heads = max(1, sizes.number("q_num_heads", 1), query.shape[1] if len(query.shape) == 4 else 1)
    batch = query.shape[0] if query.shape else 1
    past = max([tensor.shape[2] for tensor in sizes.inputs if len(tensor.shape) == 4], default=0)
    return (
        batch
        * heads
        * (query.shape[-2] if len(query.shape) > 1 else 1)
        * ((key.shape[-2] if len(key.shape) > 1 else 1) + past)
    )


def _attention(sizes: _Sizes) -> int:
    return 4 * _scores(sizes) * max(1, sizes.inputs[0].shape[-1] if sizes.inputs[0].shape else 1)


def _attention_scores(sizes: _Sizes) -> int:
    return 3 * _scores(sizes)


def _deformed(sizes: _Sizes) -> int:
    return 4 * _convolution(sizes)


def _grid_samples(sizes: _Sizes) -> int:
    return sizes.outputs * 64


def _local_response(sizes: _Sizes) -> int:
    return sizes.outputs * max(1, sizes.number("size", 1))


_COSTS: Mapping[str, _Cost] = {
    "Attention": _Cost(_attention, _attention_scores),
    "AveragePool": _Cost(_window),
    "Conv": _Cost(_convolution, _columns),
    "ConvInteger": _Cost(_convolution, _columns),
    "ConvTranspose": _Cost(_transposed, _transposed_columns),
    "DFT": _Cost(_transform, _transform_buffers),
    "DeformConv": _Cost(_deformed, _columns),
    "Det": _Cost(_determinant),
    "Einsum": _Cost(_einsum, _einsum_products),
    "GRU": _Cost(_recurrent, _gates),
    "GridSample": _Cost(_grid_samples),
    "LRN": _Cost(_local_response),
    "LSTM": _Cost(_recurrent, _gates),
    "LpPool": _Cost(_window),
    "MaxPool": _Cost(_window),
    "MaxRoiPool": _Cost(_max_roi_pool),
    "QLinearConv": _Cost(_convolution, _columns),
    "RNN": _Cost(_recurrent, _gates),
    "RoiAlign": _Cost(_roi_align, _roi_align_table),
    "STFT": _Cost(_transform, _transform_buffers),
}
"""What operators cost beyond the least of any node."""

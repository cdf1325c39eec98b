"""Whether the rows of a node that ONNX Runtime computes stay apart, as far as its operator says.

Such a node does not say what it reads. Operators that are known to mix rows, to draw random numbers, or to number what
they find are refused; the others are taken to compute each row by itself where the sizes agree.

Source: the pages of the ONNX operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from tensorpost.onnx import OnnxNode
from tensorpost.onnx.proto_node import CONTROL_FLOW

_NORMALIZED_AXIS = ("LpNormalization", "LayerNormalization", "RMSNormalization")
_TRAINING = "training_mode"

_MIXING = CONTROL_FLOW | {
    "Adagrad", "Adam", "Bernoulli", "Compress", "GRU", "Gradient", "LSTM", "MaxRoiPool", "MaxUnpool", "Momentum",
    "Multinomial", "NegativeLogLikelihoodLoss", "NonMaxSuppression", "NonZero", "RNN", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike", "RoiAlign", "SoftmaxCrossEntropyLoss",
    "StringNormalizer", "Unique",
}  # fmt: skip
"""Operators that mix rows, draw numbers, or whose outputs hold numbers of rows or places."""


def library_mixes(node: OnnxNode, varying: Sequence[bool], constant: Callable[[int], bytes | None]) -> bool:
    """Whether the operator may compute a row from other rows, or not the same each time.

    Args:
        node: the node.
        varying: which of its tensors depend on the batch.
        constant: the bytes of a tensor by its place; None if it is no constant.
    """
    if node.op_type in _MIXING:
        return True
    rule = _RULES.get(node.op_type)
    return rule is not None and rule(node, varying, constant)


def _training(node: OnnxNode, _varying: Sequence[bool], constant: Callable[[int], bytes | None]) -> bool:
    """Whether a node draws or takes statistics, as it does in training; before opset 7 that is the default."""
    is_test = node.attribute("is_test")
    if (is_test is not None and not is_test) or node.attribute(_TRAINING):
        return True
    if (entries := node.value(_TRAINING)) is not None:
        return any(entries)
    place = next((place for place, (name, _) in enumerate(node.tensors) if name == _TRAINING), None)
    if place is None:
        return False
    data = constant(place)
    return data is None or any(data)


def _places(node: OnnxNode, _varying: Sequence[bool], _constant: Callable[[int], bytes | None]) -> bool:
    """Whether places in the whole tensor are asked for."""
    return len(node.results) > 1


def _along_rows(node: OnnxNode, _varying: Sequence[bool], _constant: Callable[[int], bytes | None]) -> bool:
    """Whether the first axis is among those that are normalized together."""
    rank = len(node.tensors[0][1].shape)
    if node.op_type in _NORMALIZED_AXIS:
        axis = node.attribute("axis")
        axes: Sequence[int] = [-1 if axis is None else cast("int", axis)]
    else:
        given = node.attribute("axes")
        axes = (0, 2, 3) if given is None else cast("Sequence[int]", given)
    return any(axis in (0, -rank) for axis in axes)


def _einsum(node: OnnxNode, varying: Sequence[bool], _constant: Callable[[int], bytes | None]) -> bool:
    """Whether the first letter of the output is not, once, the first one of every input that varies."""
    equation = str(node.attribute("equation")).replace(" ", "")
    terms, arrow, output = equation.partition("->")
    letter, factors = output[:1], terms.split(",")
    if not arrow or not letter.isalpha() or output.count(letter) != 1 or len(factors) != len(varying):
        return True
    return any(
        factor[:1] != letter or factor.count(letter) != 1 if varies else letter in factor
        for factor, varies in zip(factors, varying, strict=True)
    )


def _tables(node: OnnxNode, varying: Sequence[bool], _constant: Callable[[int], bytes | None]) -> bool:
    """Whether rows are picked by number from tables that vary."""
    return len(node.tensors) > len(("X", "cos_cache", "sin_cache")) and any(varying[1:3])


_MixRule = Callable[[OnnxNode, Sequence[bool], Callable[[int], bytes | None]], bool]
_RULES: Mapping[str, _MixRule] = {
    "BatchNormalization": _training, "Dropout": _training, "Einsum": _einsum, "LayerNormalization": _along_rows,
    "LpNormalization": _along_rows, "MaxPool": _places, "MeanVarianceNormalization": _along_rows,
    "RMSNormalization": _along_rows, "RotaryEmbedding": _tables,
}  # fmt: skip
"""Operators that mix rows with some attributes or inputs only: whether they do."""

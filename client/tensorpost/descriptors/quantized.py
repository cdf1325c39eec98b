"""Scales and zero points of quantized tensors, as products, convolutions and pools take them."""

from __future__ import annotations

from collections.abc import Iterator

from ..values.problems import Violation
from .catalogue import pascal_case
from .operator_desc import OperatorDesc

__all__ = ["Quantized"]


class Quantized(OperatorDesc):
    """Base of operators with scales and zero points, which may have fewer dimensions than what they scale."""

    def one_value_or(self, count: int, axis: int, each: str, *fields: str, flat: bool = False) -> Iterator[Violation]:
        """Parameters must be one value, or one for each entry along an axis; those without that axis have one value.

        Args:
            count: entries along the axis.
            axis: index of the dimension, counted from the first one, or from the last one if it is negative.
            each: what an entry is, for the message.
            fields: the parameters; those that are absent are passed over.
            flat: whether a parameter of one dimension has it along the axis.
        """
        for (name, *_), tensor in self.tensors("input"):
            rank = len(tensor.sizes)
            at = 0 if flat and rank == 1 else rank + axis if axis < 0 else axis
            wanted = [count if dimension == at else 1 for dimension in range(rank)]
            if name in fields and list(tensor.sizes) not in ([1] * rank, wanted):
                message = f"must be one value, or one for each {each}: sizes of 1, or {wanted}"
                where = (pascal_case(str(name)), "Sizes")
                yield self.broken("parameter-sizes", where, message, list(tensor.sizes), str(wanted))

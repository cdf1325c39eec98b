"""`DML_VALUE_SCALE_2D_OPERATOR_DESC`: scale an image and add a bias to each channel.

Source: the DML_VALUE_SCALE_2D_OPERATOR_DESC page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..values.problems import Violation, entry_count
from ..values.sentences import named
from .fields import Float, FloatArray, UInt, count_of
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc

__all__ = ["ValueScale2DOperatorDesc"]


class ValueScale2DOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_VALUE_SCALE_2D`: `Output[n, c, y, x] = Scale * Input[n, c, y, x] + Bias[c]`.

    Attributes:
        input_tensor: tensor to read, of 4 dimensions.
        output_tensor: result, of the input's sizes and DataType.
        scale: factor of every element.
        channel_count: derived; 1 or 3.
        bias: what is added to the elements of each channel.
    """

    outputs_like: ClassVar = {"output_tensor": "input_tensor"}

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    scale: Float
    bias: FloatArray
    channel_count: UInt = count_of("bias")

    def operator_rules(self) -> Iterator[Violation]:
        """Four dimensions, and a bias for each of one or three channels."""
        yield from self.same_type_and_rank()
        sizes = self.input_tensor.sizes
        yield from self.count_is_length("channel_count", "bias")
        if len(sizes) != 4:
            message = f"VALUE_SCALE_2D takes N, C, H, W, not {len(sizes)} dimensions"
            yield self.broken("dimension-count", ("InputTensor", "Sizes"), message, list(sizes), "4 dimensions")
        elif len(self.bias) not in (1, 3) or len(self.bias) != sizes[1]:
            message = named("Bias") + f" has {entry_count(len(self.bias))}, but there are {sizes[1]} channels"
            message += "; 1 and 3 are allowed"
            yield self.broken("channels", ("Bias",), message, list(self.bias), "1 or 3, one for each channel")

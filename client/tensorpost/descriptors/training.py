"""Training: the Adam optimizer, batch normalization that computes its statistics, and gradients of normalizations.

Sources: the DML_ADAM_OPTIMIZER, DML_BATCH_NORMALIZATION_TRAINING, DML_BATCH_NORMALIZATION_TRAINING_GRAD,
DML_BATCH_NORMALIZATION_GRAD and DML_LOCAL_RESPONSE_NORMALIZATION_GRAD pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..values.datatypes import TensorDataType
from ..values.problems import Violation, counted
from ..values.sentences import named
from .activation import FusedActivation, WithFusedActivation
from .elementwise_base import ElementWiseGradient
from .fields import Bool, Float, UInt
from .operator_desc import OperatorDesc
from .plain_operators import plain_operator as __getattr__  # noqa: F401 # rows of this family, by its own path
from .tensor import BufferTensorDesc

__all__ = [
    "AdamOptimizerOperatorDesc",
    "BatchNormalizationGradient",
    "BatchNormalizationTrainingOperatorDesc",
    "LocalResponseNormalizationGradOperatorDesc",
]


class AdamOptimizerOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_ADAM_OPTIMIZER`: parameters and moments after a step of Adam.

    `M' = Beta1 * M + (1 - Beta1) * G`, `V' = Beta2 * V + (1 - Beta2) * G^2`,
    `X' = X - LearningRate * sqrt(1 - Beta2^T) / (1 - Beta1^T) * M' / (sqrt(V') + Epsilon)`.

    Attributes:
        input_parameters_tensor: the parameters X.
        input_first_moment_tensor: M, of the same DataType and sizes, as all but the step.
        input_second_moment_tensor: V, the second moment, of X's DataType and sizes.
        gradient_tensor: G, the gradient, of X's DataType and sizes.
        training_step_tensor: T, one UINT32; the first step is 1, and 0 leaves the correction by the betas out.
        output_parameters_tensor: the parameters after the step, X'.
        output_first_moment_tensor: the first moment after the step, M'.
        output_second_moment_tensor: the second moment after the step, V'.
        learning_rate: factor of the update.
        beta1: 0 to 1; usually 0.9.
        beta2: 0 to 1; usually 0.999.
        epsilon: usually 1e-8.
    """

    outputs_like: ClassVar = {
        "output_parameters_tensor": "input_parameters_tensor", "output_first_moment_tensor": "input_parameters_tensor",
        "output_second_moment_tensor": "input_parameters_tensor",
    }  # fmt: skip

    input_parameters_tensor: BufferTensorDesc
    input_first_moment_tensor: BufferTensorDesc
    input_second_moment_tensor: BufferTensorDesc
    gradient_tensor: BufferTensorDesc
    training_step_tensor: BufferTensorDesc
    output_parameters_tensor: BufferTensorDesc
    output_first_moment_tensor: BufferTensorDesc
    output_second_moment_tensor: BufferTensorDesc
    learning_rate: Float
    beta1: Float = 0.9
    beta2: Float = 0.999
    epsilon: Float = 1e-8

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree but the step, which is one number."""
        fields = [str(path[0]) for path, _ in self.tensors() if path[0] != "training_step_tensor"]
        yield from self.same_data_type(*fields)
        yield from self.same_dimension_count(*fields)
        sizes, inputs = self.input_parameters_tensor.sizes, self.fields_of_kind("input")[1:4]
        yield from self.sizes_are(sizes, "InputParametersTensor.Sizes", *inputs)
        yield from self.data_type_is(TensorDataType.UINT32, "training_step_tensor")
        ones = [1] * len(self.training_step_tensor.sizes)
        yield from self.sizes_are(ones, "of one element", "training_step_tensor")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) <= 1:
                path = (self.names_of_fields()[name],)
                message = named(path[0]) + " must be from 0 to 1, since it is a weight"
                yield self.broken("beta", path, message, getattr(self, name), "0 to 1")


class BatchNormalizationTrainingOperatorDesc(WithFusedActivation):
    """`DML_OPERATOR_BATCH_NORMALIZATION_TRAINING`: normalizes by the input's own mean and variance, and returns them.

    `FusedActivation(Scale * (Input - Mean) / sqrt(Variance + Epsilon) + Bias + FusedAdd)`.

    Attributes:
        input_tensor: tensor to normalize.
        scale_tensor: the input's sizes, or 1 along the dimensions that mean and variance are taken over.
        bias_tensor: biases, of the scale's sizes.
        fused_add_tensor: what is added before the activation, of the input's sizes; or absent.
        output_tensor: result, of the input's sizes.
        output_mean_tensor: mean, of the scale's sizes.
        output_variance_tensor: variance of the whole population, of the scale's sizes.
        epsilon: added to the variance.
        fused_activation: applied to the result; absent for none.
    """

    outputs_like: ClassVar = {
        "output_tensor": "input_tensor", "output_mean_tensor": "scale_tensor", "output_variance_tensor": "scale_tensor",
    }  # fmt: skip

    input_tensor: BufferTensorDesc
    scale_tensor: BufferTensorDesc
    bias_tensor: BufferTensorDesc
    fused_add_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    output_mean_tensor: BufferTensorDesc
    output_variance_tensor: BufferTensorDesc
    epsilon: Float = 1e-5
    fused_activation: FusedActivation | None = None

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree; each has the sizes of the input or of the scale, which is 1 where it has not those."""
        yield from _normalized(self, "scale_tensor", ("bias_tensor",), "fused_add_tensor")


def _normalized(
    desc: OperatorDesc, parameter: str, like_parameter: tuple[str, ...], like_input: str
) -> Iterator[Violation]:
    yield from desc.same_type_and_rank()
    (_, source), sizes = desc.tensors()[0], getattr(desc, parameter).sizes
    name = desc.names_of_fields()[parameter]
    yield from desc.sizes_are(source.sizes, "InputTensor.Sizes", like_input)
    yield from desc.sizes_are(sizes, f"{name}.Sizes", *like_parameter)
    for axis, (size, whole) in enumerate(zip(sizes, source.sizes, strict=False)):
        if size not in (1, whole) and len(sizes) == len(source.sizes):
            message = f"{name} has {counted(size, 'element')} along dimension {axis}, and the input {whole}"
            yield desc.broken("parameter-sizes", (name, "Sizes", axis), message, size, f"1 or {whole}")


class BatchNormalizationGradient(OperatorDesc):
    """Base of the gradients of batch normalization, with respect to input, scale and bias.

    Attributes:
        input_tensor: the forward operator's input.
        input_gradient_tensor: the gradient of its output; of the same sizes.
        mean_tensor: 1 or the input's size along each dimension.
        variance_tensor: variance, of the mean's sizes.
        scale_tensor: scale, of the mean's sizes.
        output_gradient_tensor: gradient of the input, of its sizes.
        output_scale_gradient_tensor: gradient of the scale, of the mean's sizes.
        output_bias_gradient_tensor: gradient of the bias, of the mean's sizes.
        epsilon: the forward operator's.
    """

    outputs_like: ClassVar = {
        "output_gradient_tensor": "input_tensor", "output_scale_gradient_tensor": "mean_tensor",
        "output_bias_gradient_tensor": "mean_tensor",
    }  # fmt: skip

    input_tensor: BufferTensorDesc
    input_gradient_tensor: BufferTensorDesc
    mean_tensor: BufferTensorDesc
    variance_tensor: BufferTensorDesc
    scale_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    output_scale_gradient_tensor: BufferTensorDesc
    output_bias_gradient_tensor: BufferTensorDesc
    epsilon: Float = 1e-5

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree; each has the sizes of the input or of the mean, which is 1 where it has not those."""
        yield from _normalized(self, "mean_tensor", ("variance_tensor", "scale_tensor"), "input_gradient_tensor")


class LocalResponseNormalizationGradOperatorDesc(ElementWiseGradient):
    """`DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION_GRAD`: the gradient of LOCAL_RESPONSE_NORMALIZATION.

    With s the Bias plus Alpha / LocalSize times the sum of squares of an element's region, the forward operator is
    `x / s^Beta`, and this one `dy / s^Beta - 2 * Alpha * Beta / LocalSize * x * sum(dy * x / s^(Beta + 1))`.

    Attributes:
        cross_channel: whether a region runs over the channels, else over height and width.
        local_size: elements of a region along each of its dimensions, at least 1; cut at the bounds.
        alpha: usually 0.0001.
        beta: exponent of the denominator; usually 0.75.
        bias: what the sum of squares is added to; usually 1.
    """

    cross_channel: Bool
    local_size: UInt
    alpha: Float = 0.0001
    beta: Float = 0.75
    bias: Float = 1.0

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree and have four dimensions; a region has an element."""
        yield from super().operator_rules()
        if len(self.input_tensor.sizes) != 4:
            message = f"{self.operator_type} takes N, C, H, W, not {len(self.input_tensor.sizes)} dimensions"
            path = ("InputTensor", "Sizes")
            yield self.broken("dimension-count", path, message, list(self.input_tensor.sizes), "4 dimensions")
        if not self.local_size:
            yield self.broken("local-size", ("LocalSize",), "a region has no element", 0, "at least 1")

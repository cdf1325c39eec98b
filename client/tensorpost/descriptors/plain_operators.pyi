"""Written by `python -m tests.support.families`: the operators of `ROWS` as classes."""

from collections.abc import Mapping

from .activation import Activation
from .elementwise_base import Binary, ElementWiseGradient, Unary, UnaryWithoutScale
from .indexing_nd import GatheringNd
from .logic import Comparison, Predicate
from .operator_desc import OperatorDesc
from .reduction import Positions, Selection
from .softmax import AxesActivation, LineActivation
from .training import BatchNormalizationGradient

ROWS: Mapping[str, Mapping[str, str]]

def plain_operator(name: str) -> type[OperatorDesc]: ...

class ActivationIdentityOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_IDENTITY`: each element itself."""

class ActivationReluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_RELU`: `max(0, x)`; NaN stays NaN."""

class ActivationSigmoidOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_SIGMOID`: `1 / (1 + e^-x)`."""

class ActivationSoftsignOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_SOFTSIGN`: `x / (1 + |x|)`; 1 and -1 of the infinities, as its limits."""

class ActivationTanhOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_TANH`: the hyperbolic tangent."""

class ActivationGeluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_GELU`: `0.5 * x * (1 + erf(x / sqrt(2)))`; -infinity becomes -0, as its limit."""

class ActivationReluGradOperatorDesc(ElementWiseGradient):
    """`DML_OPERATOR_ACTIVATION_RELU_GRAD`: the gradient where the input is above 0, else 0."""

class ElementWiseIdentityOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_IDENTITY`: each element itself; changes the strides of a tensor."""

class ElementWiseAbsOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ABS`: the absolute value of each element."""

class ElementWiseAcosOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ACOS`: the angle of a cosine, 0 to pi; NaN beyond 1."""

class ElementWiseAsinOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ASIN`: the angle of a sine, -pi/2 to pi/2; NaN beyond 1."""

class ElementWiseAtanOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ATAN`: the angle of a tangent, -pi/2 to pi/2."""

class ElementWiseCeilOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_CEIL`: the least whole number that is not below the element."""

class ElementWiseCosOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_COS`: the cosine of an angle in radians."""

class ElementWiseExpOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_EXP`: e to the power of each element."""

class ElementWiseFloorOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_FLOOR`: the largest whole number that is not above the element."""

class ElementWiseLogOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_LOG`: the natural logarithm; -infinity of 0, NaN below."""

class ElementWiseRecipOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_RECIP`: 1 / x; infinite where x is 0."""

class ElementWiseSinOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_SIN`: the sine of an angle in radians."""

class ElementWiseSqrtOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_SQRT`: the square root of each element; NaN below 0."""

class ElementWiseTanOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_TAN`: the tangent of an angle in radians."""

class ElementWiseErfOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ERF`: the error function."""

class ElementWiseSinhOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_SINH`: the hyperbolic sine."""

class ElementWiseCoshOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_COSH`: the hyperbolic cosine."""

class ElementWiseTanhOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_TANH`: the hyperbolic tangent."""

class ElementWiseAsinhOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ASINH`: the inverse of the hyperbolic sine."""

class ElementWiseAcoshOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ACOSH`: the inverse of the hyperbolic cosine; NaN below 1."""

class ElementWiseAtanhOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ATANH`: the inverse of the hyperbolic tangent; NaN beyond 1."""

class ElementWiseLogicalNotOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT`: 1 where the element is 0, else 0."""

class ElementWiseSignOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_SIGN`: -1, 0 or 1 as the element is below, at or above 0; 0 for NaN."""

class ElementWiseBitNotOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_NOT`: the bits that are not set, of any type."""

class ElementWiseNegateOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_NEGATE`: -x; of the least integer of 8 or 16 bits the largest, of more bits itself."""

class ElementWiseAddOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_ADD`: the sum of two tensors; integers wrap."""

class ElementWiseDivideOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_DIVIDE`: A / B; integers are truncated toward zero."""

class ElementWiseLogicalAndOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_AND`: 1 where neither element is 0, else 0."""

class ElementWiseLogicalOrOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_OR`: 1 where one of the elements is not 0, else 0."""

class ElementWiseLogicalXorOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_XOR`: 1 where exactly one of the elements is 0, else 0."""

class ElementWiseMaxOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MAX`: the larger of two elements; NaN if either is NaN."""

class ElementWiseMeanOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MEAN`: (A + B) / 2; a sum of integers wraps, and is halved toward zero."""

class ElementWiseMinOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MIN`: the smaller of two elements; NaN if either is NaN."""

class ElementWiseMultiplyOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MULTIPLY`: the product of two tensors; integers wrap."""

class ElementWiseSubtractOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_SUBTRACT`: A - B; integers wrap."""

class ElementWiseBitShiftLeftOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_SHIFT_LEFT`: A << B; 0 from a count of the width of the type on."""

class ElementWiseBitShiftRightOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_SHIFT_RIGHT`: A >> B; 0 from a count of the width of the type on."""

class ElementWiseModulusTruncateOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MODULUS_TRUNCATE`: the remainder of A / B with the sign of A; exact."""

class ElementWiseModulusFloorOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MODULUS_FLOOR`: the remainder of A / B with the sign of B."""

class ElementWiseBitAndOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_AND`: the bits that are set in both elements, of any type."""

class ElementWiseBitOrOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_OR`: the bits that are set in one of the elements, of any type."""

class ElementWiseBitXorOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_XOR`: the bits that are set in exactly one of the elements, of any type."""

class ElementWiseAtanYxOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_ATAN_YX`: the angle of the point (B, A), -pi to pi."""

class ElementWiseDifferenceSquareOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_DIFFERENCE_SQUARE`: (A - B) * (A - B); integers wrap."""

class GatherNdOperatorDesc(GatheringNd):
    """`DML_OPERATOR_GATHER_ND`: takes parts of the input, each by the first coordinates of its elements."""

class ElementWiseLogicalEqualsOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS`: whether A is equal to B, as 1 or 0."""

class ElementWiseLogicalGreaterThanOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN`: whether A is above B, as 1 or 0."""

class ElementWiseLogicalLessThanOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN`: whether A is below B, as 1 or 0."""

class ElementWiseLogicalGreaterThanOrEqualOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL`: whether A is not below B, as 1 or 0."""

class ElementWiseLogicalLessThanOrEqualOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL`: whether A is not above B, as 1 or 0."""

class ElementWiseIsNanOperatorDesc(Predicate):
    """`DML_OPERATOR_ELEMENT_WISE_IS_NAN`: 1 where the element is a NaN, else 0."""

class ElementWiseBitCountOperatorDesc(Predicate):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_COUNT`: how many bits of the element are set."""

class ArgminOperatorDesc(Positions):
    """`DML_OPERATOR_ARGMIN`: the position of the smallest element along some axes; of NaN, if there is any."""

class ArgmaxOperatorDesc(Positions):
    """`DML_OPERATOR_ARGMAX`: the position of the largest element along some axes; of NaN, if there is any."""

class TopKOperatorDesc(Selection):
    """`DML_OPERATOR_TOP_K`: the K largest elements of every line, largest first, and their positions."""

class ActivationHardmaxOperatorDesc(LineActivation):
    """`DML_OPERATOR_ACTIVATION_HARDMAX`: 1 for the first largest element along the last dimension, else 0."""

class ActivationLogSoftmaxOperatorDesc(LineActivation):
    """`DML_OPERATOR_ACTIVATION_LOG_SOFTMAX`: `ln(e^x / sum(e^x))` along the last dimension."""

class ActivationSoftmaxOperatorDesc(LineActivation):
    """`DML_OPERATOR_ACTIVATION_SOFTMAX`: `e^x / sum(e^x)` along the last dimension."""

class ActivationSoftmax1OperatorDesc(AxesActivation):
    """`DML_OPERATOR_ACTIVATION_SOFTMAX1`: `e^x / sum(e^x)` along some dimensions together."""

class ActivationLogSoftmax1OperatorDesc(AxesActivation):
    """`DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1`: `ln(e^x / sum(e^x))` along some dimensions together."""

class ActivationHardmax1OperatorDesc(AxesActivation):
    """`DML_OPERATOR_ACTIVATION_HARDMAX1`: 1 for the first largest element along some dimensions, else 0."""

class BatchNormalizationGradOperatorDesc(BatchNormalizationGradient):
    """`DML_OPERATOR_BATCH_NORMALIZATION_GRAD`: gradients where mean and variance are constants."""

class BatchNormalizationTrainingGradOperatorDesc(BatchNormalizationGradient):
    """`DML_OPERATOR_BATCH_NORMALIZATION_TRAINING_GRAD`: gradients where both are the input's own."""

"""Recurrent networks of one layer: RNN, GRU and LSTM.

Sources: the DML_RNN, DML_GRU and DML_LSTM pages. What they leave open (sequence lengths, which activations) is as in
ONNX's operators of these names, which ONNX Runtime computes by these.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from ..values.problems import Violation
from ..values.sentences import named
from .activation import Activation, FusedActivation, newer_activations
from .completion import Given, Inferred, packed
from .feature_levels import FeatureLevel
from .fields import Bool, CEnum, Float, UInt, count_of
from .operator_desc import OperatorDesc
from .size_patterns import shown_pattern, sizes_by_pattern
from .tensor import BufferTensorDesc

__all__ = [
    "GruOperatorDesc",
    "LstmOperatorDesc",
    "Recurrent",
    "RecurrentNetworkDirection",
    "RnnOperatorDesc",
]

_MOST_ACTIVATIONS = 6  # three functions of an LSTM in two directions
_PREFIX = "DML_RECURRENT_NETWORK_DIRECTION_"


class RecurrentNetworkDirection(enum.IntEnum):
    """`DML_RECURRENT_NETWORK_DIRECTION`: from the first step to the last, the other way, or both."""

    FORWARD = 0
    BACKWARD = 1
    BIDIRECTIONAL = 2

    @property
    def directions(self) -> int:
        """How many directions there are: 1 or 2."""
        return 1 + (self is RecurrentNetworkDirection.BIDIRECTIONAL)


def _to_activations(value: object) -> object:
    expected = {"expected": f"an array of 1 to {_MOST_ACTIVATIONS} activations"}
    if not isinstance(value, (list, tuple)):
        raise PydanticCustomError("not-an-array", "must be an array of activations", expected)
    activations = cast("Sequence[object]", value)
    if not 1 <= len(activations) <= _MOST_ACTIVATIONS:
        context = {"length": len(activations), "most": _MOST_ACTIVATIONS, **expected}
        raise PydanticCustomError("activation-count", "has {length} activations, not 1 to {most}", context)
    return list(activations)


NetworkDirectionField = Annotated[RecurrentNetworkDirection, CEnum(_PREFIX)]
Activations = Annotated[tuple[FusedActivation, ...], BeforeValidator(_to_activations)]
"""`const DML_OPERATOR_DESC*` with a count: activations without tensors of their own."""

_SIZES: Mapping[str, str] = {
    "input_tensor": "1 S B I",
    "weight_tensor": "1 D G*H I",
    "recurrence_tensor": "1 D G*H H",
    "bias_tensor": "1 1 D 2*G*H",
    "hidden_init_tensor": "1 D B H",
    "cell_mem_init_tensor": "1 D B H",
    "sequence_lengths_tensor": "1 1 1 B",
    "peephole_tensor": "1 1 D 3*H",
    "output_sequence_tensor": "S D B H",
    "output_single_tensor": "1 D B H",
    "output_cell_single_tensor": "1 D B H",
}
"""Sizes by field: S steps, B batch, I input, H hidden, D directions, G gates."""


class Recurrent(OperatorDesc):
    """Base of the recurrent networks; their first fields, the sizes of all and what follows from them.

    Attributes:
        gates: how many matrices of H rows stand one under the other in the weights.
        functions: the activations of one direction where none are named, as ONNX has them.
        input_tensor: {1, steps S, batch B, input I}.
        weight_tensor: {1, directions D, G*H, I}, H being the hidden size and G the gates.
        recurrence_tensor: {1, D, G*H, H}.
        bias_tensor: {1, 1, D, 2*G*H}, that of the weights, then that of the recurrence; absent for zeros.
        hidden_init_tensor: {1, D, B, H}, the state before the first step; absent for zeros.
    """

    gates: ClassVar[int]
    functions: ClassVar[tuple[str, ...]]

    input_tensor: BufferTensorDesc
    weight_tensor: BufferTensorDesc
    recurrence_tensor: BufferTensorDesc
    bias_tensor: BufferTensorDesc | None = None
    hidden_init_tensor: BufferTensorDesc | None = None

    if TYPE_CHECKING:  # these stand after others in the struct of LSTM
        activation_descs: tuple[Activation, ...]
        direction: RecurrentNetworkDirection

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """ONNX's activations; all outputs where none is named."""
        direction = given.member("direction", RecurrentNetworkDirection, _PREFIX, RecurrentNetworkDirection.FORWARD)
        yield "activation_descs", [{"Type": f"ACTIVATION_{name}"} for name in cls.functions * direction.directions]
        outputs = cls.fields_of_kind("output")
        source, recurrence = given.tensor("input_tensor"), given.tensor("recurrence_tensor")
        if len(source.sizes) == 4 and not any(given.has(name) for name in outputs):
            known = cls._known(source.sizes, recurrence.sizes[-1], direction)
            for name in outputs:
                yield name, packed(source.data_type, sizes_by_pattern(_SIZES[name], known))

    @classmethod
    def _known(cls, sizes: Sequence[int], hidden: int, direction: RecurrentNetworkDirection) -> Mapping[str, int]:
        return {**dict(zip("SBI", sizes[1:], strict=True)), "H": hidden, "D": direction.directions, "G": cls.gates}

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors have four dimensions, the sizes of the class and one type, and there is an output."""
        yield from self.same_type_and_rank(*_SIZES.keys() - {"sequence_lengths_tensor"})
        for path, tensor in self.tensors("input"):
            if tensor.flags:
                message = "DirectML takes no OWNED_BY_DML in recurrent networks"
                where = (self.names_of_fields()[str(path[0])], "Flags")
                yield self.broken("owned-input", where, message, "OWNED_BY_DML", "NONE")
        yield from self.count_is_length("activation_desc_count", "activation_descs")
        wanted = len(self.functions) * self.direction.directions
        if len(self.activation_descs) != wanted:
            found = [activation.operator_type for activation in self.activation_descs]
            message = f"there are {len(found)} activations, but this direction takes {wanted}"
            yield self.broken("activation-count", ("ActivationDescs",), message, found, f"{wanted} activations")
        outputs = self.fields_of_kind("output")
        if not self.tensors("output"):
            names = " or ".join([self.names_of_fields()[name] for name in outputs])
            yield self.broken("no-output", (), "no output is asked for", None, names)
        source, recurrence = self.input_tensor.sizes, self.recurrence_tensor.sizes
        if len(source) != 4:
            message = f"{self.operator_type} takes 4 dimensions, not {len(source)}"
            yield self.broken("dimension-count", ("InputTensor", "Sizes"), message, list(source), "4 dimensions")
            return
        known = self._known(source, recurrence[-1], self.direction)
        for field in (path[0] for path, _ in self.tensors()):
            wanted_sizes, why = sizes_by_pattern(_SIZES[field], known), shown_pattern(_SIZES[field], known)
            yield from self.sizes_are(wanted_sizes, why, field, code="recurrent-sizes")

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """Such a call is as new as its activations."""
        for index, activation in enumerate(self.activation_descs):
            yield from newer_activations(self, activation, level, "ActivationDescs", index)


class _OneState(Recurrent):
    """Base of RNN and GRU, whose step takes and gives the hidden state only; see `RnnOperatorDesc`."""

    sequence_lengths_tensor: BufferTensorDesc | None = None
    output_sequence_tensor: BufferTensorDesc | None = None
    output_single_tensor: BufferTensorDesc | None = None
    activation_descs: Activations
    activation_desc_count: UInt = count_of("activation_descs")
    direction: NetworkDirectionField = RecurrentNetworkDirection.FORWARD


class RnnOperatorDesc(_OneState):
    """`DML_OPERATOR_RNN`: a simple recurrent network, `H_t = f(X_t W' + H_prev R' + Wb + Rb)`.

    Attributes:
        sequence_lengths_tensor: UINT32 {1, 1, 1, B}, steps of each row of the batch, at most S; absent for S.
        output_sequence_tensor: {S, D, B, H}, the hidden state of every step, 0 beyond a row's length; or absent.
        output_single_tensor: {1, D, B, H}, the hidden state of the last step computed; or absent.
        activation_desc_count: number of entries of `activation_descs`; derived.
        activation_descs: f of the forward direction, then of the backward one; TANH where they are left out.
        direction: FORWARD, BACKWARD or BIDIRECTIONAL.
    """

    gates = 1
    functions = ("TANH",)


class GruOperatorDesc(_OneState):
    """`DML_OPERATOR_GRU`: a network of gated recurrent units; the gates are update z, reset r and hidden h.

    `z = f(X Wz' + H Rz' + Wbz + Rbz)`, r alike, `h = g(X Wh' + (r * H) Rh' + Wbh + Rbh)`, `H_t = (1 - z) * h + z * H`.

    Attributes:
        sequence_lengths_tensor: steps of each row of the batch; see `RnnOperatorDesc`.
        output_sequence_tensor: the hidden state of every step; see `RnnOperatorDesc`.
        output_single_tensor: the hidden state of the last step computed; see `RnnOperatorDesc`.
        activation_desc_count: number of entries of `activation_descs`; derived.
        activation_descs: f and g of each direction; SIGMOID and TANH where they are left out.
        direction: FORWARD, BACKWARD or BIDIRECTIONAL.
        linear_before_reset: `h = g(X Wh' + r * (H Rh' + Rbh) + Wbh)` instead.
    """

    gates = 3
    functions = ("SIGMOID", "TANH")

    linear_before_reset: Bool = False


class LstmOperatorDesc(Recurrent):
    """`DML_OPERATOR_LSTM`: a network of long short-term memory; the gates are input i, output o, forget f and cell c.

    `i = f(X Wi' + H Ri' + Pi * C + Wbi + Rbi)`, o and f alike, `c = g(X Wc' + H Rc' + Wbc + Rbc)`,
    `C_t = f * C + i * c`, `H_t = o * h(C_t)`. The output gate's peephole is of C_t, as ONNX's.

    Attributes:
        cell_mem_init_tensor: {1, D, B, H}, the cell before the first step; absent for zeros.
        sequence_lengths_tensor: steps of each row of the batch; see `RnnOperatorDesc`.
        peephole_tensor: {1, 1, D, 3*H}, Pi, Po and Pf; absent for zeros.
        output_sequence_tensor: the hidden state of every step; see `RnnOperatorDesc`.
        output_single_tensor: the hidden state of the last step computed; see `RnnOperatorDesc`.
        output_cell_single_tensor: {1, D, B, H}, the cell after the last step computed; or absent.
        activation_desc_count: number of entries of `activation_descs`; derived.
        activation_descs: f, g and h of each direction; SIGMOID, TANH and TANH where they are left out.
        direction: FORWARD, BACKWARD or BIDIRECTIONAL.
        clip_threshold: what f and g are applied to is limited to this magnitude.
        use_clip_threshold: whether it is.
        couple_input_forget: `1 - i` is the forget gate.
    """

    gates = 4
    functions = ("SIGMOID", "TANH", "TANH")

    cell_mem_init_tensor: BufferTensorDesc | None = None
    sequence_lengths_tensor: BufferTensorDesc | None = None
    peephole_tensor: BufferTensorDesc | None = None
    output_sequence_tensor: BufferTensorDesc | None = None
    output_single_tensor: BufferTensorDesc | None = None
    output_cell_single_tensor: BufferTensorDesc | None = None
    activation_descs: Activations
    activation_desc_count: UInt = count_of("activation_descs")
    direction: NetworkDirectionField = RecurrentNetworkDirection.FORWARD
    clip_threshold: Float = 0.0
    use_clip_threshold: Bool = False
    couple_input_forget: Bool = False

    def operator_rules(self) -> Iterator[Violation]:
        """A threshold that is used is not negative."""
        yield from super().operator_rules()
        if self.use_clip_threshold and self.clip_threshold < 0:
            message = named("ClipThreshold") + " must not be negative, since it is a magnitude"
            yield self.broken("clip-threshold", ("ClipThreshold",), message, self.clip_threshold, "0 or above")

"""Recurrent networks: one loop over the steps, and what RNN, GRU and LSTM do in each.

DirectML's answers decide: the output gate's peephole is of the cell after the step, as in ONNX, where the page prints
the one before it; a clip threshold limits the gates' inputs, but not the cell; lengths of 0 and beyond the steps are
legal. A row of the batch keeps its state beyond its length and has zeros there in the sequence. Choices of tensorpost:
FLOAT16 is computed in float32, states included, and rounded once; NaN and infinities pass, which DirectML's RNN limits
to finite numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import RecurrentNetworkDirection

from ..forms import Array, Pointwise
from ..forms.base import go_on, whole_box
from .registry import form_of, form_of_class

STEP_WORK = 50_000  # elements that are added up in the time of the calls of the array library for one gate
_PRODUCTS_AT_ONCE = 1 << 28  # a hundredth of a second


@form_of_class(dml.RnnOperatorDesc, dml.GruOperatorDesc, dml.LstmOperatorDesc)
def recurrent_form(desc: dml.Recurrent) -> Array:
    """All steps of each direction (DML_RNN_OPERATOR_DESC, DML_GRU_OPERATOR_DESC, DML_LSTM_OPERATOR_DESC)."""
    _, steps, batch, size = desc.input_tensor.sizes
    _, directions, rows, hidden = desc.recurrence_tensor.sizes
    activations = [form_of(activation) for activation in desc.activation_descs]
    each = len(desc.functions)
    both = RecurrentNetworkDirection.BIDIRECTIONAL
    backward = [False, True] if desc.direction is both else [desc.direction is RecurrentNetworkDirection.BACKWARD]
    parameters = (
        ("names", tuple([path[0] for path, _ in desc.tensors("input")])),
        ("outputs", tuple([path[0] for path, _ in desc.tensors("output")])),
        ("step", _STEPS[type(desc)]),
        ("backward", tuple(backward)),
        ("activations", tuple([tuple(activations[at * each : (at + 1) * each]) for at in range(directions)])),
        ("linear_before_reset", getattr(desc, "linear_before_reset", False)),
        ("limit", desc.clip_threshold if isinstance(desc, dml.LstmOperatorDesc) and desc.use_clip_threshold else None),
        ("coupled", getattr(desc, "couple_input_forget", False)),
    )
    products = 2 * batch * rows * (size + hidden)
    scratch = 4 * (rows * (size + hidden + 4) + batch * (size + 10 * rows))
    return Array(recur, len(desc.inputs), steps * directions * (products + desc.gates * STEP_WORK), parameters, scratch)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction of a network: its weights in the type that it is computed in, and its attributes.

    Attributes:
        xp: the array library.
        weight: {I, G*H}.
        recurrence: {H, G*H}.
        bias: {2, G*H}: that of the weights, that of the recurrence.
        peephole: {3, H}; None for none.
        activations: f, g, h as far as the operator has them.
        linear_before_reset: see `GruOperatorDesc`.
        limit: the clip threshold of an LSTM; None for none.
        coupled: whether an LSTM's forget gate is `1 - i`.
    """

    xp: ModuleType
    weight: Any
    recurrence: Any
    bias: Any
    peephole: Any
    activations: Sequence[Pointwise]
    linear_before_reset: bool
    limit: float | None
    coupled: bool

    def gates(self, x: Any, hidden: Any, first: int, last: int) -> Any:
        """What gates `first` to `last` are applied to, without peepholes: {B, count * H}."""
        return self.of_input(x, first, last) + self.of_state(hidden, first, last)

    def of_input(self, x: Any, first: int, last: int) -> Any:
        """The input's share."""
        part = slice(first * len(self.recurrence), last * len(self.recurrence))
        return self._product(x, self.weight[:, part]) + self.bias[0, part]

    def of_state(self, hidden: Any, first: int, last: int) -> Any:
        """The hidden state's share."""
        part = slice(first * len(self.recurrence), last * len(self.recurrence))
        return self._product(hidden, self.recurrence[:, part]) + self.bias[1, part]

    def _product(self, rows: Any, columns: Any) -> Any:
        """A product of matrices; on a processor in parts, for one of a large state takes longer than a turn."""
        count = max(1, _PRODUCTS_AT_ONCE // max(1, rows.size))
        if self.xp is not np or count >= columns.shape[1]:
            return self.xp.matmul(rows, columns)
        made = np.empty((len(rows), columns.shape[1]), "float32")
        for begin in range(0, columns.shape[1], count):
            go_on()
            part = slice(begin, begin + count)
            np.matmul(rows, columns[:, part], out=made[:, part])
        return made

    def activated(self, function: int, x: Any) -> Any:
        """Activation number `function` of the elements; an LSTM's f and g of limited ones."""
        if self.limit is not None and function < 2:
            limit = x.dtype.type(self.limit)
            x = self.xp.maximum(self.xp.minimum(x, limit), -limit)
        made = self.xp.empty(x.shape, x.dtype)
        self.activations[function].fill(self.xp, [x], whole_box(x.shape), made)
        return made


def rnn_step(cell: _Cell, x: Any, hidden: Any, _memory: Any) -> tuple[Any, Any]:
    """One step of an RNN: the state after it, and no memory."""
    return cell.activated(0, cell.gates(x, hidden, 0, 1)), None


def gru_step(cell: _Cell, x: Any, hidden: Any, _memory: Any) -> tuple[Any, Any]:
    """One step of a GRU: the state after it, and no memory."""
    update, reset = cell.xp.split(cell.activated(0, cell.gates(x, hidden, 0, 2)), 2, axis=1)
    if cell.linear_before_reset:
        new = cell.of_input(x, 2, 3) + reset * cell.of_state(hidden, 2, 3)
    else:
        new = cell.gates(x, reset * hidden, 2, 3)
    return (1 - update) * cell.activated(1, new) + update * hidden, None


def lstm_step(cell: _Cell, x: Any, hidden: Any, memory: Any) -> tuple[Any, Any]:
    """One step of an LSTM: the state and the memory after it."""
    into, out, forget, new = cell.xp.split(cell.gates(x, hidden, 0, 4), 4, axis=1)

    def gate(x: Any, peephole: int) -> Any:
        return cell.activated(0, x if cell.peephole is None else x + cell.peephole[peephole] * memory)

    into = gate(into, 0)
    forget = 1 - into if cell.coupled else gate(forget, 2)
    memory = forget * memory + into * cell.activated(1, new)
    return gate(out, 1) * cell.activated(2, memory), memory


_STEPS: dict[type[dml.Recurrent], Callable[[_Cell, Any, Any, Any], tuple[Any, Any]]] = {
    dml.RnnOperatorDesc: rnn_step,
    dml.GruOperatorDesc: gru_step,
    dml.LstmOperatorDesc: lstm_step,
}


def recur(
    xp: ModuleType,
    *tensors: Any,
    names: Sequence[str],
    outputs: Sequence[str],
    step: Callable[[_Cell, Any, Any, Any], tuple[Any, Any]],
    backward: Sequence[bool],
    activations: Sequence[Sequence[Pointwise]],
    **attributes: Any,
) -> tuple[Any, ...]:
    """All steps of a network: the function of an `Array`.

    Args:
        xp: the array library.
        tensors: the inputs; the input and the recurrence have DirectML's rank of 4, others any shape.
        names: what DirectML calls them.
        outputs: what it calls the outputs.
        step: one step of one direction.
        backward: whether each direction goes from the last step to the first.
        activations: the activations of each direction.
        attributes: the others of `_Cell`.
    """
    given = dict(zip(names, tensors, strict=True))
    x, recurrence = given["input_tensor"][0], given["recurrence_tensor"][0]
    (steps, batch, _), (directions, rows, hidden) = x.shape, recurrence.shape
    lengths = given.get("sequence_lengths_tensor")
    single = (directions, batch, hidden)
    made = {name: xp.zeros((steps, *single) if "sequence" in name else (1, *single), x.dtype) for name in outputs}
    sequence = made.get("output_sequence_tensor")

    def part(name: str, sizes: tuple[int, ...], direction: int) -> Any:
        """One direction of an optional tensor, in float32; None if it is absent."""
        return (
            given[name].reshape(directions, -1)[direction].reshape(sizes).astype("float32") if name in given else None
        )

    zeros = xp.zeros((batch, hidden), "float32")
    for at in range(directions):
        bias = part("bias_tensor", (2, rows), at)
        cell = _Cell(
            xp,
            part("weight_tensor", (rows, x.shape[2]), at).T,
            part("recurrence_tensor", (rows, hidden), at).T,
            xp.zeros((2, rows), "float32") if bias is None else bias,
            part("peephole_tensor", (3, hidden), at),
            activations[at],
            **attributes,
        )
        states = [part(name, zeros.shape, at) for name in ("hidden_init_tensor", "cell_mem_init_tensor")]
        states = [zeros if state is None else state for state in states]
        for time in reversed(range(steps)) if backward[at] else range(steps):
            go_on()
            new = step(cell, x[time].astype("float32"), *states)
            if lengths is None:
                states = new
                shown = new[0]
            else:
                lasts = lengths.reshape(batch, 1) > time
                states = [
                    old if state is None else xp.where(lasts, state, old)
                    for state, old in zip(new, states, strict=True)
                ]
                shown = xp.where(lasts, new[0], 0)
            if sequence is not None:
                sequence[time, at] = shown
        for name, state in zip(("output_single_tensor", "output_cell_single_tensor"), states, strict=True):
            if name in made:
                made[name][0, at] = state
    return tuple([made[name] for name in outputs])

"""RNN, GRU and LSTM against ONNX Runtime's, and peepholes against a loop over Python numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.suite import Case, check_bytes

from tensorpost.descriptors import OperatorDesc, operator_class
from tensorpost_server.backends import Backend

Arrays = dict[str, NDArray[Any]]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
DIRECTIONS = {"FORWARD": "forward", "BACKWARD": "reverse", "BIDIRECTIONAL": "bidirectional"}
# ONNX's name, DirectML's descriptor, alpha and beta.
ACTIVATIONS: Sequence[tuple[str, dict[str, Any]]] = [
    ("Sigmoid", {"Type": "ACTIVATION_SIGMOID"}),
    ("Tanh", {"Type": "ACTIVATION_TANH"}),
    ("Relu", {"Type": "ACTIVATION_RELU"}),
    ("Softsign", {"Type": "ACTIVATION_SOFTSIGN"}),
    ("HardSigmoid", {"Type": "ACTIVATION_HARD_SIGMOID", "Desc": {"Alpha": 0.25, "Beta": 0.5}}),
    ("LeakyRelu", {"Type": "ACTIVATION_LEAKY_RELU", "Desc": {"Alpha": 0.125}}),
    ("ScaledTanh", {"Type": "ACTIVATION_SCALED_TANH", "Desc": {"Alpha": 0.5, "Beta": 2.0}}),
]
OUTPUTS = ("OutputSequenceTensor", "OutputSingleTensor", "OutputCellSingleTensor")


def drawn(random: np.random.Generator, operator: str) -> tuple[Arrays, dict[str, Any]]:
    """Inputs of random sizes by field, optional ones now and then, and attributes."""
    steps, batch, size, hidden = (int(random.integers(1, limit)) for limit in (6, 4, 5, 5))
    direction = str(random.choice(list(DIRECTIONS)))
    directions, rows = 1 + (direction == "BIDIRECTIONAL"), GATES[operator] * hidden
    shapes = {
        "InputTensor": (1, steps, batch, size), "WeightTensor": (1, directions, rows, size),
        "RecurrenceTensor": (1, directions, rows, hidden), "BiasTensor": (1, 1, directions, 2 * rows),
        "HiddenInitTensor": (1, directions, batch, hidden),
    }  # fmt: skip
    if operator == "LSTM":
        shapes["CellMemInitTensor"] = (1, directions, batch, hidden)
    arrays: Arrays = {
        name: random.standard_normal(shape).astype(np.float32)
        for place, (name, shape) in enumerate(shapes.items())
        if place < 3 or random.random() < 0.7
    }
    if random.random() < 0.6:
        lengths = random.integers(1, steps + 1, (1, 1, 1, batch))
        arrays["SequenceLengthsTensor"] = lengths.astype(np.uint32)
    return arrays, {"Direction": direction}


def described(operator: str, arrays: Arrays, attributes: Mapping[str, Any]) -> OperatorDesc:
    tensors = {
        name: {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape)} for name, array in arrays.items()
    }
    return operator_class(operator).completed({**tensors, **attributes})


def case(name: str, desc: OperatorDesc, arrays: Arrays, outputs: Sequence[NDArray[Any]]) -> Case:
    fields = [desc.names_of_fields()[path[0]] for path, _ in desc.tensors("input")]
    expected = b"".join([output.astype(desc.outputs[0].layout.data_type.dtype).tobytes() for output in outputs])
    return Case(name, desc, tuple([arrays[field].tobytes() for field in fields]), expected, ulp=64, absolute=1e-5)


def of_onnx(operator: str, arrays: Arrays, attributes: Mapping[str, Any]) -> list[NDArray[Any]]:
    """ONNX Runtime's answer, in DirectML's shapes."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    x, w, r = (arrays[f"{name}Tensor"][0] for name in ("Input", "Weight", "Recurrence"))
    bias, lengths = arrays.get("BiasTensor"), arrays.get("SequenceLengthsTensor")
    states = [arrays.get(f"{name}InitTensor") for name in ("Hidden", "CellMem")[: 2 if operator == "LSTM" else 1]]
    fed = {
        "X": x, "W": w, "R": r, "B": None if bias is None else bias[0, 0],
        "lengths": None if lengths is None else lengths.reshape(-1).astype(np.int32),
        **{name: None if state is None else state[0] for name, state in zip("hc", states, strict=False)},
    }  # fmt: skip
    given = {name: array for name, array in fed.items() if array is not None}
    helper = onnx.helper
    outputs = ["Y", "Y_h", "Y_c"][: 3 if operator == "LSTM" else 2]
    node = helper.make_node(operator, [name if name in given else "" for name in fed], outputs, **attributes)
    typed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    answers = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "one", typed, answers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=10)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    made = session.run(None, given)
    return [np.asarray(array) for array in made]


@pytest.mark.parametrize("operator", GATES)
def test_numbers_are_those_of_onnx_runtime(backend: Backend, operator: str):
    random = np.random.default_rng(12)
    for number in range(25):
        arrays, attributes = drawn(random, operator)
        count = FUNCTIONS[operator] * arrays["WeightTensor"].shape[1]
        chosen = [ACTIVATIONS[int(at)] for at in random.integers(0, len(ACTIVATIONS), count)]
        theirs: dict[str, Any] = {
            "hidden_size": arrays["RecurrenceTensor"].shape[3],
            "direction": DIRECTIONS[attributes["Direction"]],
        }
        if number % 3:
            attributes["ActivationDescs"] = [ours for _, ours in chosen]
            theirs["activations"] = [name for name, _ in chosen]
            for name in ("Alpha", "Beta"):
                numbers = [ours["Desc"][name] for _, ours in chosen if name in ours.get("Desc", {})]
                if numbers:
                    theirs[f"activation_{name.lower()}"] = numbers
        if operator == "GRU":
            attributes["LinearBeforeReset"] = bool(number % 2)
            theirs["linear_before_reset"] = number % 2
        if operator == "LSTM":
            attributes["CoupleInputForget"] = bool(number % 2)
            theirs["input_forget"] = number % 2

        expected = of_onnx(operator, arrays, theirs)

        desc = described(operator, arrays, attributes)
        check_bytes(backend, case(f"{operator} {number} {attributes}", desc, arrays, expected))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def of_loop(arrays: Arrays, limit: float, coupled: bool) -> list[NDArray[Any]]:
    """An LSTM with peepholes and a clip threshold, forward, by Python's numbers and the page's formulas.

    The output gate sees the new cell, as DirectML answers, not the one before the step, as the page has it.
    """
    x, w, r = (arrays[f"{name}Tensor"][0] for name in ("Input", "Weight", "Recurrence"))
    bias, peephole = arrays["BiasTensor"][0, 0, 0], arrays["PeepholeTensor"][0, 0, 0]
    steps, batch, _ = x.shape
    hidden = r.shape[2]
    sequence = np.zeros((steps, 1, batch, hidden))
    state, memory = (arrays[f"{name}InitTensor"][0, 0].astype(float) for name in ("Hidden", "CellMem"))
    for row in range(batch):
        for step in range(steps):
            before, cell = state[row].copy(), memory[row].copy()

            inputs = w[0] @ x[step, row] + r[0] @ before + bias[: 4 * hidden] + bias[4 * hidden :]
            inputs[: 3 * hidden] += peephole * np.tile(cell, 3)
            inputs[hidden : 2 * hidden] -= peephole[hidden : 2 * hidden] * cell
            for unit in range(hidden):
                into, out, forget, new = (float(inputs[at * hidden + unit]) for at in range(4))
                into, forget, new = (max(-limit, min(limit, x)) for x in (into, forget, new))
                into, forget, new = sigmoid(into), sigmoid(forget), math.tanh(new)
                memory[row, unit] = (1 - into if coupled else forget) * cell[unit] + into * new
                out = max(-limit, min(limit, out + peephole[hidden + unit] * memory[row, unit]))
                state[row, unit] = sigmoid(out) * math.tanh(memory[row, unit])
            sequence[step, 0, row] = state[row]
    return [sequence, state, memory]


@pytest.mark.parametrize("coupled", [False, True])
def test_peepholes_and_a_clip_threshold(backend: Backend, coupled: bool):
    random = np.random.default_rng(3)
    shapes = {
        "InputTensor": (1, 4, 3, 2), "WeightTensor": (1, 1, 20, 2), "RecurrenceTensor": (1, 1, 20, 5),
        "BiasTensor": (1, 1, 1, 40), "HiddenInitTensor": (1, 1, 3, 5), "CellMemInitTensor": (1, 1, 3, 5),
        "PeepholeTensor": (1, 1, 1, 15),
    }  # fmt: skip
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    attributes = {"UseClipThreshold": True, "ClipThreshold": 0.75, "CoupleInputForget": coupled}
    desc = described("LSTM", arrays, attributes)

    check_bytes(backend, case("clipped", desc, arrays, of_loop(arrays, 0.75, coupled)))


@pytest.mark.parametrize("operator", GATES)
def test_halves_are_rounded_once(backend: Backend, operator: str):
    """FLOAT16 gives what FLOAT32 gives for the same numbers, rounded."""
    random = np.random.default_rng(8)
    for _ in range(5):
        arrays, attributes = drawn(random, operator)
        halves = {name: x.astype(np.float16) if x.dtype == np.float32 else x for name, x in arrays.items()}
        wide = {name: x.astype(np.float32) if x.dtype == np.float16 else x for name, x in halves.items()}
        theirs = {"hidden_size": arrays["RecurrenceTensor"].shape[3], "direction": DIRECTIONS[attributes["Direction"]]}
        outputs = [array.astype(np.float16) for array in of_onnx(operator, wide, theirs)]
        found = case(operator, described(operator, halves, attributes), halves, outputs)
        check_bytes(backend, replace(found, ulp=1))  # of FLOAT16; the sums' order decides halves

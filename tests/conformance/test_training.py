"""Training operators against ONNX's reference evaluator, and gradients against differences of the forward operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.suite import Case, check_bytes

from tensorpost.descriptors import operator_class
from tensorpost_server.backends import Backend

Array = NDArray[Any]


def check(
    backend: Backend, operator: str, arrays: Mapping[str, Array], attributes: Mapping[str, Any],
    expected: Sequence[Array], **tolerance: Any,
) -> None:  # fmt: skip
    """The outputs for these inputs, by field, are what is expected."""
    tensors = {name: {"DataType": x.dtype.name.upper(), "Sizes": list(x.shape)} for name, x in arrays.items()}
    desc = operator_class(operator).completed({**tensors, **attributes})
    dtype = desc.outputs[0].layout.data_type.dtype
    made = b"".join([x.astype(dtype).tobytes() for x in expected])
    inputs = tuple([np.ascontiguousarray(x).tobytes() for x in arrays.values()])
    check_bytes(backend, Case(f"{operator} {attributes}", desc, inputs, made, **tolerance))


def of_onnx(
    op_type: str, domain: str, opset: int, arrays: Sequence[Array], outputs: int, **attributes: Any
) -> list[Array]:
    pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    from onnx import helper

    names, made = [f"x{place}" for place in range(len(arrays))], [f"y{place}" for place in range(outputs)]
    node = helper.make_node(op_type, names, made, domain=domain, **attributes)
    typed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), None)
        for name, x in zip(names, arrays, strict=True)
    ]
    graph = helper.make_graph([node], "one", typed, [helper.make_empty_tensor_value_info(name) for name in made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset), helper.make_opsetid("", 18)])
    return [np.asarray(x) for x in ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))]


def test_adam_is_that_of_onnx(backend: Backend):
    random = np.random.default_rng(1)
    names = ("InputParametersTensor", "InputFirstMomentTensor", "InputSecondMomentTensor", "GradientTensor")
    for step in (1, 2, 7, 500, 100_000):
        x, first, second, gradient = random.standard_normal((4, 3, 5)).astype(np.float32)
        second = np.abs(second)
        rate, number = np.array(0.125, np.float32), np.array(step, np.int64)
        weights = {"alpha": 0.875, "beta": 0.9375, "epsilon": 2.0**-20}
        domain = "ai.onnx.preview.training"
        wide = [array.astype(np.float64) for array in (x, gradient, first, second)]

        expected = of_onnx("Adam", domain, 1, [rate.astype(np.float64), number, *wide], 3, **weights)

        arrays: dict[str, Array] = dict(zip(names, (x, first, second, gradient), strict=True))
        arrays["TrainingStepTensor"] = np.array([step], np.uint32)
        attributes = {"LearningRate": 0.125, "Beta1": 0.875, "Beta2": 0.9375, "Epsilon": 2.0**-20}
        check(backend, "ADAM_OPTIMIZER", arrays, attributes, expected, ulp=1, absolute=1e-7)


def test_batch_normalization_is_that_of_onnx(backend: Backend):
    random = np.random.default_rng(2)
    for sizes in ((4, 3), (2, 3, 4), (3, 1, 2, 5), (2, 2, 2, 3, 2)):
        channels, ones = sizes[1], [1] * (len(sizes) - 2)
        x = (random.standard_normal(sizes) * 5 + 3).astype(np.float32)
        scale, bias = random.standard_normal((2, channels)).astype(np.float32)
        running = np.zeros(channels, np.float32)
        wide = [array.astype(np.float64) for array in (x, scale, bias, running, running)]

        expected = of_onnx("BatchNormalization", "", 15, wide, 3, training_mode=1, momentum=0.0, epsilon=0.25)

        arrays = {
            "InputTensor": x, "ScaleTensor": scale.reshape(1, channels, *ones),
            "BiasTensor": bias.reshape(1, channels, *ones),
        }  # fmt: skip
        check(backend, "BATCH_NORMALIZATION_TRAINING", arrays, {"Epsilon": 0.25}, expected, ulp=2, absolute=1e-6)


def differences(forward: Callable[..., Array], arrays: Sequence[Array], gradient: Array) -> list[Array]:
    """What a small change of each element of each array changes in the sum of the outputs times the gradient."""
    found: list[Array] = []
    for place, array in enumerate(arrays):
        made, step = np.zeros(array.shape), 1e-5
        for at in np.ndindex(*array.shape):
            sums: list[float] = []
            for sign in (1, -1):
                changed = [other.copy() for other in arrays]
                changed[place][at] += sign * step
                sums.append(float((forward(*changed) * gradient).sum()))
            made[at] = (sums[0] - sums[1]) / (2 * step)
        found.append(made)
    return found


@pytest.mark.parametrize("operator", ["BATCH_NORMALIZATION_GRAD", "BATCH_NORMALIZATION_TRAINING_GRAD"])
def test_gradients_of_batch_normalization_are_differences(backend: Backend, operator: str):
    random, epsilon = np.random.default_rng(3), 0.25
    for sizes, like in (((3, 4), (1, 4)), ((2, 3, 2), (1, 1, 1)), ((2, 3, 4), (2, 1, 4)), ((5,), (5,)), ((6,), (1,))):
        axes = tuple(axis for axis, size in enumerate(like) if size == 1)
        x, gradient = (random.standard_normal((2, *sizes)) * 2).astype(np.float32).astype(np.float64)
        scale, bias = random.standard_normal((2, *like)).astype(np.float32).astype(np.float64)
        mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
        if "TRAINING" not in operator:
            mean, variance = mean + 0.5, variance + 0.5
        mean, variance = (array.astype(np.float32).astype(np.float64) for array in (mean, variance))

        def forward(x: Array, scale: Array, bias: Array) -> Array:
            own = "TRAINING" in operator
            center = x.mean(axis=axes, keepdims=True) if own else mean  # noqa: B023 # called within the loop
            spread = x.var(axis=axes, keepdims=True) if own else variance  # noqa: B023 # called within the loop
            return scale * (x - center) / np.sqrt(spread + epsilon) + bias

        expected = differences(forward, (x, scale, bias), gradient)

        arrays = {
            "InputTensor": x, "InputGradientTensor": gradient, "MeanTensor": mean, "VarianceTensor": variance,
            "ScaleTensor": scale,
        }  # fmt: skip
        narrow = {name: array.astype(np.float32) for name, array in arrays.items()}
        check(backend, operator, narrow, {"Epsilon": epsilon}, expected, absolute=3e-6)


def test_the_gradient_of_local_response_normalization_is_differences(backend: Backend):
    random, sizes = np.random.default_rng(4), (1, 5, 3, 3)
    for cross_channel, local_size in ((True, 3), (True, 5), (False, 3), (True, 21)):  # odd ones: see the form
        low = high = (local_size - 1) // 2
        x, gradient = random.standard_normal((2, *sizes)).astype(np.float32).astype(np.float64)

        def forward(x: Array) -> Array:
            made = np.empty_like(x)
            for n, c, h, w in np.ndindex(*sizes):
                if cross_channel:  # noqa: B023 # called within the loop
                    region = x[n, max(0, c - low) : c + high + 1, h, w]  # noqa: B023 # called within the loop
                else:
                    region = x[n, c, max(0, h - low) : h + high + 1, max(0, w - low) : w + high + 1]  # noqa: B023 # called within the loop
                made[n, c, h, w] = x[n, c, h, w] / (2 + 0.5 / local_size * (region**2).sum()) ** 0.75  # noqa: B023 # called within the loop
            return made

        (expected,) = differences(forward, (x,), gradient)

        narrow = {"InputTensor": x.astype(np.float32), "InputGradientTensor": gradient.astype(np.float32)}
        attributes = {"CrossChannel": cross_channel, "LocalSize": local_size, "Alpha": 0.5, "Beta": 0.75, "Bias": 2}
        check(backend, "LOCAL_RESPONSE_NORMALIZATION_GRAD", narrow, attributes, [expected], absolute=1e-6)

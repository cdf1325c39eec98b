"""What is computed in blocks is the same to the bit as what is computed at once, and ends when it is told to."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tensorpost.descriptors import operator_class
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms import base, float16, in_blocks
from tensorpost_server.forms.base import Abandoned, stoppable
from tensorpost_server.operators import pooling, product, reduction
from tensorpost_server.planning import make_plan

LENGTH = 5000


def tensor(data_type: str, *sizes: int) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


LINE, LINES, COLUMNS = tensor("FLOAT32", 1, LENGTH), tensor("FLOAT32", 3, LENGTH), tensor("FLOAT32", LENGTH, 3)
HALVES, WHOLE = tensor("FLOAT16", 1, LENGTH), tensor("INT32", 1, LENGTH)
CHANNEL, IMAGES = tensor("FLOAT32", 1, 4, 1, 1), tensor("FLOAT32", 3, 4, 20, 30)
CASES: list[tuple[str, dict[str, Any]]] = [
    *[
        (name, {"InputTensor": x, "Axis": axis, "AxisDirection": direction, exclusive: flag})
        for name, exclusive in (
            ("CUMULATIVE_SUMMATION", "HasExclusiveSum"), ("CUMULATIVE_PRODUCT", "HasExclusiveProduct"),
        )
        for x, axis in ((LINE, 1), (LINES, 1), (COLUMNS, 0), (HALVES, 1), (WHOLE, 1))
        for direction, flag in (("INCREASING", False), ("DECREASING", True))
    ],
    *[
        ("REDUCE", {"InputTensor": x, "Axes": [axis], "Function": function})
        for x, axis in ((LINES, 1), (COLUMNS, 0), (HALVES, 1))
        for function in ("L1", "L2", "SUM_SQUARE", "LOG_SUM_EXP", "SUM")
    ],
    *[
        (name, {"InputTensor": x, "Axes": [axis]})
        for x, axis in ((LINES, 1), (COLUMNS, 0), (HALVES, 1))
        for name in ("ACTIVATION_SOFTMAX1", "ACTIVATION_LOG_SOFTMAX1", "ACTIVATION_HARDMAX1")
    ],
    *[
        ("MEAN_VARIANCE_NORMALIZATION1", {"InputTensor": x, "Axes": [axis], "NormalizeVariance": True, "Epsilon": 0.1})
        for x, axis in ((LINES, 1), (COLUMNS, 0), (HALVES, 1))
    ],
    *[("LP_NORMALIZATION", {"InputTensor": LINES, "Axis": 1, "Epsilon": 0.1, "P": p}) for p in (1, 2)],
    *[("TOP_K1", {"InputTensor": x, "Axis": axis, "K": 20, "AxisDirection": direction})
      for x, axis in ((LINES, 1), (COLUMNS, 0), (WHOLE, 1)) for direction in ("INCREASING", "DECREASING")],
    ("DYNAMIC_QUANTIZE_LINEAR", {"InputTensor": LINES, "OutputTensor": tensor("UINT8", 3, LENGTH)}),
    ("BATCH_NORMALIZATION_TRAINING",
     {"InputTensor": IMAGES, "ScaleTensor": CHANNEL, "BiasTensor": CHANNEL, "Epsilon": 0.1}),
    *[(name, {
        "InputTensor": IMAGES, "InputGradientTensor": IMAGES, "MeanTensor": CHANNEL, "VarianceTensor": CHANNEL,
        "ScaleTensor": CHANNEL, "Epsilon": 0.1,
    }) for name in ("BATCH_NORMALIZATION_GRAD", "BATCH_NORMALIZATION_TRAINING_GRAD")],
    ("LOCAL_RESPONSE_NORMALIZATION_GRAD", {
        "InputTensor": IMAGES, "InputGradientTensor": IMAGES, "CrossChannel": False, "LocalSize": 5, "Alpha": 0.1,
        "Beta": 0.75, "Bias": 1.0,
    }),
    ("ADAM_OPTIMIZER", {
        "InputParametersTensor": IMAGES, "InputFirstMomentTensor": IMAGES, "InputSecondMomentTensor": IMAGES,
        "GradientTensor": IMAGES, "TrainingStepTensor": tensor("UINT32", 1, 1, 1, 1), "LearningRate": 0.1,
        "Beta1": 0.9, "Beta2": 0.9, "Epsilon": 0.1,
    }),
    ("MATRIX_MULTIPLY_INTEGER", {"ATensor": tensor("UINT8", 1, 1, 40, 50), "BTensor": tensor("UINT8", 1, 1, 50, 60)}),
    ("MAX_UNPOOLING", {
        "InputTensor": IMAGES, "IndicesTensor": tensor("UINT32", 3, 4, 20, 30),
        "OutputTensor": tensor("FLOAT32", 3, 4, 20, 30),
    }),
]  # fmt: skip


def computed(name: str, fields: dict[str, Any], stop: threading.Event | None = None) -> bytes:
    """All outputs' bytes, of random inputs with equal elements, NaN and infinities among them."""
    operation = operator_class(name).completed(fields)
    random, inputs = np.random.default_rng(3), list[memoryview]()
    for slot in operation.inputs:
        dtype, count = slot.layout.data_type.dtype, slot.layout.size_in_bytes // slot.layout.data_type.item_size
        if dtype.kind == "f":
            values = random.normal(size=count).round(2).astype(dtype)
            values[random.random(count) < 0.0005] = random.choice([np.nan, np.inf, -np.inf, -0.0])
        else:
            values = random.integers(0, 100, count).astype(dtype)
        inputs.append(values.view(np.uint8).data)
    plan = make_plan(operation, 1 << 20)
    run = NumpyBackend().start(plan, inputs)
    with stoppable(stop or threading.Event()):
        return b"".join([run.compute(index) for index in range(len(plan.slices))])


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_blocks, "BLOCK", 700)
    monkeypatch.setattr("tensorpost_server.operators.training.BLOCK", 700)
    monkeypatch.setattr(float16, "LARGE", 1 << 12)
    monkeypatch.setattr(reduction, "SORTED", 800)
    monkeypatch.setattr(pooling, "PUT", 700)
    monkeypatch.setattr(product, "AT_ONCE", 700)


@pytest.mark.parametrize(("name", "fields"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_blocks_change_no_bit(name: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    at_once = computed(name, fields)
    small_blocks(monkeypatch)

    assert computed(name, fields) == at_once


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES} - {"ACTIVATION_HARDMAX1"}))
def test_every_one_ends_between_two_blocks(name: str, monkeypatch: pytest.MonkeyPatch):
    small_blocks(monkeypatch)
    monkeypatch.setattr(base, "TURN_SECONDS", 0.0)

    class Stop(threading.Event):
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 2

    with pytest.raises(Abandoned):
        computed(name, next(fields for known, fields in CASES if known == name), Stop())

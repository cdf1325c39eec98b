"""Calls that hold the only thread for long: other callers' calls are answered meanwhile."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import FRAME, NPY, frame_bytes, npy_bytes, request_bytes, serving

from tensorpost.descriptors import operator_class

ADDED = 300_000  # elements, too many for the event loop's thread
SIZE = 450


def image(size: int) -> dict[str, Any]:
    return {"DataType": "FLOAT32", "Sizes": [1, 1, size, size]}


WINDOW = {"WindowSize": [151, 151], "Strides": [1, 1], "StartPadding": [150, 150], "EndPadding": [0, 0]}
LONG: dict[str, dict[str, Any]] = {
    "MAX_POOLING_GRAD": {  # computed whole
        "InputTensor": image(SIZE), "InputGradientTensor": image(SIZE), "OutputGradientTensor": image(SIZE),
        "Dilations": [1, 1], **WINDOW,
    },
    "TOP_K": {"InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1 << 22]}, "Axis": 3, "K": 1 << 19},  # one sort
}  # fmt: skip


@pytest.mark.parametrize("operator", LONG)
def test_others_are_answered_while_one_computes(operator: str):
    desc = operator_class(operator).completed(LONG[operator])
    random = np.random.default_rng(1)
    tensors = {
        slot.name: ("F32", [*slot.layout.sizes], random.random(slot.layout.size_in_bytes // 4, np.float32).tobytes())
        for slot in desc.inputs
    }
    body = frame_bytes(tensors, {"op": json.dumps(desc.to_document())})
    large = request_bytes("POST", f"/v1/operators/{operator.lower()}", body, FRAME)
    small = request_bytes("POST", "/v1/operators/tile?repeats=2", npy_bytes(np.zeros(4 * ADDED, np.uint8)), NPY)
    with serving(backend="numpy", numpy_threads=1) as server:
        done, answers = threading.Event(), list[int]()

        def ask() -> None:
            answers.append(server.ask(large).status)
            done.set()

        thread = threading.Thread(target=ask)
        thread.start()
        before = 0
        while not done.is_set():
            assert server.ask(small).status == 200
            before += not done.is_set()
        thread.join()

    assert answers == [200]
    assert before >= 2  # the first one was answered after the large one, when a slice was never interrupted

"""Answers, access log, metrics and `/v1/validate` have one name for a backend and one for an operator."""

from __future__ import annotations

import importlib.util
import json
import re

import numpy as np
import pytest
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    Answer,
    Serving,
    eventually,
    frame_bytes,
    npy_bytes,
    request_bytes,
    serving,
)

from tensorpost import frame
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.backends.cuda.backend import CudaBackend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.http.observability.access_log import AccessLog, json_line
from tensorpost_server.planning import make_plan

COUNTER = "tensorpost_requests_total{"
INT64 = np.arange(4, dtype=np.int64).reshape(2, 2)
MATRICES = frame_bytes({"A": ("I64", [2, 2], INT64.tobytes()), "B": ("I64", [2, 2], INT64.tobytes())}, {})
MODEL = {"inputs": [{"name": "A", "shape": [2], "datatype": "INT64", "data": [1, 2]},
                    {"name": "B", "shape": [2], "datatype": "INT64", "data": [1, 2]}]}  # fmt: skip
CALLS = {
    "loops": ("/v1/operators/tile?repeats=2&backend=numba", npy_bytes([1, 2]), NPY, "numba"),
    "NumPy": ("/v1/onnx/MatMul?backend=numba", MATRICES, FRAME, "numba+numpy"),
    "NumPy, as JSON": (
        "/v1/onnx/MatMul?backend=numba",
        MATRICES,
        FRAME | {"accept": JSON["content-type"]},
        "numba+numpy",
    ),
    "NumPy, by auto": ("/v1/onnx/MatMul", MATRICES, FRAME, "numba+numpy"),
    "NumPy, as it was asked": ("/v1/onnx/MatMul?backend=numpy", MATRICES, FRAME, "numpy"),
    "NumPy, by /v2": ("/v2/models/onnx.add/infer", json.dumps(MODEL).encode(), JSON, "numba+numpy"),
    "ONNX Runtime": ("/v1/onnx/Det?backend=numba", npy_bytes(np.eye(3, dtype="float32")), NPY, "numba+onnxruntime"),
}


def counted(server: Serving) -> list[dict[str, str]]:
    """The labels of `tensorpost_requests_total`."""
    text = server.ask(request_bytes("GET", "/metrics")).body.decode()
    return [dict(re.findall(r'(\w+)="(\w*[+\w]*)"', line)) for line in text.splitlines() if line.startswith(COUNTER)]


@pytest.mark.parametrize("how", CALLS)
def test_one_request_has_one_name(how: str):
    path, body, headers, name = CALLS[how]
    if name.endswith("+onnxruntime"):
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
    lines: list[str] = []
    with serving() as server:
        assert server.service.pool is not None
        if "numba" not in server.service.pool.workers:
            pytest.skip(server.service.pool.refused["numba"])
        server.service.observe_by(AccessLog(json_line, lines.append))
        with server.wire() as wire:
            answers: list[Answer] = []
            for _ in range(4):  # parsed, prepared, then replayed
                wire.send(request_bytes("POST", path, body, headers))
                answers.append(wire.answer())
        eventually(lambda: "".join(lines).count("\n") >= 4, "the lines are written")
        in_metrics = {labels["backend"] for labels in counted(server)}

    assert [(answer.status, answer.headers["tensorpost-backend"]) for answer in answers] == [(200, name)] * 4
    assert [json.loads(line)["backend"] for line in "".join(lines).splitlines()[:4]] == [name] * 4
    assert in_metrics == {name}
    if "JSON" in how:
        assert json.loads(answers[0].body)["backend"] == name
    elif answers[0].headers["content-type"] == frame.MEDIA_TYPE:
        assert name in answers[0].body.decode("latin-1"), "the metadata of a saved frame"


def test_validate_names_what_would_compute():
    matrix = OnnxTensor("int64", (2, 2))
    node = OnnxNode("MatMul", {"A": matrix, "B": matrix}, {}, opset=19)
    with serving() as server:
        answer = server.ask(request_bytes("POST", "/v1/validate", node.to_document_text().encode(), JSON))
        called = server.ask(request_bytes("POST", "/v1/onnx/MatMul", MATRICES, FRAME))

    assert json.loads(answer.body)["cost"]["backend"] == called.headers["tensorpost-backend"]


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_cuda_refuses_what_numpy_would_compute(op_type: str):
    """CuPy does not combine all values that meet at one element."""
    cuda = object.__new__(CudaBackend)
    cuda.memory_bytes = 1 << 30
    indices = OnnxTensor("int64", (2, 3) if op_type == "ScatterElements" else (2, 1))
    inputs = {"data": OnnxTensor("float32", (4, 3)), "indices": indices, "updates": OnnxTensor("float32", (2, 3))}
    plans = [
        make_plan(OnnxNode(op_type, inputs, {"reduction": reduction}, opset=19), 1 << 20)
        for reduction in ("none", "add")
    ]

    assert [cuda.refusal_reason(plan) for plan in plans] == [None, "numpy computes it, in host memory"]
    assert [NumpyBackend().library(plan) for plan in plans] == ["", ""]


def test_refused_and_served_calls_of_an_operator_have_one_label():
    x, frame = npy_bytes([[1, 2]]), frame_bytes({"A": ("F32", [1], bytes(4)), "B": ("F32", [1], bytes(4))}, {})
    calls = [
        ("/v1/onnx/Resize?mode=linear&sizes=2,2", x, NPY, "Resize", (200, 422)),
        ("/v1/onnx/Add", frame, FRAME, "Add", (200, 422)),
        ("/v1/operators/Tile?repeats=1,2", x, NPY, "TILE", (200, 400)),
        ("/v2/models/onnx.tile/infer", b"", JSON, "Tile", (400, 400)),
        ("/v1/onnx/tile", x, NPY, "none", (404, 404)),
    ]
    if importlib.util.find_spec("onnxruntime") is not None:
        calls.append(("/v1/onnx/Det?opset=19", npy_bytes(np.eye(3, dtype="f4")), NPY, "Det", (200, 422)))
    wanted: set[tuple[str, int]] = set()
    lines: list[str] = []
    with serving() as server:
        server.service.observe_by(AccessLog(json_line, lines.append))
        for path, body, fields, operator, statuses in calls:
            whole = request_bytes("POST", path, body, fields)
            spoilt = request_bytes("POST", path + ("&" if "?" in path else "?") + "nonsense=1", body, fields)
            with server.wire() as wire:
                for request in (whole, whole, whole, spoilt):  # parsed, prepared, replayed, refused
                    wire.send(request)
                    status = wire.answer().status
                    assert status == statuses[request is spoilt], (path, status)
                    wanted.add((operator, status))
        found = {(labels["operator"], int(labels["status"])) for labels in counted(server)}
        eventually(lambda: "".join(lines).count("\n") > 4 * len(calls), "the lines are written")
    logged = [json.loads(line) for line in "".join(lines).splitlines()]
    versions = {(line["operator"], line["opset_version"], line["status"]) for line in logged}

    assert found == wanted
    assert {("Resize", 19, 200), ("Resize", None, 422), ("Add", 14, 200), ("TILE", None, 200)} <= versions

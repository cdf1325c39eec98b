"""Nodes that name files, other domains and absurd operators: each gets a problem of its own, and no file is opened.

Sent to a server of its own; the kernel says whether any process opened the file that the nodes name (inotify).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from tests.support.live_server import live_server

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.values.problems import InvalidDescriptor

FRAME = {"content-type": "application/vnd.safetensors"}
X = np.ones((1, 1, 4, 4), np.float32)
IN_OPEN, IN_NONBLOCK = 0x20, 0o4000
SECRET = "SECRET"
"""Stands for the path of a file in what is sent."""


class OpenedFile:
    """A file, and whether anybody opened it since it was asked last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"secret\n")
        libc = ctypes.CDLL(None, use_errno=True)
        self.events = libc.inotify_init1(IN_NONBLOCK)
        assert libc.inotify_add_watch(self.events, os.fsencode(path), IN_OPEN) > 0

    def was_opened(self) -> bool:
        try:
            return len(os.read(self.events, 4096)) > 0
        except BlockingIOError:
            return False


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[OpenedFile]:
    if sys.platform != "linux":
        pytest.skip("inotify is Linux's")
    file = OpenedFile(tmp_path / "secret.bin")
    file.path.read_bytes()
    assert file.was_opened()
    assert not file.was_opened()
    yield file
    os.close(file.events)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with live_server(TENSORPOST_BACKEND="numpy") as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def external(**more: Any) -> dict[str, Any]:
    """A tensor that says, as `onnx.TensorProto` does, that its data are in a file."""
    entries = [{"key": "location", "value": SECRET}, {"key": "offset", "value": "0"}]
    return {"data_type": "float", "shape": [1], "data_location": "EXTERNAL", "external_data": entries, **more}


EXTERNAL = [external(), external(data=SECRET), external(data=[SECRET]), external(raw_data=SECRET, data_location=1)]
NODES: list[tuple[str, dict[str, Any], set[int]]] = [
    *[("ConstantOfShape", {"inputs": {"input": [2]}, "attributes": {"value": value}}, {422}) for value in EXTERNAL],
    *[("Resize", {"inputs": {"scales": value}}, {422}) for value in EXTERNAL],
    *[("Relu", {"inputs": {"X": value}}, {422}) for value in EXTERNAL],
    *[("Conv", {"inputs": {"W": value}}, {422}) for value in EXTERNAL],
    *[("Elu", {"attributes": {"alpha": value}}, {422}) for value in EXTERNAL],
    *[("Elu", {"attributes": {name: SECRET}}, {422}) for name in ("external_data", "data_location", SECRET)],
    ("Relu", {"external_data": [{"key": "location", "value": SECRET}]}, {422}),
    *[("Relu", {"domain": domain}, {422}) for domain in ("com.evil", "ai.onnx.contrib", SECRET, "../../etc/passwd", 7)],
    *[("Relu", {"op_type": op_type}, {400, 422}) for op_type in (SECRET, "../../etc/passwd", "com.evil::Relu", "", 7)],
    *[
        (op_type, {}, {404})
        for op_type in ("com.evil::Relu", "ai.onnx.contrib.Relu", "%2e%2e%2fetc%2fpasswd", "A" * 2000)
    ],
    *[(op_type, {}, {404}) for op_type in ("__class__", "Relu%00", "Relu%0d%0aX: y", "{0.__init__}", "%F0%9F%92%A9")],
]


def told(value: Any, path: Path) -> Any:
    """What is sent, with the file's path."""
    return json.loads(json.dumps(value).replace(SECRET, str(path)))


@pytest.mark.parametrize("relative", [False, True])
def test_no_node_names_a_file_that_is_opened(http: httpx.Client, secret: OpenedFile, relative: bool) -> None:
    path = Path(os.path.relpath(secret.path)) if relative else secret.path
    wrong: list[str] = []
    for op_type, node, statuses in NODES:
        document = told(node, path)
        tensors = {} if op_type == "ConstantOfShape" else {"X": X}
        as_json = {name: {"dtype": "F32", "shape": [1], "data": [0]} for name in tensors}
        described = {name: {"data_type": "float", "shape": [1]} for name in tensors}
        whole = {"opset": 13, "op_type": op_type, **document, "inputs": described | document.get("inputs", {})}
        frame = save(tensors, {"op": json.dumps(document)})
        answers = [
            http.post(f"/v1/onnx/{op_type}", content=frame, headers=FRAME),
            http.post(f"/v1/onnx/{op_type}", json={"op": document, "tensors": as_json}),
            http.post("/v1/validate", json=whole),
        ]
        for way, answer in zip(("frame", "JSON", "validate"), answers, strict=True):
            problem = answer.json()
            named = 400 <= answer.status_code < 500 and problem["type"].startswith("urn:tensorpost:problem:")
            found_invalid = way == "validate" and answer.status_code == 200 and problem["valid"] is False
            if not (named or found_invalid) or len(answer.content) > 8192 or b"secret\n" in answer.content:
                wrong.append(f"{op_type} {document} as {way}: {answer.status_code} {answer.text[:300]}")
        if answers[0].status_code not in statuses:
            wrong.append(f"{op_type} {document}: {answers[0].status_code}, not {statuses}: {answers[0].text[:300]}")
    assert not wrong, "\n".join(wrong)
    assert not secret.was_opened()
    assert http.post("/v1/onnx/Relu", content=save({"X": X}), headers=FRAME).status_code == 200


@pytest.mark.parametrize("location", [0, 1])
def test_a_proto_with_external_data_is_refused_unopened(secret: OpenedFile, location: int) -> None:
    """As `OnnxNode.from_node_proto` reads it from a stranger's model."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")
    tensor = onnx.TensorProto(data_type=1, dims=[1], data_location=location)
    tensor.external_data.add(key="location", value=secret.path.name)
    attribute = onnx.helper.make_attribute("value", tensor)
    node = onnx.helper.make_node("ConstantOfShape", ["shape"], ["y"])
    node.attribute.append(attribute)
    before = Path.cwd()
    os.chdir(secret.path.parent)
    try:
        with pytest.raises(InvalidDescriptor, match="external data") as caught:
            OnnxNode.from_node_proto(node, 20, {"shape": np.array([2])})
    finally:
        os.chdir(before)

    assert caught.value.violations[0].path == ("attributes", "value")
    assert not secret.was_opened()
    assert OnnxNode.of("Relu", {"X": OnnxTensor("float", (1,))}, opset=14).output.shape == (1,)

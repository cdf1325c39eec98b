"""Operators that ONNX Runtime computes on processors, on a server with a device: a stand-in for CuPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.http.test_graphs import frame_of
from tests.support.fake_cupy import FakeCupy, using
from tests.support.http_app import FRAME, Serving, request_bytes, serving, split_frame

from tensorpost import Client
from tensorpost.onnx import OnnxNode
from tensorpost.problems import NoBackend

pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")

RNG = np.random.default_rng(1)
X, W, B = (RNG.standard_normal(sizes).astype(np.float32) for sizes in ((2, 3, 8, 8), (4, 3, 3, 3), (4,)))


def network(last: dict[str, Any]) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = [
        {"name": "c", "op_type": "Conv", "inputs": ["x", "w", "b"], "attributes": {"pads": [1, 1, 1, 1]}},
        {"name": "r", "op_type": "Relu", "inputs": ["c"]},
        {"name": "last", "inputs": ["r"], **last},
    ]
    return {"inputs": {"x": {}, "w": {}, "b": {}}, "nodes": nodes, "outputs": {"y": "last"}}


DECLARED = {
    name: {"data_type": "FLOAT32", "sizes": list(array.shape)} for name, array in (("x", X), ("w", W), ("b", B))
}
POOLED = network({"op_type": "GlobalAveragePool"})
ON_PROCESSOR = network({"op_type": "Det"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with using(FakeCupy(), tmp_path_factory.mktemp("kernels")), serving(auto_minimum_work=0) as found:
        yield found


def answered(server: Serving, graph: dict[str, Any], backend: str) -> tuple[str, bytes]:
    """The backend that computed a graph, and the bytes of the output."""
    body = frame_of(graph, {"x": X, "w": W, "b": B})
    answer = server.ask(request_bytes("POST", f"/v1/graphs?backend={backend}", body, FRAME))
    _, tensors = split_frame(answer.body)
    return answer.headers["tensorpost-backend"], tensors["y"]


def test_a_network_goes_to_the_device_if_all_of_its_nodes_do(server: Serving):
    found = {backend: answered(server, POOLED, backend) for backend in ("auto", "cuda", "numpy")}
    stays, _ = answered(server, ON_PROCESSOR, "auto")
    with Client(server.url) as tp:
        cost = tp.validate(POOLED | {"inputs": DECLARED}).document["cost"]
        with pytest.raises(NoBackend, match=r"onnxruntime computes it, in host memory"):
            tp.run_graph(ON_PROCESSOR, {"x": X, "w": W, "b": B}, backend="cuda")

    names = [name for name, _ in found.values()]
    assert names == ["cuda", "cuda", "numpy+onnxruntime"]
    assert "onnxruntime" in stays
    assert cost["backend"] == "cuda"
    on_device, named, on_processor = (np.frombuffer(data, np.float32) for _, data in found.values())
    np.testing.assert_array_equal(on_device, named)
    np.testing.assert_allclose(on_device, on_processor, rtol=1e-4, atol=1e-5)


def test_a_single_node_goes_there_too(server: Serving):
    node = OnnxNode.of("Conv", {"X": X, "W": W, "B": B}, opset=21, pads=[1, 1, 1, 1])
    with Client(server.url) as tp:
        found, expected = (tp.call(node, {"X": X, "W": W, "B": B}, backend=backend) for backend in ("auto", "numpy"))
    assert (found.backend, "onnxruntime" in expected.backend) == ("cuda", True)
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-4, atol=1e-5)


PLACES = np.array([[0, 8, 2, 5], [1, 3, 3, 7]])
CODES = np.random.default_rng(8).integers(0, 256, (2, 3, 5, 5)).astype(np.uint8)


def drawn(*sizes: int) -> Any:
    return np.random.default_rng(sum(sizes)).standard_normal(sizes).astype(np.float32)


@pytest.mark.parametrize(
    ("op_type", "arrays", "attributes"),
    [
        ("ConvTranspose", {"X": X, "W": drawn(3, 4, 3, 3), "B": B}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("RNN", {"X": drawn(4, 2, 3), "W": drawn(2, 5, 3), "R": drawn(2, 5, 5)}, {"direction": "bidirectional"}),
        (
            "GRU",
            {
                "X": drawn(4, 2, 3),
                "W": drawn(1, 15, 3),
                "R": drawn(1, 15, 5),
                "sequence_lens": np.array([4, 2], np.int32),
            },
            {},
        ),
        ("LSTM", {"X": drawn(4, 2, 3), "W": drawn(1, 20, 3), "R": drawn(1, 20, 5), "B": drawn(1, 40)}, {}),
        (
            "Attention",
            {"Q": drawn(2, 4, 3, 8), "K": drawn(2, 2, 5, 8), "V": drawn(2, 2, 5, 6), "attn_mask": drawn(3, 5) > -1},
            {"is_causal": 1},
        ),
        ("Einsum", {"Inputs_0": drawn(2, 3, 4), "Inputs_1": drawn(2, 4, 5)}, {"equation": "bij,bjk->bik"}),
        (
            "RotaryEmbedding",
            {"X": drawn(2, 3, 4, 8), "cos_cache": drawn(9, 4), "sin_cache": drawn(9, 4), "position_ids": PLACES},
            {},
        ),
        ("LpNormalization", {"input": X}, {"axis": 1, "p": 1}),
        ("LpPool", {"X": X}, {"kernel_shape": [2, 3], "pads": [1, 1, 0, 0]}),
        ("MeanVarianceNormalization", {"X": X}, {}),
        (
            "ConvInteger",
            {"x": CODES[:1], "w": CODES[:, :, :2, :2], "x_zero_point": np.array(3, np.uint8)},
            {"strides": [1, 2]},
        ),
    ],
)
def test_more_of_what_onnx_runtime_computes_goes_there(
    server: Serving, op_type: str, arrays: dict[str, Any], attributes: dict[str, Any]
):
    if "R" in arrays:
        attributes = {**attributes, "hidden_size": 5}
    node = OnnxNode.of(op_type, arrays, opset=23, **attributes)
    with Client(server.url) as tp:
        found, expected = (tp.call(node, arrays, backend=backend) for backend in ("auto", "numpy"))
    assert (found.backend, "onnxruntime" in expected.backend) == ("cuda", True)
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-4, atol=1e-5)

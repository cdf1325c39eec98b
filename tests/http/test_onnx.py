"""`/v1/onnx`: nodes by query, by document, and with small inputs as tensors of a frame."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save
from tests.support.http_app import http_app
from tests.support.live_server import default_server

from tensorpost.onnx import schemas
from tensorpost_server.child_processes.libraries import ONNX, ONNX_RUNTIME

X = np.array([[[[1, 2], [3, 4]]]], np.float32)
# directml.h's half-pixel linear doubling of [[1, 2], [3, 4]], worked by hand
DOUBLED = [[1, 1.25, 1.75, 2], [1.5, 1.75, 2.25, 2.5], [2.5, 2.75, 3.25, 3.5], [3, 3.25, 3.75, 4]]
FRAME = {"content-type": "application/vnd.safetensors"}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with default_server() as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def framed(tensors: dict[str, np.ndarray[Any, Any]], node: dict[str, Any] | None = None) -> bytes:
    return save(tensors, None if node is None else {"op": json.dumps(node)})


def test_npy_and_a_query(http: httpx.Client) -> None:
    answer = http.post(
        "/v1/onnx/Resize?opset=19&mode=linear&scales=1,1,2,2",
        content=npy(X), headers={"content-type": "application/x-npy"},
    )  # fmt: skip

    assert answer.status_code == 200, answer.text
    assert np.load(io.BytesIO(answer.content))[0, 0].tolist() == DOUBLED


def test_a_frame_and_a_document(http: httpx.Client) -> None:
    node = {"opset": 19, "attributes": {"mode": "linear"}, "inputs": {"scales": [1, 1, 2, 2]}}

    answer = http.post("/v1/onnx/Resize", content=framed({"X": X}, node), headers=FRAME)

    assert answer.status_code == 200, answer.text
    assert load(answer.content)["output"][0, 0].tolist() == DOUBLED


def test_small_inputs_may_travel_as_tensors_behind_the_large_one(http: httpx.Client) -> None:
    """The safetensors library sorts by type and name, so X comes first."""
    scales = np.array([1, 1, 2, 2], np.float32)
    before = http.get("/v1/limits").json()["in_use"]  # models that other tests have stored

    answer = http.post(
        "/v1/onnx/Resize?opset=19&mode=linear", content=framed({"X": X, "scales": scales}), headers=FRAME
    )

    assert answer.status_code == 200, answer.text
    assert load(answer.content)["output"][0, 0].tolist() == DOUBLED
    assert http.get("/v1/limits").json()["in_use"] == before


def test_json_holds_bfloat16_and_empty_tensors(http: httpx.Client) -> None:
    for node, tensor, expected in (
        ("Resize", {"dtype": "BF16", "shape": [2], "data": [1, 2.5]}, [1, 1, 2.5, 2.5]),
        ("Resize", {"dtype": "F32", "shape": [0], "data": []}, []),
        ("Tile", {"dtype": "BF16", "shape": [], "data": 3}, [3]),
    ):
        given = ("X", {"scales": [2]}) if node == "Resize" else ("input", {"repeats": []})
        call = {"op": {"inputs": given[1]}, "tensors": {given[0]: tensor}}
        answer = http.post(f"/v1/onnx/{node}", json=call)

        assert answer.status_code == 200, answer.text
        (output,) = answer.json()["tensors"].values()
        assert (output["dtype"], output["data"]) == (tensor["dtype"], expected)


def test_an_opset_in_the_document_picks_the_version(http: httpx.Client) -> None:
    node = {"opset": 9, "attributes": {"mode": "nearest"}, "inputs": {"scales": [1, 1, 1, 2]}}

    answer = http.post("/v1/onnx/Upsample", content=framed({"X": X}, node), headers=FRAME)

    assert answer.status_code == 200, answer.text
    assert load(answer.content)["output"][0, 0].tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]


@pytest.mark.parametrize(
    ("path", "node", "status", "said"),
    [
        ("/v1/onnx/Resise", {}, 404, "Resize"),
        ("/v1/onnx/Resize", {"inputs": {"scales": [1, 1, 0, 2]}}, 422, "scales"),
        ("/v1/onnx/Resize", {"inputs": {"scales": [1, 1, 2, 2], "sizes": [1, 1, 4, 4]}}, 422, "sizes"),
        ("/v1/onnx/Resize", {"inputs": {}}, 422, "scales"),
        ("/v1/onnx/Resize", {"op_type": "Tile", "inputs": {"scales": [1, 1, 2, 2]}}, 400, "Tile"),
        ("/v1/onnx/Resize?opset=13", {"opset": 19, "inputs": {"scales": [1, 1, 2, 2]}}, 400, "opset"),
        ("/v1/onnx/Resize?mode=linear", {"inputs": {"scales": [1, 1, 2, 2]}}, 400, "mode"),
        ("/v1/onnx/Resize?opset=x", None, 400, "opset"),
        ("/v1/onnx/Resize?opset=99", None, 422, "opset"),
        ("/v1/onnx/Resize?opset=0&scales=1,1,2,2", None, 422, "opset"),
        ("/v1/onnx/Resize?opset=18&coordinate_transformation_mode=half_pixel_symmetric&scales=1,1,2,2", None, 422,
         "half_pixel_symmetric"),
        ("/v1/onnx/Resize?mode=nearest&antialias=1&scales=1,1,2,2", None, 422, "antialias"),
        ("/v1/onnx/Tile?repeats=1,1,-1,1", None, 400, "input"),
        ("/v1/onnx/Add", {}, 400, "'A', 'B'"),
        ("/v1/onnx/Abs", {"inputs": {"X": {"data_type": "double", "shape": [1, 1, 2, 2]}}}, 400, "double"),
        ("/v1/onnx/Max", {}, 422, "data_0"),
        ("/v1/onnx/Elu?alpha=x", None, 422, "alpha"),
    ],
)  # fmt: skip
def test_bad_nodes_get_a_precise_problem(
    http: httpx.Client, path: str, node: dict[str, Any] | None, status: int, said: str
) -> None:
    answer = http.post(path, content=framed({"X": X}, node), headers=FRAME)

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert said in answer.json()["detail"] + json.dumps(answer.json().get("violations", []))


def test_two_tensors_are_broadcast(http: httpx.Client) -> None:
    a, b = np.arange(6, dtype=np.int16).reshape(2, 3), np.array([10, 20, 30], np.int16)

    answer = http.post("/v1/onnx/Add", content=framed({"A": a, "B": b}), headers=FRAME)
    scalar = http.post("/v1/onnx/Mul", content=framed({"A": np.array(3.0), "B": np.array(0.5)}), headers=FRAME)

    assert answer.status_code == 200, answer.text
    assert load(answer.content)["output"].tolist() == [[10, 21, 32], [13, 24, 35]]
    assert load(scalar.content)["output"].tolist() == 1.5


def test_other_operators_are_computed_by_onnx_runtime(http: httpx.Client) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
    w = np.ones((1, 1, 2, 2), np.float32)

    answer = http.post("/v1/onnx/Conv", content=framed({"X": X, "W": w}), headers=FRAME)
    other = http.post("/v1/onnx/Conv", content=framed({"X": X, "W": w.astype(np.float64)}), headers=FRAME)
    refused = http.post("/v1/onnx/Conv", content=framed({"X": X, "W": np.ones((1, 3, 2, 2), "f4")}), headers=FRAME)
    unknown = http.post("/v1/onnx/ImageDecoder", content=framed({"encoded_stream": np.zeros(9, "u1")}), headers=FRAME)

    assert answer.status_code == 200, answer.text
    assert load(answer.content)["output"].tolist() == [[[[10]]]]
    assert answer.headers["tensorpost-backend"].endswith("+onnxruntime")
    assert (other.status_code, "data-types-differ" in other.text) == (422, True), other.text
    assert refused.status_code in (422, 503), refused.text
    # of the shapes, which only ONNX Runtime compares: no word of elements, nor of its source
    assert "ONNX Runtime refuses these inputs: Input channels C is not equal to" in refused.json()["detail"]
    assert (unknown.status_code, "depends on elements" in unknown.text) == (422, True), unknown.text


def test_operators_newer_than_onnx_runtime_and_windows_that_do_not_fit(http: httpx.Client) -> None:
    """Einsum has a version 28, which ONNX Runtime 1.31 does not know; the message says which opset it computes."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
    body = framed({"Inputs_0": X})
    newest = http.post("/v1/onnx/Einsum?equation=abcd->dcba", content=body, headers=FRAME)
    if newest.status_code != 200:  # a later ONNX Runtime may have it
        found = re.search(r"pass opset=(\d+), which means Einsum-12$", newest.json()["detail"])
        assert found, newest.text
        older = http.post(f"/v1/onnx/Einsum?equation=abcd->dcba&opset={found[1]}", content=body, headers=FRAME)
        assert older.status_code == 200, older.text
        assert np.array_equal(load(older.content)["output"], X.T)
    weights = {"W": np.ones((1, 4, 2), np.float32), "R": np.ones((1, 4, 1), np.float32)}
    lstm = http.post("/v1/onnx/LSTM?opset=22&hidden_size=1", content=framed({"X": X[0], **weights}), headers=FRAME)
    assert lstm.status_code == 200, lstm.text  # all its outputs are optional, and one is wanted
    assert load(lstm.content)["output"].shape == (1, 1, 2, 1)
    for op_type, kernel in (("MaxPool", "4,4"), ("LpPool", "4,4"), ("AveragePool", "5,5")):
        pool = http.post(f"/v1/onnx/{op_type}?opset=22&kernel_shape={kernel}", content=framed({"X": X}), headers=FRAME)
        (violation,) = pool.json()["violations"]
        assert violation["path"] == "$.attributes.kernel_shape"
        assert pool.status_code == 422
        assert f"the window [{kernel.replace(',', ', ')}] of {op_type} is larger than the input" in violation["message"]


@pytest.mark.parametrize(
    ("query", "meant"), [("scale=2,2", "scales"), ("sacles=2,2", "scales"), ("mod=linear", "mode")]
)
def test_small_inputs_are_among_what_is_meant(http: httpx.Client, query: str, meant: str) -> None:
    answer = http.post(f"/v1/onnx/Resize?{query}", content=npy(X), headers={"content-type": "application/x-npy"})

    found = next(v for v in answer.json()["violations"] if v["code"] == "attribute-unknown")
    assert f"did you mean {meant!r}?" in found["message"]
    assert "scales (an input), sizes (an input)" in found["expected"]


def noted(call: Callable[..., Any], threads: dict[str, int]) -> Callable[..., Any]:
    """The same method of a pool, which notes on which thread it is called for which function."""

    def noting(function: str, *args: Any, **options: Any) -> Any:
        threads[function] = threading.get_ident()
        return call(function, *args, **options)

    return noting


@pytest.mark.parametrize("path", ["/v1/onnx/Det", "/v1/validate"])
def test_the_libraries_are_called_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A first call starts a process, which takes a second; another one may take as long as a request may."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
    threads: dict[str, int] = {}
    for library in (ONNX, ONNX_RUNTIME):
        monkeypatch.setattr(library, "call", noted(library.call, threads))
    schemas._of_package.cache_clear()  # pyright: ignore[reportPrivateUsage] # what it remembers needs no call
    node = {"op_type": "Det", "opset": 22, "inputs": {"X": {"data_type": "float", "shape": [3, 3]}}}

    async def current() -> int:
        return threading.get_ident()

    with http_app() as app:
        for _ in range(2):  # the second one is small, and in the call cache
            if path == "/v1/validate":
                answer = app.post(path, content=json.dumps(node).encode(), headers={"content-type": "application/json"})
            else:
                answer = app.post(path, content=framed({"X": np.eye(3, dtype="f4")}), headers=FRAME)
            assert answer.status_code == 200, answer.text
            expected = {"version_of_schema", "infer_node"} | ({"run_model"} if path != "/v1/validate" else set())
            assert threads.keys() == expected
            assert app.run(current()) not in threads.values()


def test_an_element_that_onnx_runtime_refuses_is_no_fault_of_the_server(http: httpx.Client) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
    scale, zero = np.array(1, np.float32), np.array(0, np.uint8)
    tensors = {
        "x": np.ones((1, 1, 2, 2), np.uint8), "x_scale": scale, "x_zero_point": np.array([1, 2], np.uint8),
        "w": np.ones((1, 1, 1, 1), np.uint8), "w_scale": scale, "w_zero_point": zero,
        "y_scale": scale, "y_zero_point": zero,
    }  # fmt: skip
    answer = http.post("/v1/onnx/QLinearConv", content=framed(tensors), headers=FRAME)

    assert answer.status_code == 422, answer.text
    assert "ONNX Runtime" in answer.json()["detail"]
    tensors["x_zero_point"] = zero
    assert http.post("/v1/onnx/QLinearConv", content=framed(tensors), headers=FRAME).status_code == 200


def test_a_type_may_be_named_in_the_query(http: httpx.Client) -> None:
    answer = http.post("/v1/onnx/Cast?to=int8", content=npy(X * 1.5), headers={"content-type": "application/x-npy"})

    assert answer.status_code == 200, answer.text
    assert np.load(io.BytesIO(answer.content)).tolist() == [[[[1, 3], [4, 6]]]]


def test_validate_says_how_directml_can_express_a_node(http: httpx.Client) -> None:
    node = {
        "op_type": "Resize", "opset": 19, "attributes": {"mode": "linear"},
        "inputs": {"X": {"data_type": "float", "shape": [1, 1, 2, 2]}, "scales": [1, 1, 2, 2]},
    }  # fmt: skip

    exact = http.post("/v1/validate", json=node).json()
    cubic = http.post("/v1/validate", json=node | {"attributes": {"mode": "cubic"}}).json()
    wrong = http.post("/v1/validate", json=node | {"attributes": {"mode": "quintic"}}).json()

    assert (exact["valid"], exact["lowering"]["verdict"]) == (True, "exact")
    assert exact["lowering"]["op"]["type"] == "DML_OPERATOR_RESAMPLE2"
    assert exact["output"] == {"data_type": "float", "shape": [1, 1, 4, 4]}
    assert (cubic["valid"], cubic["lowering"]["verdict"]) == (True, "not expressible")
    assert cubic["lowering"]["reason"]
    assert (wrong["valid"], wrong["violations"][0]["path"]) == (False, "$.attributes.mode")


def test_the_catalogue_lists_every_version(http: httpx.Client) -> None:
    onnx = {f"{entry['op_type']}-{entry['since_version']}" for entry in http.get("/v1/operators").json()["onnx"]}

    assert len(onnx) > 200
    assert {"Add-1", "Add-14", "Cast-9", "Clip-6", "Softmax-13"} <= onnx
    assert {name for name in onnx if name.split("-")[0] in ("Tile", "Resize", "Upsample")} == {
        "Tile-1", "Tile-6", "Tile-13", "Resize-10", "Resize-11", "Resize-13", "Resize-18", "Resize-19",
        "Upsample-7", "Upsample-9",
    }  # fmt: skip


D = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
OUT_OF_BOUNDS: list[tuple[str, dict[str, Any], str, list[Any], str]] = [
    # operator, the other tensors, query, indices of which one is outside, what the message says
    ("Gather", {}, "axis=1", [[0, 1], [-3, 3]], "indices[1, 1] is 3, but axis 1 of data has 3 elements"),
    ("Gather", {}, "axis=2", [0, -5], "indices[1] is -5, but axis 2 of data has 4 elements; valid: -4 to 3"),
    ("GatherElements", {}, "axis=0", [[[1, 2]]], "indices[0, 0, 1] is 2, but axis 0 of data has 2 elements"),
    ("GatherND", {}, "", [[1, -3], [1, 3]], "indices[1, 1] is 3, but axis 1 of data has 3 elements"),
    ("GatherND", {}, "batch_dims=1", [[0], [-4]], "indices[1, 0] is -4, but axis 1 of data has 3 elements"),
    ("ScatterElements", {"updates": np.ones((1, 1, 2), "f4")}, "axis=1", [[[0, 4]]], "indices[0, 0, 1] is 4"),
    ("ScatterND", {"updates": np.array([[1, 2, 3, 4]], np.float32)}, "", [[2, 0]], "indices[0, 0] is 2, but axis 0"),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize(("op_type", "others", "query", "indices", "says"), OUT_OF_BOUNDS)
def test_an_index_out_of_bounds_is_an_error_as_onnx_says(
    http: httpx.Client, op_type: str, others: dict[str, Any], query: str, indices: list[Any], says: str, backend: str
) -> None:
    """The same call with indices inside is answered before and after: the refusal is of elements, never cached."""
    outside = np.array(indices)
    inside = np.clip(outside, -2, 1)
    statuses: list[int] = []
    for given in (inside, outside, inside, outside):
        body = framed({"data": D, "indices": given, **others})
        answer = http.post(f"/v1/onnx/{op_type}?opset=18&{query}&backend={backend}", content=body, headers=FRAME)
        statuses.append(answer.status_code)
        if given is outside:
            (violation,) = answer.json()["violations"]
            assert violation["code"] == "index-out-of-bounds"
            assert says in violation["message"], violation
    assert statuses == [200, 422, 200, 422]


def test_indices_are_checked_before_the_first_byte_of_a_long_answer(http: httpx.Client) -> None:
    """One of them, in the last of many slices, is the first past the end."""
    data, indices = np.zeros((3, 1 << 18), np.float32), np.zeros(400, np.int32)
    body = framed({"data": data, "indices": indices})
    with http.stream("POST", "/v1/onnx/Gather?opset=13", content=body, headers=FRAME) as answer:
        assert answer.status_code == 200  # 400 MiB, of which nothing is read
    indices[-1] = 3
    answer = http.post("/v1/onnx/Gather?opset=13", content=framed({"data": data, "indices": indices}), headers=FRAME)
    assert answer.status_code == 422
    assert "indices[399] is 3, but axis 0 of data has 3 elements; valid: -3 to 2" in answer.json()["detail"]


def test_directml_says_nothing_of_such_indices(http: httpx.Client) -> None:
    """The nearest element is read, by the choice that `descriptors/indexing.py` states."""
    tensors = {"input": np.array([[[[5, 6, 7]]]], np.float32), "indices": np.array([[[[0, 9]]]], np.uint32)}
    answer = http.post("/v1/operators/gather?axis=3&index_dimensions=1", content=framed(tensors), headers=FRAME)
    assert answer.status_code == 200, answer.text
    assert load(answer.content)["output"].reshape(-1).tolist() == [5, 7]

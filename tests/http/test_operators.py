"""`/v1/operators`: three forms in, three forms out, the same bytes; and the catalogue."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from tests.support import oracles
from tests.support import strategies as ours
from tests.support.batches import each
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    AppClient,
    Controlled,
    assert_problem,
    frame_bytes,
    http_app,
    npy_array,
    npy_bytes,
    split_frame,
    tile_frame,
    use_backend,
)

from tensorpost.descriptors import OPERATORS, BufferTensorDesc, TileOperatorDesc

TILE = "/v1/operators/tile"
X = np.arange(1, 7, dtype="<f4").reshape(1, 1, 2, 3)
TILED = [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6], [1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]]  # 2 x 2, by hand
DOCUMENT = {"type": "TILE", "desc": {"Repeats": [1, 1, 2, 2]}}
TENSOR = {"dtype": "F32", "shape": [1, 1, 2, 3], "data": [1, 2, 3, 4, 5, 6]}
CALLS = {
    "npy": (TILE + "?repeats=1,1,2,2", npy_bytes(X), NPY),
    "frame": (
        TILE,
        frame_bytes({"input": ("F32", [1, 1, 2, 3], X.tobytes())}, {"op": json.dumps(DOCUMENT)}),
        FRAME,
    ),
    "json": (TILE, json.dumps({"op": DOCUMENT, "tensors": {"input": TENSOR}}).encode(), JSON),
}
PROCESSORS = ("numba", "numpy")
"""The backends of which `auto` takes the first that is there."""


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    # Small slices, so that small tensors show what large ones would.
    with http_app(slice_bytes=4096, numpy_threads=2) as client:
        yield client


def numbers_of(content_type: str, body: bytes) -> Any:
    """The output as an array, whatever the form."""
    if content_type == "application/x-npy":
        return npy_array(body)
    if content_type == "application/json":
        tensor = json.loads(body)["tensors"]["output"]
        assert tensor["dtype"] == "F32"
        return np.array(tensor["data"], "<f4").reshape(tensor["shape"])
    head, buffers = split_frame(body)
    assert head["output"]["dtype"] == "F32"
    return np.frombuffer(buffers["output"], "<f4").reshape(head["output"]["shape"])


# ---- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "accept", [None, "*/*", "application/x-npy", "application/vnd.safetensors", "application/json"]
)
@pytest.mark.parametrize("form", CALLS)
def test_every_form_in_and_out(app: AppClient, form: str, accept: str | None):
    path, body, headers = CALLS[form]

    answer = app.post(path, body, headers | ({} if accept is None else {"accept": accept}))

    assert answer.status_code == 200, answer.text
    expected = headers["content-type"] if accept in (None, "*/*") else accept
    assert expected == answer.headers["content-type"]
    found = numbers_of(answer.headers["content-type"], answer.content)
    assert found.shape == (1, 1, 4, 6)
    np.testing.assert_array_equal(TILED, found[0, 0])


def test_another_name_of_a_frame(app: AppClient):
    path, body, _ = CALLS["frame"]

    answer = app.post(path, body, {"content-type": "application/x-safetensors"})

    assert answer.headers["content-type"] == "application/vnd.safetensors"
    np.testing.assert_array_equal(TILED, numbers_of(answer.headers["content-type"], answer.content)[0, 0])


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("text/html, application/json", "application/json"),
        ("application/json;q=0.5, application/x-npy", "application/x-npy"),
        ("application/json, application/x-npy;q=0.9", "application/json"),
        ("application/*", "application/x-npy"),
        ("text/html, */*;q=0.1", "application/x-npy"),
        ("APPLICATION/JSON", "application/json"),
        ("application/json; charset=utf-8", "application/json"),
        ("application/octet-stream", "application/octet-stream"),
    ],
)
def test_accept_picks_the_writer(app: AppClient, accept: str, expected: str):
    answer = app.post(TILE + "?repeats=1,1,2,2", npy_bytes(X), NPY | {"accept": accept})

    assert expected == answer.headers["content-type"]


@pytest.mark.parametrize("accept", ["text/csv", "image/tiff, text/*", "application/json;q=0"])
def test_an_accept_that_cannot_be_met(app: AppClient, accept: str):
    answer = app.post(TILE + "?repeats=1,1,2,2", npy_bytes(X), NPY | {"accept": accept})

    assert_problem(answer, 406, "not-acceptable")


def test_content_type_may_have_parameters_and_any_case(app: AppClient):
    answer = app.post(TILE + "?repeats=1,1,2,2", npy_bytes(X), {"content-type": "Application/X-NPY; version=1"})

    assert answer.status_code == 200


def test_a_frame_explains_itself_and_can_be_posted_again(app: AppClient):
    path, body, headers = CALLS["frame"]
    metadata = {"op": json.dumps(DOCUMENT), "id": "call 7, é"}
    body = frame_bytes({"input": ("F32", [1, 1, 2, 3], X.tobytes())}, metadata)

    head, _ = split_frame(app.post(path, body, headers).content)

    about = head["__metadata__"]
    assert {"op", "backend", "device", "id"} == about.keys()
    assert about["backend"] in PROCESSORS
    assert about["id"] == "call 7, é"
    whole = json.loads(about["op"])
    assert (whole["type"], whole["desc"]["OutputTensor"]["Sizes"]) == ("DML_OPERATOR_TILE", [1, 1, 4, 6])
    again = app.post(path, frame_bytes({"input": ("F32", [1, 1, 2, 3], X.tobytes())}, {"op": about["op"]}), headers)
    np.testing.assert_array_equal(TILED, numbers_of(again.headers["content-type"], again.content)[0, 0])


def test_a_json_answer_explains_itself(app: AppClient):
    path, _, headers = CALLS["json"]
    call = {"op": DOCUMENT, "tensors": {"input": TENSOR}, "id": "7"}

    found = app.post(path, json.dumps(call).encode(), headers).json()

    assert {"op", "backend", "device", "id", "tensors"} == found.keys()
    assert found["backend"] in PROCESSORS
    assert (found["id"], found["op"]["type"]) == ("7", "DML_OPERATOR_TILE")


def test_heads_are_padded_so_that_tensors_are_aligned(app: AppClient):
    for form in ("npy", "frame"):
        answer = app.post(*CALLS[form])
        assert (len(answer.content) - 24 * 4) % 64 == 0


@pytest.mark.parametrize("name", ["tile", "TILE", "DML_OPERATOR_TILE", "dml_operator_tile"])
def test_an_operator_by_any_of_its_names(app: AppClient, name: str):
    assert app.post(f"/v1/operators/{name}?repeats=1,1,2,2", npy_bytes(X)).status_code == 200


def test_a_document_may_say_everything(app: AppClient):
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", X.shape), (1, 1, 2, 2))
    body = frame_bytes({"input": ("F32", X.shape, X.tobytes())}, {"op": desc.to_document_text()})

    answer = app.post(TILE, body, FRAME)

    np.testing.assert_array_equal(TILED, numbers_of(answer.headers["content-type"], answer.content)[0, 0])


def test_output_sizes_in_the_query(app: AppClient):
    answer = app.post(TILE + "?repeats=1,1,2,2&output_sizes=1,1,4,6", npy_bytes(X))
    wrong = app.post(TILE + "?repeats=1,1,2,2&output_sizes=1,1,4,7", npy_bytes(X))

    np.testing.assert_array_equal(TILED, npy_array(answer.content)[0, 0])
    problem = assert_problem(wrong, 422, "invalid-descriptor")
    assert [violation["code"] for violation in problem["violations"]] == ["output-sizes"]


# ---- bits ------------------------------------------------------------------------------------------------------------


@given(case=ours.tile_cases(max_elements=300))
@settings(max_examples=100, deadline=None)
def test_any_tile_through_http_is_what_the_oracle_says(app: AppClient, case: tuple[TileOperatorDesc, bytes]):
    desc, buffer = case

    answer = app.post(TILE, tile_frame(desc, buffer), FRAME)

    assert answer.status_code == 200, answer.text
    head, buffers = split_frame(answer.content)
    expected = oracles.tile_oracle(desc, buffer)
    if desc.output_tensor.is_packed:
        item = oracles.item_bytes(desc.output_tensor.data_type)
        assert list(desc.output_tensor.sizes) == head["output"]["shape"]
        expected = expected[: len(expected) // item * item][: len(buffers["output"])]
        assert len(oracles.read_elements(desc.output_tensor, expected)) * item == len(buffers["output"])
    else:
        assert ("U8", [len(expected)]) == (head["output"]["dtype"], head["output"]["shape"])
    assert expected == buffers["output"]
    assert str(len(answer.content)) == answer.headers["content-length"]


@pytest.mark.parametrize("data_type", ours.TILE_DATA_TYPES)
@pytest.mark.parametrize("form", ["npy", "frame"])
def test_every_type_keeps_every_bit(app: AppClient, data_type: str, form: str):
    tensor = BufferTensorDesc.packed(data_type, (4096,))
    bits = np.random.default_rng(5).integers(0, 256, 4096 * tensor.item_size, np.uint8).tobytes()

    if form == "npy":
        answer = app.post(TILE + "?repeats=3", npy_bytes(np.frombuffer(bits, tensor.dtype)))
        found = npy_array(answer.content)
        assert (tensor.dtype, (12288,)) == (found.dtype, found.shape)
        output = found.tobytes()
    else:
        desc = TileOperatorDesc.of(tensor, (3,))
        output = split_frame(app.post(TILE, tile_frame(desc, bits), FRAME).content)[1]["output"]

    assert bits * 3 == output


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("F32", [-0.0, 1e-45, 3.4028234663852886e38, 0.1]),
        ("F16", [-0.0, 6e-08, 65504.0, 0.1]),
        ("I64", [-(2**63), 2**53 + 1, 2**63 - 1]),
        ("U64", [0, 2**53 + 1, 2**64 - 1]),
        ("I32", [-(2**31), 2**31 - 1]),
        ("U32", [0, 2**32 - 1]),
        ("I16", [-(2**15), 2**15 - 1]),
        ("U16", [0, 2**16 - 1]),
        ("I8", [-128, 127]),
        ("U8", [0, 255]),
    ],
)
def test_json_numbers_keep_their_values(app: AppClient, dtype: str, data: list[Any]):
    tensor = {"dtype": dtype, "shape": [len(data)], "data": data}
    call = {"op": {"type": "TILE", "desc": {"Repeats": [2]}}, "tensors": {"input": tensor}}

    found = app.post(TILE, json.dumps(call).encode(), JSON).json()["tensors"]["output"]

    assert (dtype, [2 * len(data)]) == (found["dtype"], found["shape"])
    code = {"F32": "f", "F16": "e"}.get(dtype)
    if code is None:
        assert data * 2 == found["data"]
    else:
        assert struct.pack(f"<{len(data)}{code}", *data) * 2 == struct.pack(f"<{2 * len(data)}{code}", *found["data"])


def test_broadcast_input_and_padded_output_through_a_frame(app: AppClient):
    # By hand: two rows that are one row of 3, tiled twice along it, into rows of 8 bytes.
    desc = {
        "InputTensor": {"DataType": "UINT8", "Sizes": [2, 3], "Strides": [0, 1]},
        "OutputTensor": {"DataType": "UINT8", "Sizes": [2, 6], "Strides": [8, 1]},
        "Repeats": [1, 2],
    }
    metadata = {"op": json.dumps({"type": "TILE", "desc": desc})}

    answer = app.post(TILE, frame_bytes({"input": ("U8", [4], b"\1\2\3\377")}, metadata), FRAME)

    head, buffers = split_frame(answer.content)
    assert (head["output"]["dtype"], head["output"]["shape"]) == ("U8", [16])
    assert buffers["output"] == b"\1\2\3\1\2\3\0\0\1\2\3\1\2\3\0\0"
    described = json.loads(head["__metadata__"]["op"])["desc"]["OutputTensor"]
    assert (described["Sizes"], described["Strides"], described["TotalTensorSizeInBytes"]) == ([2, 6], [8, 1], 16)


def test_a_strided_output_needs_a_frame(app: AppClient):
    desc = {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3], "Strides": [6, 6, 1, 2]}, "Repeats": [1] * 4}
    body = frame_bytes(
        {"input": ("F32", [1, 1, 2, 3], X.tobytes())}, {"op": json.dumps({"type": "TILE", "desc": desc})}
    )

    for accept in ("application/x-npy", "application/json"):
        problem = assert_problem(app.post(TILE, body, FRAME | {"accept": accept}), 406, "not-acceptable")
        assert "application/vnd.safetensors" in problem["detail"]
    _, buffers = split_frame(app.post(TILE, body, FRAME).content)
    assert np.frombuffer(buffers["output"], "<f4").tolist() == [1, 4, 2, 5, 3, 6]


# ---- headers and options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", CALLS)
def test_headers_are_complete_and_true(app: AppClient, form: str):
    answer = app.post(*CALLS[form])

    headers = answer.headers
    assert str(len(answer.content)) == headers["content-length"]
    assert headers["tensorpost-backend"] in PROCESSORS
    assert headers["tensorpost-device"].startswith("cpu")
    assert re.fullmatch(r"[0-9a-f]{32}", headers["x-request-id"])
    stages = re.findall(r"(\w+);dur=(\d+\.\d{3})(?:, |$)", headers["server-timing"])
    assert [name for name, _ in stages] == ["head", "plan", "admit", "receive", "compute"]
    assert all(0 <= float(took) < 10_000 for _, took in stages)


@pytest.mark.parametrize("form", CALLS)
def test_server_timing_tells_where_the_time_went(app: AppClient, form: str):
    with use_backend(app.service, Controlled(before=lambda _index: time.sleep(0.05))):
        timing = app.post(*CALLS[form]).headers["server-timing"]

    took = {name: float(value) for name, value in re.findall(r"(\w+);dur=([\d.]+)", timing)}
    assert 50 <= took["compute"] < 5000


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [("abc-1.2_3~", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("<script>", False), ("", False)],
)
def test_a_request_id_is_echoed_if_it_is_harmless(app: AppClient, sent: str, echoed: bool):
    for path, body, headers in (*CALLS.values(), ("/nowhere", b"", {})):
        answer = app.post(path, body, headers | {"x-request-id": sent})
        found = answer.headers["x-request-id"]
        assert (found == sent) is echoed
        assert found


def test_a_backend_by_name(app: AppClient):
    for name in ("numpy", "null", "auto"):
        answer = app.post(f"{TILE}?repeats=1,1,2,2&backend={name}", npy_bytes(X))
        assert answer.headers["tensorpost-backend"] in (PROCESSORS if name == "auto" else [name])
        expected = np.zeros((4, 6)) if name == "null" else TILED
        np.testing.assert_array_equal(expected, npy_array(answer.content)[0, 0])


def test_a_backend_by_name_beside_a_document(app: AppClient):
    path, body, headers = CALLS["frame"]

    assert app.post(path + "?backend=null", body, headers).headers["tensorpost-backend"] == "null"


@pytest.mark.parametrize(
    ("query", "said", "expected"),
    [
        ("", "interpolation_mode is required: one of NEAREST_NEIGHBOR, LINEAR", "one of NEAREST_NEIGHBOR, LINEAR"),
        (
            "&interpolation_mode=BICUBIC", "interpolation_mode 'BICUBIC' is not one of NEAREST_NEIGHBOR, LINEAR",
            "NEAREST_NEIGHBOR, LINEAR",
        ),
        ("&interpolation_mode=LINEAR&input_pixel_offsets=.5,2x", "input_pixel_offsets[1] must be a number, not '2x'",
         "a finite number of at most 3.4028235e38 in magnitude"),
        ("&interpolation_mode=LINEAR&input_pixel_offsets=0", ("input_pixel_offsets has 1 entry but the tensors have 4 "
         "dimensions; send one entry per dimension"), "4 entries"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_query_is_said_by_its_parameters(app: AppClient, query: str, said: str, expected: str):
    answer = app.post(f"/v1/operators/resample1?scales=1,1,1,2{query}", npy_bytes(X), NPY)

    problem = assert_problem(answer, 422, "invalid-descriptor")
    assert problem["detail"] == said
    assert problem["violations"][0]["expected"] == expected


def test_an_operator_without_parameters_keeps_the_place_in_its_document(app: AppClient):
    answer = app.post("/v1/operators/element_wise_logical_not", npy_bytes(X), NPY)
    assert assert_problem(answer, 422, "unsupported-at-feature-level")["detail"].startswith("$.desc.InputTensor")


def test_what_is_wrong_in_a_query_of_onnx_is_said_by_its_parameters(app: AppClient):
    answer = app.post("/v1/onnx/Resize?mode=linear&scales=1,1,2x,2", npy_bytes(X), NPY)
    detail = assert_problem(answer, 422, "invalid-descriptor")["detail"]
    assert detail == "parameter scales[2]: '2x' is not a number"


def test_numbers_in_a_query_may_leave_out_a_zero(app: AppClient):
    query = "/v1/operators/resample?interpolation_mode=nearest&scales="
    short, whole = (app.post(query + scales, npy_bytes(X), NPY) for scales in ("1,1,1.,.5", "1,1,1.0,0.5"))
    assert (short.status_code, short.content) == (200, whole.content)


def test_a_feature_level(app: AppClient):
    assert app.post(TILE + "?repeats=1,1,2,2&feature_level=1_0", npy_bytes(X)).status_code == 200
    problem = assert_problem(
        app.post(TILE + "?repeats=2&feature_level=1_0", npy_bytes([1, 2], "int32")), 422, "unsupported-at-feature-level"
    )
    found = [(violation["code"], violation["path"]) for violation in problem["violations"]]
    assert ("dimension-count-unsupported", "$.desc.InputTensor.Sizes") in found
    assert ("data-type-unsupported", "$.desc.InputTensor.DataType") in found
    assert "it does from 2_1 on" in json.dumps(problem)


# ---- the catalogue ---------------------------------------------------------------------------------------------------


def test_the_catalogue_lists_every_operator(app: AppClient):
    listed = app.get("/v1/operators").json()["operators"]

    assert [cls.operator_type.lower() for cls in OPERATORS] == [entry["name"] for entry in listed]
    tile = next(entry for entry in listed if entry["name"] == "tile")
    assert (tile["type"], tile["value"]) == ("DML_OPERATOR_TILE", 70)
    tensor = {"type": "TENSOR_DESC", "required": True, "array": False, "optional": False}
    attribute = {"kind": "attribute", "required": False, "array": False}
    assert [{key: value for key, value in field.items() if key != "support"} for field in tile["fields"]] == [
        {"name": "InputTensor", "kind": "input", "tensor": "input", **tensor},
        {"name": "OutputTensor", "kind": "output", "tensor": "output", **tensor},
        attribute | {"name": "RepeatsCount", "type": "UINT", "query": "repeats_count"},
        attribute | {"name": "Repeats", "type": "UINT_ARRAY", "required": True, "array": True, "query": "repeats"},
    ]
    # DML_TILE_OPERATOR_DESC page, tensor support
    assert [
        (
            row["feature_level"],
            row["dimension_counts"]["lowest"],
            row["dimension_counts"]["highest"],
            len(row["data_types"]),
        )
        for row in tile["fields"][1]["support"]
    ] == [("1_0", 4, 4, 2), ("2_1", 4, 4, 8), ("3_1", 1, 8, 8), ("4_1", 1, 8, 10), ("5_0", 1, 8, 11)]


@pytest.mark.parametrize("path", ["/v1/operators", "/v1/onnx"])
def test_a_list_may_be_asked_for_with_a_slash(app: AppClient, path: str):
    assert app.get(path + "/").json() == app.get(path).json()


def test_the_catalogue_says_how_the_opened_backends_compute(app: AppClient):
    devices = app.get("/v1/devices").json()["devices"]
    opened = {entry["name"] for entry in devices if entry["reason"] is None} - {"null"}  # which computes nothing

    for entry in app.get("/v1/operators").json()["operators"]:
        found = entry["conformance"]
        assert opened == found["backends"].keys()
        assert found["backends"]["numpy"] == {"arrays": found["cases"]}
        assert found["cases"] > 0
        assert app.get(f"/v1/operators/{entry['name']}").json()["conformance"] == found


@each("cls", OPERATORS, ids=lambda cls: cls.operator_type)
def test_one_operator_with_its_json_schema(app: AppClient, cls: Any):
    entry = app.get(f"/v1/operators/{cls.operator_type.lower()}").json()

    assert f"DML_OPERATOR_{cls.operator_type}" == entry["type"]
    jsonschema.Draft202012Validator.check_schema(entry["json_schema"])
    described = {field["name"] for field in entry["fields"]}
    assert described == entry["json_schema"]["properties"].keys()


def test_the_schema_of_tile_takes_what_tile_takes(app: AppClient):
    schema = jsonschema.Draft202012Validator(app.get("/v1/operators/tile").json()["json_schema"])
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2)).to_json()

    schema.validate(desc)
    assert not schema.is_valid({**desc, "Repeats": [1, -1]})
    assert not schema.is_valid({**desc, "Repeat": [1, 1]})


def test_an_unknown_operator_has_a_nearest_name_at_both_doors(app: AppClient):
    for answer in (app.get("/v1/operators/tiel"), app.post("/v1/operators/tiel", npy_bytes(X))):
        problem = assert_problem(answer, 404, "unknown-operator")
        assert problem["nearest"] == "TILE"
        assert "did you mean 'TILE'?" in problem["detail"]


# ---- many at once ----------------------------------------------------------------------------------------------------


def test_what_was_lent_out_comes_back(app: AppClient):
    for call in CALLS.values():
        assert app.post(*call).status_code == 200
    app.post(TILE + "?repeats=0", npy_bytes([1]))
    app.post(TILE + "?repeats=9,9", npy_bytes([1]))

    assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}


def test_an_output_of_many_slices(app: AppClient):
    x = np.arange(1000, dtype="<u4")
    answer = app.post(TILE + "?repeats=1000", npy_bytes(x))

    assert x.tobytes() * 1000 == answer.content[-4_000_000:]


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("/tensors", "/tensors" + TILE, 200),
        ("/tensors", TILE, 200),
        ("/v", TILE, 200),  # the path begins with these letters, but not with this prefix
        ("/tensors", "/other" + TILE, 404),
    ],
)
def test_an_operator_is_found_below_the_prefix_of_a_proxy(app: AppClient, root: str, path: str, status: int):
    body, sent = npy_bytes(X), list[Any]()
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"repeats=1,1,2,2",
        "headers": [
            (b"host", b"test"), (b"content-type", b"application/x-npy"),
            (b"content-length", str(len(body)).encode()),
        ],
        "root_path": root, "scheme": "http", "server": ("test", 80), "client": ("127.0.0.1", 1), "http_version": "1.1",
    }  # fmt: skip

    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        message = next(messages, None)
        return message or await asyncio.Event().wait()  # the caller stays

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        await app.app(scope, receive, send)

    app.run(run())
    assert sent[0]["status"] == status
    if status == 200:
        assert npy_array(sent[1]["body"]).reshape(4, 6).tolist() == TILED

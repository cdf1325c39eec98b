"""Operators with any number of inputs and outputs over HTTP: frames, JSON, npy where one tensor is all there is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
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
    use_backend,
)

DTYPES = {"F32": "<f4", "I32": "<i4", "U32": "<u4", "U8": "|u1", "F16": "<f2"}
CODES = {np.dtype(text): code for code, text in DTYPES.items()}


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


def frame(tensors: Mapping[str, Any], document: Any = None) -> bytes:
    """A frame of these arrays in this order."""
    entries = {name: (CODES[a.dtype], a.shape, a.tobytes()) for name, a in tensors.items()}
    return frame_bytes(entries, {} if document is None else {"op": json.dumps(document)})


def arrays(body: bytes) -> dict[str, Any]:
    """The tensors of a frame, in the order of their bytes."""
    head, buffers = split_frame(body)
    entries = {name: head[name] for name in buffers}
    ordered = sorted(entries, key=lambda name: entries[name]["data_offsets"])
    ends = [0] + [entries[name]["data_offsets"][1] for name in ordered]
    assert [entries[name]["data_offsets"][0] for name in ordered] == ends[:-1], "there are gaps"
    return {
        name: np.frombuffer(buffers[name], DTYPES[entries[name]["dtype"]]).reshape(entries[name]["shape"])
        for name in ordered
    }


def ran(app: AppClient, path: str, body: bytes, headers: Mapping[str, str] = FRAME) -> bytes:
    answer = app.post(path, body, headers)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["content-length"]) == len(answer.content)
    return answer.content


def f32(*values: Any) -> Any:
    return np.array(values, "<f4")


A, B = f32([1, 2, 3], [4, 5, 6]), f32([10, 20, 30], [40, 50, 60])
ADD = "/v1/operators/element_wise_add"
JOIN = "/v1/operators/join"
SPLIT = "/v1/operators/split"
FILL = "/v1/operators/fill_value_sequence"
GEMM = "/v1/operators/gemm"
CONVOLUTION = "/v1/operators/convolution"


# ---- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_inputs_in_any_order(app: AppClient, order: str):
    tensors = {"a": A, "b": B * 2}
    body = frame({name: tensors[name] for name in order})
    for _ in range(2):  # the second is in the call cache
        np.testing.assert_array_equal(arrays(ran(app, ADD, body))["output"], A + 2 * B)


def test_one_output_may_be_npy_whatever_the_request_is(app: AppClient):
    found = ran(app, ADD, frame({"a": A, "b": B}), {**FRAME, "accept": NPY["content-type"]})
    np.testing.assert_array_equal(npy_array(found), A + B)


def test_a_tensor_at_an_odd_address_is_copied_first(app: AppClient):
    condition = np.array([[1, 0, 1]], "u1")
    tensors = {"condition": condition, "a": f32([1, 2, 3]), "b": f32([4, 5, 6])}
    body = frame(tensors)
    for _ in range(3):
        found = arrays(ran(app, "/v1/operators/element_wise_if", body))["output"]
        np.testing.assert_array_equal(found, np.where(condition, tensors["a"], tensors["b"]))
    assert [prepared.aligned for prepared in app.service.calls.values() if len(prepared.sizes) == 3] == [False]


def test_npy_holds_one_input(app: AppClient):
    problem = assert_problem(app.post(ADD, npy_bytes(A)), 400, "tensor-mismatch")
    assert "this body holds one tensor, and a, b are taken; several travel as npz, as a frame" in problem["detail"]
    problem = assert_problem(app.post(JOIN + "?axis=0", npy_bytes(A)), 400, "tensor-mismatch")
    assert "and input_0, input_1, ... are taken; several travel as npz" in problem["detail"]


def test_arrays_of_tensors_are_numbered(app: AppClient):
    tensors = {"input_1": B, "input_0": A, "input_2": f32([7], [8])}
    found = arrays(ran(app, JOIN + "?axis=1", frame(tensors)))
    np.testing.assert_array_equal(found["output"], np.concatenate([A, B, tensors["input_2"]], 1))


def test_eleven_tensors_are_in_the_order_of_their_numbers(app: AppClient):
    parts = {f"input_{index}": f32([index]) for index in range(11)}
    body = frame(dict(sorted(parts.items())))  # by name: 0, 1, 10, 2, ...
    np.testing.assert_array_equal(arrays(ran(app, JOIN + "?axis=1", body))["output"], [range(11)])


@pytest.mark.parametrize("names", [["input_0", "input_2"], ["input_1"], ["input"], ["input_00"], ["input_0", "x"], []])
def test_names_that_are_not_numbered_from_zero(app: AppClient, names: Sequence[str]):
    problem = assert_problem(
        app.post(JOIN + "?axis=0", frame(dict.fromkeys(names, A)), FRAME), 400, "tensor-mismatch"
    )  # fmt: skip
    assert "the operator takes the tensors 'input_0'" in problem["detail"]


def test_an_array_of_tensors_takes_any_number(app: AppClient):
    problem = assert_problem(app.post(JOIN + "?axis=0", frame({"a": A, "b": B}), FRAME), 400, "tensor-mismatch")
    assert problem["detail"] == "the operator takes the tensors 'input_0', 'input_1', ...; the body has 'a', 'b'"


def test_a_document_and_its_tensors_must_agree_in_number(app: AppClient):
    tensor = {"DataType": "FLOAT32", "Sizes": [2, 3]}
    document = {"type": "JOIN", "desc": {"InputTensors": [tensor] * 3, "Axis": 0}}
    body = frame({"input_0": A, "input_1": B}, document)
    problem = assert_problem(app.post(JOIN, body, FRAME), 400, "tensor-mismatch")
    assert "takes the tensors 'input_0', 'input_1', 'input_2'; the body has 'input_0', 'input_1'" in problem["detail"]


def test_an_optional_tensor_may_be_absent(app: AppClient):
    a, b, c = f32([1, 2], [3, 4]), f32([5, 6], [7, 8]), f32([1, 1], [2, 2])
    a, b, c = (x.reshape(1, 1, 2, 2) for x in (a, b, c))
    np.testing.assert_array_equal(arrays(ran(app, GEMM, frame({"a": a, "b": b})))["output"], a @ b)
    found = arrays(ran(app, GEMM + "?beta=3", frame({"a": a, "b": b, "c": c})))["output"]
    np.testing.assert_array_equal(found, a @ b + 3 * c)


def test_an_optional_tensor_that_is_described_must_be_sent(app: AppClient):
    x = A.reshape(1, 1, 2, 3)
    tensor = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 2]}
    document = {"type": "GEMM", "desc": {"CTensor": tensor, "TransB": "TRANSPOSE"}}
    problem = assert_problem(app.post(GEMM, frame({"a": x, "b": x}, document), FRAME), 400, "tensor-mismatch")
    assert "takes the tensors 'a', 'b', 'c'; the body has 'a', 'b'" in problem["detail"]
    problem = assert_problem(app.post(GEMM, frame({"a": x, "b": x, "d": x}), FRAME), 400, "tensor-mismatch")
    assert "takes the tensors 'a', 'b' and may have 'c'" in problem["detail"]


EMPTY = {"content-type": None}
FOUR = [1.0, 1.5, 2.0, 2.5]
SEQUENCE = "?value_start=1&value_delta=0.5&output_sizes=1,1,2,2&output_data_type=FLOAT32"


def test_an_operator_without_inputs(app: AppClient):
    document = {
        "type": "FILL_VALUE_SEQUENCE",
        "desc": {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [4]}, "ValueStart": 1, "ValueDelta": 0.5},
    }
    answers = [
        arrays(ran(app, FILL, frame({}, document)))["output"],
        arrays(ran(app, FILL + SEQUENCE, frame({})))["output"],
        npy_array(ran(app, FILL + SEQUENCE, b"", NPY)),
        npy_array(ran(app, FILL + SEQUENCE, b"", {})),
        arrays(ran(app, FILL + SEQUENCE, b"", {"accept": FRAME["content-type"]}))["output"],
    ]
    for found in answers:
        assert found.ravel().tolist() == FOUR
    body = json.dumps({"op": document, "tensors": {}}).encode()
    assert json.loads(ran(app, FILL, body, JSON))["tensors"]["output"]["data"] == FOUR


def test_without_inputs_nothing_may_be_sent(app: AppClient):
    assert_problem(app.post(FILL + SEQUENCE, npy_bytes(A)), 400, "body-length-mismatch")
    assert_problem(app.post(FILL + SEQUENCE, frame({"input": A}), FRAME), 400, "tensor-mismatch")
    assert_problem(app.post(FILL + SEQUENCE, b"", FRAME), 400, "body-length-mismatch")


# ---- outputs ---------------------------------------------------------------------------------------------------------


def test_several_outputs_are_one_frame_in_the_order_of_the_descriptor(app: AppClient):
    path = SPLIT + "?axis=1&output_sizes=2,1;2,2"
    for _ in range(3):
        found = arrays(ran(app, path, frame({"input": A})))
        assert list(found) == ["output_0", "output_1"]
        np.testing.assert_array_equal(found["output_0"], A[:, :1])
        np.testing.assert_array_equal(found["output_1"], A[:, 1:])


def test_outputs_of_several_types(app: AppClient):
    path = "/v1/operators/top_k1?axis=1&k=2"
    found = arrays(ran(app, path, npy_bytes(A), {**NPY, "accept": FRAME["content-type"]}))
    assert list(found) == ["output_value", "output_index"]
    np.testing.assert_array_equal(found["output_value"], [[3, 2], [6, 5]])
    np.testing.assert_array_equal(found["output_index"], [[2, 1], [2, 1]])
    assert found["output_index"].dtype == np.uint32


@pytest.mark.parametrize("content_type", [NPY, FRAME])
def test_npy_holds_one_output(app: AppClient, content_type: Mapping[str, str]):
    body = npy_bytes(A) if content_type == NPY else frame({"input": A})
    headers = {**content_type, "accept": NPY["content-type"]}
    problem = assert_problem(app.post(SPLIT + "?axis=1&output_sizes=2,1;2,2", body, headers), 406, "not-acceptable")
    assert "SPLIT has the outputs output_0, output_1; accept application/vnd.safetensors" in problem["detail"]


@pytest.mark.parametrize("accept", [{}, {"accept": "*/*"}, {"accept": "application/x-npy, application/*;q=0.5"}])
def test_several_outputs_are_a_frame_where_npy_was_not_asked_for(app: AppClient, accept: Mapping[str, str]):
    found = arrays(ran(app, SPLIT + "?axis=1&output_sizes=2,1;2,2", npy_bytes(A), {**NPY, **accept}))
    np.testing.assert_array_equal(found["output_0"], A[:, :1])
    np.testing.assert_array_equal(found["output_1"], A[:, 1:])


def test_one_output_of_an_array_may_be_npy(app: AppClient):
    np.testing.assert_array_equal(npy_array(ran(app, SPLIT + "?axis=1&output_sizes=2,3", npy_bytes(A), NPY)), A)


def test_several_outputs_as_json(app: AppClient):
    body = {"tensors": {"input": {"dtype": "F32", "shape": [2, 3], "data": A.ravel().tolist()}}}
    found = json.loads(ran(app, SPLIT + "?axis=1&output_sizes=2,1;2,2", json.dumps(body).encode(), JSON))
    assert {name: tensor["data"] for name, tensor in found["tensors"].items()} == {
        "output_0": [1.0, 4.0],
        "output_1": [2.0, 3.0, 5.0, 6.0],
    }
    assert found["op"]["type"] == "DML_OPERATOR_SPLIT"


def test_large_outputs_follow_each_other_slice_by_slice():
    """Each slice is filled with its index, so the order of the bytes shows."""
    rows = 3000
    with http_app(slice_bytes=4096, backend="numpy") as app:
        x = np.zeros((rows, 4), "<f4")
        with use_backend(app.service, Controlled()):
            path = f"{SPLIT}?axis=0&output_sizes={rows // 3},4;{2 * rows // 3},4"
            found = arrays(ran(app, path, frame({"input": x})))
        filled = np.concatenate([found["output_0"].view(np.uint8).ravel(), found["output_1"].view(np.uint8).ravel()])
    changes = np.diff(filled.astype(int))
    assert set(changes.tolist()) == {0, 1}
    assert filled[-1] == np.count_nonzero(changes) >= 11
    assert found["output_1"].view(np.uint8).ravel()[0] == found["output_0"].view(np.uint8).ravel()[-1] + 1


def test_the_limit_is_for_all_outputs_together():
    with http_app(max_output_bytes=20, backend="numpy") as app:
        answer = app.post(SPLIT + "?axis=1&output_sizes=2,1;2,2", frame({"input": A}), FRAME)
        assert assert_problem(answer, 413, "limit-exceeded")["actual"] == 24


def test_a_query_describes_no_more_outputs_than_there_are(app: AppClient):
    problem = assert_problem(
        app.post(ADD + "?output_sizes=2,3;2,3", frame({"a": A, "b": B}), FRAME), 400, "invalid-parameter"
    )
    assert "describes 2 outputs, but ELEMENT_WISE_ADD has 1" in problem["detail"]


# ---- the query -------------------------------------------------------------------------------------------------------


def test_the_type_of_an_output_may_be_chosen(app: AppClient):
    found = npy_array(ran(app, "/v1/operators/cast?output_data_type=INT32", npy_bytes(A + 0.75), NPY))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, A)


@pytest.mark.parametrize(
    ("path", "shape", "says", "expected"),
    [
        ("cast", (2, 3), "output_data_type is required: the output's type, as in output_data_type=FLOAT32", "DataType"),
        ("roi_align", (1, 1, 4, 4), "output_sizes is required, as in output_sizes=1,1,4,4", "Sizes"),
        ("fill_value_constant?value=1&value_data_type=FLOAT32", None, "FLOAT32; output_sizes is required", "DataType"),
    ],
)
def test_a_query_is_told_which_parameter_describes_an_output(
    app: AppClient, path: str, shape: tuple[int, ...] | None, says: str, expected: str
):
    body, form = (b"", NPY) if shape is None else (npy_bytes(np.ones(shape)), NPY)
    if path == "roi_align":
        rois = {"roi": np.zeros((1, 1, 1, 4), np.float32), "batch_indices": np.zeros((1, 1, 1, 1), np.uint32)}
        path += "?reduction_function=MAX&interpolation_mode=LINEAR&spatial_scale_x=1&spatial_scale_y=1"
        path += "&out_of_bounds_input_value=0&minimum_samples_per_output=1&maximum_samples_per_output=1"
        body, form = frame({"input": np.ones(shape or (), np.float32), **rois}), FRAME
    problem = assert_problem(app.post(f"/v1/operators/{path}", body, form), 422, "invalid-descriptor")

    assert says in problem["detail"]
    assert "OutputTensor" not in problem["detail"]
    (violation,) = problem["violations"]
    assert violation["path"] == "$.desc.OutputTensor"
    assert expected in violation["expected"]


def test_a_nested_attribute_is_json(app: AppClient):
    path = '/v1/operators/element_wise_identity?scale_bias={"Scale":2,"Bias":1}'
    np.testing.assert_array_equal(npy_array(ran(app, path, npy_bytes(A), NPY)), 2 * A + 1)


CONVOLVE = (
    "?mode=CROSS_CORRELATION&direction=FORWARD&strides=1,1&dilations=1,1&start_padding=0,0&end_padding=0,0"
    "&output_padding=0,0"
)


def test_attributes_whose_names_end_like_counts_are_kept(app: AppClient):
    x, w = np.ones((1, 4, 2, 2), "<f4"), np.arange(4 * 2, dtype="<f4").reshape(4, 2, 1, 1)
    found = arrays(ran(app, CONVOLUTION + CONVOLVE + "&group_count=2", frame({"input": x, "filter": w})))["output"]
    np.testing.assert_array_equal(found[0, :, 0, 0], [1, 5, 9, 13])


def test_a_derived_count_may_be_sent_and_must_be_right(app: AppClient):
    path = "/v1/operators/tile?repeats=1,2&repeats_count="
    assert npy_array(ran(app, path + "2", npy_bytes(A), NPY)).shape == (2, 6)
    problem = assert_problem(app.post(path + "3", npy_bytes(A)), 422, "invalid-descriptor")
    assert "count-disagrees" in [violation["code"] for violation in problem["violations"]]


def test_an_array_may_stand_in_brackets(app: AppClient):
    assert npy_array(ran(app, "/v1/operators/tile?repeats=[1, 2]", npy_bytes(A), NPY)).shape == (2, 6)


# ---- what is said about it -------------------------------------------------------------------------------------------


def test_validate_lists_the_bytes_of_every_tensor(app: AppClient):
    tensor, part = {"DataType": "FLOAT32", "Sizes": [2, 3]}, {"DataType": "FLOAT32", "Sizes": [2, 1]}
    document = {"type": "SPLIT", "desc": {"InputTensor": tensor, "OutputTensors": [part, part, part], "Axis": 1}}
    found = app.post("/v1/validate", json.dumps(document).encode(), JSON).json()

    assert found["valid"], found
    assert found["inputs"] == [{"name": "input", "dtype": "float32", "shape": [2, 3], "size_in_bytes": 24}]
    assert found["outputs"] == [
        {"name": f"output_{index}", "dtype": "float32", "shape": [2, 1], "size_in_bytes": 8} for index in range(3)
    ]
    assert (found["input_bytes"], found["output_bytes"]) == (24, 24)


def test_the_catalogue_says_what_each_tensor_may_be(app: AppClient):
    def fields(name: str) -> Any:
        return {field["name"]: field for field in app.get(f"/v1/operators/{name}").json()["fields"]}

    join, gemm, cast = fields("join"), fields("gemm"), fields("cast")
    assert (join["InputTensors"]["tensor"], join["InputTensors"]["array"]) == ("input_0", True)
    assert [gemm[name]["optional"] for name in ("ATensor", "CTensor")] == [False, True]
    assert gemm["Alpha"]["query"] == "alpha"
    for name in ("InputTensor", "OutputTensor"):
        assert [row["feature_level"] for row in cast[name]["support"]] == sorted(
            row["feature_level"] for row in cast[name]["support"]
        )
    assert fields("convolution")["GroupCount"]["query"] == "group_count"
    assert fields("resample_grad")["OutputGradientTensor"]["tensor"] == "output"

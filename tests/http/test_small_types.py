"""ONNX's types of 8 bits or fewer through a server: every form of a body, the client, and the reference evaluator."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.live_server import default_server

from tensorpost import Client
from tensorpost.bodies.frame import HeadReader, encode_head, encode_npy_head
from tensorpost.values.datatypes import DATA_TYPES, DataType, data_type
from tensorpost.values.problems import NoBackend

SMALL = [row for row in DATA_TYPES if row.is_small]
IN_ML_DTYPES = [row for row in DATA_TYPES if row.in_ml_dtypes]
BY_NAME = pytest.mark.parametrize("row", IN_ML_DTYPES, ids=lambda row: row.numpy_name)
FRAME, NPY, NPZ = "application/vnd.safetensors", "application/x-npy", "application/x-npz"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with default_server() as address:
        yield address


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def tp(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def elements(row: DataType, *sizes: int) -> NDArray[Any]:
    """Small numbers of the type, each of which it holds exactly."""
    low, high = row.limits if row.kind != "f" else (0 if row.numpy_name == "float8_e8m0fnu" else -2, 2)
    numbers = np.random.default_rng(1).integers(max(low, -4), min(high, 4) + 1, sizes)
    return (2.0**numbers if row.numpy_name == "float8_e8m0fnu" else numbers.astype(np.float64)).astype(row.dtype)


def opset_of(row: DataType) -> int:
    return 28 if row.bits == 6 else 25


@BY_NAME
def test_every_form_of_a_body_holds_the_type(http: httpx.Client, row: DataType) -> None:
    if row.bits == 6:
        pytest.skip("no mover takes 6 bits")
    x = elements(row, 2, 3)
    wanted, url = x.T.tobytes(), "/v1/onnx/Transpose?opset=25"

    def post(content: bytes, form: str) -> bytes:
        answer = http.post(url, content=content, headers={"content-type": form, "accept": form})
        assert answer.status_code == 200, answer.text
        return answer.content

    answer = post(encode_head([("data", row, x.shape)]) + x.tobytes(), FRAME)
    reader = HeadReader()
    taken = reader.feed(answer)
    (entry,) = reader.finish().tensors
    assert (entry.data_type, entry.shape, answer[taken:]) == (row, (3, 2), wanted)

    array: Any = np.load(io.BytesIO(post(encode_npy_head(row, x.shape) + x.tobytes(), NPY)))
    assert (array.dtype, array.shape, array.tobytes()) == (row.dtype, (3, 2), wanted)

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data.npy", encode_npy_head(row, x.shape) + x.tobytes())
    with np.load(io.BytesIO(post(archive.getvalue(), NPZ))) as found:
        assert (found["output"].dtype, found["output"].tobytes()) == (row.dtype, wanted)

    tensor = {"dtype": row.numpy_name, "shape": [2, 3], "data": x.astype(np.float64).tolist()}
    if row.kind in "iu":
        tensor["data"] = x.astype(np.int8).tolist()
    answer = post(json.dumps({"op": {"opset": 25}, "tensors": {"data": tensor}}).encode(), "application/json")
    (output,) = json.loads(answer)["tensors"].values()
    assert data_type(output["dtype"]) is row
    assert np.array(output["data"]).reshape(3, 2).tolist() == x.T.astype(np.float64).tolist()


@BY_NAME
def test_the_client_takes_and_gives_arrays_of_ml_dtypes(tp: Client, row: DataType) -> None:
    x, opset = elements(row, 3, 4), opset_of(row)
    wide = tp.onnx("Cast", x, opset=opset, to="float")
    np.testing.assert_array_equal(wide, x.astype(np.float32), strict=True)
    back = tp.onnx("Cast", wide, opset=opset, to=row.numpy_name)
    np.testing.assert_array_equal(back, x, strict=True)
    like = tp.onnx("CastLike", wide, x[:0], opset=opset) if row.bits != 6 else back
    np.testing.assert_array_equal(like, x, strict=True)


@pytest.mark.parametrize("row", [row for row in SMALL if row.bits != 6], ids=lambda row: row.numpy_name)
def test_movers(tp: Client, row: DataType) -> None:
    x, bits = elements(row, 2, 3, 4), elements(row, 2, 3, 4).view(np.uint8)

    def run(op_type: str, *inputs: Any, **attributes: Any) -> Any:
        found = tp.onnx(op_type, *inputs, opset=25, **attributes)
        assert found.dtype == x.dtype
        return found.view(np.uint8)

    assert run("Reshape", x, [4, 6]).tolist() == bits.reshape(4, 6).tolist()
    assert run("Transpose", x, perm=[2, 0, 1]).tolist() == bits.transpose(2, 0, 1).tolist()
    assert run("Flatten", x, axis=2).tolist() == bits.reshape(6, 4).tolist()
    assert run("Unsqueeze", x, [0]).tolist() == bits[np.newaxis].tolist()
    assert run("Squeeze", x[:, :1], [1]).tolist() == bits[:, 0].tolist()
    assert run("Identity", x).tolist() == bits.tolist()
    for mode in ("edge", "reflect", "wrap"):
        padded = np.pad(bits, ((0, 0), (1, 1), (0, 2)), mode)  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
        assert run("Pad", x, [0, 1, 0, 0, 1, 2], mode=mode).tolist() == padded.tolist()
    one = np.ones(1).astype(row.dtype)
    padded = np.pad(bits, ((0, 0), (1, 1), (0, 2)), constant_values=one.view(np.uint8)[0])
    assert run("Pad", x, [0, 1, 0, 0, 1, 2], one).tolist() == padded.tolist()
    assert tp.onnx("Shape", x, opset=25).tolist() == [2, 3, 4]
    assert int(tp.onnx("Size", x, opset=25)) == 24
    filled = tp.onnx("ConstantOfShape", [2, 2], opset=25, value={"data_type": row.onnx, "shape": [1], "data": [1]})
    np.testing.assert_array_equal(filled, np.ones((2, 2)).astype(row.dtype), strict=True)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_numbers_that_are_none(tp: Client, kind: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(data_type(kind).dtype)
    wide = x.astype(np.float32)
    assert tp.onnx("IsNaN", x, opset=20).tolist() == np.isnan(wide).tolist()
    assert tp.onnx("IsInf", x, opset=20).tolist() == np.isinf(wide).tolist()
    assert tp.onnx("IsInf", x, opset=20, detect_negative=0).tolist() == np.isposinf(wide).tolist()
    assert tp.onnx("IsInf", x, opset=20, detect_positive=0).tolist() == np.isneginf(wide).tolist()


QUANTIZED = [row for row in SMALL if row.numpy_name != "float8_e8m0fnu"]


def evaluated(op_type: str, opset: int, inputs: dict[str, NDArray[Any]], **attributes: Any) -> NDArray[Any]:
    """By the package onnx's reference evaluator."""
    onnx: Any = pytest.importorskip("onnx", reason="the package onnx has no wheel for every Python")
    reference: Any = pytest.importorskip("onnx.reference")
    tensors = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    node = onnx.helper.make_node(op_type, [*inputs], ["y"], **attributes)
    graph = onnx.helper.make_graph([node], "g", tensors, [onnx.helper.make_empty_tensor_value_info("y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    (found,) = reference.ReferenceEvaluator(model).run(None, inputs)
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("row", QUANTIZED, ids=lambda row: row.numpy_name)
@pytest.mark.parametrize("way", ["whole", "axis", "blocks"])
def test_quantization(tp: Client, row: DataType, way: str) -> None:
    opset, chance = opset_of(row), np.random.default_rng(2)
    x = (chance.standard_normal((4, 6)) * 8).astype(np.float32)
    shape, attributes = {"whole": ((), {}), "axis": ((6,), {"axis": 1}), "blocks": ((4, 3), {"block_size": 2})}[way]
    scale = chance.uniform(0.5, 2, shape).astype(np.float32)
    zero = np.ones(shape).astype(row.dtype) if row.kind in "iu" else np.zeros(shape).astype(row.dtype)
    wanted = evaluated("QuantizeLinear", opset, {"x": x, "s": scale, "z": zero}, **attributes)
    found = tp.onnx("QuantizeLinear", x, scale, zero, opset=opset, **attributes)
    assert found.dtype == row.dtype
    assert found.tobytes() == wanted.tobytes()
    without = tp.onnx("QuantizeLinear", x, scale, opset=opset, output_dtype=row.numpy_name, **attributes)
    other = evaluated("QuantizeLinear", opset, {"x": x, "s": scale}, output_dtype=row.onnx_code, **attributes)
    assert without.tobytes() == other.tobytes()
    real = tp.onnx("DequantizeLinear", found, scale, zero, opset=opset, **attributes)
    number = found.astype(np.float32) - zero.astype(np.float32) if way != "blocks" else None
    if number is not None:
        np.testing.assert_array_equal(real, number * scale, strict=True)
    else:
        spread = [np.repeat(each.astype(np.float32), 2, axis=1) for each in (zero, scale)]
        np.testing.assert_array_equal(real, (found.astype(np.float32) - spread[0]) * spread[1], strict=True)


def test_saturate(tp: Client) -> None:
    x, zero = np.array([1000.0, -1000, 3], np.float32), np.array(0).astype(ml_dtypes.float8_e4m3fn)
    one = np.array(1, np.float32)
    assert tp.onnx("Cast", x, opset=25, to="float8_e4m3fn").astype(float).tolist() == [448, -448, 3]
    assert np.isnan(tp.onnx("Cast", x, opset=25, to="float8_e4m3fn", saturate=0).astype(float)).tolist() == [1, 1, 0]
    assert tp.onnx("Cast", x, opset=25, to="float8_e5m2", saturate=0).astype(float).tolist() == [1024, -1024, 3]
    assert tp.onnx("QuantizeLinear", x, one, zero, opset=25).astype(float).tolist() == [448, -448, 3]
    found = tp.onnx("QuantizeLinear", x, one, zero, opset=25, saturate=0)
    assert np.isnan(found.astype(float)).tolist() == [1, 1, 0]


def test_round_mode(tp: Client) -> None:
    x = np.array([1.25, 3], np.float32)
    for round_mode, wanted in (("up", [2, 4]), ("down", [1, 2]), ("nearest", [1, 4])):
        assert tp.onnx("Cast", x, opset=24, to="float8e8m0", round_mode=round_mode).astype(float).tolist() == wanted


def test_the_precision_of_a_division(tp: Client) -> None:
    # float16 holds no 2049, and bfloat16 no 1025
    one, zero = np.array(1, np.float32), np.array(0, np.int16)

    def quantized(number: float, **attributes: Any) -> list[int]:
        return tp.onnx("QuantizeLinear", np.array([number], np.float32), one, zero, opset=23, **attributes).tolist()

    assert (quantized(2049), quantized(2049, precision="float16")) == ([2049], [2048])
    assert (quantized(1025, precision=10), quantized(1025, precision="bfloat16")) == ([1025], [1024])
    x, scale = np.array([1000, 999, 7], np.float16), np.array(0.3, np.float16)
    assert tp.onnx("QuantizeLinear", x, scale, zero, opset=23).tolist() == np.rint(x / scale).tolist()
    assert (
        tp.onnx("QuantizeLinear", x, scale, zero, opset=21).tolist() == np.rint(x / scale.astype(np.float32)).tolist()
    )


def test_a_scale_of_powers_of_two(tp: Client) -> None:
    x, scale = np.array([3.0, -5], np.float32), np.array(0.5).astype(ml_dtypes.float8_e8m0fnu)
    quantized = tp.onnx("QuantizeLinear", x, scale, opset=24, output_dtype="int8")
    assert (quantized.dtype, quantized.tolist()) == (np.dtype(np.int8), [6, -10])
    real = tp.onnx("DequantizeLinear", quantized, scale, opset=24, output_dtype="float16")
    assert (real.dtype, real.tolist()) == (np.dtype(np.float16), [3, -5])


def test_what_does_not_take_them_says_so(http: httpx.Client, tp: Client) -> None:
    x = elements(data_type("float8_e4m3fn"), 4)
    with pytest.raises(NoBackend, match="ONNX Runtime computes Dropout-22, and takes no arrays of float8e4m3fn"):
        tp.onnx("Dropout", x, opset=22)
    document = {
        "inputs": [{"name": "input", "shape": [1], "datatype": "FP32", "data": [1]}],
        "parameters": {"to": "float8_e4m3fn", "opset": 25},
    }
    answer = http.post("/v2/models/onnx.cast/infer", json=document)
    assert "float8_e4m3fn" in answer.json()["error"]


@pytest.mark.parametrize("kind", ["float4_e2m1fn", "int4", "uint2"])
def test_the_high_bits_of_a_byte_do_not_count(http: httpx.Client, kind: str) -> None:
    row = data_type(kind)
    codes = np.arange(256, dtype=np.uint8)
    wanted = (codes & ((1 << row.bits) - 1)).view(row.dtype).astype(np.float64).tolist()
    for target in ("Identity?opset=25", "Cast?opset=25&to=float"):
        body, head = encode_head([("input", row, (256,))]), {"content-type": FRAME, "accept": "application/json"}
        answer = http.post(f"/v1/onnx/{target}", content=body + codes.tobytes(), headers=head)
        assert answer.json()["tensors"]["output"]["data"] == wanted

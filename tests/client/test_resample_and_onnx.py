"""`resample` and `onnx` of both clients, against the real server. Expected numbers are those of the public pages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.support.live_server import default_server

from tensorpost import AsyncClient, Client
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter, UnknownOperator

X = np.array([10, 20, 30, 40], np.float32)
HALF_PIXEL = [10, 12.5, 17.5, 22.5, 27.5, 32.5, 37.5, 40]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with default_server() as address:
        yield address


@pytest.fixture
def tp(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def test_resample_aligns_pixel_centres(tp: Client) -> None:
    assert tp.resample(X, scales=2, axes=0).tolist() == HALF_PIXEL
    assert tp.resample(X, sizes=8, axes=0, mode="nearest").tolist() == [10, 10, 20, 20, 30, 30, 40, 40]


def test_resample_receives_into_out(tp: Client) -> None:
    out = np.zeros(8, np.float32)

    answer = tp.resample(X, sizes=[8], out=out)

    assert out.tolist() == HALF_PIXEL
    assert answer is out


def test_a_matrix_is_resampled_and_received_into(tp: Client) -> None:
    x, out = X.reshape(1, 4).view(np.matrix), np.zeros((1, 8), np.float32).view(np.matrix)

    assert tp.resample(x, sizes=8, axes=1, out=out) is out
    assert out.tolist() == [HALF_PIXEL]


def test_more_than_four_dimensions_keep_their_shape(tp: Client) -> None:
    x = np.arange(2 * 3 * 2 * 1 * 4, dtype=np.float32).reshape(2, 3, 2, 1, 4)

    y = tp.resample(x, sizes=8, axes=-1, mode="nearest")

    assert y.shape == (2, 3, 2, 1, 8)
    assert (y == np.repeat(x, 2, axis=-1)).all()


@pytest.mark.parametrize(
    "arguments",
    [{}, {"sizes": 8, "scales": 2.0, "axes": 0}, {"scales": 0.0, "axes": 0}, {"scales": 2.0, "axes": 0, "out": X}],
    ids=["neither", "both", "zero", "out of another shape"],
)
def test_resample_refuses_before_anything_is_sent(arguments: dict[str, Any]) -> None:
    with Client("http://127.0.0.1:9") as offline, pytest.raises(InvalidParameter):
        offline.resample(X, **arguments)


def test_onnx_resize_and_tile(tp: Client) -> None:
    scales = np.array([2], np.float32)

    assert tp.onnx("Resize", X, None, scales, opset=19, mode="linear").tolist() == HALF_PIXEL
    assert tp.onnx("Resize", X, scales=[2], mode="linear").tolist() == HALF_PIXEL
    assert tp.onnx("Resize", X=X, sizes=[8], mode="linear").tolist() == HALF_PIXEL
    square = np.outer(X, X).astype(np.float64)  # what a refused mode="cubic" says to write
    cubic = tp.onnx("Resize", square, scales=[2, 2], axes=[0, 1], mode="cubic")
    np.testing.assert_array_equal(cubic, tp.onnx("Resize", square, None, [2.0, 2.0], mode="cubic"))
    assert tp.onnx("Tile", X[:2], np.array([2]), opset=13).tolist() == [10, 20, 10, 20]
    assert tp.onnx("Tile", X, [0]).shape == (0,)
    assert tp.onnx("Tile", np.array(3.0), []).tolist() == 3
    assert tp.onnx("Upsample", X, scales, opset=9, mode="nearest").tolist() == [10, 10, 20, 20, 30, 30, 40, 40]


@pytest.mark.parametrize("dtype", ["bool", "float64", "complex64", "int16", "uint64", ml_dtypes.bfloat16])
def test_onnx_tile_carries_types_that_directml_has_not(tp: Client, dtype: Any) -> None:
    x = np.arange(3).astype(dtype)

    y = tp.onnx("Tile", x, [2])

    assert y.dtype == x.dtype
    assert y.tobytes() == x.tobytes() * 2


def test_onnx_streams_and_runs_as_a_node(tp: Client) -> None:
    node = OnnxNode.of("Tile", {"input": X, "repeats": [3]}, opset=13)

    assert b"".join(bytes(block) for block in tp.stream(node, X)) == X.tobytes() * 3
    assert tp.run(node, X).tolist() == X.tolist() * 3


def test_onnx_refuses_before_anything_is_sent() -> None:
    with Client("http://127.0.0.1:9") as offline:
        with pytest.raises(UnknownOperator, match="Resize"):
            offline.onnx("Resise", X, None, [2.0])
        with pytest.raises(InvalidDescriptor, match="mode"):
            offline.onnx("Resize", X, None, [2.0], mode="quintic")
        with pytest.raises(InvalidParameter, match="scales is given by position and by name"):
            offline.onnx("Resize", X, None, [2.0], scales=[2.0])
        with pytest.raises(InvalidParameter, match="needs the input X"):
            offline.onnx("Resize", scales=[2.0])
        with pytest.raises(InvalidParameter, match="input, repeats"):
            offline.onnx("Tile", X, [2], [3])
        with pytest.raises(InvalidDescriptor, match="computes with strings"):
            offline.onnx("StringConcat", np.array(["a"], object), np.array(["b"], object))
        with pytest.raises(InvalidParameter, match="element 1 is a int"):
            offline.onnx("Tile", np.array(["a", 1], object), [2])
        words = np.ma.array(np.array(["a", "b"], object), mask=[False, True])
        with pytest.raises(InvalidParameter, match="input is a masked array"):
            offline.run(OnnxNode.of("Tile", {"input": words.data, "repeats": [3]}, opset=13), words)
        with pytest.raises(InvalidParameter, match="opset"):
            offline.run(OnnxNode.of("Tile", {"input": X, "repeats": [3]}, opset=13), X, feature_level="2_1")


def test_the_asynchronous_client_does_the_same(url: str) -> None:
    async def both() -> tuple[Any, Any]:
        async with AsyncClient(url) as tp:
            scales = np.array([2], np.float32)
            out = np.zeros(8, np.float32)
            assert await tp.resample(X, scales=2, axes=0, out=out) is out
            return await tp.resample(X, scales=2, axes=0), await tp.onnx("Resize", X, None, scales, mode="linear")

    resampled, resized = asyncio.run(both())

    assert resampled.tolist() == resized.tolist() == HALF_PIXEL


def test_validate_takes_nodes_too(tp: Client) -> None:
    node = OnnxNode.of("Tile", {"input": X, "repeats": [3]}, opset=13)

    by_value, by_document = tp.validate(node), tp.validate(node.to_json())

    assert by_value.operator == by_document.operator == node
    assert by_value.document["lowering"]["verdict"] == "exact"

"""Types that NumPy has by `ml_dtypes` only, on a GPU: the bits that NumPy's backend gives, of moves and conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.cuda_device import missing_device

from tensorpost.onnx import OnnxNode
from tensorpost.values.datatypes import DATA_TYPES, data_type
from tensorpost_server.backends.base import Backend, CannotOpen, DeviceOptions
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

if (MISSING := missing_device()) is not None:
    pytest.skip(MISSING, allow_module_level=True)

NAMES = [row.numpy_name for row in DATA_TYPES if row.in_ml_dtypes]
FLOATS = np.array([0, -0.0, 1, -1.5, 0.3, 448, 464, 465, 1e9, -1e9, 1e-9, np.inf, -np.inf, np.nan, 3, 7.5], np.float32)


@pytest.fixture(scope="module")
def cuda() -> Backend:
    from tensorpost_server.backends.cuda.backend import CudaBackend

    ((_, found),) = list(CudaBackend.open_all(DeviceOptions()))[:1]
    assert not isinstance(found, CannotOpen)
    return found


def computed(backend: Backend, node: OnnxNode, arrays: list[NDArray[Any]]) -> bytes:
    plan = make_plan(node, 1 << 22)
    assert backend.refusal_reason(plan) is None
    memory = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    run = backend.start(plan, memory)
    try:
        return b"".join([bytes(run.compute(index)) for index in range(len(plan.slices))])
    finally:
        run.close()


def same(cuda: Backend, op_type: str, inputs: dict[str, Any], opset: int = 25, **attributes: Any) -> None:
    node = OnnxNode.of(op_type, inputs, opset=opset, **attributes)
    arrays = [inputs[name] for name, _ in node.tensors]
    assert computed(cuda, node, arrays) == computed(NumpyBackend(), node, arrays)


@pytest.mark.parametrize("name", NAMES)
def test_casts(cuda: Backend, name: str) -> None:
    opset = 28 if data_type(name).bits == 6 else 25
    codes = np.arange(256, dtype=np.uint8)
    x: Any = np.repeat(codes, data_type(name).item_size).view(data_type(name).dtype)
    for kind in ("float", "float16", "bfloat16", "int32", "bool", "int4", "float8e4m3fn"):
        same(cuda, "Cast", {"input": x}, opset, to=kind)
    for saturate in (0, 1):
        same(cuda, "Cast", {"input": FLOATS}, opset, to=name, saturate=saturate)
    same(cuda, "Cast", {"input": np.arange(-40, 40)}, opset, to=name)


@pytest.mark.parametrize("name", [name for name in NAMES if data_type(name).bits != 6])
def test_moves(cuda: Backend, name: str) -> None:
    codes = np.random.default_rng(0).integers(0, 256, 24 * data_type(name).item_size, np.uint8)
    x = codes.view(data_type(name).dtype).reshape(2, 3, 4)
    same(cuda, "Transpose", {"data": x}, perm=[2, 0, 1])
    same(cuda, "Reshape", {"data": x, "shape": [4, 6]})
    same(cuda, "Pad", {"data": x, "pads": [0, 1, 0, 1, 0, 2]}, mode="reflect")
    same(cuda, "Pad", {"data": x, "pads": [0, 1, 0, 1, 0, 2], "constant_value": [1]})
    same(cuda, "ConstantOfShape", {"input": [3, 5]}, value={"data_type": name, "shape": [1], "data": [1]})


def test_bfloat16_by_index(cuda: Backend) -> None:
    x: Any = np.arange(12).astype(data_type("bfloat16").dtype).reshape(3, 4)
    indices = np.array([[2, 0, 1, -1]])
    same(cuda, "Gather", {"data": x, "indices": indices})
    same(cuda, "GatherElements", {"data": x, "indices": indices})
    same(cuda, "GatherND", {"data": x, "indices": np.array([[1, 2], [0, -1]])})
    same(cuda, "ScatterElements", {"data": x, "indices": indices, "updates": x[:1]}, 18)
    same(cuda, "ScatterND", {"data": x, "indices": np.array([[1]]), "updates": x[:1]}, 18)
    same(cuda, "Trilu", {"input": x}, 14)
    same(cuda, "OneHot", {"indices": np.array([1, 3]), "depth": [4], "values": x[0, :2]}, 28)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("bfloat16", "float8_e8m0fnu")])
def test_quantization(cuda: Backend, name: str) -> None:
    opset = 28 if data_type(name).bits == 6 else 25
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32) * 8
    scale = np.array([0.5, 1, 2, 3, 0.25, 1.5], np.float32)
    zero = np.ones(6).astype(data_type(name).dtype)
    same(cuda, "QuantizeLinear", {"x": x, "y_scale": scale, "y_zero_point": zero}, opset)
    same(cuda, "DequantizeLinear", {"x": x.astype(zero.dtype), "x_scale": scale, "x_zero_point": zero}, opset)
    blocks = np.abs(x[:, ::2])
    same(cuda, "QuantizeLinear", {"x": x, "y_scale": blocks}, opset, block_size=2, output_dtype=name)

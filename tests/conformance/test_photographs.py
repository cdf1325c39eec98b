"""What `antialias` means, on scikit-image's photographs: against Pillow, PyTorch, ONNX Runtime and ONNX's reference.

The bounds are what docs/compat.md says of these very photographs, with pillow 13.0.0, torch 2.13.0 and onnxruntime.
A library that is not installed is skipped.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost.calls.resampling import Antialias, resampling
from tensorpost.onnx import OnnxNode
from tensorpost.values.operation import Operation
from tensorpost_server.operators import form_of

Array = NDArray[Any]
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "camera")
SIZES = ((224, 224), (100, 150), (60, 40))
EVERY = [(name, size) for name in PHOTOGRAPHS for size in SIZES]


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def photograph(name: str) -> Array:
    library("skimage")
    return np.asarray(getattr(importlib.import_module("skimage.data"), name)())


def run(operation: Operation, x: Array) -> Array:
    """Compute on NumPy, as a server would."""
    (slot,) = operation.outputs
    out = np.empty(slot.layout.sizes, x.dtype)
    form_of(operation).fill(np, [x], tuple((0, size) for size in slot.layout.sizes), out)  # pyright: ignore[reportArgumentType] # both kinds of operations have forms
    return out


def resampled(x: Array, size: tuple[int, int], antialias: Antialias) -> Array:
    plan = resampling(x, sizes=size, axes=(0, 1), antialias=antialias)
    return run(plan.operation, x.reshape(plan.sent_shape)).reshape(plan.output_shape)


def pillow(x: Array, size: tuple[int, int]) -> Array:
    image = library("PIL.Image")
    return np.asarray(image.fromarray(x).resize(size[::-1], image.Resampling.BILINEAR))


def torch_interpolate(x: Array, size: tuple[int, int]) -> Array:
    torch = library("torch")
    channels = np.ascontiguousarray(np.atleast_3d(x).transpose(2, 0, 1)[np.newaxis])
    y = torch.nn.functional.interpolate(torch.from_numpy(channels), size=size, mode="bilinear", antialias=True)
    return y[0].numpy().transpose(1, 2, 0).reshape(*size, *x.shape[2:])


def differences(one: Array, other: Array) -> Array:
    return np.abs(one.astype(np.float64) - other)


@pytest.mark.parametrize(("name", "size"), EVERY)
def test_true_is_the_filter_of_pillow(name: str, size: tuple[int, int]) -> None:
    x = photograph(name)
    found = differences(resampled(x, size, True), pillow(x, size))
    assert found.max() <= 1
    assert np.count_nonzero(found) / found.size < 0.004


@pytest.mark.parametrize(("name", "size"), EVERY)
def test_true_is_the_filter_of_torch(name: str, size: tuple[int, int]) -> None:
    x = photograph(name)
    assert differences(resampled(x, size, True), torch_interpolate(x, size)).max() <= 1
    floats = x.astype(np.float32)
    assert differences(resampled(floats, size, True), torch_interpolate(floats, size)).max() < 0.004


def test_directml_s_filter_is_another() -> None:
    largest = [differences(resampled(x, size, "directml"), pillow(x, size)).max() for x, size in every_photograph()]
    assert max(largest) == 67
    assert min(largest) > 10


def test_without_a_filter_the_difference_is_larger() -> None:
    assert max(differences(resampled(x, size, False), pillow(x, size)).max() for x, size in every_photograph()) == 189


def every_photograph() -> list[tuple[Array, tuple[int, int]]]:
    return [(photograph(name), size) for name, size in EVERY]


def resize_model(x: Array, size: tuple[int, int], exclude_outside: int) -> Any:
    onnx = library("onnx")
    helper, kinds = onnx.helper, {"float32": onnx.TensorProto.FLOAT, "uint8": onnx.TensorProto.UINT8}
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode="linear", antialias=1, exclude_outside=exclude_outside
    )
    kind = kinds[x.dtype.name]
    graph = helper.make_graph(
        [node],
        "resize",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [helper.make_tensor("sizes", onnx.TensorProto.INT64, [4], [1, 1, *size])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_onnx_resize_means_what_onnx_runtime_and_the_reference_compute(exclude_outside: int) -> None:
    size, x = (60, 40), photograph("camera").astype(np.float32)
    attributes = {"mode": "linear", "antialias": 1, "exclude_outside": exclude_outside}
    ours = run(OnnxNode.of("Resize", {"X": x, "sizes": size}, opset=19, **attributes), x)
    model, fed = resize_model(x[np.newaxis, np.newaxis], size, exclude_outside), {"x": x[np.newaxis, np.newaxis]}
    (reference,) = library("onnx.reference").ReferenceEvaluator(model).run(None, fed)
    (runtime,) = library("onnxruntime").InferenceSession(model.SerializeToString()).run(None, fed)
    assert differences(ours, reference[0, 0]).max() < 0.001
    assert differences(ours, runtime[0, 0]).max() < 0.001


@pytest.mark.parametrize(("exclude_outside", "largest"), [(0, 11), (1, 0)])
def test_onnx_s_antialias_alone_is_not_pillow_s(exclude_outside: int, largest: int) -> None:
    """Near the edges ONNX, and so ONNX Runtime, weighs the outermost elements more; `exclude_outside` ends that."""
    size, x = (60, 40), photograph("camera")
    (found,) = (
        library("onnxruntime")
        .InferenceSession(resize_model(x[np.newaxis, np.newaxis], size, exclude_outside).SerializeToString())
        .run(None, {"x": x[np.newaxis, np.newaxis]})
    )
    assert differences(found[0, 0], pillow(x, size)).max() == largest


def test_the_page_says_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compat.md").read_text("utf-8")
    assert "| `antialias=True` | ONNX Resize, antialias and exclude_outside | at most 1; 0.09% of elements |" in page
    assert '| `antialias="directml"` | RESAMPLE3 | at most 67; 67% of elements |' in page
    assert "| `antialias=False` | RESAMPLE2 | at most 189; 76% of elements |" in page

"""One request in three dialects: a DirectML descriptor, an ONNX node, and `tp.resample`.

Where `lower` says `exact`, the bytes are the same; where it says anything else, it must have a reason. The three ways
share no coordinate arithmetic: DirectML's is float32, ONNX's exact, and `resample` builds its descriptor by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.batches import each

from tensorpost.calls.resampling import resampling
from tensorpost.onnx import OnnxNode, Verdict, lower
from tensorpost_server.operators import form_of

SHAPES = [((1, 1, 4, 6), (1, 1, 8, 12)), ((1, 2, 8, 8), (1, 2, 4, 4)), ((5,), (10,)), ((2, 3, 4), (2, 6, 2))]
SCALES = [1.0, 2.0, 3.0, 0.5, 0.25, 1.5, 0.75, 0.3, 0.7, 1.7, 2.3]


def run(subject: Any, x: NDArray[Any]) -> NDArray[Any]:
    """Compute a descriptor's or node's whole output on NumPy."""
    if isinstance(subject, OnnxNode):
        shape, inputs = subject.output.shape, x
    else:
        shape, inputs = subject.output_tensor.sizes, x.reshape(subject.input_tensor.sizes)
    out = np.empty(shape, x.dtype)
    form_of(subject).fill(np, [inputs], tuple((0, size) for size in shape), out)
    return out


def pixels(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    values = np.random.default_rng(7).integers(0, 100, shape)
    return (values * (1.0 if dtype.endswith("int8") else 0.37)).astype(dtype)


@each("dtype", ["float32", "float16", "uint8", "int8"])
@each("shape, output", SHAPES)
@pytest.mark.parametrize(("mode", "nearest_mode"), [("linear", "floor"), ("nearest", "round_prefer_ceil")])
def test_by_sizes_all_three_agree(
    dtype: str, shape: tuple[int, ...], output: tuple[int, ...], mode: Any, nearest_mode: str
) -> None:
    x = pixels(shape, dtype)
    node = OnnxNode.of("Resize", {"X": x, "sizes": output}, opset=19, mode=mode, nearest_mode=nearest_mode)

    lowering = lower(node)
    friendly = resampling(x, sizes=output, mode=mode)

    assert lowering.verdict is Verdict.EXACT
    assert lowering.descriptor is not None
    expected = run(node, x)
    assert run(lowering.descriptor, x).tobytes() == expected.tobytes()
    assert run(friendly.desc, x).tobytes() == expected.tobytes()


@each("scale", SCALES)
@each("dtype", ["float32", "float16", "uint8"])
@each("coordinates", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("nearest_mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_exact_means_the_same_bytes(scale: float, dtype: str, coordinates: str, mode: str, nearest_mode: str) -> None:
    x = pixels((1, 2, 13, 31), dtype)
    node = OnnxNode.of(
        "Resize", {"X": x, "scales": [1.0, 1.0, scale, scale]}, opset=19,
        mode=mode, coordinate_transformation_mode=coordinates, nearest_mode=nearest_mode,
    )  # fmt: skip

    lowering = lower(node)

    assert lowering.reason
    if lowering.verdict is Verdict.EXACT:
        assert lowering.descriptor is not None
        assert run(lowering.descriptor, x).tobytes() == run(node, x).tobytes()


def test_both_verdicts_occur() -> None:
    """The test above would pass if `lower` never said `exact`."""
    x = pixels((1, 1, 13, 31), "float32")
    verdicts = {
        scale: lower(
            OnnxNode.of("Resize", {"X": x, "scales": [1.0, 1.0, scale, scale]}, opset=19, mode="linear")
        ).verdict
        for scale in SCALES
    }

    assert {scale for scale, verdict in verdicts.items() if verdict is Verdict.EXACT} == {1, 2, 0.5, 0.25}

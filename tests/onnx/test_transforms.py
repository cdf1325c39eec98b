"""DFT and STFT beside the sums that define them; BitCast beside NumPy's views."""

from __future__ import annotations

import cmath
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.onnx_nodes import compute

from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidDescriptor

RNG = np.random.default_rng(0)


def run(op_type: str, inputs: dict[str, Any], opset: int, **attributes: Any) -> NDArray[Any]:
    node = OnnxNode.of(op_type, inputs, opset=opset, **attributes)
    (found,) = compute(node, {name: inputs[name] for name, _ in node.tensors}, slice_bytes=64)
    assert found.shape == node.output.shape
    return found


def sums(line: list[complex], length: int, *, inverse: bool = False) -> list[complex]:
    """The transform of a line, cut or filled with zeros, by its definition."""
    line = (line + [0j] * length)[:length]
    sign = 2j if inverse else -2j
    made = [
        sum(x * cmath.exp(sign * cmath.pi * k * n / length) for n, x in enumerate(line)) for k in range(length)
    ]  # fmt: skip
    return [each / length for each in made] if inverse else made


def parts(numbers: list[complex]) -> list[list[float]]:
    return [[each.real, each.imag] for each in numbers]


@pytest.mark.parametrize("length", [1, 4, 5, 7])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("complex_input", [True, False])
@pytest.mark.parametrize("opset", [17, 20])
def test_transform(length: int, inverse: int, complex_input: bool, opset: int) -> None:
    x = RNG.standard_normal((2, 5, 2 if complex_input else 1))
    given = {"axis": 1} if opset == 17 else {}
    inputs = {"input": x, "dft_length": [length]} | ({"axis": [1]} if opset == 20 else {})
    found = run("DFT", inputs, opset, inverse=inverse, **given)
    for line, made in zip(x, found, strict=True):
        wanted = sums([complex(*entry) for entry in line.tolist()], length, inverse=bool(inverse))
        np.testing.assert_allclose(made, parts(wanted), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [4, 5])
def test_half_a_spectrum_and_back(length: int) -> None:
    x = RNG.standard_normal((3, length, 1))
    found = run("DFT", {"input": x}, 20, onesided=1)
    for line, made in zip(x, found, strict=True):
        wanted = sums([complex(entry) for (entry,) in line.tolist()], length)[: length // 2 + 1]
        np.testing.assert_allclose(made, parts(wanted), rtol=1e-12, atol=1e-12)
    again = run("DFT", {"input": found, "dft_length": [length]}, 20, onesided=1, inverse=1)
    np.testing.assert_allclose(again, x, rtol=1e-12, atol=1e-12)
    assert run("DFT", {"input": found}, 20, onesided=1, inverse=1).shape == (3, 2 * (found.shape[1] - 1), 1)


@pytest.mark.parametrize("axis", [0, 2, -4])
def test_any_axis_but_the_last(axis: int) -> None:
    x = RNG.standard_normal((3, 4, 5, 2))
    numbers = x[..., 0] + 1j * x[..., 1]
    wanted = np.fft.fft(numbers, axis=axis if axis >= 0 else axis + 1)
    found = run("DFT", {"input": x, "axis": [axis]}, 20)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rounded_once(dtype: Any) -> None:
    x = RNG.standard_normal((1, 6, 2)).astype(dtype)
    found = run("DFT", {"input": x, "axis": [1]}, 20)
    wanted = np.fft.fft(x[..., 0].astype(np.float64) + 1j * x[..., 1].astype(np.float64))
    np.testing.assert_array_equal(found, np.stack([wanted.real, wanted.imag], -1).astype(dtype), strict=True)


@pytest.mark.parametrize("window", [None, [0.5, 1, 2]])
@pytest.mark.parametrize("onesided", [0, 1])
def test_frames(window: list[float] | None, onesided: int) -> None:
    signal = RNG.standard_normal((2, 10, 1))
    inputs: dict[str, Any] = {"signal": signal, "frame_step": [2]}
    inputs |= {"frame_length": [3]} if window is None else {"window": np.array(window)}
    found = run("STFT", inputs, 17, onesided=onesided)
    assert found.shape == (2, 4, 2 if onesided else 3, 2)
    for entry, frames in zip(signal, found, strict=True):
        for at, made in enumerate(frames):
            taken = entry[2 * at : 2 * at + 3, 0].tolist()
            frame = [complex(x) * w for x, w in zip(taken, window or [1] * 3, strict=True)]
            np.testing.assert_allclose(made, parts(sums(frame, 3))[: len(made)], rtol=1e-12, atol=1e-12)


def test_frames_of_a_complex_signal() -> None:
    signal = RNG.standard_normal((1, 4, 2))
    found = run("STFT", {"signal": signal, "frame_step": [4]}, 17, onesided=0)
    np.testing.assert_allclose(found[0, 0], parts(sums([complex(*x) for x in signal[0].tolist()], 4)), atol=1e-12)


X = np.zeros((2, 5, 1))


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "says"),
    [
        ("DFT", {"input": np.zeros((2, 5, 3))}, {}, "takes real numbers"),
        ("DFT", {"input": np.zeros(2)}, {}, "takes real numbers"),
        ("DFT", {"input": X, "axis": [2]}, {}, "of which nothing is transformed"),
        ("DFT", {"input": X, "axis": [-1]}, {}, "of which nothing is transformed"),
        ("DFT", {"input": X, "dft_length": [0]}, {}, "is none"),
        ("DFT", {"input": X}, {"onesided": 1, "inverse": 1}, "takes complex numbers"),
        ("DFT", {"input": np.zeros((2, 5, 2))}, {"onesided": 1}, "takes real numbers"),
        ("STFT", {"signal": np.zeros((2, 5, 2)), "frame_step": [1]}, {}, "set onesided=0"),
        ("STFT", {"signal": X, "frame_step": [0]}, {}, "there are no frames"),
        ("STFT", {"signal": X, "frame_step": [1], "frame_length": [6]}, {}, "there are no frames of 6"),
        ("STFT", {"signal": X, "frame_step": [1], "window": np.ones(3), "frame_length": [4]}, {}, "frame_length is 4"),
        ("SwiGLU", {"A": X, "B": X[:1]}, {}, "does not broadcast"),
        ("BitCast", {"input": X}, {"to": 1}, "double has 64 bits and float 32"),
        ("BitCast", {"input": np.zeros(2, np.int8)}, {"to": "int4"}, "int8 has 8 bits and int4 4"),
    ],
)  # fmt: skip
def test_what_is_refused(op_type: str, inputs: dict[str, Any], attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidDescriptor, match=says):
        OnnxNode.of(op_type, inputs, opset=28, **attributes)


@pytest.mark.parametrize(
    ("source", "target"),
    [(np.float32, np.int32), (np.float64, np.uint64), (np.complex64, np.int64), (np.float16, ml_dtypes.bfloat16),
     (np.uint8, ml_dtypes.float8_e4m3fn), (ml_dtypes.float8_e5m2, np.int8), (ml_dtypes.int4, ml_dtypes.float4_e2m1fn),
     (ml_dtypes.uint2, ml_dtypes.int2), (np.int32, np.int32)],
)  # fmt: skip
def test_bits_of_another_type(source: Any, target: Any) -> None:
    most = {"int4": 16, "uint2": 4}.get(np.dtype(source).name, 256)
    x = RNG.integers(0, most, (2, 3, np.dtype(source).itemsize)).astype(np.uint8).view(source)[..., 0]
    found = run("BitCast", {"input": x}, 26, to=np.dtype(target))
    assert (found.dtype, found.tobytes()) == (np.dtype(target), x.tobytes())

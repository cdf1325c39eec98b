"""Filters of 8-bit integers as float32 products: every byte as in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import pytest

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.forms import onnx_resize
from tensorpost_server.forms.byte_filters import filter_axis
from tensorpost_server.forms.onnx_axes import FilterMap
from tensorpost_server.forms.onnx_resize import OnnxResize
from tensorpost_server.forms.separable import Separable
from tensorpost_server.operators.registry import form_of


def resize(shape: tuple[int, ...], sizes: tuple[int, ...], data_type: str, **attributes: Any) -> OnnxResize:
    document = {
        "op_type": "Resize",
        "opset": 19,
        "inputs": {"X": OnnxTensor(data_type, shape).to_json(), "sizes": list(sizes)},
        "attributes": {"axes": [0, 1], "mode": "linear", "antialias": 1, "exclude_outside": 1, **attributes},
    }
    form = form_of(OnnxNode.from_json(document))
    assert isinstance(form, OnnxResize)
    return form


def triangle(line: list[int], outputs: int) -> list[int]:
    """Pillow's BILINEAR along one line, in exact arithmetic: a triangle over the centre, ties away from zero."""
    scale = Fraction(len(line), outputs)
    found: list[int] = []
    for output in range(outputs):
        centre = (output + Fraction(1, 2)) * scale - Fraction(1, 2)
        near = range(max(0, ceil(centre - scale)), min(len(line) - 1, floor(centre + scale)) + 1)
        weights = [1 - abs(place - centre) / scale for place in near]
        mean = sum(w * line[place] for w, place in zip(weights, near, strict=True)) / sum(weights)
        found.append(floor(mean + Fraction(1, 2)) if mean >= 0 else -floor(-mean + Fraction(1, 2)))
    return found


@pytest.mark.parametrize("data_type", ["uint8", "int8"])
@pytest.mark.parametrize(("length", "outputs"), [(96, 48), (96, 16), (101, 27), (300, 11), (70, 60)])
def test_every_byte_is_that_of_exact_arithmetic(data_type: str, length: int, outputs: int) -> None:
    """2 to 1 and 6 to 1 have many ties; the others have sums near to ties only."""
    limits = np.iinfo(data_type)
    rng = np.random.default_rng(length)
    x = rng.integers(limits.min, limits.max + 1, (9, length, 11)).astype(data_type)
    mapping = resize((length, 4), (outputs, 2), data_type).axes[0]
    assert isinstance(mapping, FilterMap)

    found = filter_axis(x, 1, mapping, (0, outputs), 0)

    expected = [[triangle(x[i, :, k].tolist(), outputs) for k in range(11)] for i in range(9)]
    np.testing.assert_array_equal(found, np.moveaxis(np.array(expected), 1, 2))


@pytest.mark.parametrize("attributes", [{}, {"exclude_outside": 0}, {"mode": "cubic", "cubic_coeff_a": -0.5}])
@pytest.mark.parametrize("data_type", ["uint8", "int8"])
def test_pictures_have_the_bytes_of_sums_in_float64(
    monkeypatch: pytest.MonkeyPatch, data_type: str, attributes: dict[str, Any]
) -> None:
    limits = np.iinfo(data_type)
    x = np.random.default_rng(5).integers(limits.min, limits.max + 1, (520, 400, 3)).astype(data_type)
    form = resize((520, 400, 3), (50, 60), data_type, **attributes)
    whole, box = ((0, 50), (0, 60), (0, 3)), ((7, 50), (0, 41), (1, 3))
    expected = np.empty((50, 60, 3), x.dtype)
    Separable(form.axes, "float64", round_axis=onnx_resize._round).fill(np, [x], whole, expected)  # pyright: ignore[reportPrivateUsage]
    calls: list[int] = []

    def counted(*args: Any) -> Any:
        calls.append(1)
        return filter_axis(*args)

    monkeypatch.setattr(onnx_resize, "filter_axis", counted)
    monkeypatch.setattr(onnx_resize, "_FEWEST", 1)
    for most in (1 << 23, 1 << 16):
        monkeypatch.setattr(onnx_resize, "_MOST", most)
        for part in (whole, box):
            made = np.empty([stop - start for start, stop in part], x.dtype)
            form.fill(np, [x], part, made)
            np.testing.assert_array_equal(made, expected[tuple([slice(*span) for span in part])])
    assert len(calls) > 4, "halves were filtered one by one"

"""`compat`: what each function sends, and what it refuses. Needs none of the libraries.

Expected numbers are by hand, or facts of the public web-platform-tests of WebNN (input, options and output only). The
libraries themselves are asked in tests/conformance/test_compat_libraries.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost.compat import opencv_resize, pillow_resize, scipy_zoom, torch_interpolate, webnn_resample2d
from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, Resample2OperatorDesc
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.values.problems import InvalidParameter
from tensorpost_server.operators import form_of


def run(subject: OperatorDesc | OnnxNode, x: NDArray[Any]) -> NDArray[Any]:
    """Compute on NumPy, as a server would."""
    shape = subject.output.shape if isinstance(subject, OnnxNode) else subject.outputs[0].layout.sizes
    out = np.empty(shape, x.dtype)
    form_of(subject).fill(np, [x], tuple((0, size) for size in shape), out)
    return out


def zeros(*shape: int, dtype: str = "float32") -> NDArray[Any]:
    return np.zeros(shape, dtype)


def numbers(desc: OperatorDesc | OnnxNode) -> dict[str, Any]:
    """The fields of a RESAMPLE2 that say what is read."""
    assert isinstance(desc, Resample2OperatorDesc)
    fields = desc.to_document()["desc"]
    names = ("InterpolationMode", "RoundingDirection", "Scales", "InputPixelOffsets", "OutputPixelOffsets")
    return {name: fields[name] for name in names}


def resize(node: OperatorDesc | OnnxNode, *names: str) -> dict[str, Any]:
    """The attributes of an ONNX Resize-19."""
    assert isinstance(node, OnnxNode)
    assert node.schema.name == "Resize-19"
    return {name: node.attribute(name) for name in names}


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_torch_nearest_reads_the_upper_left() -> None:
    assert numbers(torch_interpolate(zeros(1, 1, 4, 6), (8, 3))) == {
        "InterpolationMode": "NEAREST_NEIGHBOR", "RoundingDirection": "DECREASING",
        "Scales": [1, 1, 2, 0.5], "InputPixelOffsets": [0.5, 0.5, 0, 0], "OutputPixelOffsets": [-0.5, -0.5, 0, 0],
    }  # fmt: skip
    x = np.arange(4, dtype=np.float32)[None, None]
    assert run(torch_interpolate(x, 6), x).ravel().tolist() == [0, 0, 1, 2, 2, 3]  # floor(o * 4 / 6)
    assert run(torch_interpolate(x, 2), x).ravel().tolist() == [0, 2]


def test_torch_nearest_exact_reads_the_centre() -> None:
    assert numbers(torch_interpolate(zeros(1, 1, 6), scale_factor=0.5, mode="nearest-exact")) == {
        "InterpolationMode": "NEAREST_NEIGHBOR", "RoundingDirection": "DECREASING",
        "Scales": [1, 1, 0.5], "InputPixelOffsets": [0.5, 0.5, 0], "OutputPixelOffsets": [-0.5, -0.5, -0.5],
    }  # fmt: skip
    x = np.arange(6, dtype=np.float32)[None, None]
    assert run(torch_interpolate(x, 3, mode="nearest-exact"), x).ravel().tolist() == [1, 3, 5]


def test_torch_bilinear() -> None:
    half_pixel = numbers(torch_interpolate(zeros(1, 1, 4, 6), (8, 9), mode="bilinear"))
    assert half_pixel == {
        "InterpolationMode": "LINEAR", "RoundingDirection": "DECREASING",
        "Scales": [1, 1, 2, 1.5], "InputPixelOffsets": [0.5] * 4, "OutputPixelOffsets": [-0.5] * 4,
    }  # fmt: skip
    corners = numbers(torch_interpolate(zeros(1, 1, 4, 6), (7, 11), mode="bilinear", align_corners=True))
    assert (corners["Scales"], corners["InputPixelOffsets"][2:]) == ([1, 1, 2, 2], [0, 0])
    x = np.array([10, 20, 30, 40], np.float32)[None, None]
    aligned = run(torch_interpolate(x, 7, mode="linear", align_corners=True), x)
    assert aligned.ravel().tolist() == [10, 15, 20, 25, 30, 35, 40]
    one = run(torch_interpolate(x, 1, mode="linear", align_corners=True), x)
    assert one.ravel().tolist() == [10]


def test_torch_scale_factor_is_the_scale_unless_recomputed() -> None:
    x = zeros(1, 1, 5)
    assert numbers(torch_interpolate(x, scale_factor=1.5, mode="linear"))["Scales"] == [1, 1, 1.5]
    recomputed = torch_interpolate(x, scale_factor=1.5, mode="linear", recompute_scale_factor=True)
    assert numbers(recomputed)["Scales"] == [1, 1, 1.4]  # 7 / 5
    assert numbers(torch_interpolate(x, scale_factor=1.1, mode="linear"))["Scales"] == [1, 1, 1]  # 5 stays 5: a copy


def test_torch_cubic_and_filters() -> None:
    names = ("mode", "cubic_coeff_a", "antialias", "exclude_outside", "coordinate_transformation_mode")
    x = zeros(1, 1, 4, 6)
    assert resize(torch_interpolate(x, 3, mode="bicubic"), *names) == dict(
        zip(names, ("cubic", -0.75, 0, 0, "half_pixel"), strict=True)
    )
    assert resize(torch_interpolate(x, 3, mode="bicubic", align_corners=True), *names[-1:]) == {
        names[-1]: "align_corners"
    }
    assert resize(torch_interpolate(x, 3, mode="bicubic", antialias=True), *names) == dict(
        zip(names, ("cubic", -0.5, 1, 1, "half_pixel"), strict=True)
    )
    assert resize(torch_interpolate(x, 3, mode="bilinear", antialias=True), *names[2:4]) == {
        "antialias": 1, "exclude_outside": 1,
    }  # fmt: skip


def test_torch_uint8_rounds_after_each_axis_where_onnx_can() -> None:
    x = zeros(1, 3, 4, 6, dtype="uint8")
    assert resize(torch_interpolate(x, 8, mode="bilinear"), "mode", "antialias") == {"mode": "linear", "antialias": 1}
    assert resize(torch_interpolate(x, 8, mode="bicubic"), "mode", "antialias") == {"mode": "cubic", "antialias": 1}
    assert numbers(torch_interpolate(x, 3, mode="bilinear"))["InterpolationMode"] == "LINEAR"
    # enlarged by 3/2: 0, 2/3 * 50 + 1/3 * 100 = 66.67 and so on; rounded, not truncated
    row = np.array([50, 100], np.uint8)[None, None, None]
    assert run(torch_interpolate(row, (1, 4), mode="bilinear"), row).ravel().tolist() == [50, 63, 88, 100]


@pytest.mark.parametrize(
    ("x", "mode"),
    [
        (OnnxTensor("float64", (1, 1, 4)), "nearest"),
        (OnnxTensor("bfloat16", (1, 1, 4)), "linear"),
        (OnnxTensor("int64", (1, 1, 4)), "nearest-exact"),
        (OnnxTensor("float32", (1, 1, 4, 4, 4)), "nearest"),
        (OnnxTensor("float32", (1, 1, 4, 4, 4)), "trilinear"),
    ],
)
def test_torch_beyond_directml_is_onnx(x: OnnxTensor, mode: str) -> None:
    assert isinstance(torch_interpolate(x, 7, mode=mode), OnnxNode)


def test_opencv() -> None:
    x = zeros(4, 6, 3, dtype="uint8")
    assert numbers(opencv_resize(x, (3, 8), interpolation="INTER_NEAREST")) == {
        "InterpolationMode": "NEAREST_NEIGHBOR", "RoundingDirection": "DECREASING",
        "Scales": [2, 0.5, 1], "InputPixelOffsets": [0, 0, 0.5], "OutputPixelOffsets": [0, 0, -0.5],
    }  # fmt: skip
    exact = numbers(opencv_resize(x, (3, 8), interpolation=6))
    assert (exact["InputPixelOffsets"], exact["OutputPixelOffsets"]) == ([0, 0, 0.5], [-0.5, -0.5, -0.5])
    linear = opencv_resize(x, (3, 8))
    assert resize(linear, "mode", "coordinate_transformation_mode", "antialias") == {
        "mode": "linear", "coordinate_transformation_mode": "half_pixel", "antialias": 0,
    }  # fmt: skip
    assert isinstance(linear, OnnxNode)
    assert linear.value("sizes") == (8, 3, 3)
    assert resize(opencv_resize(x, (3, 8), interpolation=2), "mode", "cubic_coeff_a") == {
        "mode": "cubic", "cubic_coeff_a": -0.75,
    }  # fmt: skip


def test_opencv_factors_round_halves_to_even() -> None:
    x = zeros(9, 7)
    nearest = opencv_resize(x, fx=0.5, fy=0.5, interpolation=0)  # 4.5 and 3.5
    assert isinstance(nearest, Resample2OperatorDesc)
    assert nearest.output_tensor.sizes == (4, 4)
    assert nearest.scales == (0.5, 0.5)
    down = opencv_resize(zeros(9, 9), fx=0.5, fy=0.5)  # 4 and 4: ONNX has the same size
    assert isinstance(down, OnnxNode)
    assert down.value("scales") == (0.5, 0.5)
    up = opencv_resize(x, fx=0.5, fy=0.5)  # 4 columns of 7 * 0.5: ONNX would have 3
    assert isinstance(up, Resample2OperatorDesc)
    assert up.output_tensor.sizes == (4, 4)
    exact = opencv_resize(x, fx=0.5, fy=0.5, interpolation=6)  # INTER_NEAREST_EXACT goes by the sizes
    assert numbers(exact)["Scales"] == pytest.approx([4 / 9, 4 / 7])
    assert numbers(opencv_resize(x, fx=1.05, fy=1.05, interpolation=0))["Scales"] == [1, 1]  # a copy


def test_pillow() -> None:
    x = zeros(4, 6, 3, dtype="uint8")
    assert numbers(pillow_resize(x, (3, 8), "NEAREST"))["OutputPixelOffsets"] == [-0.5, -0.5, -0.5]
    names = ("mode", "cubic_coeff_a", "antialias", "exclude_outside")
    cubic = pillow_resize(x, (3, 8))
    assert resize(cubic, *names) == dict(zip(names, ("cubic", -0.5, 1, 1), strict=True))
    assert isinstance(cubic, OnnxNode)
    assert cubic.output.shape == (8, 3, 3)
    assert resize(pillow_resize(x, (3, 8), 2), "mode", "antialias") == {"mode": "linear", "antialias": 1}
    assert resize(pillow_resize(zeros(4, 6, dtype="bool"), (3, 8)), "mode") == {"mode": "nearest"}
    assert isinstance(pillow_resize(zeros(4, 6, 4, dtype="uint8"), (3, 8), premultiplied=True), OnnxNode)


def test_scipy() -> None:
    x = zeros(4, 5)
    corners = numbers(scipy_zoom(x, (1.75, 1), order=0))
    # Halves are rounded up: 0.5 is taken from InputPixelOffset.
    assert (corners["Scales"], corners["InputPixelOffsets"]) == ([2, 1], [-0.5, 0.5])
    grid = numbers(scipy_zoom(x, (2, 1), order=0, grid_mode=True, mode="nearest"))
    assert (grid["Scales"], grid["InputPixelOffsets"], grid["OutputPixelOffsets"]) == ([2, 1], [0, 0.5], [-0.5, -0.5])
    assert resize(scipy_zoom(x, 2, order=1), "coordinate_transformation_mode") == {
        "coordinate_transformation_mode": "align_corners"
    }
    half_up = scipy_zoom(x, 0.5, order=1)
    assert isinstance(half_up, OnnxNode)
    assert half_up.output.shape == (2, 2)  # 2.5 is rounded to even
    assert isinstance(scipy_zoom(zeros(2, 2, 2, 2, 2), 2, order=0), OnnxNode)
    row = np.array([0, 10, 20, 30])
    assert run(scipy_zoom(row, 1.75, order=0), row).tolist() == [0, 10, 10, 20, 20, 30, 30]
    assert run(scipy_zoom(row, 1.75, order=1), row).tolist() == [0, 5, 10, 15, 20, 25, 30]


def test_every_way_to_describe_x() -> None:
    array = zeros(1, 1, 4, 6)
    described = BufferTensorDesc(data_type="FLOAT32", sizes=(1, 1, 4, 6))
    tensor = OnnxTensor("float32", (1, 1, 4, 6))
    one, two, three = (torch_interpolate(x, (8, 3), mode="bilinear") for x in (array, described, tensor))
    assert one == two == three


def test_long_axes_that_float32_would_miss_are_onnx() -> None:
    x = OnnxTensor("uint8", (1, 1, 4999))
    node = torch_interpolate(x, 3001, mode="nearest-exact")
    assert resize(node, "nearest_mode") == {"nearest_mode": "round_prefer_ceil"}


def test_factors_of_onnx_keep_their_elements() -> None:
    # float32(0.1) is a little more than 1/10, so o / 0.1 falls short of 10 * o; the float32 below it does not.
    x = np.arange(105)
    node = torch_interpolate(x[None, None], scale_factor=0.1)
    assert isinstance(node, OnnxNode)
    assert run(node, x[None, None]).ravel().tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    # float32(0.7) is a little less than 7/10, and 10 elements would become 6.
    cubic = torch_interpolate(zeros(1, 1, 5, 10), scale_factor=0.7, mode="bicubic")
    assert isinstance(cubic, OnnxNode)
    assert cubic.output.shape == (1, 1, 3, 7)


# ---- WebNN -----------------------------------------------------------------------------------------------------------

# Facts of web-platform-tests, webnn/conformance_tests/resample2d-nearest-half-pixel.https.any.js
TWELVE = list(range(1, 13))


@pytest.mark.parametrize(
    ("values", "shape", "options", "result", "result_shape"),
    [
        ([10, 20, 30], (1, 1, 1, 3), {"scales": (1, 1.5)}, [10, 20, 20, 30], (1, 1, 1, 4)),
        ([10, 20, 30, 40], (1, 1, 1, 4), {"scales": (1, 0.75)}, [10, 20, 40], (1, 1, 1, 3)),
        ([10, 20, 30, 40, 50], (1, 1, 1, 5), {"sizes": (1, 2)}, [20, 40], (1, 1, 1, 2)),
        ([10, 20], (1, 1, 1, 2), {"sizes": (1, 3)}, [10, 10, 20], (1, 1, 1, 3)),
        ([10, 20, 30], (1, 1, 1, 3), {"sizes": (1, 1)}, [20], (1, 1, 1, 1)),
        ([10], (1, 1, 1, 1), {"sizes": (1, 4)}, [10, 10, 10, 10], (1, 1, 1, 4)),
        (
            TWELVE, (1, 2, 3, 2), {"axes": (1, 2), "sizes": (3, 4), "scales": (99, 99)},
            [1, 2, 3, 4, 3, 4, 5, 6, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8, 9, 10, 9, 10, 11, 12], (1, 3, 4, 2),
        ),
        (
            TWELVE, (1, 2, 3, 2), {"axes": (3, 2), "sizes": (3, 4)},
            [1, 1, 2, 3, 3, 4, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 10, 9, 9, 10, 11, 11, 12], (1, 2, 4, 3),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_webnn_nearest(
    values: list[int], shape: tuple[int, ...], options: dict[str, Any], result: list[int],
    result_shape: tuple[int, ...], dtype: str,
) -> None:  # fmt: skip
    x = np.array(values, dtype).reshape(shape)
    subject = webnn_resample2d(x, **options)
    got = run(subject, x)
    assert got.shape == result_shape
    assert got.ravel().tolist() == result


def test_webnn_linear() -> None:
    # The example of the specification: rows 0 0 12 12 and columns 0 1 2 3 added, twice as large.
    x = np.array([[0, 1, 2, 3], [0, 1, 2, 3], [12, 13, 14, 15], [12, 13, 14, 15]], np.float32)[None, None]
    columns = np.array([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])
    rows = np.array([0, 0, 0, 3, 9, 12, 12, 12])
    got = run(webnn_resample2d(x, mode="linear", scales=(2, 2)), x)
    assert got[0, 0].tolist() == (rows[:, None] + columns).tolist()


def test_webnn_nearest_rounds_halves_down_for_every_pair_of_small_sizes() -> None:
    for size in range(1, 30):
        x = np.arange(size, dtype=np.uint8)[None, None, None]
        for length in range(1, 30):
            # ceil(clamp(x) - 0.5) with x = ((2 * o + 1) * size - length) / (2 * length), in whole numbers
            want = [max(0, -((2 * length - (2 * o + 1) * size) // (2 * length))) for o in range(length)]
            assert run(webnn_resample2d(x, sizes=(1, length)), x).ravel().tolist() == want, (size, length)


# ---- refusals --------------------------------------------------------------------------------------------------------

IMAGE, BATCH = zeros(4, 6, 3, dtype="uint8"), zeros(1, 3, 4, 6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: torch_interpolate(BATCH, 2, mode="area"), "averages whole blocks"),
        (lambda: torch_interpolate(BATCH, 2, mode="biliner"), "Did you mean 'bilinear'"),
        (lambda: torch_interpolate(BATCH, 2, mode="linear"), "mode='linear' takes 3 dimensions"),
        (lambda: torch_interpolate(zeros(3, 3), 2), "takes 3, 4 or 5 dimensions"),
        (lambda: torch_interpolate(BATCH), "exactly one of size and scale_factor must be given, but neither is"),
        (lambda: torch_interpolate(BATCH, 2, 2), "but both are"),
        (lambda: torch_interpolate(BATCH, (2, 2, 2)), "size has 3 entries; it must have 2"),
        (lambda: torch_interpolate(BATCH, 0), "size is 0; it must be a whole number of at least 1"),
        (lambda: torch_interpolate(BATCH, 2.5), "size is 2.5; it must be a whole number of at least 1"),  # pyright: ignore[reportArgumentType] # the mistake
        (lambda: torch_interpolate(BATCH, True), "size is True; it must be a whole number"),
        (lambda: torch_interpolate(BATCH, scale_factor="2"), "scale_factor is '2'; it must be a number"),  # pyright: ignore[reportArgumentType] # the mistake
        (lambda: torch_interpolate(BATCH, scale_factor=0.1), "leaves nothing of 4 elements"),
        (lambda: torch_interpolate(BATCH, scale_factor=-1), "must be a number above 0"),
        (lambda: torch_interpolate(BATCH, 2, align_corners=False), "align_corners is for linear"),
        (lambda: torch_interpolate(BATCH, 2, antialias=True), "antialias is for 'bilinear' and 'bicubic'"),
        (lambda: torch_interpolate(BATCH, 2, mode="bilinear", align_corners=True, antialias=True), "use align_"),
        (lambda: torch_interpolate(BATCH, 2, recompute_scale_factor=True), "needs scale_factor"),
        (lambda: torch_interpolate(zeros(1, 1, 4, dtype="uint8"), 8, mode="linear"), "no 'linear' of uint8"),
        (lambda: torch_interpolate(zeros(1, 1, 4, dtype="int32"), 8, mode="linear"), "no 'linear' of int32"),
        (lambda: torch_interpolate(zeros(1, 1, 4, 4, dtype="uint8"), 2, mode="bicubic"), "convert x to float32 first"),
        (lambda: torch_interpolate(zeros(1, 0, 4), 2), "there is nothing to resize"),
        (lambda: torch_interpolate([[[1.0]]], 2), "tensor.numpy()"),  # pyright: ignore[reportArgumentType] # the mistake
        (lambda: opencv_resize(IMAGE), "fy is 0.0; give dsize"),
        (lambda: opencv_resize(IMAGE, fx=2), "fy is 0.0"),
        (lambda: opencv_resize(IMAGE, (0, 3)), "dsize[0] is 0; it must be a whole number of at least 1"),
        (lambda: opencv_resize(IMAGE, fx=0.01, fy=1), "leaves nothing of 6 elements"),
        (lambda: opencv_resize(IMAGE, (2, 2), interpolation=3), "INTER_AREA averages areas"),
        (lambda: opencv_resize(IMAGE, (2, 2), interpolation="INTER_LANCZOS4"), "8 taps"),
        (lambda: opencv_resize(IMAGE, (2, 2), interpolation="INTER_LINAER"), "Did you mean 'INTER_LINEAR'"),
        (lambda: opencv_resize(IMAGE, (2, 2), interpolation=9), "interpolation is 9; it must be one of 0 (INTER_"),
        (lambda: opencv_resize(zeros(1, 2, 3, 4), (2, 2)), "H, W or H, W, C"),
        (lambda: opencv_resize(zeros(4, 4, dtype="int32"), (2, 2)), "no INTER_LINEAR of int32"),
        (lambda: opencv_resize(zeros(7, 7, dtype="float64"), fx=0.5, fy=0.5), "give the size in place of the factor"),
        (lambda: pillow_resize(IMAGE, (2, 2), "LANCZOS"), "Pillow's LANCZOS filter"),
        (lambda: pillow_resize(IMAGE, (2, 2), 4), "Pillow's BOX filter"),
        (lambda: pillow_resize(IMAGE, (2, 2), "BILINAER"), "Did you mean 'BILINEAR'"),
        (lambda: pillow_resize(zeros(4, 4, 4, dtype="uint8"), (2, 2)), "image.convert('RGBa')"),
        (lambda: pillow_resize(zeros(4, 4, 2, dtype="uint8"), (2, 2), "BILINEAR"), "say premultiplied=True too"),
        (lambda: pillow_resize(zeros(4, 4, dtype="float64"), (2, 2)), "no images of float64"),
        (lambda: pillow_resize(zeros(4, 4, 3), (2, 2)), "several channels are always uint8"),
        (lambda: pillow_resize(zeros(4), (2, 2)), "an image is H, W or H, W, C"),
        (lambda: scipy_zoom(zeros(4, 4), 2, order=3), "a spline above order 1"),
        (lambda: scipy_zoom(zeros(4, 4), (2, 2, 2), order=1), "zoom has 3 entries; it must have 2"),
        (lambda: scipy_zoom(zeros(4, 4), 0.1, order=1), "leaves nothing of 4 elements"),
        (lambda: scipy_zoom(zeros(4, 4), float("nan"), order=1), "zoom[0] is nan"),
        (lambda: scipy_zoom(zeros(4, 4), 2, order=1, mode="edge"), "it must be one of nearest"),
        (lambda: scipy_zoom(zeros(4, 4), 2, order=1, grid_mode=True), "mode='constant' does not repeat the edge"),
        (lambda: scipy_zoom(zeros(4, 4, dtype="float16"), 2, order=0), "SciPy does not zoom float16"),
        (lambda: scipy_zoom(zeros(4, 4, dtype="bool"), 2, order=1), "use order 0"),
        (lambda: webnn_resample2d(zeros(4, 4)), "takes 4 dimensions; x has 2"),
        (lambda: webnn_resample2d(zeros(1, 1, 4, 4, dtype="float64")), "not float64"),
        (lambda: webnn_resample2d(BATCH, mode="nearest"), "Did you mean 'nearest-neighbor'"),
        (lambda: webnn_resample2d(BATCH, axes=(2, 2)), "two different ones"),
        (lambda: webnn_resample2d(BATCH, axes=(2, 4)), "two different ones"),
        (lambda: webnn_resample2d(BATCH, sizes=(1, 2, 3)), "sizes has 3 entries; it must have 2"),
        (lambda: webnn_resample2d(BATCH, scales=(0.1, 1)), "leaves nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        call()
    assert said in caught.value.detail

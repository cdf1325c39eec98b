"""ONNX Runtime's CPU provider as a peer: a grid of cases, each equal or covered by a named deviation.

The deviations stand in `onnxruntime-deviations.txt` with their reasons; which cases they cover is said here. A case
that a deviation covers may still agree. One that no deviation covers must.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.onnx_oracle import Request

from tensorpost.onnx import OnnxNode, Resizing
from tensorpost_server.operators import form_of

DEVIATIONS = Path(__file__).with_name("onnxruntime-deviations.txt")
MISSING = next(
    (
        f"the package {name} is not installed; it has no wheel for every Python"
        for name in ("onnx", "onnxruntime")
        if importlib.util.find_spec(name) is None
    ),
    None,
)
PLAIN = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
CROP = "tf_crop_and_resize"
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Case:
    """One node with a seed for its data."""

    op_type: str
    opset: int
    dtype: str
    shape: tuple[int, ...]
    inputs: dict[str, Any] = field(hash=False)
    attributes: dict[str, Any] = field(hash=False)

    @property
    def mode(self) -> str:
        return self.attributes.get("mode", "nearest")

    @property
    def crops(self) -> bool:
        return self.attributes.get("coordinate_transformation_mode") == CROP

    def data(self) -> NDArray[Any]:
        seed = int.from_bytes(repr(self).encode()[-8:])
        low = 0 if np.dtype(self.dtype).kind in "ub" else -100
        high = 2 if self.dtype == "bool" else 100
        return np.random.default_rng(seed).integers(low, high, self.shape).astype(self.dtype)

    def node(self) -> OnnxNode:
        name = "input" if self.op_type == "Tile" else "X"
        return OnnxNode(self.op_type, {name: self.data(), **self.inputs}, self.attributes, opset=self.opset)

    def __str__(self) -> str:
        given = {**{k: np.asarray(v).tolist() for k, v in self.inputs.items()}, **self.attributes}
        words = "-".join(f"{k}={v}".replace(" ", "") for k, v in given.items())
        return f"{self.op_type}-{self.opset}-{self.dtype}-{'x'.join(map(str, self.shape))}-{words}"


def from_request(request: Request, dtype: str, shape: tuple[int, ...], opset: int = 19) -> Case:
    return Case("Resize", opset, dtype, shape, request.inputs(), request.attributes())


def grid() -> Iterator[Case]:
    geometries: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((4, 7), {"sizes": [8, 3]}),
        ((5, 8), {"scales": [2, 0.5]}),
        ((6, 5), {"scales": [0.7, 1.7]}),
        ((9, 20), {"sizes": [4, 6]}),
        ((3, 5), {"sizes": [7, 8], "policy": "not_larger"}),
        ((2, 3, 5, 6), {"sizes": [7, 4], "axes": [2, 3]}),
    ]
    for (shape, size), coordinates in itertools.product(geometries, PLAIN):
        for nearest_mode in NEAREST:
            yield from_request(Request(coordinates=coordinates, nearest_mode=nearest_mode, **size), "float32", shape)
        for mode, antialias, exclude in itertools.product(("linear", "cubic"), (0, 1), (0, 1)):
            if not (mode == "linear" and exclude and not antialias):
                request = Request(
                    mode=mode, coordinates=coordinates, antialias=antialias, exclude_outside=exclude, **size
                )
                yield from_request(request, "float32", shape)
    for (shape, size), dtype in itertools.product(geometries, ("uint8", "int8", "int32", "float16")):
        yield from_request(Request(**size), dtype, shape)
        yield from_request(Request(mode="linear", **size), dtype, shape)
        yield from_request(Request(mode="linear", antialias=1, **size), dtype, shape)
        if dtype != "float16":
            yield from_request(Request(mode="cubic", antialias=1, **size), dtype, shape)
    yield from crops()
    yield from older_versions()
    yield from what_is_refused()
    yield from tiles()
    for shape, scales in (
        ((3, 4, 5), [2, 1.5, 2]),
        ((1, 2, 3, 4, 5), [1, 1, 2, 1.5, 2]),
        ((1, 4, 5, 3), [1, 1.5, 2, 1]),
    ):
        yield from_request(Request(scales=scales, mode="linear"), "float32", shape)
    yield from_request(Request(scales=[2, 1.5, 2, 0.5, 1.5]), "float32", (2, 3, 2, 3, 2))
    for length, scale in itertools.product((10, 100), (0.7, 0.9, 0.29)):
        yield from_request(Request(scales=[1, scale]), "float32", (1, length))
    for dtype, value in itertools.product(("uint8", "int32"), (7, 85, 251)):
        yield Constant("Resize", 19, dtype, (7, 7), {"sizes": np.array([9, 11])}, {"mode": "linear"}, value)


@dataclass(frozen=True)
class Constant(Case):
    """A case whose data is one value everywhere."""

    value: int = 0

    def data(self) -> NDArray[Any]:
        return np.full(self.shape, self.value, self.dtype)

    def __str__(self) -> str:
        return f"constant-{self.value}-{super().__str__()}"


def crops() -> Iterator[Case]:
    rois = {
        "inside": ([0, 0, 0.25, 0.25, 1, 1, 0.75, 0.75], [1, 1, 3, 4]),
        "beyond": ([0, 0, 0.2, 0.5, 1, 1, 1.3, 1.5], [1, 1, 5, 3]),
        "reversed": ([0, 0, 1, 1, 1, 1, 0, 0], [1, 1, 3, 4]),
        "equal size": ([0, 0, 0.25, 0.25, 1, 1, 0.75, 0.75], [1, 1, 4, 6]),
        "one row": ([0, 0, -0.5, 0.25, 1, 1, 0.75, 0.75], [1, 1, 1, 4]),
        "tenths": ([0, 0, 0.4, 0.6, 1, 1, 0.6, 0.8], [1, 1, 3, 3]),
    }
    for (roi, sizes), mode in itertools.product(rois.values(), ("nearest", "linear", "cubic")):
        request = Request(sizes=sizes, roi=roi, mode=mode, coordinates=CROP, extrapolation_value=9.5)
        yield from_request(request, "float32", (1, 1, 4, 6), opset=13)
    yield from_request(
        Request(scales=[1, 2], roi=[0, 0.25, 1, 0.75], mode="linear", coordinates=CROP), "float32", (3, 8)
    )


def older_versions() -> Iterator[Case]:
    shape = (1, 1, 4, 10)
    for mode, scale in itertools.product(("nearest", "linear"), (1, 1.5, 2, 2.5, 3)):
        scales = np.array([1, 1, scale, scale], np.float32)
        yield Case("Upsample", 9, "float32", shape, {"scales": scales}, {"mode": mode})
        yield Case("Upsample", 7, "float32", shape, {}, {"mode": mode, "scales": scales.tolist()})
    for mode, scale in itertools.product(("nearest", "linear"), (0.5, 0.6, 0.7, 0.75, 1, 1.5, 2)):
        scales = np.array([1, 1, scale, scale], np.float32)
        yield Case("Resize", 10, "float32", shape, {"scales": scales}, {"mode": mode})
    inputs = {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 1.5], np.float32)}
    for opset, mode in itertools.product((11, 12, 13, 17, 18), ("nearest", "linear", "cubic")):
        yield Case("Resize", opset, "float32", shape, inputs, {"mode": mode})
    for nearest_mode, mode in itertools.product(NEAREST, ("nearest", "linear")):
        attributes = {
            "mode": mode, "nearest_mode": nearest_mode, "coordinate_transformation_mode": "tf_half_pixel_for_nn",
        }  # fmt: skip
        yield Case("Resize", 11, "float32", shape, inputs, attributes)


def what_is_refused() -> Iterator[Case]:
    for dtype in ("float64", "int64", "uint16", "bool", "complex64"):
        yield from_request(Request(scales=[2, 2]), dtype, (2, 3))
    for dtype in ("uint8", "int32"):
        yield from_request(Request(scales=[2, 2], mode="cubic"), dtype, (4, 4))
    yield from_request(Request(scales=[2], mode="linear"), "float32", (4,))
    yield from_request(Request(scales=[2, 2, 2], mode="cubic"), "float32", (2, 3, 4))
    yield from_request(Request(scales=[2, 1, 2, 1], mode="linear"), "float32", (2, 2, 3, 4))
    yield from_request(Request(scales=[2, 2], mode="linear", exclude_outside=1), "float32", (4, 4))


def tiles() -> Iterator[Case]:
    names = [
        "float32",
        "float64",
        "float16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    ]
    for dtype, opset in itertools.product([*names, "complex64"], (7, 13)):
        yield Case("Tile", opset, dtype, (2, 3), {"repeats": np.array([3, 2])}, {})
    for shape, repeats in (
        ((2, 3), [2, 0]),
        ((0, 3), [2, 2]),
        ((), []),
        ((4,), [1]),
        ((1, 2, 1, 2, 1), [2, 1, 2, 1, 2]),
    ):
        yield Case("Tile", 13, "float32", shape, {"repeats": np.array(repeats, np.int64)}, {})


# -- which deviation covers a case --


def resized_axes(case: Case) -> list[int]:
    meaning = case.node().meaning
    assert isinstance(meaning, Resizing)
    return [index for index, axis in enumerate(meaning.axes) if axis.scale != 1 or axis.length != axis.output_length]


def axes_are_refused(case: Case) -> bool:
    rank, axes = len(case.shape), resized_axes(case)
    if case.mode == "nearest" or rank == 2:
        return False
    if rank == 4:
        return not (set(axes) <= {2, 3} or (case.mode == "linear" and set(axes) <= {1, 2}))
    return case.mode == "cubic" or rank == 1


def exact_in_binary(values: Any) -> bool:
    return all(float(value) * 16 == int(float(value) * 16) for value in np.asarray(values).ravel())


COVERS: dict[str, Callable[[Case], bool]] = {
    "refused-type": lambda c: c.dtype in ("float64", "int64", "uint16", "bool", "complex64"),
    "refused-integer-cubic": lambda c: c.mode == "cubic" and c.dtype != "float32" and not c.attributes.get("antialias"),
    "refused-axes": axes_are_refused,
    "refused-exclude-outside": lambda c: (
        c.mode == "linear" and c.attributes.get("exclude_outside") == 1 and not c.attributes.get("antialias")
    ),
    "size-of-a-crop": lambda c: c.crops and "scales" in c.inputs,
    "size-in-float32": lambda c: bool(c.node().warnings),
    "crop-of-equal-size": lambda c: c.crops and c.node().output.shape == c.shape,
    "int8-antialias": lambda c: c.dtype == "int8" and c.attributes.get("antialias") == 1,
    "sums-in-float32": lambda c: np.dtype(c.dtype).kind in "iu" and c.mode != "nearest",
    "coordinates-in-float32": lambda c: (
        c.mode == "nearest" and not exact_in_binary([*c.inputs.get("scales", ()), *c.inputs.get("roi", ())])
    ),
}
TILE_COVERS: dict[str, Callable[[Case], bool]] = {"refused-tile-type": lambda c: c.dtype == "complex64"}


def covered_by(case: Case) -> str | None:
    table = TILE_COVERS if case.op_type == "Tile" else COVERS
    return next((name for name, covers in table.items() if covers(case)), None)


@cache
def reasons() -> dict[str, str]:
    lines = DEVIATIONS.read_text(encoding="utf-8").splitlines()
    entries = [line.partition(":") for line in lines if line.strip() and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in entries}


# -- running --


def peer(case: Case) -> NDArray[Any]:
    """ONNX Runtime's answer; raises one of its errors if it refuses the node."""
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    helper = onnx.helper
    x = case.data()
    slots = [entry.name for entry in case.node().schema.inputs]
    names = [slots[0], *(name if name in case.inputs else "" for name in slots[1:])]
    while not names[-1]:
        names.pop()
    node = helper.make_node(case.op_type, names, ["Y"], **case.attributes)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node], "case",
        [helper.make_tensor_value_info(slots[0], element, x.shape)],
        [helper.make_tensor_value_info("Y", element, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in case.inputs.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=9)
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # refusals are told by exceptions
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {slots[0]: x})[0]


def deviation(case: Case) -> str | None:
    """What the peer does otherwise; None if it agrees."""
    node, x = case.node(), case.data()
    ours = np.empty(node.output.shape, x.dtype)
    form_of(node).fill(np, [x], tuple((0, n) for n in ours.shape), ours)
    try:
        theirs = peer(case)
    except Exception as error:
        # its errors have no common public base
        if type(error).__module__.startswith("onnxruntime"):
            return f"refused: {str(error)[:200]}"
        raise
    if theirs.shape != ours.shape:
        return f"shape {theirs.shape}, ours {ours.shape}"
    copies = case.op_type == "Tile" or case.mode == "nearest"
    if copies or x.dtype.kind in "iu":
        distance = np.abs(theirs.astype(np.float64) - ours.astype(np.float64)).max(initial=0)
        return None if distance == 0 else f"off by {distance:g}"
    # float32 coordinates of up to 20 are off by 2^-20, neighbours by 200, and cubic slopes by twice that
    tolerance = 2e-3 if x.dtype == np.float32 else 0.126  # half precision: one step at 200
    distance = np.abs(theirs.astype(np.float64) - ours.astype(np.float64)).max(initial=0)
    return None if distance <= tolerance else f"off by {distance:g}"


CASES: dict[str, Case] = {str(case): case for case in grid()}


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    found, cover = deviation(case), covered_by(case)
    if found is None:
        return
    assert cover is not None, found
    assert found.startswith("refused") == cover.startswith("refused"), found
    if cover == "sums-in-float32":
        assert found == "off by 1", found
    if cover.startswith("size"):
        assert found.startswith("shape"), found
    pytest.xfail(f"{cover}: {reasons()[cover]}")


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
@pytest.mark.parametrize("name", [*COVERS, *TILE_COVERS])
def test_a_deviation_is_really_seen(name: str) -> None:
    """One that no case shows any more is to be removed from the list."""
    covered = [case for case in CASES.values() if covered_by(case) == name]
    assert any(deviation(case) is not None for case in covered), f"{len(covered)} cases, all agree"


def test_every_deviation_has_a_predicate_and_a_reason() -> None:
    assert set(reasons()) == {*COVERS, *TILE_COVERS}
    assert all(len(reason) > 20 for reason in reasons().values())


def test_the_grid_is_a_few_hundred_cases() -> None:
    assert len(CASES) > 400
    assert math.isclose(sum(covered_by(case) is None for case in CASES.values()) / len(CASES), 0.7, abs_tol=0.2)

"""Resample through the same sessions on ONNX Runtime's CPU provider, held against the backend numpy.

Nearest must be the same bytes. Linear must be within the operator's tolerance: 84 units in the last place of float32
and 10 of float16, as in the conformance tests of WebNN's resample2d; 1 for 8-bit integers. What differs, and what this
provider does not take, is listed in `cpu-deviations.txt`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost.descriptors import AxisDirection, BufferTensorDesc, InterpolationMode, Resample2OperatorDesc
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.problems import NoBackend
from tensorpost_server.backends import Backend
from tensorpost_server.backends.directml import DirectmlBackend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import Plan, make_plan

pytestmark = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheel for every Python")

LISTED = Path(__file__).with_name("cpu-deviations.txt")
TYPES = ("float32", "float16", "int8", "uint8")
UNITS = {"float32": 84, "float16": 10}
KINDS = [("LINEAR", "DECREASING", 0.5, -0.5), ("LINEAR", "DECREASING", 0.0, 0.0)] + [
    ("NEAREST_NEIGHBOR", direction, *offsets)
    for direction, pairs in (
        ("DECREASING", [(0.5, -0.5), (0.0, -0.5), (0.0, 0.0), (-0.5, 0.0)]),
        ("INCREASING", [(0.5, -0.5), (1.0, -0.5), (0.0, 0.0), (0.5, 0.0)]),
    )
    for offsets in pairs
]


@dataclass(frozen=True)
class Case:
    """One descriptor."""

    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    kind: tuple[str, str, float, float]
    dtype: str

    @property
    def linear(self) -> bool:
        return self.kind[0] == "LINEAR"

    @property
    def axes(self) -> list[bool]:
        """Whether each axis is resized, once those of size 1 are gone and copied neighbours are one."""
        resized = [scale != 1 for scale, size in zip(self.scales, self.sizes, strict=True) if (scale, size) != (1, 1)]
        return [here for at, here in enumerate(resized) if here or at == 0 or resized[at - 1]]

    def plan(self) -> Plan:
        mode, direction, i, o = self.kind
        output = [int(np.floor(size * float(np.float32(s)))) for size, s in zip(self.sizes, self.scales, strict=True)]
        desc = Resample2OperatorDesc(
            input_tensor=BufferTensorDesc.packed(self.dtype.upper(), self.sizes),
            output_tensor=BufferTensorDesc.packed(self.dtype.upper(), output),
            interpolation_mode=InterpolationMode[mode], rounding_direction=AxisDirection[direction], scales=self.scales,
            input_pixel_offsets=(i,) * len(output), output_pixel_offsets=(o,) * len(output),
        )  # fmt: skip
        return make_plan(desc, 1 << 20)

    def data(self) -> NDArray[Any]:
        low, high = (0, 256) if self.dtype == "uint8" else (-100, 100)
        values = np.random.default_rng(len(self.sizes)).integers(low, high, self.sizes)
        return (values * 0.37 if self.dtype.startswith("float") else values).astype(self.dtype)

    def __str__(self) -> str:
        mode, direction, i, o = self.kind
        return f"{self.dtype}-{self.sizes}-{self.scales}-{mode}-{direction}-{i}-{o}".replace(" ", "")


def grid() -> Iterator[Case]:
    places = [
        ((7,), [(0,)]),
        ((6, 9), [(0, 1), (1,)]),
        ((1, 1, 8, 8), [(2, 3)]),
        ((4, 5, 6), [(0, 2), (0, 1, 2)]),
        ((4, 4, 5, 6), [(2, 3), (1, 2), (0, 3), (1, 2, 3), (0, 1, 2, 3)]),
    ]
    for (sizes, choices), scale, kind, dtype in itertools.product(places, (2, 0.5, 1.5, 0.7, 1.7, 2.3), KINDS, TYPES):
        for axes in choices:
            scales = tuple(scale if axis in axes else 1.0 for axis in range(len(sizes)))
            yield Case(sizes, scales, kind, dtype)


CASES = list(grid())


def outcome(backend: Backend, plan: Plan, x: NDArray[Any]) -> NDArray[Any]:
    run = backend.start(plan, [memoryview(x.tobytes())])
    blocks = b"".join(bytes(run.compute(index)) for index in range(len(plan.slices)))
    run.close()
    sizes = plan.outputs[0].layout.sizes
    return np.frombuffer(blocks, x.dtype)[: int(np.prod(sizes))].reshape(sizes)


def covered_by(case: Case) -> str | None:
    """The deviation that covers a case. Only linear has any."""
    if not case.linear:
        return None
    if len(case.axes) == 4 and case.axes != [False, True, True, False]:
        return "refused-axes"
    return "integer-sums" if case.dtype.endswith("int8") else "order-of-sums"


def seen() -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Deviation to its covered cases and to those that deviate; and every disagreement that nothing covers."""
    ours, numpy = DirectmlBackend(provider="CPUExecutionProvider"), NumpyBackend()
    covered: dict[str, int] = {}
    deviating: dict[str, int] = {}
    wrong: list[str] = []
    for case in CASES:
        plan, cover, x = case.plan(), covered_by(case), case.data()
        assert ours.refuses(plan) is None, case
        if cover is not None:
            covered[cover] = covered.get(cover, 0) + 1
        expected = outcome(numpy, plan, x)
        try:
            found = outcome(ours, plan, x)
        except NoBackend:
            if cover != "refused-axes" or ours.refuses(plan) is None:
                wrong.append(f"{case}: not taken by the provider")
            deviating["refused-axes"] = deviating.get("refused-axes", 0) + 1
            continue
        if found.tobytes() == expected.tobytes():
            continue
        difference = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
        unit = float(np.spacing(np.abs(x).max())) * UNITS[case.dtype] if case.dtype in UNITS else 1.0
        if cover in (None, "refused-axes") or difference > unit:
            wrong.append(f"{case}: off by {difference:g}, {cover}")
        deviating[str(cover)] = deviating.get(str(cover), 0) + 1
    ours.close()
    return covered, deviating, wrong


def listed() -> dict[str, tuple[int, int]]:
    entry = re.compile(r"(?P<name>[a-z-]+) \((?P<seen>\d+) of (?P<covered>\d+)\): (?P<reason>\S.{20,})")
    lines = [line for line in LISTED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found = {
        match["name"]: (int(match["seen"]), int(match["covered"])) for match in map(entry.fullmatch, lines) if match
    }
    assert len(found) == len(lines), "every line is name (seen of covered): reason"
    return found


def test_every_disagreement_is_a_listed_deviation() -> None:
    covered, deviating, wrong = seen()

    assert wrong == []
    assert covered == {name: count for name, (_, count) in listed().items()}
    assert deviating.keys() == covered.keys(), "one that no case shows any more is to be removed from the list"
    # What is refused hangs on the node alone. Rounding hangs on the processor's instructions: its count may differ.
    assert deviating["refused-axes"] == listed()["refused-axes"][0] == listed()["refused-axes"][1]


def test_most_cases_have_no_deviation_at_all() -> None:
    nearest = [case for case in CASES if not case.linear]

    assert len(CASES) > 2500
    assert len(nearest) == len(CASES) * 8 // 10
    assert not any(covered_by(case) for case in nearest)


def test_the_answers_are_not_empty_or_constant() -> None:
    """Two backends that answer nothing would agree."""
    case = Case((6, 9), (2.0, 2.0), KINDS[0], "float32")
    found = outcome(DirectmlBackend(provider="CPUExecutionProvider"), case.plan(), case.data())

    assert found.shape == (12, 18)
    assert len(np.unique(found)) > 100


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool"])
@pytest.mark.parametrize("nearest_mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_onnx_nodes_give_the_same_bytes(dtype: str, nearest_mode: str, coordinates: str) -> None:
    node = OnnxNode.of(
        "Resize", {"X": OnnxTensor(dtype, (2, 1, 5, 8)), "scales": np.array([1, 1, 2, 0.5], np.float32)}, opset=19,
        mode="nearest", nearest_mode=nearest_mode, coordinate_transformation_mode=coordinates,
    )  # fmt: skip
    x = (np.arange(80) % (2 if dtype == "bool" else 80)).astype(dtype).reshape(2, 1, 5, 8)
    backend, plan = DirectmlBackend(provider="CPUExecutionProvider"), make_plan(node, 1 << 20)

    assert backend.refuses(plan) is None
    assert outcome(backend, plan, x).tobytes() == outcome(NumpyBackend(), plan, x).tobytes()

"""What `docs/operator-tests.md` and `conformance.json` say: how each backend computes every operator's vectors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache

from tests.conformance.suite import HERE, expected_failures
from tests.support.vectors import Case, cases_of, vectors_files

from tensorpost.descriptors import OPERATORS
from tensorpost.onnx.package import since_version
from tensorpost.onnx.schemas import NEWEST_OPSET, is_own
from tensorpost.values.layout import Layout
from tensorpost_server.backends.cuda import launch_plan
from tensorpost_server.backends.cuda.launches import ArrayLayout
from tensorpost_server.backends.numba_ import NumbaBackend, library
from tensorpost_server.forms import whole_box
from tensorpost_server.http.documents.conformance import Conformance, Way
from tensorpost_server.planning import Plan, make_plan

__all__ = ["conformance", "conformance_text", "directml_differences", "left_to_onnx_runtime"]


def _no_kernel(address: int) -> None:
    del address


@cache
def _numba() -> NumbaBackend:
    """It decides without kernels; whether they are compiled on this machine makes no difference."""
    return NumbaBackend(kernels={name: _no_kernel for names in library.GROUPS.values() for name in names})


def _by_numpy(plan: Plan) -> Way:
    return "library" if plan.steps[0].form.library else "arrays"


def _by_numba(plan: Plan) -> Way:
    return _by_numpy(plan) if _numba().uses_numpy(plan) else "fused"


def _by_cuda(plan: Plan) -> Way:
    if plan.steps[0].form.computed_whole:
        return _by_numpy(plan)
    inputs = [_array(layout) for layout in plan.input_layouts]
    steps = [
        launch_plan.plan(plan.steps[0].form, inputs, whole_box(slot.layout.sizes), _array(slot.layout), number)
        for number, slot in enumerate(plan.outputs)
    ]
    return "arrays" if None in steps else "fused"


def _by_directml(plan: Plan) -> Way:
    """DirectML itself; that the newest level takes the descriptor, the vectors' loader has checked."""
    del plan
    return "library"


def _array(layout: Layout) -> ArrayLayout:
    item = layout.data_type.item_size
    return ArrayLayout(layout.data_type.dtype, tuple([step * item for step in layout.strides]), 0)


_ORDER: tuple[Way, ...] = ("fused", "arrays", "library")
_WAYS: Mapping[str, Callable[[Plan], Way]] = {
    "numpy": _by_numpy, "numba": _by_numba, "cuda": _by_cuda, "directml": _by_directml,
}  # fmt: skip


@cache
def conformance() -> Mapping[str, Conformance]:
    """The row of every DirectML operator, in the catalogue's order."""
    return {cls.operator_type: _row(cases_of(cls.operator_type)) for cls in OPERATORS}


def _row(cases: list[Case]) -> Conformance:
    plans = [make_plan(case.desc, 1 << 20) for case in cases]
    backends: dict[str, Mapping[Way, int]] = {}
    for name, way in _WAYS.items():
        found = Counter(map(way, plans))
        backends[name] = {one: found[one] for one in _ORDER if one in found}
    return Conformance(
        cases=len(cases),
        ulp=max(case.ulp for case in cases),
        absolute=max(case.absolute for case in cases),
        backends=backends,
    )


def conformance_text() -> str:
    """`conformance.json`, one operator a line."""
    return "{\n" + ",\n".join(f'"{name}": {json.dumps(row)}' for name, row in conformance().items()) + "\n}\n"


def directml_differences() -> Mapping[str, int]:
    """By operator, the vectors' cases for which DirectML is listed with another answer, Wine's doing left out."""
    operators = {file.path: file.operator for file in vectors_files()}
    listed = expected_failures((HERE / "directml-xfails.txt").read_text("utf-8"))
    files = [entry.partition(" [")[0] for entry, reason in listed.items() if not reason.startswith("under Wine")]
    return Counter(operators[file] for file in files if file in operators)


def left_to_onnx_runtime() -> list[str]:
    """ONNX's operators of the default domain that have no row here and can be a node of tensors of numbers."""
    from onnx import defs  # installed for most tests, but it has no wheel for every Python

    names = sorted({schema.name for schema in defs.get_all_schemas() if schema.domain == ""})
    return [name for name in names if not is_own(name) and _has_numbers(name)]


def _has_numbers(op_type: str) -> bool:
    found = since_version(op_type, NEWEST_OPSET)
    if isinstance(found, str):  # why no node can have it
        return False
    row = found[1]
    return all(row["types"].get(kind, kind) != "string" for _, kind, *_ in (*row["inputs"], *row["outputs"]))

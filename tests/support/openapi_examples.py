"""Calls for the pages of operators and the OpenAPI document, with the results that the service computes.

Of each DirectML operator it is the first small test vector, and there are some of ONNX's operators.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tests.support.http_app import JSON, AppClient, http_app
from tests.support.vectors import Case, elements, vectors_files

from tensorpost.bodies.json_tensor import tensor_to_json
from tensorpost.descriptors import OPERATORS, OperatorDesc, operator_class
from tensorpost.onnx import NEWEST_OPSET, ONNX_OPERATORS, OnnxNode, OnnxTensor
from tensorpost.reference.operator_reference import EXAMPLES
from tensorpost.values.datatypes import DATA_TYPES
from tensorpost.values.problems import TensorpostError

__all__ = ["arrays_of", "examples_text", "same_arrays", "same_outputs"]

_X = {"dtype": "F32", "shape": [1, 1, 2, 3], "data": [1, 2, 3, 4, 5, 6]}
_SMALL = {**_X, "data": [0.1, 0.2, 0.3, -0.1, -0.2, -0.3]}
_CHOSEN: Mapping[str, str] = {
    **{
        f"ELEMENT_WISE_LOGICAL_{name}": "int32"
        for name in ("EQUALS", "GREATER_THAN", "LESS_THAN", "GREATER_THAN_OR_EQUAL", "LESS_THAN_OR_EQUAL")
    },
    "ACTIVATION_PARAMETERIZED_RELU": "int16 wraps",
    "CAST": "integers are extended by their sign",
    "ELEMENT_WISE_ADD1": "an activation with attributes",
    "ELEMENT_WISE_CLIP1": "int32",
    "ELEMENT_WISE_CLIP_GRAD": "int32",
    "ELEMENT_WISE_CLIP_GRAD1": "int32",
    "ELEMENT_WISE_DIFFERENCE_SQUARE": "unsigned integers, the first below the second",
    "ELEMENT_WISE_QUANTIZE_LINEAR": "INT32 becomes float32 first",
    "ELEMENT_WISE_SIGN": "int32",
    "PADDING": "page, example 1",
    "PADDING1": "page, example 1",
    "RESAMPLE": "bilinear, FLOAT32",
    "RESAMPLE1": "linear, pixel centres aligned",
    "RESAMPLE2": "linear ignores RoundingDirection DECREASING",
}
"""Cases of operators whose first one is an edge."""
_DTYPES = {row.safetensors: row.dtype for row in DATA_TYPES if row.safetensors}
_ULP = 4  # NumPy's functions with and without AVX-512 differ by less
_MOST_ELEMENTS = 64  # of all tensors of an example that people read
_KNOWN: dict[str, dict[str, Any]] = {
    "/v1/operators/tile": {"op": {"type": "TILE", "desc": {"Repeats": [1, 1, 3, 3]}}, "tensors": {"input": _X}},
    "/v1/onnx/Tile": {"op": {"op_type": "Tile", "inputs": {"repeats": [1, 1, 3, 3]}}, "tensors": {"input": _X}},
    "/v1/onnx/Resize": {
        "op": {"op_type": "Resize", "attributes": {"mode": "linear"}, "inputs": {"scales": [1, 1, 2, 2]}},
        "tensors": {"X": _X},
    },
}


def examples_text() -> str:
    """The text of `examples.json`: a line for each path; results that it has stay if they are the same, see below."""
    found = {**dict(_directml()), **dict(_onnx()), **_KNOWN}
    shown = json.loads(EXAMPLES.read_text("utf-8"))
    with http_app(backend="numpy") as app:
        rows = {path: {"call": found[path], "outputs": _computed(app, path, found[path])} for path in sorted(found)}
    for path, row in rows.items():
        there = shown.get(path, {"call": None})
        if there["call"] == row["call"] and same_outputs(row["outputs"], there["outputs"]):
            row["outputs"] = there["outputs"]
    lines = [f"{json.dumps(path)}: {json.dumps(row)}" for path, row in rows.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def arrays_of(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of an answer's or an example's tensors in JSON."""
    return {
        name: np.array(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
        for name, tensor in tensors.items()
    }


def same_outputs(found: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    """Whether tensors in JSON are equal; those of floating-point types may differ by four units in the last place."""
    return [*found] == [*shown] and same_arrays([*arrays_of(found).values()], [*arrays_of(shown).values()])


def same_arrays(found: Sequence[Any], shown: Sequence[Any]) -> bool:
    """The same of arrays, whose types and shapes are equal too."""
    return len(found) == len(shown) and all(
        x.dtype == y.dtype and x.shape == y.shape and _near(x, y) for x, y in zip(found, shown, strict=True)
    )


def _near(x: Any, y: Any) -> bool:
    if x.dtype.kind != "f":
        return np.array_equal(x, y)
    with np.errstate(invalid="ignore", over="ignore"):  # infinities, NaN, the largest number
        apart = np.abs(x.astype(np.float64) - y.astype(np.float64)) <= _ULP * np.spacing(np.abs(y)).astype(np.float64)
    return bool(np.all(apart | (x == y) | (np.isnan(x) & np.isnan(y))))


def _computed(app: AppClient, path: str, call: dict[str, Any]) -> dict[str, Any]:
    """The tensors that the service answers a call with."""
    answer = app.post(path, json.dumps(call).encode(), JSON)
    assert answer.status_code == 200, f"{path}: {answer.text}"
    return answer.json()["tensors"]


def _directml() -> Iterator[tuple[str, dict[str, Any]]]:
    by_type: dict[str, list[Case]] = {}
    for file in vectors_files():
        for case in file.cases:
            if isinstance(case.desc, OperatorDesc):
                by_type.setdefault(case.desc.operator_type, []).append(case)
    for cls in OPERATORS:
        usable = [case for case in by_type[cls.operator_type] if _is_plain(case)]
        if usable:
            # Vectors begin with what an operator is for; their smallest cases are edges.
            smallest = min(usable, key=lambda case: len(case.desc.to_document_text()) + sum(map(len, case.inputs)))
            case = next((case for case in usable if _elements(case) <= _MOST_ELEMENTS), smallest)
            if chosen := _CHOSEN.get(cls.operator_type):
                (case,) = [case for case in usable if case.name == chosen]
            yield f"/v1/operators/{cls.operator_type.lower()}", _call(case)


def _elements(case: Case) -> int:
    """Elements of all tensors of a case."""
    return sum(math.prod(slot.layout.sizes) for slot in (*case.desc.inputs, *case.desc.outputs))


def _is_plain(case: Case) -> bool:
    """Whether JSON can say its tensors, which must be packed, and what comes out."""
    slots = (*case.desc.inputs, *case.desc.outputs)
    desc = case.desc
    if isinstance(desc, OperatorDesc) and any(tensor.data_type.bits < 8 for _, tensor in desc.tensors()):
        return False  # they travel two in a byte
    if not all(slot.layout.packed for slot in slots):
        return False
    arrays = [elements(slot, data) for slot, data in zip(case.desc.inputs, case.inputs, strict=True)] + case.outputs()
    return all(math.prod(x.shape) <= 128 and (x.dtype.kind != "f" or bool(np.isfinite(x).all())) for x in arrays)


def _call(case: Case) -> dict[str, Any]:
    desc = case.desc
    assert isinstance(desc, OperatorDesc)
    tensors = {
        slot.name: tensor_to_json(slot.layout.view(memoryview(data[: slot.layout.size_in_bytes])))
        for slot, data in zip(desc.inputs, case.inputs, strict=True)
    }
    document = desc.to_document()
    for left_out in _shorter(desc, document["desc"]):
        described = {field: document["desc"][field] for field in desc.to_json() if field in document["desc"]}
        short = {name: value for name, value in described.items() if name not in left_out}
        inputs = {name: described[name] for name in _fields(desc, "input") if name in described}
        try:
            if operator_class(desc.operator_type).completed({**inputs, **short}) == desc:
                return {"op": {"type": desc.operator_type, "desc": short}, "tensors": tensors}
        except TensorpostError:
            continue
    return {"op": {"type": desc.operator_type, "desc": document["desc"]}, "tensors": tensors}


def _fields(desc: OperatorDesc, kind: Any) -> list[str]:
    return [field.name for field in type(desc).facts.fields_by_kind[kind]]


def _shorter(desc: OperatorDesc, document: dict[str, Any]) -> Iterator[set[str]]:
    """What may be left out: most of it first."""
    counts = {name for name in document if name.endswith("Count")}
    inputs, outputs = {*_fields(desc, "input")}, {*_fields(desc, "output")}
    empty = {name for name, value in document.items() if value is None}
    yield counts | inputs | outputs | empty
    yield counts | inputs | empty


def _onnx() -> Iterator[tuple[str, dict[str, Any]]]:
    """Operators that take one float32 tensor, or several of one shape, and need nothing else."""
    newest = {schema.op_type: schema for schema in sorted(ONNX_OPERATORS, key=lambda each: each.since_version)}
    tensor = OnnxTensor("float32", (1, 1, 2, 3))
    for op_type, schema in newest.items():
        required = [entry for entry in schema.data_inputs if not entry.optional]
        names = [entry.name + ("_0" if entry.variadic else "") for entry in required]
        try:
            OnnxNode.from_json({"op_type": op_type, "opset": NEWEST_OPSET, "inputs": dict.fromkeys(names, tensor)})
        except TensorpostError:
            continue
        if names:
            tensors = dict.fromkeys(names, _SMALL if op_type in ("Acos", "Asin", "Atanh") else _X)
            yield f"/v1/onnx/{op_type}", {"op": {"op_type": op_type}, "tensors": tensors}

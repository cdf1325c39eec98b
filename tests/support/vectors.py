"""Calls whose answers are known, and the one loader of `tests/vectors/**/*.json`.

A file holds one operator::

    {"operator": "GATHER", "source": "where the numbers are from",
     "cases": [{"name": "...", "desc": {"Axis": 1, ...},
                "inputs": {"InputTensor": TENSOR, "IndicesTensor": TENSOR}, "outputs": {"OutputTensor": TENSOR},
                "tolerance": {"ulp": 2}}],
     "rejected": [{"name": "...", "desc": {...}, "violations": ["axis $.Axis"]}]}

`desc` holds the attributes; the tensors' descriptions are taken from `inputs` and `outputs`, whose members are the
descriptor's fields (an array of tensors is an array). An ONNX file (`"operator": "Resize"`) has `"node": {"opset": 19,
"attributes": {...}, "inputs": {small inputs}}` instead of `desc`, and its output is named `output`.

TENSOR is `{"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [3, 1], "TotalTensorSizeInBytes": 24, "Values": [...]}`:

* `Values` are the elements in row-major order, flat or nested; `Sizes` may be left out where they are nested. `Buffer`
  instead lists the elements in the order of memory, whatever the strides. What neither names is zero.
* Elements of floating-point types are numbers, "NaN", "Infinity", "-Infinity", "-0.0", or their bits: "0x7fc00001".
  In outputs "NaN" stands for any NaN; bits are compared exactly.
* Elements of INT4 and UINT4 are whole numbers; `Sizes`, `Strides` and `Buffer` count them, two to a byte.
* A `node`'s types are DirectML's words too, and `FLOAT64`, `BOOL`.

`tolerance` is `{"ulp": n}`, in units of the expected element's last place, or `{"absolute": x}`; without it outputs are
compared bit for bit. `rejected` cases are completed first (outputs that follow may be left out); every violation is
named, in order of code and path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import NEWEST, parse_operator
from tensorpost.onnx import OnnxNode
from tensorpost.values.operation import Operation, Slot
from tensorpost.values.problems import InvalidDescriptor, json_path

__all__ = [
    "VECTORS",
    "Case",
    "Rejected",
    "VectorsFile",
    "all_hold",
    "cases_of",
    "elements",
    "load",
    "vectors_files",
    "written",
]

VECTORS = Path(__file__).parents[1] / "vectors"
_DTYPES = {
    name: np.dtype(name.lower())
    for name in (
        "FLOAT16", "FLOAT32", "FLOAT64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
        "BOOL",
    )
}  # fmt: skip
_FOUR_BITS = {"INT4": range(-8, 8), "UINT4": range(16)}
_ONNX_NAMES = {"float32": "float", "float64": "double"}
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "-0.0": -0.0}


@dataclass(frozen=True)
class Case:
    """One call whose answer is known.

    Attributes:
        name: in failures and in the lists of known failures.
        desc: the operation.
        inputs: the input tensors' whole buffers, in binding order.
        expected: the outputs' whole buffers one after the other.
        ulp: how many units in its last place an element of a floating-point output may differ by.
        absolute: how much any element may differ by.
        any_nan: whether the usual NaN (positive, quiet, no payload) in `expected` stands for any NaN.
    """

    name: str
    desc: Operation
    inputs: tuple[bytes, ...]
    expected: bytes
    ulp: float = 0
    absolute: float = 0
    any_nan: bool = False

    def __str__(self) -> str:
        return self.name

    def split(self, answer: bytes) -> list[bytes]:
        """The bytes of each output."""
        parts: list[bytes] = []
        for slot in self.desc.outputs:
            parts.append(answer[: slot.layout.size_in_bytes])
            answer = answer[slot.layout.size_in_bytes :]
        return parts

    def outputs(self) -> list[NDArray[Any]]:
        """The expected outputs as arrays."""
        parts = self.split(self.expected)
        return [elements(slot, part) for slot, part in zip(self.desc.outputs, parts, strict=True)]

    def check(self, answer: bytes) -> None:
        """The answer is what is expected, to the last byte: gaps between elements are zeros.

        Raises:
            AssertionError: it is not; the first element that differs is named.
        """
        total = sum(slot.layout.size_in_bytes for slot in self.desc.outputs)
        assert len(answer) == total, f"{self.name}: {len(answer)} bytes, not {total}"
        assert len(self.expected) >= total
        assert not any(self.expected[total:]), "expected bytes behind the last output"
        for slot, got, want in zip(self.desc.outputs, self.split(answer), self.split(self.expected), strict=True):
            if got != want:
                self._check_output(slot, got, want)

    def _check_output(self, slot: Slot, got: bytes, want: bytes) -> None:
        filled, expected = bytearray(got), elements(slot, want)
        found = elements(slot, filled)
        self.check_array(slot.name, found, expected)
        # What is close enough counts as equal; then what is left are the bytes between the elements.
        found[...] = expected
        assert bytes(filled) == want, f"{self.name}: bytes of {slot.name!r} that are no element's are not zero"

    def check_array(self, name: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
        """The elements of one output are what is expected.

        Raises:
            AssertionError: they are not.
        """
        assert found.shape == expected.shape, f"{self.name}: {name!r} has the shape {found.shape}"
        assert found.dtype == expected.dtype, f"{self.name}: {name!r} is {found.dtype}"
        bits = np.dtype(f"u{found.itemsize}")
        found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)  # of rank 1 at least
        wrong = found.view(bits) != expected.view(bits)
        if wrong.any():
            wrong &= ~self._is_close(found, expected)
        if wrong.any():
            at = tuple(int(index) for index in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{self.name}: {np.count_nonzero(wrong)} of {wrong.size} elements of {name!r} are wrong, the first at "
                f"{at}: {found[at]!r}, expected {expected[at]!r}"
            )

    def _is_close(self, found: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
        if found.dtype.kind != "f":
            difference = np.abs(found.astype(object) - expected.astype(object))
            return np.array(difference <= self.absolute, bool)
        usual = np.array(math.nan, found.dtype).tobytes()
        bits = np.dtype(f"u{found.itemsize}")
        unsigned = expected.view(bits) & np.array(
            ~(1 << (8 * bits.itemsize - 1)) & ((1 << 8 * bits.itemsize) - 1), bits
        )
        close = np.isnan(found) & (unsigned == np.frombuffer(usual, bits)[0])  # x86 makes it negative, CUDA positive
        if not self.any_nan:
            close[...] = False
        if self.ulp or self.absolute:
            with np.errstate(all="ignore"):
                unit = np.spacing(np.abs(expected)).astype(np.float64)
                limit = np.maximum(self.ulp * unit, self.absolute)
                near = np.abs(found.astype(np.float64) - expected.astype(np.float64)) <= limit
            close |= near & np.isfinite(found) & np.isfinite(expected)
        return close


@dataclass(frozen=True)
class Rejected:
    """A description that must be refused.

    Attributes:
        name: in failures.
        document: the whole operator document.
        violations: "code path", sorted.
    """

    name: str
    document: Mapping[str, Any]
    violations: tuple[str, ...]

    def check(self) -> None:
        """It is refused with exactly these violations.

        Raises:
            AssertionError: it is not.
        """
        try:
            if "op_type" in self.document:
                OnnxNode.from_json(self.document)
            else:
                parse_operator(self.document, complete=True)
        except InvalidDescriptor as error:
            # Paths as they stand in `desc`.
            found = sorted(f"{v.code} {json_path(v.path[v.path[:1] == ('desc',) :])}" for v in error.violations)
        else:
            found = ["accepted"]
        assert tuple(found) == self.violations, f"{self.name}: {found}"


@dataclass(frozen=True)
class VectorsFile:
    """One file of `tests/vectors`.

    Attributes:
        path: under `tests/vectors`, without its suffix.
        operator: `GATHER`, or `Resize` in ONNX's words.
        cases: what must be computed.
        rejected: what must be refused.
    """

    path: str
    operator: str
    cases: tuple[Case, ...]
    rejected: tuple[Rejected, ...]

    def __str__(self) -> str:
        return self.path


@cache
def vectors_files() -> tuple[VectorsFile, ...]:
    """Every file of `tests/vectors`, by path."""
    return tuple(load(path) for path in sorted(VECTORS.rglob("*.json")))


def cases_of(*operators: str) -> list[Case]:
    """The cases of these operators; of all of them by default."""
    return [case for file in vectors_files() if not operators or file.operator in operators for case in file.cases]


def all_hold(cases: Iterable[Case], check: Callable[[Case], object], known: Mapping[str, str] | None = None) -> None:
    """Check every case, and name all that fail.

    Args:
        cases: what to check.
        check: raises AssertionError, or anything else, for a case that fails.
        known: cases that are expected to fail, each with its reason; one of these that passes is a failure too, unless
            its reason says "at times".
    """
    failures: list[str] = []
    for case in cases:
        reason = (known or {}).get(case.name)
        try:
            check(case)
        except Exception as error:  # noqa: BLE001 # whatever it is, the case is named and the others go on
            if reason is None:
                failures.append(f"{case.name}: {type(error).__name__}: {error}")
        else:
            if reason is not None and "at times" not in reason:
                failures.append(f"{case.name} passes, but is listed as a known failure: {reason}")
    assert not failures, "\n".join([f"{len(failures)} cases failed:", *failures])


def elements(slot: Slot, buffer: bytes | bytearray | memoryview, dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """The elements of a tensor in its buffer, as an array of its sizes; writeable if the buffer is.

    Args:
        slot: the tensor.
        buffer: its bytes.
        dtype: read the elements as this type of the same size.
    """
    layout = slot.layout
    dtype = np.dtype(layout.data_type.numpy_name) if dtype is None else dtype
    if not math.prod(layout.sizes):
        return np.empty(layout.sizes, dtype)
    reach = sum((size - 1) * stride for size, stride in zip(layout.sizes, layout.strides, strict=True))
    flat = np.frombuffer(buffer, dtype, reach + 1)
    strides = [stride * dtype.itemsize for stride in layout.strides]
    return np.lib.stride_tricks.as_strided(flat, layout.sizes, strides, writeable=flat.flags.writeable)


def written(slot: Slot, values: NDArray[Any]) -> bytes:
    """A tensor's buffer with these elements and zeros between them.

    Raises:
        ValueError: the values are of another type or shape, or two elements share an address and are not equal.
    """
    layout = slot.layout
    if values.dtype.name != layout.data_type.numpy_name or values.shape != layout.sizes:
        raise ValueError(
            f"{slot.name} is {layout.data_type.numpy_name} {list(layout.sizes)}, not {values.dtype} {values.shape}"
        )
    buffer = bytearray(layout.size_in_bytes)
    if values.size:
        bits = np.dtype(f"u{values.itemsize}")  # a signalling NaN that is assigned as a number becomes a quiet one
        wanted = np.frombuffer(values.tobytes(), bits).reshape(layout.sizes)
        elements(slot, buffer, bits)[...] = wanted
        if not np.array_equal(elements(slot, buffer, bits), wanted):
            raise ValueError(f"{slot.name}: two elements share an address and are not equal")
    return bytes(buffer)


# ---- reading a file --------------------------------------------------------------------------------------------------


def load(path: Path) -> VectorsFile:
    """Read one file.

    Raises:
        ValueError: it is not of the form that this module describes; the message names the file and the case.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        _members(document, {"operator", "source", "cases"}, {"rejected"})
        operator = document["operator"]
        cases = [_in(case, _case, operator) for case in document["cases"]]
        rejected = [_in(case, _rejected, operator) for case in document.get("rejected", [])]
        names = [case.name for case in (*cases, *rejected)]
        if not cases or len(set(names)) < len(names):
            raise ValueError("there is no case, or two of one name")
    except (ValueError, KeyError, TypeError, AssertionError, InvalidDescriptor) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    name = path.resolve().relative_to(VECTORS) if VECTORS in path.resolve().parents else Path(path.name)
    return VectorsFile(name.with_suffix("").as_posix(), operator, tuple(cases), tuple(rejected))


def _in(case: Mapping[str, Any], read: Callable[[Mapping[str, Any], str], Any], operator: str) -> Any:
    try:
        return read(case, operator)
    except (ValueError, KeyError, TypeError, AssertionError, InvalidDescriptor) as error:
        raise ValueError(f"{case.get('name')!r}: {type(error).__name__}: {error}") from error


def _no_constant(word: str) -> Any:
    raise ValueError(f'{word} is no JSON; write "{word}"')


def _members(document: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    if not needed <= document.keys() <= needed | allowed:
        raise ValueError(f"members {sorted(document)}, but there must be {sorted(needed)}, may be {sorted(allowed)}")


def _case(case: Mapping[str, Any], operator: str) -> Case:
    _members(case, {"name", "desc" if "desc" in case else "node", "inputs", "outputs"}, {"tolerance"})
    tolerance = case.get("tolerance", {})
    _members(tolerance, set(), {"ulp", "absolute"})
    operation = _node(case, operator) if "node" in case else _descriptor(case, operator)
    inputs, outputs = _tensors(case["inputs"]), _tensors(case["outputs"])
    if len(inputs) != len(operation.inputs) or len(outputs) != len(operation.outputs):
        raise ValueError(f"{len(operation.inputs)} inputs and {len(operation.outputs)} outputs are needed")
    return Case(
        case["name"],
        operation,
        tuple(_buffer(slot, tensor) for slot, tensor in zip(operation.inputs, inputs, strict=True)),
        b"".join(_buffer(slot, tensor) for slot, tensor in zip(operation.outputs, outputs, strict=True)),
        tolerance.get("ulp", 0),
        tolerance.get("absolute", 0),
        any("NaN" in _flat(tensor.get("Values", tensor.get("Buffer"))) for tensor in outputs),
    )


def _tensors(members: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [item for value in members.values() for item in (value if isinstance(value, list) else [value])]


def _descriptor(case: Mapping[str, Any], operator: str) -> Operation:
    fields = dict(case["desc"])
    for name, value in {**case["inputs"], **case["outputs"]}.items():
        if name in fields:
            raise ValueError(f"{name} stands in desc as well")
        fields[name] = [_layout(item) for item in value] if isinstance(value, list) else _layout(value)
    desc = parse_operator({"type": operator, "desc": fields})
    order = [*desc.fields_of_kind("input"), *desc.fields_of_kind("output")]
    given = [name for name in order if getattr(desc, name) is not None]
    if [name.replace("_", "") for name in given] != [name.lower() for name in (*case["inputs"], *case["outputs"])]:
        raise ValueError(f"tensors must be in the order of the fields: {given}")
    desc.validate_for(NEWEST)
    return desc


def _node(case: Mapping[str, Any], operator: str) -> OnnxNode:
    _members(case["node"], {"opset"}, {"attributes", "inputs"})
    inputs: dict[str, Any] = dict(case["node"].get("inputs", {}))
    for name, tensor in case["inputs"].items():
        dtype = tensor["DataType"].lower()
        inputs[name] = {"data_type": _ONNX_NAMES.get(dtype, dtype), "shape": _layout(tensor)["Sizes"]}
    return OnnxNode.from_json({"op_type": operator, **case["node"], "inputs": inputs})


def _layout(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """The tensor's description; sizes that are left out are those of the nested values."""
    optional = {"Sizes", "Strides", "TotalTensorSizeInBytes", "Flags"}
    _members(tensor, {"DataType", "Values" if "Values" in tensor else "Buffer"}, optional)
    found = {key: value for key, value in tensor.items() if key not in ("Values", "Buffer")}
    if "Sizes" not in found:
        sizes: list[int] = []
        values = tensor["Values"]
        while isinstance(values, list):
            sizes.append(len(values))
            values = values[0]
        found["Sizes"] = sizes
    return found


def _flat(values: Any) -> list[Any]:
    return [item for value in values for item in _flat(value)] if isinstance(values, list) else [values]


def _buffer(slot: Slot, tensor: Mapping[str, Any]) -> bytes:
    if tensor["DataType"] in _FOUR_BITS:
        return _four_bits(slot, tensor)
    dtype, sizes = _DTYPES[tensor["DataType"]], _layout(tensor)["Sizes"]
    values = _flat(tensor.get("Values", tensor.get("Buffer")))
    data = b"".join([_element(value, dtype).tobytes() for value in values])
    if "Buffer" in tensor:
        if len(data) > slot.layout.size_in_bytes:
            raise ValueError(f"{slot.name}: more elements than its buffer holds")
        return data.ljust(slot.layout.size_in_bytes, b"\0")
    if tensor["Values"] != values or not sizes:  # otherwise flat
        _nested(tensor["Values"], sizes)
    if len(values) != math.prod(sizes):
        raise ValueError(f"{slot.name}: {len(values)} values for the sizes {sizes}")
    return written(slot, np.frombuffer(data, dtype).reshape(sizes))


def _four_bits(slot: Slot, tensor: Mapping[str, Any]) -> bytes:
    """The bytes of 4-bit elements, the first of two in the low half."""
    sizes = _layout(tensor)["Sizes"]
    values = _flat(tensor.get("Values", tensor.get("Buffer")))
    packed = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    steps = tensor.get("Strides", packed)
    places = [sum(c * step for c, step in zip(at, steps, strict=True)) for at in np.ndindex(*sizes)]
    if "Buffer" in tensor:
        places = list(range(len(values)))
    found = bytearray(slot.layout.size_in_bytes)
    for at, value in zip(places, values, strict=True):
        if isinstance(value, bool) or value not in _FOUR_BITS[tensor["DataType"]]:
            raise ValueError(f"{tensor['DataType']} cannot hold {value!r}")
        found[at // 2] |= (value & 15) << 4 * (at % 2)
    return bytes(found)


def _nested(values: Any, sizes: Sequence[int]) -> None:
    if not sizes:
        if isinstance(values, list):
            raise ValueError("values are nested deeper than the sizes")
        return
    if not isinstance(values, list) or len(values) != sizes[0]:
        raise ValueError(f"values are nested otherwise than the sizes {list(sizes)}")
    for value in values:
        _nested(value, sizes[1:])


def _element(value: Any, dtype: np.dtype[Any]) -> Any:
    """One element as a NumPy scalar.

    Raises:
        ValueError: the type cannot hold it.
    """
    if isinstance(value, str) and value.startswith("0x"):
        raw = int(value, 16).to_bytes(dtype.itemsize, "little")
        if len(value) != 2 + 2 * dtype.itemsize:
            raise ValueError(f"{value} are not the bits of a {dtype}")
        return np.frombuffer(raw, dtype)[0]
    if dtype.kind == "f":
        number = _WORDS[value] if isinstance(value, str) else value
        if isinstance(number, bool):
            raise ValueError(f"{value} is no number")
        with np.errstate(over="ignore"):
            made = dtype.type(number)
        if np.isinf(made) and not isinstance(value, str):
            raise ValueError(f"{value} is beyond {dtype}; write the infinity")
        return made
    if dtype.kind == "b":
        if not isinstance(value, bool):
            raise ValueError(f"{value} is no truth value")
        return np.bool_(value)
    limits = np.iinfo(dtype)
    if isinstance(value, bool) or not isinstance(value, int) or not limits.min <= value <= limits.max:
        raise ValueError(f"{dtype} cannot hold {value!r}")
    return dtype.type(value)


def _rejected(case: Mapping[str, Any], operator: str) -> Rejected:
    _members(case, {"name", "desc" if "desc" in case else "node", "violations"}, set())
    document = {"op_type": operator, **case["node"]} if "node" in case else {"type": operator, "desc": case["desc"]}
    return Rejected(case["name"], document, tuple(sorted(case["violations"])))

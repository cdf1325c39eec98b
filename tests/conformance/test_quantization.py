"""Quantization on every backend: elements of 8 to 32 and of 4 bits in any layout, one by one from the formulas.

The oracle divides and multiplies NumPy's float32 scalars and calls nothing of the packages under test. Where ONNX has
the same operator, its reference evaluator is asked too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conformance.suite import check_bytes
from tests.support.onnx_reference import reference_outputs
from tests.support.operator_cases import numpy_name, small_sizes, tensor
from tests.support.vectors import Case

from tensorpost.descriptors import BufferTensorDesc, operator_class
from tensorpost_server.backends import Backend

Array = NDArray[Any]
Element = dict[tuple[int, ...], Any]
FLOATS = ("FLOAT32", "FLOAT16")
RANGES = {"UINT8": (0, 255), "INT8": (-128, 127), "UINT4": (0, 15), "INT4": (-8, 7)}
SCALES = (0.5, 1.0, 2.0, -0.25, 3.0, 0.1)


def value(number: float, integer: str) -> int:
    low, high = RANGES[integer]
    return low if math.isnan(number) else int(min(max(number, low), high))


def quantized(x: Any, scale: Any, zero_point: int, integer: str) -> int:
    with np.errstate(all="ignore"):
        quotient = np.float32(x) / np.float32(scale)
    if not np.isfinite(quotient):
        return value(float(quotient), integer)
    return value(round(float(quotient)) + zero_point, integer)  # Python rounds halves to even


# ---- tensors as mappings from coordinates ----------------------------------------------------------------------------


def places(desc: BufferTensorDesc) -> dict[tuple[int, ...], int]:
    """Where each element lies, in elements from the start."""
    steps = desc.strides or [math.prod(desc.sizes[axis + 1 :]) for axis in range(len(desc.sizes))]
    return {at: sum(c * step for c, step in zip(at, steps, strict=True)) for at in np.ndindex(*desc.sizes)}


def size_in_bytes(desc: BufferTensorDesc) -> int:
    """On the wire: without the rounding up to 4 bytes if nothing else lies behind the elements."""
    bits = {"4": 4, "8": 8, "6": 16, "2": 32}[desc.data_type.name[-1]]
    packed = [math.prod(desc.sizes[axis + 1 :]) for axis in range(len(desc.sizes))]
    ours = [step for step, size in zip(desc.strides or packed, desc.sizes, strict=True) if size > 1]
    least = (math.prod(desc.sizes) * bits + 7) // 8
    plain = ours == [step for step, size in zip(packed, desc.sizes, strict=True) if size > 1]
    total = desc.total_tensor_size_in_bytes
    return least if plain and total == (least + 3) // 4 * 4 else total


def written(desc: BufferTensorDesc, elements: Mapping[tuple[int, ...], Any]) -> bytes:
    block, name = bytearray(size_in_bytes(desc)), desc.data_type.name
    for at, place in places(desc).items():
        if name in ("INT4", "UINT4"):
            block[place // 2] |= (int(elements[at]) & 15) << 4 * (place % 2)
        else:
            data = numpy_name(name).type(elements[at]).tobytes()
            block[place * len(data) : (place + 1) * len(data)] = data
    return bytes(block)


def elements(draw: st.DrawFn, desc: BufferTensorDesc, of: Sequence[Any]) -> Element:
    """An element for each coordinate, equal where they share an address."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    made: dict[int, Any] = {}
    return {at: made.setdefault(place, of[int(random.integers(len(of)))]) for at, place in places(desc).items()}


def integers(name: str) -> list[int]:
    if name in RANGES:
        low, high = RANGES[name]
    else:
        limits = np.iinfo(numpy_name(name))
        low, high = int(limits.min), int(limits.max)
    return sorted({low, low + 1, -1 if low else 5, 0, 1, 3, high - 2, high})


NUMBERS = (0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -3.75, 7.25, 100.0, -300.0, 6e4, math.inf, -math.inf, math.nan, 0.30078125)


# ---- element by element ----------------------------------------------------------------------------------------------


@st.composite
def linear(draw: st.DrawFn) -> Case:
    forward, sizes = draw(st.booleans()), small_sizes(draw, high=8)
    number = draw(st.sampled_from(FLOATS))
    integer = draw(st.sampled_from(("UINT8", "INT8") if forward else ("UINT8", "INT8", "UINT16", "INT16", "INT32")))
    source, target = (number, integer) if forward else (integer, number)
    fields = {"input_tensor": tensor(draw, source, sizes), "scale_tensor": tensor(draw, number, sizes)}
    if draw(st.booleans()):
        fields["zero_point_tensor"] = tensor(draw, integer, sizes)
    fields["output_tensor"] = tensor(draw, target, sizes, output=True)
    name = f"ELEMENT_WISE_{'' if forward else 'DE'}QUANTIZE_LINEAR"
    return case(draw, name, fields, [*fields.values()], forward, number, integer, [1] * len(sizes), 0)


@st.composite
def by_blocks(draw: st.DrawFn) -> Case:
    forward, few = draw(st.booleans()), small_sizes(draw, most=12)
    blocks = draw(st.lists(st.sampled_from((1, 1, 2, 3)), min_size=len(few), max_size=len(few)))
    sizes = [size * block for size, block in zip(few, blocks, strict=True)]
    number, integer = draw(st.sampled_from(FLOATS)), draw(st.sampled_from((*RANGES, "UINT4", "INT4")))
    quantization = [tensor(draw, number, few)]
    if draw(st.booleans()):
        quantization.append(tensor(draw, integer, few))
    source, target = (number, integer) if forward else (integer, number)
    fields = {
        "input_tensor": tensor(draw, source, sizes), "quantization_type": len(quantization),
        "quantization_tensors": quantization, "output_tensor": tensor(draw, target, sizes, output=True),
    }  # fmt: skip
    tensors = [fields["input_tensor"], *quantization, fields["output_tensor"]]
    middle = {"UINT4": 8, "UINT8": 128}.get(integer, 0)
    return case(
        draw, "QUANTIZE" if forward else "DEQUANTIZE", fields, tensors, forward, number, integer, blocks, middle
    )


def case(
    draw: st.DrawFn, name: str, fields: Mapping[str, Any], tensors: Sequence[BufferTensorDesc], forward: bool,
    number: str, integer: str, blocks: Sequence[int], middle: int,
) -> Case:  # fmt: skip
    """The call with its answer, element by element."""
    floats = [numpy_name(number).type(n) for n in NUMBERS]
    scales = [numpy_name(number).type(n) for n in SCALES]
    of = [floats if forward else integers(integer), scales, integers(integer)]
    drawn = [elements(draw, desc, values) for desc, values in zip(tensors[:-1], of, strict=False)]
    answer: Element = {}
    for at in np.ndindex(*tensors[-1].sizes):
        block = tuple(c // n for c, n in zip(at, blocks, strict=True))
        x, scale = drawn[0][at], drawn[1][block]
        zero_point = drawn[2][block] if len(drawn) > 2 else middle
        if forward:
            answer[at] = quantized(x, scale, zero_point, integer)
        else:
            with np.errstate(over="ignore"):
                exact = (np.float32(x) - np.float32(zero_point)) * np.float32(scale)
                answer[at] = numpy_name(number).type(exact)
    inputs = [written(desc, one) for desc, one in zip(tensors[:-1], drawn, strict=True)]
    desc = operator_class(name)(**fields)
    return Case(f"{name} {fields}", desc, tuple(inputs), written(tensors[-1], answer), absolute=5e-324)


@pytest.mark.parametrize("drawn", [linear(), by_blocks()], ids=["linear", "by blocks"])
@given(data=st.data(), slice_bytes=st.one_of(st.just(1 << 20), st.integers(1, 100)), at_once=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_call(backends: list[Backend], drawn: Any, data: st.DataObject, slice_bytes: int, at_once: bool) -> None:
    case = data.draw(drawn)
    for backend in backends:
        check_bytes(backend, case, slice_bytes, at_once=at_once)


@pytest.mark.parametrize("strides", [None, [1, 1001]], ids=["packed", "columns first"])
def test_4_bits_in_more_than_one_block_of_computation(backend: Backend, strides: list[int] | None) -> None:
    """Blocks that start in the second half of a byte, in rows of an odd length."""
    desc = operator_class("DEQUANTIZE").completed(
        {
            "InputTensor": {"DataType": "INT4", "Sizes": [1001, 101], "Strides": strides},
            "QuantizationTensors": [
                {"DataType": "FLOAT32", "Sizes": [1001, 1]},
                {"DataType": "INT4", "Sizes": [1001, 1]},
            ],
        }
    )
    random = np.random.default_rng(1)
    x, zero_points = random.integers(-8, 8, (1001, 101)), random.integers(-8, 8, (1001, 1))
    scales = random.choice(np.array(SCALES, np.float32), (1001, 1))
    flat = (x if strides is None else x.T).ravel()
    inputs = [halves(flat), scales.tobytes(), halves(zero_points.ravel())]
    inputs[0] = inputs[0].ljust(desc.inputs[0].layout.size_in_bytes, b"\0")
    expected = (x - zero_points).astype(np.float32) * scales
    check_bytes(backend, Case("many", desc, tuple(inputs), expected.tobytes(), absolute=5e-324), 100_000)


def halves(flat: Array) -> bytes:
    pairs = itertools.zip_longest(flat[::2].tolist(), flat[1::2].tolist(), fillvalue=0)
    return bytes([low & 15 | (high & 15) << 4 for low, high in pairs])


# ---- sums and ranges -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["UINT8", "INT8"])
def test_sums_of_quantized_tensors(backend: Backend, target: str) -> None:
    random = np.random.default_rng(3)
    for a_type, b_type, points in itertools.product(
        ("UINT8", "INT8"), ("UINT8", "INT8"), itertools.product((0, 1), repeat=3)
    ):
        drawn = [random.choice(integers(name), 40).astype(numpy_name(name)) for name in (a_type, b_type)]
        names, types = ("a", "b", "output"), (a_type, b_type, target)
        scales = random.choice(np.array(SCALES, np.float32), 3)
        zero_points = [
            int(random.choice(integers(name))) if there else 0 for name, there in zip(types, points, strict=True)
        ]
        fields: dict[str, Any] = {"output_tensor": BufferTensorDesc.packed(target, (5, 8))}
        inputs: dict[str, bytes] = {}
        for index, (of, name) in enumerate(zip(names, types, strict=True)):
            if of != "output":
                fields[f"{of}_tensor"] = BufferTensorDesc.packed(name, (5, 8))
                inputs[f"{of}_tensor"] = drawn[index].tobytes()
            fields[f"{of}_scale_tensor"] = BufferTensorDesc.packed("FLOAT32", (1, 1))
            inputs[f"{of}_scale_tensor"] = scales[index].tobytes()
            if points[index]:
                fields[f"{of}_zero_point_tensor"] = BufferTensorDesc.packed(name, (1, 1))
                inputs[f"{of}_zero_point_tensor"] = numpy_name(name).type(zero_points[index]).tobytes()
        desc = operator_class("ELEMENT_WISE_QUANTIZED_LINEAR_ADD")(**fields)
        a, b = [
            (x.astype(np.float32) - np.float32(point)) * scale
            for x, point, scale in zip(drawn, zero_points, scales, strict=False)
        ]
        made = [quantized(x, scales[2], zero_points[2], target) for x in a + b]
        expected = np.array(made, numpy_name(target)).tobytes()
        buffers = tuple(inputs[path[0]] for path, _ in desc.tensors("input"))
        check_bytes(backend, Case(f"{types} {points}", desc, buffers, expected))


@pytest.mark.parametrize("target", ["UINT8", "INT8"])
def test_ranges_are_found(backend: Backend, target: str) -> None:
    random = np.random.default_rng(5)
    low, high = RANGES[target]
    for shift, sizes in itertools.product((0, 40, -40), ((7,), (3, 5, 4))):
        x = (random.standard_normal(sizes) * 10 + shift).astype(np.float32)
        least, most = min(np.float32(0), x.min()), max(np.float32(0), x.max())
        scale = (most - least) / np.float32(255)
        point = value(round(float(np.float32(low) - least / scale)), target)
        made = np.array([quantized(v, scale, point, target) for v in x.ravel()], numpy_name(target))
        desc = operator_class("DYNAMIC_QUANTIZE_LINEAR").completed(
            {
                "InputTensor": {"DataType": "FLOAT32", "Sizes": sizes},
                "OutputTensor": {"DataType": target, "Sizes": sizes},
            }
        )
        expected = made.tobytes() + scale.tobytes() + numpy_name(target).type(point).tobytes()
        check_bytes(backend, Case(f"{shift} {sizes}", desc, (x.tobytes(),), expected))
        if target == "UINT8":
            theirs = reference_outputs("DynamicQuantizeLinear", 20, [x], {}, 3)
            assert [np.asarray(y).tobytes() for y in theirs] == [made.tobytes(), scale.tobytes(), bytes([point])]
    assert low < high


# ---- ONNX ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integer", ["UINT8", "INT8"])
def test_numbers_are_those_of_onnx(backend: Backend, integer: str) -> None:
    """With a scale and a zero point for each block of two along the first axis, which ONNX has from opset 21 on."""
    pytest.importorskip("onnx")
    random = np.random.default_rng(9)
    x = (random.standard_normal((6, 5)) * 100).astype(np.float32)
    scale = random.choice(np.array([0.5, 1, 2, 3], np.float32), (3, 5))
    point = random.integers(0, 100, (3, 5)).astype(numpy_name(integer))
    attributes = {"axis": 0, "block_size": 2}
    q = reference_outputs("QuantizeLinear", 21, [x, scale, point], attributes)[0]
    d = reference_outputs("DequantizeLinear", 21, [q, scale, point], attributes)[0]
    tensors = [{"DataType": name, "Sizes": [3, 5]} for name in ("FLOAT32", integer)]
    for name, source, target, made in (("QUANTIZE", "FLOAT32", x, q), ("DEQUANTIZE", integer, q, d)):
        desc = operator_class(name).completed(
            {"InputTensor": {"DataType": source, "Sizes": [6, 5]}, "QuantizationTensors": tensors}
        )
        check_bytes(backend, Case(name, desc, (target.tobytes(), scale.tobytes(), point.tobytes()), made.tobytes()))

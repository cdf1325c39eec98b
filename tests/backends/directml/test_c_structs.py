"""Structs in memory, taken apart by layouts written down from DirectML.h for 64-bit processors."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from tensorpost.descriptors import OperatorDesc, operator_class
from tensorpost.descriptors.catalogue import facts_of, operator_names
from tensorpost.values.datatypes import TensorDataType
from tensorpost_server.backends.directml.c_structs import OperatorStruct, TypedDesc, scalar_bits, struct_class

TENSOR = "<iiI4xQQQI4x"  # DML_BUFFER_TENSOR_DESC


def read(address: int, layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, ctypes.string_at(address, struct.calcsize(layout)))


def opened(made: OperatorStruct, layout: str) -> tuple[Any, ...]:
    """The fields of an operator's struct, whose size is that of the layout."""
    kind, inner = read(ctypes.addressof(made.desc), "<i4xQ")
    assert kind == facts_of(made.name).number
    assert ctypes.sizeof(struct_class(made.name)) == struct.calcsize(layout)
    return read(inner, layout)


def numbers(address: int, count: int, code: str = "I") -> list[Any]:
    return list(read(address, f"<{count}{code}"))


def sizes(tensor: int) -> list[int]:
    kind, inner = read(tensor, "<i4xQ")
    _, _, count, array, *_ = read(inner, TENSOR)
    assert kind == 1, "DML_TENSOR_TYPE_BUFFER"
    return numbers(array, count)


def desc(name: str, **fields: Any) -> OperatorDesc:
    return operator_class(name).completed(fields)


def tensor(data_type: str, *sizes: int, **fields: Any) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes), **fields}


def test_every_schema_type_of_the_catalogue_is_known_to_the_tests_below() -> None:
    types = {field.type for name in operator_names() for field in facts_of(name).fields}

    assert types == {
        "TENSOR_DESC", "TENSOR_DESC_ARRAY", "UINT", "INT", "FLOAT", "BOOL", "UINT_ARRAY", "INT_ARRAY", "FLOAT_ARRAY",
        "SCALE_BIAS", "SIZE_2D", "SCALAR_UNION", "OPERATOR_DESC", "OPERATOR_DESC_ARRAY",
    }  # fmt: skip


def test_a_tensor() -> None:
    source = tensor(
        "INT16", 2, 3, Strides=[4, 1], TotalTensorSizeInBytes=16, GuaranteedBaseOffsetAlignment=32, Flags="OWNED_BY_DML"
    )
    made = OperatorStruct.from_desc(desc("TILE", InputTensor=source, Repeats=[1, 2]))
    first, second, count, repeats = opened(made, "<QQI4xQ")

    assert read(ctypes.addressof(made.desc), "<i4x8x") == (70,), "DML_OPERATOR_TILE"
    kind, inner = read(first, "<i4xQ")
    data_type, flags, dimensions, lengths, strides, size, alignment = read(inner, TENSOR)
    assert (kind, data_type, flags, dimensions, size, alignment) == (1, 7, 1, 2, 16, 32)
    assert (numbers(lengths, 2), numbers(strides, 2)) == ([2, 3], [4, 1])
    _, inner = read(second, "<i4xQ")
    assert read(inner, TENSOR)[4] == 0, "packed: no strides"
    assert sizes(second) == [2, 6]
    assert numbers(repeats, count) == [1, 2]


def test_an_optional_pair_of_floats() -> None:
    x = tensor("FLOAT32", 4)
    plain = OperatorStruct.from_desc(desc("ELEMENT_WISE_CLIP", InputTensor=x, Min=-1, Max=2.5))
    scaled = OperatorStruct.from_desc(
        desc("ELEMENT_WISE_CLIP", InputTensor=x, Min=-1, Max=2.5, ScaleBias={"Scale": 2, "Bias": 0.5})
    )

    assert opened(plain, "<QQQff")[2:] == (0, -1, 2.5)
    assert numbers(opened(scaled, "<QQQff")[2], 2, "f") == [2, 0.5]


def test_a_size_in_place() -> None:
    source = tensor("FLOAT32", 1, 1, 2, 3)
    made = OperatorStruct.from_desc(
        desc("UPSAMPLE_2D", InputTensor=source, ScaleSize={"Width": 5, "Height": 7}, InterpolationMode="LINEAR")
    )

    assert opened(made, "<QQIIi4x")[2:] == (5, 7, 1)


def test_arrays_of_tensors() -> None:
    parts = [tensor("INT8", 2, length) for length in (1, 4)]
    joined = OperatorStruct.from_desc(desc("JOIN", InputTensors=parts, Axis=1))
    split = OperatorStruct.from_desc(desc("SPLIT", InputTensor=tensor("INT8", 2, 5), OutputTensors=parts, Axis=1))

    count, first, output, axis = opened(joined, "<I4xQQI4x")
    assert (count, sizes(first), sizes(first + 16), sizes(output), axis) == (2, [2, 1], [2, 4], [2, 5], 1)
    source, count, first, axis = opened(split, "<QI4xQI4x")
    assert (sizes(source), count, sizes(first), sizes(first + 16), axis) == ([2, 5], 2, [2, 1], [2, 4], 1)


@pytest.mark.parametrize("activation", [None, "ACTIVATION_RELU"])
def test_an_absent_tensor_and_a_fused_activation(activation: str | None) -> None:
    made = OperatorStruct.from_desc(
        desc(
            "GEMM", ATensor=tensor("FLOAT32", 3, 2), BTensor=tensor("FLOAT32", 4, 3), TransA=1, TransB=1, Alpha=0.5,
            FusedActivation=activation and {"Type": activation, "Desc": {}},
        )
    )  # fmt: skip
    _, _, c, output, trans_a, trans_b, alpha, beta, fused = opened(made, "<QQQQiiffQ")

    assert (c, sizes(output), trans_a, trans_b, alpha, beta) == (0, [2, 4], 1, 1, 0.5, 1)
    if activation is None:
        assert fused == 0
    else:
        kind, inner = read(fused, "<i4xQ")
        assert (kind, read(inner, "<QQ")) == (facts_of(activation).number, (0, 0)), "its tensors are null"


def test_a_convolution() -> None:
    made = OperatorStruct.from_desc(
        desc(
            "CONVOLUTION", InputTensor=tensor("FLOAT32", 1, 4, 9, 9), FilterTensor=tensor("FLOAT32", 6, 2, 3, 3),
            Strides=[2, 1], Dilations=[1, 2], StartPadding=[3, 4], EndPadding=[5, 6], GroupCount=2,
        )
    )  # fmt: skip
    _, _, bias, _, mode, direction, count, *arrays, groups, fused = opened(made, "<4Qiii4x5QI4xQ")

    assert (bias, mode, direction, count, groups, fused) == (0, 1, 0, 2, 2, 0)
    assert [numbers(array, 2) for array in arrays] == [[2, 1], [1, 2], [3, 4], [5, 6], [0, 0]]


@pytest.mark.parametrize(
    ("data_type", "value", "bits"),
    [
        ("FLOAT32", -1.5, struct.pack("<f", -1.5)), ("FLOAT16", 0.5, b"\x00\x38"), ("FLOAT16", -2, b"\x00\xc0"),
        ("INT8", -2, b"\xfe"), ("UINT16", 65535, b"\xff\xff"), ("INT64", -(1 << 63), bytes(7) + b"\x80"),
        ("UINT64", (1 << 64) - 1, b"\xff" * 8), ("INT32", 7, b"\x07"), ("FLOAT64", 0.1, struct.pack("<d", 0.1)),
    ],
)  # fmt: skip
def test_a_scalar_has_the_bits_of_its_type(data_type: str, value: float, bits: bytes) -> None:
    if data_type == "FLOAT64":
        assert scalar_bits(value, TensorDataType.FLOAT64).to_bytes(8, "little") == bits
        return
    made = OperatorStruct.from_desc(
        desc(
            "PADDING1", InputTensor=tensor(data_type, 2, 3), PaddingMode="CONSTANT", PaddingValue=value,
            StartPadding=[1, 2], EndPadding=[3, 4],
        )
    )  # fmt: skip
    _, _, mode, kind, scalar, count, start, end = opened(made, "<QQii8sI4xQQ")

    assert (mode, kind, count) == (0, TensorDataType[data_type], 2)
    assert scalar == bits.ljust(8, b"\0")
    assert (numbers(start, 2), numbers(end, 2)) == ([1, 2], [3, 4])


def test_a_negative_step_of_an_unsigned_sequence() -> None:
    made = OperatorStruct.from_desc(
        desc("FILL_VALUE_SEQUENCE", OutputTensor=tensor("UINT8", 3), ValueStart=9, ValueDelta=-2)
    )

    assert opened(made, "<Qi4x8s8s")[1:] == (5, b"\x09".ljust(8, b"\0"), b"\xfe".ljust(8, b"\0"))


def test_signed_and_floating_arrays_and_what_follows_them() -> None:
    sliced = OperatorStruct.from_desc(
        desc(
            "SLICE1", InputTensor=tensor("FLOAT32", 5, 6), InputWindowOffsets=[0, 1], InputWindowSizes=[5, 4],
            InputWindowStrides=[-2, 3],
        )
    )  # fmt: skip
    resampled = OperatorStruct.from_desc(
        desc(
            "RESAMPLE3", InputTensor=tensor("FLOAT32", 4), InterpolationMode="LINEAR", RoundingDirection="DECREASING",
            Scales=[2.5], InputPixelOffsets=[0.25], OutputPixelOffsets=[-0.75], Antialiased=True,
        )
    )  # fmt: skip
    reduced = OperatorStruct.from_desc(desc("REDUCE", Function="SUM", InputTensor=tensor("FLOAT32", 2, 3), Axes=[1]))

    _, _, count, offsets, lengths, steps = opened(sliced, "<QQI4xQQQ")
    assert (numbers(offsets, count), numbers(lengths, count), numbers(steps, count, "i")) == ([0, 1], [5, 4], [-2, 3])
    _, _, mode, direction, count, *arrays, antialiased = opened(resampled, "<QQiiI4x3Qi4x")
    assert (mode, direction, count, antialiased) == (1, 1, 1, 1)
    assert [numbers(array, 1, "f") for array in arrays] == [[2.5], [0.25], [-0.75]]
    function, _, _, count, axes = opened(reduced, "<i4xQQI4xQ")
    assert (function, numbers(axes, count)) == (10, [1])


def test_all_of_it_lives_as_long_as_the_struct() -> None:
    made = OperatorStruct.from_desc(desc("TILE", InputTensor=tensor("UINT8", 3), Repeats=[2]))
    inner = made.desc.Desc
    held = [(ctypes.addressof(part), ctypes.addressof(part) + ctypes.sizeof(part)) for part in made.memory]
    pointers = [inner, *read(inner, "<QQ"), *read(inner + 24, "<Q")]

    assert isinstance(made.desc, TypedDesc)
    assert all(any(low <= pointer < high for low, high in held) for pointer in pointers)

"""What a caller may pass as a tensor, and what is refused before anything is sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from tensorpost import BufferTensorDesc, TileOperatorDesc
from tensorpost.calls.caller_arrays import check_out, output_memory, request_template, tile_call, wire_form, wire_inputs
from tensorpost.values.datatypes import data_type
from tensorpost.values.operation import Slot
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter

PACKED = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (1, 1, 2, 3)), (1, 1, 3, 3))
# 2 rows of 3 float32, 5 elements apart: the last element ends at byte 4 * (5 + 2) + 4 = 32.
ROWS = TileOperatorDesc(
    input_tensor=BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), strides=(5, 1)),
    output_tensor=BufferTensorDesc(data_type="FLOAT32", sizes=(2, 6), strides=(8, 1)),
    repeats=(1, 2),
)
X = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
X_BYTES = b"".join(
    value.to_bytes(4, "little") for value in (0, 0x3F800000, 0x40000000, 0x40400000, 0x40800000, 0x40A00000)
)


def sent(desc: TileOperatorDesc, data: Any) -> memoryview:
    (view,) = wire_inputs(request_template(desc), data)
    return view


def output(desc: TileOperatorDesc) -> Slot:
    (slot,) = desc.outputs
    return slot


@pytest.mark.parametrize(
    "data",
    [
        X,
        np.asfortranarray(X),
        np.repeat(X, 2, axis=3)[..., ::2],
        X.astype(">f4"),
        X_BYTES,
        bytearray(X_BYTES),
        memoryview(X_BYTES),
        X_BYTES + b"beyond",
        {"input": X},
    ],
    ids=["array", "fortran", "gaps", "big-endian", "bytes", "bytearray", "memoryview", "longer", "by name"],
)
def test_a_packed_tensor_is_sent_row_major_and_little_endian(data: Any) -> None:
    assert bytes(sent(PACKED, data)) == X_BYTES


def test_an_array_that_lies_right_already_is_not_copied() -> None:
    x = X.copy()

    view = sent(PACKED, x)
    x[0, 0, 0, 0] = -0.0

    assert bytes(view)[:4] == b"\x00\x00\x00\x80"


def test_a_read_only_array_can_be_sent() -> None:
    x = X.copy()
    x.flags.writeable = False

    assert bytes(sent(PACKED, x)) == X_BYTES


def test_odd_sizes_are_sent_without_directml_s_padding() -> None:
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (3,)), (2,))

    assert bytes(sent(desc, np.array([1, 2, 3], np.uint8))) == b"\1\2\3"
    assert bytes(sent(desc, b"\1\2\3\0")) == b"\1\2\3"
    assert wire_form(output(desc))[1] == (6,)


def test_a_strided_tensor_is_sent_as_its_whole_buffer() -> None:
    buffer = np.arange(8, dtype=np.float32)

    assert wire_form(ROWS.inputs[0]) == (data_type("uint8"), (32,))
    assert bytes(sent(ROWS, buffer)) == buffer.tobytes()
    assert bytes(sent(ROWS, buffer.tobytes() + b"more")) == buffer.tobytes()
    assert bytes(sent(ROWS, np.frombuffer(buffer.tobytes(), np.uint8))) == buffer.tobytes()


@pytest.mark.parametrize(
    ("desc", "data", "said"),
    [
        (PACKED, X.astype(np.float64), "float64"),
        (PACKED, X.reshape(1, 1, 3, 2), r"\(1, 1, 3, 2\)"),
        (PACKED, X_BYTES[:-1], "23 bytes.*needs 24"),
        (PACKED, X[..., :2].tolist(), r"\(1, 1, 2, 2\)"),
        (PACKED, "text", "str"),
        (PACKED, None, "NoneType"),
        (PACKED, memoryview(X_BYTES)[::2], "gaps"),
        (PACKED, np.ma.masked_array(X, mask=False), "masked"),
        (PACKED, {}, "got none"),
        (PACKED, {"inputs": X}, "inputs"),
        (PACKED, {"input": X, "scale": X}, "scale"),
        (ROWS, np.arange(6, dtype=np.float32).reshape(2, 3), "buffer_of"),
        (ROWS, np.arange(8, dtype=np.float32).reshape(2, 4), "one-dimensional"),
        (ROWS, np.arange(16, dtype=np.float32)[::2], "one-dimensional"),
        (ROWS, np.arange(7, dtype=np.float32), "28 bytes.*needs 32"),
        (ROWS, b"", "0 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(desc: TileOperatorDesc, data: Any, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        wire_inputs(request_template(desc), data)


def test_elements_are_not_mistaken_for_a_broadcast_buffer() -> None:
    """Three elements would be long enough for the one that is there, and all but the first would be dropped."""
    desc = TileOperatorDesc.of(BufferTensorDesc(data_type="FLOAT32", sizes=(3,), strides=(0,)), (1,))

    with pytest.raises(InvalidParameter, match="4 bytes"):
        wire_inputs(request_template(desc), np.arange(3, dtype=np.float32))
    assert len(sent(desc, np.arange(1, dtype=np.float32))) == 4


@pytest.mark.parametrize(
    ("desc", "out", "said"),
    [
        (PACKED, np.empty((1, 1, 6, 9), np.float64), "float64"),
        (PACKED, np.empty((1, 1, 6, 9), ">f4"), "must be an array of float32"),
        (PACKED, np.empty((1, 1, 9, 6), np.float32), r"\(1, 1, 9, 6\)"),
        (PACKED, np.empty((1, 1, 9, 6), np.float32).swapaxes(2, 3), "C-contiguous"),
        (PACKED, np.broadcast_to(np.float32(0), (1, 1, 6, 9)), "C-contiguous"),
        (PACKED, np.frombuffer(bytes(216), np.float32).reshape(1, 1, 6, 9), "writeable"),
        (PACKED, bytearray(216), "bytearray"),
        (ROWS, np.empty((2, 6), np.float32), "whole buffer"),
        (ROWS, np.empty(57, np.uint8), r"\(56,\)"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(desc: TileOperatorDesc, out: Any, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        check_out(desc.outputs, out)


def test_the_output_is_received_into_out_itself() -> None:
    out = np.zeros((1, 1, 6, 9), np.float32)

    check_out(PACKED.outputs, out)
    memory, array = output_memory(output(PACKED), out)
    memory[4:8] = b"\x00\x00\x80\x3f"

    assert array is out
    assert out[0, 0, 0, 1] == 1.0


def test_a_strided_output_is_a_view_of_its_buffer() -> None:
    out = np.zeros(56, np.uint8)  # 2 rows, 8 elements apart: (8 + 5 + 1) * 4

    check_out(ROWS.outputs, out)
    memory, array = output_memory(output(ROWS), out)
    memory[32:36] = b"\x00\x00\x80\x3f"

    assert array.shape == (2, 6)
    assert array[1, 0] == 1.0
    assert np.shares_memory(array, out)


@pytest.mark.parametrize(
    "name", ["float32", "float16", "uint64", "int64", "uint32", "int32", "uint16", "int16", "uint8", "int8", "float64"]
)
def test_tile_takes_every_dtype_of_its_support_table(name: str) -> None:
    desc = tile_call(np.zeros((2, 3), name), (2, 2)).operation

    assert isinstance(desc, TileOperatorDesc)
    assert desc.input_tensor.dtype == np.dtype(name)
    assert desc.output_tensor.sizes == (4, 6)


@pytest.mark.parametrize(
    "x",
    [
        np.array([1 + 2j, 3]),
        np.array(["2024-02-29"], "datetime64[D]"),
        np.array([5], "timedelta64[s]"),
    ],
    ids=lambda x: x.dtype.name,
)
def test_for_dtypes_of_no_tile_the_message_says_how_to_move_the_same_bits(x: np.ndarray) -> None:
    with pytest.raises(InvalidParameter, match=f"no Tile takes {x.dtype.name}".replace("[", r"\[")) as caught:
        tile_call(x, (2,))
    advice = re.split(", or | with |; ", caught.value.detail.partition("same bits: ")[2])[0]
    moved = eval(advice, {"x": x, "np": np})  # the advice is Python, so it can be taken

    repeats = (2,) + (1,) * (moved.ndim - 1)
    tile_call(moved, repeats)
    back = np.tile(moved, repeats).view(x.dtype).reshape(-1)

    assert back.tobytes() == np.concatenate([x, x]).tobytes()


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ("text", "not str"),
        (None, "not NoneType"),
        ({1: 2}, "not dict"),
        ([[1, 2], [3]], "not list"),
        (object(), "not object"),
        (np.array(["a"]), "str"),
        (np.array([{}]), "object"),
        (np.array([1.0], np.longdouble), "longdouble|float128|float96"),
    ],
)
def test_what_cannot_be_tiled_at_all_is_refused(x: Any, said: str) -> None:
    with pytest.raises((InvalidParameter, InvalidDescriptor), match=said):
        tile_call(x, (1,))


class Dlpack:
    """An array of another library that speaks DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    "like",
    [
        [[1, 2, 3], [4, 5, 6]],
        ((1, 2, 3), (4, 5, 6)),
        memoryview(np.arange(1, 7).reshape(2, 3)),  # pyright: ignore[reportArgumentType] # arrays have the buffer protocol
        Dlpack(np.arange(1, 7).reshape(2, 3)),
        Image.fromarray(np.arange(1, 7, dtype=np.uint8).reshape(2, 3)),
    ],
    ids=["lists", "tuples", "buffer", "dlpack", "picture"],
)
def test_what_numpy_can_read_is_an_array(like: Any) -> None:
    call = tile_call(like, 2)
    (sent,) = wire_inputs(request_template(call.operation), call.array)
    expected = np.arange(1, 7, dtype=call.array.dtype).reshape(2, 3)
    assert (bytes(sent), call.shape) == (expected.tobytes(), (2, 6))

    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2))
    if isinstance(like, (list, tuple)):  # numbers take on the type that is asked for, by name or as the only input
        for given in (like, {"input": like}):
            assert bytes(wire_inputs(request_template(desc), given)[0]) == expected.astype(np.float32).tobytes()
    template = request_template(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (1, 3)), (1, 1)))
    for wrong in ([[1.5, 300, 2]], [[1, 2, 300]], [[1, -1, 2]]):
        with pytest.raises(InvalidParameter, match="uint8 cannot hold"):
            wire_inputs(template, wrong)


def test_what_directml_s_tile_takes_not_goes_as_onnx_s() -> None:
    for array in (np.array([True, False]), np.array([1.5], ml_dtypes.bfloat16), np.zeros((1,) * 9, np.int8)):
        call = tile_call(array, 2)
        assert (call.operation.endpoint, call.shape) == ("/v1/onnx/Tile", (*array.shape[:-1], 2 * array.shape[-1]))
        with pytest.raises(InvalidParameter, match="without a feature level"):
            tile_call(array, 2, directml=True)


@pytest.mark.parametrize(
    ("shape", "repeats"),
    [((2, 3), 2), ((2, 3), (2,)), ((3,), (2, 2)), ((), (2, 2)), ((), 2), ((), ()), ((2, 1, 2), (3, 2))],
)
def test_repeats_are_read_as_numpy_reads_them(shape: tuple[int, ...], repeats: Any) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    call = tile_call(x, repeats)
    assert isinstance(call.operation, TileOperatorDesc)
    assert call.shape == np.tile(x, repeats).shape
    # the operator of equal ranks gives what NumPy gives for what was sent
    assert np.array_equal(
        np.tile(call.array, call.operation.repeats).reshape(call.shape),
        np.tile(x, repeats),
    )


@pytest.mark.parametrize(
    ("shape", "repeats"),
    [((2, 3), (1, 0)), ((2, 3), (1, -1)), ((2, 3), (1, 2.0)), ((0, 3), (1, 1)), ((2, 3), (True,))],
)
def test_repeats_that_do_not_fit_are_refused_as_the_contract_refuses_them(shape: tuple[int, ...], repeats: Any) -> None:
    tile_call(np.zeros((2, 3), np.float32), (1, 2))  # 2 in the cache must not let 2.0 pass

    with pytest.raises(InvalidDescriptor):
        tile_call(np.zeros(shape, np.float32), repeats)


def test_repeats_may_be_any_sequence_of_whole_numbers() -> None:
    x = np.zeros((2, 3), np.float32)

    same = [(2, 2), [2, 2], [*np.array([2, 2])], np.array([2, 2]), np.array([2, 2], np.uint8), iter((2, 2))]

    assert len({tile_call(x, repeats).operation for repeats in same}) == 1


def test_other_kinds_of_arrays_are_the_elements_they_hold(tmp_path: Path) -> None:
    """np.matrix always has two dimensions, so that even flattening it makes no row of bytes."""
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 1))
    matrix = X[0, 0].view(np.matrix)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3))

    assert bytes(sent(desc, matrix)) == X_BYTES
    for out in (np.zeros((2, 3), np.float32).view(np.matrix), mapped):
        check_out(desc.outputs, out)
        memory, array = output_memory(output(desc), out)
        memory[:] = X_BYTES
        assert array is out
        assert out.tolist() == [[0, 1, 2], [3, 4, 5]]

"""npy heads: golden bytes both ways, and NumPy itself as the foreign writer and reader."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy_format
from tests.support.batches import each

from tensorpost.bodies.frame import HEAD_ALIGNMENT, NpyHead, NpyHeadReader, encode_npy_head
from tensorpost.values.datatypes import DATA_TYPES, DataType, data_type
from tensorpost.values.problems import (
    BodyMismatch,
    InvalidFrame,
    InvalidParameter,
    LimitExceeded,
    TensorpostError,
    json_path,
)

F32, U8 = data_type("float32"), data_type("uint8")
IN_NPY = [row for row in DATA_TYPES if row.numpy_name != "str"]
MAGIC = b"\x93NUMPY"


def npy_of(text: str | bytes, version: tuple[int, int] = (1, 0)) -> bytes:
    """A head around a header's text, without our writer or NumPy's."""
    text = text.encode("latin-1") if isinstance(text, str) else text
    return MAGIC + bytes(version) + len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text


def header(descr: str = "'<f4'", fortran: str = "False", shape: str = "(2, 3)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def read(data: bytes, **options: Any) -> NpyHead:
    reader = NpyHeadReader(**options)
    reader.feed(data)
    return reader.finish()


def refused(data: bytes, kind: type[TensorpostError] = InvalidFrame, **options: Any) -> TensorpostError:
    with pytest.raises(TensorpostError) as caught:
        read(data, **options)
    assert type(caught.value) is kind, caught.value
    return caught.value


def saved(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    npy_format.write_array(file, array, version=version)
    return file.getvalue()


# ---- golden bytes ----------------------------------------------------------------------------------------------------

GOLDEN: dict[str, tuple[DataType, tuple[int, ...], bytes]] = {
    "matrix": (
        F32,
        (2, 3),
        b"\x93NUMPY\x01\0\x76\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" + 58 * b" " + b"\n",
    ),
    "vector": (
        data_type("bool"),
        (3,),
        b"\x93NUMPY\x01\0\x76\0{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }" + 60 * b" " + b"\n",
    ),
    "scalar": (
        data_type("complex128"),
        (),
        b"\x93NUMPY\x01\0\x76\0{'descr': '<c16', 'fortran_order': False, 'shape': (), }" + 61 * b" " + b"\n",
    ),
    "a multiple of 64 without spaces": (
        U8,
        (1234567890, 0, 11, *[1] * 15),
        b"\x93NUMPY\x01\0\x76\0{'descr': '|u1', 'fortran_order': False, 'shape': "
        b"(1234567890, 0, 11, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), }" + b"\n",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_writing_gives_the_golden_bytes(name: str):
    row, shape, expected = GOLDEN[name]

    assert encode_npy_head(row, shape) == expected


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("rubbish", [b"", b"\0", MAGIC * 30], ids=["", "zero", "magic"])
@pytest.mark.parametrize("name", GOLDEN)
def test_reading_gives_the_golden_head(name: str, rubbish: bytes, step: int):
    row, shape, data = GOLDEN[name]
    body_bytes = row.item_size * math.prod(shape)
    reader = NpyHeadReader(content_length=len(data) + body_bytes)
    taken = 0
    for at in range(0, len(data + rubbish), step):
        assert (reader.head is None) == (taken < len(data))
        taken += reader.feed((data + rubbish)[at : at + step])

    head = reader.finish()
    assert taken == len(data)
    assert head == NpyHead(row, shape, len(data))
    assert (head.body_bytes, head.total_bytes) == (body_bytes, len(data) + body_bytes)


# ---- NumPy as the peer -----------------------------------------------------------------------------------------------


def some_shapes() -> Iterator[tuple[int, ...]]:
    yield from ((), (0,), (5,), (2, 3), (3, 0, 2), (1, 1, 1, 1), (2,) * 8, (1,) * 64)


@each("row", IN_NPY, ids=lambda row: row.numpy_name)
@each("shape", some_shapes())
def test_numpy_loads_what_we_write_and_we_read_what_it_saves(row: DataType, shape: tuple[int, ...]):
    array = np.arange(math.prod(shape)).reshape(shape).astype(row.dtype)

    head = encode_npy_head(row, shape)
    loaded: Any = np.load(io.BytesIO(head + array.tobytes()))
    assert (loaded.dtype, loaded.shape, loaded.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert len(head) % HEAD_ALIGNMENT == 0

    if row.in_ml_dtypes:  # NumPy saves void
        assert read(head) == NpyHead(row, shape, len(head))
        return
    theirs = saved(array)
    found = read(theirs, content_length=len(theirs))
    assert (found.data_type, found.shape) == (row, shape)
    assert theirs[found.head_bytes :] == array.tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_that_numpy_writes_is_read(version: tuple[int, int]):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = saved(array, version)

    reader = NpyHeadReader(content_length=len(data))
    taken = sum(reader.feed(data[at : at + 1]) for at in range(len(data)))

    assert reader.finish().shape == (2, 3)
    assert data[taken:] == array.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_other_orders_are_read_by_those_who_can_use_them(order: Any, byte_order: Any):
    array = np.arange(6, dtype=np.dtype(np.float32).newbyteorder(byte_order)).reshape(2, 3)
    data = saved(np.asarray(array, order=order))

    head = read(data, any_order=True)

    assert (head.data_type, head.shape) == (F32, (2, 3))
    assert (head.big_endian, head.column_major) == (byte_order == ">", order == "F")
    if (byte_order, order) != ("<", "C"):
        refused(data)  # also after it was read, and remembered


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(IN_NPY), st.lists(st.integers(0, 2**40), max_size=4), st.lists(st.integers(0, 400), max_size=3))
def test_round_trip_agrees_with_numpy(row: DataType, sizes: list[int], cuts: list[int]):
    extent = row.item_size * math.prod(size or 1 for size in sizes)
    if extent >= 2**63:
        with pytest.raises(InvalidParameter, match="needs more bytes"):
            encode_npy_head(row, sizes)
        return
    data = encode_npy_head(row, sizes)
    reader = NpyHeadReader()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        reader.feed(memoryview(data)[begin:end])

    assert reader.finish() == NpyHead(row, tuple(sizes), len(data))
    file = io.BytesIO(data)
    assert npy_format.read_magic(file) == (1, 0)
    assert npy_format.read_array_header_1_0(file) == (tuple(sizes), False, row.dtype)
    assert file.tell() == len(data)


def test_the_longest_header_there_is_fits_version_1():
    shape = (2**62, *[0] * 62, 1)

    data = encode_npy_head(data_type("uint8"), shape)

    assert data[6:8] == b"\x01\0"
    assert read(data).shape == shape


def test_numpy_s_own_sizes_are_sizes():
    sizes: Any = (np.int64(2), np.uint8(3))

    assert encode_npy_head(F32, sizes) == encode_npy_head(F32, [2, 3])


@pytest.mark.parametrize(
    ("text", "row", "shape"),
    [
        ("{'shape':(),'fortran_order':False,'descr':'<f4'}", F32, ()),
        ('{"descr": "<f4", "fortran_order": False, "shape": (2, 3)}', F32, (2, 3)),
        (" \t\n{ 'descr' : '<f4' ,\n'fortran_order' : False , 'shape' : ( 2 ,\t3 , ) , } \n\n", F32, (2, 3)),
        (header("'u1'", shape="(3,)"), U8, (3,)),
        (header("'<u1'", shape="(3,)"), U8, (3,)),
        (header("'>u1'", shape="(3,)"), U8, (3,)),
        (header(fortran="True", shape="()"), F32, ()),
        (header(fortran="True", shape="(5,)"), F32, (5,)),
        (header(fortran="True", shape="(1, 5, 1)"), F32, (1, 5, 1)),
        (header(fortran="True", shape="(2, 0, 3)"), F32, (2, 0, 3)),
    ],
)
def test_headers_of_others_are_read(text: str, row: DataType, shape: tuple[int, ...]):
    assert read(npy_of(text)) == NpyHead(row, shape, 10 + len(text))
    with np.errstate(all="raise"):
        assert npy_format.read_array_header_1_0(io.BytesIO(npy_of(text)[8:]))[0] == shape


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(0, 0), (1, 1), (2, 255), (4, 0), (255, 255)])
def test_unknown_versions_are_refused_at_the_eighth_byte(version: tuple[int, int]):
    reader = NpyHeadReader()
    reader.feed(MAGIC + bytes(version[:1]))

    with pytest.raises(InvalidFrame, match=rf"npy version {version[0]}\.{version[1]} is not read here"):
        reader.feed(bytes(version[1:]))
    with pytest.raises(InvalidFrame, match="npy version"):  # a refusal stays one
        reader.feed(npy_of(header()))
    assert reader.head is None


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"\x93NUMPX\x01\0", "begins with b'\\x93NUMPY'; the body begins with b'\\x93NUMPX"),
        (b"\x00" * 8, "the body begins with"),
        (b"\x89PNG\r\n\x1a\n", "looks like a PNG picture"),
        (b"PK\x03\x04\x14\0\0\0", "npz archive"),
        (b'{"a": [1, 2]}', "looks like JSON"),
    ],
)
def test_what_is_no_npy_is_refused(start: bytes, words: str):
    assert words in refused(start).detail


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_empty_header_is_refused(version: tuple[int, int]):
    assert "0 bytes long" in refused(npy_of("", version)).detail


@pytest.mark.parametrize("announced", [65_537, 2**30, 2**32 - 1])
def test_a_header_beyond_the_limit_is_refused_before_it_comes(announced: int):
    error = refused(MAGIC + b"\x02\0" + announced.to_bytes(4, "little"), LimitExceeded)

    assert (error.extra["limit"], error.extra["actual"]) == (65_536, announced)
    assert error.extra["setting"] == "TENSORPOST_MAX_HEAD_BYTES"


def test_a_header_at_the_limit_is_read():
    data = npy_of(header().ljust(100))
    assert read(data, max_head_bytes=100).shape == (2, 3)
    refused(data, LimitExceeded, max_head_bytes=99)


def test_a_header_beyond_the_body_is_refused_before_it_comes():
    assert refused(MAGIC + b"\x01\0\x76\0", BodyMismatch, content_length=127).extra == {"expected": 128, "actual": 127}


@pytest.mark.parametrize("difference", [-1, 1])
def test_the_total_must_be_the_content_length(difference: int):
    data = npy_of(header()) + bytes(24)

    error = refused(data, BodyMismatch, content_length=len(data) + difference)

    assert error.extra == {"expected": len(data), "actual": len(data) + difference}


@pytest.mark.parametrize(("length", "wanted"), [(0, 8), (7, 8), (8, 10), (9, 10), (10, 70), (69, 70)])
def test_input_that_ends_inside_the_head(length: int, wanted: int):
    data = npy_of(header().ljust(60))[:length]

    assert refused(data, BodyMismatch).extra == {"expected": wanted, "actual": length}


NO_SIZES = "$.shape: must be a tuple of whole numbers"
NOT_READ = "the npy header cannot be read at its byte"

HEADER_REFUSALS: dict[str, tuple[str | bytes, str]] = {
    # name: (header text, part of the message)
    "big-endian": (header("'>f4'"), "$.descr: is big-endian; send x.astype('<f4')"),
    "big-endian complex": (header("'>c16'"), "$.descr: is big-endian; send x.astype('<c16')"),
    "native order": (header("'=f4'"), "$.descr: must name its byte order; write '<f4'"),
    "no order": (header("'f4'"), "$.descr: must name its byte order; write '<f4'"),
    "no order that applies": (header("'|f4'"), "$.descr: must name its byte order; write '<f4'"),
    "objects": (header("'|O'"), "$.descr: is Python objects, which would have to be unpickled"),
    "objects, short": (header("'O'"), "$.descr: is Python objects"),
    "text": (header("'<U7'"), "$.descr: is text"),
    "bytes": (header("'|S7'"), "$.descr: is text"),
    "dates": (header("'<M8[ns]'"), "$.descr: is dates; send them as .view('<i8')"),
    "time spans": (header("'<m8[s]'"), "$.descr: is time spans"),
    "void": (
        header("'|V2'"),
        "$.descr: is raw void (np.save writes bfloat16 and the other types of ml_dtypes so); write its name",
    ),
    "long double": (header("'<f16'"), "$.descr: is not a data type that is read here"),
    "an unknown type": (header("'<x4'"), "$.descr: is not a data type that is read here"),
    "an empty type": (header("''"), "$.descr: is not a data type that is read here"),
    "a type's name": (header("'float32'"), "$.descr: is not a data type that is read here"),
    "two orders": (header("'<<f4'"), "$.descr: is not a data type that is read here"),
    "structured": (
        header("[('a', '<f4'), ('b', '<i4')]"),
        "$.descr: is a structured type; send each field as an array",
    ),
    "structured, last": ("{'shape': (), 'descr': [('a', '<f4')]}", "$.descr: is a structured type"),
    "a subarray": (header("('<f4', (2,))"), NOT_READ),
    "type is a flag": (header("True"), "$.descr: is not a data type that is read here"),
    "Fortran order": (header(fortran="True"), "$.fortran_order: is True: the elements stand column by column; send a"),
    "order is a number": (header(fortran="0"), NOT_READ),
    "order is a text": (header(fortran="'False'"), "$.fortran_order: must be True or False"),
    "order is a tuple": (header(fortran="()"), "$.fortran_order: must be True or False"),
    "shape is a list": (header(shape="[2, 3]"), NOT_READ),
    "shape is a number": (header(shape="6"), NOT_READ),
    "shape is a number in brackets": (header(shape="(6)"), NO_SIZES),
    "shape is a text": (header(shape="'(2, 3)'"), "$.shape: must be a tuple of sizes"),
    "shape is a flag": (header(shape="True"), "$.shape: must be a tuple of sizes"),
    "a comma alone": (header(shape="(,)"), NO_SIZES),
    "two commas": (header(shape="(2,,3)"), NO_SIZES),
    "two commas at the end": (header(shape="(2,,)"), NO_SIZES),
    "negative": (header(shape="(2, -1)"), "$.shape[1]: must be a whole number, 0 or larger"),
    "a flag as size": (header(shape="(True, 2)"), NO_SIZES),
    "a float as size": (header(shape="(2.0, 3)"), NO_SIZES),
    "a text as size": (header(shape="('2', 3)"), NO_SIZES),
    "None as size": (header(shape="(None, 3)"), NO_SIZES),
    "Python 2's long": (header(shape="(2L, 3L)"), NO_SIZES),
    "hexadecimal": (header(shape="(0x2, 3)"), NO_SIZES),
    "underscores": (header(shape="(1_0, 3)"), NO_SIZES),
    "leading zeros": (header(shape="(02, 3)"), NO_SIZES),
    "Arabic digits": (header(shape="(2, 3)").replace("2", "\u0662").encode(), NO_SIZES),
    "a nested tuple": (header(shape="((2, 3), 4)"), NOT_READ),
    "a sum": (header(shape="(1+1, 3)"), NO_SIZES),
    "a product": (header(shape="(2*3,)"), NO_SIZES),
    "65 dimensions": (header(shape="(" + "1, " * 65 + ")"), "$.shape: has 65 dimensions"),
    "70 dimensions": (header(shape="(" + "1, " * 70 + ")"), NO_SIZES),
    "2^63 as size": (header("'|u1'", shape=f"({2**63},)"), "$.shape[0]: must be a whole number"),
    "50 digits": (header(shape="(" + "1" * 50 + ",)"), NO_SIZES),
    "2^63 bytes": (header(shape=f"({2**31}, {2**30})"), "$.shape: needs more bytes"),
    "an extent that NumPy refuses": (header(shape=f"(0, {2**62})"), "$.shape: needs more bytes"),
    "no descr": ("{'fortran_order': False, 'shape': (), }", "$.descr: is required"),
    "no order at all": ("{'descr': '<f4', 'shape': (), }", "$.fortran_order: is required"),
    "no shape": ("{'descr': '<f4', 'fortran_order': False}", "$.shape: is required"),
    "nothing": ("{}", "$.descr: is required"),
    "one more": (header()[:-3] + "'x': 'y'}", "$.x: is not an entry of an npy header"),
    "an unnamed one": (header()[:-3] + "'': 'y'}", "$['']: is not an entry of an npy header"),
    "twice": (header()[:-3] + "'shape': (1,)}", "$.shape: occurs twice"),
    "no comma": ("{'descr': '<f4' 'fortran_order': False, 'shape': ()}", NOT_READ),
    "two commas between": ("{'descr': '<f4',, 'fortran_order': False, 'shape': ()}", NOT_READ),
    "mixed quotes": ("""{'descr": '<f4', 'fortran_order': False, 'shape': ()}""", NOT_READ),
    "an escape": (header(r"'\x3cf4'"), NOT_READ),
    "bytes as a name": ("{b'descr': '<f4', 'fortran_order': False, 'shape': ()}", NOT_READ),
    "a comment": ("{'descr': '<f4', 'fortran_order': False, # '\n'shape': ()}", NOT_READ),
    "no dict": ("('descr', '<f4')", "an npy header is the text of a dict"),
    "a brace alone": ("{ ", "an npy header is the text of a dict"),
    "rubbish behind": (header() + "x", "an npy header is the text of a dict"),
    "a zero behind": (header() + "\0", "an npy header is the text of a dict"),
    "two dicts": (header().strip() * 2, NOT_READ),
    "not Latin-1": ("{'descr': 'é', 'fortran_order': False, 'shape': ()}".encode(), "$.descr: is not a data type"),
}


@each("version", [(1, 0), (3, 0)], ids=["v1", "v3"])
@each("name", HEADER_REFUSALS)
def test_a_header_that_lies_is_refused_at_its_place(name: str, version: tuple[int, int]):
    text, message = HEADER_REFUSALS[name]

    error = refused(npy_of(text, version) + bytes(64))

    assert message in error.detail
    for violation in error.violations:
        assert error.detail.startswith(json_path(violation.path) + ": ")
        assert violation.code
        assert violation.expected
        assert violation.source
    assert error.to_problem()  # whatever was found there can be sent


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, "O"),
        np.zeros(2, "<U3"),
        np.zeros(2, "S3"),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "m8[s]"),
        np.zeros(2, "i4,f4"),
        np.zeros(2, "V3"),
        np.zeros(2, ">f8"),
        np.zeros((2, 3), order="F"),
    ],
    ids=lambda array: array.dtype.str,
)
def test_what_numpy_saves_and_we_do_not_carry_is_refused(array: np.ndarray[Any, Any]):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)

    refused(file.getvalue())


@pytest.mark.parametrize(
    ("row", "shape", "message"),
    [
        (data_type("string"), (1,), "npy cannot carry str"),
        (F32, (1, -1), "the array: shape[1]: must be a whole number, 0 or larger"),
        (F32, (True,), "the array: shape[0]: must be a whole number"),
        (F32, (1.0,), "the array: shape[0]: must be a whole number"),
        (F32, (1,) * 65, "the array: shape: has 65 dimensions"),
        (F32, (0, 2**62), "the array: shape: needs more bytes"),
    ],
)
def test_what_npy_cannot_say_is_not_written(row: DataType, shape: Sequence[Any], message: str):
    with pytest.raises(InvalidParameter) as caught:
        encode_npy_head(row, shape)
    assert message in caught.value.detail

"""Frames, bodies and JSON tensors.

One table of (tensors, metadata, bytes) serves both directions: written it must give the bytes, read it must give the
head. The foreign peer is the `safetensors` library, once as the writer and once as the reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.support.batches import each

from tensorpost.bodies.frame import (
    ALSO_READ,
    HEAD_ALIGNMENT,
    MEDIA_TYPE,
    NPY_MEDIA_TYPE,
    BodyWriter,
    FrameHead,
    HeadReader,
    TensorEntry,
    encode_head,
    tensor_from_json,
    tensor_to_json,
)
from tensorpost.bodies.npy import NpyHeadReader
from tensorpost.bodies.strict_json import read_json
from tensorpost.values.datatypes import DATA_TYPES, DataType, data_type
from tensorpost.values.problems import (
    BodyMismatch,
    InvalidDescriptor,
    InvalidFrame,
    InvalidParameter,
    LimitExceeded,
    TensorpostError,
    json_path,
)

F32, F16, BF16, U8, I64 = map(data_type, ("F32", "F16", "BF16", "U8", "I64"))
IN_FRAMES = [row for row in DATA_TYPES if row.safetensors is not None]
IN_JSON = [row for row in IN_FRAMES if row.numpy_name != "complex64"]
BY_NAME = pytest.mark.parametrize("row", IN_FRAMES, ids=lambda row: row.numpy_name)
LIBRARY_NAMES = pytest.mark.parametrize(
    "row", [row for row in IN_FRAMES if not row.bits], ids=lambda row: row.numpy_name
)  # the others are names of ours, since the library packs such elements

Tensors = list[tuple[str, DataType, tuple[int, ...]]]


def frame_of(text: bytes | str, body: bytes = b"") -> bytes:
    """A frame around a head's text, without our writer."""
    text = text.encode() if isinstance(text, str) else text
    return len(text).to_bytes(8, "little") + text + body


def read(data: bytes, **options: Any) -> FrameHead:
    reader = HeadReader(**options)
    reader.feed(data)
    return reader.finish()


def refused(data: bytes, kind: type[TensorpostError] = InvalidFrame, **options: Any) -> TensorpostError:
    with pytest.raises(TensorpostError) as caught:
        read(data, **options)
    assert type(caught.value) is kind, caught.value
    return caught.value


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def one_by_one(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[at : at + 1]


def in_sevens(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), 7):
        yield data[at : at + 7]


# ---- golden bytes ----------------------------------------------------------------------------------------------------

GOLDEN: dict[str, tuple[Tensors, dict[str, str], bytes, int]] = {
    # name: (tensors, metadata, head, bytes of the body)
    "one tensor": (
        [("input", F32, (2, 3))],
        {},
        b'\x78\0\0\0\0\0\0\0{"input":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}' + 59 * b" ",
        24,
    ),
    "a multiple of 64 without spaces": (
        [("four", U8, (1,))],
        {},
        b'\x38\0\0\0\0\0\0\0{"four":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        1,
    ),
    "two tensors and metadata": (
        [("a", I64, (1,)), ("b", BF16, (3, 1))],
        {"op": '{"type":"TILE"}', "id": "7"},
        b'\xb8\0\0\0\0\0\0\0{"__metadata__":{"op":"{\\"type\\":\\"TILE\\"}","id":"7"},'
        b'"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},'
        b'"b":{"dtype":"BF16","shape":[3,1],"data_offsets":[8,14]}}' + 20 * b" ",
        14,
    ),
    "a scalar and nothing at all": (
        [("scalar", F32, ()), ("nothing", F16, (0, 3))],
        {},
        b'\x78\0\0\0\0\0\0\0{"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'
        b'"nothing":{"dtype":"F16","shape":[0,3],"data_offsets":[4,4]}}' + 1 * b" ",
        4,
    ),
    "names in any script": (
        [('été 目 "\\\n😀', U8, (1,))],
        {},
        b'\x78\0\0\0\0\0\0\0{"\xc3\xa9t\xc3\xa9 \xe7\x9b\xae \\"\\\\\\n\xf0\x9f\x98\x80":'
        b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}' + 48 * b" ",
        1,
    ),
    "no tensors": ([], {}, b"\x38\0\0\0\0\0\0\0{}" + 54 * b" ", 0),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_writing_gives_the_golden_bytes(name: str):
    tensors, metadata, expected, _ = GOLDEN[name]

    assert encode_head(tensors, metadata) == expected


@pytest.mark.parametrize("pieces", [whole, one_by_one, in_sevens])
@pytest.mark.parametrize("rubbish", [b"", b"\0", b"}" * 100], ids=["", "zero", "braces"])
@pytest.mark.parametrize("name", GOLDEN)
def test_reading_gives_the_golden_head(name: str, rubbish: bytes, pieces: Callable[[bytes], Iterator[bytes]]):
    tensors, metadata, data, body_bytes = GOLDEN[name]
    reader = HeadReader(content_length=len(data) + body_bytes)
    taken = 0
    for piece in pieces(data + rubbish):
        assert (reader.head is None) == (taken < len(data))
        taken += reader.feed(piece)

    head = reader.finish()
    assert taken == len(data)  # whatever follows is left to the buffers
    assert [(t.name, t.data_type, t.shape) for t in head.tensors] == tensors
    assert dict(head.metadata) == metadata
    assert (head.head_bytes, head.body_bytes, head.total_bytes) == (len(data), body_bytes, len(data) + body_bytes)


def test_offsets_of_the_golden_head():
    head = read(GOLDEN["two tensors and metadata"][2])

    assert head.tensors == (TensorEntry("a", I64, (1,), 0, 8), TensorEntry("b", BF16, (3, 1), 8, 14))
    assert [tensor.nbytes for tensor in head.tensors] == [8, 6]
    assert head.names == ("a", "b")
    assert head["b"].begin == 8
    assert "a" in head
    assert "c" not in head
    with pytest.raises(InvalidFrame, match="the frame has no tensor 'c'; it has 'a', 'b'"):
        head["c"]


def test_a_head_is_frozen():
    head = read(GOLDEN["two tensors and metadata"][2])

    with pytest.raises(TypeError):
        head.metadata["id"] = "8"  # pyright: ignore[reportIndexIssue] # what the test shows to fail
    with pytest.raises(AttributeError):
        head.tensors[0].begin = 4  # pyright: ignore[reportAttributeAccessIssue] # what the test shows to fail


def test_a_missing_tensor_in_a_large_frame_is_named_briefly():
    head = read(encode_head([("n" * 200 + str(i), U8, (0,)) for i in range(20)]))

    with pytest.raises(InvalidFrame) as caught:
        head["x" * 1000]
    assert str(caught.value).endswith(", ...")
    assert len(str(caught.value)) < 1000


def test_media_types():
    assert MEDIA_TYPE == "application/vnd.safetensors"
    assert ALSO_READ == ("application/x-safetensors",)
    assert NPY_MEDIA_TYPE == "application/x-npy"


# ---- round trips and the foreign peer --------------------------------------------------------------------------------

NAMES = st.text(max_size=12).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 5), max_size=5).map(tuple)
METADATA = st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3)
TENSORS = st.lists(
    st.tuples(NAMES, st.sampled_from([row for row in IN_FRAMES if not row.bits]), SHAPES),
    max_size=5,
    unique_by=lambda t: t[0],
)


@settings(max_examples=150, deadline=None)
@given(tensors=TENSORS, metadata=METADATA, data=st.data())
def test_round_trip_agrees_with_the_library(tensors: Tensors, metadata: dict[str, str], data: st.DataObject):
    encoded = encode_head(tensors, metadata)
    sizes = [row.item_size * math.prod(shape) for _, row, shape in tensors]
    body = np.random.default_rng(sum(sizes)).bytes(sum(sizes))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=4)))

    reader = HeadReader(content_length=len(encoded) + len(body))
    for begin, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True):
        assert reader.feed(memoryview(encoded)[begin:end]) == end - begin
    head = reader.finish()

    assert len(encoded) % HEAD_ALIGNMENT == 0
    assert dict(head.metadata) == metadata
    # Empty tensors share an offset with their neighbours, so their order is not kept; the spans say the same.
    found = {t.name: (t.data_type, t.shape, body[t.begin : t.end]) for t in head.tensors}
    ends = np.cumsum(sizes).tolist()
    assert found == {
        name: (row, shape, body[end - size : end])
        for (name, row, shape), size, end in zip(tensors, sizes, ends, strict=True)
    }
    for name, entry in safetensors.deserialize(encoded + body):
        row, shape, part = found.pop(name)
        assert (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) == (row.safetensors, shape, part)
    assert not found


@LIBRARY_NAMES
def test_the_library_reads_what_we_write(row: DataType):
    array = np.arange(24).reshape(2, 3, 4).astype(row.dtype)
    data = encode_head([("x", row, array.shape)], {"id": "7"}) + array.tobytes()

    [(name, found)] = safetensors.deserialize(data)

    assert name == "x"
    assert (found["dtype"], found["shape"]) == (row.safetensors, [2, 3, 4])
    assert bytes(found["data"]) == array.tobytes()
    if not row.in_ml_dtypes:  # which the library's NumPy face cannot name
        np.testing.assert_array_equal(safetensors.numpy.load(data)["x"], array, strict=True)


@LIBRARY_NAMES
def test_we_read_what_the_library_writes(row: DataType):
    if row.numpy_name == "float8_e8m0fnu":
        pytest.skip("the library's NumPy face does not know it")
    first = np.arange(12).reshape(3, 4).astype(row.dtype)
    many = {"z": first, "a": first[:1] + first[:1], "scalar": np.asarray(first[0, 1]), "empty": first[:0]}
    data = safetensors.numpy.save(many, {"id": "7", "é": ""})

    head = read(data, content_length=len(data))

    assert dict(head.metadata) == {"id": "7", "é": ""}
    assert sorted(head.names) == ["a", "empty", "scalar", "z"]
    for tensor in head.tensors:
        part = data[head.head_bytes :][tensor.begin : tensor.end]
        found = np.frombuffer(part, tensor.data_type.dtype).reshape(tensor.shape)
        np.testing.assert_array_equal(found, many[tensor.name], strict=True)


def test_we_read_a_library_frame_of_mixed_types():
    many = {
        "u8": np.arange(3, dtype=np.uint8), "f64": np.array([1.5, -0.0]), "f16": np.array([[2.5]], np.float16),
        "bool": np.array([True, False, True]),
    }  # fmt: skip
    data = safetensors.numpy.save(many)

    head = read(data, content_length=len(data))

    assert {tensor.name: tensor.data_type.numpy_name for tensor in head.tensors} == {
        "u8": "uint8", "f64": "float64", "f16": "float16", "bool": "bool",
    }  # fmt: skip
    body = data[head.head_bytes :]
    for tensor in head.tensors:
        found = np.frombuffer(body[tensor.begin : tensor.end], tensor.data_type.dtype)
        np.testing.assert_array_equal(found, many[tensor.name].ravel(), strict=True)


def test_heads_of_others_are_read():
    entry = '"dtype":"U8","shape":[2],"data_offsets"'
    assert read(frame_of("{}")).total_bytes == 10
    assert read(frame_of(f'{{"a":{{{entry}:[0,2]}}}}')).total_bytes == 8 + 53 + 2  # not padded at all
    unsorted = read(frame_of(f'{{"b":{{{entry}:[2,4]}},"a":{{{entry}:[0,2]}},"__metadata__":{{}}}}\n\t '))
    assert unsorted.names == ("a", "b")
    empty = '"dtype":"U8","shape":[0],"data_offsets"'
    around = read(frame_of(f'{{"end":{{{empty}:[2,2]}},"a":{{{entry}:[0,2]}},"begin":{{{empty}:[0,0]}}}}'))
    assert around.names == ("begin", "a", "end")


def test_descending_item_sizes_are_aligned_to_their_own():
    rows = sorted(IN_FRAMES, key=lambda row: -row.item_size)
    head = read(encode_head([(row.numpy_name, row, (3,)) for row in rows]))

    assert head.names == tuple(row.numpy_name for row in rows)
    assert all((head.head_bytes + tensor.begin) % tensor.data_type.item_size == 0 for tensor in head.tensors)


# ---- refusals, reading -----------------------------------------------------------------------------------------------


def one(dtype: str = '"U8"', shape: str = "[2]", offsets: str = "[0,2]", more: str = "") -> str:
    return f'{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}}}'


def two(first: tuple[int, int], second: tuple[int, int]) -> str:
    a, b = (one(shape=f"[{end - begin}]", offsets=f"[{begin},{end}]") for begin, end in (first, second))
    return a[:-1] + ',"b":' + b.removeprefix('{"a":')


ONE = one()


@pytest.mark.parametrize("announced", [0, 1])
def test_a_head_is_at_least_two_bytes(announced: int):
    assert f"is {announced} bytes long" in refused(announced.to_bytes(8, "little")).detail


@pytest.mark.parametrize("announced", [101, 2**31, 2**63, 2**64 - 1])
def test_a_head_beyond_the_limit_is_refused_at_its_eighth_byte(announced: int):
    reader = HeadReader(max_head_bytes=100)
    start = announced.to_bytes(8, "little")
    assert reader.feed(start[:7]) == 7

    with pytest.raises(LimitExceeded):
        reader.feed(start[7:])
    with pytest.raises(LimitExceeded) as caught:  # a refusal stays one
        reader.feed(b"{}")
    assert caught.value.extra == {
        "limit": 100, "actual": announced, "setting": "TENSORPOST_MAX_HEAD_BYTES", "unit": "bytes",
    }  # fmt: skip
    assert reader.head is None


def test_a_head_at_the_limit_is_read():
    assert read(frame_of(ONE), max_head_bytes=len(ONE)).names == ("a",)
    refused(frame_of(ONE), LimitExceeded, max_head_bytes=len(ONE) - 1)


def test_a_head_beyond_the_body_is_refused_before_it_is_read():
    error = refused((50).to_bytes(8, "little"), BodyMismatch, content_length=57)

    assert error.extra == {"expected": 58, "actual": 57}
    assert "ends at byte 58; the body has 57" in error.detail


def test_the_limit_speaks_before_the_length():
    refused((200).to_bytes(8, "little"), LimitExceeded, max_head_bytes=100, content_length=9)


@pytest.mark.parametrize("difference", [-1, 1])
def test_the_total_must_be_the_content_length(difference: int):
    data = frame_of(ONE, b"ab")

    error = refused(data, BodyMismatch, content_length=len(data) + difference)

    assert error.extra == {"expected": len(data), "actual": len(data) + difference}


def test_the_json_speaks_before_the_total():
    refused(frame_of(b"[]"), InvalidFrame, content_length=1000)


@pytest.mark.parametrize("data", [frame_of(ONE)[:n] for n in (0, 1, 7, 8, 9, 40, 60)], ids=len)
def test_input_that_ends_inside_the_head(data: bytes):
    error = refused(data, BodyMismatch)

    assert error.extra == {"expected": 8 if len(data) < 8 else 61, "actual": len(data)}


NO_TYPE = "$.a.dtype: is not a data type of a frame"
NO_SIZE = "must be a whole number, 0 or larger"
NO_OFFSETS = "$.a.data_offsets: must be two whole numbers"
ESCAPED = ONE[1:].replace('"a"', r'"\u0061"')

HEAD_REFUSALS: dict[str, tuple[str | bytes, str]] = {
    # name: (head's text, part of the message)
    "a space first": (" {}", "must begin with '{' at byte 8; it begins with b' {}'"),
    "an array": ("[]", "must begin with '{'"),
    "no JSON": ("{]", "the frame's head: not JSON: Expecting property name"),
    "zero padding": ("{}\0\0", "Extra data at character 2"),
    "two objects": ("{}{}", "Extra data at character 2"),
    "not UTF-8": (b'{"\xff":1}', "not UTF-8: invalid start byte at byte 2"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "must begin with '{'"),
    "the same name twice": (f"{ONE[:-1]},{ONE[1:]}", "the key 'a' occurs twice"),
    "the same name twice, once escaped": (f"{ONE[:-1]},{ESCAPED}", "the key 'a' occurs twice"),
    "metadata twice": ('{"__metadata__":{},"__metadata__":{}}', "the key '__metadata__' occurs twice"),
    "the same member twice": (one(more=',"dtype":"I8"'), "the key 'dtype' occurs twice"),
    "NaN": ('{"a":NaN}', "NaN is not a JSON number"),
    "nested deeply": ('{"a":' + "[" * 8 + "]" * 8 + "}", "nests deeper than 8 levels"),
    "metadata is a text": ('{"__metadata__":"x"}', "$.__metadata__: must be a JSON object"),
    "metadata is null": ('{"__metadata__":null}', "$.__metadata__: must be a JSON object"),
    "metadata of numbers": ('{"__metadata__":{"id":7}}', "$.__metadata__.id: must be a text"),
    "metadata of objects": ('{"__metadata__":{"op":{}}}', "$.__metadata__.op: must be a text; write other values as"),
    "an entry is null": ('{"a":null}', "$.a: must be an object"),
    "an entry is a list": ('{"a":[]}', "$.a: must be an object"),
    "no dtype": ('{"a":{"shape":[],"data_offsets":[0,1]}}', "$.a.dtype: is required"),
    "no shape": ('{"a":{"dtype":"U8","data_offsets":[0,1]}}', "$.a.shape: is required"),
    "no offsets": ('{"a":{"dtype":"U8","shape":[]}}', "$.a.data_offsets: is required"),
    "strides": (one(more=',"strides":[1]'), "$.a.strides: is not a member of a tensor's entry"),
    "dtype is a number": (one(dtype="1"), NO_TYPE),
    "dtype is a list": (one(dtype="[]"), NO_TYPE),
    "dtype unknown": (one(dtype='"?"'), NO_TYPE),
    "dtype that no frame has": (one(dtype='"complex128"'), NO_TYPE),
    "dtype mistyped": (one(dtype='"F23"'), NO_TYPE + "; did you mean 'F32'?"),
    "dtype by NumPy's name": (one(dtype='"float32"'), "$.a.dtype: is not how a frame's head says float32; write 'F32'"),
    "dtype by DirectML's name": (one(dtype='"FLOAT16"'), "$.a.dtype: is not how a frame's head says float16"),
    "shape is a number": (one(shape="2"), "$.a.shape: must be an array"),
    "size is negative": (one(shape="[2,-1]"), "$.a.shape[1]: " + NO_SIZE),
    "sizes are negative, product is not": (one(shape="[-1,-2]"), "$.a.shape[0]: " + NO_SIZE),
    "size is a float": (one(shape="[2.0]"), "$.a.shape[0]: " + NO_SIZE),
    "size is true": (one(shape="[true,2]"), "$.a.shape[0]: " + NO_SIZE),
    "size is a text": (one(shape='["2"]'), "$.a.shape[0]: " + NO_SIZE),
    "size is null": (one(shape="[2,null]"), "$.a.shape[1]: " + NO_SIZE),
    "size beyond 63 bits": (one(shape=f"[0,{2**63}]", offsets="[0,0]"), "$.a.shape[1]: " + NO_SIZE),
    "65 dimensions": (one(shape="[" + "1," * 64 + "2]"), "$.a.shape: has 65 dimensions"),
    "product of 2^64": (one(shape=f"[{2**32},{2**32}]", offsets="[0,0]"), "$.a.shape: needs more bytes"),
    "2^63 bytes": (one('"F32"', f"[{2**61}]", f"[0,{2**63}]"), "$.a.shape: needs more bytes"),
    "an extent that NumPy refuses": (one(shape=f"[0,{2**62},4]", offsets="[0,0]"), "$.a.shape: needs more bytes"),
    "offsets are an object": (one(offsets="{}"), NO_OFFSETS),
    "one offset": (one(offsets="[2]"), NO_OFFSETS),
    "three offsets": (one(offsets="[0,2,2]"), NO_OFFSETS),
    "negative offset": (one(offsets="[-2,0]"), NO_OFFSETS),
    "offset is true": (one(shape="[1]", offsets="[0,true]"), NO_OFFSETS),
    "offset is a float": (one(offsets="[0,2.0]"), NO_OFFSETS),
    "size is minus zero": (one(shape="[-0]", offsets="[0,0]"), "$.a.shape[0]: " + NO_SIZE),
    "offset is minus zero": (one(offsets="[-0,2]"), NO_OFFSETS),
    "offset beyond 63 bits": (one(offsets=f"[{2**63},{2**63 + 2}]"), NO_OFFSETS),
    "end before begin": (one(offsets="[2,0]"), "$.a.data_offsets: spans -2 bytes; U8 of shape [2] has 2"),
    "too short a span": (one('"F32"', offsets="[0,7]"), "$.a.data_offsets: spans 7 bytes; F32 of shape [2] has 8"),
    "too long a span": (one('"F32"', offsets="[0,9]"), "$.a.data_offsets: spans 9 bytes; F32 of shape [2] has 8"),
    "not from 0": (one(offsets="[1,3]"), "$.a.data_offsets: begins at byte 1 and so leaves a gap after"),
    "a hole": (
        two((0, 2), (3, 5)),
        "$.b.data_offsets: begins at byte 3 and so leaves a gap after what stands before it, which ends at byte 2",
    ),
    "an overlap": (
        two((0, 2), (1, 3)),
        "$.b.data_offsets: begins at byte 1 and so overlaps what stands before it, which ends at byte 2",
    ),
    "one inside the other": (two((0, 4), (1, 3)), "$.b.data_offsets: begins at byte 1 and so overlaps"),
    "the same bytes twice": (two((0, 2), (0, 2)), "$.b.data_offsets: begins at byte 0 and so overlaps"),
    "nothing inside another": (two((0, 2), (1, 1)), "$.b.data_offsets: begins at byte 1 and so overlaps"),
    "nothing beyond the end": (two((0, 2), (9, 9)), "$.b.data_offsets: begins at byte 9 and so leaves a gap"),
}


@each("name", HEAD_REFUSALS)
def test_a_head_that_lies_is_refused_at_its_place(name: str):
    text, message = HEAD_REFUSALS[name]

    error = refused(frame_of(text, b"\0" * 16))

    assert message in error.detail
    for violation in error.violations:
        assert error.detail.startswith(json_path(violation.path) + ": ")
        assert violation.code
        assert violation.expected
        assert violation.source


def test_every_refusal_of_an_entry_has_a_violation():
    placed = [name for name, (_, message) in HEAD_REFUSALS.items() if message.startswith("$.")]
    assert len(placed) > 30
    for name in placed:
        assert len(refused(frame_of(HEAD_REFUSALS[name][0])).violations) == 1, name


@pytest.mark.parametrize(
    ("start", "word"),
    [
        (b"\x93NUMPY\x01\x00v\x00", "npy"),
        (b'{"inputs":[]}', "JSON"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "JPEG"),
        (b"RIFF\x24\x00\x00\x00WEBP", "WebP"),
        (b"PK\x03\x04\x14\x00\x00\x00", "npz"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "gzip"),
        (b"\x28\xb5\x2f\xfd\x04\x00\x00\x01", "zstd"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_containers_are_recognised(start: bytes, word: str):
    for error in (refused(start, max_head_bytes=100), refused(start, content_length=20)):
        assert "not what its Content-Type says; it looks like" in error.detail
        assert word in error.detail


def test_another_container_with_a_possible_length_is_recognised_too():
    gzip = b"\x1f\x8b\x08\0\0\0\0\0"  # as gzip -n writes it: as a length, 559,903
    assert "gzip" in refused(gzip + bytes(int.from_bytes(gzip, "little"))).detail


def test_a_length_that_begins_like_json_is_still_a_length():
    text = ONE + " " * (0x7B - len(ONE))  # 123 bytes: the first byte of the frame is an opening brace

    assert frame_of(text).startswith(b"{")
    assert read(frame_of(text)).names == ("a",)


# ---- refusals, writing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ([("a", U8, (1,)), ("a", U8, (2,))], {}, "two tensors are named 'a'"),
        ([("__metadata__", U8, (1,))], {}, "reserved"),
        ([("__metadata__", U8, (1,))], {"id": "7"}, "reserved"),
        ([(7, U8, (1,))], {}, "7 cannot name a tensor"),
        ([("\ud800", U8, (1,))], {}, "half of a surrogate pair"),
        ([], {"id": "\udfff"}, "half of a surrogate pair"),
        ([], {"id": 7}, "'id' holds int: write it as JSON"),
        ([], {7: "id"}, "metadata maps text to text"),
        ([("a", data_type("complex128"), (1,))], {}, "tensor 'a' is complex128, which a frame cannot carry"),
        ([("a", data_type("string"), (1,))], {}, "tensor 'a' is str, which a frame cannot carry"),
        ([("a", U8, (1, -1))], {}, "tensor 'a': shape[1]: must be a whole number, 0 or larger"),
        ([("a", U8, (True,))], {}, "tensor 'a': shape[0]: must be a whole number"),
        ([("a", U8, (1.0,))], {}, "tensor 'a': shape[0]: must be a whole number"),
        ([("a", U8, (1,) * 65)], {}, "tensor 'a': shape: has 65 dimensions"),
        ([("a", F32, (2**31, 2**30))], {}, "tensor 'a': shape: needs more bytes"),
    ],
)
def test_what_a_frame_cannot_say_is_not_written(tensors: Any, metadata: Any, message: str):
    with pytest.raises(InvalidParameter) as caught:
        encode_head(tensors, metadata)
    assert message in caught.value.detail


def test_numpy_sizes_are_sizes():
    sizes: Any = (np.int64(2), np.uint8(3))

    assert encode_head([("a", F32, sizes)]) == encode_head([("a", F32, (2, 3))])


# ---- bodies ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=5), st.data())
def test_pieces_of_any_size_fill_the_buffers_in_order(sizes: list[int], data: st.DataObject):
    body = bytes(range(1, 1 + sum(sizes)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    memory = [bytearray(size) for size in sizes]
    writer = BodyWriter([memoryview(block) for block in memory])

    assert (writer.received, writer.expected) == (0, len(body))
    for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        writer.feed(data.draw(st.sampled_from([bytes, memoryview]))(body[begin:end]))
        assert writer.received == end
    writer.finish()

    assert b"".join(memory) == body


def test_typed_and_empty_views_are_bytes_too():
    first, empty, last = np.zeros((2, 1), np.float32), np.zeros((0, 3)), np.zeros((), np.int16)
    writer = BodyWriter([first.data, empty.data, last.data])

    writer.feed(np.array([1.5], np.float32).data)
    writer.feed(np.zeros((3, 0)).data)
    writer.feed(np.array([[-2.0]], np.float32).data)
    writer.feed(b"\x07\x01")
    writer.finish()

    assert first.tolist() == [[1.5], [-2.0]]
    assert last == 263


def test_one_byte_too_many_is_refused_before_it_is_written():
    memory = bytearray(b"......|")
    writer = BodyWriter([memoryview(memory)[:3], memoryview(memory)[3:6]])
    writer.feed(b"ab")

    with pytest.raises(BodyMismatch) as caught:
        writer.feed(b"cdefg")

    assert caught.value.extra == {"expected": 6, "actual": 7}
    assert memory == b"ab....|"
    assert writer.received == 2
    writer.feed(b"cdef")
    writer.finish()
    assert memory == b"abcdef|"


def test_a_body_for_no_buffers_must_be_empty():
    writer = BodyWriter([])
    writer.feed(b"")
    writer.finish()
    with pytest.raises(BodyMismatch, match="0 bytes of tensors were expected, at least 1 arrived"):
        writer.feed(b"a")


def test_a_short_body_is_refused_at_its_end():
    writer = BodyWriter([memoryview(bytearray(4))])
    writer.feed(b"abc")

    with pytest.raises(BodyMismatch, match="4 bytes of tensors were expected, 3 arrived") as caught:
        writer.finish()
    assert caught.value.extra == {"expected": 4, "actual": 3}


@pytest.mark.parametrize("view", [memoryview(b"abc"), memoryview(bytearray(4))[::2]], ids=["read-only", "strided"])
def test_only_writable_contiguous_memory_is_taken(view: memoryview):
    with pytest.raises(InvalidParameter, match="view 1 must be writable, contiguous memory"):
        BodyWriter([memoryview(bytearray(1)), view])


def test_pieces_are_copied_when_they_are_fed():
    memory = np.zeros(1 << 20, np.uint8)
    writer = BodyWriter([memory.data])
    piece = bytearray(b"\x01" * (1 << 18))
    for fill in range(4):
        piece[:] = bytes([fill + 1]) * len(piece)
        writer.feed(memoryview(piece))  # the same memory again: what was copied must not change with it
    writer.finish()

    assert memory.reshape(4, -1).min(axis=1).tolist() == [1, 2, 3, 4]
    assert memory.reshape(4, -1).max(axis=1).tolist() == [1, 2, 3, 4]


# ---- JSON tensors ----------------------------------------------------------------------------------------------------


def through_json(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return tensor_from_json(read_json(json.dumps(tensor_to_json(array)).encode()))


def bits(array: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([0.1, -0.0, 2**24], np.float32), {"dtype": "F32", "shape": [3], "data": [0.1, -0.0, 16777216.0]}),
        (np.array([1e-45], np.float32), {"dtype": "F32", "shape": [1], "data": [1e-45]}),
        (np.array([[1, 2], [3, 4]], np.int64).T, {"dtype": "I64", "shape": [2, 2], "data": [1, 3, 2, 4]}),
        (np.array([2**64 - 1], np.uint64), {"dtype": "U64", "shape": [1], "data": [18446744073709551615]}),
        (np.array(True), {"dtype": "BOOL", "shape": [], "data": [True]}),
        (np.zeros((2, 0, 3), np.float16), {"dtype": "F16", "shape": [2, 0, 3], "data": []}),
        (np.array([0.1], np.float16), {"dtype": "F16", "shape": [1], "data": [0.1]}),
        (np.array([0.1], ml_dtypes.bfloat16), {"dtype": "BF16", "shape": [1], "data": [0.100098]}),
        (np.array([0.1 + 0.2]), {"dtype": "F64", "shape": [1], "data": [0.30000000000000004]}),
        (np.array([[1]], ">i4"), {"dtype": "I32", "shape": [1, 1], "data": [1]}),
    ],
    ids=lambda value: value["dtype"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_golden_json(array: np.ndarray[Any, Any], expected: Mapping[str, Any]):
    found = tensor_to_json(array)

    assert json.dumps(found) == json.dumps(expected)  # types and signs of zero included
    back = tensor_from_json(found)
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    assert bits(back) == bits(array.astype(back.dtype))


@pytest.mark.parametrize("row", IN_JSON, ids=lambda row: row.numpy_name)
def test_every_type_survives_json(row: DataType):
    # All 16-bit patterns, spread over the wider types' most significant bytes; strided on purpose.
    raw = np.zeros((1 << 16, row.item_size), np.uint8)
    raw[:, -2:] = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)[:, -row.item_size :]
    raw &= (1 << row.bits) - 1 if row.bits else 255
    array = (raw % 2).astype(np.bool_).reshape(-1) if row.numpy_name == "bool" else raw.view(row.dtype).reshape(-1)
    if row.kind not in "biu":
        with np.errstate(invalid="ignore"):  # some patterns are signalling NaNs
            array = array[np.isfinite(array.astype(np.float64))]
    array = array[:: 2 if len(array) % 2 else 1].reshape(2, -1)

    back = through_json(array)

    assert back.dtype == row.dtype
    assert back.shape == array.shape
    assert bits(back) == bits(array)


FINITE = {"allow_nan": False, "allow_infinity": False}
FLOATS = st.sampled_from(["<f4", "<f8", "<f2"])


@settings(max_examples=100, deadline=None)
@given(arrays.arrays(FLOATS, SHAPES, elements=FINITE))
def test_floats_survive_json_bit_for_bit(array: np.ndarray[Any, Any]):
    back = through_json(array)

    assert back.shape == array.shape
    assert bits(back) == bits(array)


def test_a_decimal_that_float64_would_turn_over_is_written_in_full():
    # 7.038531e-26 is the shortest name of this float32, but read as float64 first it rounds to its neighbour.
    array = np.array([0x15AE43FD], "<u4").view("<f4")
    assert str(array[0]) == "7.038531e-26"
    assert np.float32(float("7.038531e-26")) != array[0]

    assert bits(through_json(array)) == bits(array)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[1, 2], [np.nan, np.inf]], np.float32), "2 of 4 elements are not finite, the first at [1][0]"),
        (np.array(-np.inf), "1 of 1 elements are not finite, the first at []"),
        (np.array([np.nan], ml_dtypes.bfloat16), "1 of 1 elements are not finite"),
        (np.array([0x7FA00000], "<u4").view("<f4"), "1 of 1 elements are not finite"),  # a signalling NaN
        (np.array([0x7FA0], "<u2").view(ml_dtypes.bfloat16), "1 of 1 elements are not finite"),
        (np.zeros(1, np.complex64), "complex64 has no JSON form"),
        (np.zeros(1, np.complex128), "complex128 has no JSON form"),
        (np.array(["a"]), "<U1 has no JSON form"),
        (np.array([None]), "object has no JSON form"),
        (np.zeros(1, "M8[s]"), "datetime64[s] has no JSON form"),
        (np.zeros(1, "i4,i4"), "has no JSON form"),
    ],
)
def test_what_json_cannot_say_is_not_written(array: np.ndarray[Any, Any], message: str):
    with pytest.raises(InvalidParameter) as caught:
        tensor_to_json(array)
    assert message in caught.value.detail


@pytest.mark.parametrize(
    ("shape", "data", "expected"),
    [
        ([2, 3], [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]),
        ([2, 3], [1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]),
        ([1, 2, 1], [[[1], [2]]], [[[1], [2]]]),
        ([2, 1], [1, 2], [[1], [2]]),
        ([], 7, 7),
        ([], [7], 7),
        ([1], [7], [7]),
        ([0], [], []),
        ([2, 0], [], [[], []]),
        ([2, 0], [[], []], [[], []]),
        ([0, 2], [], []),
    ],
)
def test_data_is_nested_or_flat(shape: list[int], data: Any, expected: Any):
    found = tensor_from_json({"dtype": "I32", "shape": shape, "data": data})

    assert found.dtype == np.dtype("<i4")
    assert found.shape == tuple(shape)
    assert found.tolist() == expected
    assert found.flags.c_contiguous
    assert found.flags.writeable


@pytest.mark.parametrize("name", ["F32", "FP32", "FLOAT32", "float32", "float"])
def test_any_name_of_a_type_is_read(name: str):
    assert tensor_from_json({"dtype": name, "shape": [1], "data": [1]}).dtype == np.float32


def doc(dtype: Any, shape: Any, data: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


NESTED = {"dtype": "U8", "shape": [2, 2]}


@pytest.mark.parametrize(
    ("document", "places", "message"),
    [
        ([], ["$.in"], "must be an object with the members dtype, shape, data"),
        ({}, ["$.in.dtype", "$.in.shape", "$.in.data"], "is required"),
        ({**doc("U8", [], 1), "extra": 0}, ["$.in.extra"], "is not a member"),
        (doc("f99", [], 1), ["$.in.dtype"], "is not a data type"),
        (doc(None, [], 1), ["$.in.dtype"], "is not a data type"),
        (doc("C64", [], 1), ["$.in.dtype"], "is not a data type that JSON"),
        (doc("BYTE", [], "a"), ["$.in.dtype"], "is not a data type that JSON"),
        (doc("U8", 1, [1]), ["$.in.shape"], "must be an array of sizes"),
        (doc("U8", [1, -1], [1]), ["$.in.shape[1]"], "must be a whole number"),
        (doc("U8", [1.0], [1]), ["$.in.shape[0]"], "must be a whole number"),
        (doc("U8", [2**40, 2**40], []), ["$.in.shape"], "needs more bytes"),
        (doc("U8", [2**40], []), ["$.in.data"], "has 0 elements; shape [1099511627776] needs 1,099,511,627,776"),
        (doc("U8", [2], [1]), ["$.in.data"], "has 1 elements; shape [2] needs 2"),
        (doc("U8", [], [1, 2]), ["$.in.data"], "has 2 elements; shape [] needs 1"),
        (doc("U8", [1], 1), ["$.in.data"], "must be an array of elements"),
        (doc("U8", [1], "1"), ["$.in.data"], "must be an array of elements"),
        (doc("U8", [], [[1]]), ["$.in.data"], "must be a whole number"),
        (doc("U8", [1], [[1]]), ["$.in.data[0]"], "must be a whole number"),
        ({**NESTED, "data": [[1, 2], [3]]}, ["$.in.data[1]"], "is 1 elements; data that nests must follow shape: 2"),
        ({**NESTED, "data": [[1, 2], 3]}, ["$.in.data[1]"], "is not an array"),
        ({**NESTED, "data": [[1, 2]]}, ["$.in.data"], "is 1 elements"),
        ({**NESTED, "data": [[1, 2, 3], [4, 5]]}, ["$.in.data[0]"], "is 3 elements"),
        ({**NESTED, "data": [[[1, 2]], [3, 4]]}, ["$.in.data[0]"], "is 1 elements"),
        ({**NESTED, "data": [[1, 2.0], [None, 9]]}, ["$.in.data[0][1]", "$.in.data[1][0]"], "whole number, without"),
        ({**NESTED, "data": [1, "2", 3, True]}, ["$.in.data[1]", "$.in.data[3]"], "must be a whole number"),
        (doc("U8", [3], [0, 256, -1]), ["$.in.data[1]", "$.in.data[2]"], "must be from 0 to 255 in uint8"),
        (doc("I64", [2], [2**63 - 1, 2**63]), ["$.in.data[1]"], "to 9223372036854775807 in int64"),
        (doc("I8", [], 128), ["$.in.data"], "must be from -128 to 127"),
        (doc("I32", [1], [math.nan]), ["$.in.data[0]"], "must be a whole number"),
        (doc("BOOL", [2], [True, 1]), ["$.in.data[1]"], "must be true or false"),
        (doc("F32", [2], [1, False]), ["$.in.data[1]"], "must be a number"),
        (doc("F32", [2], [1, "NaN"]), ["$.in.data[1]"], "must be a number"),
        (doc("F32", [2], [3.5e38, -1e39]), ["$.in.data[0]", "$.in.data[1]"], "small enough for float32"),
        (doc("F16", [1, 2], [[65519, 65520]]), ["$.in.data[0][1]"], "small enough for float16"),
        (doc("BF16", [1], [3.4e38]), ["$.in.data[0]"], "small enough for bfloat16"),
        (doc("F64", [2], [1, 10**400]), ["$.in.data[1]"], "small enough for float64"),
        (doc("U8", [20], [-1] * 20), [f"$.in.data[{i}]" for i in range(8)], "must be from 0 to 255"),
    ],
)  # fmt: skip
def test_a_wrong_tensor_is_refused_at_its_place(document: Any, places: Sequence[str], message: str):
    with pytest.raises(InvalidDescriptor) as caught:
        tensor_from_json(document, path=("in",))
    assert [json_path(violation.path) for violation in caught.value.violations] == list(places)
    assert message in caught.value.violations[0].message
    assert caught.value.to_problem()["violations"]  # every value found can be sent


def test_numbers_are_rounded_to_the_nearest_of_the_type():
    assert tensor_from_json(doc("F16", [2], [65519, 0.1])).tolist() == [65504.0, 0.0999755859375]
    assert tensor_from_json(doc("F32", [1], [16777217])).tolist() == [16777216.0]
    assert tensor_from_json(doc("F64", [1], [10**300])).tolist() == [1e300]


def test_minus_zero_is_kept_in_every_spelling():
    document = read_json(b'{"dtype":"F32","shape":[2],"data":[-0, -0.0]}')

    assert np.signbit(tensor_from_json(document)).all()


def test_non_finite_numbers_are_kept_if_the_reader_let_them_pass():
    document = read_json(b'{"dtype":"F16","shape":[3],"data":[NaN,Infinity,-Infinity]}', allow_non_finite=True)

    np.testing.assert_array_equal(tensor_from_json(document), np.array([np.nan, np.inf, -np.inf], np.float16))


@pytest.mark.parametrize(("body", "is_name"), [(b"photograph.npy", True), (b"# A text of some words", False)])
def test_only_what_may_be_the_name_of_a_file_is_taken_for_one(body: bytes, is_name: bool) -> None:
    reader = NpyHeadReader()
    with pytest.raises(InvalidFrame) as caught:
        reader.feed(body)
    assert ("--data-binary @" in str(caught.value)) is is_name

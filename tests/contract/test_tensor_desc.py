"""`BufferTensorDesc` against the DML_BUFFER_TENSOR_DESC page, the strides page and the helper functions page."""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import array_utils
from pydantic import ValidationError
from tests.support import oracles
from tests.support.strategies import DATA_TYPE_BITS, one_to_one_strides, sizes, tensor_descs

from tensorpost.descriptors import (
    BufferTensorDesc,
    TensorFlags,
    is_one_to_one,
    last_index,
    minimum_tensor_size_in_bytes,
    packed_strides,
)
from tensorpost.values.datatypes import TensorDataType
from tensorpost.values.problems import BodyMismatch, InvalidDescriptor, InvalidParameter

VECTORS = Path(__file__).parent / "tensor"
ARRAY_TYPES = [name for name, bits in DATA_TYPE_BITS.items() if bits >= 8]


def vectors(name: str) -> dict[str, Any]:
    return json.loads((VECTORS / f"{name}.json").read_text("utf-8"))


def refusal(document: dict[str, Any]) -> InvalidDescriptor:
    with pytest.raises(InvalidDescriptor) as error:
        BufferTensorDesc(**document)
    return error.value


def found(error: InvalidDescriptor) -> list[list[str]]:
    return sorted([violation.code, violation.where] for violation in error.violations)


# DMLCalcBufferTensorSize


@pytest.mark.parametrize("row", vectors("minimum_size")["rows"], ids=lambda row: row["why"])
def test_minimum_size(row: dict[str, Any]) -> None:
    data_type = TensorDataType[row["data_type"]]
    assert minimum_tensor_size_in_bytes(data_type, row["sizes"], row["strides"]) == row["bytes"]
    tensor = BufferTensorDesc(data_type=row["data_type"], sizes=row["sizes"], strides=row["strides"])
    assert tensor.total_tensor_size_in_bytes == row["bytes"]


@pytest.mark.parametrize("row", vectors("minimum_size")["refused"], ids=lambda row: row["why"])
def test_the_helpers_wrap_is_not_reproduced(row: dict[str, Any]) -> None:
    data_type = TensorDataType[row["data_type"]]
    assert minimum_tensor_size_in_bytes(data_type, row["sizes"], row["strides"]) == row["bytes"]
    error = refusal({"DataType": row["data_type"], "Sizes": row["sizes"], "Strides": row["strides"]})
    assert found(error) == [["too-many-elements", "$.Strides"]]
    # Nor does the total that the wrapped helper would give make it legal.
    document = {"DataType": row["data_type"], "Sizes": row["sizes"], "Strides": row["strides"]}
    assert "too-many-elements" in {code for code, _ in found(refusal({**document, "TotalTensorSizeInBytes": 4}))}


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(DATA_TYPE_BITS)))
def test_minimum_size_against_looking_at_every_element(data: st.DataObject, name: str) -> None:
    dims = data.draw(sizes(max_elements=128))
    strides = data.draw(st.one_of(st.none(), st.lists(st.integers(0, 50), min_size=len(dims), max_size=len(dims))))
    want = oracles.minimum_bytes(DATA_TYPE_BITS[name], dims, strides)
    assert minimum_tensor_size_in_bytes(TensorDataType[name], dims, strides) == want
    assert BufferTensorDesc(data_type=name, sizes=dims, strides=strides).total_tensor_size_in_bytes == want


# Addressing


@pytest.mark.parametrize("row", vectors("addressing")["rows"], ids=lambda row: row["why"])
def test_addressing(row: dict[str, Any]) -> None:
    tensor = BufferTensorDesc(data_type="UINT16", sizes=row["sizes"], strides=row["strides"])
    buffer = oracles.pack_elements(TensorDataType.UINT16, range(row["elements"]))
    assert tensor.view(buffer).tolist() == row["values"]
    assert tensor.view(buffer)[tuple(row["coordinate"])] == row["offset"]
    # The oracle that other tests trust is held to the same rows.
    assert oracles.element_offset(row["coordinate"], row["strides"] or oracles.packed(row["sizes"])) == row["offset"]
    assert oracles.read_values(tensor, buffer) == np.array(row["values"]).ravel().tolist()
    assert tensor.data_size_in_bytes == row["elements"] * 2


@settings(max_examples=100, deadline=None)
@given(sizes())
def test_packed_strides_count_the_elements(dims: tuple[int, ...]) -> None:
    strides = packed_strides(dims)
    offsets = [oracles.element_offset(c, strides) for c in oracles.coordinates(dims)]
    assert offsets == list(range(len(offsets)))
    assert last_index(dims, strides) == len(offsets) - 1


# Limits


@pytest.mark.parametrize("row", vectors("limits")["accepted"], ids=lambda row: row["why"])
def test_accepted(row: dict[str, Any]) -> None:
    assert BufferTensorDesc(**row["desc"]).total_tensor_size_in_bytes == row["total"]


@pytest.mark.parametrize("row", vectors("limits")["refused"], ids=lambda row: row["why"])
def test_refused_with_every_violation(row: dict[str, Any]) -> None:
    error = refusal(row["desc"])
    assert found(error) == sorted(row["found"])
    for violation in error.violations:
        assert violation.message
        assert violation.expected or violation.code == "field-missing"
        assert violation.source


@pytest.mark.parametrize(("name", "alignment"), vectors("alignment")["accepted"])
def test_alignment_accepted(name: str, alignment: int) -> None:
    tensor = BufferTensorDesc(data_type=name, sizes=(2,), guaranteed_base_offset_alignment=alignment)
    assert tensor.guaranteed_base_offset_alignment == alignment


@pytest.mark.parametrize(("name", "alignment"), vectors("alignment")["refused"])
def test_alignment_refused(name: str, alignment: int) -> None:
    error = refusal({"DataType": name, "Sizes": [2], "GuaranteedBaseOffsetAlignment": alignment})
    assert found(error) == [["alignment", "$.GuaranteedBaseOffsetAlignment"]]


# Outputs


def test_the_rule_for_outputs() -> None:
    for row in vectors("one_to_one")["one_to_one"]:
        assert is_one_to_one(row["sizes"], row["strides"]), row["why"]
    for row in vectors("one_to_one")["refused"]:
        assert not is_one_to_one(row["sizes"], row["strides"]), row["why"]


@settings(max_examples=200, deadline=None)
@given(sizes(max_dims=5, max_elements=200), st.data())
def test_what_is_called_one_to_one_is(dims: tuple[int, ...], data: st.DataObject) -> None:
    strides = data.draw(st.lists(st.integers(0, 30), min_size=len(dims), max_size=len(dims)))
    offsets = [oracles.element_offset(c, strides) for c in oracles.coordinates(dims)]
    if is_one_to_one(dims, strides):
        assert len(set(offsets)) == len(offsets)


@settings(max_examples=100, deadline=None)
@given(sizes(), st.data())
def test_nested_strides_in_any_order_are_one_to_one(dims: tuple[int, ...], data: st.DataObject) -> None:
    assert is_one_to_one(dims, data.draw(one_to_one_strides(dims)))


@pytest.mark.parametrize(
    ("document", "code", "path"),
    [
        ({"Strides": [0, 1]}, "strides-overlap", "$.Strides"),
        ({"Strides": [2, 1]}, "strides-overlap", "$.Strides"),
        ({"Flags": "OWNED_BY_DML"}, "owned-output", "$.Flags"),
    ],
)
def test_what_only_an_output_may_not_be(document: dict[str, Any], code: str, path: str) -> None:
    tensor = BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), **{k.lower(): v for k, v in document.items()})
    assert list(tensor.rules()) == []
    assert [(v.code, v.where) for v in tensor.output_rules()] == [(code, path)]


# Spellings, and the canonical form


@pytest.mark.parametrize("group", vectors("spellings")["groups"], ids=lambda group: group["canonical"]["DataType"])
def test_every_spelling_is_the_same_tensor(group: dict[str, Any]) -> None:
    tensors = [BufferTensorDesc(**document) for document in group["spellings"]]
    assert len(set(tensors)) == 1
    for tensor in tensors:
        assert tensor.to_json() == group["canonical"]
        assert list(tensor.to_json()) == [key for key in group["canonical"] if key in tensor.to_json()]


@pytest.mark.parametrize(
    ("value", "name"),
    [(1, "FLOAT32"), (2, "FLOAT16"), (3, "UINT32"), (4, "UINT16"), (5, "UINT8"), (6, "INT32"), (7, "INT16"),
     (8, "INT8"), (9, "FLOAT64"), (10, "UINT64"), (11, "INT64"), (12, "UINT4"), (13, "INT4")],
)  # fmt: skip
def test_every_data_type_in_every_spelling(value: int, name: str) -> None:
    for spelling in (value, name, f"DML_TENSOR_DATA_TYPE_{name}", TensorDataType(value), np.uint8(value)):
        tensor = BufferTensorDesc(DataType=spelling, Sizes=[2])
        assert tensor.data_type is TensorDataType[name]
        assert tensor.to_json()["DataType"] == name


@pytest.mark.parametrize("kind", ["DML_TENSOR_TYPE_INVALID", "INVALID", 0, 2, True, None, "buffer", [], {}, 1.0])
@pytest.mark.parametrize("inner", [{"DataType": "FLOAT32", "Sizes": [2]}, {"DataType": "FLOAT32", "Sizes": [0]}])
def test_the_long_form_has_one_type(kind: object, inner: dict[str, Any]) -> None:
    error = refusal({"Type": kind, "Desc": inner})
    want = [["tensor-type", "$.Type"]]
    if inner["Sizes"] == [0]:
        want.append(["size-zero", "$.Desc.Sizes[0]"])
    assert found(error) == sorted(want)


@pytest.mark.parametrize(
    ("document", "want"),
    [
        ({"Desc": None}, [["not-an-object", "$.Desc"]]),
        ({"Desc": [], "Type": 7}, [["not-an-object", "$.Desc"], ["tensor-type", "$.Type"]]),
        ({"Desc": {}}, [["field-missing", "$.Desc.DataType"], ["field-missing", "$.Desc.Sizes"]]),
        ({"Desc": {"DataType": "UINT8", "Sizes": [1]}, "Sizes": [1]}, [["field-unknown", "$.Sizes"]]),
        ({"Desc": {"Desc": {"DataType": "UINT8", "Sizes": [1]}}},
         [["field-missing", "$.Desc.DataType"], ["field-missing", "$.Desc.Sizes"], ["field-unknown", "$.Desc.Desc"]]),
        ({"Type": "BUFFER"}, [["field-missing", "$.DataType"], ["field-missing", "$.Sizes"]]),
        ({"Desc": {1: 2}}, [["not-an-object", "$.Desc"]]),
    ],
)  # fmt: skip
def test_a_broken_long_form(document: dict[str, Any], want: list[list[str]]) -> None:
    assert found(refusal(document)) == want


@settings(max_examples=150, deadline=None)
@given(tensor_descs(data_types=sorted(DATA_TYPE_BITS)))
def test_canonical_json_reads_back_the_same(tensor: BufferTensorDesc) -> None:
    document = json.loads(json.dumps(tensor.to_json()))
    again = BufferTensorDesc(**document)
    assert again == tensor
    assert hash(again) == hash(tensor)
    assert again.to_json() == document
    assert BufferTensorDesc(Type="DML_TENSOR_TYPE_BUFFER", Desc=document) == tensor
    assert pickle.loads(pickle.dumps(tensor)) == tensor


# The JSON schema that we publish


@settings(max_examples=60, deadline=None)
@given(tensor_descs(data_types=sorted(DATA_TYPE_BITS)), st.sampled_from(("validation", "serialization")))
def test_the_schema_accepts_what_we_write(tensor: BufferTensorDesc, mode: Any) -> None:
    SCHEMAS[mode].validate(tensor.to_json())


def _schema(mode: Any) -> jsonschema.Draft202012Validator:
    schema = BufferTensorDesc.model_json_schema(by_alias=True, mode=mode)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


SCHEMAS = {mode: _schema(mode) for mode in ("validation", "serialization")}


def test_the_schema_accepts_every_short_spelling() -> None:
    for group in vectors("spellings")["groups"]:
        for document in group["spellings"]:
            if not {"Type", "Desc"} & document.keys():  # the schema describes the short form only
                SCHEMAS["validation"].validate(document)


@pytest.mark.parametrize(
    "document",
    [
        {"DataType": "FLOAT33", "Sizes": [1]}, {"DataType": 14, "Sizes": [1]}, {"DataType": None, "Sizes": [1]},
        {"DataType": "FLOAT32"}, {"Sizes": [1]}, {"DataType": "FLOAT32", "Sizes": []},
        {"DataType": "FLOAT32", "Sizes": [1] * 9}, {"DataType": "FLOAT32", "Sizes": [-1]},
        {"DataType": "FLOAT32", "Sizes": [2**32]}, {"DataType": "FLOAT32", "Sizes": [1.5]},
        {"DataType": "FLOAT32", "Sizes": ["1"]}, {"DataType": "FLOAT32", "Sizes": [True]},
        {"DataType": "FLOAT32", "Sizes": [1], "Flags": 2}, {"DataType": "FLOAT32", "Sizes": [1], "Stride": [1]},
        {"DataType": "FLOAT32", "Sizes": [1], "TotalTensorSizeInBytes": 2**64},
        {"DataType": "FLOAT32", "Sizes": [1], "TotalTensorSizeInBytes": -4}, [], None, "FLOAT32",
    ],
)  # fmt: skip
def test_the_schema_refuses(document: Any) -> None:
    for validator in SCHEMAS.values():
        assert not validator.is_valid(document)


# Values: frozen, hashable, picklable, copied with care


def test_frozen() -> None:
    tensor = BufferTensorDesc.packed("FLOAT32", (2, 3))
    with pytest.raises(ValidationError, match="frozen"):
        tensor.sizes = (3, 2)  # pyright: ignore[reportAttributeAccessIssue] # on purpose
    with pytest.raises(ValidationError, match="frozen"):
        del tensor.sizes  # pyright: ignore[reportAttributeAccessIssue] # on purpose


def test_equal_if_the_fields_are_however_they_were_given() -> None:
    short = BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3))
    full = BufferTensorDesc(data_type=1, sizes=[2, 3], dimension_count=2, total_tensor_size_in_bytes=24, flags=0)
    assert short == full
    assert hash(short) == hash(full)
    assert len({short, full, BufferTensorDesc.packed(np.float32, (2, 3))}) == 1
    assert short != BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), strides=(3, 1))
    assert short != BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), flags="OWNED_BY_DML")


def test_a_copy_with_changes_is_checked_and_derives_anew() -> None:
    tensor = BufferTensorDesc.packed("FLOAT32", (2, 3))
    assert tensor.model_copy() == tensor
    changed = tensor.model_copy(update={"sizes": (4, 5, 6)})
    assert (changed.sizes, changed.dimension_count, changed.total_tensor_size_in_bytes) == ((4, 5, 6), 3, 480)
    with pytest.raises(InvalidDescriptor, match="size of 0"):
        tensor.model_copy(update={"sizes": (0,)})


# Python's conveniences


@pytest.mark.parametrize(
    "dims", [[2, 3], (2, 3), np.array([2, 3]), np.array([2, 3], np.uint8), [np.int64(2), np.uint16(3)], range(2, 4),
             np.zeros((2, 3)).shape, memoryview(b"\2\3")],
    ids=lambda dims: type(dims).__name__,
)  # fmt: skip
def test_sizes_from_any_sequence_of_integers(dims: Any) -> None:
    tensor = BufferTensorDesc(data_type="FLOAT32", sizes=dims)
    assert tensor.sizes == (2, 3)
    assert all(type(size) is int for size in tensor.sizes)


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), np.dtype(">f4"), "FLOAT32", 1, np.int8(1)])
def test_data_type_from_numpy(dtype: Any) -> None:
    assert BufferTensorDesc(data_type=dtype, sizes=[2]).data_type is TensorDataType.FLOAT32


@pytest.mark.parametrize(
    "dtype",
    [
        None, True, 1.0, np.float32(1), bool, np.dtype("bool"), complex, str, object, np.dtype("U4"), "f4", b"UINT8",
        [("a", "f4"), ("a", "f4")], {"names": ["a"], "formats": ["f4"], "itemsize": -1}, np.array([1, 2]), ["FLOAT32"],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_data_type(dtype: Any) -> None:
    assert found(refusal({"DataType": dtype, "Sizes": [2]})) == [["enum-unknown", "$.DataType"]]


@pytest.mark.parametrize(
    "size", [True, np.True_, 2.0, np.float64(2), float("nan"), float("inf"), "2", b"2", None, [2], {}, np.array([2, 3]),
             np.array(2.0), 2j],
    ids=repr,
)  # fmt: skip
def test_what_is_no_whole_number(size: Any) -> None:
    for field in ("Sizes", "Strides"):
        document = {"DataType": "UINT8", "Sizes": [1], field: [size]}
        assert found(refusal(document)) == [["not-an-integer", f"$.{field}[0]"]]
    for field in ("TotalTensorSizeInBytes", "GuaranteedBaseOffsetAlignment", "DimensionCount"):
        document = {"DataType": "UINT8", "Sizes": [1], field: size}
        assert found(refusal(document)) == [["not-an-integer", f"$.{field}"]]


@pytest.mark.parametrize("number", [-1, 2**32, 2**64, 10**5000, -(10**5000)], ids=["-1", "2^32", "2^64", "+", "-"])
def test_numbers_beyond_uint(number: int) -> None:
    for field in ("Sizes", "Strides"):
        error = refusal({"DataType": "UINT8", "Sizes": [1], field: [number]})
        assert found(error) == [["out-of-range", f"$.{field}[0]"]]
        json.dumps(error.to_problem(422), allow_nan=False)
    assert found(refusal({"DataType": "UINT8", "Sizes": [1], "DimensionCount": number})) == [
        ["out-of-range", "$.DimensionCount"]
    ]


def test_a_numpy_integer_beyond_its_own_type_does_not_wrap() -> None:
    total = np.uint64(2**63)
    error = refusal({"DataType": "UINT8", "Sizes": [1], "TotalTensorSizeInBytes": total})
    assert found(error) == [["too-many-elements", "$.TotalTensorSizeInBytes"]]


def test_errors_use_directmls_names_whichever_were_used() -> None:
    with pytest.raises(InvalidDescriptor) as error:
        BufferTensorDesc(data_type="FLOAT23", sizes=[-1], strides=[1.5])  # pyright: ignore[reportArgumentType] # wrong on purpose
    assert found(error.value) == [
        ["enum-unknown", "$.DataType"], ["not-an-integer", "$.Strides[0]"], ["out-of-range", "$.Sizes[0]"]
    ]  # fmt: skip


def test_a_field_under_both_names_is_given_twice() -> None:
    error = refusal({"DataType": "UINT8", "Sizes": [1], "sizes": [2]})
    assert found(error) == [["field-twice", "$.Sizes"]]


# The words


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"DataType": "FLOAT23", "Sizes": [1]},
         "$.DataType: DataType 'FLOAT23' is not a DML_TENSOR_DATA_TYPE; did you mean 'FLOAT32'?"),
        ({"DataType": "FLOAT", "Sizes": [1]},
         "$.DataType: DataType 'FLOAT' is not a DML_TENSOR_DATA_TYPE; did you mean 'FLOAT32'?"),
        ({"DataType": None, "Sizes": [1]},
         "$.DataType: DataType must be the name or number of a DML_TENSOR_DATA_TYPE, not null"),
        ({"DataType": "UINT8", "Sizes": [1.5]}, "$.Sizes[0]: Sizes[0] must be a whole number, not 1.5"),
        ({"DataType": "UINT8", "Sizes": [2**32]},
         "$.Sizes[0]: Sizes[0] is 4294967296, which does not fit DirectML's UINT: a whole number from 0 to 4294967295"),
        ({"DataType": "UINT8", "Sizes": []}, "$.Sizes: Sizes has 0 entries, not 1 to 8"),
        ({"DataType": "UINT8", "Sizes": [0]},
         "$.Sizes[0]: a size of 0 is an error in DirectML, which has no empty tensors"),
        ({"DataType": "UINT8", "Sizes": [1], "Stride": [1]},
         "$.Stride: BufferTensorDesc has no field 'Stride'; did you mean 'Strides'?"),
        ({"DataType": "UINT8"}, "$.Sizes: Sizes is required"),
        ({"DataType": "UINT8", "Sizes": [1], "DimensionCount": 2},
         "$.DimensionCount: DimensionCount is 2 but Sizes has 1 entry; leave it out or send the length"),
        ({"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [5, 1], "TotalTensorSizeInBytes": 24},
         ("$.TotalTensorSizeInBytes: Sizes and Strides reach 32 bytes (rounded up to 4), but the buffer has 24; "
          "raise it or lower the strides")),
        ({"DataType": "FLOAT32", "Sizes": [1], "GuaranteedBaseOffsetAlignment": 6},
         "$.GuaranteedBaseOffsetAlignment: 6 is not 0 or a power of two of at least 16 bytes"),
    ],
)  # fmt: skip
def test_messages(document: dict[str, Any], words: str) -> None:
    assert str(refusal(document)) == words


# The view


@settings(max_examples=150, deadline=None)
@given(tensor_descs(data_types=ARRAY_TYPES, max_elements=128), st.integers(0, 7), st.booleans())
def test_view_reads_the_right_bytes_and_no_others(tensor: BufferTensorDesc, shift: int, writable: bool) -> None:
    total = tensor.total_tensor_size_in_bytes
    guard = bytearray((i * 7 + 1) % 251 for i in range(total + 2 * shift))
    window = memoryview(guard)[shift : shift + total]
    view = tensor.view(window if writable else window.toreadonly())

    assert view.shape == tensor.sizes
    assert view.dtype.itemsize == tensor.item_size
    low, high = array_utils.byte_bounds(view)
    start = np.frombuffer(guard, np.uint8).ctypes.data + shift
    assert start <= low
    assert high <= start + total
    assert high - start == tensor.data_size_in_bytes
    assert [element.tobytes() for element in view.reshape(-1)] == oracles.read_elements(tensor, bytes(window))
    shared = not is_one_to_one(tensor.sizes, tensor.effective_strides)
    assert view.flags.writeable == (writable and not shared)


@settings(max_examples=100, deadline=None)
@given(tensor_descs(data_types=ARRAY_TYPES, max_elements=64), st.integers(0, 3))
def test_view_of_a_short_buffer_is_refused_before_it_is_made(tensor: BufferTensorDesc, missing: int) -> None:
    needed = tensor.data_size_in_bytes
    with pytest.raises(BodyMismatch) as error:
        tensor.view(bytes(max(0, needed - 1 - missing)))
    assert error.value.extra == {"expected": needed, "actual": max(0, needed - 1 - missing)}
    assert tensor.view(bytes(needed)).shape == tensor.sizes


def test_the_farthest_element_is_where_the_oracle_says() -> None:
    for dims, strides in itertools.product([(2, 3), (3, 1, 2)], [(5, 1, 2), (1, 4, 0), (0, 0, 0)]):
        tensor = BufferTensorDesc(data_type="INT16", sizes=dims, strides=strides[: len(dims)])
        farthest = max(oracles.element_offset(c, strides[: len(dims)]) for c in oracles.coordinates(dims))
        assert tensor.data_size_in_bytes == 2 * (farthest + 1)


def test_view_writes_through() -> None:
    buffer = bytearray(32)
    BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), strides=(5, 1)).view(buffer)[1, 0] = 1.0
    assert bytes(buffer) == bytes(20) + b"\x00\x00\x80\x3f" + bytes(8)


def test_view_takes_any_buffer() -> None:
    tensor = BufferTensorDesc.packed("UINT16", (3,))
    for buffer in (b"\1\0\2\0\3\0\0\0", bytearray(b"\1\0\2\0\3\0"), np.array([1, 2, 3], np.uint16),
                   np.array([[1, 2], [3, 4]], "<u2"), memoryview(b"\1\0\2\0\3\0")):  # fmt: skip
        assert tensor.view(buffer).tolist() == [1, 2, 3]


def test_4_bit_types_are_lines_of_bytes() -> None:
    tensor = BufferTensorDesc.packed("INT4", (3, 3))
    assert (tensor.data_size_in_bytes, tensor.total_tensor_size_in_bytes) == (5, 8)
    assert tensor.view(bytes(range(8))).tolist() == [0, 1, 2, 3, 4]
    apart = BufferTensorDesc(data_type="UINT4", sizes=(3, 3), strides=(5, 1))
    assert apart.view(bytes(range(8))).tolist() == [*range(8)]
    assert apart.layout.data_type.directml == "UINT8"


@pytest.mark.parametrize(
    ("fields", "packed"),
    [
        ({"sizes": (2, 3)}, True),
        ({"sizes": (2, 3), "strides": (3, 1)}, True),
        ({"sizes": (1, 3), "strides": (77, 1)}, True),
        ({"sizes": (2, 3), "strides": (5, 1)}, False),
        ({"sizes": (2, 3), "strides": (1, 2)}, False),
        ({"sizes": (2, 3), "total_tensor_size_in_bytes": 64}, False),
    ],
)
def test_is_packed(fields: dict[str, Any], packed: bool) -> None:
    assert BufferTensorDesc(data_type="FLOAT32", **fields).is_packed is packed


def test_flags_are_the_headers() -> None:
    assert [(flag.name, int(flag)) for flag in TensorFlags] == [("OWNED_BY_DML", 1)]


def test_printed_is_what_is_neither_derived_nor_a_default() -> None:
    packed = BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), dimension_count=2)
    strided = BufferTensorDesc.model_validate({"DataType": 1, "Sizes": [2, 3], "Strides": [5, 1], "Flags": "NONE"})

    assert str(packed) == "BufferTensorDesc(DataType FLOAT32, Sizes (2, 3))"
    assert str(strided) == "BufferTensorDesc(DataType FLOAT32, Sizes (2, 3), Strides (5, 1))"
    assert "data_type=<TensorDataType.FLOAT32: 1>" in repr(packed)


@pytest.mark.parametrize(
    ("sizes", "strides", "elements", "numbers"),
    [
        ((2, 3), (4, 1), [[1, 2, 3], [4, 5, 6]], [1, 2, 3, 0, 4, 5, 6]),
        ((2, 3), (1, 2), [[1, 3, 5], [2, 4, 6]], [1, 2, 3, 4, 5, 6]),
        ((2, 3), (0, 1), [[1, 2, 3], [1, 2, 3]], [1, 2, 3]),
        ((2, 2), (1, 1), [[1, 2], [2, 3]], [1, 2, 3]),
        ((2, 3), None, [[1, 2, 3], [4, 5, 6]], [1, 2, 3, 4, 5, 6]),
    ],
)
def test_elements_are_laid_out_in_a_buffer(sizes: Any, strides: Any, elements: Any, numbers: list[int]) -> None:
    tensor = BufferTensorDesc(data_type="FLOAT32", sizes=sizes, strides=strides)

    buffer = tensor.buffer_of(np.array(elements, np.float32))

    assert buffer.view(np.float32).tolist() == numbers
    assert tensor.view(buffer).tolist() == elements


@pytest.mark.parametrize(
    ("elements", "said"),
    [
        (np.zeros((2, 3), np.float64), "float64"),
        (np.zeros((3, 2), np.float32), r"\(3, 2\)"),
        (np.arange(6, dtype=np.float32).reshape(2, 3), "share addresses"),
    ],
)
def test_elements_that_have_no_place_in_a_buffer_are_refused(elements: Any, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), strides=(0, 1)).buffer_of(elements)

"""`tensorpost.datatypes` against the tables of `DirectML.h`, `onnx.proto`, Open Inference and safetensors."""

import contextlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpost.values.datatypes import DATA_TYPES, DataType, TensorDataType, data_type, directml_word, type_named

# DML_TENSOR_DATA_TYPE in DirectML.h: value, name, bits
DIRECTML = [
    (0, "UNKNOWN", 0), (1, "FLOAT32", 32), (2, "FLOAT16", 16), (3, "UINT32", 32), (4, "UINT16", 16), (5, "UINT8", 8),
    (6, "INT32", 32), (7, "INT16", 16), (8, "INT8", 8), (9, "FLOAT64", 64), (10, "UINT64", 64), (11, "INT64", 64),
    (12, "UINT4", 4), (13, "INT4", 4),
]  # fmt: skip

# onnx.proto TensorProto.DataType, Open Inference "tensor data types" with Triton's BF16, safetensors' Dtype
NAMES = [
    # NumPy, ONNX, ONNX code, Open Inference, safetensors, bytes
    ("float32", "float", 1, "FP32", "F32", 4), ("uint8", "uint8", 2, "UINT8", "U8", 1),
    ("int8", "int8", 3, "INT8", "I8", 1), ("uint16", "uint16", 4, "UINT16", "U16", 2),
    ("int16", "int16", 5, "INT16", "I16", 2), ("int32", "int32", 6, "INT32", "I32", 4),
    ("int64", "int64", 7, "INT64", "I64", 8), ("str", "string", 8, "BYTES", None, 0),
    ("bool", "bool", 9, "BOOL", "BOOL", 1), ("float16", "float16", 10, "FP16", "F16", 2),
    ("float64", "double", 11, "FP64", "F64", 8), ("uint32", "uint32", 12, "UINT32", "U32", 4),
    ("uint64", "uint64", 13, "UINT64", "U64", 8), ("complex64", "complex64", 14, None, "C64", 8),
    ("complex128", "complex128", 15, None, None, 16), ("bfloat16", "bfloat16", 16, "BF16", "BF16", 2),
    ("float8_e4m3fn", "float8e4m3fn", 17, None, "F8_E4M3", 1),
    ("float8_e4m3fnuz", "float8e4m3fnuz", 18, None, "F8_E4M3FNUZ", 1),
    ("float8_e5m2", "float8e5m2", 19, None, "F8_E5M2", 1),
    ("float8_e5m2fnuz", "float8e5m2fnuz", 20, None, "F8_E5M2FNUZ", 1),
    ("float8_e8m0fnu", "float8e8m0", 24, None, "F8_E8M0", 1),
    ("float6_e2m3fn", "float6e2m3", 27, None, "F6_E2M3_U8", 1),
    ("float6_e3m2fn", "float6e3m2", 28, None, "F6_E3M2_U8", 1),
    ("float4_e2m1fn", "float4e2m1", 23, None, "F4_E2M1_U8", 1),
    ("uint4", "uint4", 21, None, "U4_U8", 1), ("int4", "int4", 22, None, "I4_U8", 1),
    ("uint2", "uint2", 25, None, "U2_U8", 1), ("int2", "int2", 26, None, "I2_U8", 1),
]  # fmt: skip


@pytest.mark.parametrize(("value", "name", "bits"), DIRECTML)
def test_directml_enum(value: int, name: str, bits: int) -> None:
    member = TensorDataType[name]
    assert (int(member), member.bits) == (value, bits)


def test_directml_enum_has_no_other_member() -> None:
    assert [(int(t), t.name) for t in TensorDataType] == [(value, name) for value, name, _ in DIRECTML]


@pytest.mark.parametrize(("numpy_name", "onnx", "code", "oip", "safetensors", "item_size"), NAMES)
def test_row(numpy_name: str, onnx: str, code: int, oip: str | None, safetensors: str | None, item_size: int) -> None:
    row = data_type(numpy_name)
    assert (row.numpy_name, row.onnx, row.onnx_code) == (numpy_name, onnx, code)
    assert (row.open_inference, row.safetensors, row.item_size) == (oip, safetensors, item_size)
    for name in (onnx, oip, safetensors):
        if name is not None:
            assert data_type(name) is row


def test_there_is_no_other_row() -> None:
    assert {row.numpy_name for row in DATA_TYPES} == {row[0] for row in NAMES}
    assert len(DATA_TYPES) == len(NAMES)


def test_no_spelling_has_two_meanings() -> None:
    meanings: dict[str, DataType] = {}
    for row in DATA_TYPES:
        for name in (row.numpy_name, row.directml, row.onnx, row.open_inference, row.safetensors):
            if name is not None:
                assert meanings.setdefault(name, row) is row, name


@pytest.mark.parametrize(("value", "name", "bits"), DIRECTML)
def test_row_of_a_directml_type(value: int, name: str, bits: int) -> None:
    member = TensorDataType(value)
    if bits < 8:
        with pytest.raises(KeyError, match=name):
            _ = member.row
    else:
        assert member.row.directml == name
        assert member.row.item_size * 8 == bits
        assert member.row.dtype.itemsize * 8 == bits


@pytest.mark.parametrize("row", DATA_TYPES, ids=lambda row: row.numpy_name)
def test_dtype_is_little_endian_and_leads_back(row: DataType) -> None:
    dtype = row.dtype
    if row.numpy_name == "str":
        assert dtype == np.dtype(object)
        return
    assert dtype.itemsize == row.item_size
    assert dtype.str[0] in "<|"
    assert data_type(dtype) is row
    assert data_type(dtype.type) is row


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    assert data_type("bfloat16").dtype == np.dtype(ml_dtypes.bfloat16)
    assert data_type(ml_dtypes.bfloat16) is data_type("BF16")


def test_bfloat16_without_ml_dtypes_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[bfloat16\]'"):
        _ = data_type("bfloat16").dtype


@pytest.mark.parametrize(
    ("name", "numpy_name"),
    [
        ("I8", "int8"), ("i8", "int64"),  # safetensors and NumPy
        ("U8", "uint8"), ("u8", "uint64"),
        ("float", "float32"), (float, "float64"),  # ONNX and Python
        (int, np.dtype(int).name), (bool, "bool"), (complex, "complex128"), (str, "str"),
        ("<f4", "float32"), (">f4", "float32"), ("=f4", "float32"), ("f4", "float32"), ("|u1", "uint8"),
        ("|b1", "bool"), ("<c16", "complex128"), (np.dtype(">i2"), "int16"), (np.float16, "float16"),
        (np.longlong, "int64"),
    ],
)  # fmt: skip
def test_lookups(name: object, numpy_name: str) -> None:
    assert data_type(name).numpy_name == numpy_name  # pyright: ignore[reportArgumentType] # what callers may send


@pytest.mark.parametrize(
    "name",
    [
        None, 1, 1.5, True, "", " ", "FLOAT", "Float32", "float8", "int3", "f4,f4", "f4,,", "(2,)f4", "a3",
        "S3", "<U5", "M8[s]", "O", "V4", "f4" * 10**5, "\ud800", "ﬂoat32", [("a", "f4"), ("a", "f4")], {"names": ["a"]},
        ["f4"], b"f4", np.dtype([("a", "f4")]), np.dtype("U3"), np.dtype(object), np.longdouble, np.floating, object,
        np.float32(1), np.zeros(3), type("Odd", (), {"dtype": 3}),
    ],
    ids=lambda name: repr(name)[:30].encode("ascii", "backslashreplace").decode(),
)  # fmt: skip
def test_what_names_no_type_is_a_key_error(name: object) -> None:
    # With warnings as errors this also shows that nothing here warns.
    with pytest.raises(KeyError, match="is not a data type") as error:
        data_type(name)  # pyright: ignore[reportArgumentType] # wrong on purpose
    assert len(str(error.value)) < 250


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_a_row_or_a_key_error(text: str) -> None:
    try:
        row = data_type(text)
    except KeyError:
        return
    assert row in DATA_TYPES


def test_the_table_does_not_depend_on_assertions() -> None:
    # `python -O` removes assert statements; an earlier version filled the table inside one.
    code = "from tensorpost.datatypes import data_type; print(data_type('F32').directml)"
    ran = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "FLOAT32"


@pytest.mark.parametrize(
    ("word", "numpy_name"),
    [
        *[(word, "float16") for word in (
            "FLOAT16", "float16", "Float16", "F16", "FP16", "fp16", "f2", "<f2", "half", "np.float16", "numpy.half",
            "DML_TENSOR_DATA_TYPE_FLOAT16", "tensor(float16)", "TensorProto.FLOAT16", "onnx.TensorProto.FLOAT16",
            " float16 ", "torch.float16",
        )],
        ("FLOAT", "float32"), ("tensor(float)", "float32"), ("single", "float32"), ("f32", "float32"),
        ("Double", "float64"), ("np.float", "float64"), ("torch.float", "float32"), ("TensorProto.DOUBLE", "float64"),
        ("tensor(bool)", "bool"), ("Bool", "bool"),
        ("i8", "int64"), ("I8", "int8"), ("Int8", "int8"), ("u8", "uint64"), ("U8", "uint8"),
        ("bf16", "bfloat16"), ("BFLOAT16", "bfloat16"), ("FLOAT8E4M3FN", "float8_e4m3fn"), ("tensor(int4)", "int4"),
    ],
)  # fmt: skip
def test_words_that_people_write(word: str, numpy_name: str) -> None:
    assert type_named(word).numpy_name == numpy_name


@pytest.mark.parametrize("name", [name for row in NAMES for name in (row[0], row[1], row[3], row[4]) if name])
def test_every_name_is_a_word_in_any_case_that_is_no_other_name(name: str) -> None:
    row = data_type(name)
    assert type_named(name) is row
    for word in (name.lower(), name.upper(), name.title(), f"tensor({name})"):
        with contextlib.suppress(KeyError):
            assert data_type(word) is type_named(word)  # I8 and i8 are two types
            continue
        if word != "f16":
            assert type_named(word) is row, word


@pytest.mark.parametrize(
    "word", ["", " ", "nope", "f16", "float33", "tensor(", "tensor()", "np.", "\ufb02oat32", "int"]
)
def test_a_word_that_is_no_type_is_refused_with_those_that_are(word: str) -> None:
    with pytest.raises(
        KeyError, match=r"is not a data type; there are float32, float16, .*as FLOAT32, float, F32 and FP32"
    ):
        type_named(word)


def test_a_word_becomes_directmls_name() -> None:
    words = ["tensor(double)", "F16", "int8", "UINT4", "DML_TENSOR_DATA_TYPE_UINT4", "bool", "nope", 3, None]
    found = ["FLOAT64", "FLOAT16", "INT8", "UINT4", "DML_TENSOR_DATA_TYPE_UINT4", "bool", "nope", 3, None]
    assert [directml_word(word) for word in words] == found

"""Documents made to hurt: whatever comes, only a `TensorpostError` comes out, soon, and its problem can be sent.

Times are generous so that a busy machine passes; what they catch is work that grows with the square of the input.
"""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batches import each
from tests.support.strategies import json_values

from tensorpost.descriptors import OPERATORS, FeatureLevel, OperatorDesc, TileOperatorDesc, parse_operator
from tensorpost.values.problems import InvalidDescriptor, TensorpostError

SECONDS = 2.0
GOOD: dict[str, Any] = {"DataType": "FLOAT32", "Sizes": [2, 3]}


def tile(**changes: Any) -> dict[str, Any]:
    desc = {"InputTensor": GOOD, "OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 6]}, "Repeats": [1, 2]}
    return {"type": "TILE", "desc": {**desc, **changes}}


def attempt(document: Any, *, complete: bool) -> TensorpostError | None:
    """Parse; return the error. Anything that is not ours escapes and fails the test."""
    try:
        parse_operator(document, complete=complete)
    except TensorpostError as error:
        text = json.dumps(error.to_problem(422), ensure_ascii=False, allow_nan=False)
        assert len(text.encode("utf-8")) < 60_000
        str(error).encode("utf-8")
        return error
    return None


def nested(levels: int, wrap: Callable[[Any], Any], innermost: Any = 1) -> Any:
    value = innermost
    for _ in range(levels):
        value = wrap(value)
    return value


def hostile() -> Iterator[tuple[str, Any]]:
    million = [1] * 10**6
    yield "a million sizes", tile(InputTensor={**GOOD, "Sizes": million})
    yield "a million wrong sizes", tile(InputTensor={**GOOD, "Sizes": ["x"] * 10**6})
    yield "a million nulls", tile(Repeats=[None] * 10**6)
    yield "a million strides", tile(OutputTensor={**GOOD, "Strides": million})
    yield "a million repeats", tile(Repeats=million)
    yield "a NumPy million", tile(Repeats=np.ones(10**6, np.int64))
    yield "a text of ten million characters", tile(Repeats="1" * 10**7)
    yield "a type of ten million characters", {"type": "T" * 10**7, "desc": {}}
    yield "a data type of ten million characters", tile(InputTensor={**GOOD, "DataType": "F" * 10**7})
    yield "a hundred thousand fields", tile(**{f"Repeat{i}": i for i in range(10**5)})
    yield "a hundred thousand tensor fields", tile(InputTensor={**GOOD, **{f"k{i}": i for i in range(10**5)}})
    yield "a hundred thousand members", {**tile(), **{f"k{i}": i for i in range(10**5)}}
    yield "a field name of a million characters", tile(**{"R" * 10**6: 1})
    yield (
        "a long form with a hundred thousand members",
        tile(InputTensor={"Desc": GOOD, **{f"k{i}": i for i in range(10**5)}}),
    )
    for name, number in (("huge", 10**5000), ("minus huge", -(10**5000)), ("2^64", 2**64), ("NaN", float("nan"))):
        yield f"{name} size", tile(InputTensor={**GOOD, "Sizes": [number, 1]})
        yield f"{name} repeat", tile(Repeats=[number, 1])
        yield f"{name} total", tile(InputTensor={**GOOD, "TotalTensorSizeInBytes": number})
        yield f"{name} data type", tile(InputTensor={**GOOD, "DataType": number})
        yield f"{name} flags", tile(InputTensor={**GOOD, "Flags": number})
        yield f"{name} count", tile(RepeatsCount=number)
        yield f"{name} operator", {"type": number, "desc": number}
        yield f"{name} tensor type", tile(InputTensor={"Type": number, "Desc": GOOD})
    deep_list, deep_dict = nested(10**5, lambda v: [v]), nested(10**5, lambda v: {"Desc": v})
    for name, deep in (("list", deep_list), ("object", deep_dict)):
        yield f"deep {name} document", deep
        yield f"deep {name} desc", {"type": "TILE", "desc": deep}
        yield f"deep {name} type", {"type": deep, "desc": {}}
        yield f"deep {name} tensor", tile(InputTensor=deep)
        yield f"deep {name} sizes", tile(InputTensor={**GOOD, "Sizes": deep})
        yield f"deep {name} size", tile(InputTensor={**GOOD, "Sizes": [deep]})
        yield f"deep {name} data type", tile(InputTensor={**GOOD, "DataType": deep})
        yield f"deep {name} tensor type", tile(InputTensor={"Type": deep, "Desc": GOOD})
        yield f"deep {name} repeats", tile(Repeats=deep)
        yield f"deep {name} unknown field", tile(Unknown=deep)
    for name, text in (
        ("surrogate", "\ud800"),
        ("zero", "\0"),
        ("right to left", "\u202eELIT"),
        ("emoji", "\U0001f642" * 40),
    ):
        yield f"{name} type", {"type": text, "desc": {}}
        yield f"{name} member", {**tile(), text: 1}
        yield f"{name} field", tile(**{text: text})
        yield f"{name} tensor field", tile(InputTensor={**GOOD, text: text})
        yield f"{name} data type", tile(InputTensor={**GOOD, "DataType": text})
        yield f"{name} sizes", tile(InputTensor={**GOOD, "Sizes": text})
        yield f"{name} size", tile(InputTensor={**GOOD, "Sizes": [text]})
    yield "Python's own names", tile(self=1, cls=2, data=3, model_config=4, __class__=5, _rules=6, rules=7)
    yield (
        "Pydantic's own names",
        {"type": "TILE", "desc": {"model_fields_set": ["x"], "__dict__": {}, "__pydantic_extra__": {}}},
    )


def test_hostile_documents() -> None:
    accepted, slow = list[str](), list[str]()
    for name, document in hostile():
        for complete in (False, True):
            start = time.process_time()
            if attempt(document, complete=complete) is None:
                accepted.append(name)
            if time.process_time() - start >= SECONDS:
                slow.append(name)
    assert not accepted, "none of these is a valid document"
    assert not slow


@each("cls", OPERATORS, ids=lambda cls: cls.operator_type)
def test_wrong_types_in_every_field_of_every_operator(cls: type[OperatorDesc]) -> None:
    wrong: list[Any] = [
        None,
        True,
        -1,
        1.5,
        float("inf"),
        "",
        "x",
        [],
        [[]],
        [None],
        {},
        {"": None},
        10**5000,
        [10**5000],
        b"x",
    ]
    names = [str(info.alias) for info in cls.model_fields.values()]
    start = time.process_time()
    for value in wrong:
        assert attempt({"type": cls.operator_type, "desc": dict.fromkeys(names, value)}, complete=False) is not None
        for name in names:
            assert attempt({"type": cls.operator_type, "desc": {name: value}}, complete=True) is not None
    assert time.process_time() - start < SECONDS


def test_a_refused_million_needs_little_memory() -> None:
    # The document itself is the reader's to limit; parsing must not multiply it.
    document = tile(Repeats=[1] * 10**6, **{f"k{i}": i for i in range(10**4)})
    del document["desc"]["OutputTensor"]
    tracemalloc.start()
    attempt(document, complete=False)
    attempt(document, complete=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


def test_sizes_that_multiply_to_77_digits_are_refused_at_once() -> None:
    most = 2**32 - 1
    huge = {"DataType": "FLOAT32", "Sizes": [most] * 8, "Strides": [most] * 8, "TotalTensorSizeInBytes": 2**64 - 4}
    start = time.process_time()
    error = attempt(tile(InputTensor=huge, OutputTensor=huge, Repeats=[most] * 8), complete=False)
    assert time.process_time() - start < SECONDS
    assert isinstance(error, InvalidDescriptor)


def test_a_descriptor_allocates_nothing_of_the_tensors_size() -> None:
    tracemalloc.start()
    desc = TileOperatorDesc.completed({"InputTensor": {"DataType": "FLOAT32", "Sizes": [1]}, "Repeats": [2**32 - 1]})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert desc.output_tensor.total_tensor_size_in_bytes == 4 * (2**32 - 1)
    assert peak < 2**20


@settings(max_examples=100, deadline=None)
@given(json_values(), st.booleans())
def test_any_json_document(document: Any, complete: bool) -> None:
    attempt(document, complete=complete)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([cls.operator_type for cls in OPERATORS]), json_values(), st.booleans())
def test_any_description_of_an_operator(name: str, desc: Any, complete: bool) -> None:
    attempt({"type": name, "desc": desc}, complete=complete)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["InputTensor", "OutputTensor", "Repeats", "RepeatsCount"]), json_values()),
    st.booleans(),
)
def test_any_value_in_a_tiles_fields(changes: dict[str, Any], complete: bool) -> None:
    attempt(tile(**changes), complete=complete)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["Type", "Desc", "DataType", "Sizes", "Strides", "Flags", "DimensionCount", "TotalTensorSizeInBytes",
             "GuaranteedBaseOffsetAlignment"]
        ),
        json_values(max_leaves=8),
    ),
    st.booleans(),
)  # fmt: skip
def test_any_value_in_a_tensors_fields(changes: dict[str, Any], complete: bool) -> None:
    attempt(tile(InputTensor={**GOOD, **changes}), complete=complete)


@settings(max_examples=100, deadline=None)
@given(json_values(max_leaves=5))
def test_any_value_as_a_feature_level(value: Any) -> None:
    try:
        level = FeatureLevel.parse(value)
    except TensorpostError as error:
        str(error).encode("utf-8")
    else:
        assert level in FeatureLevel

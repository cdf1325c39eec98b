"""`tensorpost.problems`: the tree, its JSON (RFC 9457), and what may be shown of a value that came from outside."""

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batches import each
from tests.support.strategies import json_values

from tensorpost.values.datatypes import TensorDataType
from tensorpost.values.problems import (
    BodyMismatch,
    ConnectionProblem,
    IncompleteBody,
    InvalidDescriptor,
    InvalidRequest,
    LimitExceeded,
    RequestTimeout,
    ServerFault,
    TensorpostError,
    TooBusy,
    Unavailable,
    UnsupportedAtLevel,
    Violation,
    from_problem,
    json_path,
    nearest,
    presentable,
    problem_classes,
)

VIOLATION = Violation(
    "repeat-zero", ("desc", "Repeats", 1), "every repeat must be larger than 0", 0, "at least 1", "page"
)
CLASSES = [cls for cls in problem_classes().values() if cls.__module__ == "tensorpost.values.problems"]


def _example(cls: type[TensorpostError]) -> TensorpostError:
    return cls("what was wrong", (VIOLATION,), {"limit": 3, "setting": "max_things"}, 418, "request-7")


# The tree


@pytest.mark.parametrize(
    ("cls", "parents"),
    [
        (InvalidRequest, (TensorpostError, ValueError)), (InvalidDescriptor, (InvalidRequest,)),
        (UnsupportedAtLevel, (InvalidDescriptor,)), (LimitExceeded, (InvalidRequest,)),
        (BodyMismatch, (InvalidRequest,)), (TooBusy, (Unavailable,)), (ConnectionProblem, (ConnectionError,)),
        (RequestTimeout, (ConnectionProblem, TimeoutError)), (IncompleteBody, (ConnectionProblem,)),
    ],
    ids=lambda part: part.__name__ if isinstance(part, type) else "",
)  # fmt: skip
def test_the_tree(cls: type, parents: tuple[type, ...]) -> None:
    assert issubclass(cls, (TensorpostError,))
    assert all(issubclass(cls, parent) for parent in parents)


def test_unavailable_is_not_the_callers_mistake() -> None:
    assert not issubclass(Unavailable, (ValueError, InvalidRequest))
    assert not issubclass(ServerFault, (ValueError, InvalidRequest, Unavailable))


# The JSON and back


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_problem_document_and_back(cls: type[TensorpostError]) -> None:
    error = _example(cls)
    document = error.to_problem(418)
    assert document == {
        "type": f"urn:tensorpost:problem:{cls.code}",
        "title": cls.title,
        "status": 418,
        "detail": "what was wrong",
        "violations": [
            {
                "code": "repeat-zero", "path": "$.desc.Repeats[1]", "message": "every repeat must be larger than 0",
                "value": 0, "expected": "at least 1", "source": "page",
            }
        ],
        "limit": 3,
        "setting": "max_things",
    }  # fmt: skip
    received = from_problem(json.loads(json.dumps(document)), 418, "request-7")
    if cls is TensorpostError:
        assert type(received) is InvalidRequest  # the root says nothing; the status decides
        return
    assert type(received) is cls
    assert (received.detail, received.extra) == (error.detail, error.extra)
    assert (received.status, received.request_id) == (418, "request-7")
    assert received.to_problem(418) == document
    assert str(received) == str(error)


def test_a_problem_without_extras_is_small() -> None:
    assert ServerFault("it broke").to_problem() == {
        "type": "urn:tensorpost:problem:internal-error", "title": "The server failed", "detail": "it broke",
    }  # fmt: skip


def test_extra_members_never_hide_the_standard_ones() -> None:
    problem = ServerFault("it broke", extra={"type": "x", "detail": "y", "title": "z"}).to_problem(500)
    assert problem["type"] == "urn:tensorpost:problem:internal-error"
    assert (problem["detail"], problem["title"]) == ("it broke", "The server failed")


@pytest.mark.parametrize(
    ("status", "cls"),
    [(400, InvalidRequest), (404, InvalidRequest), (422, InvalidRequest), (429, Unavailable), (503, Unavailable),
     (500, ServerFault), (502, ServerFault), (504, ServerFault)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["urn:tensorpost:problem:from-the-future", "about:blank", None])
def test_an_unknown_type_is_read_by_its_status(status: int, cls: type[TensorpostError], kind: str | None) -> None:
    document = {"title": "Something new"} if kind is None else {"type": kind, "title": "Something new"}
    error = from_problem(document, status)
    assert type(error) is cls
    assert (error.detail, error.status) == ("Something new", status)


def test_a_document_without_words_says_the_status() -> None:
    assert from_problem({}, 502).detail == "HTTP status 502"


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["type", "title", "detail", "status", "violations", "x"]), json_values()))
def test_any_document_becomes_an_error(document: dict[str, Any]) -> None:
    # A server that is not ours may answer anything; reading it must not raise something else.
    error = from_problem(document, 400)
    assert isinstance(error, TensorpostError)
    assert isinstance(str(error), str)


def test_a_subclass_elsewhere_does_not_stand_in_for_its_parent() -> None:
    class Mine(TooBusy):
        """Has no code of its own."""

    assert Mine.code == "too-busy"
    assert type(from_problem({"type": "urn:tensorpost:problem:too-busy"}, 503)) is TooBusy


# Exceptions are values: they travel between processes


@each("cls", CLASSES, ids=lambda cls: cls.code)
@each("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_pickle_and_copy(cls: type[TensorpostError], again: Any) -> None:
    error = _example(cls)
    other = again(error)
    assert type(other) is cls
    assert (other.detail, other.violations, other.extra) == (error.detail, error.violations, error.extra)
    assert (other.status, other.request_id, str(other)) == (418, "request-7", str(error))


def test_extras_are_not_shared_between_errors() -> None:
    first, second = TooBusy("a"), TooBusy("b")
    first.extra["retry_after_seconds"] = 1
    assert second.extra == {}


# What a person reads


def test_text_of_an_error_without_violations() -> None:
    assert str(TooBusy("come back in 2 seconds")) == "come back in 2 seconds"


def test_text_of_one_violation_is_one_line() -> None:
    assert str(InvalidDescriptor.of([VIOLATION])) == "$.desc.Repeats[1]: every repeat must be larger than 0"


def test_text_of_several_violations_lists_each_once() -> None:
    other = Violation("size-zero", ("desc", "InputTensor", "Sizes", 0), "a size of 0 is an error")
    assert str(InvalidDescriptor.of([VIOLATION, other])).splitlines() == [
        "$.desc.Repeats[1]: every repeat must be larger than 0 (and 1 more)",
        "  $.desc.InputTensor.Sizes[0]: a size of 0 is an error",
    ]


def test_text_of_a_received_error_is_the_same() -> None:
    error = InvalidDescriptor.of([VIOLATION, VIOLATION])
    assert str(from_problem(error.to_problem(422), 422)) == str(error)


def test_under_prefixes_every_path() -> None:
    error = UnsupportedAtLevel.of([VIOLATION]).prefixed("calls", 2)
    assert type(error) is UnsupportedAtLevel
    assert error.violations[0].where == "$.calls[2].desc.Repeats[1]"
    assert error.detail.startswith("$.calls[2].desc.Repeats[1]: ")


def test_limit_exceeded_names_the_setting() -> None:
    error = LimitExceeded.of("the output", 5_000_000, 1_048_576, "max_output_bytes")
    assert str(error) == "the output is 5,000,000 bytes; this server allows 1,048,576 (setting max_output_bytes)"
    assert error.extra == {"limit": 1_048_576, "actual": 5_000_000, "setting": "max_output_bytes", "unit": "bytes"}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), "$"),
        (("desc", "InputTensor", "Sizes", 2), "$.desc.InputTensor.Sizes[2]"),
        (("größe",), "$.größe"),
        (("a b",), "$['a b']"),
        (("a.b", "c"), "$['a.b'].c"),
        (("it's",), "$['it\\'s']"),
        (('say "x"',), "$['say \"x\"']"),
        (("back\\slash",), "$['back\\\\slash']"),
        (("line\nbreak\t",), "$['line\\nbreak\\t']"),
        (("\x00",), "$['\\u0000']"),
        (("\ud800",), "$['\\ud800']"),
        (("",), "$['']"),
        (("7",), "$['7']"),
        (("k" * 101,), "$['" + "k" * 100 + "...']"),
    ],
)
def test_json_path(path: tuple[str | int, ...], text: str) -> None:
    assert json_path(path) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=200), st.integers(0, 99)), max_size=4))
def test_json_path_can_be_sent(path: list[str | int]) -> None:
    json_path(path).encode("utf-8")


@pytest.mark.parametrize(
    ("word", "guess"), [("TYLE", "TILE"), ("tile", "TILE"), ("RESAMPEL", "RESAMPLE"), ("CONVOLUTION", None), ("", None)]
)
def test_nearest(word: str, guess: str | None) -> None:
    assert nearest(word, ["TILE", "RESAMPLE"]) == guess
    assert nearest(word, iter(["TILE", "RESAMPLE"])) == guess
    assert nearest(word, []) is None


def test_the_nearest_word_may_be_its_plural() -> None:
    assert nearest("scale", ["scale_count", "scales", "scaled_sizes"]) == "scales"
    assert nearest("repeat", ["repeats_count", "repeats"]) == "repeats"


def test_nearest_keeps_the_spelling() -> None:
    assert nearest("inputtensor", ["InputTensor"]) == "InputTensor"


# What may be shown of a value from outside


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -3, 2**53 - 1, 1.5, "text", "", [1, 2], [], {"a": [1, None]}, {}, [[1], [2, [3]]], "ü" * 200],
    ids=lambda value: str(value)[:20],
)
def test_small_json_is_shown_as_it_is(value: object) -> None:
    shown = presentable(value)
    assert shown == value
    assert type(shown) is type(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (TensorDataType.INT8, 8),
        ((1, 2), [1, 2]),
        (2**53, "9007199254740992"),
        (2**64, "18446744073709551616"),
        (10**5000, "an integer of 16610 bits"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (np.float64(1.5), 1.5),
        (np.int64(3), "np.int64(3)"),
        (b"ab", "b'ab'"),
        ("\ud800", "\\ud800"),
        ("x" * 300, "x" * 200 + "... (300 characters)"),
        ([[[[[1]]]]], "[[[[1 entries]]]]"),
        ({"\ud800": 1}, {"\\ud800": 1}),
        ({1: 2}, "{1: 2}"),
        (list(range(17)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ...]"),
        ([1.5, float("inf")], "[1.5, inf]"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_not_small_json_is_shown_as_text(value: object, shown: object) -> None:
    assert presentable(value) == shown
    assert type(presentable(value)) is type(shown)


def test_long_values_say_how_long() -> None:
    shown = presentable(["some text that is not short"] * 1000)
    assert isinstance(shown, str)
    assert shown.endswith("... (1000 entries)")
    assert len(shown) < 230


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


class _Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def _awkward() -> Iterator[object]:
    yield _deep(100_000)
    yield [1] * 10**6
    yield "x" * 10**7
    yield {str(i): i for i in range(10**5)}
    yield {"k" * 10**6: 1}
    yield [["\ud800" * 10**5] * 16] * 16
    yield [10**5000] * 16
    yield _Hostile()
    yield np.zeros(10**6)
    yield b"\0" * 10**6
    yield float("nan")


@pytest.mark.parametrize("value", list(_awkward()), ids=lambda value: type(value).__name__)
def test_whatever_the_value_its_problem_can_be_sent(value: object) -> None:
    violation = Violation("x", (), "m", value)
    text = json.dumps(InvalidDescriptor.of([violation]).to_problem(422), ensure_ascii=False, allow_nan=False)
    assert len(text.encode("utf-8")) < 2_000


@settings(max_examples=80, deadline=None)
@given(json_values())
def test_any_json_value_can_be_sent(value: object) -> None:
    text = json.dumps(presentable(value), ensure_ascii=False, allow_nan=False)
    assert len(text.encode("utf-8")) < 2_000


def test_violation_json_and_back() -> None:
    read = Violation.from_json(VIOLATION.to_json())
    assert read.path == ("$.desc.Repeats[1]",)
    assert read.to_json() == VIOLATION.to_json()


def test_violation_from_json_of_another_shape() -> None:
    read = Violation.from_json({"message": 3})
    assert (read.code, read.where, read.message, read.value) == ("", "$", "3", None)

"""`read_json`: what the standard library reads, less everything that two readers could understand differently."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpost.bodies.strict_json import read_json
from tensorpost.values.problems import InvalidJson

MIB = 1 << 20

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**39), 10**39)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refused(text: bytes, **options: Any) -> InvalidJson:
    with pytest.raises(InvalidJson) as caught:
        read_json(text, **options)
    return caught.value


@settings(max_examples=200, deadline=None)
@given(value=VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_reads_what_the_standard_library_writes(value: Any, ascii_only: bool, indent: int | None):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()

    found = read_json(text)

    assert value == found
    assert repr(value) == repr(found)  # also -0.0, and 1 against 1.0 and true


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_reads_any_buffer(kind: Any):
    assert read_json(kind(b' {"a": [1]}\n')) == {"a": [1]}


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(alphabet='{}[]",:\\ue0+-.1NaIfinty d8', max_size=40).map(str.encode)))
def test_any_bytes_are_read_as_the_standard_library_does_or_refused(text: bytes):
    try:
        found = read_json(text)
    except InvalidJson:
        return

    def integer(digits: str) -> float:
        return -0.0 if digits == "-0" else int(digits)

    assert repr(json.loads(text.decode("utf-8"), parse_int=integer)) == repr(found)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]",:\\a1 ', max_size=30), st.integers(0, 3))
def test_whatever_is_read_is_no_deeper_than_allowed(text: str, depth: int):
    def depth_of(value: Any) -> int:
        if isinstance(value, dict):
            value = list(value.values())
        return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0

    try:
        found = read_json(text.encode(), max_depth=depth)
    except InvalidJson as error:
        # The other direction: depth is the reason only where there is depth.
        if "deeper" in error.detail:
            with suppress(json.JSONDecodeError):
                assert depth_of(json.loads(text)) > depth
        return

    assert depth_of(found) <= depth


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "the JSON text is empty"),
        (b"   ", "the JSON text is empty"),
        (b"{", "at character 1"),
        (b'{"a":1}x', "Extra data at character 7 (line 1, column 8), near '{\"a\":1}x'"),
        (b'{"a":1}\n\n{}', "Extra data at character 9 (line 3, column 1)"),
        (b"[1,]", "at character"),
        (b"{'a':1}", "at character 1"),
        (b'"\n"', "Invalid control character at character 1"),
        (b"01", "Extra data"),
        (b"\x00", "Expecting value"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8: invalid start byte at byte 0"),
        (b'"\xed\xa0\x80"', "not UTF-8"),  # a surrogate written as if it were a character
        (b'"\xc0\xaf"', "not UTF-8"),  # an overlong slash
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"NaN", "NaN is not a JSON number"),
        (b"[Infinity]", "Infinity is not a JSON number"),
        (b'{"a":-Infinity}', "-Infinity is not a JSON number"),
        (b"1e999", "too large for a float64"),
        (b"[-1e309]", "too large for a float64"),
        (b"1" * 41, "has 41 digits"),
        (b"-" + b"1" * 41, "has 41 digits"),
        (b"0." + b"1" * 1_200, "has 1,202 characters"),
        (b'"\\ud800"', "\\ud800 at character 1 is half of a surrogate pair"),
        (b'"\\uDC00\\uD800"', "\\uDC00 at character 1"),
        (b'{"\\\\\\ud83d":0}', "\\ud83d at character 4"),
    ],
)
def test_refuses_with_the_place(text: bytes, words: str):
    assert words in str(refused(text))


def test_positions_are_machine_readable():
    assert refused(b'{"a":1}x').extra == {"position": 7}
    assert refused(b'"\xff"').extra == {"position": 1}
    assert refused(b'"\\udead"').extra == {"position": 1}


@pytest.mark.parametrize(
    "text", [b'{"a":1,"a":1}', b'[{"x":{"b":0,"a":1,"c":2,"\\u0061":3}}]'], ids=["plain", "escaped and nested"]
)
def test_duplicate_keys_are_refused_by_name(text: bytes):
    error = refused(text)

    assert "'a' occurs twice" in error.detail
    assert error.extra == {"key": "a"}


def test_equal_keys_in_different_objects_are_fine():
    assert read_json(b'[{"a":{"a":1}},{"a":2}]') == [{"a": {"a": 1}}, {"a": 2}]


def test_a_long_key_is_not_echoed_whole():
    error = refused(b'{"%b":1,"%b":2}' % ((b"k" * MIB,) * 2))

    assert len(error.detail) < 250
    assert len(error.extra["key"]) <= 60


def test_numbers_at_the_edge():
    assert read_json(b"9" * 40) == 10**40 - 1
    assert read_json(b"-" + b"9" * 40) == 1 - 10**40
    assert read_json(b"1.7976931348623157e308") == 1.7976931348623157e308
    assert read_json(b"1e-999") == 0.0
    assert repr(read_json(b"[-0.0, -0, 0]")) == "[-0.0, -0.0, 0]"
    exact = f"{5e-324:.1074f}"  # the smallest float64, written exactly
    assert len(exact) == 1_076
    assert read_json(exact.encode()) == 5e-324


def test_surrogate_pairs_and_escaped_backslashes_are_no_halves():
    assert read_json(rb'"\ud83d\uDE00"') == "\U0001f600"
    assert read_json(rb'"\\ud800"') == "\\ud800"
    assert read_json(rb'"\\\ud83d\ude00\\"') == "\\\U0001f600\\"


def test_non_finite_words_are_read_only_if_asked_for():
    nan, up, down = read_json(b"[NaN, Infinity, -Infinity]", allow_non_finite=True)

    assert math.isnan(nan)
    assert (math.inf, -math.inf) == (up, down)
    assert "too large" in refused(b"1e999", allow_non_finite=True).detail  # a number still has to be one
    assert "NaN is not" in refused(b"NaN").detail  # the two readers do not share their answer


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("limit", [1, 2, 64])
def test_depth_is_counted_exactly(opening: str, limit: int):
    closing = "]" if opening == "[" else "}"

    def nested(depth: int) -> bytes:
        return (opening * depth + "0" + closing * depth).encode()

    read_json(nested(limit), max_depth=limit)
    assert f"deeper than {limit} levels" in refused(nested(limit + 1), max_depth=limit).detail


@pytest.mark.parametrize(
    "text",
    [
        b'["' + b"[" * 100 + b'"]',
        b'["' + b"{" * 100 + b'", "\\"[[[[", "\\\\", [0]]',
        b"[" + b"[]," * 100 + b"{}]",
    ],
    ids=["in a string", "behind escaped quotes", "beside each other"],
)
def test_brackets_that_do_not_nest_do_not_count(text: bytes):
    assert json.loads(text) == read_json(text, max_depth=2)


def test_deep_brackets_behind_a_string_count():
    assert "deeper" in refused(b'["\\\\", "\\"", ' + b"[" * 70 + b"]" * 71).detail


def test_a_depth_beyond_the_interpreter_is_an_ordinary_refusal():
    deep = b"[" * 500_000 + b"]" * 500_000

    assert "deeper than this interpreter can read" in refused(deep, max_depth=10**9).detail


def test_max_bytes_is_a_limit_on_the_text():
    assert read_json(b"[1]", max_bytes=3) == [1]
    error = refused(b"[1] ", max_bytes=3)
    assert "4 bytes long; at most 3" in error.detail
    assert error.extra == {"limit": 3, "actual": 4}


HOSTILE = {
    "open arrays": b"[" * MIB,
    "open objects": b'{"a":' * (MIB // 5),
    "closed too often": b"]" * MIB,
    "empty objects": b"[" + b"{}," * (MIB // 3) + b"0]",
    "empty arrays": b"[" + b"[]," * (MIB // 3) + b"0]",
    "many keys": ("{" + ",".join(f'"{i}":0' for i in range(MIB // 10)) + "}").encode(),
    "one digit run": b"1" * MIB,
    "one fraction": b"0." + b"1" * MIB,
    "one exponent": b"1e" + b"1" * MIB,
    "many numbers": b"[" + b"1," * (MIB // 2) + b"1]",
    "open quotes": b'"' * MIB,
    "escaped quotes, never closed": b'[[[["' + b'\\"' * (MIB // 2),
    "brackets and escaped quotes, never closed": b"[" * 100 + b'"' + b'a\\"[' * (MIB // 4),
    "backslashes": b"[" * 100 + b'"' + b"\\" * MIB,
    "escapes": b'"' + b"\\u0041" * (MIB // 6) + b'"',
    "pairs": b'"' + b"\\ud83d\\ude00" * (MIB // 12) + b'"',
    "halves": b'"' + b"\\ud83d" * (MIB // 6) + b'"',
    "spaces": b" " * MIB,
    "not UTF-8 at the end": b" " * MIB + b"\xff",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_mebibyte_takes_no_time_to_speak_of(name: str):
    started = time.process_time()
    answer: object = None
    try:
        read_json(HOSTILE[name])
    except InvalidJson as error:
        answer = error
    # Measured: below 0.3 s each on 2 shared cores. Quadratic work on a mebibyte would take hours.
    assert time.process_time() - started < 3
    assert len(str(answer)) < 400

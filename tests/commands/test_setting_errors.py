"""A setting that cannot be right is named with its value, with what is expected, and with an example."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tensorpost.values.problems import InvalidParameter
from tensorpost_server.setting_errors import read_settings
from tensorpost_server.settings import ENVIRONMENT_PREFIX, Settings

TWICE = '; for instance {"twice": {"operator": "tile", "attributes": {"repeats": [2, 2]}}}'


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


def said_of(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> str:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidParameter) as refused:
        read_settings()
    monkeypatch.delenv(name)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("BACKEND", "gpu", ": there is no such backend; expected auto, cuda, directml, numba, numpy, null"),
        (
            "MEMORY_BYTES", "1XB",
            ": expected a whole number of bytes, at least 1, with or without a unit (GB, GiB, ...), for instance 1GiB",
        ),
        ("METRICS", "maybe", ": expected true or false (1 or 0, yes or no, on or off)"),
        ("PORT", "x", ": expected a whole number, at least 0, at most 65535, for instance 8000"),
        ("CALLER_SHARE", "lots", ": expected a number, more than 0, at most 1, for instance 0.75"),
        ("GRPC_PORT", "x", ": expected a whole number, at least 0, at most 65535, for instance 0"),
        ("ACCESS_LOG", "loud", ": expected one of auto, json, console, off"),
        (
            "TRUSTED_PROXIES", "a",
            (
                ": 'a' is no address, no network in CIDR ('a' does not appear to be an IPv4 or IPv6 network), and "
                "neither unix nor * alone; for instance 10.0.0.0/8,127.0.0.1,::1"
            ),
        ),
        (
            "PRESETS", "{x",
            ": this is no JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); expected "
            "an object of presets by name, " + TWICE[2:],
        ),
        ("PRESETS", "1", ": expected an object" + TWICE),
    ],
)  # fmt: skip
def test_the_variable_the_value_and_what_is_expected(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str):
    assert said_of(monkeypatch, f"TENSORPOST_{name}", value) == f"TENSORPOST_{name} is {value!r}{said}"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"a": 1}', "TENSORPOST_PRESETS, a, is '1': expected an object with operator, attributes, datatype and shape"),
        ('{"a": {"operator": 1}}', "TENSORPOST_PRESETS, a.operator, is '1': expected a text"),
        ('{"a": {"datatype": "FP32"}}', "TENSORPOST_PRESETS, a.operator, is missing"),
        ('{"a": {"operator": "tile", "x": 2}}', "TENSORPOST_PRESETS, a.x, is '2': there is no such member"),
        (
            '{"a": {"operator": "tile", "shape": ["y"]}}',
            "TENSORPOST_PRESETS, a.shape.0, is 'y': expected a whole number",
        ),
    ],
)
def test_members_of_presets_are_named(monkeypatch: pytest.MonkeyPatch, value: str, said: str):
    assert said_of(monkeypatch, "TENSORPOST_PRESETS", value) == said + TWICE


def test_no_words_of_pydantic_are_left_and_every_example_is_taken(monkeypatch: pytest.MonkeyPatch):
    texts = {name for name, field in Settings.model_fields.items() if "str" in str(field.annotation)}
    for name, field in Settings.model_fields.items():
        if "Path" in str(field.annotation) or (name in texts and name not in ("trusted_proxies", "presets")):
            continue
        said = said_of(monkeypatch, f"TENSORPOST_{name.upper()}", "lots")
        assert not re.search("input|valid|parse|instance of|value error", said.lower().replace("for instance", "")), (
            said
        )
        example = re.search("for instance (.*)", said)
        assert (example is None) == ("bool" in str(field.annotation) or "Literal" in str(field.annotation)), said
        if example is not None:
            monkeypatch.setenv(f"TENSORPOST_{name.upper()}", example[1])
            read_settings()
            monkeypatch.delenv(f"TENSORPOST_{name.upper()}")


def test_a_wrong_line_of_a_file_and_a_wrong_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "settings.toml"
    path.write_text("host = 5\nbackend = 'gpu'\n")
    monkeypatch.setenv("TENSORPOST_CONFIG_FILE", str(path))
    with pytest.raises(InvalidParameter, match=rf"^host in {re.escape(str(path))} is '5': expected a text$"):
        read_settings()
    with pytest.raises(InvalidParameter, match=rf"^backend in {re.escape(str(path))} is 'gpu': there is no such"):
        read_settings(host="::1")
    with pytest.raises(InvalidParameter, match=r"^--port is '-1': expected a whole number"):
        read_settings(host="::1", port=-1)

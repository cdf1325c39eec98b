"""Settings come from TENSORPOST_* variables; each has a bound and takes effect."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.support.batches import each
from tests.support.http_app import Controlled, assert_problem, http_app, npy_bytes, use_backend

from tensorpost_server import machine
from tensorpost_server import settings as settings_module
from tensorpost_server.commands import _NO_SETTINGS
from tensorpost_server.main import create_app
from tensorpost_server.settings import ENVIRONMENT_PREFIX, Settings, setting_descriptions

FIELDS = Settings.model_fields
OTHER_VALUES = {
    "onnx_ahead": False, "onnx_processes": 5,
    "host": "0.0.0.0", "port": 1234, "backend": "null", "http_protocol": "h11",
    "allowed_hosts": "a.example,b.example:80", "allowed_origins": "https://a.example",
    "receive_timeout_seconds": 0.25, "send_timeout_seconds": 0.5,
    "uds": Path("tensorpost.sock"), "allow_anonymous": True,
    **{name: Path("a file") for name in ("keys_file", "jwks_file", "tls_certificate", "tls_key", "tls_client_ca")},
    "graphs": Path("a folder"),
    "access_log": "json", "metrics": False, "traces": True,
    "jwt_issuer": "https://issuer.example", "jwt_audience": "tensors", "jwt_scope_prefix": "ours.",
    "caller_share": 0.5, "cuda_memory_bytes": 7_777_777, "directml_debug": True,
    "workers": 3, "grpc_port": 4321, "shared_memory": True, "cuda_shared_memory": True, "shared_memory_prefix": "ours-",
    "playground": False, "trusted_proxies": "127.0.0.1", "picture_processes": 3,
}  # fmt: skip


ANY_TEXT = {
    "host",
    "allowed_hosts",
    "allowed_origins",
    "backend",
    "uds",
    "graphs",
    "keys_file",
    "jwks_file",
    "jwt_issuer",
    "jwt_audience",
    "jwt_scope_prefix",
    "shared_memory_prefix",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
}
"""Settings that any text can be; whether there is such a file shows at the start."""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "presets"])  # JSON: tests/open_inference
def test_every_setting_comes_from_its_variable(name: str, monkeypatch: pytest.MonkeyPatch):
    default = getattr(Settings(), name)
    value = OTHER_VALUES.get(name, 5 if name in ("slices_ahead", "numpy_threads") else 77_777)
    value = 7 if name == "numpy_threads" else value
    assert value != default

    monkeypatch.setenv(ENVIRONMENT_PREFIX + name.upper(), str(value))

    assert value == getattr(Settings(), name)
    assert value == getattr(create_app().state.service.settings, name)


def test_every_variable_that_messages_and_docs_name_is_there():
    known = {ENVIRONMENT_PREFIX + name.upper() for name in FIELDS}
    known |= {f"{name}_FILE" for name in known} | set(_NO_SETTINGS)
    known |= {ENVIRONMENT_PREFIX + name for name in ("CONFIG_FILE", "NAME", "NAME_FILE")}  # the last two stand for any
    root = Path(__file__).parents[2]
    paths = [
        path
        for folder, suffix in (("app", "py"), ("client", "py"), ("docs", "md"), ("deploy", "*"))
        for path in (root / folder).rglob(f"*.{suffix}")
    ]
    named = {
        (name, str(path.relative_to(root)))
        for path in [*paths, root / "README.md", root / "SECURITY.md", root / "docker-compose.yml"]
        for name in re.findall(r"TENSORPOST_[A-Z0-9]+(?:_[A-Z0-9]+)*", path.read_text("utf-8"))
    }
    assert len(named) > 100
    links = "app/tensorpost_server/service_links.py"  # Kubernetes' own
    assert not [each for each in sorted(named) if each[0] not in known and each[1] != links]


@each("name", FIELDS)
def test_every_setting_has_a_unit_and_a_reason(name: str):
    description = setting_descriptions()[name]

    assert len(description) > 30
    for unit in ("bytes", "seconds"):
        assert not name.endswith(unit) or unit in description.lower(), f"{name} does not say that it is in {unit}"


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - ANY_TEXT))
@pytest.mark.parametrize("value", ["-1", "lots", "", "nan"])
def test_a_value_that_cannot_be_is_refused_at_the_start(name: str, value: str, monkeypatch: pytest.MonkeyPatch):
    if (name, value) == ("trusted_proxies", ""):
        pytest.skip("no proxies")
    monkeypatch.setenv(ENVIRONMENT_PREFIX + name.upper(), value)

    with pytest.raises(ValidationError) as caught:
        create_app()

    assert [(name,)] == [error["loc"] for error in caught.value.errors()]


@pytest.mark.parametrize(
    "name", ["max_body_bytes", "max_output_bytes", "memory_bytes", "max_requests", "numpy_threads", "slice_bytes"]
)
def test_a_limit_of_0_that_would_stop_everything_is_refused(name: str):
    with pytest.raises(ValidationError, match="greater than or equal to"):
        Settings(**{name: 0})  # pyright: ignore[reportArgumentType] # that is the test


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1  # pyright: ignore[reportAttributeAccessIssue] # that is the test


def test_an_argument_that_is_no_setting_is_refused():
    with pytest.raises(ValidationError, match="max_body_byte"):
        Settings(max_body_byte=1)  # pyright: ignore[reportCallIssue] # that is the test


def test_defaults_are_what_the_documentation_says(monkeypatch: pytest.MonkeyPatch):
    settings = Settings()

    assert (settings.host, settings.port, settings.backend) == ("127.0.0.1", 8000, "auto")
    assert settings.max_output_bytes == 16 * 2**30, "the largest FLOAT32 tensor that DirectML allows, rounded up"
    assert settings.memory_bytes == machine.memory(Path("no groups"), Path("no groups")) // 2
    assert 1 <= settings.numpy_threads <= (os.cpu_count() or 1)


TILE = "/v1/operators/tile"


@pytest.mark.parametrize(
    ("setting", "query", "body", "headers", "named"),
    [
        ({"max_body_bytes": 200}, "?repeats=2", npy_bytes([1.0] * 30), {}, "TENSORPOST_MAX_BODY_BYTES"),
        ({"max_head_bytes": 64}, "?repeats=2", npy_bytes([1]), {}, "TENSORPOST_MAX_HEAD_BYTES"),
        ({"max_json_bytes": 64}, "", b" " * 65, {"content-type": "application/json"}, "TENSORPOST_MAX_JSON_BYTES"),
        (
            {"max_json_elements": 3}, "?repeats=4", npy_bytes([1]), {"accept": "application/json"},
            "TENSORPOST_MAX_JSON_ELEMENTS",
        ),
        ({"max_output_bytes": 15}, "?repeats=4", npy_bytes([1]), {}, "TENSORPOST_MAX_OUTPUT_BYTES"),
        ({"max_work": 3}, "?repeats=4", npy_bytes([1]), {}, "TENSORPOST_MAX_WORK"),
        ({"memory_bytes": 19}, "?repeats=4", npy_bytes([1]), {}, "TENSORPOST_MEMORY_BYTES"),
    ],
)  # fmt: skip
def test_each_limit_holds_and_is_named(setting, query, body, headers, named):
    name = next(iter(setting))
    headers = {"content-type": "application/x-npy"} | headers
    with http_app(**setting) as app:
        problem = assert_problem(app.post(TILE + query, body, headers), 413, "limit-exceeded")
    assert (named, setting[name]) == (problem["setting"], problem["limit"])

    with http_app(**{name: problem["actual"]}) as app:
        assert app.post(TILE + query, body, headers).status_code != 413, "what is just as large is let in"


def test_the_slice_size_takes_effect():
    for slice_bytes, slices in ((4096, 100), (409_600, 1)):
        backend = Controlled()
        with http_app(slice_bytes=slice_bytes) as app, use_backend(app.service, backend):
            app.post(TILE + "?repeats=100", npy_bytes(bytearray(4096), "uint8"))
        assert slices == len(backend.begun)


def test_without_the_source_there_are_no_descriptions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(settings_module, "__file__", str(tmp_path / "settings.pyc"))
    assert setting_descriptions.__wrapped__() == {}

"""Settings from a TOML file and from the files of secrets: what wins, what is refused, and what `config` shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.support.http_app import app_settings
from typer.testing import CliRunner

from tensorpost.command_line.cli import app
from tensorpost.values.problems import InvalidParameter
from tensorpost_server import commands, setting_errors, settings
from tensorpost_server.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("TENSORPOST_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tensorpost.toml"
    path.write_text("max_requests = 7\nmax_json_bytes = 1000\n# a comment\nretry_after_seconds = 9\n")
    monkeypatch.setenv("TENSORPOST_CONFIG_FILE", str(path))
    return path


def test_variables_win_over_their_files_and_those_over_the_config_file(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORPOST_MAX_JSON_BYTES", "2000")
    (tmp_path / "secret").write_text("11\n")
    monkeypatch.setenv("TENSORPOST_RETRY_AFTER_SECONDS_FILE", str(tmp_path / "secret"))

    rows = {row["name"]: row for row in commands.config()}

    def shown(name: str) -> tuple[object, object]:
        return rows[name]["value"], rows[name]["origin"]

    assert shown("max_requests") == (7, str(config_file))
    assert shown("max_json_bytes") == (2000, "environment")
    assert shown("retry_after_seconds") == (11, "TENSORPOST_RETRY_AFTER_SECONDS_FILE")
    assert shown("port") == (8000, "default")
    assert Settings(max_requests=3).max_requests == 3, "an argument wins over all"
    assert commands.unknown_variables() == []


def test_settings_of_a_test_read_no_file(config_file: Path) -> None:
    assert app_settings().max_requests == 256


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_request = 1", "sets 'max_request', which is not a setting; did you mean max_requests"),
        ("[server]\nport = 1", "sets 'server', which is not a setting"),
        ("port = 1\nport = = 2", r"cannot be read: .*line 2"),
        ("port = 'x'", r"port in .*toml is 'x': expected a whole number, at least 0, at most 65535, for instance 8000"),
        ("port = 70000", r"port in .*toml is '70000': expected a whole number, at least 0, at most 65535"),
    ],
)
def test_what_is_wrong_in_the_config_file_is_named(config_file: Path, text: str, said: str) -> None:
    config_file.write_text(text)

    with pytest.raises(InvalidParameter, match=said):
        commands.config()


def test_a_config_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_CONFIG_FILE", "/nowhere/t.toml")

    with pytest.raises(InvalidParameter, match=r"TENSORPOST_CONFIG_FILE names /nowhere/t.toml, which cannot be read"):
        commands.config()


def test_a_value_and_its_file_are_not_both_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_PORT", "1")
    monkeypatch.setenv("TENSORPOST_PORT_FILE", str(tmp_path / "port"))

    with pytest.raises(InvalidParameter, match="TENSORPOST_PORT and TENSORPOST_PORT_FILE are both set"):
        commands.config()


def test_the_file_of_a_variable_must_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_PORT_FILE", str(tmp_path / "none"))

    with pytest.raises(InvalidParameter, match=r"TENSORPOST_PORT_FILE names .*none, which cannot be read"):
        commands.config()


def test_what_stands_in_the_file_of_a_variable_is_never_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "port").write_text("s3cret")
    monkeypatch.setenv("TENSORPOST_PORT_FILE", str(tmp_path / "port"))

    with pytest.raises(InvalidParameter, match="TENSORPOST_PORT_FILE is the content of its file: expected") as error:
        commands.config()
    assert "s3cret" not in str(error.value)


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithSecret(Settings):
        password: SecretStr = SecretStr("")

    (tmp_path / "password").write_text("s3cret\n")
    monkeypatch.setenv("TENSORPOST_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setattr(commands, "Settings", WithSecret)
    monkeypatch.setattr(setting_errors, "Settings", WithSecret)
    monkeypatch.setattr(commands, "origins", lambda: settings.origins(WithSecret))

    (row,) = [row for row in commands.config() if row["name"] == "password"]

    assert WithSecret().password.get_secret_value() == "s3cret"
    assert row["origin"] == "TENSORPOST_PASSWORD_FILE"
    assert set(str(row["value"])) == {"*"}


def test_workers_and_replicas_of_ray_exclude_each_other() -> None:
    said = CliRunner().invoke(app, ["serve", "--ray", "2", "--workers", "2"])

    assert said.exit_code == 2
    assert "--ray says how many" in said.output

"""`tensorpost keys`, and the key of the other commands."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from tests.support.command_line import invoke
from tests.support.live_server import live_server

from tensorpost.transport.api_key import find_api_key

KEY = re.compile(r"tp_[A-Za-z0-9_-]{43}")


def test_a_key_from_its_making_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    made = invoke(
        "keys", "add", "anna", "--keys-file", file, "--days", 3, "--requests-per-minute", 600, "--scope", "run"
    )
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    assert KEY.fullmatch(key), "standard output has the key and nothing else"
    assert key not in made.stderr

    listed = invoke("keys", "list", "--json", env={"TENSORPOST_KEYS_FILE": file})
    (row,) = json.loads(listed.stdout)
    assert (row["name"], row["scopes"], row["requests_per_minute"], row["expired"]) == ("anna", ["run"], 600, False)
    assert "sha256" not in row
    table = invoke("keys", "list", "--keys-file", file).stdout
    assert re.search(r"^anna +run +2\d{3}-\S+ +2\d{3}-\S+ +600 +any *$", table, re.MULTILINE), table

    again = invoke("keys", "add", "anna", "--keys-file", file)
    assert (again.returncode, again.stdout) == (1, "")
    assert "there is a key anna already" in again.stderr

    guess = invoke("keys", "revoke", "ana", "--keys-file", file)
    assert (guess.returncode, "did you mean anna?" in guess.stderr) == (1, True)
    assert invoke("keys", "revoke", "anna", "--keys-file", file).returncode == 0
    assert json.loads(invoke("keys", "list", "--json", "--keys-file", file).stdout) == []


def test_a_key_is_written_to_a_file_that_the_other_commands_take(tmp_path: Path) -> None:
    file, key_file = tmp_path / "keys.jsonl", tmp_path / "anna.key"

    made = invoke("keys", "add", "anna", "--keys-file", file, "--output", key_file)

    assert (made.returncode, made.stdout) == (0, "")
    assert f"the key of anna is in {key_file}" in made.stderr
    key = find_api_key(key_file, "http://127.0.0.1:8000")
    assert key is not None
    assert KEY.fullmatch(key)
    assert hashlib.sha256(key.encode()).hexdigest() in file.read_text()

    for name, output, said in (
        ("berta", key_file, f"{key_file} exists; no key was made"),
        ("berta", tmp_path / "none" / "berta.key", "cannot be written to (No such file or directory); no key was made"),
        ("anna", tmp_path / "again.key", "there is a key anna already"),
    ):
        refused = invoke("keys", "add", name, "--keys-file", file, "--output", output)
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr
    assert key == find_api_key(key_file, "http://127.0.0.1:8000"), "it was not overwritten"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["anna.key", "keys.jsonl"]
    assert "berta" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("add", "an na"), 1, "no such key can be made: name is 'an na'"),
        (
            ("add", "anna", "--scope", "root"),
            1,
            "scopes is 'root': input should be 'run', 'admin', 'graphs' or 'tensors'",
        ),
        (("add", "anna", "--days", "0"), 2, "--days"),
        (("add", "anna", "--days", "99999999"), 1, "no such key can be made"),
        (("revoke", "anna"), 1, "there is no keys file"),
        (("list",), 1, "there is no keys file"),
    ],
)
def test_what_cannot_be_is_a_sentence(tmp_path: Path, arguments: tuple[str, ...], status: int, said: str) -> None:
    found = invoke("keys", *arguments, "--keys-file", tmp_path / "keys.jsonl")

    assert (found.returncode, found.stdout) == (status, "")
    assert said in found.stderr
    assert "Traceback" not in found.stderr
    assert not [*tmp_path.iterdir()]


def test_commands_send_their_key(tmp_path: Path) -> None:
    file, key_file, source, target = (tmp_path / name for name in ("keys", "key", "x.npy", "y.npy"))
    key = invoke("keys", "add", "anna", "--keys-file", file).stdout.strip()
    key_file.write_text(key)
    key_file.chmod(0o600)
    np.save(source, np.array([1, 2], np.float32))
    tile = ("tile", source, "--repeats", "2", "-o", target, "--quiet")
    with live_server(TENSORPOST_KEYS_FILE=file) as url:
        without = invoke(*tile, "--url", url)
        assert (without.returncode, "requires an API key" in without.stderr) == (1, True)
        assert not target.exists()
        for options, env in (
            (("--api-key-file", key_file), {}),
            ((), {"TENSORPOST_API_KEY": key}),
            ((), {"TENSORPOST_API_KEY_FILE": key_file}),
        ):
            done = invoke(*tile, "--url", url, *options, env=env)
            assert done.returncode == 0, done.stderr
            np.testing.assert_array_equal(np.load(target), np.array([1, 2, 1, 2], np.float32))
            target.unlink()
        assert invoke("devices", "--url", url, "--api-key-file", key_file).returncode == 0
        assert invoke("healthcheck", "--url", url).returncode == 0
        if os.name == "posix":
            key_file.chmod(0o644)
            wide = invoke("devices", "--url", url, "--api-key-file", key_file)
            assert (wide.returncode, "mode 0644" in wide.stderr) == (1, True)
            assert key not in wide.stderr

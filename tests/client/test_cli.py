"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.raw_server import http_answer, raw_server, read_request
from typer.testing import CliRunner, Result

from tensorpost import parse_operator
from tensorpost.command_line.cli import app
from tensorpost.command_line.terminal import print_table

COMMANDS = [
    "serve", "tile", "resample", "preprocess", "run", "onnx", "operators", "validate", "devices", "doctor", "warmup",
    "healthcheck", "bench", "config",
]  # fmt: skip
TILE = {"type": "TILE", "desc": {"InputTensor": {"DataType": "FLOAT32", "Sizes": [2, 3]}, "Repeats": [1, 2]}}
X = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
Y = np.tile(X, (1, 1, 3, 3))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TENSORPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def url(server_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A real server, which commands find through the environment."""
    monkeypatch.setenv("TENSORPOST_URL", server_url)
    return server_url


def run(*args: str | Path, input: bytes = b"") -> Result:  # noqa: A002 # the runner's own word
    return CliRunner().invoke(app, [str(arg) for arg in args], input=input)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def picture(mode: str = "RGB", kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    gradient = np.arange(4 * 5 * 4, dtype=np.uint8).reshape(4, 5, 4) * 3
    Image.fromarray(gradient).convert(mode).save(file, kind)
    return file.getvalue()


# ---- help and usage --------------------------------------------------------------------------------------------------


def test_the_commands_are_these() -> None:
    found = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert found == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_an_example_of_it(command: str) -> None:
    found = run(command, "--help")

    assert found.exit_code == 0
    assert re.search(rf"Example: .*tensorpost {command}", " ".join(found.stdout.split()))


def test_the_version_is_the_package_s() -> None:
    assert re.fullmatch(r"tensorpost \d+\.\d+\.\d+\S*\n", run("--version").stdout)


@pytest.mark.parametrize("args", [[], *[[command] for command in (*COMMANDS, "keys", "graph", "graph run")]])
def test_help_loads_neither_numpy_nor_a_client(args: list[str]) -> None:
    code = (
        "import sys, atexit; from tensorpost.command_line.cli import app\n"
        "atexit.register(lambda: print(*sorted({'numpy', 'ssl', 'rich', 'tensorpost.client'} & sys.modules.keys())))\n"
        "app(prog_name='tensorpost')"
    )
    words = [word for arg in args for word in arg.split()]
    done = subprocess.run(  # our own code
        [sys.executable, "-c", code, *words, "--help"], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == ""
    assert "Usage: tensorpost" in done.stdout


_OF_CALLS = {"rich", "httpx", "PIL", "ml_dtypes", "asyncio", "ssl", "tensorpost.onnx.lowering"}


@pytest.mark.parametrize(
    ("command", "deferred"),
    [
        ("operators", {"rich", "PIL", "tensorpost.client", "tensorpost.descriptors.base"}),
        ("operators gather", {"rich", "PIL", "tensorpost.client", "tensorpost.onnx"}),
        ("graph check graph.json", {"rich", "PIL", "tensorpost.client"}),
        ("validate tile.json", {"rich", "PIL", "tensorpost.client"}),
        ("devices --url {url}", _OF_CALLS | {"tensorpost.descriptors.base"}),
        ("healthcheck --url {url}", _OF_CALLS | {"tensorpost.descriptors.base"}),
        ("onnx Tile x.npy -s repeats=2 -o y.npy --url {url}", _OF_CALLS | {"tensorpost.descriptors.base"}),
        ("run tile x.npy -s repeats=2 -o y.npy --url {url}", _OF_CALLS | {"tensorpost.graphs"}),
        ("tile x.npy --repeats 2 -o y.npy --url {url}", _OF_CALLS | {"tensorpost.graphs"}),
        ("resample x.npy --scale 2 --axes 0 -o y.npy --url {url}", _OF_CALLS | {"tensorpost.graphs"}),
        ("preprocess photo.png -o batch.npy --url {url}", _OF_CALLS - {"PIL"}),
    ],
)
def test_a_command_loads_only_what_it_needs(tmp_path: Path, url: str, command: str, deferred: set[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    tmp_path.joinpath("photo.png").write_bytes(picture())
    tmp_path.joinpath("tile.json").write_text(json.dumps(TILE))
    graph = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": [2]}},
        "nodes": [{"name": "y", "op_type": "Neg", "inputs": "x"}],
        "outputs": {"y": "y"},
    }
    tmp_path.joinpath("graph.json").write_text(json.dumps(graph))
    code = (
        "import sys, atexit, json; from tensorpost.__main__ import main\n"
        "atexit.register(lambda: print(json.dumps([*sys.modules]), file=sys.stderr))\n"
        "main()"
    )

    done = subprocess.run(  # our own code
        [sys.executable, "-c", code, *command.format(url=url).split()], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert not deferred & {*json.loads(done.stderr.splitlines()[-1])}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nonesuch",), "nonesuch"),
        (("tile", "-", "--repeats", "1,x"), "1,x"),
        (("tile", "-", "--repeats", ""), "whole numbers"),
        (("tile", "-", "--repeats", "-1"), "-1"),
        (("tile", "-", "-o", "y.gif", "--repeats", "1"), "y.gif"),
        (("tile", "-"), "--repeats"),
        (("validate", "-", "--level", "9_9"), "9_9"),
        (("serve", "--port", "70000"), "65535"),
        (("healthcheck", "--timeout", "0"), "0"),
        (("tile", "-", "--repeats", "1" * 5000), "--repeats"),
        (("tile", "-", "--repeats", "1,1,0,1"), "--repeats"),
        (("resample", "-", "--size", "0"), "--size"),
        (("tile", "-", "--repeats", "1", "--level", "9_9"), "--level"),
        (("tile", "-", "--repeats", "1", "--url", "ftp://x"), "--url"),
        (("resample", "-", "--scale", "2", "--mode", "cubic"), "--mode"),
        (("resample", "-", "--scale", "2", "--mode", "nearest", "--antialias"), "--mode"),
        (("resample", "-", "--scale", "2", "--level", "x"), "--level"),
        (("resample", "-", "--scale", "0"), "--scale"),
        (("resample", "-", "--scale", "nan"), "--scale"),
        (("resample", "-", "--scale", "2", "--axes", "x"), "--axes"),
        (("devices", "--url", "http://"), "--url"),
        (("validate", "-", "--url", "x"), "--url"),
        (("healthcheck", "--url", "x"), "--url"),
        (("serve", "--log-level", "loud"), "--log-level"),
    ],
)
def test_a_wrong_command_line_is_status_2(args: tuple[str, ...], said: str) -> None:
    found = run(*args)

    assert found.exit_code == 2
    assert said in found.stderr
    assert found.stdout == ""


# ---- tile ------------------------------------------------------------------------------------------------------------


def test_tile_from_file_to_file(url: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)

    found = run("tile", tmp_path / "x.npy", "-o", tmp_path / "y.npy", "--repeats", "1,1,3,3")

    assert (found.exit_code, found.stdout, found.stderr) == (0, "", "")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), Y)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "y.npy"]


@pytest.mark.parametrize(
    "x",
    [X, np.asfortranarray(X[0, 0]), X.astype(">f4"), X.astype(np.float16)],
    ids=["plain", "fortran", "big-endian", "float16"],
)
def test_tile_through_pipes(url: str, x: np.ndarray) -> None:
    repeats = (1,) * (x.ndim - 1) + (2,)

    found = run("tile", "-", "--repeats", ",".join(map(str, repeats)), input=npy(x))

    assert (found.exit_code, found.stderr) == (0, "")
    y = np.load(io.BytesIO(found.stdout_bytes))
    np.testing.assert_array_equal(y, np.tile(x, repeats))
    assert y.dtype == x.dtype.newbyteorder("<")


def test_tile_through_real_pipes(url: str) -> None:
    command = [sys.executable, "-m", "tensorpost", "tile", "-", "--repeats", "1,1,3,3"]

    found = subprocess.run(command, input=npy(X), capture_output=True, timeout=60, check=True)

    assert found.stderr == b""
    np.testing.assert_array_equal(np.load(io.BytesIO(found.stdout)), Y)


@pytest.mark.parametrize(("kind", "ending"), [("PNG", "png"), ("WEBP", "webp"), ("PNG", "npy"), ("WEBP", "png")])
@pytest.mark.parametrize("repeats", ["2,3", "2x3", "2,3,1"])
def test_tile_of_a_picture(url: str, tmp_path: Path, kind: str, ending: str, repeats: str) -> None:
    content = io.BytesIO()
    pixels = np.asarray(Image.open(io.BytesIO(picture())))
    Image.fromarray(pixels).save(content, kind, **({"lossless": True} if kind == "WEBP" else {}))
    (tmp_path / "x").write_bytes(content.getvalue())
    out = tmp_path / f"y.{ending}"

    found = run("tile", tmp_path / "x", "-o", out, "--repeats", repeats)

    assert (found.exit_code, found.stderr) == (0, "")
    y = np.load(out) if ending == "npy" else np.asarray(Image.open(out))
    np.testing.assert_array_equal(y, np.tile(pixels, (2, 3, 1)))


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "1", "P", "CMYK", "I;16"])
def test_pictures_of_every_mode_through_pipes(url: str, mode: str) -> None:
    kind = "PNG" if mode != "CMYK" else "JPEG"
    if mode == "I;16":
        file = io.BytesIO()
        Image.fromarray(np.arange(20, dtype=np.uint16).reshape(4, 5) * 1000).save(file, "PNG")
        content = file.getvalue()
    else:
        content = picture(mode, kind)

    found = run("tile", "-", "--repeats", "1,2", input=content)

    assert (found.exit_code, found.stderr) == (0, "")
    before, after = Image.open(io.BytesIO(content)), Image.open(io.BytesIO(found.stdout_bytes))
    assert after.format == kind
    assert after.size == (2 * before.size[0], before.size[1])
    if kind == "PNG":
        wanted = before if mode in ("L", "LA", "RGB", "RGBA", "I;16") else before.convert(after.mode)
        np.testing.assert_array_equal(np.asarray(after), np.concatenate([np.asarray(wanted)] * 2, axis=1))


def test_a_picture_is_turned_upright_first(url: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: to be turned by 90 degrees
    file = io.BytesIO()
    Image.open(io.BytesIO(picture())).save(file, "PNG", exif=exif)

    found = run("tile", "-", "--repeats", "1,1", input=file.getvalue())

    assert Image.open(io.BytesIO(found.stdout_bytes)).size == (4, 5)


@pytest.mark.parametrize(
    ("array", "ending", "said"),
    [
        (X, "png", "float32"),
        (np.zeros((4, 4, 7), np.uint8), "png", "not a picture"),
        (np.zeros((4, 4, 4), np.uint8), "jpg", "transparency"),
        (np.zeros((4, 4), np.uint16), "webp", "8 bits"),
    ],
)
def test_an_array_that_is_no_picture_is_not_written_as_one(
    url: str, tmp_path: Path, array: np.ndarray, ending: str, said: str
) -> None:
    out = tmp_path / f"y.{ending}"

    found = run("tile", "-", "-o", out, "--repeats", ",".join("1" * array.ndim), input=npy(array))

    assert found.exit_code == 1
    assert said in found.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "neither npy, npz, safetensors nor"),
        (b"neither one nor the other", "neither npy, npz, safetensors nor"),
        (npy(X)[:-1], "npy"),
        (npy(X)[:20], "npy"),
        (npy(np.array([{}], object)), "npy"),
        (picture()[:50], "picture"),
    ],
)
@pytest.mark.parametrize("pipe", [False, True])
def test_an_input_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, said: str, pipe: bool) -> None:
    (tmp_path / "x").write_bytes(content)

    found = run("tile", "-" if pipe else tmp_path / "x", "--repeats", "1", input=content)

    assert found.exit_code == 1
    assert found.stderr.startswith("error: standard input" if pipe else f"error: {tmp_path / 'x'}")
    assert said in found.stderr
    assert found.stdout == ""


def test_an_animation_is_refused() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "PNG", save_all=True, append_images=frames[1:])

    found = run("tile", "-", "--repeats", "1,1", input=file.getvalue())

    assert found.exit_code == 1
    assert "animated" in found.stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = run("tile", tmp_path / "x.npy", "--repeats", "1")

    assert (found.exit_code, found.stderr) == (1, f"error: {tmp_path / 'x.npy'}: No such file or directory\n")


@pytest.mark.parametrize(
    ("output", "said"),
    [("nodir/y.npy", "nodir/y.npy: its folder does not exist"), ("y.webp", "at most 16,383 pixels"), ("y.png", None)],
)
def test_where_nothing_can_be_written_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, said: str | None
) -> None:
    """No server listens at that address, so a command that connects fails differently; the last case shows it."""
    monkeypatch.chdir(tmp_path)

    found = run("tile", "-", "-o", output, "--repeats", "1,4000", "--url", "http://127.0.0.1:9", input=picture())

    assert found.exit_code == 1
    assert found.stderr.startswith("error: ")
    assert (said or "no connection to") in found.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="sh closes the streams")
@pytest.mark.parametrize(
    ("args", "closing", "said"),
    [
        (("tile", "-", "--repeats", "1", "-o", "y.npy"), "<&-", "standard input is closed"),
        (("validate", "-"), "<&-", "standard input is closed"),
        (("tile", "x.npy", "--repeats", "1"), ">&-", "standard output is closed"),
    ],
)
def test_a_closed_stream_is_one_block(tmp_path: Path, args: list[str], closing: str, said: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-m", "tensorpost", *args]

    found = subprocess.run(command, stderr=subprocess.PIPE, cwd=tmp_path, text=True, timeout=60, check=False)

    assert found.returncode == 1
    assert found.stderr.startswith(f"error: {said}")
    assert found.stderr.count("\n") == 1


def test_too_little_memory_is_one_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none_left(path: str) -> None:
        raise MemoryError

    monkeypatch.setattr("tensorpost.command_line.files.read_array", none_left)

    found = run("tile", "x.npy", "-o", tmp_path / "y.npy", "--repeats", "1")

    assert (found.exit_code, found.stderr.startswith("error: there is not enough memory")) == (1, True)


def test_a_failed_call_leaves_the_old_file_alone(tmp_path: Path) -> None:
    out = tmp_path / "y.npy"
    out.write_bytes(b"old")

    def half(connection: socket.socket, number: int) -> None:
        read_request(connection)
        from safetensors.numpy import save

        whole = http_answer(body=save({"output": Y}), content_type="application/vnd.safetensors")
        connection.sendall(whole[:-5])

    with raw_server(half) as server:
        found = run("tile", "-", "-o", out, "--repeats", "1,1,3,3", "--url", server.url, input=npy(X))

    assert found.exit_code == 1
    assert "incomplete" in found.stderr
    assert out.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with names in folders")
def test_a_pipe_with_a_name_is_written_to_and_not_replaced(url: str, tmp_path: Path) -> None:
    fifo = tmp_path / "y.npy"
    os.mkfifo(fifo)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()), daemon=True)
    reader.start()

    found = run("tile", "-", "-o", fifo, "--repeats", "1,1,3,3", input=npy(X))

    reader.join(10)
    assert found.exit_code == 0
    assert fifo.is_fifo()
    np.testing.assert_array_equal(np.load(io.BytesIO(received[0])), Y)


def test_what_the_server_refuses_is_one_block_with_its_request_id(url: str) -> None:
    found = run("tile", "-", "--repeats", "1,1", "--level", "2_1", input=npy(X[0, 0]))

    assert found.exit_code == 1
    assert found.stdout == ""
    first, *rest = found.stderr.splitlines()
    assert first == "error: Not supported at this DirectML feature level"
    assert all(line.startswith("  ") for line in rest)
    assert "3_1" in found.stderr
    assert re.search(r"\n  request id: \S+\n$", found.stderr)


def test_repeats_are_read_as_numpy_reads_them(url: str) -> None:
    for repeats in ("3", "2,1,1,1,3"):
        found = run("tile", "-", "--repeats", repeats, input=npy(X))
        np.testing.assert_array_equal(
            np.load(io.BytesIO(found.stdout_bytes)), np.tile(X, [*map(int, repeats.split(","))])
        )


def test_the_backend_is_the_one_asked_for(url: str) -> None:
    found = run("tile", "-", "--repeats", "2", "--backend", "null", input=npy(np.ones(3, np.uint8)))

    assert np.load(io.BytesIO(found.stdout_bytes)).tolist() == [0] * 6


def test_no_server_is_said_so() -> None:
    found = run("devices", "--url", "http://127.0.0.1:9")

    assert found.exit_code == 1
    assert found.stderr.startswith("error: no connection to http://127.0.0.1:9")


def test_what_a_server_says_cannot_steer_the_terminal() -> None:
    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        body = json.dumps({"title": "T", "detail": "\x1b[2Jred [bold]text[/bold]"}).encode()
        connection.sendall(http_answer("400 Bad Request", body, "application/problem+json"))

    with raw_server(handle) as server:
        found = run("devices", "--url", server.url)

    assert found.stderr == "error: \N{REPLACEMENT CHARACTER}[2Jred [bold]text[/bold]\n"


def on_a_terminal(*args: str | Path, **streams: Any) -> tuple[int, str]:
    """Run a command whose standard error, and unless given otherwise output, is a terminal; returns what that shows."""
    pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals")
    shown, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorpost", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=streams.get("stdout", terminal),
        stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(terminal)
    text = b""
    while True:
        try:
            part = os.read(shown, 65536)
        except OSError:  # Linux's error when the terminal's other end is closed
            break
        if not part:
            break
        text += part
    os.close(shown)
    return process.wait(30), text.decode()


def test_a_result_is_not_poured_into_a_terminal(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)

    status, shown = on_a_terminal("tile", tmp_path / "x.npy", "--repeats", "1,1,1,1")

    assert status == 2
    assert "-o" in shown


@pytest.mark.parametrize(
    ("size", "quiet", "bar"), [(40 << 20, False, True), (40 << 20, True, False), (6, False, False)]
)
def test_long_work_shows_its_progress_on_a_terminal(
    url: str, tmp_path: Path, size: int, quiet: bool, bar: bool
) -> None:
    np.save(tmp_path / "x.npy", np.zeros(size, np.uint8))
    options = ["--quiet"] if quiet else []

    status, shown = on_a_terminal("tile", tmp_path / "x.npy", "-o", tmp_path / "y.npy", "--repeats", "1", *options)

    assert status == 0
    assert np.load(tmp_path / "y.npy", mmap_mode="r").shape == (size,)
    assert ("MiB" in shown) == bar
    assert "MB" not in shown, "two units in one bar"
    assert bar or shown == ""


# ---- validate --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["offline", "online"])
def where(request: pytest.FixtureRequest) -> list[str]:
    return [] if request.param == "offline" else ["--url", request.getfixturevalue("server_url")]


def test_a_valid_document_is_said_to_be_valid(where: list[str], tmp_path: Path) -> None:
    (tmp_path / "tile.json").write_text(json.dumps(TILE))

    found = run("validate", tmp_path / "tile.json", "--level", "3_1", *where)

    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout.splitlines() == [
        "valid at feature level 3_1 (DML_OPERATOR_TILE; lowest level 3_1)",
        "filled in, since left out: OutputTensor (--strict refuses this)",
    ]


def test_every_violation_is_shown(where: list[str]) -> None:
    found = run("validate", "-", "--level", "2_1", *where, input=json.dumps(TILE).encode())

    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.splitlines()[0] == "error: Not supported at this DirectML feature level"
    assert "$.desc.InputTensor.Sizes: " in found.stderr
    assert "$.desc.OutputTensor.Sizes: " in found.stderr
    assert "found [2, 3], expected 4 dimensions (DML_OPERATOR_TILE page, tensor support)" in found.stderr


def test_a_broken_document_shows_every_broken_rule(where: list[str]) -> None:
    broken = {"type": "TILE", "desc": {"InputTensor": {"DataType": "FLOAT32", "Sizes": [2, 3]}, "Repeats": [0, 2, 3]}}

    found = run("validate", "-", *where, input=json.dumps(broken).encode())

    assert found.exit_code == 1
    assert "$.desc.Repeats: " in found.stderr
    assert "$.desc.Repeats[0]: " in found.stderr


@pytest.mark.parametrize(("level", "valid"), [("2_1", False), ("3_1", True)])
def test_json_says_the_same_offline_and_online(server_url: str, level: str, valid: bool) -> None:
    args = ("validate", "-", "--level", level, "--json")
    offline = run(*args, input=json.dumps(TILE).encode())
    online = run(*args, "--url", server_url, input=json.dumps(TILE).encode())

    assert offline.exit_code == online.exit_code == (0 if valid else 1)
    said = json.loads(offline.stdout)
    assert said == json.loads(online.stdout)
    assert (said["valid"], said["feature_level"], said["lowest_feature_level"]) == (valid, level, "3_1")
    assert len(said["violations"]) == (0 if valid else 2)


@pytest.mark.parametrize(
    ("text", "said"), [(b"{", "not JSON"), (b'{"type":1,"type":2}', "type"), (b'{"type":"TILES","desc":{}}', "TILE")]
)
def test_what_is_no_operator_document_is_refused(text: bytes, said: str) -> None:
    found = run("validate", "-", input=text)

    assert found.exit_code == 1
    assert said in found.stderr


def test_an_array_in_the_place_of_a_document_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)

    found = run("validate", tmp_path / "x.npy")

    assert found.exit_code == 1
    assert f"{tmp_path / 'x.npy'} is not the JSON document of an operator or ONNX node" in found.stderr
    assert "not UTF-8" in found.stderr


# ---- the server's side -----------------------------------------------------------------------------------------------


def test_devices(url: str) -> None:
    table, as_json = run("devices"), run("devices", "--json")

    assert table.exit_code == 0
    assert re.search(r"^numpy +\S.* +ready +- *$", table.stdout, re.MULTILINE)
    assert table.stdout.endswith("default: auto\n")
    assert [device["name"] for device in json.loads(as_json.stdout)["devices"]][-1] == "null"
    (found,) = [row for row in json.loads(as_json.stdout)["libraries"] if row["name"] == "onnxruntime"]
    said = found["version"] or "no; on the server, pip install '.[onnx]' in a clone of tensorpost"
    assert f"\nonnxruntime: {said}\n" in table.stdout


def test_doctor_names_every_backend() -> None:
    table, as_json = run("doctor"), run("doctor", "--json")

    assert table.exit_code == 0
    assert re.search(rf"^numpy +yes +{re.escape(np.__version__)} +\S", table.stdout, re.MULTILINE)
    assert {"name", "available", "version", "device", "reason"} <= json.loads(as_json.stdout)[0].keys()


def test_config_says_where_each_setting_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_PORT", "9000")

    table = run("config")
    rows = {row["name"]: row for row in json.loads(run("config", "--json").stdout)}

    assert re.search(r"^port +9000 +environment +TENSORPOST_PORT *$", table.stdout, re.MULTILINE)
    assert re.search(r"^host +127\.0\.0\.1 +default +TENSORPOST_HOST *$", table.stdout, re.MULTILINE)
    assert (rows["port"]["value"], rows["port"]["origin"]) == (9000, "environment")


def test_config_keeps_every_cell_whole_in_a_pipe() -> None:
    """Both columns have a long cell, but in different rows: no row alone says how wide the table is."""
    table = run("config").stdout
    rows = json.loads(run("config", "--json").stdout)

    assert len(table.splitlines()) == 1 + len(rows)
    for row, line in zip(rows, table.splitlines()[1:], strict=True):
        assert line.split()[0] == row["name"]
        assert line.split()[-1] == row["variable"]


@pytest.mark.parametrize("forced", [False, True])
def test_a_table_is_as_wide_as_the_longest_cells_of_its_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], forced: bool
) -> None:
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")  # of CI, where output is a file all the same

    print_table(("one", "two"), [("a" * 100, "b"), ("c", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 100)])

    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["a" * 100, "b"],
        ["c", "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 100],
    ]


def test_a_table_in_a_file_folds_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("one", "two"), [("a", "some words " * 20)])

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80
    assert " ".join(lines).split().count("words") == 20


def test_a_setting_that_cannot_be_right_is_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_PORT", "many")

    found = run("config")

    assert found.exit_code == 1
    assert found.stderr.startswith("error: TENSORPOST_PORT is 'many'")


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on Windows")
@pytest.mark.parametrize(
    ("args", "answer", "said"),
    [
        (("healthcheck",), b"{}", ""),
        (("devices", "--json"), b'{"devices": [], "default": "numpy"}', '"numpy"'),
        (("validate", "-"), None, "valid at feature level"),
    ],
)
def test_a_unix_socket_will_do(tmp_path: Path, args: tuple[str, ...], answer: bytes | None, said: str) -> None:
    path = str(tmp_path / "s")
    desc = parse_operator(TILE, complete=True)
    verdict = {"valid": True, "op": json.loads(desc.to_document_text()), "feature_level": "6_4"}
    verdict |= {"lowest_feature_level": "2_1", "input_bytes": 24, "output_bytes": 48}
    body = answer or json.dumps(verdict).encode()

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(http_answer(body=body))

    with raw_server(handle, uds=path) as server:
        found = run(*args, "--uds", path, input=json.dumps(TILE).encode())
        assert (found.exit_code, found.stderr, server.connections) == (0, "", 1)
    assert said in found.stdout


def test_healthcheck_is_silent(url: str) -> None:
    healthy, unhealthy = run("healthcheck"), run("healthcheck", "--url", "http://127.0.0.1:9")

    assert (healthy.exit_code, healthy.output) == (0, "")
    assert (unhealthy.exit_code, unhealthy.output) == (1, "")


def test_healthcheck_does_not_wait_long() -> None:
    release = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:
        release.wait(10)

    with raw_server(handle) as server:
        begin = time.monotonic()
        found = run("healthcheck", "--url", server.url, "--timeout", "0.2")
        assert time.monotonic() - begin < 5
        release.set()
    assert found.exit_code == 1


@pytest.fixture
def serving() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorpost", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    try:
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_serve_serves_and_stops_when_asked_to(serving: tuple[subprocess.Popen[str], str]) -> None:
    process, address = serving

    assert address.startswith("http://127.0.0.1:")
    assert run("healthcheck", "--url", address).exit_code == 0
    process.terminate()
    process.wait(20)
    assert run("healthcheck", "--url", address).exit_code == 1


# ---- parts that are not installed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_libraries_the_command_says_how_to_install_them(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from tensorpost.__main__ import main; main()"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (found.returncode, found.stdout) == (1, "")
    assert f"the package {missing}, which is not installed" in found.stderr
    assert "pip install '.[cli]'" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("command", ["serve", "doctor", "config"])
@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_server_its_commands_say_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, command: str, missing: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tensorpost_server", missing)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # how Python notes that there is no such module

    found = run(command)

    assert found.exit_code == 1
    assert f"{missing} is not installed: pip install '.[server]'" in found.stderr


def test_a_safetensors_file_may_come_through_a_pipe(url: str, tmp_path: Path) -> None:
    head = b'{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
    content = len(head).to_bytes(8, "little") + head + b"abc"

    done = run("tile", "-", "--repeats", "2", "-o", tmp_path / "y.npy", input=content)
    cut = run("tile", "-", "--repeats", "2", "-o", tmp_path / "z.npy", input=content[:-1])

    assert done.exit_code == 0, done.stderr
    assert np.load(tmp_path / "y.npy").tobytes() == b"abcabc"
    assert (cut.exit_code, "announces 3 bytes of elements, and only 2 follow" in cut.stderr) == (1, True)


def test_without_pillow_arrays_still_work_and_pictures_say_what_is_missing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    png = picture()
    monkeypatch.setitem(sys.modules, "PIL", None)

    array = run("tile", "-", "--repeats", "1", input=npy(np.zeros(3, np.uint8)))
    pixels = run("tile", "-", "--repeats", "1,1", input=png)

    assert array.exit_code == 0
    assert pixels.exit_code == 1
    assert "pip install '.[images]'" in pixels.stderr

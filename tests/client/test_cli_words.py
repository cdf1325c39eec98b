"""The command line's own words: help, sizes, hints, operators by name, and what a server does from here."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.command_line import Done, invoke
from tests.support.http_app import serving
from tests.support.raw_server import http_answer, raw_server, read_request

from tensorpost import Progress
from tensorpost import __main__ as entry_point
from tensorpost.command_line.terminal import progress_bar, size_text
from tensorpost_server.settings import Settings

X = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(backend="numpy") as server:
        yield server.url.removeprefix("http://")


@pytest.fixture
def x(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def test_help_is_whole_and_short():
    for arguments in (["-h"], ["--help"]):
        done = invoke(*arguments)
        assert done.returncode == 0
        assert done.stdout.count("...") == 1  # [ARGS]...
        for command in ("serve", "onnx", "bench", "healthcheck"):
            assert f"\n  {command} " in done.stdout
    for command in ("tile", "run", "onnx", "bench", "serve"):
        assert "Example: tensorpost" in invoke(command, "-h").stdout


def test_a_size_with_an_x_is_width_and_height(url: str, tmp_path: Path, x: Path):
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "in.png")
    for size in ("20x10", "10,20"):
        target = tmp_path / "out.png"
        done = invoke("resample", str(tmp_path / "in.png"), "-o", str(target), "--size", size, "--url", url)
        assert done.returncode == 0, done.stderr
        with Image.open(target) as image:
            assert image.size == (20, 10)  # Pillow says width and height too
    done = invoke("resample", str(x), "-o", str(tmp_path / "y.npy"), "--size", "6x4", "--axes", "-2,-1", "--url", url)
    assert (done.returncode, np.load(tmp_path / "y.npy").shape) == (0, (1, 1, 4, 6))
    done = invoke("resample", str(x), "-o", str(tmp_path / "y.npy"), "--size", "6x4", "--url", url)
    assert (done.returncode, "--axes -2,-1" in done.stderr) == (1, True)


def test_any_operator_by_name(url: str, tmp_path: Path, x: Path):
    target = tmp_path / "y.npy"

    def ran(*arguments: str) -> Done:
        return invoke(*arguments, "-o", str(target), "--url", url)

    done = ran("run", "join", str(x), str(x), "-s", "axis=3")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(target), np.concatenate([X, X], 3))
    done = ran("run", "slice1", str(x), "-s", "input_window_offsets=0,0,0,1", "-s", "input_window_sizes=1,1,2,2",
               "-s", "input_window_strides=1,1,1,1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(target), X[..., 1:])
    done = ran(
        "onnx", "Resize", str(x), "-s", "mode=NEAREST", "-s", "scales=1,1,2,2", "-s", "nearest_mode=round_prefer_ceil"
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(target), X.repeat(2, 2).repeat(2, 3))
    done = ran("onnx", "resize", str(x), "-s", "mode=cubic", "-s", "scales=2,2", "-s", "axes=2,3")
    assert (done.returncode, np.load(target).shape) == (0, (1, 1, 4, 6)), done.stderr
    done = ran("run", "cast", str(x), "-s", "output_data_type=FLOAT16")
    assert (done.returncode, np.load(target).dtype) == (0, np.float16), done.stderr
    done = ran("onnx", "Tile", str(x), "-s", "repeats=[1,1,2,2]")
    assert (done.returncode, np.load(target).shape) == (0, (1, 1, 4, 6)), done.stderr
    done = ran("onnx", "Concat", str(x), str(x), str(x), "-s", "axis=0")
    assert (done.returncode, np.load(target).shape) == (0, (3, 1, 2, 3))

    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(tmp_path / "in.png")
    done = invoke("onnx", "Transpose", str(tmp_path / "in.png"), "-o", str(tmp_path / "out.png"), "--url", url)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "out.png") as image:
        np.testing.assert_array_equal(np.asarray(image), np.arange(12).reshape(3, 4).T)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["run", "joim", "{x}"], 1, "JOIN"),
        (["run", "join", "{x}", "-s", "axes=3"], 1, "did you mean axis?"),
        (["run", "resample", "{x}", "-s", "scale=2"], 1, "did you mean scales?"),
        (["run", "model.onnx", "{x}"], 2, "tensorpost model run model.onnx x=x.npy -o y=y.npy"),
        (["run", "join", "{x}", "-s", "axis"], 2, "write NAME=VALUE"),
        (["run", "join", "{x}", "-s", "axis=1", "-s", "axis=2"], 2, "set twice"),
        (["onnx", "Neg", "{x}", "{x}"], 1, "Neg takes 1 tensor (X), and there are 2"),
        (["resample", "{x}", "--scale", "2", "--mode", "cubic"], 2, "tensorpost onnx Resize IN -s mode=cubic"),
        (["resample", "{x}", "--scale", "2", "--mode", "Linaer"], 2, "there are linear and nearest"),
        (["resample", "{int64}", "--scale", "2"], 1, "tensorpost onnx Resize IN -s mode=linear"),
        (["resample", "{x}", "--scale", "2", "--mode", "BICUBIC"], 2, "tensorpost onnx Resize IN -s mode=cubic"),
        (["resample", "{x}", "--size", "224x"], 2, "'224x' is not a size; write width x height, as in 640x480, or one"),
        (["resample", "{x}", "--size", "2,,4"], 2, "'2,,4' is not a list of whole numbers; write width x height"),
        (["tile", "{x}", "--repeats", "3;3"], 2, "write one per dimension"),
        (["run", "join", "{x}", "{x}", "-s", "axis=9"], 1, "--set axis: axis is 9, but there are 4 dimensions: 0 to 3"),
        (["run", "concat", "{x}", "{x}"], 1, "did you mean 'JOIN'?"),
        (["resize", "{x}"], 2, "Did you mean 'tensorpost resample'?"),
        (["relu", "{x}"], 2, "Did you mean 'tensorpost run activation_relu'?"),
        (["tile", "{png}", "--repeats", "1,1,3,3"], 1, "in.png is 4 rows x 6 columns x 3 channels, in this order"),
        (["tile", "{png}", "--repeats", "2,2,2"], 1, "--repeats 2,3 makes 2 copies down and 3 across"),
        (["resample", "{png}", "--scale", "2", "--axes", "2,3"], 1, "entry 2 of --axes is 3, but IN has 3 dimensions"),
        (["run", "tile", "{png}"], 1, "write it as in: -s repeats=1,1,... {png} is 4 rows x 6 columns x 3 channels"),
        (
            ["run", "upsample_2d", "{x}"],
            1,
            """-s scale_size='{{"Width": 2, "Height": 2}}' -s interpolation_mode=NEAREST""",
        ),
        (["run", "gather", "{x}"], 1, "GATHER takes 2 tensors (input, indices); got 1 array"),
        (["run", "cast", "{x}"], 1, "--set output_data_type: output_data_type must be given"),
        (["run", "cast", "{x}"], 1, "write it as in: -s output_data_type=FLOAT32$"),
        (["run", "reduce", "{x}"], 1, "-s axes=0,1"),
        (
            ["resample", "{x}", "--scale", "2"],
            1,
            "name them, as in --axes -2,-1 for the rows and columns of N, C, H, W",
        ),
        (["resample", "{x}", "--size", "7"], 1, "--size is a single number, which holds for every axis in --axes"),
        (["run", "sofmax", "{x}"], 1, "did you mean 'ACTIVATION_SOFTMAX'?"),
        (["run", "tile", "{x}", "-s", "repeats=1,1,1,-1"], 1, "from 1 to 4294967295"),
        (["onnx", "Resize", "{x}"], 1, "-s scales=1,1,2,2"),
        (["onnx", "Resize", "{x}", "-s", "sacles=1,1,2,2"], 1, "has no attribute 'sacles'; did you mean 'scales'?"),
        (["run", "zzzqqq", "{x}"], 1, "tensorpost operators lists them all"),
        (["onnx", "Concat", "{x}"], 1, "write it as in: -s axis=1"),
        (["onnx", "Add", "{x}"], 1, "Add-14 needs the input B, which is a file"),
    ],
)
def test_hints_are_for_the_command_line(tmp_path: Path, x: Path, arguments: list[str], status: int, said: str):
    np.save(tmp_path / "int64.npy", np.arange(4).reshape(2, 2))
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "in.png")
    places = {"x": str(x), "int64": str(tmp_path / "int64.npy"), "png": str(tmp_path / "in.png")}
    output = tmp_path / ("out.png" if "{png}" in arguments else "y.npy")
    done = invoke(*[each.format(**places) for each in arguments], "-o", str(output))
    assert done.returncode == status, done.stderr
    text = " ".join(done.stderr.replace("│", " ").split())
    wanted = said.format(**places)
    assert text.endswith(wanted[:-1]) if wanted.endswith("$") else wanted in text
    assert not [word for word in ("np.", "client.", "mode='", "tp.") if word in text]


def test_float64_and_bool_files_are_tiled(url: str, tmp_path: Path):
    for array in (np.ones((2, 2)), np.array([True, False])):
        np.save(tmp_path / "d.npy", array)
        done = invoke("tile", str(tmp_path / "d.npy"), "--repeats", "2", "-o", str(tmp_path / "y.npy"), "--url", url)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.tile(array, 2), strict=True)


def test_bench_says_what_a_server_does_from_here(url: str):
    done = invoke("bench", url, "--seconds", "0", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["sent_bytes"] for row in rows] == [1 << 10, 1 << 16, 1 << 20, 1 << 24]
    assert all(row["calls"] >= 1 and 0 < row["server_ms"] <= row["median_ms"] for row in rows)
    assert "throughput" in invoke("bench", "--url", url, "--seconds", "0").stdout


def test_sizes_are_read_and_shown_as_people_write_them(monkeypatch: pytest.MonkeyPatch):
    for text, size in (("1GB", 10**9), ("1GiB", 1 << 30), ("1.5 mib", 3 << 19), ("2000", 2000), ("512kB", 512_000)):
        monkeypatch.setenv("TENSORPOST_MAX_BODY_BYTES", text)
        assert Settings().max_body_bytes == size
    shown = invoke("config", env={"TENSORPOST_MAX_BODY_BYTES": "2GiB"}).stdout
    assert "2 GiB" in next(line for line in shown.splitlines() if line.startswith("max_body_bytes"))
    for wrong in ("1G", "GB", "1 parsec", "-1GB"):
        assert invoke("config", env={"TENSORPOST_MAX_BODY_BYTES": wrong}).returncode == 1
    assert [size_text(size) for size in (0, 999, 1024, 3 << 19, 10**9)] == [
        "0 bytes", "999 bytes", "1 KiB", "1.5 MiB", "953.67 MiB (1,000,000,000 bytes)",
    ]  # fmt: skip


def test_operators_are_listed_without_a_server():
    every = json.loads(invoke("operators", "--json").stdout)
    assert len(every) == 177  # DirectML's
    join = next(row for row in every if row["name"] == "join")
    assert {"name": "join", "feature_level": "1_0"}.items() <= join.items()
    found = [line.split()[0] for line in invoke("operators", "Softmax").stdout.splitlines()[1:]]
    assert {"activation_softmax", "activation_log_softmax1", "multihead_attention"} <= {*found}
    assert "join" not in found
    done = invoke("operators", "concat")
    assert (done.returncode, "did you mean 'JOIN'?" in done.stderr) == (1, True)


def test_one_repeat_for_a_picture_says_what_to_write(tmp_path: Path):
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "in.png")
    done = invoke("tile", str(tmp_path / "in.png"), "--repeats", "2", "-o", str(tmp_path / "out.png"))
    assert (done.returncode, "write --repeats 2,2" in " ".join(done.stderr.split())) == (1, True)


def test_hints_about_lists_are_for_lists(tmp_path: Path):
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "in.png")
    for arguments in (["tyle"], ["join", "-s", "axes=1"], ["join", "-s", "axis=9"]):
        name, *settings = arguments
        done = invoke("run", name, str(tmp_path / "in.png"), *settings, "-o", str(tmp_path / "out.npy"))
        assert (done.returncode, "repeats" in done.stderr) == (1, False), done.stderr


def test_another_web_server_is_called_one():
    page = b"<!DOCTYPE HTML><html><head><style>b { color: red }</style></head><body><b>Unsupported method</b></body>"

    def answered(connection: socket.socket, _: int) -> None:
        read_request(connection)
        connection.sendall(http_answer("501 No", page, "text/html"))

    with raw_server(answered) as server:
        done = invoke("devices", "--url", server.url)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert "not in the words of a tensorpost server" in said
    assert said.endswith("answered: Unsupported method")


def test_warmup_says_that_it_compiles_only_where_it_does():
    done = invoke("warmup", env={"NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", "")})  # compiled by conftest.py
    assert (done.returncode, done.stderr) == (0, "")
    assert "compiled already" in done.stdout


def test_ctrl_c_while_commands_are_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry_point, "_main", interrupted)
    with pytest.raises(SystemExit) as ended:
        entry_point.main()
    assert ended.value.code == 130


CERTIFICATE = Path(__file__).parents[1] / "support" / "loopback.pem"
DEVICES = http_answer(body=b'{"default": "numpy", "devices": []}', content_type="application/json")


def tls_only(connection: socket.socket, number: int) -> None:
    """Answer one request over TLS; nothing to what is no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
        read_request(secured)
        secured.sendall(DEVICES)


def test_the_command_line_trusts_the_issuer_of_cacert():
    with raw_server(tls_only) as server:
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        refused = invoke("devices", "--url", url)
        trusted = invoke("devices", "--url", url, "--cacert", CERTIFICATE, "--cert", CERTIFICATE)

    assert (refused.returncode, "--cacert FILE" in refused.stderr, "ssl." in refused.stderr) == (1, True, False)
    assert (trusted.returncode, trusted.stdout.splitlines()[-1:]) == (0, ["default: numpy"]), trusted.stderr


def test_plain_http_to_a_server_of_tls_is_told_to_use_https():
    def close(connection: socket.socket, number: int) -> None:
        read_request(connection)

    with raw_server(close) as server:
        done = invoke("devices", "--url", server.url)

    assert "closed the connection without an answer; if it serves https, write https://" in done.stderr


@pytest.mark.parametrize(
    ("url", "option", "file", "said"),
    [
        ("http://localhost:1", "--cacert", str(CERTIFICATE), "not an https URL"),
        ("https://localhost:1", "--cacert", "not-there.pem", "No such file"),
        ("https://localhost:1", "--cacert", __file__, "holds no PEM of a certificate"),
        ("https://localhost:1", "--cert", __file__, "holds no PEM of a certificate with its private key"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_status_2(url: str, option: str, file: str, said: str):
    done = invoke("devices", "--url", url, option, file)

    assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_an_output_with_strides_is_written_as_bytes_or_packed(url: str, tmp_path: Path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    output = {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [4, 1]}  # a gap of one element after each row
    document = {"type": "ELEMENT_WISE_IDENTITY", "desc": {"OutputTensor": output}}
    (tmp_path / "op.json").write_text(json.dumps(document))
    command = ["run", str(tmp_path / "op.json"), str(tmp_path / "x.npy"), "--url", url]

    refused = invoke(*command, "-o", tmp_path / "y.npy")
    packed = invoke(*command, "-o", tmp_path / "y.npy", "--packed")
    raw = invoke(*command, "-o", tmp_path / "y.bin")

    assert (refused.returncode, "--packed" in refused.stderr, ".bin" in refused.stderr) == (1, True, True)
    assert (packed.returncode, raw.returncode) == (0, 0), (packed.stderr, raw.stderr)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x)
    elements = np.frombuffer((tmp_path / "y.bin").read_bytes(), np.float32)
    assert elements.size == 7  # DirectML's rule: up to the last element
    np.testing.assert_array_equal(elements[[0, 1, 2, 4, 5, 6]], x.ravel())


def test_an_interrupted_call_says_how_far_it_came(capsys: pytest.CaptureFixture[str]):
    def interrupted() -> None:
        with progress_bar(1 << 40, quiet=True) as progress:
            progress(Progress(sent=1 << 20, to_send=1 << 20, received=3 << 20, to_receive=1 << 30))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert "interrupted: 1 MiB of 1 MiB sent, 3 MiB of 1 GiB received" in capsys.readouterr().err

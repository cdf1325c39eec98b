"""TLS of the server: its files, their replacement while it runs, callers' certificates, and the way bodies take."""

from __future__ import annotations

import contextlib
import errno
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.commands.test_commands import serving
from tests.support.http_app import PATIENCE, app_settings, eventually

from tensorpost import Client
from tensorpost.values.problems import ConnectionProblem, InvalidParameter
from tensorpost_server import commands
from tensorpost_server.http.connection.tls import TlsFiles, uvicorn_options

CERTIFICATE = Path(__file__).parents[1] / "support" / "loopback.pem"
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes certificates with the openssl command"
)


def make_certificate(folder: Path, name: str, issuer: str | None = None) -> Path:
    """A certificate with its key in one PEM file, for 127.0.0.1; of another such file, or its own issuer."""
    key, certificate, both = (folder / f"{name}.{kind}" for kind in ("key", "crt", "pem"))
    by = () if issuer is None else ("-CA", str(folder / f"{issuer}.crt"), "-CAkey", str(folder / f"{issuer}.key"))
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *by,
            "-keyout", key, "-out", certificate, "-days", "2", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


def trusting(certificate: Path, own: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    if own is not None:
        context.load_cert_chain(own)
    return context


@contextlib.contextmanager
def tls_server(certificate: Path, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serving("--port", "0", TENSORPOST_TLS_CERTIFICATE=str(certificate), **env) as (server, url):
        yield server, url


def common_name(url: str, *protocols: str) -> str:
    """Of the certificate that a new connection is shown."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:  # gRPC asks for its own
        context.set_alpn_protocols(protocols)
    with socket.create_connection(address, PATIENCE) as plain, context.wrap_socket(plain) as wire:
        der = wire.getpeercert(binary_form=True)
    assert der is not None
    return next(name for name in ("first", "second", "localhost") if name.encode() in der)


@pytest.mark.skipif(sys.platform == "win32", reason="stops the server by a signal that Windows has not")
def test_it_serves_with_keys_large_bodies_and_alpn(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = commands.add_key(keys, "anna")
    x = np.arange(1 << 21, dtype=np.float32)
    with tls_server(CERTIFICATE, TENSORPOST_KEYS_FILE=str(keys)) as (server, url):
        assert url.startswith("https://127.0.0.1:")
        with Client(url, api_key=key, tls=trusting(CERTIFICATE)) as tp:
            assert tp.transport == "own sockets, TLS"
            for _ in range(3):
                np.testing.assert_array_equal(tp.tile(x[:4], (2,)), np.tile(x[:4], 2))
            np.testing.assert_array_equal(tp.tile(x, (2,)), np.tile(x, 2))
        context = trusting(CERTIFICATE)
        context.set_alpn_protocols(["h2", "http/1.1"])
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address) as plain, context.wrap_socket(plain) as wire:
            assert wire.selected_alpn_protocol() == "http/1.1"
            assert wire.version() in ("TLSv1.2", "TLSv1.3")
        server.terminate()
        _, err = server.communicate(timeout=PATIENCE)
    assert err == ""


@needs_openssl
def test_a_new_certificate_is_taken_without_a_restart(tmp_path: Path) -> None:
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    used = tmp_path / "used.pem"
    shutil.copy(first, used)
    with tls_server(used) as (_, url), Client(url, tls=trusting(first)) as tp:
        assert tp.ready()
        assert common_name(url) == "first"
        shutil.copy(second, tmp_path / "next.pem")
        (tmp_path / "next.pem").replace(used)
        eventually(lambda: common_name(url) == "second", "new connections get the new certificate")
        assert tp.ready(), "a connection that is open goes on"
        with Client(url, tls=trusting(second)) as other:
            assert other.ready()


def watched_certificate(folder: Path) -> tuple[Path, TlsFiles]:
    """A copy of the certificate in this folder, and what reloads it."""
    used = folder / "used.pem"
    shutil.copy(CERTIFICATE, used)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(used)
    return used, TlsFiles(app_settings(tls_certificate=used), context)


def test_a_certificate_that_is_spoilt_changes_nothing_but_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used, files = watched_certificate(tmp_path)
    before = used.read_bytes()

    for spoilt in (before[: len(before) // 2], b""):
        used.write_bytes(spoilt)
        files.reload_if_changed()
        assert "the one from before stays" in caplog.text
        caplog.clear()
        files.reload_if_changed()
        assert caplog.text == "", "said once"
    used.unlink()
    files.reload_if_changed()
    assert "the one from before stays" in caplog.text
    caplog.clear()
    used.write_bytes(before)
    files.reload_if_changed()
    assert "new connections get" in caplog.text


@needs_openssl
def test_grpc_gets_a_new_certificate_too(tmp_path: Path) -> None:
    """It kept the old one until the server was started again."""
    grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
    make_certificate(tmp_path, "issuer")
    for name in ("first", "second", "ours"):
        make_certificate(tmp_path, name, "issuer")
    used, key = tmp_path / "used.pem", tmp_path / "used.key"
    shutil.copy(tmp_path / "first.crt", used)
    shutil.copy(tmp_path / "first.key", key)
    settings = {"tls_key": str(key), "tls_client_ca": str(tmp_path / "issuer.crt"), "grpc_port": "0"}
    env = {f"TENSORPOST_{name.upper()}": value for name, value in settings.items()}
    files = [(tmp_path / name).read_bytes() for name in ("issuer.crt", "ours.key", "ours.crt")]

    def is_live(address: str, *own: bytes) -> bool:
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(files[0], *own)) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            return call(b"", timeout=PATIENCE, wait_for_ready=bool(own)) == b"\x08\x01"

    with tls_server(used, **env) as (server, _):
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        shown = f"https://{address}"
        assert common_name(shown, "h2") == "first"
        assert is_live(address, *files[1:])
        shutil.copy(tmp_path / "second.crt", used)
        assert common_name(shown, "h2") == "first", "the key is not that of the certificate yet"
        shutil.copy(tmp_path / "second.key", key)
        assert common_name(shown, "h2") == "second"
        assert is_live(address, *files[1:])
        with pytest.raises(grpc.RpcError):  # no certificate of the caller
            is_live(address)
        server.kill()
        _, err = server.communicate(timeout=PATIENCE)
    assert err.count("new connections of gRPC get") == 1
    assert "Traceback" not in err


def test_a_certificate_that_could_not_be_read_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no descriptor was free, a renewed one was not taken until the file changed once more."""
    used, files = watched_certificate(tmp_path)
    used.write_bytes(used.read_bytes() + b"\n")
    with monkeypatch.context() as full:
        error = OSError(errno.EMFILE, "Too many open files")
        full.setattr(ssl.SSLContext, "load_cert_chain", mock.Mock(side_effect=error))
        files.reload_if_changed()
        files.reload_if_changed()
    assert caplog.text.count("too many open files") == 1, "said once"
    files.reload_if_changed()
    files.reload_if_changed()
    assert caplog.text.count("new connections get") == 1


@needs_openssl
def test_only_callers_with_a_certificate_of_the_issuer(tmp_path: Path) -> None:
    make_certificate(tmp_path, "issuer")
    issuer = tmp_path / "issuer.crt"
    ours, stranger = make_certificate(tmp_path, "ours", "issuer"), make_certificate(tmp_path, "stranger")
    with tls_server(CERTIFICATE, TENSORPOST_TLS_CLIENT_CA=str(issuer)) as (server, url):
        with Client(url, tls=trusting(CERTIFICATE, ours)) as tp:
            np.testing.assert_array_equal(tp.tile(np.array([1], np.int32), (2,)), [1, 1])
        for own in (None, stranger):
            with Client(url, tls=trusting(CERTIFICATE, own), retries=0) as tp, pytest.raises(ConnectionProblem):
                tp.limits()
        server.terminate()
        _, err = server.communicate(timeout=PATIENCE)
    assert "Traceback" not in err


@needs_openssl
def test_grpc_takes_only_callers_with_a_certificate_of_the_issuer(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
    make_certificate(tmp_path, "issuer")
    make_certificate(tmp_path, "ours", "issuer")
    used = make_certificate(tmp_path, "server", "issuer")
    make_certificate(tmp_path, "other")
    make_certificate(tmp_path, "stranger", "other")
    settings = {"TENSORPOST_TLS_CLIENT_CA": str(tmp_path / "issuer.crt"), "TENSORPOST_GRPC_PORT": "0"}

    def is_live(address: str, own: str) -> bool:
        files = [(tmp_path / name).read_bytes() for name in ("issuer.crt", f"{own}.key", f"{own}.crt")]
        credentials = grpc.ssl_channel_credentials(*files)
        with grpc.secure_channel(address, credentials) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            return call(b"", timeout=PATIENCE) == b"\x08\x01"

    with tls_server(used, **settings) as (server, _):
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        with pytest.raises(grpc.RpcError) as refused:
            is_live(address, "stranger")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert is_live(address, "ours")
        server.terminate()
        _, err = server.communicate(timeout=PATIENCE)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_key": CERTIFICATE}, "TENSORPOST_TLS_KEY is set without TENSORPOST_TLS_CERTIFICATE"),
        ({"tls_client_ca": CERTIFICATE}, "TENSORPOST_TLS_CLIENT_CA is set without TENSORPOST_TLS_CERTIFICATE"),
        ({"tls_certificate": Path("not-there")}, "cannot be used .*not-there.*: no such file"),
        ({"tls_certificate": Path(__file__)}, r"cannot be used \(TENSORPOST_TLS_CERTIFICATE="),
        ({"tls_certificate": CERTIFICATE, "tls_key": Path(__file__)}, "TENSORPOST_TLS_KEY=.*cannot be used|cannot be"),
        ({"tls_certificate": CERTIFICATE, "tls_client_ca": Path("not-there")}, "issuers of callers cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_a_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        uvicorn_options(app_settings(**settings))


def test_without_a_certificate_there_is_no_tls() -> None:
    assert uvicorn_options(app_settings()) == {}

"""TLS: what uvicorn is told, and certificates that are replaced while it runs.

New certificates are loaded into the context that the server listens with, which OpenSSL uses for the handshakes from
then on; for gRPC they are looked at before each handshake. Connections that are open keep theirs.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from tensorpost.values.problems import InvalidParameter

from ...settings import Settings, setting_variable

_log = logging.getLogger(__name__)


def uvicorn_options(settings: Settings) -> dict[str, Any]:
    """The options of `uvicorn.Config` for TLS; none without a certificate.

    Raises:
        InvalidParameter: a file is missing or cannot be used, or a setting needs another one.
    """
    if settings.tls_certificate is None:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(settings, name) is not None:
                raise InvalidParameter(
                    f"{setting_variable(name)} is set without {setting_variable('tls_certificate')}, which turns on TLS"
                )
        return {}
    _context(settings)
    return {
        "ssl_certfile": settings.tls_certificate,
        "ssl_keyfile": settings.tls_key,
        "ssl_ca_certs": settings.tls_client_ca,
        "ssl_cert_reqs": ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
    }


class TlsFiles:
    """The certificate of the context that the server listens with; its files are loaded again when they have changed.

    Args:
        settings: the settings, which name the files.
        context: the context that the server listens with. ALPN and the lowest version of TLS are set here, too.
        protocol: the protocol's name in ALPN.
        taken: what is said in the log when new files were loaded.
    """

    def __init__(
        self,
        settings: Settings,
        context: ssl.SSLContext,
        protocol: str = "http/1.1",
        taken: str = "new connections get",
    ) -> None:
        self._settings, self.context, self._taken = settings, context, taken
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # RFC 9325, section 3.1.1
        context.set_alpn_protocols([protocol])  # RFC 7301
        self._state = self._look()
        self._said: tuple[object, str] | None = None

    def reload_if_changed(self) -> None:
        """Load the files if one has changed. Those that cannot be used are logged once, and tried again."""
        state, settings = self._look(), self._settings
        if state == self._state:
            return
        assert settings.tls_certificate is not None
        try:
            _context(settings)  # first on another context: half of a pair would spoil the one in use
            self.context.load_cert_chain(settings.tls_certificate, settings.tls_key, _no_password)
        except (InvalidParameter, OSError) as error:
            if self._said != (state, str(error)):
                self._said = state, str(error)
                _log.error("the certificate has changed and cannot be used, so the one from before stays: %s", error)
            return
        self._state = state
        _log.warning("the certificate has changed: %s %s", self._taken, settings.tls_certificate)

    def _look(self) -> tuple[object, ...]:
        """What changes with the files' content."""
        # Not the issuers of callers: OpenSSL can add some to a context, but take none away.
        files = (self._settings.tls_certificate, self._settings.tls_key)
        return tuple([_state(path) for path in files if path is not None])


def grpc_files(settings: Settings) -> TlsFiles | None:
    """The certificate of the port of gRPC; None without TLS.

    Raises:
        InvalidParameter: a file cannot be used.
    """
    if settings.tls_certificate is None:
        return None
    context = _context(settings)
    context.verify_mode = ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED
    return TlsFiles(settings, context, "h2", "new connections of gRPC get")


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def _no_password() -> str:
    """OpenSSL would ask for one on the terminal."""
    raise InvalidParameter("the private key is encrypted; the server accepts only keys without a password")


def _context(settings: Settings) -> ssl.SSLContext:
    """A context with these files."""
    assert settings.tls_certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, _no_password)
    except OSError as error:  # ssl.SSLError is one
        where = f"{setting_variable('tls_certificate')}={settings.tls_certificate}"
        if settings.tls_key is not None:
            where += f", {setting_variable('tls_key')}={settings.tls_key}"
        raise InvalidParameter(f"the certificate and its key cannot be used ({where}): {_reason(error)}") from None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            where = f"{setting_variable('tls_client_ca')}={settings.tls_client_ca}"
            raise InvalidParameter(f"the issuers of callers cannot be used ({where}): {_reason(error)}") from None
    return context


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error).lower().replace("_", " ")

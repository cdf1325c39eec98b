"""Whether the server of this machine or container takes requests: `python -m tensorpost_server.health_probe`.

Exit status 0 if it does, 1 if not. It asks where the settings say that the server listens, so it follows variables such
as `TENSORPOST_PORT`, but not arguments of `tensorpost serve`. Nothing but the standard library is imported: an
orchestrator runs it every few seconds, and the command line takes ten times as long to start.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from .service_links import is_service_link

_PREFIX = "TENSORPOST_"


def is_ready(environment: Mapping[str, str], seconds: float = 4) -> bool:
    """Whether the server answers that it takes requests.

    Its certificate is not verified: it is this machine. A server that wants a certificate of its callers (mutual TLS)
    ends the handshake, since the probe has none; that it does so is all that can be seen, and counts.

    Raises:
        OSError, ValueError: a file that a variable names cannot be read, or the port is not a number.
    """
    setting = _settings(environment)
    host, port, uds = setting("host") or "127.0.0.1", int(setting("port") or 8000), setting("uds")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 # not listened on here
    if setting("tls_certificate"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        if uds is not None:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(seconds)
            connection.sock.connect(uds)
        connection.request("GET", "/v2/health/ready", headers={"host": "localhost"})
        return connection.getresponse().status == 200
    except ssl.SSLError:
        return setting("tls_client_ca") is not None
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _settings(environment: Mapping[str, str]) -> Callable[[str], str | None]:
    """Values as `tensorpost_server.settings` finds them; None where nothing is set."""
    variables = {name.upper(): value for name, value in environment.items() if not is_service_link(name, value)}
    file = variables.get(_PREFIX + "CONFIG_FILE")
    table = tomllib.loads(Path(file).read_text("utf-8")) if file else {}

    def value_of(name: str) -> str | None:
        variable = _PREFIX + name.upper()
        if variable in variables:
            return variables[variable]
        if path := variables.get(f"{variable}_FILE"):
            return Path(path).read_text("utf-8").strip()
        return str(table[name]) if name in table else None

    return value_of


if __name__ == "__main__":
    sys.exit(0 if is_ready(os.environ) else 1)

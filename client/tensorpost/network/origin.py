"""The origin of a server: its address, and the settings of every connection to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..values.problems import InvalidParameter
from .options import Timeout

if TYPE_CHECKING:  # for annotations only: it takes long to load, and only https needs it
    import ssl

_NO_SCHEME = re.compile(r"(?:localhost|[0-9.]+|\[[0-9A-Fa-f:.]+\]|[^:/?#@]+(?=:[0-9]))(?::[0-9]+)?(?:/|\Z)")
"""An address as people write it: `localhost:8000`, `10.0.0.7`, `gpu-box:8000/tensors`."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """A server's address and what goes with every connection to it.

    Attributes:
        host: name or address, without brackets.
        prefix: path that stands before every target; empty or beginning with a slash.
        headers: sent with every request, names in lower case.
        tls: the context for https, or whether to verify certificates.
        uds: path of a Unix domain socket to connect to instead of host and port.
        address: one of the host's addresses to connect to; None to look it up.
        fields: the Host header and `headers`, as pairs.
    """

    scheme: str
    host: str
    port: int
    prefix: str
    headers: Mapping[str, str] = field(repr=False)  # they may hold an API key
    timeout: Timeout
    tls: ssl.SSLContext | bool
    uds: str | None
    address: str | None = None
    fields: tuple[tuple[str, str], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", (("host", self.authority), *self.headers.items()))

    @classmethod
    def parse(
        cls, base_url: str, *, headers: Mapping[str, str], timeout: Timeout, tls: ssl.SSLContext | bool, uds: str | None
    ) -> Origin:
        """Read a base URL such as `http://127.0.0.1:8000`, `https://example.org/tensors` or `localhost:8000`.

        Raises:
            InvalidParameter: no http or https URL, or one with a query, a fragment or credentials.
        """
        hint = "; write, for instance, http://127.0.0.1:8000"
        argument = f"base_url {base_url[:100]!r}"
        try:
            url = urlsplit(base_url if "://" in base_url or not _NO_SCHEME.match(base_url) else f"http://{base_url}")
            port = url.port
        except ValueError as error:
            raise InvalidParameter(f"{argument} is not a URL: {error}{hint}") from None
        if url.scheme not in _DEFAULT_PORTS or not url.hostname:
            raise InvalidParameter(f"{argument} is not an http or https URL with a host{hint}")
        if uds is not None and url.scheme != "http":
            raise InvalidParameter(f"{argument}: over a Unix socket there is http only")
        if url.query or url.fragment or url.username is not None:
            raise InvalidParameter("base_url must have no query, fragment or credentials; a key goes into api_key=")
        if url.path.rstrip("/") == "/v1":
            raise InvalidParameter(f"{argument} must be the server's address without /v1; calls add their paths to it")
        if not url.path.isascii() or not url.path.isprintable() or " " in url.path:
            raise InvalidParameter(f"base_url's path {url.path[:100]!r} must be percent-encoded")
        if port == 0:
            raise InvalidParameter(f"{argument} has port 0, on which no server can listen{hint}")
        try:
            host = url.hostname if url.hostname.isascii() else url.hostname.encode("idna").decode("ascii")
        except UnicodeError as error:
            raise InvalidParameter(f"{argument} has no host that can be looked up: {error}") from None
        port = port or _DEFAULT_PORTS[url.scheme]
        return cls(url.scheme, host, port, url.path.rstrip("/"), headers, timeout, tls, uds)

    def __str__(self) -> str:
        socket = f" (Unix socket {self.uds})" if self.uds else f" ({self.address})" if self.address else ""
        return f"{self.scheme}://{self.authority}{self.prefix}{socket}"

    @property
    def authority(self) -> str:
        """Host and, unless it is the scheme's own, port: what the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def proxy(self) -> str | None:
        """The proxy that the environment names for this server (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`).

        None for Unix sockets, for an address that was looked up, and for this very machine, which no proxy could reach.
        """
        if self.uds or self.address or self._is_this_machine():
            return None
        import urllib.request  # here, because it takes longer to load than all of this package's own sockets

        if urllib.request.proxy_bypass(self.host) or urllib.request.proxy_bypass(f"{self.host}:{self.port}"):
            return None
        proxies = urllib.request.getproxies()
        proxy = proxies.get(self.scheme) or proxies.get("all")
        return proxy if not proxy or "://" in proxy else f"http://{proxy}"

    def _is_this_machine(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

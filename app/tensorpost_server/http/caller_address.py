"""The address of a caller: the peer of its connection, or what a trusted proxy says of it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache

from starlette.types import Scope

from ..settings import UNIX_PEERS, Settings, networks

FORWARDED_FOR = b"x-forwarded-for"

_ITEM = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9A-Fa-f:.]+)")
"""An address, with a port as some proxies write it."""

_MOST_PROXIES = 16
"""Addresses of proxies that are read. Each takes 6 us of the event loop's time, before any key is checked."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The peers whose `X-Forwarded-For` is believed.

    Args:
        text: the setting `trusted_proxies`, not empty.
    """

    def __init__(self, text: str) -> None:
        self._networks = networks(text)
        self._trusts_all = self._networks is None
        self._trusts_unix = self._trusts_all or UNIX_PEERS in text
        self.trusts = lru_cache(1024)(self._decide)

    @classmethod
    def from_settings(cls, settings: Settings) -> TrustedProxies | None:
        """The proxies of these settings; None if there are none."""
        return cls(settings.trusted_proxies) if settings.trusted_proxies.strip() else None

    def _decide(self, peer: str | None) -> bool:
        """Whether the peer of a connection is a trusted proxy; None is the peer of a Unix socket."""
        if self._trusts_all or peer is None:
            return self._trusts_unix
        address = _parsed(peer.partition("%")[0])
        return address is not None and self._is_proxy(address)

    def _is_proxy(self, address: _Address) -> bool:
        return any(address in network for network in self._networks or ())

    def caller(self, peer: str | None, forwarded: bytes | None) -> str | None:
        """The address of the caller of a request.

        Each proxy appends the address of its own peer, so the list is read from its end: the last address that is not a
        trusted proxy's. If all are, it is the first, the farthest. With `*`, it is the last. No list of more than
        17 addresses is read beyond its last 16.

        Returns:
            The peer's if the peer is not trusted, if it forwards no address, or if anything but an address is met.
        """
        if forwarded is None or not self.trusts(peer):
            return peer
        address: _Address | None = None
        # Of a longer list the first item holds commas, so it is no address.
        for item in reversed(forwarded.decode("latin-1").rsplit(",", _MOST_PROXIES)):
            parts = _ITEM.fullmatch(item.strip(" \t"))
            address = None if parts is None else _parsed(parts[1] or parts[2] or parts[3])
            if address is None or self._trusts_all or not self._is_proxy(address):
                break
        return peer if address is None else str(address)

    def set_client(self, scope: Scope, fields: Mapping[bytes, bytes]) -> None:
        """Make the caller's address the client of an ASGI scope; its port is then unknown (0). May be repeated."""
        client = scope.get("client")
        peer = client[0] if client else None
        address = self.caller(peer, fields.get(FORWARDED_FOR))
        if address != peer:
            scope["client"] = (address, 0)


def _parsed(text: str) -> _Address | None:
    """An address, that of IPv4 where it is one within IPv6 (RFC 4291, section 2.5.5.2); None if it is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def caller_of(scope: Scope) -> str:
    """Whose request it is, for turns and budgets: what access control says, else the client's address.

    Addresses of one IPv6 network of 64 bits are one caller, since a host has as many as it likes (RFC 6177).
    """
    client: tuple[str, int] | None = scope.get("client")
    return caller_name(scope.get("tensorpost.caller") or (client[0] if client else "local"))


def caller_name(caller: str) -> str:
    """`caller_of` of a request that records say is this caller's: the name of a key, or an address."""
    return network_of(caller) if ":" in caller else caller


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """What one caller may have many of: the network /64 of an IPv6 address, else the address."""
    parsed = _parsed(address.partition("%")[0])
    if not isinstance(parsed, ipaddress.IPv6Address):
        return address if parsed is None else str(parsed)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False))

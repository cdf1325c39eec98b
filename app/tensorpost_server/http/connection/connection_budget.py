"""How many connections there may be, in all and from one address, and which one makes room for the next.

Descriptors are the system's bound on connections, and the system drops what is beyond it without a word, health checks
included. So the budget ends before they do, and a few connections beyond the budget may still ask for health.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from typing import Any

from ...shared.counts import NoOthers, ProcessCounts
from ..caller_address import network_of

HEALTH_PATHS = b"/v2/health/"
"""What a connection beyond the budget may still ask for."""

RESERVE = 16
"""Connections beyond the budget, for health checks; they end with their answer."""

_MOST_SEARCHED = 1024  # oldest connections that are searched for an idle one, for each new one

_log = logging.getLogger(__name__)


def is_idle(connection: Any) -> bool:
    """Whether no request of it is complete and unanswered, and it is not closing; for uvicorn's protocols, and ours."""
    if (known := getattr(connection, "is_idle", None)) is not None:  # a connection of HTTP/2
        return known
    cycle = connection.cycle
    if connection.flow.read_paused or getattr(connection, "is_replaying", False):  # a request waits for its turn
        return False
    return (cycle is None or cycle.response_complete) and not connection.transport.is_closing()


class ConnectionBudget:
    """The connections of a server.

    Args:
        most: the most connections in all.
        most_per_address: the most connections from one IPv4 address or IPv6 network /64; None for half of all. Callers
            of a Unix socket and trusted proxies count in all only.
        counts: the connections of other processes of this server; None if there are none.
    """

    def __init__(self, most: int, most_per_address: int | None, counts: ProcessCounts | None = None) -> None:
        self._counts = NoOthers() if counts is None else counts
        self._most = most
        self._most_per_address = max(1, most // 2) if most_per_address is None else most_per_address
        self._all: dict[asyncio.BaseProtocol, str | None] = {}
        self._by_address: dict[str, dict[asyncio.BaseProtocol, None]] = {}
        self._reserve: dict[asyncio.BaseProtocol, None] = {}
        self._closed = self._refused = 0

    def add(self, connection: asyncio.BaseProtocol, address: str | None) -> bool | None:
        """Count a new connection. Beyond the budget, the oldest idle connection (of the address) is closed for it.

        Returns:
            Whether there is room for it; if not, it may ask for health only. None if it must be closed at once.
        """
        address, counts = None if address is None else network_of(address), self._counts
        group = self._by_address.get(address, {}) if address is not None else {}
        with counts.lock():
            of_address = len(group) + (0 if address is None else counts.others(address).first)
            in_all = len(self._all) + counts.others(None).first
            full = group if of_address >= self._most_per_address else self._all if in_all >= self._most else None
            if full is None or self._close_oldest_idle(full):
                self._all[connection] = address
                group[connection] = None
                if address is not None:
                    self._by_address[address] = group
                self._publish(address)
                return True
        self._refused += 1
        if len(self._reserve) >= RESERVE and not self._close_oldest_idle(self._reserve):
            return None
        self._reserve[connection] = None
        return False

    def remove(self, connection: asyncio.BaseProtocol) -> None:
        """A connection has ended; nothing for one that was not counted."""
        address = self._all.pop(connection, None)
        self._reserve.pop(connection, None)
        if address is not None:
            group = self._by_address[address]
            del group[connection]
            if not group:
                del self._by_address[address]
        self._publish(address)

    @property
    def has_more_than_others(self) -> bool:
        """Whether another process of this server has fewer connections, and should take the next one."""
        return len(self._all) > self._counts.least()

    def _publish(self, address: str | None) -> None:
        self._counts.publish(None, len(self._all))
        if address is not None:
            self._counts.publish(address, len(self._by_address.get(address, ())))

    def _close_oldest_idle(self, connections: Iterable[Any]) -> bool:
        for each in islice(connections, _MOST_SEARCHED):
            if is_idle(each):
                each.transport.close()
                self._closed += 1
                return True
        return False

    def log(self) -> None:
        """Write what was closed and refused since the last time, if anything was."""
        if self._closed or self._refused:
            _log.warning(
                "connections are at their limit (TENSORPOST_MAX_CONNECTIONS %d, "
                "TENSORPOST_MAX_CONNECTIONS_PER_ADDRESS %d): closed %d idle ones, refused %d new ones",
                self._most, self._most_per_address, self._closed, self._refused,
            )  # fmt: skip
            self._closed = self._refused = 0

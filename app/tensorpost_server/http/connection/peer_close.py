"""Whether a caller has closed a connection from which nothing is read at the moment."""

from __future__ import annotations

import asyncio
import select

_CLOSED = getattr(select, "POLLRDHUP", 0)  # Linux only; elsewhere it is found out when the bytes before are read


def closed_by_peer(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed its side of a TCP connection, or all of it, behind bytes that were not read yet."""
    if not _CLOSED:
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), _CLOSED)
    return bool(poll.poll(0))

"""What the connections of one server share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from uvicorn.server import ServerState

from .connection_budget import ConnectionBudget
from .request_turns import RequestTurns
from .timeouts import ConnectionLimits, ConnectionMonitor
from .whole_responses import ReplayCache

__all__ = ["SharedState", "shared_state"]


@dataclass(frozen=True, slots=True)
class SharedState:
    """What the connections of one server share.

    Attributes:
        monitor: looks for slow connections.
        budget: how many connections there may be.
        turns: when their requests begin, and end with their connection.
        replays: the replays of requests that were answered.
    """

    monitor: ConnectionMonitor
    budget: ConnectionBudget
    turns: RequestTurns
    replays: ReplayCache


_SHARED: WeakKeyDictionary[ServerState, SharedState] = WeakKeyDictionary()


def shared_state(server: ServerState, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop) -> SharedState:
    """The state of this server; made for its first connection, and gone with the server."""
    if (shared := _SHARED.get(server)) is None:
        budget = ConnectionBudget(limits.connections, limits.connections_per_address)
        monitor = ConnectionMonitor(server.connections, budget, loop, limits.interval)
        shared = _SHARED[server] = SharedState(monitor, budget, RequestTurns(loop), ReplayCache())
    return shared

"""What the connections of one server share."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from uvicorn.server import ServerState

from .connection_budget import ConnectionBudget
from .request_turns import RequestTurns
from .timeouts import ConnectionLimits, ConnectionMonitor
from .whole_responses import ReplayCache

_MOST_REPLAYS = 1024


class SharedState:
    """What the connections of one server share: their number, the check of slow callers, turns, and replays."""

    def __init__(self, server: ServerState, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.budget = ConnectionBudget(limits.connections, limits.connections_per_address)
        self.monitor = ConnectionMonitor(server.connections, self.budget, loop, limits.interval)
        self.turns = RequestTurns(loop)
        self.replays = ReplayCache(_MOST_REPLAYS)


_SHARED: WeakKeyDictionary[ServerState, SharedState] = WeakKeyDictionary()


def shared_state(server: ServerState, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop) -> SharedState:
    """The state of this server; made for its first connection, and gone with the server."""
    if (shared := _SHARED.get(server)) is None:
        shared = _SHARED[server] = SharedState(server, limits, loop)
    return shared

"""What the connections of one server share."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from uvicorn.server import ServerState

from ...shared.counts import ProcessCounts
from .connection_budget import ConnectionBudget
from .request_turns import RequestTurns
from .timeouts import ConnectionLimits, ConnectionMonitor
from .whole_responses import ReplayCache

_MOST_REPLAYS = 1024


class SharedState:
    """What the connections of one server share: their number, the check of slow callers, turns, and replays."""

    def __init__(
        self,
        server: ServerState,
        limits: ConnectionLimits,
        loop: asyncio.AbstractEventLoop,
        counts: ProcessCounts | None,
    ) -> None:
        self.budget = ConnectionBudget(limits.connections, limits.connections_per_address, counts)
        self.monitor = ConnectionMonitor(server.connections, self.budget, loop, limits.interval)
        self.turns = RequestTurns(loop)
        self.replays = ReplayCache(_MOST_REPLAYS)


_SHARED: WeakKeyDictionary[ServerState, SharedState] = WeakKeyDictionary()


def shared_state(
    server: ServerState, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop, counts: ProcessCounts | None = None
) -> SharedState:
    """The state of this server; made when it is first asked for, and gone with the server.

    Args:
        server: uvicorn's state of the server.
        limits: limits of connections.
        loop: the event loop.
        counts: the connections of other processes of this server; None if there are none.
    """
    if (shared := _SHARED.get(server)) is None:
        shared = _SHARED[server] = SharedState(server, limits, loop, counts)
    return shared

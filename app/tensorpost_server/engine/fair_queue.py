"""A queue whose items are taken in turn: by caller first, then by the caller's requests, each in proportion to cost.

Weighted fair queueing on two levels, with equal weights. A caller, and each of its requests, has a virtual time at
which its next item starts, which grows by the cost of every item that is taken; the item that would finish first is
taken first. So small items go before large ones, and two callers that both wait get the same cost, whatever the number
of their requests. One that did not wait starts at the queue's virtual time: what it did not use is not kept for it.

The queue's virtual time follows the items that are taken: by their cost divided by the number of those that wait, not
after the earliest start and not beyond the earliest finish among them. The last bound keeps a member that comes new
from waiting for more than the items that would finish before its own.

Source: Demers, Keshav, Shenker, "Analysis and Simulation of a Fair Queueing Algorithm", SIGCOMM 1989; the virtual time
after Bennett, Zhang, "Hierarchical Packet Fair Queueing Algorithms", SIGCOMM 1996.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Flow(Generic[T]):
    """The items of one request, taken in the order in which they were added.

    Attributes:
        caller: whose request it is.
        small: whether all its items are small, for `take`.
        start: virtual time, among the caller's flows, at which the next item starts.
        items: what waits, each with its cost.
        begun: how many of the first items were put back.
        closed: whether it has ended.
    """

    caller: _Caller[T]
    small: bool
    start: float = 0.0
    items: deque[tuple[float, T]] = field(default_factory=deque[tuple[float, T]])
    begun: int = 0
    closed: bool = False

    @property
    def cost(self) -> float:
        """Cost of the next item; there is one."""
        return self.items[0][0]

    @property
    def finish(self) -> float:
        """Virtual time at which the next item would be done; there is one."""
        return self.start + self.items[0][0]


@dataclass(slots=True, eq=False)
class _Caller(Generic[T]):
    """The flows of one caller, and their virtual time.

    Attributes:
        name: the caller's.
        start: virtual time, among callers, at which its next item starts.
        now: virtual time of its flows.
        flows: how many are open.
        waiting: the flows that have items, in the order in which they began to wait.
    """

    name: str
    start: float
    now: float = 0.0
    flows: int = 0
    waiting: dict[Flow[T], None] = field(default_factory=dict["Flow[T]", None])

    def next_flow(self, among: Callable[[Flow[T]], bool] | None = None) -> Flow[T] | None:
        """The flow whose next item would finish first; of equal ones the one that has waited longest.

        What was put back goes before all that costs as much or more: as few items as possible have begun.
        """
        if len(self.waiting) == 1:
            (only,) = self.waiting
            return only if among is None or among(only) else None
        flows = [*self.waiting] if among is None else [flow for flow in self.waiting if among(flow)]
        best = min(flows, key=_finish, default=None)
        if best is None or best.begun or not (begun := [flow for flow in flows if flow.begun]):
            return best
        first = min(begun, key=_finish)
        return best if best.cost < first.cost else first


def _finish(flow: Flow[Any]) -> float:
    return flow.finish


class FairQueue(Generic[T]):
    """See the module. Taking an item looks at every flow that waits. Not safe for several threads.

    Examples:
        >>> queue = FairQueue[str]()
        >>> bomb, other = queue.open("mallory"), queue.open("alice")
        >>> queue.add(bomb, 100, "1st of bomb")
        >>> queue.add(bomb, 100, "2nd of bomb")
        >>> queue.add(other, 1, "small")
        >>> [queue.take() for _ in range(4)]
        ['small', '1st of bomb', '2nd of bomb', None]
    """

    def __init__(self) -> None:
        self._callers: dict[str, _Caller[T]] = {}
        self._now = 0.0
        self._open = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def open(self, caller: str, *, small: bool = False) -> Flow[T]:
        """A flow for one request.

        Args:
            caller: whose request it is.
            small: whether all its items are small, for `take`.
        """
        known = self._callers.get(caller)
        if known is None:
            if self._callers:  # forget those that are not ahead of the others any more
                self._callers = {name: c for name, c in self._callers.items() if c.flows or c.start > self._now}
            known = self._callers[caller] = _Caller(caller, self._now)
        known.flows += 1
        self._open += 1
        return Flow(known, small, known.now)

    def add(self, flow: Flow[T], cost: float, item: T) -> None:
        """Add an item to an open flow.

        Args:
            flow: the flow of the item's request.
            cost: what taking it costs the others, in any unit; above 0.
            item: any value.
        """
        caller = flow.caller
        if not caller.waiting:
            caller.start = max(caller.start, self._now)
        if not flow.items:
            flow.start = max(flow.start, caller.now)
            caller.waiting[flow] = None
        flow.items.append((cost, item))
        self._count += 1

    def put_back(self, flow: Flow[T], cost: float, item: T) -> None:
        """Add an item that was taken and has more to do, before the others of its flow.

        Args:
            flow: the flow that it was taken from, open still.
            cost: what it costs the others to take it again; above 0.
            item: the item.
        """
        flow.items.appendleft((cost, item))
        flow.begun += 1
        flow.caller.waiting[flow] = None
        self._count += 1

    def charge(self, flow: Flow[T], cost: float) -> None:
        """Add what an item that was taken from the flow has cost beyond what it was added with; negative if less."""
        flow.start += cost
        flow.caller.start += cost

    def has_others(self, flow: Flow[T]) -> bool:
        """Whether items of other flows wait."""
        return self._count > len(flow.items)

    def has_any(self, among: Callable[[Flow[T]], bool]) -> bool:
        """Whether items wait of a flow of which this is true."""
        return any(among(flow) for caller in self._callers.values() for flow in caller.waiting)

    def take(self, among: Callable[[Flow[T]], bool] | None = None) -> T | None:
        """The item whose turn it is; None if there is none.

        Args:
            among: consider only the flows of which this is true.
        """
        best: Flow[T] | None = None
        best_finish = 0.0
        waiting = [caller for caller in self._callers.values() if caller.waiting]
        for each in waiting:
            flow = each.next_flow(among)
            if flow is not None and (best is None or each.start + flow.cost < best_finish):
                best, best_finish = flow, each.start + flow.cost
        if best is None:
            return None
        caller = best.caller
        cost, item = best.items[0]
        self._now = max(self._now, min([each.start for each in waiting])) + cost / len(waiting)
        caller.now = max(caller.now, min([flow.start for flow in caller.waiting])) + cost / len(caller.waiting)
        caller.start += cost
        best.start += cost
        best.begun = max(0, best.begun - 1)
        self._remove(best, 1)
        return item

    def close(self, flow: Flow[T]) -> list[T]:
        """End a flow; the items that were still waiting, which are not in the queue any more. Called once."""
        dropped: list[T] = []
        if flow.items:
            dropped = [item for _, item in flow.items]
            self._remove(flow, len(dropped))
        flow.closed = True
        flow.caller.flows -= 1
        self._open -= 1
        if not self._open:
            self._callers.clear()
            self._now = 0.0
        return dropped

    def _remove(self, flow: Flow[T], count: int) -> None:
        caller = flow.caller
        for _ in range(count):
            flow.items.popleft()
        self._count -= count
        if not flow.items:
            del caller.waiting[flow]
        if caller.waiting:
            caller.now = min([caller.now, *[each.finish for each in caller.waiting]])
        finishes = [
            each.start + first.items[0][0] for each in self._callers.values() if (first := each.next_flow()) is not None
        ]
        self._now = min([self._now, *finishes])

"""The names of held tensors that handles of this client refer to, and those whose last handle is gone."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from os import getpid

from ..values.problems import TensorGone, TensorNotFound, TensorpostError
from .http1 import FieldLines

_MOST_FREED = 100  # names in a request; each has 25 bytes
_FREE_FIELD = "tensorpost-free"


class TensorLease:
    """What all handles of one held tensor share.

    Args:
        name: the tensor's name.
        names: the names that the client knows.
        is_own: whether the client made the name, so that the tensor is freed with the last handle.
    """

    __slots__ = ("__weakref__", "_names", "is_own", "name")

    def __init__(self, name: str, names: HeldNames, *, is_own: bool) -> None:
        self.name, self.is_own, self._names = name, is_own, names
        names.known[name] = self

    def __del__(self) -> None:
        if self.is_own and self._names.is_of_this_process:
            self._names.freed.append(self.name)  # which is atomic: it may happen on any thread


@dataclass(slots=True, eq=False)
class HeldNames:
    """The names of held tensors of one client.

    Attributes:
        known: what the handles of a tensor share, by its name.
        freed: names that the next request asks the server to free.
    """

    known: weakref.WeakValueDictionary[str, TensorLease] = field(
        default_factory=weakref.WeakValueDictionary[str, TensorLease]
    )
    freed: deque[str] = field(default_factory=deque[str])
    _process: int = field(default_factory=getpid)

    @property
    def is_of_this_process(self) -> bool:
        """Whether the names were made here; those of a process that this one was forked from are that one's to free."""
        return self._process == getpid()

    def end(self) -> bool:
        """Take note that all handles are of no use any more; whether there is anything to free."""
        if not self.is_of_this_process:
            return False
        for lease in [*self.known.values()]:
            if lease.is_own:
                lease.is_own = False
                self.freed.append(lease.name)
        return bool(self.freed)

    def take(self) -> list[str]:
        """Names to free with this request."""
        names: list[str] = []
        while self.freed and len(names) < _MOST_FREED:
            names.append(self.freed.popleft())
        return names

    def gone(self, error: TensorpostError) -> TensorpostError:
        """The error of a handle: a server that knows nothing of its tensor has restarted."""
        name = error.extra.get("tensor")
        if type(error) is not TensorNotFound or name not in self.known:
            return error
        detail = f"the held tensor {name!r} is not on the server any more, which has restarted since; send it again"
        extra = {**error.extra, "reason": "restarted"}
        return TensorGone(detail, extra=extra, status=error.status, request_id=error.request_id)


def free_field(names: list[str]) -> FieldLines:
    """The header field that frees tensors."""
    return ((_FREE_FIELD, ",".join(names)),) if names else ()

"""What every region of shared memory has, whatever memory it is of."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from tensorpost.values.problems import InvalidParameter


class SharedRegion(ABC):
    """Memory that a caller registered.

    Attributes:
        kind: `system` or `cuda`.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, size: int, owner: str) -> None:
        self.name, self.size, self.owner = name, size, owner
        self._used = time.monotonic()
        self._uses = 1

    def acquire(self) -> None:
        """Count one more use; each is ended by `release`."""
        self._uses += 1

    def release(self) -> None:
        """End a use; with the last one the memory is closed."""
        self._uses -= 1
        self._used = time.monotonic()
        if not self._uses:
            self.close()

    @property
    def idle_seconds(self) -> float:
        """How long no request has used it."""
        return time.monotonic() - self._used if self._uses == 1 else 0.0

    @abstractmethod
    def to_status(self) -> dict[str, Any]:
        """The entry of a status."""

    @property
    @abstractmethod
    def is_left_behind(self) -> bool:
        """Whether it should be dropped, since its caller has probably ended."""

    @abstractmethod
    def close(self) -> None:
        """Close the memory; called by the last `release`."""


def whole_number(name: str, value: object, least: int = 0) -> int:
    """A member of a document that must be a whole number.

    Raises:
        InvalidParameter: it is none, or less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise InvalidParameter(f"{name} must be a whole number from 0 up, not {str(value)[:40]}")
    if value < least:
        raise InvalidParameter(f"{name} must be {least} or more")
    return value

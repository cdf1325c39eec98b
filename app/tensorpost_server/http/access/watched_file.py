"""A file that decides who may call, and is read again when it has changed."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Generic, TypeVar

from tensorpost.values.problems import InvalidParameter, counted

MOST_FILE_BYTES = 1 << 20  # some 4,000 API keys, read in about 30 ms
SECONDS_BETWEEN_LOOKS = 1.0

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}

Content = TypeVar("Content", bound=Sized)

_log = logging.getLogger(__name__)


def read_trusted(path: Path, kind: str) -> bytes:
    """The bytes of a file that nobody but its owner and group may write to.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidParameter: it is not a file, it cannot be read, others may write to it, or it is too large.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                what = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
                raise InvalidParameter(f"the {kind} {path} is {what}; a regular file is needed")
            if os.name == "posix" and mode & stat.S_IWOTH:
                raise InvalidParameter(f"anybody may write to the {kind} {path}; remove that permission (chmod o-w)")
            text = file.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise cannot_use(path, kind, error) from None
    if len(text) > MOST_FILE_BYTES:
        raise InvalidParameter(f"the {kind} {path} has more than {MOST_FILE_BYTES:,} bytes")
    return text


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe would else stop the event loop until somebody writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def cannot_use(path: Path, kind: str, error: OSError) -> InvalidParameter:
    """The error for a file that the system refuses."""
    return InvalidParameter(f"the {kind} {path} cannot be used: {error.strerror or error}")


class WatchedFile(Generic[Content]):
    """A file of keys that is watched.

    A file that is gone holds no key, so nobody is let in. One that cannot be read, for instance because an editor has
    written half of it, changes nothing but the log: the keys from before hold on, and it is read again in a second.

    Args:
        path: path of the file.
        kind: what it is, for messages: "keys file".
        read: reads it.
        nothing: what a file that is gone holds.
        hint: what to do where there is no file.

    Attributes:
        next_look: time from which on `changed` looks at the file; before that it need not be called.
    """

    def __init__(
        self, path: Path, kind: str, read: Callable[[Path], Content], nothing: Content, hint: str = ""
    ) -> None:
        self.path = path
        self._kind, self._read, self._nothing, self._hint = kind, read, nothing, hint
        self.next_look = 0.0
        self._state: tuple[int, ...] | None = None
        self._said: tuple[object, str] | None = None

    def read(self) -> Content:
        """The keys in it now.

        Raises:
            InvalidParameter: there is no such file, or it cannot be read.
        """
        self._state = self._look()
        try:
            return self._read(self.path)
        except FileNotFoundError:
            raise InvalidParameter(f"there is no {self._kind} {self.path}{self._hint}") from None

    def changed(self, now: float) -> Content | None:
        """The keys in it, if it has changed. It is looked at once a second at most."""
        if now < self.next_look:
            return None
        self.next_look = now + SECONDS_BETWEEN_LOOKS
        state = self._look()
        if state == self._state:
            return None
        try:
            keys = self._read(self.path)
        except FileNotFoundError:
            self._state = None
            _log.error("the %s %s is gone: no key is valid now", self._kind, self.path)
            return self._nothing
        except InvalidParameter as error:
            if self._said != (state, error.detail):
                self._said = state, error.detail
                said = "the %s has changed and cannot be used, so the keys from before stay: %s"
                _log.error(said, self._kind, error.detail)
            return None
        self._state = state
        _log.warning("the %s %s has changed: %s now", self._kind, self.path, counted(len(keys), "key"))
        return keys

    def _look(self) -> tuple[int, ...] | None:
        """What changes with the file's content; None if there is no file."""
        try:
            about = self.path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino, about.st_ctime_ns

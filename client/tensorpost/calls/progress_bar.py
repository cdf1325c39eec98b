"""A progress bar without a dependency, for terminals and notebooks: `tp.run(desc, x, progress=ProgressBar())`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from ..transport.progress import MapProgress, Progress

_WIDTH = 24  # characters
_PAUSE = 0.1  # seconds between two drawings
_RATE_AFTER = 0.5  # seconds until a rate and the time that is left are told


class ProgressBar:
    """Writes one line that shows how far a call has come, and draws it anew at most ten times a second.

    Where standard error is neither a terminal nor a notebook's, only the last line of each call is written.

    It may be used for one call after another. A line ends when its answer is complete; after an error it stays as it
    was.

    Args:
        file: where it writes; default standard error, which notebooks show below their cell.
        clock: seconds; default `time.monotonic`.

    Examples:
        >>> bar = ProgressBar()
        >>> bar(Progress(sent=0, to_send=0, received=512, to_receive=512))
    """

    __slots__ = ("_begin", "_clock", "_drawn", "_file", "_last")

    def __init__(self, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._begin: float | None = None
        self._drawn = 0.0
        self._last = 0

    def __call__(self, progress: Progress | MapProgress) -> None:
        """Draw the line; the argument `progress` of the calls, and of `map`, takes this object."""
        now = self._clock()
        is_map = isinstance(progress, MapProgress)
        done = progress.done if is_map else progress.sent + progress.received
        if self._begin is None or done < self._last:  # the next call, or a retry
            self._begin, self._drawn = now, now - _PAUSE
        self._last = done
        if is_map:
            complete = progress.total is not None and progress.done >= progress.total
        else:
            complete = progress.to_receive is not None and progress.received >= progress.to_receive
        file = sys.stderr if self._file is None else self._file
        # Into a pipe or a log only the last line; a notebook's standard error is no terminal, and draws lines anew.
        is_drawn = self._file is not None or file.isatty() or "ipykernel" in sys.modules
        if complete or (is_drawn and now - self._drawn >= _PAUSE):
            self._drawn = now
            seconds = now - self._begin
            line = _map_line(progress, seconds) if is_map else _call_line(progress, done, seconds)
            file.write(f"\r{line:<78}" if is_drawn else line)
            file.write("\n" if complete else "")
            file.flush()
        if complete:
            self._begin = None


def _call_line(progress: Progress, done: int, seconds: float) -> str:
    waiting = progress.sent >= progress.to_send and not progress.received
    doing = "computing" if waiting else "receiving" if progress.received else "sending"
    total = progress.to_send + (progress.to_receive or 0)
    bar = _bar(done / total if total else 1.0)
    text = f"{doing:<9} {bar} {done / 2**20:,.1f} of {total / 2**20:,.1f} MiB"
    if seconds < _RATE_AFTER or not done:
        return text
    rate = done / seconds
    left = "" if progress.to_receive is None or done >= total else f", {(total - done) / rate:.0f} s left"
    return f"{text}, {rate / 2**20:,.0f} MiB/s{left}"


def _map_line(progress: MapProgress, seconds: float) -> str:
    done, total = progress.done, progress.total
    text = f"{done:,} done" if total is None else f"{_bar(done / total if total else 1.0)} {done:,} of {total:,}"
    if seconds < _RATE_AFTER or not done:
        return text
    left = "" if total is None or done >= total else f", {(total - done) * seconds / done:.0f} s left"
    return f"{text}, {done / seconds:,.1f}/s{left}"


def _bar(share: float) -> str:
    full = int(share * _WIDTH)
    return f"[{'#' * full}{'.' * (_WIDTH - full)}]"

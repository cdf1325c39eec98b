"""What a form is: one of a closed set of ways to compute, with all attributes of an operator in it.

A form is a frozen, hashable, picklable value made from a descriptor or a node once. It holds no arrays and knows no
device. Its methods compute with an array library `xp`, NumPy or CuPy, and use only what both have; a backend may
replace them by kernels of its own.

================  ========================================================  ===================================
form              outputs are made of                                       files
================  ========================================================  ===================================
`Copies`          strided boxes of inputs, over a fill value                `copies.py`, `copy_loops.py`
`Pointwise`       an expression of the inputs' elements at the same place   `pointwise.py`, `expression.py`
`Separable`       a few weighted elements along each axis                   `separable.py`, `axis_*.py`, `axes.py`
`OnnxResize`      the same, rounded and extrapolated as ONNX says           `onnx_resize.py`
`Lines`           whole lines along some axes                               `arrays.py`
`BoxFunction`     anything that can be computed box by box                  `arrays.py`
`WindowFunction`  windows of one input, channel by channel                  `windows.py`
`FusedLines`      lines of an expression's elements                         `fused_lines.py`
`Array`           whole inputs, all outputs together                        `arrays.py`
================  ========================================================  ===================================

What an axis of `Separable` and `OnnxResize` reads is an axis map (`axes.py`): `resample_axes.py` has DirectML's,
`onnx_axes.py` ONNX's.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol, Self

from tensorpost.values.layout import Layout

from .index_ranges import IndexRange

Box = tuple[tuple[int, int], ...]
"""Half-open ranges of coordinates, one per dimension: a rectangular part of a tensor."""

Reads = Box | None
"""The part of an input that is read; None for the whole of it, where a form cannot know."""


def extents(box: Box) -> list[int]:
    """Elements of the box per dimension."""
    return [stop - start for start, stop in box]


def whole_box(sizes: Sequence[int]) -> Box:
    """All coordinates of a tensor of these sizes."""
    return tuple([(0, size) for size in sizes])


def blocks(box: Box, most: int) -> Iterator[Box]:
    """Cut the box into parts of at most `most` elements, in memory order."""
    if math.prod(extents(box)) <= most:
        return iter((box,))
    ranges: list[list[tuple[int, int]]] = []
    room = most
    for start, stop in reversed(box):
        extent = min(stop - start, max(1, room))
        ranges.append([(low, min(low + extent, stop)) for low in range(start, stop, extent)])
        room //= extent
    return itertools.product(*reversed(ranges))


def coalesced(axes: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The same walk over arrays with as few axes as possible: none of one entry, neighbours in one where they can be.

    Args:
        axes: outermost first; of each the number of entries, and the stride in each array.
    """
    found: list[tuple[int, ...]] = []
    for extent, *strides in axes:
        if found and found[-1][1:] == tuple([extent * stride for stride in strides]):
            found[-1] = (found[-1][0] * extent, *strides)
        elif extent != 1:
            found.append((extent, *strides))
    return found


class Form(Protocol):
    """A way to compute the outputs of an operation from its inputs, box by box."""

    @property
    def computed_whole(self) -> bool:
        """Whether `compute` computes all outputs together, in full, instead of `fill` box by box."""
        ...

    @property
    def library(self) -> str:
        """The library that computes it on every backend, as ONNX Runtime; empty if the backend does."""
        ...

    @property
    def index_range(self) -> IndexRange | None:
        """What the elements of an input must lie in (ONNX's indices); None if any are allowed."""
        ...

    @property
    def input_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes that packed inputs are read with, one for each input that is read at all; empty for their own."""
        ...

    @property
    def cut_weight(self) -> int:
        """How many elements that are just added up an element of its work stands for, where slices are cut."""
        ...

    @property
    def least_slice_work(self) -> int:
        """Work that a slice has at least, if the output has as much: in smaller ones what all read costs too much."""
        ...

    @property
    def reads_again(self) -> bool:
        """Whether every slice reads again what others have read."""
        ...

    def operand(self, layout: Layout, sizes: tuple[int, ...]) -> Layout:
        """How it reads an input: as it lies, or broadcast.

        Args:
            layout: the input's layout.
            sizes: the sizes of the first output.
        """
        ...

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """Which part of each input a box of an output depends on; never less than it reads."""
        ...

    def localized(self, box: Box, output: int = 0) -> Self | None:
        """The form of a box alone: it computes all of a tensor of the box's sizes, from the parts that `reads` names.

        None if the form needs whole inputs. The form itself if it computes every box alike.
        """
        ...

    def work(self, box: Box, output: int = 0) -> int:
        """Estimate of the elements that are read and combined for a box of an output; at least those of the box."""
        ...

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """Compute the elements of one output inside `box` into `out`.

        Args:
            xp: the array library, `numpy` or `cupy`.
            inputs: the whole input tensors as arrays of their sizes, in binding order; possibly strided, read-only.
            box: which part of the output.
            out: array of the box's shape and the output's dtype; possibly strided, its old content undefined.
            output: which output, in binding order.

        Where a library sums (products, reductions), the order of the sums, and so the last bits, may depend on the box.
        """
        ...

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """Upper bound of the memory that a box takes on the CPU beside inputs and result, bytes.

        Blocks of a size that does not depend on the tensors are not counted.
        """
        ...

    def compute(self, xp: ModuleType, inputs: Sequence[Any]) -> Sequence[Any]:
        """All outputs in full, as arrays of their sizes and dtypes; called only where `computed_whole` is true."""
        ...


class BoxForm:
    """Base of forms that are computed box by box: their part of `Form` that is the same for all."""

    __slots__ = ()

    computed_whole = False
    library = ""
    index_range: IndexRange | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    cut_weight = 1
    least_slice_work = 0
    reads_again = False

    def operand(self, layout: Layout, sizes: tuple[int, ...]) -> Layout:
        """See `Form.operand`: as it lies."""
        return layout

    def localized(self, box: Box, output: int = 0) -> Self | None:
        """See `Form.localized`: None."""
        return None

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """See `Form.scratch_bytes`: blocks only."""
        return 0

    def compute(self, xp: ModuleType, inputs: Sequence[Any]) -> Sequence[Any]:
        """Never called: `computed_whole` is false."""
        raise AssertionError(f"{type(self).__name__} is computed box by box")


class Abandoned(Exception):  # no error: the request was cancelled
    """A computation ended early because its result is not needed any more."""


TURN_SECONDS = 0.05
"""How long a computation holds its thread before those of others that wait may have it: what they wait for it."""


class Turns(Protocol):
    """The threads that computations take turns on.

    Attributes:
        wanted: whether a call waits that may be shorter than the rest of a turn, so that `pause` should be called now.
    """

    wanted: bool

    def pause(self, left: float = 0.0) -> None:
        """Return when it is the turn of this thread's computation again; at once if nobody else waits.

        Args:
            left: seconds of its turn that are left; above 0, it returns at once unless something shorter waits.

        Raises:
            Abandoned: the threads were stopped.
        """
        ...

    def leave(self) -> None:
        """Let another computation begin now: this one waits for something else than a processor."""
        ...


class _Turn:
    """What a computation of this thread looks at between two blocks.

    Attributes:
        stop: set when the result is not needed any more.
        turns: the threads that it shares; None if it keeps its thread.
        ends: when others may have the thread, by `time.monotonic`.
        away: seconds that others have had it.
        checks: called at the end of each turn; what they raise ends the computation.
    """

    __slots__ = ("away", "checks", "ends", "stop", "turns")

    def __init__(self, stop: threading.Event, turns: Turns | None) -> None:
        self.stop, self.turns = stop, turns
        self.ends = time.monotonic() + TURN_SECONDS
        self.away = 0.0
        self.checks: list[ComputedSeconds] = []

    def end(self) -> None:
        begin = now = time.monotonic()
        if self.turns is not None:
            self.turns.pause(self.ends - begin)
            now = time.monotonic()
            self.away += now - begin
        self.raise_if_stopped()
        for check in self.checks:
            check.check()
        self.ends = self.ends + now - begin if begin < self.ends else now + TURN_SECONDS

    def raise_if_stopped(self) -> None:
        if self.stop.is_set():
            raise Abandoned


class _ThreadTurns(threading.local):
    turn: _Turn | None = None


_CURRENT = _ThreadTurns()


class stoppable:  # noqa: N801 # used as a function; a generator would take twice as long, for every slice
    """Inside, computations of this thread end early with `Abandoned` once `stop` is set.

    Args:
        stop: set when the result is not needed any more.
        turns: the threads whose other computations may run between two blocks; None if this one keeps its thread.
    """

    __slots__ = ("_before", "_turn")

    def __init__(self, stop: threading.Event, turns: Turns | None = None) -> None:
        self._turn = _Turn(stop, turns)

    def __enter__(self) -> None:
        self._before, _CURRENT.turn = _CURRENT.turn, self._turn

    def __exit__(self, *_: object) -> None:
        _CURRENT.turn = self._before


class ComputedSeconds:
    """How long a computation of this thread computes, without the time in which others have the thread.

    As a context manager, it begins, and `check` is called with the seconds after each turn of the computation.

    Args:
        check: may raise to end the computation.
    """

    __slots__ = ("_away", "_begin", "_check", "_turn")

    def __init__(self, check: Callable[[float], object]) -> None:
        self._check, self._turn = check, _CURRENT.turn
        self._away = 0.0 if self._turn is None else self._turn.away
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        away = 0.0 if self._turn is None else self._turn.away - self._away
        return time.perf_counter() - self._begin - away

    def check(self) -> None:
        """Call the check."""
        self._check(self.seconds)

    def __enter__(self) -> Self:
        if self._turn is not None:
            self._turn.checks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._turn is not None:
            self._turn.checks.remove(self)


def go_on() -> None:
    """Check between two blocks of a computation whether it may go on; others may have the thread meanwhile.

    Called at least every few hundredths of a second, and without a lock that another computation might wait for.

    Raises:
        Abandoned: the result is not needed any more.
    """
    turn = _CURRENT.turn
    if turn is not None:
        turn.raise_if_stopped()
        if time.monotonic() >= turn.ends or (turn.turns is not None and turn.turns.wanted):
            turn.end()


def raise_if_abandoned() -> None:
    """Check whether the result of this thread's computation is still needed, while it waits for something.

    Raises:
        Abandoned: it is not.
    """
    if _CURRENT.turn is not None:
        _CURRENT.turn.raise_if_stopped()


@contextmanager
def away_from_processor() -> Generator[None]:
    """Inside, this thread waits for another process or a device: other computations have its place meanwhile.

    Raises:
        Abandoned: the result is not needed any more; raised at the end.
    """
    turn = _CURRENT.turn
    if turn is None or turn.turns is None:
        yield
        return
    turn.turns.leave()
    try:
        yield
    finally:
        turn.turns.pause()

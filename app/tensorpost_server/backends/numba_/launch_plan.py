"""Launch plans: calls of compiled kernels with all their parameters, which compute a box of an output.

A planner turns a box into a `LaunchPlan` once. It holds no address of the tensors, only offsets into them, so the same
plan serves every request of the same shape.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ...forms import Box
from ...forms.base import coalesced

Kernels = Mapping[str, Callable[[int], None]]
Axis = tuple[int, ...]
"""An axis outside a row: extent, strides of the target and of the source, address of the source's offsets or 0."""

HEAD = 40  # parameters before the axes; they and their order are those of kernels/memory.py
AT_TARGET, AT_SOURCE, AT_SCRATCH = 1, 2, 3
MOST_SCRATCH_KEPT = 8 << 20  # bytes of scratch memory that a thread keeps, in no budget; more is given back
_LAUNCH_BYTES = 200  # of the objects of a launch
KINDS = {"<f4": 0, "<f2": 1, "|u1": 2, "|i1": 3}  # element types of the kernels that compute
SCRATCH, TARGET, FIRST_INPUT, CONSTANT = 0, 1, 2, -1  # blocks of memory, by index; a constant's address is known


@dataclass(frozen=True, slots=True)
class StridedBuffer:
    """How a tensor lies in a block of memory.

    Attributes:
        strides: bytes to the next entry of each dimension.
        item: bytes of an element.
        kind: number of the element's type in the kernels that compute; -1 if these do not know it.
        offset: bytes from the block's beginning to the element of coordinates 0.
        block: which block: SCRATCH, TARGET, FIRST_INPUT + the input's number.
    """

    strides: tuple[int, ...]
    item: int
    kind: int = -1
    offset: int = 0
    block: int = SCRATCH


@dataclass(frozen=True, slots=True)
class _KernelLaunch:
    """One call of a kernel: its parameters, and to which of them the address of which block is added."""

    kernel: Callable[[int], None]
    parameters: array[int]
    blocks: tuple[tuple[int, int], ...]


_NO_SCRATCH = (np.empty(0, np.uint8), 0)


class Scratch(threading.local):
    """A block of bytes per thread, as large as it ever had to be there, up to `MOST_SCRATCH_KEPT`."""

    kept: tuple[NDArray[np.uint8], int] = _NO_SCRATCH

    def block(self, size: int) -> tuple[NDArray[np.uint8], int]:
        """A block of at least `size` bytes, which the thread's next plan may be given too, and its address."""
        if self.kept[0].size >= size:
            return self.kept  # asking NumPy where they are would take a microsecond
        memory = np.empty(size, np.uint8)
        made = (memory, memory.ctypes.data)
        if size <= MOST_SCRATCH_KEPT:
            self.kept = made
        return made


_SCRATCH = Scratch()


class BlockCalls(Protocol):
    """Calls that compute blocks of a box, of the same extents.

    Attributes:
        nbytes: see `LaunchPlan.nbytes`.
    """

    @property
    def nbytes(self) -> int: ...

    def run(self, target: int, *inputs: int) -> None:
        """See `LaunchPlan.run`."""
        ...


@dataclass(slots=True)
class LaunchPlan:
    """The calls that compute a box.

    Attributes:
        launches: the calls, in order.
        parts: make plans for other parts of the box, whose tables are too large to be there at the same time.
        blocks: calls that compute blocks of the box.
        scratch: bytes of scratch memory that the calls need.
        kept: tables whose addresses stand in the parameters.
    """

    launches: list[_KernelLaunch] = field(default_factory=list[_KernelLaunch])
    parts: list[Callable[[], LaunchPlan]] = field(default_factory=list[Callable[[], "LaunchPlan"]])
    blocks: list[BlockCalls] = field(default_factory=list["BlockCalls"])
    scratch: int = 0
    kept: list[Any] = field(default_factory=list[Any])

    @property
    def nbytes(self) -> int:
        """Estimate of the memory that the calls hold, bytes; without the tables."""
        parts = _LAUNCH_BYTES * len(self.parts) + sum([each.nbytes for each in self.blocks])
        return parts + sum([_LAUNCH_BYTES + 8 * len(launch.parameters) for launch in self.launches])

    def run(self, target: int, *inputs: int) -> None:
        """Compute, given the addresses of the output's block and of the inputs. Any number of threads at once."""
        scratch = _SCRATCH.block(self.scratch) if self.scratch else _NO_SCRATCH  # kept as long as the calls run
        addresses = (scratch[1], target, *inputs)
        for launch in self.launches:
            parameters = launch.parameters[:]
            for at, number in launch.blocks:
                parameters[at] += addresses[number]
            launch.kernel(parameters.buffer_info()[0])
        for each in self.blocks:
            each.run(target, *inputs)
        for part in self.parts:
            part().run(target, *inputs)

    def launch(
        self, kernel: Callable[[int], None], parameters: Sequence[int], blocks: Sequence[tuple[int, int]]
    ) -> None:
        """Append a call with these parameters, to which addresses of blocks are added."""
        known = tuple([(at, number) for at, number in blocks if number != CONSTANT])
        self.launches.append(_KernelLaunch(kernel, array("q", parameters), known))

    def launch_rows(
        self, kernel: Callable[[int], None], target: tuple[int, int], source: tuple[int, int],
        axes: Sequence[Axis], head: Sequence[int],
    ) -> None:  # fmt: skip
        """Append a call of a kernel that walks over rows.

        Args:
            kernel: the kernel.
            target: block and offset of the first row.
            source: block and offset of what the first row is made of.
            axes: outside the row, outermost first.
            head: the kernel's own parameters.
        """
        parameters = [len(axes), target[1], source[1], 0, *head]
        parameters += [0] * (HEAD - len(parameters))
        for axis in axes:
            parameters += axis
        blocks = [(AT_TARGET, target[0]), (AT_SOURCE, source[0])]
        self.launch(kernel, parameters, [*blocks, (AT_SCRATCH, SCRATCH)] if self.scratch else blocks)


class Planner(Protocol):
    """Makes the launch plans of a form.

    Attributes:
        group: the kernels that it uses, by their name in `library.GROUPS`.
    """

    group: ClassVar[str]

    def plan(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        """The calls for a box of an output that begins where `target` does."""
        ...


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The same walk with as few axes as possible, one at least."""
    found: list[Axis] = []
    for has_table, group in itertools.groupby(axes, key=lambda axis: axis[3] != 0):
        part = list(group)
        found += part if has_table else coalesced(part)
    return found or [(1, 0, 0, 0)]

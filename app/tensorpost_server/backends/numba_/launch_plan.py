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
from .helper_threads import HelperThreads
from .library import CompiledKernel, address_of

Kernels = Mapping[str, CompiledKernel]
Axis = tuple[int, ...]
"""An axis outside a row: extent, strides of the target and of the source, address of the source's offsets or 0."""

HEAD = 40  # parameters before the axes; they and their order are those of kernels/memory.py
AT_TARGET, AT_SOURCE, AT_SCRATCH = 1, 2, 3
MOST_SCRATCH_KEPT = 8 << 20  # bytes of scratch memory that a thread keeps, in no budget; more is given back
_LAUNCH_BYTES = 200  # of the objects of a program
LINE = 64  # bytes of a cache line
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

    def run(self, threads: HelperThreads, target: int, *inputs: int) -> None:
        """See `LaunchPlan.run`."""
        ...


@dataclass(slots=True)
class LaunchPlan:
    """The calls that compute a box.

    Attributes:
        programs: calls, in order, as `kernels/thread_kernels.py` reads them; those of several programs in any order.
        parts: make plans for other parts of the box, whose tables are too large to be there at the same time.
        blocks: calls that compute blocks of the box.
        scratch: bytes of scratch memory that the calls need.
        kept: tables whose addresses stand in the parameters.
    """

    programs: list[array[int]] = field(default_factory=list["array[int]"])
    parts: list[Callable[[], LaunchPlan]] = field(default_factory=list[Callable[[], "LaunchPlan"]])
    blocks: list[BlockCalls] = field(default_factory=list["BlockCalls"])
    scratch: int = 0
    kept: list[Any] = field(default_factory=list[Any])
    _room: int = 0  # bytes of the most parameters
    _table: array[int] = field(default_factory=lambda: array("q"))  # addresses of the programs, once all are made

    @property
    def nbytes(self) -> int:
        """Estimate of the memory that the calls hold, bytes; without the tables."""
        parts = _LAUNCH_BYTES * len(self.parts) + sum([each.nbytes for each in self.blocks])
        return parts + sum([_LAUNCH_BYTES + 8 * len(program) for program in self.programs])

    def add(self, other: LaunchPlan) -> None:
        """Add the calls for another part of the box, which may be computed at the same time."""
        self.programs += other.programs
        self.parts += other.parts
        self.blocks += other.blocks
        self.kept += other.kept
        self.scratch, self._room = max(self.scratch, other.scratch), max(self._room, other._room)

    def run(self, threads: HelperThreads, target: int, *inputs: int) -> None:
        """Compute, given the addresses of the output's block and of the inputs. Any number of threads at once."""
        if count := len(self.programs):
            if not self._table:
                self._table = array("q", [program.buffer_info()[0] for program in self.programs])
            pitch = (self._room + self.scratch + LINE - 1) // LINE * LINE
            scratch = _SCRATCH.block(pitch * (1 + threads.count if count > 1 else 1))  # kept as long as the calls run
            blocks = (scratch[1], target, *inputs)
            threads.compute(count, self._table.buffer_info()[0], pitch, self._room, blocks)
        for each in self.blocks:
            each.run(threads, target, *inputs)
        for part in self.parts:
            part().run(threads, target, *inputs)

    def launch(self, kernel: CompiledKernel, parameters: Sequence[int], blocks: Sequence[tuple[int, int]]) -> None:
        """Append a call with these parameters, to which addresses of blocks are added."""
        known = [place for place in blocks if place[1] != CONSTANT]
        if not self.programs:
            self.programs.append(array("q", [0]))
        (program,) = self.programs
        program[0] += 1
        program.extend((address_of(kernel), len(parameters), len(known), *itertools.chain(*known), *parameters))
        self._room = max(self._room, 8 * len(parameters))

    def launch_rows(
        self, kernel: CompiledKernel, target: tuple[int, int], source: tuple[int, int],
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

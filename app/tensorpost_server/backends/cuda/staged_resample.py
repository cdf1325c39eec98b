"""How resample_staged of resample.cu is used: tiles of the output whose part of the input fits in shared memory.

The sizes below were the best, or near it, for all resampling jobs of benchmarks/gpu.py together, on an H200. Only speed
depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dimensions import MOST_OUTER, THREADS, Dimension, Planes, Step, TablePart, columns_of, present, writes_words
from .geometry import AXIS, DIVISOR, LARGEST_COUNT, alignment, divisor_row
from .launches import ENOUGH_BLOCKS, Launch, structure
from .tap_tables import TAP, KernelTable
from .variants import Variant

VECTOR = 16  # bytes; the widest access there is
ROWS = 32  # output rows that a thread walks, if there is room for what they need
FEWEST_ROWS = 4  # for the sake of more blocks; with fewer, what neighbouring tiles both read counts too much
WARP = 32  # threads that should walk the same rows
MOST_SHARED = 27 << 10  # bytes; a multiprocessor of an H100 or H200 has room for the 8 blocks that MIN_BLOCKS asks for
MOST_STEP = 4  # input elements from one column to the next; beyond, most of what would be staged is not read

TILES = np.dtype(
    [
        ("tiles_x", DIVISOR), ("tiles_y", DIVISOR), ("slots", DIVISOR), ("groups", DIVISOR), ("rows", "<u4"),
        ("planes_of_tile", "<u4"), ("planes", "<u4"), ("width", "<u4"), ("height", "<u4"), ("in_width", "<u4"),
        ("vector", "<u4"), ("in_vector", "<u4"), ("paired", "<u4"), ("loads", DIVISOR), ("staged_rows", DIVISOR),
        ("pitch", "<u4"), ("sources_at", "<u4"), ("offsets_at", "<u4"), ("taps_at", "<u4"), ("repeat", DIVISOR),
        ("outer", "<u4"), ("source_x", "<i4"), ("target_x", "<i4"), ("source_y", "<i8"), ("target_y", "<i8"),
        ("size_z", DIVISOR), ("size_w", DIVISOR), ("source_z", "<i8"), ("source_w", "<i8"), ("target_z", "<i8"),
        ("target_w", "<i8"), ("table_x", "<u8"), ("table_y", "<u8"), ("table_z", "<u8"), ("table_w", "<u8"),
        ("rows_y", "<u8"), ("lists", "<u8"), ("axis", AXIS, (MOST_OUTER,)), ("first", "<i4", (MOST_OUTER,)),
    ],
    align=True,
)  # fmt: skip
"""`Tiles` of resample.cu."""


@dataclass(frozen=True, slots=True)
class _StagedWindow:
    """What outputs of one dimension read of the input, as functions of the first and the last of them.

    Attributes:
        size: elements of the input.
        extent: how many outputs there are.
        start: the first output in `low` and `high`, times `repeat`.
        repeat: elements that move together.
        low: lowest index of each output; None where an index is the output's.
        high: highest index.
    """

    size: int
    extent: int
    start: int = 0
    repeat: int = 1
    low: NDArray[np.int32] | None = None
    high: NDArray[np.int32] | None = None

    def widest(self, tile: int, word: int = 1) -> int:
        """Most elements that `tile` adjacent outputs read, counted from a multiple of `word` on."""
        if self.low is None or self.high is None:
            return min(tile, self.extent) + word - math.gcd(tile, word)
        first = np.arange(0, self.extent, tile)
        last = np.minimum(first + tile, self.extent) - 1
        low = self.low[(self.start + first) // self.repeat].astype(np.int64) * self.repeat
        high = (self.high[(self.start + last) // self.repeat].astype(np.int64) + 1) * self.repeat
        return int((high - (low - low % word)).max())


@dataclass(frozen=True, slots=True)
class _Tile:
    """The part of the output that a block makes.

    Attributes:
        slots: groups of columns.
        groups: groups of rows.
        rows: rows of a group.
        planes: planes of the output.
    """

    slots: int
    groups: int
    rows: int
    planes: int

    @property
    def height(self) -> int:
        """Rows of all groups."""
        return self.groups * self.rows

    def smaller(self) -> _Tile | None:
        """A tile that reads less, None below the least; fewer columns last, since then threads have nothing to do."""
        if self.planes > 1:
            return replace(self, planes=self.planes // 2)
        if self.rows > 1:
            return replace(self, rows=self.rows - max(1, self.rows // 8))
        if self.slots > 1:
            return replace(self, slots=-(-self.slots // 2))
        return replace(self, groups=self.groups // 2) if self.groups > 1 else None


@dataclass(frozen=True, slots=True)
class _Shared:
    """A block's shared memory: staged rows, then tables.

    Attributes:
        loads: words, or elements, of a staged row.
        rows: staged rows of a plane.
        pitch: bytes from row to row.
        sources_at: where the table of planes begins, in bytes.
        offsets_at: where the table of the input's rows begins.
        taps_at: where the table of the output's rows begins.
        bytes: size of the shared memory.
    """

    loads: int
    rows: int
    pitch: int
    sources_at: int
    offsets_at: int
    taps_at: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _StagedBox:
    """A box to resample by resample_staged.

    Attributes:
        variant: which compilation.
        x: the dimension along rows.
        y: the dimension along columns.
        blended: up to two more weighted dimensions, z and w.
        planes: all other dimensions.
        item: bytes per element.
        staged_item: bytes per element in shared memory.
        source: bytes from the input's first element to the first one that counts.
        source_address: address of the input's first element, modulo 16.
        target_address: address of the output's first element, modulo 16.
        window_x: what tiles read along x.
        window_y: what tiles read along y.
    """

    variant: Variant
    x: Dimension
    y: Dimension
    blended: Sequence[Dimension]
    planes: Planes
    item: int
    staged_item: int
    source: int
    source_address: int
    target_address: int
    window_x: _StagedWindow
    window_y: _StagedWindow

    def define(self, name: str) -> int:
        """A number that the kernel was compiled with."""
        return int(dict(self.variant.defines)[name])

    @property
    def columns(self) -> int:
        """Neighbouring columns of a thread."""
        return columns_of(self.variant)

    @property
    def slots(self) -> int:
        """Groups of columns in a row of the output."""
        return -(-self.x.extent // self.columns)

    @property
    def count(self) -> int:
        """Planes of the output."""
        return self.planes.count * math.prod(one.extent for one in self.blended)

    @property
    def reads_words(self) -> bool:
        """Whether the input is read in words of 16 bytes, which are aligned then."""
        starts = [self.source_address + self.source, self.y.source, *self.planes.source]
        aligned = alignment([*starts, *(one.source for one in self.blended)]) == VECTOR
        return self.x.source == self.item and self.x.elements % (VECTOR // self.item) == 0 and aligned

    def shared(self, tile: _Tile) -> _Shared:
        """The shared memory that a tile needs."""
        word = VECTOR // self.item if self.reads_words else 1
        rows = self.window_y.widest(tile.height)
        loads = -(-self.window_x.widest(tile.slots * self.columns, word) // word)
        banks = -(-loads * word * self.staged_item // 4)
        pitch = 4 * (banks + banks // 32 + 1)  # see staged_at of resample.cu
        sources_at = _up_to(VECTOR, tile.planes * rows * pitch)
        offsets_at = sources_at + tile.planes * (8 * self.define("PLANES") + 16)
        taps_at = _up_to(VECTOR, offsets_at + rows * 8)
        size = taps_at + tile.height * self.define("TAPS_Y") * TAP.itemsize
        return _Shared(loads, rows, pitch, sources_at, offsets_at, taps_at, size)

    def blocks(self, tile: _Tile) -> int:
        """Tiles that the box consists of."""
        return -(-self.slots // tile.slots) * -(-self.y.extent // tile.height) * -(-self.count // tile.planes)

    def tile(self) -> _Tile | None:
        """The largest tile that has room in shared memory and leaves enough blocks; None if not even the least has."""
        tile = _largest_tile(self.slots, self.y.extent, self.count)
        while self.shared(tile).bytes > MOST_SHARED:
            smaller = tile.smaller()
            if smaller is None:
                return None
            tile = smaller
        while self.blocks(tile) < ENOUGH_BLOCKS and (fewer := _less_work(tile)) is not None:
            tile = fewer
        tiles_y = -(-self.y.extent // tile.height)
        return replace(tile, rows=-(-self.y.extent // (tiles_y * tile.groups)))

    def parameters(self, tile: _Tile, shared: _Shared) -> NDArray[Any]:
        """The kernel's structure."""
        x, y = self.x, self.y
        z, w = (*self.blended, None, None)[:2]
        targets = [y.target, *self.planes.target, *(one.target for one in self.blended)]
        return structure(
            TILES,
            tiles_x=divisor_row(-(-self.slots // tile.slots)),
            tiles_y=divisor_row(-(-y.extent // tile.height)),
            slots=divisor_row(tile.slots),
            groups=divisor_row(tile.groups),
            rows=tile.rows,
            planes_of_tile=tile.planes,
            planes=self.count,
            width=x.extent,
            height=y.extent,
            in_width=x.elements,
            vector=writes_words(x, targets, self.columns, self.item, self.target_address),
            in_vector=self.reads_words,
            paired=self.staged_item == 2 and self.define("TAPS_X") == 2 and _paired(x),
            loads=divisor_row(shared.loads),
            staged_rows=divisor_row(shared.rows),
            pitch=shared.pitch,
            sources_at=shared.sources_at,
            offsets_at=shared.offsets_at,
            taps_at=shared.taps_at,
            repeat=divisor_row(x.repeat),
            source_x=x.source,
            target_x=x.target,
            source_y=y.source,
            target_y=y.target,
            size_z=divisor_row(z.extent if z else 1),
            size_w=divisor_row(w.extent if w else 1),
            source_z=z.source if z else 0,
            source_w=w.source if w else 0,
            target_z=z.target if z else 0,
            target_w=w.target if w else 0,
            **self.planes.fields,
        )

    def tables(self) -> dict[str, TablePart]:
        """What the structure's table fields point to."""
        z, w = (*self.blended, None, None)[:2]
        return present(
            {
                "table_x": self.x.part(self.define("TAPS_X")),
                "table_y": self.y.part(self.define("TAPS_Y"), ranked=True),
                "table_z": z.part(2) if z else None,
                "table_w": w.part(2) if w else None,
                "rows_y": _rows_with_gaps(self.y),
                "lists": self.planes.lists,
            }
        )


def plan_staged(
    variant: Variant,
    x: Dimension,
    y: Dimension,
    blended: Sequence[Dimension],
    planes: Planes,
    item: int,
    staged_item: int,
    source: int,
    source_address: int,
    target_address: int,
) -> Step | None:
    """The launch of resample_staged for a box; the arguments are those of `_StagedBox`.

    Returns:
        None if what a tile reads is no window that moves with it, or there are too many tiles.
    """
    window_x, window_y = _window(x, ranked=False), _window(y, ranked=True)
    if window_x is None or window_y is None or _step(x) > MOST_STEP:
        return None
    addresses = source, source_address, target_address
    box = _StagedBox(variant, x, y, blended, planes, item, staged_item, *addresses, window_x, window_y)
    tile = box.tile()
    if tile is None:
        return None
    grid, shared, counts = box.blocks(tile), box.shared(tile), (window_y.size, box.count)
    if max(grid, x.extent, y.extent, x.elements, *counts, abs(x.source), abs(x.target)) > LARGEST_COUNT:
        return None
    launch = Launch(variant, grid, THREADS, box.parameters(tile, shared), ((0, source),), 0, shared.bytes)
    return Step(launch, box.tables())


def _up_to(multiple: int, size: int) -> int:
    return -(-size // multiple) * multiple


def _largest_tile(width: int, height: int, planes: int) -> _Tile:
    """A tile that gives every thread of a block work, if there is as much, and long rows before many."""
    slots = width
    if width >= WARP:
        slots = THREADS  # or half of that, and so on: never a warp whose threads are in different rows
        while slots > WARP and slots // 2 >= width:
            slots //= 2
    groups = min(THREADS // slots, -(-height // ROWS))
    return _Tile(slots, groups, ROWS, min(planes, THREADS // (slots * groups)))


def _less_work(tile: _Tile) -> _Tile | None:
    """A smaller tile; None if that would be too small."""
    if tile.planes > 1:
        return replace(tile, planes=tile.planes // 2)
    return replace(tile, rows=-(-tile.rows // 2)) if tile.rows > FEWEST_ROWS else None


def _window(dimension: Dimension, *, ranked: bool) -> _StagedWindow | None:
    """What outputs read; None if its ends do not rise with the outputs. `ranked` counts only elements that are read."""
    if dimension.span is None:
        return _StagedWindow(dimension.extent, dimension.extent)
    reach = dimension.reach()
    if reach is None:
        return None
    low, high, size = reach.low, reach.high, dimension.elements
    if ranked:
        low, high = (np.searchsorted(reach.rows, end).astype(np.int32) for end in (low, high))
        size = reach.rows.size
    return _StagedWindow(size, dimension.extent, dimension.start, dimension.repeat, low, high)


def _step(dimension: Dimension) -> int:
    reach = None if dimension.span is None else dimension.reach()
    return 1 if reach is None else reach.step


def _paired(dimension: Dimension) -> bool:
    """Whether the two taps of every output are an even element and the next one, as they are where sizes are halved."""
    taps = dimension.taps
    if taps is None or dimension.repeat > 1 or not taps.least == taps.most == 2:
        return False
    index = taps.index.reshape(-1, 2)
    return bool((index[:, 0] % 2 == 0).all() and (index[:, 1] == index[:, 0] + 1).all())


def _rows_with_gaps(dimension: Dimension) -> TablePart | None:
    """The table of the input rows that are read; None if they follow each other from the first on."""
    if dimension.span is None:
        return None
    reach = dimension.reach()
    return TablePart(KernelTable((dimension.span,), "rows")) if reach is not None and reach.has_gaps else None

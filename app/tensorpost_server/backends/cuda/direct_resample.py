"""How resample_gather and resample_bytes of resample.cu are used: a thread reads what it needs straight from the input.

Only speed depends on the sizes below. On an H200, the uint8 rows of `benchmarks.gpu linear` reach 0.64, 0.61 and 0.70
of the device's copy by resample_bytes, 0.39, 0.36 and 0.37 staged; with 4 columns a thread instead of 8 the first two
were 0.74 and 0.79 times as fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .dimensions import MOST_OUTER, THREADS, Dimension, Planes, Step, TablePart, columns_of, present, writes_words
from .geometry import AXIS, DIVISOR, LARGEST_COUNT, alignment, divisor_row
from .launches import ENOUGH_BLOCKS, Launch, structure
from .tap_tables import KernelTable, Reach
from .variants import Variant, bytes_variant, gather_variant

GATHER_ROWS = 8  # output rows that a thread of resample_gather walks, if there are enough threads
BYTE_ROWS = 40  # of resample_bytes, whose threads each prepare for as long as they take for 5 rows
FEWEST_ROWS = 4  # with fewer, input rows that neighbouring threads both read count too much
WARP = 32
REACH = 8  # bytes of an input row that all columns of a thread of resample_bytes lie within
MOST_STEP = 3  # input rows from one output to the next; all rows are read, whether outputs need them or not
INPUT_WORD = 4  # bytes that resample_bytes reads at once
UNIT = 0x4B000000  # bits of 2^23

_SHARED = [
    ("count", "<u4"), ("slots", DIVISOR), ("second", DIVISOR), ("chunks_first", "<u4"), ("width", "<u4"),
    ("height", "<u4"), ("rows", "<u4"),
]  # fmt: skip
GATHER = np.dtype(
    [
        *_SHARED, ("vector", "<u4"), ("outer", "<u4"), ("source_x", "<i4"), ("target_x", "<i4"), ("source_y", "<i8"),
        ("target_y", "<i8"), ("list_x", "<u8"), ("list_y", "<u8"), ("lists", "<u8"), ("axis", AXIS, (MOST_OUTER,)),
        ("first", "<i4", (MOST_OUTER,)),
    ],
    align=True,
)  # fmt: skip
"""`Gather` of resample.cu."""
BYTES = np.dtype(
    [
        *_SHARED, ("last_word", "<u4"), ("last_row", "<i4"), ("outer", "<u4"), ("unit", "<u4"), ("target_x", "<i4"),
        ("source_y", "<i8"), ("target_y", "<i8"), ("table_x", "<u8"), ("table_y", "<u8"), ("lists", "<u8"),
        ("axis", AXIS, (MOST_OUTER,)), ("first", "<i4", (MOST_OUTER,)),
    ],
    align=True,
)  # fmt: skip
"""`Bytes` of resample.cu."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """Threads of neighbouring columns that walk down the rows of a chunk.

    Attributes:
        slots: number of groups of columns in a row of the output.
        planes: number of planes of the output.
        height: number of rows of a plane.
        rows: number of rows of a chunk.
    """

    slots: int
    planes: int
    height: int
    rows: int

    @classmethod
    def within(cls, slots: int, planes: int, height: int, rows: int) -> _Walk:
        """The walk with `rows` rows to a chunk, or with fewer if there would be too few threads."""
        while rows > FEWEST_ROWS and slots * planes * -(-height // rows) < ENOUGH_BLOCKS * THREADS:
            rows //= 2
        return cls(slots, planes, height, -(-height // -(-height // rows)))

    @property
    def count(self) -> int:
        """The number of threads."""
        return self.slots * self.planes * -(-self.height // self.rows)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a kernel's structure that share the work out."""
        # Then a warp has one chunk or two; narrower planes are better off side by side.
        chunks_first = self.slots >= WARP
        return {
            "count": self.count,
            "slots": divisor_row(self.slots),
            "second": divisor_row(-(-self.height // self.rows) if chunks_first else self.planes),
            "chunks_first": chunks_first,
            "height": self.height,
            "rows": self.rows,
        }

    def launch(self, variant: Variant, parameters: Any, source: int) -> Launch:
        """A launch of these threads."""
        return Launch(variant, -(-self.count // THREADS), THREADS, parameters, ((0, source),), 0)


def plan_gather(
    x: Dimension, y: Dimension, planes: Planes, item: int, source: int, target_address: int
) -> list[Step] | None:
    """The launch of resample_gather for a box whose outputs are copies of elements of `item` bytes.

    Args:
        x: the dimension along rows.
        y: the dimension along columns.
        planes: all other dimensions.
        item: bytes per element.
        source: bytes from the input's first element to the first one that counts.
        target_address: address of the output's first element, modulo 16.

    Returns:
        None if there are too many threads.
    """
    variant = gather_variant(item)
    columns = columns_of(variant)
    walk = _Walk.within(-(-x.extent // columns), planes.count, y.extent, GATHER_ROWS)
    widest = max(x.elements * abs(x.source), x.extent * abs(x.target))
    if max(walk.count, widest, x.extent, y.extent, planes.count) > LARGEST_COUNT:
        return None
    parameters = structure(
        GATHER,
        width=x.extent,
        vector=writes_words(x, [y.target, *planes.target], columns, item, target_address),
        source_x=x.source,
        target_x=x.target,
        source_y=y.source,
        target_y=y.target,
        **walk.fields,
        **planes.fields,
    )
    tables = {"list_x": x.part(1), "list_y": y.part(1), "lists": planes.lists}
    return [Step(walk.launch(variant, parameters, source), present(tables))]


def plan_bytes(
    x: Dimension, y: Dimension, planes: Planes, source: int, source_address: int, target_address: int
) -> Step | None:
    """The launch of resample_bytes for a box of unsigned bytes with two taps along both axes.

    The arguments are those of `plan_gather`, and the address of the input's first element, modulo 16.

    Returns:
        None if input rows are not words, what outputs read is no element and the next one with weights from 0 to 1 or
        lies too far apart, or there are too many threads.
    """
    starts = [source_address + source, y.source, x.elements, *planes.source]
    reach_x, reach_y = _neighbours(x), _neighbours(y)
    if reach_x is None or reach_y is None or reach_y.step > MOST_STEP or x.source != 1 or x.repeat != 1:
        return None
    columns = next((columns for columns in (8, 4) if _widest(reach_x, x, columns) <= REACH), None)
    if columns is None or alignment(starts, INPUT_WORD) < INPUT_WORD:
        return None
    walk = _Walk.within(-(-x.extent // columns), planes.count, y.extent, BYTE_ROWS)
    if max(walk.count, x.extent * abs(x.target), y.extent, y.elements, planes.count) > LARGEST_COUNT:
        return None
    parameters = structure(
        BYTES,
        width=x.extent,
        last_word=x.elements // INPUT_WORD - 1,
        last_row=y.elements - 1,
        unit=UNIT,
        target_x=x.target,
        source_y=y.source,
        target_y=y.target,
        **walk.fields,
        **planes.fields,
    )
    variant = bytes_variant(columns, whole=writes_words(x, [y.target, *planes.target], columns, 1, target_address))
    tables = {"table_x": _pairs(x), "table_y": _pairs(y), "lists": planes.lists}
    return Step(walk.launch(variant, parameters, source), present(tables))


def _pairs(dimension: Dimension) -> TablePart:
    assert dimension.span is not None
    table = KernelTable((dimension.span,), "pairs")
    return TablePart(table, dimension.start * table.item)


def _neighbours(dimension: Dimension) -> Reach | None:
    """What outputs read, if that is an element or between it and the next one, and never falls with the outputs."""
    taps, reach = dimension.taps, None if dimension.taps is None else dimension.reach()
    if taps is None or reach is None:
        return None
    first = taps.index[taps.starts[:-1]]
    near = (first == reach.low) & (reach.high - reach.low <= 1)
    return reach if near.all() and (taps.weight >= 0).all() and (taps.weight <= 1).all() else None


def _widest(reach: Reach, x: Dimension, columns: int) -> int:
    """Input elements from the first to the last one that any such number of neighbouring outputs reads."""
    first = np.arange(x.start, x.start + x.extent, columns)
    last = np.minimum(first + columns, x.start + x.extent) - 1
    return int((reach.high[last] - reach.low[first]).max()) + 1

"""How reduce.cu is used: reductions of lines, each as one launch, or as a few where a line is shared by several blocks.

A kernel is made for a function, its types and how the input lies: `reduce_rows` where neighbours in memory are elements
of one line, `reduce_columns` where they are of different lines. A long line is cut into segments; what is known of each
(its sum, for example) is written to memory, and the next launch reduces that. How a line is cut, and in which order its
elements are joined, depends on the line only, so that every part of an output, of whatever alignment, has the bytes
that it has in the whole.

Sums of float16 and bfloat16 are made in float32, of float32 and float64 in their own type, those of integers modulo
2^32 or 2^64. The mean, norms and logarithms of integers are rounded by rules of their own (`forms/`), and are CuPy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...forms import Box, Lines
from ...forms.base import coalesced
from .dimensions import Step
from .geometry import AXIS, DIVISOR, LARGEST_COUNT, ByteLoop, alignment, axis_row, divisor_row, fits_in_32_bits
from .launches import MOST_LOOPS, VECTOR, ArrayLayout, Launch, structure
from .pointwise_kernels import STORED
from .variants import Variant

THREADS = 256  # of reduce.cu
AHEAD = 4  # vectors that a thread loads before it uses the first
SHIFTED_AHEAD = 4  # of these, which are two loads each
PARTIAL_AHEAD = 8  # of states
APART_WORDS = 32  # of 4 bytes: registers for elements that are loaded one by one
ROW_VECTORS = 4  # of a thread for a short line, before more threads work on it
MOST_ROW_VECTORS = 16  # of a thread, before the whole block works on a line
SEGMENT_VECTORS = 8  # of a thread of a whole block: a segment is 32 KiB
MOST_ROW_SEGMENTS = 8192  # of a line; a longer one has longer segments. So many states are one segment
ODD_ROWS_APART = 99  # least bytes of an element of unaligned rows that is loaded by itself
GROUPS = 3  # log2 of the threads that share the elements of one line among columns
LONE_COLUMN = 32  # elements of a line that one thread reduces
LONE_STATES = 4  # of a line
COLUMN_SEGMENT = 512  # elements of a line among columns: a segment
UNCUT_COLUMN = 1024  # elements of a line among columns that is not cut
MOST_COLUMN_SEGMENTS = 8192
NARROW = 4  # columns that are loaded one by one, if these are all
ODD_COLUMNS_SPREAD = 4  # least bytes of an element of unaligned columns of which a thread has every 32nd
SPREAD_COLUMNS = 2048  # bytes of neighbouring columns, at least, to do so
WARP = 5  # log2 of its threads

_FLOATS = {"float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}
_SIGNED = {"int8": "i32", "int16": "i32", "int32": "i32", "int64": "i64"}
_UNSIGNED = {"uint8": "u32", "uint16": "u32", "uint32": "u32", "uint64": "u64"}
_LOADED = {**_FLOATS, **_SIGNED, **_UNSIGNED}
_WRAPPING = {"i32": "u32", "i64": "u64"}  # C++ lets unsigned numbers wrap only
_BYTES = {"float": 4, "double": 8, "i32": 4, "u32": 4, "i64": 8, "u64": 8}

REDUCTION = np.dtype(
    [
        ("count", "<u4"), ("within", DIVISOR), ("length", "<u4"), ("segment", "<u4"), ("together", "<u4"),
        ("side", "<u4"), ("extent", "<u4"), ("vectors", DIVISOR), ("kept", "<u4"), ("reduced", "<u4"),
        ("spread", "<u4"), ("unit", "<i8"), ("target_unit", "<i8"), ("segment_step", "<i8"), ("begin", "<i8"),
        ("end", "<i8"), ("divisor", "<f8"), ("kept_axis", AXIS, (MOST_LOOPS,)),
        ("reduced_axis", AXIS, (MOST_LOOPS,)),
    ],
    align=True,
)  # fmt: skip
"""`Reduction` of reduce.cu."""


@dataclass(frozen=True, slots=True)
class _ReduceFormula:
    """A reduction as C++.

    Attributes:
        join: how two states become one.
        lifted: the state of an element `x`; of the type that states have.
        finished: the result, of the state `s` of a whole line.
        integers: whether it is exact for integers.
    """

    join: str
    lifted: str = "(VALUE)x"
    finished: str = "s"
    integers: bool = False


_FUNCTIONS = {
    "SUM": _ReduceFormula("Sum", integers=True),
    "AVERAGE": _ReduceFormula("Sum", finished="s / (VALUE)p.divisor"),
    "MULTIPLY": _ReduceFormula("Product", integers=True),
    "MAX": _ReduceFormula("Largest", integers=True),
    "MIN": _ReduceFormula("Smallest", integers=True),
    "L1": _ReduceFormula("Sum", "(VALUE)tp_abs(x)", integers=True),
    "SUM_SQUARE": _ReduceFormula("Sum", "(VALUE)x * (VALUE)x", integers=True),
    "L2": _ReduceFormula("Sum", "(VALUE)x * (VALUE)x", "sqrt(s)"),
    "LOG_SUM": _ReduceFormula("Sum", finished="log(s)"),
    "LOG_SUM_EXP": _ReduceFormula("LogSumExp", "State{(VALUE)x, (VALUE)1}", "log(s.sum) + s.largest"),
}


_BY_CUPY = ("MIN", "MAX")
"""What CuPy reduces faster along unaligned rows of elements of 1, 4 or 8 bytes: this kernel loads overlapping vectors
there. Rows of 15 bytes take 0.43 of the copy's rate instead of 0.27 on an H100. CuPy's sums have other bytes at other
addresses, so they are not taken."""


@dataclass(frozen=True, slots=True)
class _ReducedTypes:
    """What is the same for all launches of a reduction.

    Attributes:
        function: what is computed.
        loaded: type that elements are converted to.
        value: type that is reduced in.
        result: stored type of the output, a NumPy name.
        divisor: elements of a line.
    """

    function: _ReduceFormula
    loaded: str
    value: str
    result: str
    divisor: int

    @property
    def state(self) -> str:
        return f"Scaled<{self.value}>" if self.function.join == "LogSumExp" else self.value

    @property
    def state_bytes(self) -> int:
        return _BYTES[self.value] * (2 if self.function.join == "LogSumExp" else 1)


@dataclass(frozen=True, slots=True)
class _ReadLoops:
    """The elements that a launch reads.

    Attributes:
        stored: their type in C++; empty for states.
        item: bytes of one.
        address: address of the first one, modulo 16.
        start: bytes from the input's first element.
        lines: loops over lines, in the order of the input's memory, with the strides of the output.
        line: loops over a line, in the order of memory; no targets.
    """

    stored: str
    item: int
    address: int
    start: int
    lines: tuple[ByteLoop, ...]
    line: tuple[ByteLoop, ...]

    @property
    def length(self) -> int:
        return math.prod(loop.extent for loop in self.line)


def plan_reduction(form: Lines, inputs: Sequence[ArrayLayout], box: Box, out: ArrayLayout) -> list[Step] | None:
    """The steps that reduce the lines through a box; each reads what the one before it wrote.

    Args:
        form: what is computed.
        inputs: the input array, of the whole input's sizes.
        box: part of the output; not empty.
        out: the array that holds the box.

    Returns:
        None if there is no kernel: a function or a type that reduce.cu has not, lines without elements, an element that
        is not aligned to its size, or more elements or loops than a launch has room for.
    """
    x = inputs[0]
    name, item = x.dtype.name, x.dtype.itemsize
    function = _FUNCTIONS.get("SUM" if form.reduction == "L1" and name in _UNSIGNED else form.reduction)
    if function is None or name not in _LOADED or out.dtype != x.dtype or 0 in form.sizes:
        return None
    if name not in _FLOATS and not function.integers:
        return None
    if alignment([item, x.address, out.address, *x.strides, *out.strides]) < item:
        return None
    start = sum(low * stride for (low, _), stride in zip(box, x.strides, strict=True))
    kept: list[tuple[int, ...]] = []
    inside: list[tuple[int, ...]] = []
    for axis, size in enumerate(form.sizes):
        if axis in form.axes:
            inside.append((size, x.strides[axis]))
        else:
            kept.append((box[axis][1] - box[axis][0], x.strides[axis], out.strides[axis]))
    line = tuple([ByteLoop(extent, 0, s) for extent, s in coalesced(_ordered(inside, item))])
    # Neighbours of different lines may be in a box of one line only, which is reduced as the whole is.
    beside = next((one for one in kept if one[1] == item), None)
    lines = [ByteLoop(extent, target, s) for extent, s, target in coalesced(_ordered(kept, item))]
    columns = _are_columns(item, line, lines, beside is not None)
    if columns and beside is not None and all(loop.source != item for loop in lines):
        lines.append(ByteLoop(1, out.dtype.itemsize, item))
    if len(lines) > MOST_LOOPS or len(line) > MOST_LOOPS:
        return None
    loaded = _LOADED[name]
    value = loaded if function.join in ("Largest", "Smallest") else _WRAPPING.get(loaded, loaded)
    kind = _ReducedTypes(function, loaded, value, name, math.prod(loop.extent for loop in line))
    walk = _ReadLoops(STORED[name], item, (x.address + start) % VECTOR, start, tuple(lines), line)
    return _steps(kind, walk, columns=columns)


def cupy_is_faster(form: Lines, x: ArrayLayout) -> bool:
    """Whether CuPy reduces the lines of an input faster: rows that are not at multiples of 16 bytes from each other.

    It follows from sizes and strides of the whole input alone: parts of an output, and the same tensor elsewhere, have
    the same bytes.
    """
    item = x.dtype.itemsize
    if form.reduction not in _BY_CUPY or item == 2:
        return False
    line = coalesced(_ordered([(form.sizes[axis], x.strides[axis]) for axis in form.axes], item))
    if all(stride != item for _, stride in line):
        return False
    strides = [stride for _, stride in line if stride != item]
    strides += [x.strides[axis] for axis, size in enumerate(form.sizes) if axis not in form.axes and size > 1]
    return any(stride % VECTOR for stride in strides)


def _ordered(axes: Sequence[tuple[int, ...]], item: int) -> list[tuple[int, ...]]:
    """Axes by their strides in the input, the largest first; neighbours last, also where others repeat an element."""
    return sorted(axes, key=lambda axis: (axis[1] == item, -abs(axis[1])))


def _are_columns(item: int, line: Sequence[ByteLoop], lines: Sequence[ByteLoop], beside: bool) -> bool:
    """Whether neighbours in memory are of different lines; if there are none, those that are nearest to each other."""
    if any(loop.source == item for loop in line):
        return False
    if beside or not line:
        return True
    return bool(lines) and abs(lines[-1].source) < abs(line[-1].source)


def _steps(kind: _ReducedTypes, walk: _ReadLoops, *, columns: bool) -> list[Step] | None:
    if max(walk.length, math.prod(loop.extent for loop in walk.lines)) > LARGEST_COUNT:
        return None
    made = _columns_step(kind, walk) if columns else _rows_step(kind, walk)
    if made is None:
        return None
    step, rest = made
    if rest is None:
        return [step]
    later = _steps(kind, rest, columns=columns)
    return None if later is None else [step, *later]


def _rows_step(kind: _ReducedTypes, walk: _ReadLoops) -> tuple[Step, _ReadLoops | None] | None:
    """A launch of reduce_rows, and what is left to reduce."""
    vector = VECTOR // walk.item
    *outer, inner = walk.line or (ByteLoop(1, 0, walk.item),)
    vectors = -(-inner.extent // vector)
    length = vectors * math.prod(loop.extent for loop in outer)
    together, segment, segments = _row_shares(length, partial=not walk.stored)
    access = _access(walk, inner, (*walk.lines, *outer))
    if access == "SHIFTED" and walk.item >= ODD_ROWS_APART:
        access = "APART"
    lines = math.prod(loop.extent for loop in walk.lines)
    count, state = lines * segments, kind.state_bytes
    pitch = -(-segments * state // VECTOR) * VECTOR  # of the states of a line, so that each begins at a vector
    if count > LARGEST_COUNT or length > LARGEST_COUNT:
        return None
    targets = walk.lines if segments == 1 else _packed(walk.lines, pitch)
    step = _step(
        kind,
        walk,
        "reduce_rows",
        access,
        inner,
        walk.lines,
        outer,
        targets,
        last=segments == 1,
        grid=-(-count // (THREADS >> together)),
        shared=THREADS // 32 * state,
        made=0 if segments == 1 else lines * pitch,
        count=count,
        within=divisor_row(segments),
        length=length,
        segment=segment,
        together=together,
        extent=inner.extent,
        vectors=divisor_row(vectors),
        segment_step=state,
    )
    if segments == 1:
        return step, None
    return step, _ReadLoops("", state, 0, 0, _read_again(targets, walk.lines), (ByteLoop(segments, 0, state),))


def _row_shares(length: int, *, partial: bool) -> tuple[int, int, int]:
    """How so many vectors of a line are shared: log2 of the threads of a segment, its vectors, how many segments.

    Args:
        length: number of vectors of a line.
        partial: they are states.
    """
    if length <= MOST_ROW_VECTORS << WARP:
        return min(WARP, max(0, (length // ROW_VECTORS).bit_length() - 1)), length, 1
    most = MOST_ROW_SEGMENTS if partial else THREADS * SEGMENT_VECTORS
    most *= -(-length // (most * MOST_ROW_SEGMENTS))
    return THREADS.bit_length() - 1, min(most, length), -(-length // most)


def _columns_step(kind: _ReducedTypes, walk: _ReadLoops) -> tuple[Step, _ReadLoops | None] | None:
    """A launch of reduce_columns, and what is left to reduce."""
    vector = VECTOR // walk.item
    *outer, inner = walk.lines or (ByteLoop(1, walk.item, walk.item),)
    line = walk.line or (ByteLoop(1, 0, walk.item),)
    vectors, spread, access = -(-inner.extent // vector), 0, _access(walk, inner, (*outer, *line))
    if inner.extent < vector and inner.extent <= NARROW:
        access = "APART"
    elif access == "SHIFTED" and walk.item >= ODD_COLUMNS_SPREAD and inner.extent * walk.item >= SPREAD_COLUMNS:
        access, spread = "APART", WARP
        vectors = -(-vectors >> WARP) << WARP
    beside = vectors * math.prod(loop.extent for loop in outer)
    together = 0 if walk.length <= (LONE_COLUMN if walk.stored else LONE_STATES) else GROUPS
    segment = COLUMN_SEGMENT * -(-walk.length // (COLUMN_SEGMENT * MOST_COLUMN_SEGMENTS))
    segment = walk.length if walk.length <= UNCUT_COLUMN else segment
    segments = -(-walk.length // segment)
    count, state = beside * segments, kind.state_bytes
    if count > LARGEST_COUNT:
        return None
    pitch = vectors * vector  # states of neighbouring lines
    targets = walk.lines if segments == 1 else (*_packed(outer, pitch * state), replace(inner, target=state))
    rows = beside * vector * state
    step = _step(
        kind,
        walk,
        "reduce_columns",
        access,
        inner,
        outer,
        line,
        targets[: len(outer)],
        last=segments == 1,
        grid=-(-count // (THREADS >> together)),
        shared=THREADS * vector * state if together else 0,
        made=0 if segments == 1 else rows * segments,
        count=count,
        within=divisor_row(beside),
        length=walk.length,
        segment=segment,
        together=together,
        side=min(WARP, (beside - 1).bit_length()),
        extent=inner.extent,
        vectors=divisor_row(vectors),
        spread=spread,
        target_unit=targets[-1].target if targets else 0,
        segment_step=rows,
    )
    if segments == 1:
        return step, None
    lines = _read_again(targets, (*outer, inner))
    return step, _ReadLoops("", state, 0, 0, lines, (ByteLoop(segments, 0, rows),))


def _access(walk: _ReadLoops, inner: ByteLoop, loops: Sequence[ByteLoop]) -> str:
    """How vectors are loaded of elements side by side, and from where the other loops lead to."""
    if inner.source != walk.item and inner.extent > 1:
        return "APART"
    strides = [loop.source for loop in loops if loop.extent > 1]
    return "ALIGNED" if alignment([walk.address, *strides]) == VECTOR else "SHIFTED"


def _ahead(walk: _ReadLoops, access: str, held: int) -> int:
    """Vectors that a thread loads before it uses the first."""
    if access == "APART":
        words = held * max(1, walk.item // 4)
        return min(8, 1 << max(0, (APART_WORDS // words).bit_length() - 1))
    return PARTIAL_AHEAD if not walk.stored else SHIFTED_AHEAD if access == "SHIFTED" else AHEAD


def _packed(loops: Sequence[ByteLoop], pitch: int) -> tuple[ByteLoop, ...]:
    """The same loops, that write `pitch` bytes side by side each."""
    found: list[ByteLoop] = []
    for loop in reversed(loops):
        found.insert(0, replace(loop, target=pitch))
        pitch *= loop.extent
    return tuple(found)


def _read_again(written: Sequence[ByteLoop], wanted: Sequence[ByteLoop]) -> tuple[ByteLoop, ...]:
    """Loops that read what those wrote, and write where these are wanted."""
    return tuple([replace(to, source=at.target) for at, to in zip(written, wanted, strict=True)])


def _step(
    kind: _ReducedTypes,
    walk: _ReadLoops,
    kernel: str,
    access: str,
    inner: ByteLoop,
    lines: Sequence[ByteLoop],
    line: Sequence[ByteLoop],
    targets: Sequence[ByteLoop],
    *,
    last: bool,
    grid: int,
    shared: int,
    made: int,
    **fields: Any,
) -> Step:
    held = min(inner.extent, VECTOR // walk.item)
    whole = held if access == "APART" else VECTOR // walk.item
    moved = [ByteLoop(loop.extent, to.target, loop.source) for loop, to in zip(lines, targets, strict=True)]
    ends = [*moved, *line, replace(inner, target=fields.get("target_unit", 0))]
    ends.append(ByteLoop(max(1, made // max(1, fields["segment_step"])), fields["segment_step"] if made else 0, 0))
    reached = [(loop.extent - 1) * loop.source for loop in (*lines, *line, inner)]
    columns = kernel == "reduce_columns"
    parameters = structure(
        REDUCTION,
        kept=len(moved),
        reduced=len(line),
        kept_axis=[axis_row(loop) for loop in reversed(moved)],
        reduced_axis=[axis_row(loop) for loop in reversed(line)],
        unit=inner.source if inner.extent > 1 else walk.item,
        begin=sum(min(0, far) for far in reached),
        end=sum(max(0, far) for far in reached) + walk.item,
        divisor=kind.divisor,
        **fields,
    )
    function = kind.function
    defines = {
        "STORED": walk.stored or kind.state,
        "ITEM": walk.item,
        "LOADED": kind.loaded,
        "VALUE": kind.value,
        "STATE": kind.state,
        "LIFTED": function.lifted,
        "JOIN": function.join,
        "RESULT": STORED[kind.result] if last else kind.state,
        "FINISHED": function.finished if last else "s",
        "LAST": int(last),
        "PARTIAL": int(not walk.stored),
        "ACCESS": access,
        "HELD": held,
        "RAGGED": int(access == "SHIFTED" or inner.extent % (whole << fields.get("spread", 0)) > 0),
        "NESTED": int(len(line) > columns),
        "COLUMNS": int(columns),
        "AHEAD": _ahead(walk, access, held),
    }
    prelude = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    wide = not fits_in_32_bits(ends, 2 * VECTOR)
    variant = Variant("reduce.cu", kernel, (("WIDE", str(int(wide))),), prelude)
    launch = Launch(variant, grid, THREADS, parameters, ((0, walk.start),), 0, shared)
    return Step(launch, {}, made)

# pyright: basic, reportCallIssue=false, reportArgumentType=false
# Strict types would be no help in this file: numba types it, Python has no type for a pointer, and an intrinsic is
# called with one argument less than it is written with.
# ruff: noqa: ARG001  # an intrinsic's parameters stand for what the code that it generates is given
"""The loops, compiled by numba ahead of time. Only `library.build` imports this file; a server loads what it made.

Each kernel takes the address of one array of int64, its parameters: `P_...` for all, `T_...`, `G_...` and `B_...` for
each. It allocates nothing, raises nothing and calls nothing but memcpy and memset, so that its object code runs without
numba, without the interpreter and on many threads at once. All offsets and strides are in bytes.

An element's arithmetic depends on its own taps alone. Multiplications and additions are never contracted or reordered
(no fastmath), so every element has the same bits in every slice and on every CPU.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["FORMS"]

# The parameters of every kernel: the axes outside a row, outermost first, AXIS numbers each from P_AXES on.
P_OUTER, P_DST, P_SRC, P_SCRATCH, P_AXES = 0, 1, 2, 3, 40
AXIS, A_EXTENT, A_DST, A_SRC, A_TABLE = 4, 0, 1, 2, 3  # bytes per step; the table, if any, holds the source's offsets

# tile: a row is the end of a copy, whole copies, the beginning of a copy.
T_SIZE, T_COPIES, T_HEAD, T_TAIL = 4, 5, 6, 7

# gather: a row is items picked by index.
G_COUNT, G_WIDTH, G_DST_STEP, G_SRC_STEP, G_INDEX, G_REPEAT, G_STRIDE, G_FIRST, G_LAST = 4, 5, 6, 7, 8, 9, 10, 11, 12

# blend: rows and columns of weighted taps.
B_SRC_TYPE, B_DST_TYPE, B_SRC_STEP, B_DST_STEP, B_ANCHORED = 4, 5, 6, 7, 8
B_ROWS, B_ROW_TAPS, B_ROW_PITCH, B_ROW_INDEX, B_ROW_WEIGHT, B_SRC_ROW, B_DST_ROW = 9, 10, 11, 12, 13, 14, 15
B_COLS, B_COL_TAPS, B_COL_PITCH, B_COL_INDEX, B_COL_WEIGHT, B_LOW, B_READ = 16, 17, 18, 19, 20, 21, 22
B_PHASES, B_FIRST, B_LAST = 23, 24, 25
B_RING, B_RING_ROWS, B_RING_PITCH, B_LOADED, B_SUMS, B_CELLS, B_KEYS = 26, 27, 28, 29, 30, 31, 32
F32, F16, U8, I8 = 0, 1, 2, 3


# ---- addresses -------------------------------------------------------------------------------------------------------


def _pointer_to(numba_type):
    @intrinsic
    def at(_typing, address):
        def code(context, builder, _signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(numba_type)))

        return types.CPointer(numba_type)(types.int64), code

    return at


floats, halves, bytes_, chars = map(_pointer_to, (types.float32, types.uint16, types.uint8, types.int8))
words2, words4, words8, indices, longs = map(
    _pointer_to, (types.uint16, types.uint32, types.uint64, types.int32, types.int64)
)


@intrinsic
def copy(_typing, to, of, count):
    """The bytes from one address to another; they do not overlap. A constant count becomes a few moves."""

    def code(_context, builder, _signature, arguments):
        to, of, count = arguments
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(to, byte), builder.inttoptr(of, byte), count, 1)

    return types.void(types.int64, types.int64, types.int64), code


@intrinsic
def half_to_float(_typing, half):
    def code(_context, builder, _signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), code


@intrinsic
def float_to_half(_typing, value):
    """To nearest, ties to even; beyond 65504 infinity."""

    def code(_context, builder, _signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), code


inlined = njit(forceinline=True, error_model="numpy", no_cpython_wrapper=True)


# ---- walking over rows -----------------------------------------------------------------------------------------------


@inlined
def source_offset(p, axis, at):
    table = p[P_AXES + AXIS * axis + A_TABLE]
    return longs(table)[at] if table else at * p[P_AXES + AXIS * axis + A_SRC]


@inlined
def lines(p, axes):
    """How many combinations of coordinates the first `axes` axes have."""
    count = 1
    for axis in range(axes):
        count *= p[P_AXES + AXIS * axis + A_EXTENT]
    return count


@inlined
def line(p, axes, number):
    """Where one of these combinations is in the output and in the input."""
    dst, src = p[P_DST], p[P_SRC]
    for back in range(axes):
        axis = axes - 1 - back
        extent = p[P_AXES + AXIS * axis + A_EXTENT]
        rest = number // extent
        at = number - rest * extent
        dst += at * p[P_AXES + AXIS * axis + A_DST]
        src += source_offset(p, axis, at)
        number = rest
    return dst, src


# ---- tile ------------------------------------------------------------------------------------------------------------

LONG_FILL = 512  # bytes of a row from which on a block of copies is copied, not each of them


def _tiles_of(width):
    """Rows of `width` to twice `width` bytes, each moved as its first and its last `width` bytes."""

    @inlined
    def tiles(p, dst, src):
        size, copies = p[T_SIZE], p[T_COPIES]
        axis = p[P_OUTER] - 1
        extent, step = p[P_AXES + AXIS * axis + A_EXTENT], p[P_AXES + AXIS * axis + A_DST]
        table, src_step = p[P_AXES + AXIS * axis + A_TABLE], p[P_AXES + AXIS * axis + A_SRC]
        last = size - width
        for row in range(extent):
            of = src + (longs(table)[row] if table else row * src_step)
            to = dst + row * step
            if size * copies < LONG_FILL:
                if last:
                    for _ in range(copies):
                        copy(to, of, width)
                        copy(to + last, of + last, width)
                        to += size
                else:
                    for _ in range(copies):
                        copy(to, of, width)
                        to += size
            else:
                block = 0
                while block < LONG_FILL // 2:
                    copy(to + block, of, width)
                    copy(to + block + last, of + last, width)
                    block += size
                done, total = block, size * copies
                while done < total:
                    part = min(block, total - done)
                    copy(to + done, to, part)
                    done += part

    return tiles


tiles_1, tiles_2, tiles_4, tiles_8, tiles_16, tiles_32, tiles_64 = map(_tiles_of, (1, 2, 4, 8, 16, 32, 64))


@inlined
def tiles_any(p, dst, src):
    size, copies, head, tail = p[T_SIZE], p[T_COPIES], p[T_HEAD], p[T_TAIL]
    axis = p[P_OUTER] - 1
    for row in range(p[P_AXES + AXIS * axis + A_EXTENT]):
        of = src + source_offset(p, axis, row)
        to = dst + row * p[P_AXES + AXIS * axis + A_DST]
        if head:
            copy(to, of + size - head, head)
            to += head
        for _ in range(copies):
            copy(to, of, size)
            to += size
        if tail:
            copy(to, of, tail)


def tile(p):
    """Rows of repeated bytes: Tile, and whatever else copies runs of bytes."""
    size = p[T_SIZE]
    cut = p[T_HEAD] != 0 or p[T_TAIL] != 0
    for number in range(lines(p, p[P_OUTER] - 1)):
        dst, src = line(p, p[P_OUTER] - 1, number)
        if cut or size > 128:
            tiles_any(p, dst, src)
        elif size >= 64:
            tiles_64(p, dst, src)
        elif size >= 32:
            tiles_32(p, dst, src)
        elif size >= 16:
            tiles_16(p, dst, src)
        elif size >= 8:
            tiles_8(p, dst, src)
        elif size >= 4:
            tiles_4(p, dst, src)
        elif size >= 2:
            tiles_2(p, dst, src)
        else:
            tiles_1(p, dst, src)


# ---- gather ----------------------------------------------------------------------------------------------------------


def _picks_of(pointer):
    """A row of items of one machine word, next to each other on both sides."""

    @inlined
    def picks(p, dst, src):
        to, of, index = pointer(dst), pointer(src), indices(p[G_INDEX])
        count, repeat, stride = p[G_COUNT], p[G_REPEAT], p[G_STRIDE]
        first, last = p[G_FIRST], p[G_LAST]
        for i in range(first):
            to[i] = of[index[i]]
        base = index[first] if first < count else 0
        if stride == 1:
            for i in range(last - first):
                to[first + i] = of[base + i]
        elif stride == 2:
            for i in range(last - first):
                to[first + i] = of[base + 2 * i]
        elif repeat == 2:
            for i in range((last - first) // 2):
                item = of[base + i]
                to[first + 2 * i] = item
                to[first + 2 * i + 1] = item
        elif repeat == 3:
            for i in range((last - first) // 3):
                item = of[base + i]
                to[first + 3 * i] = item
                to[first + 3 * i + 1] = item
                to[first + 3 * i + 2] = item
        elif repeat == 4:
            for i in range((last - first) // 4):
                item = of[base + i]
                to[first + 4 * i] = item
                to[first + 4 * i + 1] = item
                to[first + 4 * i + 2] = item
                to[first + 4 * i + 3] = item
        for i in range(last, count):
            to[i] = of[index[i]]

    return picks


picks_1, picks_2, picks_4, picks_8 = map(_picks_of, (bytes_, words2, words4, words8))


def _moves_of(width):
    """A row of items of `width` to twice `width` bytes, anywhere."""

    @inlined
    def moves(p, dst, src):
        index, size, step, src_step = indices(p[G_INDEX]), p[G_WIDTH], p[G_DST_STEP], p[G_SRC_STEP]
        last = size - width
        for i in range(p[G_COUNT]):
            to, of = dst + i * step, src + index[i] * src_step
            copy(to, of, width)
            if last:
                copy(to + last, of + last, width)

    return moves


moves_1, moves_2, moves_4, moves_8, moves_16, moves_32 = map(_moves_of, (1, 2, 4, 8, 16, 32))


@inlined
def moves_any(p, dst, src):
    index, size = indices(p[G_INDEX]), p[G_WIDTH]
    for i in range(p[G_COUNT]):
        copy(dst + i * p[G_DST_STEP], src + index[i] * p[G_SRC_STEP], size)


def gather(p):
    """Rows of items picked by index: nearest neighbour along the last axis, and by tables along the others."""
    width, axis = p[G_WIDTH], p[P_OUTER] - 1
    together = p[G_DST_STEP] == width and p[G_SRC_STEP] == width
    for number in range(lines(p, axis)):
        line_dst, line_src = line(p, axis, number)
        before = -1
        for row in range(p[P_AXES + AXIS * axis + A_EXTENT]):
            dst = line_dst + row * p[P_AXES + AXIS * axis + A_DST]
            src = line_src + source_offset(p, axis, row)
            if src == before and p[G_DST_STEP] == width:
                copy(dst, dst - p[P_AXES + AXIS * axis + A_DST], width * p[G_COUNT])
            elif together and width == 4:
                picks_4(p, dst, src)
            elif together and width == 1:
                picks_1(p, dst, src)
            elif together and width == 2:
                picks_2(p, dst, src)
            elif together and width == 8:
                picks_8(p, dst, src)
            elif width >= 64:
                moves_any(p, dst, src)
            elif width >= 32:
                moves_32(p, dst, src)
            elif width >= 16:
                moves_16(p, dst, src)
            elif width >= 8:
                moves_8(p, dst, src)
            elif width >= 4:
                moves_4(p, dst, src)
            elif width >= 2:
                moves_2(p, dst, src)
            else:
                moves_1(p, dst, src)
            before = src


# ---- blend: elements of each type ------------------------------------------------------------------------------------


@inlined
def read_f32(of, i):
    return of[i]


@inlined
def read_f16(of, i):
    return half_to_float(of[i])


@inlined
def read_int(of, i):
    return types.float32(of[i])


@inlined
def write_f32(to, i, value):
    to[i] = value


@inlined
def write_f16(to, i, value):
    to[i] = float_to_half(value)


@inlined
def write_u8(to, i, value):
    value = value if value > types.float32(0) else types.float32(0)
    value = value if value < types.float32(255) else types.float32(255)
    to[i] = types.uint8(types.int32(value))


@inlined
def write_i8(to, i, value):
    value = value if value > types.float32(-128) else types.float32(-128)
    value = value if value < types.float32(127) else types.float32(127)
    to[i] = types.int8(types.int32(value))


def _rows_of(pointer, item, read, write):
    """What is done with whole rows of one type; sums are rows of float32 next to each other."""

    @inlined
    def load(src, step, count, sums):
        """The row as float32."""
        to = floats(sums)
        if step == item:
            of = pointer(src)
            for i in range(count):
                to[i] = read(of, i)
        else:
            for i in range(count):
                to[i] = read(pointer(src + i * step), 0)

    @inlined
    def load_two(first, second, a, b, anchored, count, sums):
        """The weighted sum of two rows."""
        to, x, y = floats(sums), pointer(first), pointer(second)
        if anchored:
            for i in range(count):
                anchor = read(x, i)
                to[i] = anchor + b * (read(y, i) - anchor)
        else:
            for i in range(count):
                to[i] = a * read(x, i) + b * read(y, i)

    @inlined
    def load_more(src, weight, count, sums):
        """Add a weighted row."""
        to, of = floats(sums), pointer(src)
        for i in range(count):
            to[i] = to[i] + weight * read(of, i)

    @inlined
    def load_more_anchored(src, anchor, weight, count, sums):
        """Add a weighted row's difference to another one."""
        to, of, base = floats(sums), pointer(src), pointer(anchor)
        for i in range(count):
            to[i] = to[i] + weight * (read(of, i) - read(base, i))

    @inlined
    def store(dst, step, count, sums):
        """The sums as a row of this type."""
        of = floats(sums)
        if step == item:
            to = pointer(dst)
            for i in range(count):
                write(to, i, of[i])
        else:
            for i in range(count):
                write(pointer(dst + i * step), 0, of[i])

    @inlined
    def store_two(dst, first, second, a, b, anchored, count):
        """The weighted sum of two rows of float32 as a row of this type."""
        to, x, y = pointer(dst), floats(first), floats(second)
        if anchored:
            for i in range(count):
                write(to, i, x[i] + b * (y[i] - x[i]))
        else:
            for i in range(count):
                write(to, i, a * x[i] + b * y[i])

    return load, load_two, load_more, load_more_anchored, store, store_two


f32_load, f32_load_two, f32_more, f32_more_anchored, f32_store, f32_store_two = _rows_of(floats, 4, read_f32, write_f32)
f16_load, f16_load_two, f16_more, f16_more_anchored, f16_store, f16_store_two = _rows_of(halves, 2, read_f16, write_f16)
u8_load, u8_load_two, u8_more, u8_more_anchored, u8_store, u8_store_two = _rows_of(bytes_, 1, read_int, write_u8)
i8_load, i8_load_two, i8_more, i8_more_anchored, i8_store, i8_store_two = _rows_of(chars, 1, read_int, write_i8)


@inlined
def load(kind, src, step, count, sums):
    if kind == F32:
        f32_load(src, step, count, sums)
    elif kind == F16:
        f16_load(src, step, count, sums)
    elif kind == U8:
        u8_load(src, step, count, sums)
    else:
        i8_load(src, step, count, sums)


@inlined
def load_two(kind, first, second, a, b, anchored, count, sums):
    if kind == F32:
        f32_load_two(first, second, a, b, anchored, count, sums)
    elif kind == F16:
        f16_load_two(first, second, a, b, anchored, count, sums)
    elif kind == U8:
        u8_load_two(first, second, a, b, anchored, count, sums)
    else:
        i8_load_two(first, second, a, b, anchored, count, sums)


@inlined
def load_more(kind, src, anchor, anchored, weight, count, sums):
    if kind == F32:
        if anchored:
            f32_more_anchored(src, anchor, weight, count, sums)
        else:
            f32_more(src, weight, count, sums)
    elif kind == F16:
        if anchored:
            f16_more_anchored(src, anchor, weight, count, sums)
        else:
            f16_more(src, weight, count, sums)
    elif kind == U8:
        if anchored:
            u8_more_anchored(src, anchor, weight, count, sums)
        else:
            u8_more(src, weight, count, sums)
    elif anchored:
        i8_more_anchored(src, anchor, weight, count, sums)
    else:
        i8_more(src, weight, count, sums)


@inlined
def store(kind, dst, step, count, sums):
    if kind == F32:
        f32_store(dst, step, count, sums)
    elif kind == F16:
        f16_store(dst, step, count, sums)
    elif kind == U8:
        u8_store(dst, step, count, sums)
    else:
        i8_store(dst, step, count, sums)


@inlined
def store_two(kind, dst, first, second, a, b, anchored, count):
    if kind == F32:
        f32_store_two(dst, first, second, a, b, anchored, count)
    elif kind == F16:
        f16_store_two(dst, first, second, a, b, anchored, count)
    elif kind == U8:
        u8_store_two(dst, first, second, a, b, anchored, count)
    else:
        i8_store_two(dst, first, second, a, b, anchored, count)


@inlined
def scale(weight, count, sums):
    to = floats(sums)
    for i in range(count):
        to[i] = weight * to[i]


@inlined
def clear(count, sums):
    to = floats(sums)
    for i in range(count):
        to[i] = types.float32(0)


# ---- blend: along a row ----------------------------------------------------------------------------------------------


@inlined
def two_taps(to, of, index, weight, pitch, anchored, start, stop):
    """Two taps at any places. An absent one, of weight 0, must not be seen even if it is infinite.

    Both are absent only in gradients, which are never anchored.
    """
    zero = types.float32(0)
    for i in range(start, stop):
        a, b = weight[i], weight[pitch + i]
        x, y = of[index[i]], of[index[pitch + i]]
        if anchored:
            both = x + b * (y - x)
            to[i] = both if b != zero else x
        else:
            first = a * x if a != zero else zero
            both = first + b * y
            to[i] = both if b != zero else first


@inlined
def any_taps(to, of, index, weight, pitch, taps, anchored, start, stop):
    zero = types.float32(0)
    for i in range(start, stop):
        anchor = of[index[i]]
        total = anchor if anchored else weight[i] * anchor
        for tap in range(1, taps):
            w = weight[tap * pitch + i]
            x = of[index[tap * pitch + i]]
            more = total + w * (x - anchor) if anchored else total + w * x
            total = more if w != zero else total
        to[i] = total if weight[i] != zero else zero


@inlined
def four_taps(to, of, index, weight, pitch, start, stop):
    zero = types.float32(0)
    for i in range(start, stop):
        w = weight[i]
        total = w * of[index[i]] if w != zero else zero
        w = weight[pitch + i]
        total = total + w * of[index[pitch + i]] if w != zero else total
        w = weight[2 * pitch + i]
        total = total + w * of[index[2 * pitch + i]] if w != zero else total
        w = weight[3 * pitch + i]
        to[i] = total + w * of[index[3 * pitch + i]] if w != zero else total


@inlined
def some_columns(p, to, of, start, stop):
    index, weight = indices(p[B_COL_INDEX]), floats(p[B_COL_WEIGHT])
    pitch, taps, anchored = p[B_COL_PITCH], p[B_COL_TAPS], p[B_ANCHORED] != 0
    if taps == 2:
        if anchored:
            two_taps(to, of, index, weight, pitch, True, start, stop)
        else:
            two_taps(to, of, index, weight, pitch, False, start, stop)
    elif taps == 4 and not anchored:
        four_taps(to, of, index, weight, pitch, start, stop)
    elif anchored:
        any_taps(to, of, index, weight, pitch, taps, True, start, stop)
    else:
        any_taps(to, of, index, weight, pitch, taps, False, start, stop)


def columns(p, src, dst):
    """One row of float32 through the columns' taps; `src` is where column B_LOW is."""
    to, of = floats(dst), floats(src - 4 * p[B_LOW])
    index, weight, pitch = indices(p[B_COL_INDEX]), floats(p[B_COL_WEIGHT]), p[B_COL_PITCH]
    anchored, phases, first, last = p[B_ANCHORED] != 0, p[B_PHASES], p[B_FIRST], p[B_LAST]
    if phases == 0:
        some_columns(p, to, of, 0, p[B_COLS])
        return
    some_columns(p, to, of, 0, first)
    base = index[first]
    a, b = weight[first], weight[pitch + first]
    if phases == 2:  # two outputs for each step of one input: scale 2
        c, d = weight[first + 1], weight[pitch + first + 1]
        if anchored:
            for i in range((last - first) // 2):
                x, y = of[base + i], of[base + i + 1]
                to[first + 2 * i] = x + b * (y - x)
                to[first + 2 * i + 1] = x + d * (y - x)
        else:
            for i in range((last - first) // 2):
                x, y = of[base + i], of[base + i + 1]
                to[first + 2 * i] = a * x + b * y
                to[first + 2 * i + 1] = c * x + d * y
    elif anchored:  # one output for each step of two inputs: scale 1/2
        for i in range(last - first):
            x, y = of[base + 2 * i], of[base + 2 * i + 1]
            to[first + i] = x + b * (y - x)
    else:
        for i in range(last - first):
            x, y = of[base + 2 * i], of[base + 2 * i + 1]
            to[first + i] = a * x + b * y
    some_columns(p, to, of, last, p[B_COLS])


columns_of = njit(error_model="numpy", no_cpython_wrapper=True)(columns)


# ---- blend: rows and columns -----------------------------------------------------------------------------------------


@inlined
def present_taps(p, row):
    """How many taps of an output row have a weight; the absent ones come last."""
    weight, taps = floats(p[B_ROW_WEIGHT]), p[B_ROW_TAPS]
    while taps > 0 and weight[(taps - 1) * p[B_ROW_PITCH] + row] == types.float32(0):
        taps -= 1
    return taps


@inlined
def through_columns(p, src, step, kind):
    """A row of the input as float32 (where it is, if it is that already), for columns B_LOW on."""
    if kind == F32 and step == 4:
        return src + 4 * p[B_LOW]
    load(kind, src + step * p[B_LOW], step, p[B_READ], (p[P_SCRATCH] + p[B_LOADED]))
    return p[P_SCRATCH] + p[B_LOADED]


def columns_first(p):
    """Every input row through the columns once, the last few kept; then output rows as sums of those."""
    kind, step, count = p[B_SRC_TYPE], p[B_SRC_STEP], p[B_COLS]
    into, to_step, anchored = p[B_DST_TYPE], p[B_DST_STEP], p[B_ANCHORED] != 0
    index, weight, pitch = indices(p[B_ROW_INDEX]), floats(p[B_ROW_WEIGHT]), p[B_ROW_PITCH]
    keys, ring_rows = longs(p[P_SCRATCH] + p[B_KEYS]), p[B_RING_ROWS]
    ring, ring_pitch, sums = p[P_SCRATCH] + p[B_RING], p[B_RING_PITCH], p[P_SCRATCH] + p[B_SUMS]
    item = 4 if into == F32 else 2 if into == F16 else 1
    together = to_step == item
    for number in range(lines(p, p[P_OUTER])):
        dst, src = line(p, p[P_OUTER], number)
        for slot in range(ring_rows):
            keys[slot] = -1
        for row in range(p[B_ROWS]):
            taps = present_taps(p, row)
            for tap in range(taps):
                at = index[tap * pitch + row]
                slot = at % ring_rows
                if keys[slot] != at:
                    keys[slot] = at
                    loaded = through_columns(p, src + at * p[B_SRC_ROW], step, kind)
                    columns_of(p, loaded, ring + slot * ring_pitch)
            to = dst + row * p[B_DST_ROW]
            first = ring + (index[row] % ring_rows) * ring_pitch
            if taps == 2 and together:
                second = ring + (index[pitch + row] % ring_rows) * ring_pitch
                store_two(into, to, first, second, weight[row], weight[pitch + row], anchored, count)
                continue
            direct = into == F32 and together
            total = to if direct else sums
            if taps == 0:
                clear(count, total)
            elif anchored or taps < 2:
                f32_load(first, 4, count, total)
                if not anchored:
                    scale(weight[row], count, total)
            else:
                second = ring + (index[pitch + row] % ring_rows) * ring_pitch
                f32_load_two(first, second, weight[row], weight[pitch + row], False, count, total)
            for tap in range(1 if anchored else 2, taps):
                more = ring + (index[tap * pitch + row] % ring_rows) * ring_pitch
                if anchored:
                    f32_more_anchored(more, first, weight[tap * pitch + row], count, total)
                else:
                    f32_more(more, weight[tap * pitch + row], count, total)
            if not direct:
                store(into, to, to_step, count, total)


@inlined
def sum_of_rows(p, src, row, total):
    """An output row's sum over the input rows, for columns B_LOW on; the row itself if there is nothing to sum."""
    kind, step, low, count = p[B_SRC_TYPE], p[B_SRC_STEP], p[B_LOW], p[B_READ]
    index, weight, pitch = indices(p[B_ROW_INDEX]), floats(p[B_ROW_WEIGHT]), p[B_ROW_PITCH]
    loaded, cells = p[P_SCRATCH] + p[B_LOADED], p[P_SCRATCH] + p[B_CELLS]
    item = 4 if kind == F32 else 2 if kind == F16 else 1
    first = src + index[row] * p[B_SRC_ROW] + step * low
    if p[B_ROW_WEIGHT] == 0:
        return through_columns(p, src + index[row] * p[B_SRC_ROW], step, kind)
    anchored = p[B_ANCHORED] != 0
    taps = present_taps(p, row)
    if taps == 0:
        clear(count, total)
    elif step != item:
        load(kind, first, step, count, loaded)
        f32_load(loaded, 4, count, total)
        if not anchored:
            scale(weight[row], count, total)
        for tap in range(1, taps):
            load(kind, src + index[tap * pitch + row] * p[B_SRC_ROW] + step * low, step, count, cells)
            w = weight[tap * pitch + row]
            load_more(F32, cells, loaded, anchored, w, count, total)
    elif taps == 1:
        load(kind, first, step, count, total)
        if not anchored:
            scale(weight[row], count, total)
    else:
        second = src + index[pitch + row] * p[B_SRC_ROW] + step * low
        load_two(kind, first, second, weight[row], weight[pitch + row], anchored, count, total)
        for tap in range(2, taps):
            more = src + index[tap * pitch + row] * p[B_SRC_ROW] + step * low
            load_more(kind, more, first, anchored, weight[tap * pitch + row], count, total)
    return total


def rows_first(p):
    """Output rows as sums of input rows, then through the columns, if these have taps."""
    into, to_step, count = p[B_DST_TYPE], p[B_DST_STEP], p[B_COLS]
    sums, cells = p[P_SCRATCH] + p[B_SUMS], p[P_SCRATCH] + p[B_RING]
    direct = into == F32 and to_step == 4
    for number in range(lines(p, p[P_OUTER])):
        dst, src = line(p, p[P_OUTER], number)
        for row in range(p[B_ROWS]):
            to = dst + row * p[B_DST_ROW]
            if p[B_COL_TAPS]:
                loaded = sum_of_rows(p, src, row, cells)
                columns_of(p, loaded, to if direct else sums)
                if not direct:
                    store(into, to, to_step, count, sums)
            else:
                loaded = sum_of_rows(p, src, row, to if direct else cells)
                if not direct or loaded != to:
                    store(into, to, to_step, count, loaded)


FORMS = {"tile": tile, "gather": gather, "columns_first": columns_first, "rows_first": rows_first}

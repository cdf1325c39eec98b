# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# As memory.py: numba types this file.
# ruff: noqa: ARG001  # an intrinsic's parameters stand for what the code that it generates is given
"""Kernels that move elements and never look at them: repeated runs of bytes, transposed blocks, items by index."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .memory import (
    A_EXTENT,
    A_SOURCE,
    A_TABLE,
    A_TARGET,
    AXIS,
    P_AXES,
    P_OUTER,
    bytes_,
    copy,
    indices,
    inlined,
    longs,
    row_addresses,
    row_count,
    source_offset,
    words2,
    words4,
    words8,
)

# runs: a row is a run of bytes, some times.
R_SIZE, R_COPIES = 4, 5

# transpose: rows and columns of items.
X_ITEM, X_ROWS, X_COLUMNS, X_TARGET_ROW, X_TARGET_COLUMN, X_SOURCE_ROW, X_SOURCE_COLUMN = 4, 5, 6, 7, 8, 9, 10

# gather: a row is items picked by index.
G_COUNT, G_WIDTH, G_TARGET_STEP, G_SOURCE_STEP, G_INDEX = 4, 5, 6, 7, 8
G_REPEAT, G_STRIDE, G_FIRST, G_LAST = 9, 10, 11, 12


def _for_sizes(make, widths):
    """A function of a size that runs what is made for the first width that is at most the size; widths fall, to 1."""
    width, *others = widths
    made = make(width)
    if not others:

        @inlined
        def smallest(size, p, target, source):
            made(p, target, source)

        return smallest
    smaller = _for_sizes(make, others)

    @inlined
    def any_size(size, p, target, source):
        if size >= width:
            made(p, target, source)
        else:
            smaller(size, p, target, source)

    return any_size


# ---- runs ------------------------------------------------------------------------------------------------------------

ROWS = 64
LONG_FILL = 512  # bytes of a row from which on a block of copies is copied, not each of them


def _runs_of(width):
    """Runs of `width` to twice `width` bytes, each moved as its first and its last `width` bytes."""

    @inlined
    def runs(p, target, source):
        size, copies = p[R_SIZE], p[R_COPIES]
        axis = p[P_OUTER] - 1
        extent, step = p[P_AXES + AXIS * axis + A_EXTENT], p[P_AXES + AXIS * axis + A_TARGET]
        table, source_step = p[P_AXES + AXIS * axis + A_TABLE], p[P_AXES + AXIS * axis + A_SOURCE]
        last = size - width
        if size * copies < LONG_FILL:
            # A few rows at a time, and of these one copy after the other: so the innermost loop is over rows.
            for chunk in range(0, extent, ROWS):
                stop = min(chunk + ROWS, extent)
                for number in range(copies):
                    start = target + number * size
                    for row in range(chunk, stop):
                        first = source + (longs(table)[row] if table else row * source_step)
                        copy(start + row * step, first, width)
                        if last:
                            copy(start + row * step + last, first + last, width)
            return
        for row in range(extent):
            first = source + (longs(table)[row] if table else row * source_step)
            out = target + row * step
            block = 0
            while block < LONG_FILL // 2:
                copy(out + block, first, width)
                copy(out + block + last, first + last, width)
                block += size
            done, total = block, size * copies
            while done < total:
                part = min(block, total - done)
                copy(out + done, out, part)
                done += part

    return runs


@inlined
def long_runs(p, target, source):
    """Runs of any length."""
    size, axis = p[R_SIZE], p[P_OUTER] - 1
    for row in range(p[P_AXES + AXIS * axis + A_EXTENT]):
        first, out = source + source_offset(p, axis, row), target + row * p[P_AXES + AXIS * axis + A_TARGET]
        for _ in range(p[R_COPIES]):
            copy(out, first, size)
            out += size


short_runs = _for_sizes(_runs_of, (64, 32, 16, 8, 4, 2, 1))


def runs(p):
    """Rows that are a run of bytes of the source, repeated."""
    size = p[R_SIZE]
    for number in range(row_count(p, p[P_OUTER] - 1)):
        target, source = row_addresses(p, p[P_OUTER] - 1, number)
        if size > 128:
            long_runs(p, target, source)
        else:
            short_runs(size, p, target, source)


# ---- transpose -------------------------------------------------------------------------------------------------------

LINE = 64  # bytes of a cache line; blocks take whole lines of the source
PANEL = 64  # columns, which are lines of the source, that stay in the first-level cache while rows are written


def _block_of(item, lanes):
    """A square of items in vector registers, transposed by halves: log2(lanes) rounds of exchanges."""

    @intrinsic
    def block(_typing, target, target_pitch, source, source_pitch):
        def code(_context, builder, _signature, arguments):
            target, target_pitch, source, source_pitch = arguments
            integer = target.type
            vector = ir.VectorType(ir.IntType(8 * item), lanes)

            def at(base, pitch, row):
                address = builder.add(base, builder.mul(pitch, ir.Constant(integer, row)))
                return builder.inttoptr(address, vector.as_pointer())

            rows = [builder.load(at(source, source_pitch, row), align=1) for row in range(lanes)]
            distance = lanes // 2
            while distance:
                mask = ir.VectorType(ir.IntType(32), lanes)
                upper = [j if j & distance == 0 else lanes + j - distance for j in range(lanes)]
                lower = [j + distance if j & distance == 0 else lanes + j for j in range(lanes)]
                for row in range(lanes):
                    if row & distance == 0:
                        a, b = rows[row], rows[row + distance]
                        rows[row] = builder.shuffle_vector(a, b, ir.Constant(mask, upper))
                        rows[row + distance] = builder.shuffle_vector(a, b, ir.Constant(mask, lower))
                distance //= 2
            for row, values in enumerate(rows):
                builder.store(values, at(target, target_pitch, row), align=1)
            return _context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), code

    return block


def _picked_of(item, lanes, step, first):
    """Every `step`-th of `step * lanes` items, from number `first` on: LLVM would load them one by one."""

    @intrinsic
    def picked(_typing, target, source):
        def code(_context, builder, _signature, arguments):
            target, source = arguments
            pointer = ir.VectorType(ir.IntType(8 * item), lanes).as_pointer()
            mask = ir.VectorType(ir.IntType(32), lanes)
            result, have = None, 0
            for number in range(step):
                address = builder.add(source, ir.Constant(source.type, number * lanes * item))
                loaded = builder.load(builder.inttoptr(address, pointer), align=1)
                here = [at for at in range(lanes) if at % step == (first - number * lanes) % step]
                other = loaded if result is None else result
                choice = [*range(have), *[lanes + at for at in here], *range(lanes)][:lanes]
                result = builder.shuffle_vector(other, loaded, ir.Constant(mask, choice))
                have += len(here)
            builder.store(result, builder.inttoptr(target, pointer), align=1)
            return _context.get_dummy_value()

        return types.void(types.int64, types.int64), code

    return picked


def _strided_row_of(item, lanes, step):
    """A row of items of which each lies `step` items after the one before."""
    from_first, to_last = (_picked_of(item, lanes, step, first) for first in (0, step - 1))

    @inlined
    def strided_row(target, source, count):
        """Copy more than `lanes` items, some of them twice; reads no byte before the first or after the last one."""
        for at in range(0, count - lanes, lanes):
            from_first(target + at * item, source + at * step * item)
        at = count - lanes
        to_last(target + at * item, source + (at * step - (step - 1)) * item)

    return strided_row


def _transposed_of(pointer, item, lanes):
    """Rows and columns of items of one machine word."""
    block = _block_of(item, lanes)
    in_line = LINE // item
    row_2, row_3, row_4 = (_strided_row_of(item, lanes, step) for step in (2, 3, 4))

    @inlined
    def scattered(p, target, source, first_row, last_row, first_column, last_column):
        """Copy item by item."""
        for row in range(first_row, last_row):
            out, first = target + row * p[X_TARGET_ROW], source + row * p[X_SOURCE_ROW]
            for column in range(first_column, last_column):
                pointer(out + column * p[X_TARGET_COLUMN])[0] = pointer(first + column * p[X_SOURCE_COLUMN])[0]

    @inlined
    def blocks(p, target, source):
        """Items lie side by side along the rows of the source and along the columns of the target."""
        rows, columns = p[X_ROWS] // lanes * lanes, p[X_COLUMNS] // lanes * lanes
        target_row, source_column = p[X_TARGET_ROW], p[X_SOURCE_COLUMN]
        for panel in range(0, columns, PANEL):
            for line in range(0, rows, in_line):
                for column in range(panel, min(panel + PANEL, columns), lanes):
                    for row in range(line, min(line + in_line, rows), lanes):
                        out, first = target + row * target_row + column * item, source + row * item
                        block(out, target_row, first + column * source_column, source_column)
        scattered(p, target, source, rows, p[X_ROWS], 0, columns)
        scattered(p, target, source, 0, p[X_ROWS], columns, p[X_COLUMNS])

    @inlined
    def strided_rows(p, target, source):
        """Items lie side by side along the rows of the target only."""
        step, columns = p[X_SOURCE_COLUMN], p[X_COLUMNS]
        for row in range(p[X_ROWS]):
            out, first = target + row * p[X_TARGET_ROW], source + row * p[X_SOURCE_ROW]
            if step == 2 * item and columns > lanes:
                row_2(out, first, columns)
            elif step == 3 * item and columns > lanes:
                row_3(out, first, columns)
            elif step == 4 * item and columns > lanes:
                row_4(out, first, columns)
            elif step == -item:
                result, items = pointer(out), pointer(first)
                for column in range(columns):
                    result[column] = items[-column]
            else:
                for column in range(columns):
                    pointer(out)[column] = pointer(first + column * step)[0]

    @inlined
    def interleaved(p, target, source):
        """Two to four rows of the source, which become columns side by side."""
        out, step = pointer(target), p[X_SOURCE_COLUMN]
        a, b, c, d = pointer(source), pointer(source + step), pointer(source + 2 * step), pointer(source + 3 * step)
        if p[X_COLUMNS] == 2:
            for row in range(p[X_ROWS]):
                out[2 * row], out[2 * row + 1] = a[row], b[row]
        elif p[X_COLUMNS] == 3:
            for row in range(p[X_ROWS]):
                out[3 * row], out[3 * row + 1], out[3 * row + 2] = a[row], b[row], c[row]
        else:
            for row in range(p[X_ROWS]):
                out[4 * row], out[4 * row + 1], out[4 * row + 2], out[4 * row + 3] = a[row], b[row], c[row], d[row]

    @inlined
    def transposed(p, target, source):
        rows, columns = p[X_ROWS], p[X_COLUMNS]
        if p[X_TARGET_COLUMN] != item:
            scattered(p, target, source, 0, rows, 0, columns)
        elif p[X_SOURCE_ROW] != item or rows < lanes:
            strided_rows(p, target, source)
        elif columns <= 4 and columns > 1 and p[X_TARGET_ROW] == columns * item:
            interleaved(p, target, source)
        else:
            blocks(p, target, source)

    return transposed


transposed_1, transposed_2 = _transposed_of(bytes_, 1, 16), _transposed_of(words2, 2, 8)
transposed_4, transposed_8 = _transposed_of(words4, 4, 8), _transposed_of(words8, 8, 4)


def transpose(p):
    """Items of one machine word whose order differs, or that lie apart."""
    item = p[X_ITEM]
    for number in range(row_count(p, p[P_OUTER])):
        target, source = row_addresses(p, p[P_OUTER], number)
        if item == 4:
            transposed_4(p, target, source)
        elif item == 2:
            transposed_2(p, target, source)
        elif item == 1:
            transposed_1(p, target, source)
        else:
            transposed_8(p, target, source)


# ---- gather ----------------------------------------------------------------------------------------------------------


def _picks_of(pointer):
    """A row of items of one machine word, next to each other on both sides."""

    @inlined
    def picks(p, target, source):
        result, values, index = pointer(target), pointer(source), indices(p[G_INDEX])
        count, repeat, stride = p[G_COUNT], p[G_REPEAT], p[G_STRIDE]
        first, last = p[G_FIRST], p[G_LAST]
        for i in range(first):
            result[i] = values[index[i]]
        base = index[first] if first < count else 0
        if stride == 1:
            for i in range(last - first):
                result[first + i] = values[base + i]
        elif stride == 2:
            for i in range(last - first):
                result[first + i] = values[base + 2 * i]
        elif repeat == 2:
            for i in range((last - first) // 2):
                item = values[base + i]
                result[first + 2 * i] = item
                result[first + 2 * i + 1] = item
        elif repeat == 3:
            for i in range((last - first) // 3):
                item = values[base + i]
                result[first + 3 * i] = item
                result[first + 3 * i + 1] = item
                result[first + 3 * i + 2] = item
        elif repeat == 4:
            for i in range((last - first) // 4):
                item = values[base + i]
                result[first + 4 * i] = item
                result[first + 4 * i + 1] = item
                result[first + 4 * i + 2] = item
                result[first + 4 * i + 3] = item
        for i in range(last, count):
            result[i] = values[index[i]]

    return picks


picks_1, picks_2, picks_4, picks_8 = map(_picks_of, (bytes_, words2, words4, words8))


def _moves_of(width):
    """A row of items of `width` to twice `width` bytes, anywhere."""

    @inlined
    def moves(p, target, source):
        index, size, step, source_step = indices(p[G_INDEX]), p[G_WIDTH], p[G_TARGET_STEP], p[G_SOURCE_STEP]
        last = size - width
        for i in range(p[G_COUNT]):
            result, values = target + i * step, source + index[i] * source_step
            copy(result, values, width)
            if last:
                copy(result + last, values + last, width)

    return moves


short_moves = _for_sizes(_moves_of, (32, 16, 8, 4, 2, 1))


@inlined
def moves_any(p, target, source):
    index, size = indices(p[G_INDEX]), p[G_WIDTH]
    for i in range(p[G_COUNT]):
        copy(target + i * p[G_TARGET_STEP], source + index[i] * p[G_SOURCE_STEP], size)


def gather(p):
    """Rows of items picked by index: nearest neighbour along the last axis, and by tables along the others."""
    width, axis = p[G_WIDTH], p[P_OUTER] - 1
    together = p[G_TARGET_STEP] == width and p[G_SOURCE_STEP] == width
    for number in range(row_count(p, axis)):
        line_target, line_source = row_addresses(p, axis, number)
        before = -1
        for row in range(p[P_AXES + AXIS * axis + A_EXTENT]):
            target = line_target + row * p[P_AXES + AXIS * axis + A_TARGET]
            source = line_source + source_offset(p, axis, row)
            if source == before and p[G_TARGET_STEP] == width:
                copy(target, target - p[P_AXES + AXIS * axis + A_TARGET], width * p[G_COUNT])
            elif together and width == 4:
                picks_4(p, target, source)
            elif together and width == 1:
                picks_1(p, target, source)
            elif together and width == 2:
                picks_2(p, target, source)
            elif together and width == 8:
                picks_8(p, target, source)
            elif width >= 64:
                moves_any(p, target, source)
            else:
                short_moves(width, p, target, source)
            before = source

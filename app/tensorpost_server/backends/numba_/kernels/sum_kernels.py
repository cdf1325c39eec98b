# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# As memory.py: numba types this file.
# ruff: noqa: ARG001  # an intrinsic's parameters stand for what the code that it generates is given
"""Kernels of weighted sums along rows and columns: linear, cubic, antialiased, gradients.

An element's arithmetic depends on its own taps alone. Multiplications and additions are never contracted or reordered
(no fastmath), so every element has the same bits in every slice and on every CPU.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .memory import P_OUTER, P_SCRATCH, floats, indices, inlined, longs, row_addresses, row_count
from .row_types import (
    F16,
    F32,
    f32_load,
    f32_load_two,
    f32_more,
    f32_more_anchored,
    load,
    load_four,
    load_more,
    load_two,
    store,
    store_two,
)

NEAR, WIDE_NEAR, LANES = 3, 3, 8  # as in tap_tables.py
X86 = platform.machine().lower() in ("x86_64", "amd64")

# Parameters: rows and columns of weighted taps.
B_SOURCE_KIND, B_TARGET_KIND, B_SOURCE_STEP, B_TARGET_STEP, B_ANCHORED = 4, 5, 6, 7, 8
B_ROWS, B_ROW_TAPS, B_ROW_PITCH, B_ROW_INDEX, B_ROW_WEIGHT, B_SOURCE_ROW, B_TARGET_ROW = 9, 10, 11, 12, 13, 14, 15
B_COLS, B_COL_TAPS, B_COL_PITCH, B_COL_INDEX, B_COL_WEIGHT, B_LOW, B_READ = 16, 17, 18, 19, 20, 21, 22
B_PHASES, B_FIRST, B_LAST = 23, 24, 25
B_RING, B_RING_ROWS, B_RING_PITCH, B_LOADED, B_SUMS, B_CELLS, B_KEYS = 26, 27, 28, 29, 30, 31, 32


@inlined
def scale(weight, count, sums):
    result = floats(sums)
    for i in range(count):
        result[i] = weight * result[i]


@inlined
def clear(count, sums):
    result = floats(sums)
    for i in range(count):
        result[i] = types.float32(0)


# ---- blend: along a row ----------------------------------------------------------------------------------------------


@inlined
def two_taps(result, values, index, weight, pitch, anchored, start, stop):
    """Two taps at any places. An absent one, of weight 0, must not be seen even if it is infinite.

    Both are absent only in gradients, which are never anchored.
    """
    zero = types.float32(0)
    for i in range(start, stop):
        a, b = weight[i], weight[pitch + i]
        x, y = values[index[i]], values[index[pitch + i]]
        if anchored:
            both = x + b * (y - x)
            result[i] = both if b != zero else x
        else:
            first = a * x if a != zero else zero
            both = first + b * y
            result[i] = both if b != zero else first


def _near_of(anchored, registers):
    """Two neighbouring taps for each of eight outputs: within eight or sixteen inputs, and as many a pixel further.

    A few loads and permutations of registers take the place of sixteen loads. The arithmetic is that of `two_taps`
    where the first tap has a weight.
    """

    @intrinsic
    def blended(_typing, target, values, channels, index, first, second):
        def code(_context, builder, _signature, arguments):
            number, real = ir.IntType(32), ir.FloatType()
            numbers, reals = ir.VectorType(number, LANES), ir.VectorType(real, LANES)

            def load(address, kind):
                return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)

            def every(value):
                one = builder.insert_element(ir.Constant(numbers, ir.Undefined), value, ir.Constant(number, 0))
                return builder.shuffle_vector(one, one, ir.Constant(numbers, [0] * LANES))

            def permuted(row, places):
                """Elements of a register by number, modulo eight."""
                if X86:
                    kind = ir.FunctionType(reals, [reals, numbers])
                    function = builder.module.declare_intrinsic("llvm.x86.avx2.permps", fnty=kind)
                    return builder.call(function, [row, places])
                places, made = builder.and_(places, every(number(LANES - 1))), ir.Constant(reals, ir.Undefined)
                for lane in map(number, range(LANES)):
                    value = builder.extract_element(row, builder.extract_element(places, lane))
                    made = builder.insert_element(made, value, lane)
                return made

            def bytes_of(count):
                return builder.mul(count, ir.Constant(count.type, 4))

            target, values, channels, index, first, second = arguments
            places = load(index, numbers)
            base = builder.sext(builder.extract_element(places, number(0)), values.type)
            base = builder.sub(base, builder.sub(channels, ir.Constant(values.type, 1)))
            places = builder.sub(places, every(builder.trunc(base, number)))
            far = builder.icmp_signed(">=", places, every(number(LANES)))

            def picked(begin):
                found = permuted(load(begin, reals), places)
                if registers == 1:
                    return found
                more = load(builder.add(begin, ir.Constant(begin.type, 4 * LANES)), reals)
                return builder.select(far, permuted(more, places), found)

            begin = builder.add(values, bytes_of(base))
            x, y = picked(begin), picked(builder.add(begin, bytes_of(channels)))
            a, b = load(first, reals), load(second, reals)
            alone = x if anchored else builder.fmul(a, x)
            more = builder.fmul(b, builder.fsub(y, x) if anchored else y)
            present = builder.fcmp_unordered("!=", b, ir.Constant(reals, [0.0] * LANES))
            both = builder.select(present, builder.fadd(alone, more), alone)
            builder.store(both, builder.inttoptr(target, reals.as_pointer()), align=4)
            return _context.get_dummy_value()

        return types.void(*[types.int64] * 6), code

    return blended


near, near_anchored, wide, wide_anchored = (
    _near_of(anchored, registers) for registers in (1, 2) for anchored in (False, True)
)


@inlined
def any_taps(result, values, index, weight, pitch, taps, anchored, start, stop):
    zero = types.float32(0)
    for i in range(start, stop):
        present = taps  # the absent ones come last
        while present > 0 and weight[(present - 1) * pitch + i] == zero:
            present -= 1
        anchor = values[index[i]]
        total = anchor if anchored else weight[i] * anchor
        at = i
        for _ in range(1, present):
            at += pitch
            x = values[index[at]]
            total = total + weight[at] * (x - anchor) if anchored else total + weight[at] * x
        result[i] = total if present > 0 else zero


@inlined
def four_taps(result, values, index, weight, pitch, start, stop):
    zero = types.float32(0)
    for i in range(start, stop):
        w = weight[i]
        total = w * values[index[i]] if w != zero else zero
        w = weight[pitch + i]
        total = total + w * values[index[pitch + i]] if w != zero else total
        w = weight[2 * pitch + i]
        total = total + w * values[index[2 * pitch + i]] if w != zero else total
        w = weight[3 * pitch + i]
        result[i] = total + w * values[index[3 * pitch + i]] if w != zero else total


@inlined
def some_columns(p, result, values, start, stop):
    index, weight = indices(p[B_COL_INDEX]), floats(p[B_COL_WEIGHT])
    pitch, taps, anchored = p[B_COL_PITCH], p[B_COL_TAPS], p[B_ANCHORED] != 0
    if taps == 2:
        if anchored:
            two_taps(result, values, index, weight, pitch, True, start, stop)
        else:
            two_taps(result, values, index, weight, pitch, False, start, stop)
    elif taps == 4 and not anchored:
        four_taps(result, values, index, weight, pitch, start, stop)
    elif anchored:
        any_taps(result, values, index, weight, pitch, taps, True, start, stop)
    else:
        any_taps(result, values, index, weight, pitch, taps, False, start, stop)


def columns(p, source, target):
    """One row of float32 through the columns' taps; `source` is the address of column B_LOW."""
    result, values = floats(target), floats(source - 4 * p[B_LOW])
    index, weight, pitch = indices(p[B_COL_INDEX]), floats(p[B_COL_WEIGHT]), p[B_COL_PITCH]
    anchored, phases, first, last = p[B_ANCHORED] != 0, p[B_PHASES], p[B_FIRST], p[B_LAST]
    if phases == 0:
        some_columns(p, result, values, 0, p[B_COLS])
        return
    some_columns(p, result, values, 0, first)
    if phases >= NEAR:
        for at in range(4 * first, 4 * last, 4 * LANES):
            taps = p[B_COL_INDEX] + at, p[B_COL_WEIGHT] + at, p[B_COL_WEIGHT] + 4 * pitch + at
            if phases == NEAR:
                if anchored:
                    near_anchored(target + at, source - 4 * p[B_LOW], 1, *taps)
                else:
                    near(target + at, source - 4 * p[B_LOW], 1, *taps)
            elif anchored:
                wide_anchored(target + at, source - 4 * p[B_LOW], phases - WIDE_NEAR, *taps)
            else:
                wide(target + at, source - 4 * p[B_LOW], phases - WIDE_NEAR, *taps)
        some_columns(p, result, values, last, p[B_COLS])
        return
    base = index[first]
    a, b = weight[first], weight[pitch + first]
    if phases == 2:  # two outputs for each step of one input: scale 2
        c, d = weight[first + 1], weight[pitch + first + 1]
        if anchored:
            for i in range((last - first) // 2):
                x, y = values[base + i], values[base + i + 1]
                result[first + 2 * i] = x + b * (y - x)
                result[first + 2 * i + 1] = x + d * (y - x)
        else:
            for i in range((last - first) // 2):
                x, y = values[base + i], values[base + i + 1]
                result[first + 2 * i] = a * x + b * y
                result[first + 2 * i + 1] = c * x + d * y
    elif anchored:  # one output for each step of two inputs: scale 1/2
        for i in range(last - first):
            x, y = values[base + 2 * i], values[base + 2 * i + 1]
            result[first + i] = x + b * (y - x)
    else:
        for i in range(last - first):
            x, y = values[base + 2 * i], values[base + 2 * i + 1]
            result[first + i] = a * x + b * y
    some_columns(p, result, values, last, p[B_COLS])


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
def through_columns(p, source, step, kind):
    """A row of the input as float32 (where it is, if it is that already), for columns B_LOW on."""
    if kind == F32 and step == 4:
        return source + 4 * p[B_LOW]
    load(kind, source + step * p[B_LOW], step, p[B_READ], (p[P_SCRATCH] + p[B_LOADED]))
    return p[P_SCRATCH] + p[B_LOADED]


def columns_first(p):
    """Every input row through the columns once, the last few kept; then output rows as sums of those."""
    kind, step, count = p[B_SOURCE_KIND], p[B_SOURCE_STEP], p[B_COLS]
    target_kind, target_step, anchored = p[B_TARGET_KIND], p[B_TARGET_STEP], p[B_ANCHORED] != 0
    index, weight, pitch = indices(p[B_ROW_INDEX]), floats(p[B_ROW_WEIGHT]), p[B_ROW_PITCH]
    keys, ring_rows = longs(p[P_SCRATCH] + p[B_KEYS]), p[B_RING_ROWS]
    ring, ring_pitch, sums = p[P_SCRATCH] + p[B_RING], p[B_RING_PITCH], p[P_SCRATCH] + p[B_SUMS]
    item = 4 if target_kind == F32 else 2 if target_kind == F16 else 1
    together = target_step == item
    for number in range(row_count(p, p[P_OUTER])):
        target, source = row_addresses(p, p[P_OUTER], number)
        for slot in range(ring_rows):
            keys[slot] = -1
        for row in range(p[B_ROWS]):
            taps = present_taps(p, row)
            for tap in range(taps):
                at = index[tap * pitch + row]
                slot = at % ring_rows
                if keys[slot] != at:
                    keys[slot] = at
                    loaded = through_columns(p, source + at * p[B_SOURCE_ROW], step, kind)
                    columns_of(p, loaded, ring + slot * ring_pitch)
            result = target + row * p[B_TARGET_ROW]
            first = ring + (index[row] % ring_rows) * ring_pitch
            if taps == 2 and together:
                second = ring + (index[pitch + row] % ring_rows) * ring_pitch
                store_two(target_kind, result, first, second, weight[row], weight[pitch + row], anchored, count)
                continue
            direct = target_kind == F32 and together
            total = result if direct else sums
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
                store(target_kind, result, target_step, count, total)


@inlined
def sum_of_rows(p, source, row, total):
    """An output row's sum over the input rows, for columns B_LOW on; the row itself if there is nothing to sum."""
    kind, step, low, count = p[B_SOURCE_KIND], p[B_SOURCE_STEP], p[B_LOW], p[B_READ]
    index, weight, pitch = indices(p[B_ROW_INDEX]), floats(p[B_ROW_WEIGHT]), p[B_ROW_PITCH]
    loaded, cells = p[P_SCRATCH] + p[B_LOADED], p[P_SCRATCH] + p[B_CELLS]
    item = 4 if kind == F32 else 2 if kind == F16 else 1
    first = source + index[row] * p[B_SOURCE_ROW] + step * low
    if p[B_ROW_WEIGHT] == 0:
        return through_columns(p, source + index[row] * p[B_SOURCE_ROW], step, kind)
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
            load(kind, source + index[tap * pitch + row] * p[B_SOURCE_ROW] + step * low, step, count, cells)
            w = weight[tap * pitch + row]
            load_more(F32, cells, loaded, anchored, w, count, total)
    elif taps == 1:
        load(kind, first, step, count, total)
        if not anchored:
            scale(weight[row], count, total)
    else:
        second = source + index[pitch + row] * p[B_SOURCE_ROW] + step * low
        load_two(kind, first, second, weight[row], weight[pitch + row], anchored, count, total)
        done = 2
        if not anchored:
            base = source + step * low
            while done + 4 <= taps:
                at = done * pitch + row
                load_four(
                    kind,
                    base + index[at] * p[B_SOURCE_ROW],
                    base + index[at + pitch] * p[B_SOURCE_ROW],
                    base + index[at + 2 * pitch] * p[B_SOURCE_ROW],
                    base + index[at + 3 * pitch] * p[B_SOURCE_ROW],
                    floats(p[B_ROW_WEIGHT] + 4 * at),
                    pitch,
                    count,
                    total,
                )
                done += 4
        for tap in range(done, taps):
            more = source + index[tap * pitch + row] * p[B_SOURCE_ROW] + step * low
            load_more(kind, more, first, anchored, weight[tap * pitch + row], count, total)
    return total


def rows_first(p):
    """Output rows as sums of input rows, then through the columns, if these have taps."""
    target_kind, target_step, count = p[B_TARGET_KIND], p[B_TARGET_STEP], p[B_COLS]
    sums, cells = p[P_SCRATCH] + p[B_SUMS], p[P_SCRATCH] + p[B_RING]
    direct = target_kind == F32 and target_step == 4
    for number in range(row_count(p, p[P_OUTER])):
        target, source = row_addresses(p, p[P_OUTER], number)
        for row in range(p[B_ROWS]):
            result = target + row * p[B_TARGET_ROW]
            if p[B_COL_TAPS]:
                loaded = sum_of_rows(p, source, row, cells)
                columns_of(p, loaded, result if direct else sums)
                if not direct:
                    store(target_kind, result, target_step, count, sums)
            else:
                loaded = sum_of_rows(p, source, row, result if direct else cells)
                if not direct or loaded != result:
                    store(target_kind, result, target_step, count, loaded)

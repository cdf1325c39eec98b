# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# As memory.py: numba types this file.
"""Rows of elements of each type that is computed with: widened to float32, and rounded or cut back."""

from __future__ import annotations

from numba import types

from .memory import bytes_, chars, float_to_half, floats, half_to_float, inlined, words2

F32, F16, U8, I8 = 0, 1, 2, 3  # kinds of elements


@inlined
def read_f32(values, i):
    return values[i]


@inlined
def read_f16(values, i):
    return half_to_float(values[i])


@inlined
def read_int(values, i):
    return types.float32(values[i])


@inlined
def write_f32(result, i, value):
    result[i] = value


@inlined
def write_f16(result, i, value):
    result[i] = float_to_half(value)


@inlined
def write_u8(result, i, value):
    value = value if value > types.float32(0) else types.float32(0)
    value = value if value < types.float32(255) else types.float32(255)
    result[i] = types.uint8(types.int32(value))


@inlined
def write_i8(result, i, value):
    value = value if value > types.float32(-128) else types.float32(-128)
    value = value if value < types.float32(127) else types.float32(127)
    result[i] = types.int8(types.int32(value))


def _rows_of(pointer, item, read, write):
    """What is done with whole rows of one type; sums are rows of float32 next to each other."""

    @inlined
    def load(source, step, count, sums):
        """The row as float32."""
        result = floats(sums)
        if step == item:
            values = pointer(source)
            for i in range(count):
                result[i] = read(values, i)
        else:
            for i in range(count):
                result[i] = read(pointer(source + i * step), 0)

    @inlined
    def load_two(first, second, a, b, anchored, count, sums):
        """The weighted sum of two rows."""
        result, x, y = floats(sums), pointer(first), pointer(second)
        if anchored:
            for i in range(count):
                anchor = read(x, i)
                result[i] = anchor + b * (read(y, i) - anchor)
        else:
            for i in range(count):
                result[i] = a * read(x, i) + b * read(y, i)

    @inlined
    def load_more(source, weight, count, sums):
        """Add a weighted row."""
        result, values = floats(sums), pointer(source)
        for i in range(count):
            result[i] = result[i] + weight * read(values, i)

    @inlined
    def load_four(a, b, c, d, weights, pitch, count, sums):
        """Add four weighted rows, one after the other."""
        result, x, y, z, u = floats(sums), pointer(a), pointer(b), pointer(c), pointer(d)
        v, w, s, t = weights[0], weights[pitch], weights[2 * pitch], weights[3 * pitch]
        for i in range(count):
            result[i] = (((result[i] + v * read(x, i)) + w * read(y, i)) + s * read(z, i)) + t * read(u, i)

    @inlined
    def load_more_anchored(source, anchor, weight, count, sums):
        """Add a weighted row's difference to another one."""
        result, values, base = floats(sums), pointer(source), pointer(anchor)
        for i in range(count):
            result[i] = result[i] + weight * (read(values, i) - read(base, i))

    @inlined
    def store(target, step, count, sums):
        """The sums as a row of this type."""
        values = floats(sums)
        if step == item:
            result = pointer(target)
            for i in range(count):
                write(result, i, values[i])
        else:
            for i in range(count):
                write(pointer(target + i * step), 0, values[i])

    @inlined
    def store_two(target, first, second, a, b, anchored, count):
        """The weighted sum of two rows of float32 as a row of this type."""
        result, x, y = pointer(target), floats(first), floats(second)
        if anchored:
            for i in range(count):
                write(result, i, x[i] + b * (y[i] - x[i]))
        else:
            for i in range(count):
                write(result, i, a * x[i] + b * y[i])

    return load, load_two, load_more, load_more_anchored, store, store_two, load_four


def _for_each_kind(number):
    """A function of the kind and the arguments of row function `number`."""
    f32, f16, u8, i8 = (functions[number] for functions in _KINDS)

    @inlined
    def of_kind(kind, *arguments):
        if kind == F32:
            f32(*arguments)
        elif kind == F16:
            f16(*arguments)
        elif kind == U8:
            u8(*arguments)
        else:
            i8(*arguments)

    return of_kind


_KINDS = (
    _rows_of(floats, 4, read_f32, write_f32),
    _rows_of(words2, 2, read_f16, write_f16),
    _rows_of(bytes_, 1, read_int, write_u8),
    _rows_of(chars, 1, read_int, write_i8),
)
f32_load, f32_load_two, f32_more, f32_more_anchored, f32_store, _, _ = _KINDS[0]
load, load_two, more, more_anchored, store, store_two, load_four = map(_for_each_kind, range(7))


@inlined
def load_more(kind, source, anchor, anchored, weight, count, sums):
    """Add a weighted row, or its difference to another one."""
    if anchored:
        more_anchored(kind, source, anchor, weight, count, sums)
    else:
        more(kind, source, weight, count, sums)

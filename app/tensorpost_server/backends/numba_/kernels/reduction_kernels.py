# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# As memory.py: numba types this file.
# ruff: noqa: ARG001  # parameters of intrinsics stand for what their code is given; both kinds have the same
"""Kernels of reductions: sums and largest elements of lines, which may run along several axes.

Lines of neighbouring elements are read a vector at a time. Of other lines those that lie side by side are reduced
together, row after row, with an accumulator for each. Either way eight vectors are combined, then accumulated.
The order depends on the line alone, so an output has the same bits in every slice.

Sums of floats add eight elements in float32 and those sums in float64, so that they are no less exact than pairwise
ones. The largest element is NaN if any element is, and 0 rather than -0. The smallest is the largest of elements with
flipped bits: all of an unsigned integer's, the sign of a float.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .memory import A_EXTENT, A_SOURCE, AXIS, P_AXES, P_OUTER, P_SCRATCH, inlined, row_addresses, row_count

# Parameters. The last D_PLANE_AXES of the axes are the lines' own, the others lead from lines to lines.
D_COLUMNS, D_TARGET_STEP = 4, 5  # outputs side by side
D_ROWS, D_ROW_STEP, D_PLANE_AXES = 6, 7, 8
D_FLIPPED, D_DIVISOR = 9, 10  # bits of an element; what a sum is divided by

TOGETHER = 8  # rows that are combined in registers
LINE = 64  # bytes of a cache line
VECTOR = 64  # bytes that are read at once
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def _vector(kind, lanes):
    return kind if lanes == 1 else ir.VectorType(kind, lanes)


def _constant(kind, lanes, value):
    return kind(value) if lanes == 1 else ir.Constant(ir.VectorType(kind, lanes), [value] * lanes)


def _splat(builder, value, lanes):
    if lanes == 1:
        return value
    vector = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes))


def _load(builder, address, kind, lanes):
    return builder.load(builder.inttoptr(address, _vector(kind, lanes).as_pointer()), align=1)


def _store(builder, value, address):
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _across(builder, name, vector, *first):
    """LLVM's own way to combine the elements of a vector."""
    kind = vector.type.element
    text = f"llvm.vector.reduce.{name}.v{vector.type.count}{'f64' if kind is F64 else kind}"
    signature = ir.FunctionType(kind, [*[value.type for value in first], vector.type])
    function = builder.module.declare_intrinsic(text, fnty=signature)
    return builder.call(function, [*first, vector], fastmath=("reassoc",) if first else ())


class _Sum:
    """Sums of floats, which are added in float32 and float64, or of integers, which wrap."""

    def __init__(self, kind, item):
        self.kind, self.item, self.bits = kind, item, ir.IntType(8 * item)
        self.is_float = not isinstance(kind, ir.IntType)
        self.accumulator, self.accumulator_item = (F64, 8) if self.is_float else (kind, item)
        self.first = -0.0 if self.is_float else 0

    def read(self, builder, bits, flipped, lanes):
        """What is combined for elements of these bits."""
        value = builder.bitcast(bits, _vector(self.kind, lanes))
        return builder.fpext(value, _vector(F32, lanes)) if self.kind is F16 else value

    def combine(self, builder, x, y):
        """Two of them."""
        return (builder.fadd if self.is_float else builder.add)(x, y)

    def accumulate(self, builder, value, lanes):
        """The same as accumulators."""
        return builder.fpext(value, _vector(F64, lanes)) if self.is_float else value

    def across(self, builder, vector):
        """All accumulators of a vector as one; floats in pairs."""
        if self.is_float:
            return _across(builder, "fadd", vector, F64(-0.0))
        return _across(builder, "add", vector)

    def result(self, builder, value, flipped, divisor, lanes):
        """The bits of outputs."""
        if self.is_float:
            divisor = _splat(builder, builder.sitofp(divisor, F32), lanes)
            value = builder.fdiv(builder.fptrunc(value, _vector(F32, lanes)), divisor)
            value = builder.fptrunc(value, _vector(F16, lanes)) if self.kind is F16 else value
        return builder.bitcast(value, _vector(self.bits, lanes))


class _Largest:
    """The largest of unsigned integers, some bits of each element being flipped.

    Floats are taken as integers of the same order, from -infinity on, with every NaN above infinity.
    """

    def __init__(self, item, infinity=0):
        self.item, self.bits = item, ir.IntType(8 * item)
        self.accumulator, self.accumulator_item, self.first = self.bits, item, 0
        self.sign = 1 << 8 * item - 1
        self.nans = self.sign - 1 - infinity if infinity else 0  # of either sign

    def read(self, builder, bits, flipped, lanes):
        """What is combined for elements of these bits."""
        bits = builder.xor(bits, flipped)
        if not self.nans:
            return bits
        sign, nans, shift = self._constants(lanes)
        negative = builder.ashr(bits, shift)
        return builder.sub(builder.xor(bits, builder.or_(negative, sign)), nans)

    def _constants(self, lanes):
        return (_constant(self.bits, lanes, n) for n in (self.sign, self.nans, 8 * self.item - 1))

    def combine(self, builder, x, y):
        """Two of them."""
        return builder.select(builder.icmp_unsigned(">", x, y), x, y)

    def accumulate(self, builder, value, lanes):
        """The same as accumulators."""
        return value

    def across(self, builder, vector):
        """All accumulators of a vector as one."""
        return _across(builder, "umax", vector)

    def result(self, builder, value, flipped, divisor, lanes):
        """The bits of outputs."""
        if self.nans:
            sign, nans, shift = self._constants(lanes)
            value = builder.add(value, nans)
            positive = builder.ashr(value, shift)
            value = builder.xor(value, builder.or_(builder.not_(positive), sign))
        return builder.xor(value, flipped)


def _kernel_of(kind):
    """The kernel of a `_Sum` or `_Largest`."""
    item, accumulator, accumulator_item = kind.item, kind.accumulator, kind.accumulator_item
    lanes = VECTOR // item

    def combined(builder, values):
        """Code that combines values in pairs."""
        while len(values) > 1:
            odd = values[len(values) // 2 * 2 :]
            values = [kind.combine(builder, *values[at : at + 2]) for at in range(0, len(values) - 1, 2)] + odd
        return values[0]

    def with_rows(builder, held, source, pitch, flipped, many, lanes):
        """Code that combines accumulators with `many` rows of `lanes` elements."""
        mask = _splat(builder, builder.trunc(flipped, kind.bits), lanes)
        values = []
        for row in range(many):
            at = builder.add(source, builder.mul(pitch, pitch.type(row)))
            values.append(kind.read(builder, _load(builder, at, kind.bits, lanes), mask, lanes))
        return kind.combine(builder, held, kind.accumulate(builder, combined(builder, values), lanes))

    def rows_of(many, lanes):
        @intrinsic
        def add(_typing, accumulators, source, pitch, flipped):
            """Some rows of `lanes` elements into as many accumulators."""

            def code(_context, builder, _signature, arguments):
                held = _load(builder, arguments[0], accumulator, lanes)
                _store(builder, with_rows(builder, held, *arguments[1:], many, lanes), arguments[0])
                return _context.get_dummy_value()

            return types.void(*[types.int64] * 4), code

        return add

    @intrinsic
    def run(_typing, target, source, count, flipped):
        """Neighbouring elements into one accumulator."""

        def code(_context, builder, _signature, arguments):
            target, source, count, flipped = arguments
            number = count.type

            def part(source, count, held, many, lanes):
                """Steps of `many` vectors: the address and count of the elements left, and the accumulators."""
                step, place = many * lanes, cgutils.alloca_once_value(builder, held)
                with cgutils.for_range(builder, builder.udiv(count, number(step))) as loop:
                    at = builder.add(source, builder.mul(loop.index, number(step * item)))
                    pitch = number(lanes * item)
                    builder.store(with_rows(builder, builder.load(place), at, pitch, flipped, many, lanes), place)
                rest = builder.urem(count, number(step))
                read = builder.mul(builder.sub(count, rest), number(item))
                return builder.add(source, read), rest, builder.load(place)

            held = _constant(accumulator, lanes, kind.first)
            source, count, held = part(source, count, held, TOGETHER, lanes)
            source, count, held = part(source, count, held, 1, lanes)
            held = kind.across(builder, held)
            source, count, held = part(source, count, held, 1, 1)
            _store(builder, kind.combine(builder, _load(builder, target, accumulator, 1), held), target)
            return _context.get_dummy_value()

        return types.void(*[types.int64] * 4), code

    def clear_of(lanes):
        @intrinsic
        def clear(_typing, target):
            def code(_context, builder, _signature, arguments):
                _store(builder, _constant(accumulator, lanes, kind.first), arguments[0])
                return _context.get_dummy_value()

            return types.void(types.int64), code

        return clear

    def store_of(lanes):
        @intrinsic
        def store(_typing, target, source, flipped, divisor):
            """Accumulators as neighbouring elements of the output."""

            def code(_context, builder, _signature, arguments):
                target, source, flipped, divisor = arguments
                value, mask = _load(builder, source, accumulator, lanes), builder.trunc(flipped, kind.bits)
                _store(builder, kind.result(builder, value, _splat(builder, mask, lanes), divisor, lanes), target)
                return _context.get_dummy_value()

            return types.void(*[types.int64] * 4), code

        return store

    eight, eight_1, one, one_1 = (rows_of(many, each) for many in (TOGETHER, 1) for each in (lanes, 1))
    clear, clear_1, store, store_1 = (make(each) for make in (clear_of, store_of) for each in (lanes, 1))

    @inlined
    def add_rows(accumulators, source, pitch, rows, count, flipped):
        """Rows of `count` neighbours into as many accumulators."""
        vectors = count // lanes * lanes
        row = 0
        while row < rows:
            at, together = source + row * pitch, row + TOGETHER <= rows
            if together:
                for i in range(0, vectors, lanes):
                    eight(accumulators + i * accumulator_item, at + i * item, pitch, flipped)
                for i in range(vectors, count):
                    eight_1(accumulators + i * accumulator_item, at + i * item, pitch, flipped)
            else:
                for i in range(0, vectors, lanes):
                    one(accumulators + i * accumulator_item, at + i * item, pitch, flipped)
                for i in range(vectors, count):
                    one_1(accumulators + i * accumulator_item, at + i * item, pitch, flipped)
            row += TOGETHER if together else 1

    @inlined
    def add_lines(p, source, accumulators):
        """All elements of lines side by side."""
        columns, rows, step, flipped = p[D_COLUMNS], p[D_ROWS], p[D_ROW_STEP], p[D_FLIPPED]
        inside, end = p[D_PLANE_AXES], P_AXES + AXIS * p[P_OUTER]
        planes = 1
        for axis in range(end - AXIS * inside, end, AXIS):
            planes *= p[axis + A_EXTENT]
        for plane in range(planes):
            at, rest = source, plane
            for axis in range(end - AXIS, end - AXIS * inside - 1, -AXIS):
                extent = p[axis + A_EXTENT]
                at += rest % extent * p[axis + A_SOURCE]
                rest //= extent
            if columns == 1 and step == item:
                run(accumulators, at, rows, flipped)
            else:
                add_rows(accumulators, at, step, rows, columns, flipped)

    def reduction(p):
        """Outputs side by side, again and again."""
        columns, step, flipped, divisor = p[D_COLUMNS], p[D_TARGET_STEP], p[D_FLIPPED], p[D_DIVISOR]
        accumulators = (p[P_SCRATCH] + LINE - 1) & -LINE  # a vector that lies in two cache lines takes twice as long
        vectors, outside = columns // lanes * lanes, p[P_OUTER] - p[D_PLANE_AXES]
        for number in range(row_count(p, outside)):
            target, source = row_addresses(p, outside, number)
            for i in range(0, vectors, lanes):
                clear(accumulators + i * accumulator_item)
            for i in range(vectors, columns):
                clear_1(accumulators + i * accumulator_item)
            add_lines(p, source, accumulators)
            together = vectors if step == item else 0
            for i in range(0, together, lanes):
                store(target + i * item, accumulators + i * accumulator_item, flipped, divisor)
            for i in range(together, columns):
                store_1(target + i * step, accumulators + i * accumulator_item, flipped, divisor)

    return reduction


sum_f32, sum_f16, sum_u32 = _kernel_of(_Sum(F32, 4)), _kernel_of(_Sum(F16, 2)), _kernel_of(_Sum(ir.IntType(32), 4))
largest_f32, largest_f16 = _kernel_of(_Largest(4, 0x7F800000)), _kernel_of(_Largest(2, 0x7C00))
largest_u8 = _kernel_of(_Largest(1))

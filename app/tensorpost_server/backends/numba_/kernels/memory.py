# pyright: basic, reportCallIssue=false, reportArgumentType=false
# Strict types would be no help in this folder: numba types it, Python has no type for a pointer, and an intrinsic is
# called with one argument less than it is written with.
# ruff: noqa: ARG001  # an intrinsic's parameters stand for what the code that it generates is given
"""Addresses, block moves and the walk over rows: what all kernels are made of.

Each kernel takes the address of one array of int64, its parameters. It allocates nothing, raises nothing and calls
nothing but memcpy and memset, so that its object code runs without numba, without the interpreter and on many threads
at once. All offsets and strides are in bytes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# Parameters that the kernels with one input share: the axes outside a row, outermost first, AXIS numbers each from
# P_AXES on.
P_OUTER, P_TARGET, P_SOURCE, P_SCRATCH, P_AXES = 0, 1, 2, 3, 40
AXIS, A_EXTENT, A_TARGET, A_SOURCE, A_TABLE = 4, 0, 1, 2, 3  # strides; the table, if any, holds the source's offsets

inlined = njit(forceinline=True, error_model="numpy", no_cpython_wrapper=True)
called = njit(forceinline=False, error_model="numpy", no_cpython_wrapper=True)


def pointer_to(numba_type):
    """A function from an address to a pointer."""

    @intrinsic
    def at(_typing, address):
        def code(context, builder, _signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(numba_type)))

        return types.CPointer(numba_type)(types.int64), code

    return at


floats, bytes_, chars = map(pointer_to, (types.float32, types.uint8, types.int8))
words2, words4, words8, indices, longs = map(
    pointer_to, (types.uint16, types.uint32, types.uint64, types.int32, types.int64)
)


@intrinsic
def copy(_typing, target, source, count):
    """The bytes from one address to another; they do not overlap. A constant count becomes a few moves."""

    def code(_context, builder, _signature, arguments):
        target, source, count = arguments
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(target, byte), builder.inttoptr(source, byte), count, 1)

    return types.void(types.int64, types.int64, types.int64), code


@intrinsic
def not_inlined(_typing):
    """Keep the `called` function around it from being inlined: its constants then take no registers elsewhere."""

    def code(context, builder, _signature, _arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def prefetch(_typing, address):
    """Have the cache line at an address read, which may lie beyond the end of everything."""

    def code(_context, builder, _signature, arguments):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(function, [builder.inttoptr(arguments[0], byte), number(0), number(3), number(1)])
        return _context.get_dummy_value()

    return types.void(types.int64), code


@intrinsic
def half_to_float(_typing, half):
    """The float16 of these bits as float32, exactly."""

    def code(_context, builder, _signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), code


@intrinsic
def float_to_half(_typing, value):
    """The bits of the nearest float16, ties to even; infinity beyond 65504."""

    def code(_context, builder, _signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), code


@inlined
def source_offset(p, axis, at):
    """Where coordinate `at` of an axis lies in the source."""
    table = p[P_AXES + AXIS * axis + A_TABLE]
    return longs(table)[at] if table else at * p[P_AXES + AXIS * axis + A_SOURCE]


@inlined
def row_count(p, axes):
    """How many combinations of coordinates the first `axes` axes have."""
    count = 1
    for axis in range(axes):
        count *= p[P_AXES + AXIS * axis + A_EXTENT]
    return count


@inlined
def row_addresses(p, axes, number):
    """Where one of these combinations is in the target and in the source."""
    target, source = p[P_TARGET], p[P_SOURCE]
    for back in range(axes):
        axis = axes - 1 - back
        extent = p[P_AXES + AXIS * axis + A_EXTENT]
        rest = number // extent
        at = number - rest * extent
        target += at * p[P_AXES + AXIS * axis + A_TARGET]
        source += source_offset(p, axis, at)
        number = rest
    return target, source

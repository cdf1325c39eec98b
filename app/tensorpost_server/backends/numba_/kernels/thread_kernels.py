# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# As memory.py: numba types this file.
# ruff: noqa: ARG001  # an intrinsic's parameters stand for what the code that it generates is given
"""What runs the kernels: the programs of a job, taken one by one by all threads that compute it.

A program is a list of launches in order. The thread that asks computes, and so do helper threads that are awake: they
look for the next job for a while after each (`help_threads`). Nobody waits for a helper to begin, and all threads take
programs from one counter, so that it does not matter when it begins.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .memory import inlined, longs

WORD = 8
# A job: how many programs were taken, their number, the addresses of them, the threads' memory, scratch memory of a
# thread in bytes, how much of it is for parameters, whether helpers still compute; then the addresses of blocks, of
# which the first is scratch memory.
J_NEXT, J_COUNT, J_PROGRAMS, J_THREADS, J_PITCH, J_ROOM, J_WAITING, J_BLOCKS = range(8)
# The threads' memory, each entry that is written in a cache line of its own: the job that helpers shall take part in,
# how many threads compute, how many may, how many helpers there are; the job that each of them takes part in.
T_JOB, T_COMPUTING, T_MOST, T_HELPERS, T_AT, T_PITCH = 0, 8, 16, 17, 24, 8
# A helper: the threads' memory, its number from 1 on, and how often it looks for a job.
H_THREADS, H_NUMBER, H_LOOKS = 0, 1, 2
WAITS = 20_000  # looks for helpers that compute their last program: a millisecond or less

_LONG = ir.IntType(64)
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "amd64": ("llvm.x86.sse2.pause", ())}
_PAUSE, _OPERANDS = _PAUSES.get(platform.machine().lower(), ("llvm.aarch64.hint", (1,)))  # of ARM: yield


@intrinsic
def address_of(_typing, pointer):
    """The address that a pointer holds."""

    def code(_context, builder, _signature, arguments):
        return builder.ptrtoint(arguments[0], _LONG)

    return types.int64(types.CPointer(types.int64)), code


def _place(builder, address):
    return builder.inttoptr(address, _LONG.as_pointer())


@intrinsic
def load(_typing, address):
    """What lies there now, whichever thread wrote it."""

    def code(_context, builder, _signature, arguments):
        return builder.load_atomic(_place(builder, arguments[0]), "seq_cst", WORD)

    return types.int64(types.int64), code


@intrinsic
def store(_typing, address, value):
    """Write for all threads."""

    def code(context, builder, _signature, arguments):
        builder.store_atomic(arguments[1], _place(builder, arguments[0]), "seq_cst", WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def add(_typing, address, value):
    """Add to what lies there; what it was before."""

    def code(_context, builder, _signature, arguments):
        return builder.atomic_rmw("add", _place(builder, arguments[0]), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@intrinsic
def replace_zero(_typing, address, value):
    """Write a value where 0 lies; what lay there."""

    def code(_context, builder, _signature, arguments):
        place = _place(builder, arguments[0])
        found = builder.cmpxchg(place, _LONG(0), arguments[1], "seq_cst", "seq_cst")
        return builder.extract_value(found, 0)

    return types.int64(types.int64, types.int64), code


@intrinsic
def pause(_typing):
    """Wait for some cycles, and let another thread of the core use them."""

    def code(context, builder, _signature, _arguments):
        operands = [ir.IntType(32)(value) for value in _OPERANDS]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in operands])
        builder.call(builder.module.declare_intrinsic(_PAUSE, fnty=kind), operands)
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def call(_typing, kernel, parameters):
    """Call the kernel at an address."""

    def code(context, builder, _signature, arguments):
        kernel, parameters = arguments
        kind = ir.FunctionType(ir.VoidType(), [_LONG.as_pointer()])
        builder.call(builder.inttoptr(kernel, kind.as_pointer()), [_place(builder, parameters)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@inlined
def run_program(program, blocks, parameters, scratch):
    """Call the kernels of a program: of each its address, the count of parameters, that of blocks, which, and all."""
    p, q, addresses, at = longs(program), longs(parameters), longs(blocks), 1
    for _ in range(p[0]):
        kernel, count, known = p[at], p[at + 1], p[at + 2]
        at += 3
        begin = at + 2 * known
        for i in range(count):
            q[i] = p[begin + i]
        for i in range(known):
            number = p[at + 2 * i + 1]
            q[p[at + 2 * i]] += addresses[number] if number else scratch
        call(kernel, parameters)
        at = begin + count


@inlined
def may_help(threads, number):
    """Whether so many helpers leave a core to everybody who computes."""
    return load(threads + WORD * T_COMPUTING) + number <= longs(threads)[T_MOST]


@inlined
def take_part(job, number):
    """Run programs until all are taken; as a helper, until others need the core."""
    j = longs(job)
    scratch, threads = j[J_BLOCKS] + number * j[J_PITCH], j[J_THREADS]
    while number == 0 or may_help(threads, number):
        taken = add(job + WORD * J_NEXT, 1)
        if taken >= j[J_COUNT]:
            break
        run_program(longs(j[J_PROGRAMS])[taken], job + WORD * J_BLOCKS, scratch, scratch + j[J_ROOM])


@inlined
def wait_a_while(p):
    """Wait until no helper computes a part of the job, or until `WAITS` looks; note whether one still does."""
    job, threads, left, waiting = address_of(p), p[J_THREADS], WAITS, 0
    for number in range(longs(threads)[T_HELPERS]):
        at = threads + WORD * (T_AT + T_PITCH * number)
        while left > 0 and load(at) == job:
            pause()
            left -= 1
        waiting += load(at) == job
    p[J_WAITING] = waiting


def compute(p):
    """Run all programs of a job, with the helpers if no other job has them."""
    job, threads = address_of(p), p[J_THREADS]
    if threads == 0:
        take_part(job, 0)
        return
    add(threads + WORD * T_COMPUTING, 1)
    offered = p[J_COUNT] > 1 and replace_zero(threads + WORD * T_JOB, job) == 0
    take_part(job, 0)
    if offered:
        store(threads + WORD * T_JOB, 0)
        wait_a_while(p)
    add(threads + WORD * T_COMPUTING, -1)


def await_helpers(p):
    """Wait for helpers once more, if they compute longer than that or get no processor."""
    wait_a_while(p)


def help_threads(p):
    """Take part in jobs, until none has come for so many looks or others need the core."""
    threads, number, left = p[H_THREADS], p[H_NUMBER], p[H_LOOKS]
    at = threads + WORD * (T_AT + T_PITCH * (number - 1))
    while left > 0 and may_help(threads, number):
        job = load(threads + WORD * T_JOB)
        if job != 0:
            store(at, job)  # from now on, who offers it waits for this thread
            if load(threads + WORD * T_JOB) == job and load(job + WORD * J_NEXT) < longs(job)[J_COUNT]:
                take_part(job, number)
                left = p[H_LOOKS]
            store(at, 0)
        pause()
        left -= 1

"""What the kernel `expression` and its launch plans agree on: codes of instructions, and where registers lie.

An instruction is a function of `FUNCTIONS` that has a loop there, or one of `FUSED`.
"""

from __future__ import annotations

from ...forms.expression import FUNCTIONS, NumbaLoop, call, maximum, operand

BLOCK = 1024  # elements of a register
PITCH = 4 * BLOCK + 192  # bytes from one register to the next; a power of two would have them share cache sets
REGISTERS = 64
LINE = 64  # bytes of a cache line

_X = operand(0)
_FINITE = maximum(_X, -3.4028234663852886e38)
FUSED = {"gelu": _FINITE * 0.5 * (1.0 + call("erf", _FINITE * 0.7071067811865476))}
"""Formulas of one operand that are one instruction, with a loop for rows of float16 too."""

SHORT = (*[name for name, function in FUNCTIONS.items() if function.loop is NumbaLoop.SHORT], *FUSED)
"""Instructions that compute rows of float16 too."""

CODES = {
    name: code
    for code, name in enumerate(
        [*SHORT, *[n for n, function in FUNCTIONS.items() if function.loop is NumbaLoop.FLOAT32]]
    )
}
"""The number of each instruction."""

"""Functions that array libraries lack, computed with what they have."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

BLOCK = 1 << 13  # elements; the temporaries of one block stay close to the processor, and calls cost little beside it

# Near 0, erf(x) = x P(x^2). From 1 on, erf(x) = 1 - exp(Q(x)) in float32, and 1 - exp(-x^2) Q(u) / (x + 3) with
# u = (2.6 x - 6.6) / (x + 3) in float64. The coefficients, lowest power first, are fits of our own: least maximum error
# for float32, and interpolations at Chebyshev's points, made with 90 digits, for float64.
ERF_FLOAT32 = (
    (
        1.1283791065216064, -0.3761262595653534, 0.1128358393907547, -0.026853766292333603, 0.005188231822103262,
        -0.0008009268785826862, 7.850535621400923e-05,
    ),
    (
        -0.0003537176817189902, -1.1270400285720825, -0.6382256746292114, -0.10303737968206406, 0.02180532179772854,
        -0.0029396084137260914, 0.00018557411385700107,
    ),
)  # fmt: skip
_ERF_FLOAT64 = (
    (
        1.1283791670955126, -0.37612638903183543, 0.11283791670945006, -0.02686617064323777, 0.0052239776071164225,
        -0.0008548325975389692, 0.00012055294904839707, -1.492473690741966e-05, 1.6447424703317362e-06,
        -1.6208483801871705e-07, 1.3720064546777686e-08, -7.795898827002142e-10,
    ),
    (
        1.1519074596928376, -0.41188209621003025, 0.11683673753795085, -0.025474072800005465, 0.003933868784916481,
        -0.00032354378746285705, -1.608777145577671e-05, 7.2462523861396396e-06, -2.819747492134967e-07,
        -1.3352282449870303e-07, 1.1421409195505724e-08, 2.9317508731079077e-09, -2.7687313134386407e-10,
        -7.300561432523722e-11,
    ),
)  # fmt: skip
_SCALARS = {
    np.dtype(kind): tuple([[np.asarray(number, kind) for number in numbers] for numbers in table])
    for kind, table in (("float32", ERF_FLOAT32), ("float64", _ERF_FLOAT64))
}  # converted once: a call costs as much as a thousand elements
_ERF_IS_1 = {np.dtype(np.float32): 4.0, np.dtype(np.float64): 6.0}


def erf(xp: ModuleType, x: Any) -> Any:
    """The error function, as a new array of the type of `x`.

    At most 3 units in the last place from the exact number in float32 and in float64; float16 is computed in float32.
    """
    if xp is not np:
        return importlib.import_module("cupyx.scipy.special").erf(x)  # CuPy is there, since `xp` is it
    if x.dtype.type is np.float16:
        return erf(xp, x.astype(np.float32)).astype(np.float16)
    flat = np.ascontiguousarray(x).reshape(-1)
    result: Any = np.empty_like(flat)
    with np.errstate(under="ignore", invalid="ignore"):
        for start in range(0, flat.size, BLOCK):
            _erf_block(flat[start : start + BLOCK], result[start : start + BLOCK])
    return result.reshape(x.shape)


def _erf_block(x: Any, result: Any) -> None:
    magnitude = np.minimum(np.abs(x), x.dtype.type(_ERF_IS_1[x.dtype]))
    near, far = _SCALARS[x.dtype]
    is_near = magnitude < 1
    if is_near.any():
        square = magnitude * magnitude
        _polynomial(near, square, result)
        np.multiply(result, x, out=result)
        if is_near.all():
            return
    if x.dtype.type is np.float32:
        tail = np.empty_like(x)
        _polynomial(far, magnitude, tail)
        np.exp(tail, out=tail)
    else:
        shifted = magnitude + 3
        ratio = magnitude * 2.6
        ratio -= 6.6
        ratio /= shifted
        tail = np.empty_like(x)
        _polynomial(far, ratio, tail)
        tail /= shifted
        np.multiply(magnitude, magnitude, out=magnitude)
        np.negative(magnitude, out=magnitude)
        tail *= np.exp(magnitude, out=magnitude)
    np.subtract(1, tail, out=tail)
    np.copysign(tail, x, out=tail)
    np.putmask(result, ~is_near, tail)


def _polynomial(coefficients: Sequence[Any], x: Any, out: Any) -> None:
    """Horner's scheme, in `out`."""
    np.multiply(x, coefficients[-1], out)
    for coefficient in coefficients[-2:0:-1]:
        np.add(out, coefficient, out)
        np.multiply(out, x, out)
    np.add(out, coefficients[0], out)

"""How many threads NumPy's BLAS library multiplies matrices with: one, since slices are computed side by side.

A library that divides each product waits for all of its threads. They wait for a processor whenever other slices, or
other programs, are computed there, and a server's slices are: measured in decision 0025.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from functools import cache

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables by which these libraries are told a number; then it stays as it is."""

_SETTERS = (
    "scipy_openblas_set_num_threads64_",  # in NumPy's own wheels
    "scipy_openblas_set_num_threads",  # the same, for 32 bits
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",  # in those of distributions
    "MKL_Set_Num_Threads",
)
_GETTERS = tuple([name.replace("_set_", "_get_").replace("_Set_", "_Get_Max_") for name in _SETTERS])


@cache
def use_one() -> None:
    """Products of this process use one thread each from now on, unless a variable says otherwise.

    Does nothing for libraries without such a function, as Apple's Accelerate, and on Windows, where the functions of a
    module's libraries cannot be found by their names alone.
    """
    if not any(os.environ.get(name) for name in VARIABLES) and (function := _function(_SETTERS)) is not None:
        function(1)


def count() -> int | None:
    """How many threads a product uses at most; None if the library cannot be asked."""
    function = _function(_GETTERS)
    return None if function is None else int(function())


def _function(names: tuple[str, ...]) -> ctypes._NamedFuncPointer | None:  # pyright: ignore[reportPrivateUsage]
    # A search in a module goes on in the libraries that it was linked with.
    path = importlib.import_module("numpy._core._multiarray_umath").__file__
    library = ctypes.CDLL(path)
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)

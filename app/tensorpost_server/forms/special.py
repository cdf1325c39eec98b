"""Functions that array libraries lack, computed with what they have."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["NUMPY_ONLY", "erf"]


def erf(xp: ModuleType, x: Any) -> Any:
    """The error function in float64, rounded to the type of `x`."""
    if xp is not np:
        return importlib.import_module("cupyx.scipy.special").erf(x)  # CuPy is there, since `xp` is it
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


NUMPY_ONLY: Mapping[str, Callable[..., Any]] = {"erf": erf}

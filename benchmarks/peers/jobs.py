"""What every product is asked: a float32 tensor, tiled two by two. Needs no more than NumPy, which all of them have."""

from __future__ import annotations

from typing import Any

import numpy as np

REPEATS = (1, 1, 2, 2)
SHAPES = {"small": (1, 3, 8, 8), "16 MiB": (1, 1, 1024, 1024), "256 MiB": (1, 16, 1024, 1024)}


def tensor(job: str) -> np.ndarray[Any, Any]:
    """The input of a job; shifted or repeated parts of it are seen."""
    shape = SHAPES[job]
    return (np.arange(np.prod(shape)) % 251).astype(np.float32).reshape(shape)


def compare(name: str, job: str, y: np.ndarray[Any, Any]) -> None:
    """Fail if a product's answer is not the tiled tensor."""
    expected = np.tile(tensor(job), REPEATS)
    found = np.asarray(y).reshape(-1)
    if found.dtype != np.float32 or not np.array_equal(found, expected.reshape(-1)):
        raise RuntimeError(f"{name} answers the {job} job with other elements than NumPy")

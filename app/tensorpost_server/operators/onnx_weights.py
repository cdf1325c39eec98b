"""Weights of stored graphs as part of ONNX Runtime's sessions, which its processes keep between calls.

A session is found by its model and by what its weights are. Memory that a stored graph keeps gets a number when it is
first used, so that nothing of it is read; when that memory is freed, the sessions with it are dropped.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorpost.onnx import OnnxTensor

from ..child_processes.libraries import ONNX_RUNTIME
from ..child_processes.process_pool import KeptArrays

__all__ = ["fits_session", "weights_of_session"]

_LEAST_NUMBERED = 64 << 10
"""Bytes of a constant that gets a number; of smaller ones the elements count, as they may be computed for each call."""
_SESSION_FACTOR = 3
"""A session takes about so many times the memory of its weights: ONNX Runtime lays them out anew (ResNet-50: 2.4)."""


@dataclass(slots=True)
class _Numbered:
    """Memory with a number.

    Attributes:
        number: its number.
        keys: the sessions that hold it.
    """

    number: int
    keys: set[str] = field(default_factory=set[str])


_numbers = itertools.count(1)
_numbered: dict[int, _Numbered] = {}  # by identity, for as long as the memory lives
_lock = threading.RLock()


def fits_session(size_in_bytes: int) -> bool:
    """Whether a process of ONNX Runtime may keep a session with so many bytes of weights."""
    return 0 < _SESSION_FACTOR * size_in_bytes <= ONNX_RUNTIME.session_bytes


def weights_of_session(
    model: bytes, weights: Sequence[tuple[str, OnnxTensor, bytes | memoryview]]
) -> KeptArrays:  # fmt: skip
    """The weights of a model, and the key of the session with them.

    Args:
        model: the model without its weights.
        weights: name, type and shape, and bytes of each.
    """
    digest = hashlib.blake2b(model, digest_size=16)
    kept: list[_Numbered] = []
    with _lock:
        for name, _, data in weights:
            if isinstance(data, memoryview) and len(data) >= _LEAST_NUMBERED:
                known = _numbered_as(data)
                kept.append(known)
                digest.update(f"\0{name}\0{known.number}".encode())
            else:
                digest.update(b"\1" + name.encode() + b"\1" + hashlib.blake2b(data, digest_size=16).digest())
        key = digest.hexdigest()
        for known in kept:
            known.keys.add(key)
    arrays = [np.frombuffer(data, tensor.row.dtype).reshape(tensor.shape) for _, tensor, data in weights]
    return KeptArrays(key, [name for name, _, _ in weights], arrays)


def _numbered_as(data: memoryview) -> _Numbered:
    known = _numbered.get(id(data))
    if known is None:
        known = _numbered[id(data)] = _Numbered(next(_numbers))
        weakref.finalize(data, _forget, id(data)).atexit = False
    return known


def _forget(identity: int) -> None:
    with _lock:
        known = _numbered.pop(identity, None)
    for key in known.keys if known is not None else ():
        ONNX_RUNTIME.forget(key)

"""tensorpost: POST a DirectML operator and a tensor, get the result back as raw bytes.

The descriptors, data types and errors are plain values that need no network. `Client` and `AsyncClient` are loaded when
they are first asked for, so that whoever needs the values only (the server is one) does not load an HTTP library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._answers import Progress, Result, Validation
from .datatypes import TensorDataType
from .descriptors import (
    BufferTensorDesc,
    FeatureLevel,
    OperatorDesc,
    TensorFlags,
    TileOperatorDesc,
    parse_operator,
)
from .problems import TensorpostError, Violation

if TYPE_CHECKING:
    from .client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "BufferTensorDesc",
    "Client",
    "FeatureLevel",
    "OperatorDesc",
    "Progress",
    "Result",
    "TensorDataType",
    "TensorFlags",
    "TensorpostError",
    "TileOperatorDesc",
    "Validation",
    "Violation",
    "parse_operator",
]


def __getattr__(name: str) -> Any:
    if name in ("AsyncClient", "Client"):
        from . import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

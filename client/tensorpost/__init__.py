"""tensorpost: POST a DirectML operator and a tensor, get the result back as raw bytes.

The descriptors, data types and errors are plain values that need no network. Every name here is loaded when it is first
asked for, because some of what they need takes long to load: Pydantic and NumPy for the descriptors, sockets for the
clients, httpx for proxies.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from . import compat, datatypes, descriptors, distributed, four_bits, frame, npy, onnx, problems, resampling
    from .async_client import AsyncClient
    from .calls.graph_builder import GraphBuilder
    from .calls.graph_calls import from_dml_graph, to_dml_graph
    from .calls.held_tensors import HeldTensor
    from .calls.progress_bar import ProgressBar
    from .calls.results import Result, StoredGraph, TensorBlock, Validation
    from .client import Client
    from .descriptors import (
        BufferTensorDesc,
        FeatureLevel,
        OperatorDesc,
        TensorFlags,
        TileOperatorDesc,
        parse_operator,
    )
    from .network.options import Limits, Timeout
    from .transport.progress import MapProgress, Progress
    from .values.datatypes import TensorDataType
    from .values.problems import TensorpostError, Violation

__all__ = [
    "AsyncClient",
    "BufferTensorDesc",
    "Client",
    "FeatureLevel",
    "GraphBuilder",
    "HeldTensor",
    "Limits",
    "MapProgress",
    "OperatorDesc",
    "Progress",
    "ProgressBar",
    "Result",
    "StoredGraph",
    "TensorBlock",
    "TensorDataType",
    "TensorFlags",
    "TensorpostError",
    "TileOperatorDesc",
    "Timeout",
    "Validation",
    "Violation",
    "compat",
    "datatypes",
    "descriptors",
    "distributed",
    "four_bits",
    "frame",
    "from_dml_graph",
    "npy",
    "onnx",
    "parse_operator",
    "problems",
    "resampling",
    "to_dml_graph",
]

_NAMES_BY_MODULE = {
    "async_client": ("AsyncClient",),
    "calls.graph_builder": ("GraphBuilder",),
    "calls.graph_calls": ("from_dml_graph", "to_dml_graph"),
    "calls.held_tensors": ("HeldTensor",),
    "calls.progress_bar": ("ProgressBar",),
    "calls.results": ("Result", "StoredGraph", "TensorBlock", "Validation"),
    "client": ("Client",),
    "descriptors": (
        "BufferTensorDesc",
        "FeatureLevel",
        "OperatorDesc",
        "TensorFlags",
        "TileOperatorDesc",
        "parse_operator",
    ),
    "network.options": ("Limits", "Timeout"),
    "transport.progress": ("MapProgress", "Progress"),
    "values.datatypes": ("TensorDataType",),
    "values.problems": ("TensorpostError", "Violation"),
}
_HOMES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        found = _version()
    elif name in _HOMES:
        found = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name in __all__:
        found = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    globals()[name] = found  # asked for once
    return found


def _hint(name: str) -> str:
    if name.startswith("_"):
        return ""
    from .calls.unknown_names import module_hint
    from .client import Client

    return module_hint(name, __all__, [method for method in dir(Client) if not method.startswith("_")])


def _version() -> str:
    """The installed package's version; `0` where it runs from a folder that was not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tensorpost")
    except PackageNotFoundError:
        return "0"


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__", "__path__", "__version__"]

"""The two dialects of a call of one operator: DirectML's descriptors and ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping

from tensorpost.onnx.schemas import is_own

from .call_parser import Dialect
from .directml_dialect import DirectmlParser
from .graph_dialect import GraphDialect
from .onnx_dialect import OnnxParser
from .stored_dialect import StoredDialect

DIALECTS: Mapping[str, Dialect] = {"/v1/operators": DirectmlParser, "/v1/onnx": OnnxParser}
"""The dialect of each path that operators are posted to."""


def takes_long(dialect: Dialect, operator: str) -> bool:
    """Whether parsing and planning may take long: of graphs, and of what the package onnx and ONNX Runtime know."""
    return isinstance(dialect, (GraphDialect, StoredDialect)) or (dialect is OnnxParser and not is_own(operator))

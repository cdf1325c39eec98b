"""Writes `client/tensorpost/onnx/operators.json` from the onnx package: python -m tests.support.onnx_schemas.

One line for each version of each operator that `tensorpost.onnx` has a rule for; null where it says what the version
before it says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorpost.onnx.schemas import WRITTEN_BY_HAND
from tensorpost.onnx.shapes import RULES
from tensorpost.values.onnx_package import schema_row

__all__ = ["PATH", "text"]

PATH = Path(__file__).parents[2] / "client/tensorpost/onnx/operators.json"


def text() -> str:
    """The file's text by the installed onnx package."""
    import onnx.defs

    lines: list[str] = []
    for name in sorted(RULES.keys() - WRITTEN_BY_HAND):
        schemas = [s for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (name, "")]
        versions: dict[str, Any] = {}
        before: Any = None
        for schema in sorted(schemas, key=lambda s: s.since_version):
            row = "deprecated" if schema.deprecated else schema_row(schema)
            versions[str(schema.since_version)] = None if row == before else row
            before = row
        rows = [f"  {json.dumps(version)}: {json.dumps(row)}" for version, row in versions.items()]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(rows) + "}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")

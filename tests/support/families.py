"""`families.json` of the descriptors, from the imports in their `__init__.py` and the `__all__` of each family.

python -m tests.support.families        write it anew, from the root of the repository
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import tensorpost.descriptors

__all__ = ["FAMILIES", "families_text"]

FOLDER = Path(tensorpost.descriptors.__file__).parent
FAMILIES = FOLDER / "families.json"


def families_text() -> str:
    """The names of each module that the package hands on; a line is a module."""
    names: dict[str, list[str]] = {}
    for module, found in _imported():
        names[module] = sorted([*names.get(module, []), *found])
    return (
        "{\n" + ",\n".join(f" {json.dumps(module)}: {json.dumps(found)}" for module, found in names.items()) + "\n}\n"
    )


def _imported() -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse((FOLDER / "__init__.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module not in (None, "families"):
            named = [alias.name for alias in node.names if alias.name != "OPERATORS"]
            yield node.module or "", _exported(FOLDER / f"{node.module}.py") if named == ["*"] else named


def _exported(path: Path) -> list[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return ast.literal_eval(node.value)
    return []


if __name__ == "__main__":
    FAMILIES.write_text(families_text(), "utf-8")

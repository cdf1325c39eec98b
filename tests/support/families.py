"""What the descriptors' package has generated: where its names are, and its plain operators as type checkers see them.

    python -m tests.support.families        write all of it anew, from the root of the repository

`families.json` follows from the imports in their `__init__.py`, the `__all__` of each family and the rows of
`plain_operators.py`; `summaries.json` from docstrings and these rows; `plain_operators.pyi` from these rows.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tensorpost.descriptors
from tensorpost.descriptors.catalogue import operator_names, operator_of_class, pascal_case
from tensorpost.descriptors.plain_operators import ROWS

__all__ = ["GENERATED"]

FOLDER = Path(tensorpost.descriptors.__file__).parent
STUB = '''"""Written by `python -m tests.support.families`: the operators of `ROWS` as classes."""

from collections.abc import Mapping

{imports}

ROWS: Mapping[str, Mapping[str, str]]

def plain_operator(name: str) -> type[OperatorDesc]: ...

{classes}
'''


def families_text() -> str:
    """The names of each module that the package hands on; a line is a module."""
    names: dict[str, list[str]] = {}
    for module, found in _imported():
        names[module] = sorted([*names.get(module, []), *found])
    return (
        "{\n" + ",\n".join(f" {json.dumps(module)}: {json.dumps(found)}" for module, found in names.items()) + "\n}\n"
    )


def summaries_text() -> str:
    """What each operator does; a line is an operator."""
    found = {kind: summary for rows in ROWS.values() for kind, summary in rows.items()}
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            kind = operator_of_class(node.name) if isinstance(node, ast.ClassDef) else None
            if isinstance(node, ast.ClassDef) and kind is not None:
                found[kind] = _summary_of(node)
    ordered = {kind: found[kind] for kind in operator_names() if kind in found}
    return json.dumps(ordered, indent=1, ensure_ascii=False) + "\n"


def _summary_of(node: ast.ClassDef) -> str:
    """`OperatorDesc.summary` of a class: as it is set, or the first line of the docstring."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and getattr(line.target, "id", None) == "summary" and line.value is not None:
            return ast.literal_eval(line.value)
    return (ast.get_docstring(node) or "").partition("\n")[0].rpartition("`: ")[2]


def stub_text() -> str:
    """The rows as classes, in the order of the rows."""
    bases = {"operator_desc": ["OperatorDesc"]} | _bases()
    imports = [f"from .{module} import {', '.join(sorted(names))}" for module, names in sorted(bases.items())]
    classes = [
        f'class {_class_of(kind)}({base.rpartition(".")[2]}):\n    """`DML_OPERATOR_{kind}`: {summary}"""\n'
        for base, rows in ROWS.items()
        for kind, summary in rows.items()
    ]
    return STUB.format(imports="\n".join(imports), classes="\n".join(classes).rstrip("\n"))


def _bases() -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for base in ROWS:
        module, _, name = base.partition(".")
        found[module].append(name)
    return found


def _class_of(operator_type: str) -> str:
    return f"{pascal_case(operator_type.lower())}OperatorDesc"


def _imported() -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse((FOLDER / "__init__.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module not in (None, "families"):
            named = [alias.name for alias in node.names if alias.name != "OPERATORS"]
            yield node.module or "", _exported(FOLDER / f"{node.module}.py") if named == ["*"] else named


def _exported(path: Path) -> list[str]:
    if path.stem == "plain_operators":
        return [_class_of(kind) for rows in ROWS.values() for kind in rows]
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return ast.literal_eval(node.value)
    return []


GENERATED = {
    FOLDER / "families.json": families_text,
    FOLDER / "summaries.json": summaries_text,
    FOLDER / "plain_operators.pyi": stub_text,
}

if __name__ == "__main__":
    for path, text in GENERATED.items():
        path.write_text(text(), "utf-8")

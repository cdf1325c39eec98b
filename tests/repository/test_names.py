"""One name, one meaning: no type and no file name stands twice in the two packages, but for those that are listed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "client" / "tensorpost", ROOT / "app" / "tensorpost_server")

DEVICE = "the same concept for each device"

TYPES = {
    "Scalar": "async_client.py is written from client.py",
}
"""Names that several classes or type aliases have, each with its reason."""

FILES = {
    "base.py": "what the modules of a package share",
    "backend.py": DEVICE,
    "copy_kernels.py": DEVICE,
    "launch_plan.py": DEVICE,
    "tap_tables.py": DEVICE,
    "tensor.py": "the tensor of each dialect, DirectML's and ONNX's",
    "tile.py": "the operator of each dialect",
}
"""Names that several modules have, each with its reason; beside them, operators/ follows descriptors/."""


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from package.rglob("*.py")


def types_of(text: str) -> Iterator[str]:
    """Names of the classes of a module, and of its type aliases and type variables, without the `_` of private ones."""
    tree = ast.parse(text)
    yield from (node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name.lstrip("_") for name in names if re.match("_?[A-Z][a-z]", name))


def repeated(names: Iterator[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def test_a_type_name_has_one_meaning() -> None:
    found = repeated(name for path in modules() for name in types_of(path.read_text("utf-8")))

    assert found == TYPES.keys(), "rename one of them, or remove a line that is not needed any more"


def test_a_file_name_has_one_meaning() -> None:
    handed_on = "import *  # noqa: F403 # the public name"  # beside the folders of the SDK; see its decision, 0032
    paths = [
        path
        for path in modules()
        if not path.name.startswith("__")
        and path.parent.name != "operators"
        and handed_on not in path.read_text("utf-8")
    ]
    found = repeated(path.name for path in paths)

    assert found == FILES.keys(), "rename one of them, or remove a line that is not needed any more"


def test_a_name_that_stands_twice_is_found() -> None:
    texts = [
        "class A: ...\nclass B:\n    class C: ...",
        "def f():\n    class C: ...",
        "class D: ...",
        "Aa = int",
        "class Aa: ...",
    ]

    assert repeated(name for text in texts for name in types_of(text)) == {"Aa", "C"}

"""Every name that a user of the SDK can import, as `tests/repository/public_names.json` lists them.

    python -m tests.support.public_names        add the names that are new, from the root of the repository

Names are only added: one that is gone would break a user's import, and is taken out of the file by hand, with a line in
CHANGELOG.md. Modules of the folders in `INNER` are not public; a module beside the folders hands on what users need of
them, and has its name.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorpost

__all__ = ["INNER", "NAMES", "check", "public_names"]

INNER = ("bodies", "calls", "command_line", "graphs", "network", "reference", "transport", "values")
NAMES = Path(__file__).parents[1] / "repository" / "public_names.json"


def public_names() -> dict[str, list[str]]:
    """The names by module, as they are now. Without `__all__` only a module that hands on another's names is public."""
    found = {"tensorpost": sorted(tensorpost.__all__)}
    for info in pkgutil.walk_packages(tensorpost.__path__, "tensorpost."):
        _, name, *_ = info.name.split(".")
        module = importlib.import_module(info.name)
        if name in INNER or name.startswith("_"):
            continue
        if hasattr(module, "__all__"):
            found[info.name] = sorted(set(module.__all__))
        elif info.name.count(".") == 1:
            found[info.name] = sorted(each for each in vars(module) if not each.startswith("_"))
    return found


def check(names: Mapping[str, Sequence[str]]) -> list[str]:
    """The names that cannot be imported, each as `module.name`."""
    missing: list[str] = []
    for module, wanted in names.items():
        scope: dict[str, object] = {}
        try:
            exec(f"import {module}", scope)
        except ImportError:
            missing.append(module)
            continue
        for name in wanted:
            try:
                exec(f"from {module} import {name}", scope)
            except ImportError:
                missing.append(f"{module}.{name}")
    return missing


if __name__ == "__main__":
    known: dict[str, list[str]] = json.loads(NAMES.read_text("utf-8")) if NAMES.exists() else {}
    if sys.argv[1:] == ["--check"]:
        sys.stdout.write("\n".join(check(known)))
    else:
        now = public_names()
        every = {name: sorted({*known.get(name, []), *now.get(name, [])}) for name in sorted({*known, *now})}
        NAMES.write_text(json.dumps(every, indent=1) + "\n", "utf-8")

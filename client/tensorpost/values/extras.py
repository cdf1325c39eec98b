"""How to install what is optional: the extras of `pyproject.toml`."""

from __future__ import annotations

__all__ = ["install_command"]


def install_command(*extras: str) -> str:
    """The command that installs tensorpost with these extras, from a clone: it is on no package index.

    Args:
        extras: names under `[project.optional-dependencies]` of `pyproject.toml`.
    """
    return f"pip install '.[{','.join(extras)}]' in a clone of tensorpost"

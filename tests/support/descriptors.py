"""Descriptors from what their constructors take at run time, which is wider than what the fields hold."""

from __future__ import annotations

from typing import Any, TypeVar

from tensorpost.descriptors import Descriptor

D = TypeVar("D", bound=Descriptor)


def made(cls: type[D], **fields: Any) -> D:
    """`cls(**fields)`, of lists, texts and mappings too."""
    return cls(**fields)

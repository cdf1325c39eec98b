"""Which form an operation has: a table by the class of its descriptor, or by the meaning of its ONNX node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tensorpost.operation import Operation

from ..forms import Form

__all__ = ["FORMS", "form_of", "form_of_class"]

Make = TypeVar("Make", bound=Callable[[Any], Form])

FORMS: dict[type, Callable[[Any], Form]] = {}
"""What makes the form, by class. Filled when the modules of this package are imported."""


def form_of_class(*classes: type) -> Callable[[Make], Make]:
    """Decorate the function that makes the form of the operations of these classes."""

    def register(make: Make) -> Make:
        for cls in classes:
            assert cls not in FORMS, f"{cls.__name__} has a form already"
            FORMS[cls] = make
        return make

    return register


def form_of(operation: Operation) -> Form:
    """The form of a descriptor or node.

    Raises:
        KeyError: a class without an entry in `FORMS`; a test compares the table with the contract's list.
    """
    return FORMS[type(operation)](operation)

"""Which form an operation has: a table by the class of its descriptor, and one by the operator of its ONNX node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tensorpost.values.operation import Operation

from ..forms import Form

FormFactory = TypeVar("FormFactory", bound=Callable[[Any], Form])

FORMS: dict[type, Callable[[Any], Form]] = {}
"""What makes the form, by class. Filled when the modules of this package are imported."""


def form_of_class(*classes: type) -> Callable[[FormFactory], FormFactory]:
    """Decorate the function that makes the form of the operations of these classes."""

    def register(make: FormFactory) -> FormFactory:
        for cls in classes:
            assert cls not in FORMS, f"{cls.__name__} has a form already"
            FORMS[cls] = make
        return make

    return register


NODE_FORMS: dict[str, Callable[[Any], Form]] = {}
"""What makes the form of an ONNX node, by its operator."""


def form_of_node(*op_types: str) -> Callable[[FormFactory], FormFactory]:
    """Decorate the function that makes the form of the nodes of these ONNX operators."""

    def register(make: FormFactory) -> FormFactory:
        for op_type in op_types:
            assert op_type not in NODE_FORMS, f"{op_type} has a form already"
            NODE_FORMS[op_type] = make
        return make

    return register


def form_of(operation: Operation) -> Form:
    """The form of a descriptor or node.

    Raises:
        KeyError: a class without an entry in `FORMS`; a test compares the table with the contract's list.
    """
    return FORMS[type(operation)](operation)

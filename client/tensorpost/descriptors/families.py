"""The modules of this package's names: a family's module is loaded when one of its names is used.

Pydantic takes milliseconds to build a class, and there are 177 of them. `families.json` has the names of each module,
`summaries.json` what each operator does; `python -m tests.support.families` writes both.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from .catalogue import operators_by_class

if TYPE_CHECKING:
    from .operator_desc import OperatorDesc

_PACKAGE = __name__.rpartition(".")[0]


@cache
def module_of_name() -> Mapping[str, str]:
    """The module of each public name of this package."""
    families = _generated("families.json")
    return {name: module for module, names in families.items() for name in names}


@cache
def _class_names() -> Mapping[str, str]:
    """The name of each operator's class, by the operator's type."""
    lowered = {name.lower(): name for name in module_of_name()}
    return {kind: lowered[name] for name, kind in operators_by_class().items() if name in lowered}


def operator_types() -> list[str]:
    """The types of all operators that have a class, by number."""
    return [*_class_names()]


def find_operator(operator_type: str) -> type[OperatorDesc] | None:
    """The class of an operator; None if it has none."""
    name = _class_names().get(operator_type)
    return None if name is None else class_named(name)


def operator_summaries() -> Mapping[str, str]:
    """`OperatorDesc.summary` of each operator that has a class, by its type; no class is loaded."""
    return _generated("summaries.json")


def _generated(file: str) -> Mapping[str, Any]:
    return json.loads(resources.files(_PACKAGE).joinpath(file).read_text("utf-8"))


@cache
def all_operators() -> list[type[OperatorDesc]]:
    """Every operator that has a class, by number; all families are loaded."""
    return [class_named(name) for name in _class_names().values()]


def class_named(name: str) -> Any:
    """What has this public name; its module is loaded."""
    return getattr(importlib.import_module(f"{_PACKAGE}.{module_of_name()[name]}"), name)

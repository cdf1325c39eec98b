"""DirectML's descriptors as frozen values. The server imports this package too: both sides must agree on it.

`OPERATORS` lists every operator there is; `parse_operator` reads any operator document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..problems import InvalidDescriptor, UnknownOperator, Violation, nearest
from .base import Descriptor, OperatorDesc
from .feature_levels import NEWEST, FeatureLevel, SupportRow
from .tensor import (
    BufferTensorDesc,
    TensorFlags,
    is_one_to_one,
    last_index,
    minimum_tensor_size_in_bytes,
    packed_strides,
)
from .tile import TileOperatorDesc

__all__ = [
    "NEWEST",
    "OPERATORS",
    "BufferTensorDesc",
    "Descriptor",
    "FeatureLevel",
    "OperatorDesc",
    "SupportRow",
    "TensorFlags",
    "TileOperatorDesc",
    "is_one_to_one",
    "last_index",
    "minimum_tensor_size_in_bytes",
    "operator_class",
    "packed_strides",
    "parse_operator",
]

OPERATORS: tuple[type[OperatorDesc], ...] = (TileOperatorDesc,)


def operator_class(name: str) -> type[OperatorDesc]:
    """The descriptor class of `DML_OPERATOR_TILE`, `TILE` or `tile`.

    Raises:
        UnknownOperator: with the operator that looks most like the name.
    """
    short = name.upper().removeprefix("DML_OPERATOR_")
    for cls in OPERATORS:
        if cls.operator_type == short:
            return cls
    names = [cls.operator_type for cls in OPERATORS]
    guess = nearest(short, names)
    hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(names)}"
    raise UnknownOperator(f"there is no operator {name[:60]!r} here; {hint}", extra={"nearest": guess})


def parse_operator(document: Mapping[str, Any], *, complete: bool = False) -> OperatorDesc:
    """Read `{"type": "DML_OPERATOR_TILE", "desc": {...}}` in any of DxDispatch's spellings.

    Args:
        document: the parsed JSON object.
        complete: fill in an output tensor that was left out, where it follows from the rest.

    Example:
        >>> tensor = {"DataType": "FLOAT32", "Sizes": [2, 3]}
        >>> parse_operator({"type": "TILE", "desc": {"InputTensor": tensor, "Repeats": [1, 2]}}, complete=True).repeats
        (1, 2)

    Raises:
        UnknownOperator: no operator of that type.
        InvalidDescriptor: the document or the descriptor breaks a rule; paths start at the document's root.
    """
    found: list[Violation] = []
    if not isinstance(cast(object, document), Mapping):
        raise InvalidDescriptor.of([_violation((), "an operator document must be a JSON object", document)])
    kind, desc = document.get("type"), document.get("desc")
    if not isinstance(kind, str):
        found.append(_violation(("type",), 'type must name the operator, for instance "DML_OPERATOR_TILE"', kind))
    if not isinstance(desc, Mapping):
        found.append(_violation(("desc",), "desc must be an object with the operator's fields", desc))
    found += [
        _violation((key,), "an operator document has the members type and desc only", document[key])
        for key in document
        if key not in ("type", "desc")
    ]
    if isinstance(kind, str):
        cls = operator_class(kind)
        if not found:
            try:
                fields = cast(Mapping[str, Any], desc)
                return cls(**(cls.complete(fields) if complete else fields))
            except InvalidDescriptor as error:
                found = [v.under("desc") for v in error.violations]
                # An output that could not be completed is the consequence of another violation, not one of its own.
                consequences = [
                    v for v in found if complete and v.code == "field-missing" and "Output" in str(v.path[-1])
                ]
                raise InvalidDescriptor.of([v for v in found if v not in consequences] or found) from None
    raise InvalidDescriptor.of(found)


def _violation(path: tuple[str, ...], message: str, value: object) -> Violation:
    return Violation("document", path, message, value, '{"type": ..., "desc": {...}}', "DxDispatch's guide")

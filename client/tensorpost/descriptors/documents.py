"""Operator documents: the class of an operator by its name, and descriptors read from JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..values.problems import InvalidDescriptor, UnknownOperator, Violation, nearest
from .base import json_object
from .catalogue import facts_of, operator_names
from .families import find_operator, operator_types
from .operator_desc import OperatorDesc

__all__ = ["operator_class", "operator_meant", "parse_operator"]

_MOST_SHOWN = 20  # unknown members listed by name

# What other libraries call DirectML's operators.
_SYNONYMS: Mapping[str, str] = {
    "AVERAGE": "REDUCE", "BATCHNORM": "BATCH_NORMALIZATION", "CAT": "JOIN", "CONCAT": "JOIN", "CONCATENATE": "JOIN",
    "CONV": "CONVOLUTION", "CUMPROD": "CUMULATIVE_PRODUCT", "CUMSUM": "CUMULATIVE_SUMMATION",
    "DIV": "ELEMENT_WISE_DIVIDE", "DOT": "GEMM", "INTERPOLATE": "RESAMPLE", "MATMUL": "GEMM", "MAXPOOL": "MAX_POOLING",
    "MEAN": "REDUCE", "MUL": "ELEMENT_WISE_MULTIPLY", "PERMUTE": "ELEMENT_WISE_IDENTITY", "POWER": "ELEMENT_WISE_POW",
    "REPEAT": "TILE", "RESIZE": "RESAMPLE", "SUB": "ELEMENT_WISE_SUBTRACT", "SUM": "REDUCE", "TOPK": "TOP_K",
    "TRANSPOSE": "ELEMENT_WISE_IDENTITY", "WHERE": "ELEMENT_WISE_IF", "ZOOM": "RESAMPLE",
}  # fmt: skip


def operator_class(name: str) -> type[OperatorDesc]:
    """The descriptor class of `DML_OPERATOR_TILE`, `TILE` or `tile`.

    Raises:
        UnknownOperator: no operator has this name; the message names the one that looks most like it.
    """
    short = _short_name(name)
    if (cls := find_operator(short)) is not None:
        return cls
    guess = operator_meant(short)
    how = " with Strides in another order" if short in ("PERMUTE", "TRANSPOSE") else ""
    if short in operator_names():
        message = f"DirectML's {short} has no implementation here yet"
    else:
        message = f"there is no operator {name[:60]!r} here"
    hint = (
        f"; did you mean {guess!r}{how}?" if guess else f", nor one of a similar name among the {len(operator_types())}"
    )
    raise UnknownOperator(f"{message}{hint}", extra={"nearest": guess})


def operator_meant(name: str) -> str | None:
    """The operator that a name which none has means most likely: by what other libraries say, then by `nearest`."""
    return _SYNONYMS.get(name.upper()) or nearest(name, operator_types())


def _short_name(name: str) -> str:
    return name[:100].upper().removeprefix("DML_OPERATOR_") if name.isascii() else ""


def parse_operator(document: Mapping[str, Any], *, complete: bool = False) -> OperatorDesc:
    """Read `{"type": "DML_OPERATOR_TILE", "desc": {...}}` in any of DxDispatch's spellings.

    Args:
        document: the parsed JSON object.
        complete: fill in an output tensor that was left out, where it follows from the rest.

    Examples:
        >>> tensor = {"DataType": "FLOAT32", "Sizes": [2, 3]}
        >>> parse_operator({"type": "TILE", "desc": {"InputTensor": tensor, "Repeats": [1, 2]}}, complete=True).repeats
        (1, 2)

    Raises:
        UnknownOperator: DirectML has no operator of that type.
        InvalidDescriptor: the document or the descriptor breaks a rule, or DirectML has the operator and tensorpost has
            not; paths start at the document's root.
    """
    if not isinstance(cast("object", document), Mapping):
        raise InvalidDescriptor.of([_violation((), "an operator document must be a JSON object", document)])
    kind, desc = document.get("type"), document.get("desc")
    fields = json_object(desc)
    found: list[Violation] = []
    if not isinstance(kind, str):
        found.append(_violation(("type",), 'type must name the operator, for instance "DML_OPERATOR_TILE"', kind))
    if fields is None:
        found.append(_violation(("desc",), "desc must be an object with the operator's fields", desc))
    others = [key for key in document if key not in ("type", "desc")]
    found += [
        _violation((str(key),), "an operator document has the members type and desc only", document[key])
        for key in others[:_MOST_SHOWN]
    ]
    if len(others) > _MOST_SHOWN:
        found.append(_violation((), f"there are {len(others) - _MOST_SHOWN} more such members", len(others)))
    if isinstance(kind, str):
        try:
            cls = operator_class(kind)
        except UnknownOperator:
            unserved = _short_name(kind)
            if unserved not in operator_names():
                raise
            facts = facts_of(unserved)
            message = f"DirectML has {unserved} from feature level {facts.since} on, but it is not served here yet"
            names = ", ".join(field.name for field in facts.fields)
            source = f"DML_{unserved}_OPERATOR_DESC, of the fields {names}"
            violation = Violation(
                "operator-not-served", ("type",), message, kind, "the name of an operator that is implemented", source
            )
            raise InvalidDescriptor.of([*found, violation]) from None
        try:
            if fields is not None:
                made = cls.completed(fields) if complete else cls(**fields)
                if not found:
                    return made
        except InvalidDescriptor as error:
            found += error.prefixed("desc").violations
    raise InvalidDescriptor.of(found)


def _violation(path: tuple[str, ...], message: str, value: object) -> Violation:
    return Violation("document", path, message, value, '{"type": ..., "desc": {...}}', "DxDispatch's guide")

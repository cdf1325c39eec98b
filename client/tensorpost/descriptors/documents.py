"""Operator documents: the class of an operator by its name, and descriptors read from JSON objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..values.problems import InvalidDescriptor, UnknownOperator, Violation, nearest
from .base import json_object
from .catalogue import facts_of, operator_names
from .families import find_operator, operator_types
from .operator_desc import OperatorDesc

__all__ = ["fields_filled_in", "left_out", "operator_class", "operator_meant", "operator_members", "parse_operator"]

_MOST_SHOWN = 20  # unknown members listed by name
_MOST_SUGGESTED = 4  # operators for a name that none has

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
    whole = _with_whole_name(short)
    guess = whole[0] if whole else operator_meant(short)
    others = "".join([f" or {each!r}" for each in whole[1:]])
    how = " with Strides in another order" if short in ("PERMUTE", "TRANSPOSE") else ""
    if short in operator_names():
        message = f"DirectML's {short} has no implementation here yet"
    else:
        message = f"there is no operator {name[:60]!r} here"
    hint = (
        f"; did you mean {guess!r}{others}{how}?"
        if guess
        else f", nor one of a similar name among the {len(operator_types())}"
    )
    raise UnknownOperator(f"{message}{hint}", extra={"nearest": guess})


def operator_meant(name: str) -> str | None:
    """The operator that an unknown name most likely means: by the names of other libraries, then by `nearest`."""
    return _SYNONYMS.get(name.upper()) or nearest(name, operator_types())


def _with_whole_name(short: str) -> list[str]:
    """The operators whose names have a name of several words as a whole part, those of elements first."""
    found = [each for each in operator_types() if "_" in short and f"_{short}_" in f"_{each}_"]
    return sorted(found, key=lambda each: not each.startswith("ELEMENT_WISE_"))[:_MOST_SUGGESTED]


def _short_name(name: str) -> str:
    return name[:100].upper().removeprefix("DML_OPERATOR_") if name.isascii() else ""


def parse_operator(document: Mapping[str, Any], *, complete: bool = False) -> OperatorDesc:
    """Read `{"type": "DML_OPERATOR_TILE", "desc": {...}}` in any of DxDispatch's spellings.

    `{"Type": ..., "Desc": {...}}`, the spelling of DML_OPERATOR_DESC, is read as well.

    Args:
        document: the parsed JSON object.
        complete: fill in what was left out and follows from the rest: output tensors, and such fields as Scales and
            InputPixelOffsets, which follow from sizes. Fields with a default, such as Direction or GroupCount, have
            it in either case; `fields_filled_in` lists both.

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
    if "nodes" in document or "Nodes" in document:
        message = "this is a graph, not an operator; run_graph(), validate() and tensorpost graph check take graphs"
        raise InvalidDescriptor.of([_violation((), message, None)])
    members = operator_members(document)
    type_member, desc_member = members
    kind, desc = document.get(type_member), document.get(desc_member)
    fields = json_object(desc)
    found: list[Violation] = []
    if not isinstance(kind, str):
        message = f'{type_member} must name the operator, for instance "DML_OPERATOR_TILE"'
        found.append(_violation((type_member,), message, kind))
    if fields is None:
        message = f"{desc_member} must be an object with the operator's fields"
        found.append(_violation((desc_member,), message, desc))
    others = [key for key in document if key not in members]
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
                "operator-not-served",
                (type_member,),
                message,
                kind,
                "the name of an operator that is implemented",
                source,
            )
            raise InvalidDescriptor.of([*found, violation]) from None
        try:
            if fields is not None:
                made = cls.completed(fields) if complete else cls(**fields)
                if not found:
                    return made
        except InvalidDescriptor as error:
            found += error.prefixed(desc_member).violations
    raise InvalidDescriptor.of(found)


def operator_members(document: Mapping[str, Any]) -> tuple[str, str]:
    """The members of an operator document: `Type` and `Desc` where it has `Type` and no `type`, else `type` and `desc`.

    Sources: DxDispatch's guide, DML_OPERATOR_DESC.
    """
    return ("Type", "Desc") if "Type" in document and "type" not in document else ("type", "desc")


def fields_filled_in(document: Mapping[str, Any], desc: OperatorDesc) -> list[str]:
    """The fields that a document leaves out and that its descriptor has, in the order of the C struct.

    A C program has to set them. Optional fields that are null do not count, nor counts of arrays.

    Args:
        document: what `parse_operator` read.
        desc: what it made of it.
    """
    fields = json_object(document.get(operator_members(document)[1])) or {}
    given = {desc.names_of_fields().get(key, key) for key in fields}
    return [
        str(info.alias)
        for name, info in type(desc).model_fields.items()
        if info.alias not in given and info.default_factory is None and getattr(desc, name) is not None
    ]


def left_out(desc_member: str, fields: Sequence[str], name: str) -> list[Violation]:
    """Violations for the fields that `fields_filled_in` lists, where nothing may be filled in.

    Args:
        desc_member: the member of the document that has the fields.
        fields: their names.
        name: the operator's.
    """
    return [
        Violation(
            "field-missing", (desc_member, field), f"{field} is left out, and strict validation fills nothing in", None,
            "a value", f"DML_{name}_OPERATOR_DESC",
        )
        for field in fields
    ]  # fmt: skip


def _violation(path: tuple[str, ...], message: str, value: object) -> Violation:
    return Violation("document", path, message, value, '{"type": ..., "desc": {...}}', "DxDispatch's guide")

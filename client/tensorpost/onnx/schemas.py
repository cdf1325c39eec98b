"""The versions of the ONNX operators that this project supports, as data.

Source: onnx/onnx `docs/Operators.md` and `docs/Changelog.md` (signatures, types, defaults), default domain, opset 1 to
28.
An opset means the newest version of an operator at or below it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ..values.datatypes import DATA_TYPES, data_type
from ..values.problems import InvalidDescriptor, UnknownOperator, Violation, nearest
from .operator_schema import (
    AttributeType,
    AttributeValue,
    InputValues,
    OnnxAttribute,
    OnnxInput,
    OnnxOutput,
    OnnxSchema,
)
from .package import since_version
from .shapes import row_of

__all__ = [
    "LISTED",
    "NEWEST_OPSET",
    "ONNX_OPERATORS",
    "WRITTEN_BY_HAND",
    "AttributeType",
    "AttributeValue",
    "InputValues",
    "OnnxAttribute",
    "OnnxInput",
    "OnnxOutput",
    "OnnxSchema",
    "find_schema",
    "is_own",
    "schema_of",
]

NEWEST_OPSET = 28
"""The newest default-domain opset whose Tile and Resize we have read: that of onnx 1.23."""

_ALL_16: tuple[str, ...] = tuple(row.numpy_name for row in DATA_TYPES if not row.is_small)
_ALL_15 = tuple(name for name in _ALL_16 if name != "bfloat16")
_FLOATS = ("float16", "float32", "float64")


def _x(types: tuple[str, ...], name: str = "X") -> OnnxInput:
    return OnnxInput(name, types, data=True)


_MODE_2 = OnnxAttribute("mode", "STRING", "nearest", ("nearest", "linear"))
_MODE_3 = OnnxAttribute("mode", "STRING", "nearest", ("nearest", "linear", "cubic"))
_NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_COORDINATES_13 = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
_SCALES = OnnxInput("scales", ("float32",))
_OPTIONAL = (
    OnnxInput("roi", _FLOATS, optional=True),
    OnnxInput("scales", ("float32",), optional=True),
    OnnxInput("sizes", ("int64",), optional=True),
)


def _resize_attributes(coordinates: tuple[str, ...]) -> tuple[OnnxAttribute, ...]:
    return (
        _MODE_3,
        OnnxAttribute("coordinate_transformation_mode", "STRING", "half_pixel", coordinates),
        OnnxAttribute("nearest_mode", "STRING", "round_prefer_floor", _NEAREST_MODES),
        OnnxAttribute("cubic_coeff_a", "FLOAT", -0.75),
        OnnxAttribute("exclude_outside", "INT", 0, (0, 1)),
        OnnxAttribute("extrapolation_value", "FLOAT", 0.0),
    )


_RESIZE_18 = (
    OnnxAttribute("antialias", "INT", 0, (0, 1)),
    OnnxAttribute("axes", "INTS"),
    OnnxAttribute("keep_aspect_ratio_policy", "STRING", "stretch", ("stretch", "not_larger", "not_smaller")),
)
_TILE = "repeats the whole input along each dimension."
_RESIZE = "resamples the input along any of its axes: nearest, linear or cubic."
_UPSAMPLE = "enlarges the input along any of its axes: nearest or linear. Replaced by Resize in opset 10."

_BY_HAND: tuple[OnnxSchema, ...] = (
    OnnxSchema(
        "Tile", 1, 5,
        (_x(_FLOATS, "input"), OnnxInput("tiles", ("int64", *_FLOATS)), OnnxInput("axis", ("int64", *_FLOATS))),
        (), "repeats the whole input along one axis.",
    ),
    OnnxSchema("Tile", 6, 12, (_x(_ALL_15, "input"), OnnxInput("repeats", ("int64",))), (), _TILE),
    OnnxSchema("Tile", 13, None, (_x(_ALL_16, "input"), OnnxInput("repeats", ("int64",))), (), _TILE),
    OnnxSchema("Resize", 10, 10, (_x(_ALL_15), _SCALES), (_MODE_2,), _RESIZE),
    OnnxSchema(
        "Resize", 11, 12, (_x(_ALL_15), OnnxInput("roi", _FLOATS), _SCALES, _OPTIONAL[2]),
        _resize_attributes((*_COORDINATES_13[:4], "tf_half_pixel_for_nn", "tf_crop_and_resize")), _RESIZE,
    ),
    OnnxSchema("Resize", 13, 17, (_x(_ALL_16), *_OPTIONAL), _resize_attributes(_COORDINATES_13), _RESIZE),
    OnnxSchema(
        "Resize", 18, 18, (_x(_ALL_16), *_OPTIONAL), (*_resize_attributes(_COORDINATES_13), *_RESIZE_18), _RESIZE
    ),
    OnnxSchema(
        "Resize", 19, None, (_x(_ALL_16), *_OPTIONAL),
        (*_resize_attributes(("half_pixel", "half_pixel_symmetric", *_COORDINATES_13[1:])), *_RESIZE_18), _RESIZE,
    ),
    OnnxSchema(
        "Upsample", 7, 8, (_x(_ALL_15),),
        (OnnxAttribute("scales", "FLOATS", required=True), _MODE_2), _UPSAMPLE,
    ),
    OnnxSchema("Upsample", 9, 9, (_x(_ALL_15), _SCALES), (_MODE_2,), _UPSAMPLE),
)  # fmt: skip

WRITTEN_BY_HAND = frozenset(schema.op_type for schema in _BY_HAND)
"""Operators of which there is more to say than the onnx package does: the choices of attributes, what Tile-1 means."""


def schema_of_row(op_type: str, since: int, last: int | None, row: Mapping[str, Any]) -> OnnxSchema:
    """A version of an operator from its row in `operators.json`."""
    variables = {name: tuple([data_type(t).numpy_name for t in text.split()]) for name, text in row["types"].items()}
    operator = row_of(op_type)
    by_value = operator.by_value.split()

    def parameter(name: str, kind: str, flag: str = "") -> tuple[str, tuple[str, ...], str, bool, bool]:
        variable = kind if kind in variables else ""
        types = variables[kind] if variable else tuple([data_type(t).numpy_name for t in kind.split()])
        return name, types, variable, flag == "?", flag == "*"

    inputs: list[OnnxInput] = []
    for name, types, variable, optional, variadic in [parameter(*entry) for entry in row["inputs"]]:
        inputs.append(OnnxInput(name, types, optional, name not in by_value, variable, variadic))
    attributes: list[OnnxAttribute] = []
    for name, (kind, *rest) in row["attributes"].items():
        choices = [values for first, values in operator.choices.get(name, {}).items() if since >= first]
        required = rest == ["required"]
        default = None if required or not rest else tuple(rest[0]) if kind.endswith("S") else rest[0]
        attributes.append(OnnxAttribute(name, kind, default, choices[-1] if choices else (), required))
    outputs = [OnnxOutput(*parameter(*entry)) for entry in row["outputs"]]
    return OnnxSchema(op_type, since, last, tuple(inputs), tuple(attributes), "", tuple(outputs))


def _read_operators() -> Iterator[OnnxSchema]:
    """The versions in `operators.json`."""
    path = Path(__file__).with_name("operators.json")
    operators: Mapping[str, Mapping[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for op_type, versions in operators.items():
        row: Any = None
        numbers = [*map(int, versions)]
        for since, last in zip(numbers, [*[number - 1 for number in numbers[1:]], None], strict=True):
            row = versions[str(since)] or row
            if row != "deprecated":
                yield schema_of_row(op_type, since, last, row)


ONNX_OPERATORS: tuple[OnnxSchema, ...] = (*_BY_HAND, *_read_operators())
"""Every version of every operator that tensorpost computes itself."""

LISTED = "docs/operators.md lists them"
"""Where the operators are, for messages."""

_BY_NAME: dict[str, list[OnnxSchema]] = {}
for _schema in ONNX_OPERATORS:
    _BY_NAME.setdefault(_schema.op_type, []).append(_schema)


def is_own(op_type: str) -> bool:
    """Whether tensorpost has a rule and code of its own for the operator; ONNX Runtime computes the others."""
    return op_type in _BY_NAME


def find_schema(op_type: str, opset: int) -> OnnxSchema | Violation:
    """The version of the operator that this opset means, or why there is none.

    Examples:
        >>> [find_schema("Resize", opset).name for opset in (10, 14, 19, 22)]
        ['Resize-10', 'Resize-13', 'Resize-19', 'Resize-19']

    Raises:
        UnknownOperator: no version of any operator of that name; the message names the one that looks most like it.
        NoBackend: one that ONNX Runtime computes, and the package onnx is not installed.
    """
    versions = _BY_NAME.get(op_type)
    if not versions:
        try:
            schema = _of_package(op_type, opset)
        except KeyError:
            guess = nearest(op_type, _BY_NAME)
            hint = f"; did you mean {guess!r}?" if guess else f", nor one of a similar name; {LISTED}"
            message = f"there is no ONNX operator {op_type[:60]!r} here{hint}"
            raise UnknownOperator(message, extra={"nearest": guess}) from None
        if isinstance(schema, OnnxSchema):
            return schema
        return Violation("opset", ("opset",), schema, opset, "another opset or operator", f"ONNX {op_type}")
    for schema in versions:
        if schema.since_version <= opset <= (schema.last_opset or NEWEST_OPSET):
            return schema
    expected = ", ".join(_spans(versions))
    if opset > NEWEST_OPSET:
        message = f"opset {opset} is newer than {NEWEST_OPSET}, the newest one known here; a later {op_type} may differ"
    elif op_type == "Upsample" and opset >= 10:
        message = f"Upsample is deprecated from opset 10 on; use Resize, or an opset from 7 to 9, not {opset}"
    elif op_type == "Upsample" and opset >= 1:
        message = f"Upsample-1 (opset {opset}) was experimental and is not offered; use opset 7 to 9"
    else:
        message = f"there is no {op_type} at opset {opset}; it exists from opset {versions[0].since_version} on"
    return Violation("opset", ("opset",), message, opset, expected, f"ONNX {op_type}, versions")


def schema_of(op_type: str, opset: object) -> OnnxSchema:
    """The version of the operator that the opset means.

    Raises:
        UnknownOperator: no such operator.
        NoBackend: see `find_schema`.
        InvalidDescriptor: no name, no opset, or one at which there is no such operator.
    """
    if not isinstance(cast("object", op_type), str):
        message = f"op_type must be the operator's name, as in 'Resize'; {LISTED}"
        raise InvalidDescriptor.of([Violation("document", ("op_type",), message, op_type, "an operator's name")])
    if isinstance(opset, int) and not isinstance(opset, bool):
        schema = find_schema(op_type, opset)
        if isinstance(schema, OnnxSchema):
            return schema
        raise InvalidDescriptor.of([schema])
    find_schema(op_type, 0)  # refuses an unknown operator, before the version is looked at
    expected = f"a whole number from 1 to {NEWEST_OPSET}"
    what = "" if opset is None else f"opset is {str(opset)[:60]!r}; "
    message = f"{what}{op_type} means different things at different opsets; say which one, as {expected}"
    raise InvalidDescriptor.of([Violation("opset", ("opset",), message, opset, expected, "ONNX IR, operator sets")])


@lru_cache(maxsize=256)
def _of_package(op_type: str, opset: int) -> OnnxSchema | str:
    """The version by the onnx package; why there is none.

    Raises:
        KeyError: no such operator.
        NoBackend: no such package.
    """
    version = since_version(op_type, opset)
    return version if isinstance(version, str) else schema_of_row(op_type, version[0], None, version[1])


def _spans(versions: list[OnnxSchema]) -> Iterator[str]:
    for schema in versions:
        last = schema.last_opset or NEWEST_OPSET
        opsets = f"{schema.since_version}" if last == schema.since_version else f"{schema.since_version} to {last}"
        yield f"{opsets} ({schema.name})"

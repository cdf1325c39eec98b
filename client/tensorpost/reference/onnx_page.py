"""The page of an operator of ONNX: inputs, attributes, outputs of its newest version, an example, DirectML's twin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..onnx import ONNX_OPERATORS, OnnxSchema
from ..onnx.schemas import LISTED
from ..values.datatypes import data_type
from ..values.problems import UnknownOperator, nearest
from .operator_page import array_text, curl_line, example_tables
from .operator_reference import ExampleCall, directml_names, example_of
from .page_blocks import PageBlock, PageCode, PageHeading, PageTable, PageText

__all__ = ["OnnxReference", "onnx_names", "onnx_page", "onnx_reference"]


@dataclass(frozen=True, slots=True)
class OnnxReference:
    """All that there is to say of an operator of ONNX.

    Attributes:
        op_type: its name, as in `Resize`.
        versions: its versions that are computed here, oldest first.
        example: a call with its result; None if there is none.
        twins: DirectML's operators that compute some of its nodes.
        relatives: DirectML's operators of the same kind that answer some nodes otherwise.
    """

    op_type: str
    versions: tuple[OnnxSchema, ...]
    example: ExampleCall | None
    twins: tuple[str, ...]
    relatives: tuple[str, ...]

    @property
    def newest(self) -> OnnxSchema:
        """The newest version, which the page describes."""
        return self.versions[-1]

    @property
    def summary(self) -> str:
        """What it computes, a phrase."""
        return self.newest.summary or f"computed as ONNX says of {self.op_type}."

    def to_json(self) -> dict[str, Any]:
        """The reference as an object of JSON."""
        return {
            **self.newest.to_json(),
            "summary": self.summary,
            "versions": [schema.since_version for schema in self.versions],
            "example": self.example and {"request": self.example.call, "outputs": self.example.outputs},
            "directml": list(self.twins),
            "related_directml": list(self.relatives),
        }


@cache
def _by_name() -> Mapping[str, Sequence[OnnxSchema]]:
    found: dict[str, list[OnnxSchema]] = {}
    for schema in sorted(ONNX_OPERATORS, key=lambda each: (each.op_type, each.since_version)):
        found.setdefault(schema.op_type, []).append(schema)
    return found


def onnx_names() -> list[str]:
    """The operators of ONNX that tensorpost computes itself, in alphabetical order."""
    return [*_by_name()]


def onnx_reference(op_type: str) -> OnnxReference:
    """The facts of an operator of ONNX.

    Args:
        op_type: its name, in upper or lower case.

    Raises:
        UnknownOperator: tensorpost has none of that name of its own; the message names the one that may be meant.
    """
    name = next((each for each in _by_name() if each.lower() == op_type.lower()), None)
    if name is None:
        guess = nearest(op_type, onnx_names())
        meant = f"; did you mean {guess!r}?" if guess else f"; {LISTED}"
        raise UnknownOperator(f"there is no page of an ONNX operator {op_type!r}{meant}")
    twins, relatives = directml_names(name)
    return OnnxReference(name, tuple(_by_name()[name]), example_of(f"/v1/onnx/{name}"), twins, relatives)


def onnx_page(reference: OnnxReference) -> tuple[PageBlock, ...]:
    """The page of an operator of ONNX.

    Args:
        reference: its facts.
    """
    return tuple(_blocks(reference))


def _blocks(reference: OnnxReference) -> Iterator[PageBlock]:
    schema = reference.newest
    yield PageHeading(reference.op_type, 1)
    yield PageText(f"ONNX `{reference.op_type}`: {reference.summary}")
    versions = ", ".join(str(each.since_version) for each in reference.versions)
    yield PageText(f"Versions: {versions}. This page describes version {schema.since_version}.")
    yield PageHeading("Inputs")
    rows = [
        (f"`{each.name}`", _presence(each.optional, each.variadic), _types(each.types, each.variable),
         "tensor" if each.data else "numbers that belong to the node: in a query, in the document, or as a tensor")
        for each in schema.inputs
    ]  # fmt: skip
    yield PageTable(("Input", "If left out", "Types", "What it is"), tuple(rows)) if rows else PageText("None.")
    yield PageHeading("Attributes")
    attributes = [
        (f"`{each.name}`", each.type, "required" if each.required else _default(each.default),
         ", ".join(map(str, each.choices)) or "any")
        for each in schema.attributes
    ]  # fmt: skip
    if attributes:
        yield PageTable(("Attribute", "Type", "If left out", "Values"), tuple(attributes))
    else:
        yield PageText("None.")
    yield PageHeading("Outputs")
    outputs = [
        (f"`{each.name}`", _presence(each.optional, each.variadic), _types(each.types, each.variable))
        for each in schema.outputs
    ]
    yield PageTable(("Output", "If left out", "Types"), tuple(outputs))
    if reference.example is not None:
        yield PageHeading("Example")
        yield from example_tables(reference.example)
        yield PageHeading("curl")
        yield PageCode("sh", curl_line(reference.example))
        yield PageHeading("Python")
        yield PageCode("python", onnx_python_lines(reference.example))
    yield PageHeading("DirectML")
    yield PageText(_directml_sentence(reference))


def _presence(optional: bool, variadic: bool) -> str:
    return "any number of them" if variadic else "absent" if optional else "required"


def _types(types: Sequence[str], variable: str) -> str:
    names = " ".join(data_type(name).numpy_name for name in types) or "that of the first input"
    return f"{variable}: {names}" if variable else names


def _default(value: object) -> str:
    if value is None:
        return "absent"
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"  # pyright: ignore[reportUnknownArgumentType] # numbers


def onnx_python_lines(example: ExampleCall) -> str:
    """The call as lines of Python; the results are in `outputs`.

    Args:
        example: the call of a node.
    """
    op, tensors = example.call["op"], example.call["tensors"]
    settings = {**op.get("attributes", {}), **op.get("inputs", {})}
    arguments = [f'"{op["op_type"]}"', *[array_text(tensor) for tensor in tensors.values()]]
    arguments += [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    lines = ",\n        ".join(arguments)
    return "\n".join(
        [
            "import numpy as np",
            "from tensorpost import Client",
            "",
            "with Client() as client:",
            f"    outputs = client.onnx(\n        {lines},\n    )",
        ]
    )


def _directml_sentence(reference: OnnxReference) -> str:
    parts: list[str] = []
    if reference.twins:
        parts.append(f"Nodes that DirectML has: computed by {', '.join(f'`{name}`' for name in reference.twins)}.")
    if reference.relatives:
        names = ", ".join(f"`{name}`" for name in reference.relatives)
        parts.append(f"{names}: of the same kind; DirectML answers some nodes otherwise.")
    return " ".join(parts) or "DirectML has no operator of the same function."

"""The page of an operator of DirectML: its facts, in the order in which people look for them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ..descriptors import operator_class
from ..descriptors.catalogue import FieldFacts
from ..descriptors.fields import CEnum
from ..values.datatypes import DATA_TYPES
from .operator_reference import ExampleCall, OperatorReference, described_inputs, is_of
from .page_blocks import PageBlock, PageCode, PageHeading, PageTable, PageText

__all__ = [
    "SHOWN_URL",
    "array_text",
    "command_line",
    "curl_line",
    "example_tables",
    "nested",
    "operator_page",
    "python_lines",
]

_C_TYPES: Mapping[str, str] = {
    "TENSOR_DESC": "const DML_TENSOR_DESC*",
    "TENSOR_DESC_ARRAY": "const DML_TENSOR_DESC*",
    "OPERATOR_DESC": "const DML_OPERATOR_DESC*",
    "OPERATOR_DESC_ARRAY": "const DML_OPERATOR_DESC*",
    "SCALE_BIAS": "const DML_SCALE_BIAS*",
    "SIZE_2D": "DML_SIZE_2D",
    "SCALAR_UNION": "DML_SCALAR_UNION",
    "UINT": "UINT",
    "INT": "INT",
    "FLOAT": "FLOAT",
    "BOOL": "BOOL",
    "UINT_ARRAY": "const UINT*",
    "INT_ARRAY": "const INT*",
    "FLOAT_ARRAY": "const FLOAT*",
}
SHOWN_URL = "http://127.0.0.1:8000"
"""The server of the lines that are shown: the SDK's default."""

_DERIVED = ("Flags", "DimensionCount", "TotalTensorSizeInBytes", "GuaranteedBaseOffsetAlignment")
_FROM_SAFETENSORS = {row.safetensors: row for row in DATA_TYPES if row.safetensors}
_OPERANDS = re.compile(r"\b[abxy]\b")


def operator_page(reference: OperatorReference) -> tuple[PageBlock, ...]:
    """The page of an operator.

    Args:
        reference: its facts.
    """
    return tuple(_blocks(reference))


def _blocks(reference: OperatorReference) -> Iterator[PageBlock]:
    facts = reference.facts
    yield PageHeading(reference.name, 1)
    yield PageText(f"`DML_OPERATOR_{reference.name}`: {reference.summary}")
    yield PageCode("text", reference.formula)
    if legend := _legend(reference):
        yield PageText(legend)
    yield from map(PageText, reference.details)
    shared = "may" if facts.in_place else "must not"
    yield PageText(
        f"Operator {facts.number} of DirectML, from feature level {facts.since} on. In DirectML an output {shared} "
        "share memory with an input."
    )
    yield PageHeading("Fields")
    yield PageText(
        "Documents have DirectML's names. A query, Python and the command line have the same names in lower case with "
        f"underscores, as in `{reference.fields[-1].attribute_name}` for `{reference.fields[-1].name}`."
    )
    rows = [
        (f"`{each.name}`", f"`{each.type}`", each.default, each.bounds or "see the tensors", each.text)
        for each in reference.fields
    ]
    yield PageTable(("Field", "Type", "If left out", "Values", "Meaning"), tuple(rows))
    yield PageHeading("Tensors by feature level")
    yield PageText("A row holds from its feature level on, until the next row of the same tensors.")
    yield PageTable(("Tensors", "From level", "Dimensions", "Data types"), reference.levels())
    yield PageHeading("Example")
    yield from example_tables(reference.example)
    yield PageText("The result was computed by the service; a test compares it with one from another source.")
    yield PageHeading("curl")
    yield PageCode("sh", curl_line(reference.example))
    yield PageHeading("Python")
    yield PageCode("python", python_lines(reference))
    if line := command_line(reference):
        yield PageHeading("Command line")
        yield PageCode("sh", line)
    yield PageHeading("DirectML")
    yield PageCode("cpp", _struct(reference))
    yield PageHeading("ONNX")
    yield PageText(_onnx_sentence(reference))
    yield PageHeading("What DirectML answers otherwise")
    yield PageText(_compared_sentence(reference))
    if reference.different_answers:
        found = tuple((each.reason, "; ".join(each.cases)) for each in reference.different_answers)
        yield PageTable(("What DirectML does", "Seen in the test vectors"), found)


def _compared_sentence(reference: OperatorReference) -> str:
    """How DirectML was asked, and what that leaves open."""
    sentence = (
        "DirectML 1.15.4 was asked to compute the operator's test vectors, under Wine on a software device; a GPU has "
        "not confirmed its answers."
    )
    if reference.not_compared:
        cases = "1 case says" if reference.not_compared == 1 else f"{reference.not_compared} cases say"
        sentence += f" {cases} nothing of DirectML, since Wine or the software device answers otherwise."
    return sentence if reference.different_answers else f"{sentence} No difference was found."


def _legend(reference: OperatorReference) -> str:
    """What the letters of the formula stand for; empty if it has none."""
    letters = set(_OPERANDS.findall(reference.formula))
    names = {each.attribute_name for each in reference.fields}
    scaled = ", after `ScaleBias`" if "scale_bias" in names else ""
    words = {
        "x": f"`x` is an element of the input{scaled}",
        "a": "`a` is an element of A",
        "b": "`b` is the element of B at the same coordinate",
        "y": "`y` is the element of the output at the same coordinate",
    }
    if "y" not in letters or not reference.formula.startswith("y ="):
        return ""
    return ", ".join(text for letter, text in words.items() if letter in letters) + "."


def example_tables(example: ExampleCall) -> Iterator[PageBlock]:
    """The attributes and tensors of a call, and its result.

    Args:
        example: the call.
    """
    op = example.call["op"]
    said = {**op.get("desc", {}), **op.get("attributes", {}), **op.get("inputs", {})}
    attributes = tuple((f"`{name}`", f"`{json.dumps(_short(value))}`") for name, value in said.items())
    if attributes:
        yield PageTable(("Field", "Value"), attributes)
    rows = [(f"`{name}`", *_tensor_cells(tensor)) for name, tensor in example.call["tensors"].items()]
    rows += [(f"result `{name}`", *_tensor_cells(tensor)) for name, tensor in example.outputs.items()]
    yield PageTable(("Tensor", "Type", "Sizes", "Elements"), tuple(rows))


def _tensor_cells(tensor: Mapping[str, Any]) -> tuple[str, str, str]:
    row = _FROM_SAFETENSORS[tensor["dtype"]]
    return row.numpy_name, " x ".join(map(str, tensor["shape"])) or "one number", f"`{json.dumps(nested(tensor))}`"


def nested(tensor: Mapping[str, Any]) -> Any:
    """The elements of a tensor of JSON as lists of lists, as its sizes say.

    Args:
        tensor: an object with `shape` and `data`.
    """
    elements: list[Any] = list(tensor["data"])
    for size in reversed(tensor["shape"][1:]):
        elements = [elements[at : at + size] for at in range(0, len(elements), size)]
    return elements if tensor["shape"] else elements[0]


def _short(value: Any) -> Any:
    """A field of a document, without what follows in descriptions of packed tensors."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        left_out = _DERIVED if "Sizes" in members else ()
        return {name: _short(each) for name, each in members.items() if name not in left_out}
    return [_short(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


def _short_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**call, "op": _short(call["op"])}


def curl_line(example: ExampleCall, url: str = SHOWN_URL) -> str:
    """The call as lines for a shell.

    Args:
        example: the call.
        url: the server's address.
    """
    body = json.dumps(_short_call(example.call))
    assert "'" not in body, "no name or number has an apostrophe, which would end the shell's word"
    return f"curl --fail-with-body {url}{example.path} \\\n  -H 'content-type: application/json' \\\n  --data '{body}'"


def python_lines(reference: OperatorReference) -> str:
    """The call as lines of Python; the results are in `outputs`.

    Args:
        reference: the operator's facts.
    """
    tensors: Mapping[str, Any] = reference.example.call["tensors"]
    arrays = [f'    "{name}": {array_text(tensor)},' for name, tensor in tensors.items()]
    desc = {**described_inputs(reference.facts, tensors), **_short(reference.example.call["op"]["desc"])}
    lines = [f'    "{name}": {_python(value)},' for name, value in desc.items()]
    return "\n".join(
        [
            "import numpy as np",
            "from tensorpost import Client, parse_operator",
            "",
            "tensors = {",
            *arrays,
            "}",
            f'operator = parse_operator({{"type": "{reference.name}", "desc": {{',
            *lines,
            "}}, complete=True)",
            "with Client() as client:",
            "    outputs = client.run(operator, tensors)",
        ]
    )


def _python(value: Any) -> str:
    return repr(value).replace("'", '"')  # no name has an apostrophe


def command_line(reference: OperatorReference) -> str:
    """The call as a line for a shell, with npy files; empty if options cannot say it.

    They describe no several outputs, and files are taken in the order of the inputs, without gaps.

    Args:
        reference: the operator's facts.
    """
    tensors, desc = [*reference.example.call["tensors"]], reference.example.call["op"]["desc"]
    inputs, outputs = reference.facts.fields_by_kind["input"], reference.facts.fields_by_kind["output"]
    places = [at for name in tensors for at, field in enumerate(inputs) if is_of(field, name)]
    if places != sorted(places) or set(places) != {*range(len(set(places)))}:
        return ""
    settings: list[str] = []
    for name, value in desc.items():
        field = reference.field(name)
        if field.kind == "attribute" and value is not None:
            settings.append(f"{field.attribute_name}={_setting(value)}")
        elif value is None or field.kind == "input":  # described by its file
            continue
        elif len(outputs) == 1 and isinstance(value, dict):
            tensor = cast("dict[str, Any]", value)
            settings += [f"output_data_type={tensor['DataType']}", f"output_sizes={_setting(tensor['Sizes'])}"]
        else:
            return ""
    words = ["tensorpost", "run", reference.name.lower(), *[f"{name}.npy" for name in tensors]]
    for setting in settings:
        words += ["-s", shlex.quote(setting)]
    for name in reference.example.outputs:
        words += ["-o", f"{'result' if len(reference.example.outputs) == 1 else name}.npy"]
    return " ".join(words)


def _setting(value: Any) -> str:
    """The value of an option `-s`: a word, a number, numbers with commas, or JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and not any(isinstance(each, dict | list) for each in cast("list[Any]", value)):
        return ",".join(map(_setting, cast("list[Any]", value)))
    return json.dumps(_short(value))


def array_text(tensor: Mapping[str, Any]) -> str:
    """A tensor as an expression of Python that makes its array.

    Args:
        tensor: an object with `dtype`, `shape` and `data`.
    """
    row = _FROM_SAFETENSORS[tensor["dtype"]]
    return f'np.array({nested(tensor)!r}, "{row.numpy_name}")'


def _struct(reference: OperatorReference) -> str:
    """The operator's struct as `DirectML.h` declares it, with the inputs and outputs named."""
    enums = {each.name: each.bounds for each in reference.fields if each.type == "UINT" and each.bounds[:1].isalpha()}
    lines = [f"struct DML_{reference.name}_OPERATOR_DESC {{"]
    for field in reference.facts.fields:
        said = "in" if field.kind == "input" else "out" if field.kind == "output" else ""
        notes = [said, "may be null" if field.optional else "", enums.get(field.name, "")]
        comment = ", ".join(filter(None, notes))
        kind = _enum_name(reference, field) or _C_TYPES[field.type]
        lines.append(f"    {kind} {field.name};{f'  // {comment}' if comment else ''}")
    return "\n".join([*lines, "};"])


def _enum_name(reference: OperatorReference, field: FieldFacts) -> str | None:
    """The C enum of a field, as in DML_INTERPOLATION_MODE; the catalogue has UINT for all of them."""
    info = operator_class(reference.name).model_fields[field.attribute_name]
    return next((each.prefix.removesuffix("_") for each in info.metadata if isinstance(each, CEnum)), None)


def _onnx_sentence(reference: OperatorReference) -> str:
    parts: list[str] = []
    if reference.twins:
        names = ", ".join(f"`{name}`" for name in reference.twins)
        parts.append(f"DirectML's operator computes nodes of {names}.")
    if reference.relatives:
        names = ", ".join(f"`{name}`" for name in reference.relatives)
        parts.append(
            f"{names}: of the same kind, but DirectML answers some nodes otherwise. tensorpost computes them as "
            "ONNX says."
        )
    return " ".join(parts) or "No operator of ONNX is computed by this one."

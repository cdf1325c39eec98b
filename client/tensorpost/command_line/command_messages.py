"""Refusals in the command line's words: its options instead of arguments and fields, and what a picture's axes are."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import IntEnum
from typing import Any

from .. import descriptors as dml
from ..descriptors.catalogue import FieldFacts
from ..onnx import OnnxSchema
from ..values.datatypes import TensorDataType
from ..values.problems import InvalidDescriptor, InvalidParameter, InvalidRequest, Violation
from ..values.sentences import Reference, worded
from .files import Source, picture_axes

_EXAMPLES: Mapping[str, str] = {
    "FLOAT": "0.5", "INT": "1", "SCALAR_UNION": "1", "UINT": "1", "BOOL": "true", "FLOAT_ARRAY": "1.5,1.5,...",
    "INT_ARRAY": "1,1,...", "UINT_ARRAY": "1,1,...", "SIZE_2D": """'{"Width": 2, "Height": 2}'""",
    "SCALE_BIAS": """'{"Scale": 2, "Bias": 1}'""", "OPERATOR_DESC": """'{"type": "ACTIVATION_RELU", "desc": {}}'""",
    "OPERATOR_DESC_ARRAY": """'[{"type": "ACTIVATION_RELU", "desc": {}}]'""",
}  # fmt: skip
"""How a shell writes a value of each of DirectML's schema types."""
_NODE_EXAMPLES: Mapping[str, str] = {
    "axes": "0,1", "equation": "'ij->ji'", "pads": "0,0,1,1", "perm": "1,0", "scales": "1,1,2,2", "shape": "2,3",
    "sizes": "1,1,4,4", "split": "1,1", "to": "float16",
}  # fmt: skip
"""How values of ONNX's attributes and small inputs are written whose type does not say it."""
_LIST = re.compile(r"\b(?:array|entry|entries)\b")
"""What a rule expects of a list."""


@contextmanager
def picture_notes(sources: Sequence[tuple[str, Source]], advice: str, *, of_lists: bool = False) -> Generator[None]:
    """Add to a refusal what the axes of the pictures are that were read, and the command's advice.

    Args:
        sources: paths and what was read from them.
        advice: how to write the options for rows, columns and channels.
        of_lists: whether the options are any operator's: axes are noted where a rule of its own is broken, and the
            advice where the rule is of a list.
    """
    try:
        yield
    except InvalidRequest as error:
        pictures = [(path, source) for path, source in sources if source.is_picture]
        if of_lists and not isinstance(error, InvalidDescriptor):
            raise
        if pictures and error.status is None:  # a server speaks of its limits, not of axes
            for path, source in pictures:
                error.add_note(f"{path} is {picture_axes(source.array.shape)}, in this order")
            if not of_lists or any(_LIST.search(violation.expected) for violation in error.violations):
                error.add_note(advice)
        raise


ROWS_WORDS = {"rows": "--rows"}


@contextmanager
def option_words(words: Mapping[str, str]) -> Generator[None]:
    """Name options in a refusal: `axes[1]` becomes `entry 2 of --axes`, `x` becomes `IN`.

    Args:
        words: the option of each argument or field.
    """

    def option_of(reference: Reference) -> str:
        option = words.get(reference.name)
        if option is None or reference.index is None:
            return option or reference.text
        return f"entry {reference.index + 1} of {option}"

    try:
        yield
    except (InvalidDescriptor, InvalidParameter) as error:
        if error.status is not None:
            raise
        violations = [
            replace(v, message=worded(v.message, option_of), path=_option_path(v, words)) for v in error.violations
        ]
        raise type(error)(worded(error.detail, option_of), tuple(violations), error.extra) from None


def _option_path(violation: Violation, words: Mapping[str, str]) -> tuple[str | int, ...]:
    """The option that a violation is about, or its path where there is none."""
    return next(((words[str(key)],) for key in violation.path if key in words), violation.path)


def setting_words(cls: type[dml.OperatorDesc], error: InvalidDescriptor) -> InvalidDescriptor:
    """The error of an operator whose attributes were given with `--set`: their names there, and how they are given."""
    fields = {field.name: field for field in cls.facts.fields_by_kind["attribute"]}
    shown: list[Violation] = []
    examples: dict[str, None] = {}
    for violation in dml.operator_desc.in_attribute_names(cls, error.violations):
        name = str(violation.path[1]) if len(violation.path) > 1 else ""
        if name in fields:
            examples[f"-s {fields[name].attribute_name}={_example(cls, fields[name])}"] = None
            violation = replace(violation, path=(f"--set {fields[name].attribute_name}",))  # noqa: PLW2901 # named anew
        elif settings := dml.operator_desc.output_settings(violation):
            values = {"output_data_type": "FLOAT32", "output_sizes": "1,1,4,4"}
            examples[" ".join([f"-s {setting}={values[setting]}" for setting in settings])] = None
            message = f"{' and '.join(settings)} must be given, since the output does not follow from the rest"
            violation = replace(violation, path=(f"--set {settings[0]}",), message=message)  # noqa: PLW2901 # named anew
        shown.append(violation)
    return _with_examples(error, shown, examples)


def node_words(error: InvalidDescriptor, schema: OnnxSchema) -> InvalidDescriptor:
    """The error of an ONNX node whose attributes and small inputs were given with `--set`.

    Args:
        error: the violations, with paths of a node's document.
        schema: the version of the operator; its data inputs are files.
    """
    tensors = [slot.name for slot in schema.data_inputs]
    shown: list[Violation] = []
    examples: dict[str, None] = {}
    for violation in error.violations:
        name = str(violation.path[1]) if len(violation.path) > 1 else ""
        if name and name not in tensors:
            if violation.code != "attribute-unknown":
                examples[f"-s {name}={_node_example(schema, name)}"] = None
            violation = replace(violation, path=(f"--set {name}",))  # noqa: PLW2901 # named anew
        elif violation.code == "input-missing":
            message = f"{schema.name} needs the input {name}, which is a file"
            violation = replace(violation, message=message, expected="a file")  # noqa: PLW2901 # in these words
        shown.append(violation)
    return _with_examples(error, shown, examples)


def _with_examples(error: InvalidDescriptor, shown: list[Violation], examples: Iterable[str]) -> InvalidDescriptor:
    refusal = type(error).of(shown)
    refusal.extra = error.extra
    if written := " ".join(examples):
        refusal.add_note(f"write it as in: {written}")
    return refusal


def _node_example(schema: OnnxSchema, name: str) -> str:
    """How a value of an attribute or a small input is written: `scales=1,1,2,2`."""
    attribute = schema.attribute(name)
    if name in _NODE_EXAMPLES or attribute is None:
        return _NODE_EXAMPLES.get(name, "1")
    if attribute.choices:
        return str(attribute.choices[0])
    return {"FLOAT": "0.5", "INT": "1", "FLOATS": "1.5,1.5", "INTS": "1,1"}.get(attribute.type, "VALUE")


def _example(cls: type[dml.OperatorDesc], field: FieldFacts) -> str:
    kind: Any = cls.model_fields[field.attribute_name].annotation
    if kind is bool:
        return "true"
    if kind is TensorDataType:
        return TensorDataType.FLOAT32.name
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return next(iter(kind)).name
    return "0,1" if field.attribute_name == "axes" else _EXAMPLES[field.type]

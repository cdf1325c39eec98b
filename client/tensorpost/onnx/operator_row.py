"""`OperatorRow`: what the SDK knows of an ONNX operator, in addition to its versions in `operators.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from .directml_twins import DirectmlTwin
from .inference_context import InferenceContext, InferredOutputs

Rule: TypeAlias = Callable[[InferenceContext], InferredOutputs]
Choices: TypeAlias = Mapping[int, tuple[str, ...]]
"""The values of an attribute, by the version that brought them."""


class OperatorRow(NamedTuple):
    """An ONNX operator, in all of its versions.

    Attributes:
        rule: reads what a node was given; gives the shapes of its outputs, and its parameters for the server's form.
        twin: DirectML's operator of the same function, or `untranslated`; None for Tile and Resize, of which
            `lowering.py` says how well DirectML's do.
        by_value: names of the inputs whose elements decide the output's shape, or what is computed for all elements
            alike.
        choices: values that an attribute may have, where ONNX's schema does not list them.
        reads_broken: whether the rule looks at nodes that are broken already, to name everything at once.
    """

    rule: Rule
    twin: DirectmlTwin | None
    by_value: str = ""
    choices: Mapping[str, Choices] = {}
    reads_broken: bool = False

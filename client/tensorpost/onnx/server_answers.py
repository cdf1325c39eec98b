"""What a server said of operators that only the package `onnx` knows, for a process without the package.

Reading a node asks here; a question without an answer is kept, so that the call can put it to the server and read the
node again. The answers are facts of ONNX and hold for every server.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from ..values.onnx_package import InferredModel, SchemaVersion

__all__ = ["InferenceQuestion", "PackageQuestion", "SchemaQuestion", "answer_of", "keep_answer", "take_question"]

MOST_ANSWERS = 1024
"""Number of answers that are kept; the one that was used longest ago is dropped first."""


@dataclass(frozen=True, slots=True)
class SchemaQuestion:
    """Which version of an operator an opset means, and what it takes and makes.

    Attributes:
        op_type: the operator.
        opset: the opset.
    """

    op_type: str
    opset: int


@dataclass(frozen=True, slots=True)
class InferenceQuestion:
    """Which outputs a node has.

    Attributes:
        text: the node as JSON, as `POST /v1/validate` takes it.
    """

    text: str

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> InferenceQuestion:
        """The question about a node that `values/onnx_package.py` would be asked about."""
        inputs: dict[str, Any] = {
            name: {"data_type": _onnx_name(code), "shape": [*shape]} for name, code, shape in node["tensors"]
        }
        inputs |= {name: {"data_type": kind, "data": [*numbers]} for name, kind, numbers in node["constants"]}
        attributes = {name: _as_json(value) for name, value in node["attributes"].items()}
        document = {"op_type": node["op_type"], "opset": node["version"], "inputs": inputs, "attributes": attributes}
        count = len(node["outputs"])
        return cls(json.dumps(document | ({"outputs": count} if count > 1 else {})))


PackageQuestion = SchemaQuestion | InferenceQuestion

_question: ContextVar[PackageQuestion | None] = ContextVar("tensorpost_package_question", default=None)
_answers: OrderedDict[PackageQuestion, Any] = OrderedDict()
_lock = threading.Lock()


def answer_of(question: PackageQuestion) -> Any:
    """The answer: a `SchemaVersion`, or an `InferredModel`; None, and the question is kept, if there is none."""
    with _lock:
        found = _answers.get(question)
        if found is not None:
            _answers.move_to_end(question)
    if found is None:
        _question.set(question)
    return found


def keep_answer(question: PackageQuestion, answer: SchemaVersion | InferredModel) -> None:
    """Keep what a server said."""
    with _lock:
        _answers[question] = answer
        if len(_answers) > MOST_ANSWERS:
            _answers.popitem(last=False)


def take_question() -> PackageQuestion | None:
    """The question that was asked last in this context and has no answer; None if there is none."""
    found = _question.get()
    _question.set(None)
    return found


def _onnx_name(code: int) -> str:
    from ..values.datatypes import DATA_TYPES

    return next(row.onnx for row in DATA_TYPES if row.onnx_code == code)


def _as_json(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    entries: list[Any] = [*cast("tuple[Any, ...]", value)]
    if len(entries) == 2 and isinstance(entries[0], str):  # a tensor of one number
        return {"data_type": entries[0], "shape": [1], "data": entries[1:]}
    return entries

"""Strings in ONNX nodes: the same node is computed on numbers that stand for them.

An operator that only moves elements, or asks whether two are equal, does the same to any set of distinct values. So
each string gets a number, the node is computed with int64 in the place of string, and numbers in the outputs become
strings again. 0 is the empty string, which ONNX puts where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..values.operation import Operation
from ..values.problems import InvalidDescriptor, InvalidParameter, Violation
from .node import OnnxNode

__all__ = ["StringCall", "StringTable", "has_string_outputs", "has_strings", "numbers_node"]

_MOVERS = frozenset({
    "CenterCropPad", "Concat", "DepthToSpace", "Equal", "Expand", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "OneHot", "Pad", "Reshape", "Resize", "ReverseSequence", "ScatterElements", "ScatterND",
    "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample", "Where",
})  # fmt: skip
"""Operators to which it makes no difference what the elements are. What else they compute is refused by attribute."""
_MOVING: Mapping[str, object] = {"mode": "nearest", "reduction": "none"}
_MODES = frozenset({"Resize", "Upsample"})  # of other operators the mode says where elements go


def has_strings(operation: Operation) -> bool:
    """Whether an operation works on strings."""
    return isinstance(operation, OnnxNode) and any(
        tensor.data_type == "str" for _, tensor in (*operation.tensors, *operation.results)
    )


def has_string_outputs(node: OnnxNode) -> bool:
    """Whether strings come out of a node."""
    return any(tensor.data_type == "str" for _, tensor in node.results)


def numbers_node(node: OnnxNode) -> OnnxNode:
    """The same node with int64 in the place of string.

    Raises:
        InvalidDescriptor: the operator does more with strings than to move or compare them.
    """
    computes = [
        name
        for name, moving in _MOVING.items()
        if node.attribute(name) not in (None, moving) and (name != "mode" or node.op_type in _MODES)
    ]
    if node.op_type not in _MOVERS or computes:
        what = f"{node.op_type} with this {computes[0]}" if computes else node.op_type
        message = f"{what} computes with strings; here they can only be moved and compared"
        path = ("attributes", computes[0]) if computes else ("op_type",)
        raise InvalidDescriptor.of([Violation("strings-computed", path, message, node.op_type, "numbers")])
    document = node.to_json()
    inputs: dict[str, Any] = {
        name: {**entry, "data_type": "int64"} if _is_string(entry) else entry
        for name, entry in document["inputs"].items()
    }
    return OnnxNode.from_json({**document, "inputs": inputs})


def _is_string(entry: object) -> bool:
    return isinstance(entry, dict) and cast("dict[str, Any]", entry).get("data_type") == "string"


class StringCall(NamedTuple):
    """A node that works on strings, and the numbers that stand for them.

    Attributes:
        node: the node as the caller gave it.
        table: the strings in its inputs, each by its number.
    """

    node: OnnxNode
    table: StringTable


class StringTable:
    """Numbers for strings, the same number for the same string.

    Examples:
        >>> table = StringTable()
        >>> table.numbers([b"a", b"", b"a"]).tolist()
        [1, 0, 1]
        >>> table.strings(np.array([0, 1]))
        [b'', b'a']
    """

    def __init__(self) -> None:
        self._strings: list[bytes] = [b""]
        self._numbers: dict[bytes, int] = {b"": 0}

    def numbers(self, elements: Iterable[bytes]) -> NDArray[np.int64]:
        """The numbers of these strings, in a row."""
        known, strings, numbers = self._numbers, self._strings, list[int]()
        for element in elements:
            number = known.get(element)
            if number is None:
                number = known[element] = len(strings)
                strings.append(element)
            numbers.append(number)
        return np.array(numbers, np.int64)

    def strings(self, numbers: NDArray[np.int64]) -> list[bytes]:
        """The strings of these numbers, in a row."""
        strings = self._strings
        return [strings[number] for number in numbers.reshape(-1).tolist()]

    def total_bytes(self, numbers: NDArray[np.int64]) -> int:
        """Bytes of the strings of these numbers together."""
        lengths = np.array([len(element) for element in self._strings], np.int64)
        return int(lengths[numbers.reshape(-1)].sum())

    def numbers_of_array(self, name: str, array: NDArray[Any]) -> NDArray[np.int64]:
        """The numbers of an array of strings: StringDType, Python's str (or bytes) as objects, or of fixed length.

        Raises:
            InvalidParameter: an element is something else.
        """
        elements: list[object] = np.asarray(array).reshape(-1).tolist()
        for index, element in enumerate(elements):
            if not isinstance(element, (str, bytes)):
                raise InvalidParameter(
                    f"{name} is an array of {array.dtype}, and element {index} is a {type(element).__name__}, no text"
                )
        texts = cast("list[str | bytes]", elements)
        encoded = [element.encode() if isinstance(element, str) else element for element in texts]
        return self.numbers(encoded).reshape(array.shape)

    def array(self, numbers: NDArray[np.int64], like: np.dtype[Any]) -> NDArray[Any]:
        """The strings of these numbers as an array: of StringDType if `like` is, else of Python's str as objects."""
        texts = np.empty(numbers.size, like if like.kind == "T" else object)
        texts[...] = [element.decode() for element in self.strings(numbers)]
        return texts.reshape(numbers.shape)

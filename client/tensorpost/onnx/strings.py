"""Strings in ONNX nodes: the same node is computed on numbers that stand for them.

An operator that only moves elements, or asks whether two are equal, does the same to any set of distinct values. So
each string gets a number, the node is computed with int64 in the place of string, and numbers in the outputs become
strings again. 0 is the empty string, which ONNX puts where nothing else is said. Cast and CastLike read texts as
numbers before anything is computed, and write numbers as texts afterwards (`string_casts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..values.datatypes import data_type
from ..values.operation import Operation
from ..values.problems import InvalidDescriptor, InvalidParameter, Violation
from .node import OnnxNode
from .string_casts import LONGEST_NUMBER_BYTES, number_texts, numbers_of_texts, parsed_type
from .tensor import OnnxTensor

__all__ = ["StringCall", "StringTable", "has_string_outputs", "has_strings", "is_cast", "numbers_node", "text_array"]

_MOVERS = frozenset({
    "CenterCropPad", "Concat", "DepthToSpace", "Equal", "Expand", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "OneHot", "Pad", "Reshape", "Resize", "ReverseSequence", "Scatter", "ScatterElements",
    "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu",
    "Unsqueeze", "Upsample", "Where",
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


def is_cast(node: OnnxNode) -> bool:
    """Whether a node converts strings to numbers or the reverse."""
    return node.op_type in ("Cast", "CastLike") and node.input.data_type != node.output.data_type


def numbers_node(node: OnnxNode) -> OnnxNode:
    """The same node with int64 in the place of string; of a Cast, what is left to do for numbers.

    Raises:
        InvalidDescriptor: the operator does more with strings than to move or compare them.
    """
    if node.op_type in ("Cast", "CastLike"):
        return _cast_of_numbers(node)
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


def _cast_of_numbers(node: OnnxNode) -> OnnxNode:
    """A Cast of the numbers that were read, or to the type that they have, so that they can be written."""
    source, target = node.input.row, node.output.row
    if source.numpy_name == "str":
        kind = "int64" if target.numpy_name == "str" else parsed_type(target)
        source, target = data_type(kind), data_type(kind) if target.numpy_name == "str" else target
    else:
        target = source
    kept = {name: value for name, value in node.attributes if name in ("saturate", "round_mode")}
    inputs = {"input": OnnxTensor(source.numpy_name, node.input.shape)}
    return OnnxNode("Cast", inputs, {**kept, "to": target.onnx_code}, opset=node.opset)


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

    @property
    def reads_texts(self) -> bool:
        """Whether the node is a Cast of texts, which are read as numbers."""
        return is_cast(self.node) and self.node.input.data_type == "str"

    def read(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """What the computation gets for the numbers of an input's strings: of a Cast, what the texts say.

        Raises:
            InvalidDescriptor: a text says no number.
        """
        if not self.reads_texts:
            return numbers
        return self.table.parsed(numbers, parsed_type(self.node.output.row))

    def size_of(self, computed: bytes | bytearray) -> tuple[int, int]:
        """How many strings the bytes of an output stand for, and the most bytes that they take with their lengths."""
        if is_cast(self.node):
            count = len(computed) // self.node.input.row.item_size
            return count, count * (LONGEST_NUMBER_BYTES + 4)
        numbers = np.frombuffer(computed, np.int64)
        return numbers.size, self.table.total_bytes(numbers) + 4 * numbers.size

    def written(self, computed: bytes | bytearray) -> list[bytes]:
        """The strings that the bytes of an output stand for."""
        if is_cast(self.node):
            return number_texts(np.frombuffer(computed, self.node.input.row.dtype))
        return self.table.strings(np.frombuffer(computed, np.int64))


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

    def parsed(self, numbers: NDArray[np.int64], kind: str) -> NDArray[Any]:
        """What the strings of these numbers say, in the same shape; see `number_of_text`.

        Raises:
            InvalidDescriptor: one says no number.
        """
        used, places = np.unique(numbers, return_inverse=True)
        return numbers_of_texts(self.strings(used), kind)[places.reshape(numbers.shape)]

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


def text_array(strings: Sequence[bytes], shape: tuple[int, ...], like: np.dtype[Any]) -> NDArray[Any]:
    """Strings as an array: of StringDType if `like` is, else of Python's str as objects."""
    texts = np.empty(len(strings), like if like.kind == "T" else object)
    texts[...] = [element.decode() for element in strings]
    return texts.reshape(shape)

"""Attention of several heads: MULTIHEAD_ATTENTION and MULTIHEAD_ATTENTION1.

Sources: the DML_MULTIHEAD_ATTENTION page, how ONNX Runtime's GroupQueryAttention uses MULTIHEAD_ATTENTION1, whose page
says TBD of what is new in it, and what DirectML 1.15.4 itself accepts and answers.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..values.layout import packed_strides
from ..values.problems import Violation
from ..values.sentences import named
from .completion import Given, Inferred, NotGiven, packed
from .fields import CEnum, Float, UInt
from .operator_desc import OperatorDesc
from .size_patterns import shown_pattern, sizes_by_pattern
from .tensor import BufferTensorDesc

__all__ = [
    "Attention",
    "MultiheadAttention1OperatorDesc",
    "MultiheadAttentionMaskType",
    "MultiheadAttentionOperatorDesc",
]


class MultiheadAttentionMaskType(enum.IntEnum):
    """`DML_MULTIHEAD_ATTENTION_MASK_TYPE`: what the mask tensor holds; its sizes are in the descriptor's docstring."""

    NONE = 0
    KEY_SEQUENCE_LENGTH = 1
    KEY_SEQUENCE_END_START = 2
    KEY_QUERY_SEQUENCE_LENGTH_START_END = 3
    BOOLEAN = 4


_SIZES: Mapping[str, str] = {
    "query_tensor": "B S H*E",
    "key_tensor": "B L K*E",
    "value_tensor": "B L K*V",
    "stacked_query_key_tensor": "B S H 2 E",
    "stacked_key_value_tensor": "B L K 2 E",
    "stacked_query_key_value_tensor": "B S H 3 E",
    "bias_tensor": "H*E+K*E+K*V",
    "relative_position_bias_tensor": "B H S T",
    "attention_bias_tensor": "B H S T",
    "past_key_tensor": "B K P E",
    "past_value_tensor": "B K P V",
    "past_sequence_lengths_tensor": "B",
    "output_tensor": "B S H*V",
    "output_present_key_tensor": "B K T E",
    "output_present_value_tensor": "B K T V",
}
"""Sizes by field, without leading ones, in the letters of `Attention`."""

_MASKS = ("", "1 B", "2 B", "3*B+2", "B H S T")
"""The same of the mask, by its type."""

_SOURCES = (
    "query_tensor", "key_tensor", "value_tensor", "stacked_query_key_tensor", "stacked_key_value_tensor",
    "stacked_query_key_value_tensor",
)  # fmt: skip
_LEGAL = {
    frozenset({"query_tensor", "key_tensor", "value_tensor"}),
    frozenset({"stacked_query_key_tensor", "value_tensor"}),
    frozenset({"query_tensor", "stacked_key_value_tensor"}),
    frozenset({"stacked_query_key_value_tensor"}),
}


class Attention(OperatorDesc):
    """Base of both; their first fields, the sizes of all and what follows from them.

    The letters of sizes: B batch, S queries, L new keys, P keys of the past, T = P + L, H heads (`head_count`,
    `query_head_count`), K heads of keys and values (`head_count`, `key_value_head_count`), E size of a head, V size of
    a value's head. Every tensor but the stacked ones may have more dimensions, of size 1, before those named here.

    Attributes:
        head_counts: the fields that H and K are.
        query_tensor: {B, S, H*E}.
        key_tensor: {B, L, K*E}.
        value_tensor: {B, L, K*V}.
        stacked_query_key_tensor: {B, S, H, 2, E} instead of query and key.
        stacked_key_value_tensor: {B, L, K, 2, E} instead of key and value.
        stacked_query_key_value_tensor: {B, S, H, 3, E} instead of all three.
        bias_tensor: {H*E + K*E + K*V}, added to query, key and value; or absent.
        mask_tensor: INT32, by the mask type: {1, B} keys of each row; {2, B} their end, then their start; {3*B + 2} the
            keys of each row, the first query of each and the last one's end, the first key of each and the last one's
            end, counting queries over rows of S and keys over rows of T; BOOLEAN {B, H, S, T}. Absent for NONE.
    """

    head_counts: ClassVar[tuple[str, ...]]

    query_tensor: BufferTensorDesc | None = None
    key_tensor: BufferTensorDesc | None = None
    value_tensor: BufferTensorDesc | None = None
    stacked_query_key_tensor: BufferTensorDesc | None = None
    stacked_key_value_tensor: BufferTensorDesc | None = None
    stacked_query_key_value_tensor: BufferTensorDesc | None = None
    bias_tensor: BufferTensorDesc | None = None
    mask_tensor: BufferTensorDesc | None = None

    if TYPE_CHECKING:  # these stand after others that are not the same
        past_key_tensor: BufferTensorDesc | None
        past_value_tensor: BufferTensorDesc | None
        scale: float
        mask_filter_value: float
        mask_type: MultiheadAttentionMaskType

    @property
    def letters(self) -> Mapping[str, int]:
        """The sizes by letter; what cannot be known is 0."""
        heads = [getattr(self, name) for name in self.head_counts]
        return _letters({str(path[0]): tensor.sizes for path, tensor in self.tensors()}, heads[0], heads[-1])

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """A scale of 1 / sqrt(E), and the output; the present ones are not asked for."""
        names = [*cls.fields_of_kind("input"), *cls.fields_of_kind("output")]
        tensors = {name: given.structure(BufferTensorDesc, name) for name in names}
        sources = [tensor for name, tensor in tensors.items() if tensor is not None and name in _SOURCES]
        heads = [given.integer(name) for name in cls.head_counts]
        if not sources or min(heads) < 1:
            raise NotGiven("query_tensor")
        known = _letters(
            {name: tensor.sizes for name, tensor in tensors.items() if tensor is not None}, heads[0], heads[-1]
        )
        yield "scale", 1 / math.sqrt(max(1, known["E"]))
        yield "output_tensor", packed(sources[0].data_type, sizes_by_pattern(_SIZES["output_tensor"], known))

    def operator_rules(self) -> Iterator[Violation]:
        """Query, key and value have one source each, all sizes agree, and a mask is there if there is a type for it."""
        tensors = self.tensors()
        whole = ("mask_tensor", "past_sequence_lengths_tensor")
        floats = [str(path[0]) for path, _ in tensors if path[0] not in whole]
        yield from self.same_data_type(*floats)
        yield from self.same_dimension_count("query_tensor", "key_tensor", "value_tensor", "output_tensor")
        yield from self._source_rules()
        for name in self.head_counts:
            if not getattr(self, name):
                yield self.broken("head-count", (self.names_of_fields()[name],), "there are no heads", 0, "at least 1")
        if (self.mask_tensor is None) != (self.mask_type is MultiheadAttentionMaskType.NONE):
            message = (
                named("MaskType")
                + f" is {self.mask_type.name}, but there is {'no' if self.mask_tensor is None else 'a'} mask"
            )
            path = ("MaskType" if self.mask_tensor is None else "MaskTensor",)
            expected = "a mask tensor with its type, or neither"
            yield self.broken("mask-type", path, message, self.mask_type.name, expected)
        if (self.past_key_tensor is None) != (self.past_value_tensor is None):
            path = ("PastKeyTensor" if self.past_value_tensor is None else "PastValueTensor",)
            expected = "PastKeyTensor and PastValueTensor, or neither"
            yield self.broken("past", path, "the past must have both keys and values, or neither", None, expected)
        known = self.letters
        if not known["H"] or not known["K"]:
            return
        for path, tensor in tensors:
            field = str(path[0])
            pattern = _MASKS[self.mask_type] if field == "mask_tensor" else _SIZES[field]
            if not pattern:
                continue
            wanted, sizes = sizes_by_pattern(pattern, known), list(tensor.sizes)
            leading = len(sizes) - len(wanted)
            if leading < 0 or sizes != [1] * leading + wanted:
                name = self.names_of_fields()[field]
                message = f"{name}.Sizes must be {shown_pattern(pattern, known)}, after any leading ones: {wanted}"
                yield self.broken("attention-sizes", (name, "Sizes"), message, sizes, str(wanted))

    def _source_rules(self) -> Iterator[Violation]:
        found = [name for name in _SOURCES if getattr(self, name) is not None]
        if frozenset(found) not in _LEGAL:
            names = [self.names_of_fields()[name] for name in found]
            message = f"query, key and value need one source each, not {', '.join(names) or 'none'}"
            expected = "Query, Key, Value; StackedQueryKey, Value; Query, StackedKeyValue; or StackedQueryKeyValue"
            yield self.broken("attention-sources", (), message, names, expected)


def _letters(tensors: Mapping[str, Sequence[int]], heads: int, value_heads: int) -> Mapping[str, int]:
    """The sizes by letter, from whichever tensors are there; the rules compare all others with them."""

    def size(name: str, at: int) -> int:
        """A dimension counted from the last one; 0 if it is not there."""
        sizes = tensors.get(name, ())
        return sizes[at] if len(sizes) >= -at else 0

    query, stacked = "query_tensor", [name for name in _SOURCES if name.startswith("stacked_query") and name in tensors]
    if stacked:
        batch, queries, head = (size(stacked[0], at) for at in (-5, -4, -1))
    else:
        batch, queries, head = size(query, -3), size(query, -2), size(query, -1) // max(1, heads)
    keys = size("key_tensor", -2) or size("stacked_key_value_tensor", -4) or (queries if stacked else 0)
    value = size("value_tensor", -1) // max(1, value_heads) if "value_tensor" in tensors else head
    past = size("past_key_tensor", -2)
    total = past + keys
    if "past_sequence_lengths_tensor" in tensors:  # the present has room for more
        total = size("output_present_key_tensor", -2) or keys
    return {
        "B": batch, "S": queries, "L": keys, "P": past, "T": total, "H": heads, "K": value_heads, "E": head, "V": value,
    }  # fmt: skip


MaskType = Annotated[MultiheadAttentionMaskType, CEnum("DML_MULTIHEAD_ATTENTION_MASK_TYPE_")]


class MultiheadAttentionOperatorDesc(Attention):
    """`DML_OPERATOR_MULTIHEAD_ATTENTION`: `softmax(Scale * Q K' + bias, masked) V` for each head.

    Attributes:
        relative_position_bias_tensor: {B, H, S, T}, added to the scores; or absent.
        past_key_tensor: {B, H, P, E}, keys before the new ones; or absent.
        past_value_tensor: {B, H, P, V}; absent with the keys.
        output_tensor: {B, S, H*V}.
        output_present_key_tensor: {B, H, T, E}, all keys; or absent.
        output_present_value_tensor: {B, H, T, V}; or absent.
        scale: factor of the products; 1 / sqrt(E) where it is left out.
        mask_filter_value: added to scores that are masked; of a BOOLEAN mask, times 1 - mask.
        head_count: H, which is K too.
        mask_type: what the mask holds.
    """

    head_counts = ("head_count",)

    relative_position_bias_tensor: BufferTensorDesc | None = None
    past_key_tensor: BufferTensorDesc | None = None
    past_value_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    output_present_key_tensor: BufferTensorDesc | None = None
    output_present_value_tensor: BufferTensorDesc | None = None
    scale: Float
    mask_filter_value: Float = -10000.0
    head_count: UInt
    mask_type: MaskType = MultiheadAttentionMaskType.NONE


class MultiheadAttention1OperatorDesc(Attention):
    """`DML_OPERATOR_MULTIHEAD_ATTENTION1`: the same where several heads of queries share those of keys and values.

    Attributes:
        attention_bias_tensor: {B, H, S, T}, added to the scores; or absent.
        past_key_tensor: {B, K, P, E}, keys before the new ones; or absent.
        past_value_tensor: {B, K, P, V}; absent with the keys.
        past_sequence_lengths_tensor: {B}, INT32, packed, how many keys each row of the present has before the new
            ones; or absent. New key i goes to place (length + i) modulo T of the present, and query q has the places
            after length + q masked, both sums as unsigned numbers of 32 bits (DirectML 1.15.4). Places without a new
            key are zeros; DirectML leaves its memory there as it was.
        output_tensor: {B, S, H*V}.
        output_present_key_tensor: {B, K, T, E}, all keys; or absent.
        output_present_value_tensor: {B, K, T, V}; or absent.
        scale: factor of the products; 1 / sqrt(E) where it is left out.
        mask_filter_value: see `MultiheadAttentionOperatorDesc`.
        query_head_count: H, a multiple of K.
        key_value_head_count: K; query head h uses h // (H / K).
        mask_type: what the mask holds.
    """

    head_counts = ("query_head_count", "key_value_head_count")

    attention_bias_tensor: BufferTensorDesc | None = None
    past_key_tensor: BufferTensorDesc | None = None
    past_value_tensor: BufferTensorDesc | None = None
    past_sequence_lengths_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    output_present_key_tensor: BufferTensorDesc | None = None
    output_present_value_tensor: BufferTensorDesc | None = None
    scale: Float
    mask_filter_value: Float = -10000.0
    query_head_count: UInt
    key_value_head_count: UInt
    mask_type: MaskType = MultiheadAttentionMaskType.NONE

    def operator_rules(self) -> Iterator[Violation]:
        """The number of query heads is a multiple of that of keys; a buffer of keys has room for the new ones."""
        yield from super().operator_rules()
        heads, shared = self.query_head_count, self.key_value_head_count
        stacked = self.stacked_query_key_tensor or self.stacked_query_key_value_tensor
        if shared and (heads % shared or (stacked and heads != shared)):
            expected = "the same as QueryHeadCount" if stacked else "a divisor of QueryHeadCount"
            message = f"{heads} heads of queries cannot share {shared} of keys and values"
            yield self.broken("head-count", ("KeyValueHeadCount",), message, shared, expected)
        if self.past_sequence_lengths_tensor is None:
            return
        path, known = ("PastSequenceLengthsTensor",), self.letters
        lengths = self.past_sequence_lengths_tensor
        steps = zip(lengths.sizes, lengths.strides or (), packed_strides(lengths.sizes), strict=False)
        if any(step != wanted for size, step, wanted in steps if size > 1):
            message = "the lengths must be packed (CreateOperator of DirectML 1.15.4; the page is silent)"
            yield self.broken("not-packed", (*path, "Strides"), message, list(lengths.strides or ()), "packed strides")
        if self.output_present_key_tensor is None or self.output_present_value_tensor is None:
            yield self.broken(
                "past", path, "the lengths are of the present, which is not asked for", None, "both presents"
            )
        elif known["L"] > known["T"]:
            message = f"the present has room for {known['T']} keys, but there are {known['L']} new ones"
            yield self.broken("past", path, message, known["T"], f"at least {known['L']}")
        for name in ("past_key_tensor", "past_value_tensor", "mask_tensor", "attention_bias_tensor"):
            if getattr(self, name) is not None:
                field = self.names_of_fields()[name]
                yield self.broken("past", (field,), f"{field} and lengths exclude each other", None, "one of them")

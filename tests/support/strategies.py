"""Hypothesis strategies for valid descriptors: every layout that DirectML allows, in small tensors.

Layouts are built here from their meaning (a permutation with gaps, a broadcast, an overlap), not with the functions
under test. What these strategies draw must always be accepted; a refusal is a failure of the test that uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from tests.support import oracles
from tests.support.descriptors import made

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc

__all__ = [
    "DATA_TYPE_BITS",
    "TILE_DATA_TYPES",
    "json_values",
    "one_to_one_strides",
    "sizes",
    "tensor_descs",
    "tile_cases",
    "tile_descs",
]

# DML_TENSOR_DATA_TYPE in the header's order, with the bits of one element
DATA_TYPE_BITS = {
    "FLOAT32": 32, "FLOAT16": 16, "UINT32": 32, "UINT16": 16, "UINT8": 8, "INT32": 32, "INT16": 16, "INT8": 8,
    "FLOAT64": 64, "UINT64": 64, "INT64": 64, "UINT4": 4, "INT4": 4,
}  # fmt: skip
# DML_TILE_OPERATOR_DESC page, tensor support of feature level 4_1
TILE_DATA_TYPES = (
    "FLOAT32", "FLOAT16", "INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8",
)  # fmt: skip


@st.composite
def sizes(draw: st.DrawFn, *, min_dims: int = 1, max_dims: int = 8, max_elements: int = 256) -> tuple[int, ...]:
    """Sizes of a tensor of at most `max_elements`; sizes of 1 are common, as they are in DirectML."""
    found: list[int] = []
    left = max_elements
    for _ in range(draw(st.integers(min_dims, max_dims))):
        size = draw(st.one_of(st.just(1), st.integers(1, min(5, left)), st.integers(1, left)))
        found.append(size)
        left //= size
    return tuple(draw(st.permutations(found)))


@st.composite
def one_to_one_strides(draw: st.DrawFn, of: Sequence[int], *, max_gap: int = 3) -> tuple[int, ...]:
    """Strides of any order of dimensions, with gaps between rows: no two coordinates share an offset.

    A dimension of size 1 may have any stride at all.
    """
    strides = [0] * len(of)
    reach = 0
    for axis in draw(st.permutations(range(len(of)))):
        if of[axis] == 1:
            strides[axis] = draw(st.one_of(st.integers(0, 9), st.just(2**32 - 1)))
            continue
        strides[axis] = reach + 1 + draw(st.integers(0, max_gap))
        reach += (of[axis] - 1) * strides[axis]
    return tuple(strides)


@st.composite
def _input_strides(draw: st.DrawFn, of: Sequence[int]) -> tuple[int, ...] | None:
    kind = draw(st.sampled_from(("none", "packed", "one-to-one", "broadcast", "any")))
    if kind == "none":
        return None
    if kind == "packed":
        return tuple(oracles.packed(of))
    if kind == "any":
        return tuple(draw(st.lists(st.integers(0, 7), min_size=len(of), max_size=len(of))))
    strides = draw(one_to_one_strides(of))
    if kind == "broadcast":
        repeated = draw(st.lists(st.booleans(), min_size=len(of), max_size=len(of)))
        strides = tuple(0 if zero else stride for zero, stride in zip(repeated, strides, strict=True))
    return strides


@st.composite
def tensor_descs(
    draw: st.DrawFn,
    *,
    data_types: Sequence[str] = TILE_DATA_TYPES,
    of: Sequence[int] | None = None,
    min_dims: int = 1,
    max_dims: int = 8,
    max_elements: int = 256,
    output: bool = False,
) -> BufferTensorDesc:
    """A valid tensor: packed, permuted, padded; as an input also broadcast or overlapping, and OWNED_BY_DML.

    Args:
        draw: Hypothesis.
        data_types: DirectML's short names to choose from.
        of: the sizes; drawn if None.
        min_dims: least number of dimensions drawn.
        max_dims: most dimensions drawn.
        max_elements: most elements drawn.
        output: only what an output may be.
    """
    dims = draw(sizes(min_dims=min_dims, max_dims=max_dims, max_elements=max_elements)) if of is None else tuple(of)
    data_type = draw(st.sampled_from(data_types))
    bits = DATA_TYPE_BITS[data_type]
    strides = draw(st.one_of(st.none(), one_to_one_strides(dims))) if output else draw(_input_strides(dims))
    fields: dict[str, Any] = {"data_type": data_type, "sizes": dims, "strides": strides}
    if draw(st.booleans()):
        beyond = draw(st.sampled_from((0, 0, 1, 4, 64)))
        fields["total_tensor_size_in_bytes"] = oracles.minimum_bytes(bits, dims, strides) + beyond
    if draw(st.booleans()):
        fields["guaranteed_base_offset_alignment"] = draw(st.sampled_from((16, 32, 256, 2**20)))
    if not output and draw(st.booleans()):
        fields["flags"] = "OWNED_BY_DML"
    if draw(st.booleans()):
        fields["dimension_count"] = len(dims)
    return BufferTensorDesc(**fields)


@st.composite
def tile_descs(
    draw: st.DrawFn,
    *,
    data_types: Sequence[str] = TILE_DATA_TYPES,
    min_dims: int = 1,
    max_dims: int = 8,
    max_elements: int = 512,
) -> TileOperatorDesc:
    """A valid Tile of at most `max_elements` output elements, in any layouts."""
    source = draw(
        tensor_descs(
            data_types=data_types, min_dims=min_dims, max_dims=max_dims, max_elements=max(1, max_elements // 4)
        )
    )
    left = max_elements
    for size in source.sizes:
        left //= size
    repeats: list[int] = []
    for _ in source.sizes:
        repeat = draw(st.one_of(st.just(1), st.integers(1, max(1, min(4, left)))))
        repeats.append(repeat)
        left //= repeat
    target = [size * repeat for size, repeat in zip(source.sizes, repeats, strict=True)]
    return made(
        TileOperatorDesc,
        input_tensor=source,
        output_tensor=draw(tensor_descs(data_types=(source.data_type.name,), of=target, output=True)),
        repeats=tuple(repeats),
    )


@st.composite
def tile_cases(draw: st.DrawFn, **options: Any) -> tuple[TileOperatorDesc, bytes]:
    """A Tile and the bytes of its input buffer, which are any bytes: NaNs and padding included."""
    desc = draw(tile_descs(**options))
    total = desc.input_tensor.total_tensor_size_in_bytes
    # A short drawn pattern repeated keeps examples small; 251 is prime, so no two rows look alike.
    pattern = draw(st.binary(min_size=1, max_size=16))
    return desc, bytes((pattern[i % len(pattern)] + i % 251) % 256 for i in range(total))


def json_values(max_leaves: int = 30) -> st.SearchStrategy[Any]:
    """Any JSON document that Python can hold, with the words of descriptors strewn in."""
    words = st.sampled_from(
        (
            "TILE",
            "FLOAT32",
            "DML_TENSOR_DATA_TYPE_FLOAT32",
            "DML_TENSOR_TYPE_BUFFER",
            "NONE",
            "OWNED_BY_DML",
            "",
            "\ud800",
        )
    )
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(0, 9), st.floats(), st.text(max_size=8), words,
        st.sampled_from((2**32 - 1, 2**32, 2**64, 10**4000, -1)),  # Python writes no more than 4300 digits
    )  # fmt: skip
    keys = st.one_of(
        st.text(max_size=5),
        st.sampled_from(
            (
                "type", "desc", "Type", "Desc", "InputTensor", "OutputTensor", "Repeats", "RepeatsCount", "DataType",
                "Sizes", "Strides", "Flags", "DimensionCount", "TotalTensorSizeInBytes", "sizes", "input_tensor",
                "GuaranteedBaseOffsetAlignment",
            )
        ),
    )  # fmt: skip
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=10), st.dictionaries(keys, inner, max_size=6)),
        max_leaves=max_leaves,
    )

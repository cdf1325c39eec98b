"""Random descriptors that begin as those of an operator's vectors, where `descriptor_cases` has no method for it.

Types, layouts and, where every tensor has the same sizes, sizes and rank are drawn anew; other attributes stay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tests.support.vectors import VECTORS, load

from tensorpost.descriptors import OperatorDesc
from tensorpost.descriptors.catalogue import FieldFacts, OperatorFacts

__all__ = ["drawn_from_vectors"]

Json = dict[str, Any]
TENSORS = ("TENSOR_DESC", "TENSOR_DESC_ARRAY")
SAME_TYPES, SAME_SIZES = 0.5, 0.3
"""How often the types and the sizes of the vector stay."""


def drawn_from_vectors(
    rng: random.Random, facts: OperatorFacts, sizes: Callable[[int], list[int]], laid_out: Callable[..., Json],
    numbers: dict[str, int],
) -> Json:  # fmt: skip
    """The fields of a descriptor.

    Args:
        rng: draws.
        facts: of the operator.
        sizes: random sizes for a rank.
        laid_out: `descriptor_cases.laid_out`.
        numbers: of DML_TENSOR_DATA_TYPE.
    """
    fields = document(rng.choice(_descriptors(facts.name)))
    tensors = [
        (field, part)
        for field in facts.fields
        if field.type in TENSORS and fields[field.name] is not None
        for part in (fields[field.name] if field.is_array else [fields[field.name]])
    ]
    types = {part["DataType"]: part["DataType"] for _, part in tensors}
    if rng.random() >= SAME_TYPES:
        rows = dict(facts.tables())
        for field, part in reversed(tensors):
            types[part["DataType"]] = rng.choice(rows[field.name][-1].data_types).name
    same = len({tuple(part["Sizes"]) for _, part in tensors}) == 1
    arrays = any(field.is_array and field.kind == "attribute" and fields[field.name] for field in facts.fields)
    shape = None
    if same and not arrays and rng.random() >= SAME_SIZES:
        low, high = dict(facts.tables())[tensors[0][0].name][-1].dimension_counts
        shape = sizes(rng.randint(low, high))
    for field, part in tensors:
        part.update(laid_out(rng, types[part["DataType"]], shape or part["Sizes"], output=field.kind == "output"))
    for field in facts.fields:
        if field.name.endswith("DataType") and field.kind == "attribute":
            name = next(name for name, number in numbers.items() if number == fields[field.name])
            fields[field.name] = numbers[types.get(name, name)]
        elif field.type == "SCALE_BIAS" and rng.random() < 0.5:
            fields[field.name] = rng.choice(
                (None, {"Scale": rng.choice((1.0, 2.0, -0.5)), "Bias": rng.choice((0.0, 1.5))})
            )
    return fields


@cache
def _descriptors(operator: str) -> Sequence[OperatorDesc]:
    file = load(VECTORS / f"{operator.lower()}.json")
    return [case.desc for case in file.cases if isinstance(case.desc, OperatorDesc)]


def document(desc: OperatorDesc, *, fused: bool = False) -> Json:
    """A descriptor's fields as `DescriptorCase` has them; of a fused one only the attributes."""
    return {
        field.name: _member(field, getattr(desc, field.attribute_name))
        for field in desc.facts.fields
        if not fused or field.kind == "attribute"
    }


def _member(field: FieldFacts, value: Any) -> Any:
    if value is None:
        return None
    match field.type:
        case "TENSOR_DESC":
            return _tensor(value)
        case "TENSOR_DESC_ARRAY":
            return [_tensor(part) for part in value]
        case "OPERATOR_DESC":
            return {"Type": value.operator_type, "Desc": document(value, fused=True)}
        case "OPERATOR_DESC_ARRAY":
            return [{"Type": part.operator_type, "Desc": document(part, fused=True)} for part in value]
        case "SCALE_BIAS":
            return {"Scale": value.scale, "Bias": value.bias}
        case "SIZE_2D":
            return {"Width": value.width, "Height": value.height}
        case "UINT" | "INT" | "BOOL":
            return int(value)
        case _:
            return list(value) if field.is_array else value


def _tensor(value: Any) -> Json:
    return {
        "DataType": value.data_type.name, "Flags": int(value.flags), "DimensionCount": len(value.sizes),
        "Sizes": list(value.sizes), "Strides": None if value.strides is None else list(value.strides),
        "TotalTensorSizeInBytes": value.total_tensor_size_in_bytes,
        "GuaranteedBaseOffsetAlignment": value.guaranteed_base_offset_alignment,
    }  # fmt: skip

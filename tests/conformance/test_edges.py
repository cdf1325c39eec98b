"""What the vectors hold: every worked example of Microsoft's reference, and the edges of each operator's types."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tests.support.vectors import Case, elements, vectors_files

from tensorpost.descriptors import OPERATORS, OperatorDesc

# How many examples with numbers each operator's page prints; of RANDOM_GENERATOR the known answers of its algorithm.
EXAMPLES = {
    "ELEMENT_WISE_IF": 1, "ELEMENT_WISE_ROUND": 3, "ELEMENT_WISE_BIT_NOT": 1, "ELEMENT_WISE_BIT_COUNT": 1,
    "ACTIVATION_HARDMAX1": 3, "SLICE": 2, "SPLIT": 2, "JOIN": 4, "PADDING": 4, "GATHER": 5, "SPACE_TO_DEPTH": 1,
    "DEPTH_TO_SPACE": 1, "DIAGONAL_MATRIX": 4, "SCATTER_ELEMENTS": 1, "ONE_HOT": 4, "REVERSE_SUBSEQUENCES": 2,
    "GATHER_ELEMENTS": 1, "GATHER_ND": 2, "SCATTER_ND": 1, "SLICE1": 2, "DEPTH_TO_SPACE1": 2, "SPACE_TO_DEPTH1": 2,
    "NONZERO_COORDINATES": 1, "GATHER_ND1": 2, "PADDING1": 4, "DIAGONAL_MATRIX1": 4, "FOLD": 3, "UNFOLD": 2,
    "FILL_VALUE_CONSTANT": 1, "FILL_VALUE_SEQUENCE": 2, "RANDOM_GENERATOR": 3, "REDUCE": 3, "TOP_K": 3,
    "CUMULATIVE_SUMMATION": 4, "TOP_K1": 4, "ARGMIN": 5, "ARGMAX": 5, "CUMULATIVE_PRODUCT": 4, "SLICE_GRAD": 1,
    "AVERAGE_POOLING": 1, "MAX_POOLING1": 1, "MAX_POOLING2": 1, "ROI_ALIGN1": 1, "AVERAGE_POOLING_GRAD": 1,
    "MAX_POOLING_GRAD": 1, "ROI_ALIGN_GRAD": 1,
}  # fmt: skip
# Operators with a vector of an edge, at least. Strides and ranks of all others are drawn: by `test_any_call` and
# `test_layouts_change_no_number` in this folder, and by tests/operators/test_laws.py.
AT_LEAST = {
    "NaN": 148, "infinity": 139, "-0": 92, "64 bits that no double holds": 61, "4 bits": 2,
    "the largest rank": 157, "an input broadcast by its strides": 126,
}  # fmt: skip


def test_every_worked_example_is_a_vector() -> None:
    assert sum(EXAMPLES.values()) == 107
    cases = {file.operator: [case.name.lower() for case in file.cases] for file in vectors_files()}
    found = {
        operator: sum("page" in name or "example" in name or "known answer" in name for name in cases[operator])
        for operator in EXAMPLES
    }
    assert {name: (found[name], count) for name, count in EXAMPLES.items() if found[name] < count} == {}


def test_every_edge_has_vectors() -> None:
    found: dict[str, set[str]] = {name: set() for name in AT_LEAST}
    ranks = {
        cls.operator_type: max(row.dimension_counts[1] for _, rows in cls.facts.tables() for row in rows)
        for cls in OPERATORS
    }
    for file in vectors_files():
        for case in file.cases:
            if isinstance(case.desc, OperatorDesc):
                for edge in edges(case, case.desc, ranks[file.operator]):
                    found[edge].add(file.operator)
    assert {edge: len(found[edge]) for edge, least in AT_LEAST.items() if len(found[edge]) < least} == {}


def edges(case: Case, desc: OperatorDesc, most_dimensions: int) -> Iterator[str]:
    """The edges that a case has."""
    if any(tensor.data_type.bits == 4 for _, tensor in desc.tensors()):
        yield "4 bits"
    if max(len(slot.layout.sizes) for slot in (*desc.inputs, *desc.outputs)) == most_dimensions:
        yield "the largest rank"
    for slot, buffer in zip(desc.inputs, case.inputs, strict=True):
        x = elements(slot, buffer)
        if any(size > 1 and not stride for size, stride in zip(slot.layout.sizes, slot.layout.strides, strict=True)):
            yield "an input broadcast by its strides"
        if x.dtype.kind == "f":
            yield from ["NaN"] * bool(np.isnan(x).any()) + ["infinity"] * bool(np.isinf(x).any())
            yield from ["-0"] * bool((np.signbit(x) & (x == 0)).any())
        elif x.itemsize == 8 and (np.abs(x.astype(object)) > 2**53).any():
            yield "64 bits that no double holds"

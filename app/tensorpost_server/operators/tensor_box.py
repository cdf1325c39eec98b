"""A part of a held tensor, which is a copy of elements that lie some steps apart."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot

from ..forms import Copies
from .registry import form_of_class


@dataclass(frozen=True, slots=True)
class TensorBox:
    """The elements of a part of a tensor. See `Operation`.

    Attributes:
        layout: type, sizes and strides of the part.
    """

    layout: Layout

    name = op_type = "TENSOR_BOX"
    opset_version = None
    endpoint = "/v1/tensors"

    @property
    def inputs(self) -> tuple[Slot, ...]:
        return (Slot("tensor", self.layout),)

    @property
    def outputs(self) -> tuple[Slot, ...]:
        return (Slot("tensor", Layout.row_major(self.layout.data_type, self.layout.sizes)),)

    def to_document_text(self) -> str:
        """See `Operation.to_document_text`; with the strides, since plans are kept by this text."""
        layout = self.layout
        members = {"data_type": layout.data_type.numpy_name, "sizes": layout.sizes, "strides": layout.strides}
        return json.dumps({"type": self.name, **members}, separators=(",", ":"))


@form_of_class(TensorBox)
def tensor_box_form(box: TensorBox) -> Copies:
    """Every element as it is."""
    sizes = box.layout.sizes
    return Copies((len(sizes),), ((),)) if 0 in sizes else Copies.of_box(sizes)

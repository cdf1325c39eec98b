"""Windows that slide over the spatial dimensions, those after batch and channels, in convolution and pooling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..values.problems import Violation
from .catalogue import pascal_case
from .completion import Given
from .fields import UInt, UIntArray
from .operator_desc import OperatorDesc

__all__ = ["SlidingWindow", "spatial_sizes"]

_LEFT_OUT = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0, "output_padding": 0}


class SlidingWindow(OperatorDesc):
    """Base of operators with `strides`, `start_padding` and other arrays that have an entry per spatial dimension."""

    if TYPE_CHECKING:
        dimension_count: UInt
        strides: UIntArray
        start_padding: UIntArray
        end_padding: UIntArray

    @classmethod
    def spatial_fields(cls) -> list[str]:
        """The names of these arrays, in the order of the struct."""
        return [field.attribute_name for field in cls.facts.fields if field.type == "UINT_ARRAY"]

    @classmethod
    def spatial_defaults(cls, spatial: int) -> Mapping[str, list[int]]:
        """What stands for arrays that are left out: steps of 1, no padding."""
        return {name: [_LEFT_OUT[name]] * spatial for name in cls.spatial_fields() if name in _LEFT_OUT}

    @classmethod
    def spatial_arrays(cls, given: Given, spatial: int) -> Mapping[str, Sequence[int]] | None:
        """The arrays as given or left out; None if their lengths are wrong or a step is 0."""
        defaults = cls.spatial_defaults(spatial)
        arrays = {
            name: given.integers(name) if given.has(name) or name not in defaults else defaults[name]
            for name in cls.spatial_fields()
        }
        sound = all(len(array) == spatial for array in arrays.values()) and 0 not in arrays["strides"]
        return arrays if sound else None

    def spatial(self) -> Mapping[str, Sequence[int]]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in self.spatial_fields()}

    def spatial_rules(self, rank: int) -> Iterator[Violation]:
        """An entry of every array for each of `rank - 2` dimensions; no steps, windows or exponents of 0."""
        yield from self.count_is_length("dimension_count", "strides")
        yield from self.one_entry_per_dimension(*self.spatial(), rank=rank - 2)
        for name in ("strides", "dilations", "window_size"):
            for axis, value in enumerate(getattr(self, name, ())):
                if value == 0:
                    yield self.broken("zero", (pascal_case(name), axis), "must be at least 1", value, "at least 1")


def spatial_sizes(
    sizes: Sequence[int], taps: Sequence[int], arrays: Mapping[str, Sequence[int]], *, backward: bool = False
) -> list[int]:
    """The spatial sizes of an output; 0 or less where the window is larger than the padded input.

    Args:
        sizes: the input's spatial sizes.
        taps: the window's.
        arrays: `strides`, `start_padding`, `end_padding`, and `dilations` and `output_padding` if there are any.
        backward: whether a convolution is transposed.
    """
    found: list[int] = []
    for axis, (size, count) in enumerate(zip(sizes, taps, strict=True)):
        stride, start, end = (arrays[name][axis] for name in ("strides", "start_padding", "end_padding"))
        extent = (count - 1) * (arrays["dilations"][axis] if "dilations" in arrays else 1) + 1
        whole = (size - 1) * stride + extent - start - end if backward else (size + start + end - extent) // stride + 1
        found.append(whole + (arrays["output_padding"][axis] if "output_padding" in arrays else 0))
    return found

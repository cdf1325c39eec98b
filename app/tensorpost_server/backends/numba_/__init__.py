"""The CPU, through loops that numba compiled ahead of time: optional, and preferred to the numpy backend where it is.

It runs what is worth running so: Tile, nearest neighbour and all copies for every type of fixed size; linear, cubic,
antialiased and gradients for float32, float16, uint8 and int8, summed in float32. It refuses everything else with the
reason, and the numpy backend takes it. Nearest and Tile are the same to the bit; sums are made of the same indices,
the same float32 weights and in the same order of taps as numpy's.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from ...forms import Form
from ...forms.axes import AxisMap
from ...forms.axis_plans import LONG_SUM
from ...forms.separable import Rounding, Separable
from ...operators.onnx_resize import FilterMap, OnnxResize
from ...operators.resample import AdjointAxis
from ...planning import Plan
from ..base import HostBackend
from . import library
from .calls import KINDS, Blend, Filler, Gather, Kernels, Place, Program, Tile
from .tables import most_taps

__all__ = ["NumbaBackend"]

LONGEST_AXIS = 1 << 27  # entries; with up to 16 channels an index still fits into int32
EXACT_WEIGHT_BITS = 16  # an 8-bit integer times weights of this many bits together is exact in float32

MOST_PLANS = 64  # plans whose programs are kept for the next request
MOST_PROGRAMS = 64  # slices of one plan whose programs are kept
MOST_KEPT = 1 << 20  # bytes that these programs and their tables may hold
DENSEST = 64  # entries of the input for each of the output; more would make the kernels read much for little

Make = Callable[[Kernels], Filler]


@dataclass(slots=True)
class _Recipe:
    """What the backend knows about a plan, for every request that comes with it.

    Attributes:
        plan: the plan; the same object for all of these requests.
        filler: makes programs; None if the plan is refused.
        refusal: why it is refused.
        source: how the input lies.
        target: how a slice lies in its block.
        programs: by slice, those made so far.
        kept: bytes of tables by identity, each as long as one of the programs lives; and of programs, by -1 - slice.
    """

    plan: Plan
    filler: Filler | None
    refusal: str | None
    source: Place
    target: Place
    programs: dict[int, tuple[int, Program]] = field(default_factory=dict[int, tuple[int, Program]])
    kept: dict[int, int] = field(default_factory=dict[int, int])

    def program(self, index: int) -> tuple[int, Program]:
        """The bytes of a slice and the calls that compute it."""
        found = self.programs.get(index)
        if found is None:
            assert self.filler is not None
            piece = self.plan.slices.piece(index)
            found = (piece.computed, self.filler.program(self.source, self.target, piece.box))
            kept = {**self.kept, **{id(table): table.nbytes for table in found[1].kept}, -1 - index: found[1].nbytes}
            if len(self.programs) < MOST_PROGRAMS and sum(kept.values()) <= MOST_KEPT:
                self.programs[index], self.kept = found, kept
        return found


@dataclass(frozen=True, slots=True)
class NumbaBackend(HostBackend):
    """Runs the common plans on the CPU, several times faster than NumPy where sums are involved.

    Opening it loads compiled kernels from the cache; it never compiles.

    Attributes:
        threads: slices computed at the same time; the kernels let go of the interpreter lock.

    Raises:
        ImportError: numba is not installed.
        CannotOpen: its kernels are not compiled yet (`tensorpost warmup` does it), cannot be read, or are not made
            for this kind of machine.
    """

    threads: int = 1
    name: str = "numba"
    device: str = f"cpu ({platform.machine()})"
    kernels: Kernels = field(default_factory=library.load, repr=False)
    _recipes: dict[int, _Recipe] = field(default_factory=dict[int, _Recipe], repr=False)

    def refuses(self, plan: Plan) -> str | None:
        """What it does not cover; None if it does."""
        return self._recipe(plan).refusal

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> NumbaRun:
        """Views of the inputs; nothing is copied.

        Raises:
            ValueError: the plan is one that it refuses.
        """
        recipe = self._recipe(plan)
        if recipe.filler is None:
            raise ValueError(f"this plan is refused: {recipe.refusal}")
        ((slot,), (memory,)) = plan.inputs, inputs
        view = slot.layout.view(memory)
        return NumbaRun(recipe, view, _address(view))

    def close(self) -> None:
        """Forget what is known about plans."""
        self._recipes.clear()

    def _recipe(self, plan: Plan) -> _Recipe:
        # By identity, because equal plans are one object (`make_plan` keeps them) and comparing takes longer than this.
        recipe = self._recipes.get(id(plan))
        if recipe is None or recipe.plan is not plan:
            recipe = self._new_recipe(plan)
            if len(self._recipes) >= MOST_PLANS:
                self._recipes.clear()
            self._recipes[id(plan)] = recipe
        return recipe

    def _new_recipe(self, plan: Plan) -> _Recipe:
        of, to = plan.inputs[0].layout, plan.outputs[0].layout
        made = _filler_for(plan.form, to.data_type.numpy_name, to.sizes)
        item = to.data_type.item_size
        kind = KINDS.get(to.data_type.dtype.str, 0)
        source, target = (Place(tuple([step * item for step in layout.strides]), item, kind) for layout in (of, to))
        if isinstance(made, str):
            return _Recipe(plan, None, made, source, target)
        return _Recipe(plan, made(self.kernels), None, source, target)


@dataclass(slots=True)
class NumbaRun:
    """A plan with its input.

    Attributes:
        recipe: what is computed.
        view: the input, which is at `source`; None once the run is closed.
        source: the input's address.
    """

    recipe: _Recipe
    view: Any
    source: int

    def compute(self, index: int) -> memoryview:
        """See `Run.compute`."""
        size, program = self.recipe.program(index)
        block = (np.zeros if self.recipe.plan.slices.has_gaps else np.empty)(size, np.uint8)
        program.run(_address(block), self.source)
        return block.data

    def close(self) -> None:
        """Forget the input, so that its memory is free as soon as its owner lets go."""
        self.view = None


def _address(block: Any) -> int:
    return block.__array_interface__["data"][0]  # a third of the time of `ctypes.data`


@lru_cache(maxsize=1024)
def _filler_for(kernel: Form, type_name: str, sizes: tuple[int, ...]) -> Make | str:
    """How a kernel is run here, or why it is not."""
    if type_name == "str":
        return "strings have no fixed size"
    if 0 in sizes:
        return lambda kernels: Tile(kernels, sizes)  # never called: there is no slice
    match kernel:
        case Separable():
            exact = kernel.accumulate == "float32"
            return _resampling(kernel.axes, type_name, exact=exact, anchored=kernel.rounding is Rounding.TRUNCATE)
        case OnnxResize():
            if kernel.extrapolation_value is not None:
                return "it does not extrapolate"
            integer = type_name in ("int8", "uint8")
            bits = sum(axis.weight_bits for axis in kernel.axes if isinstance(axis, FilterMap))
            exact = not integer or (bits <= EXACT_WEIGHT_BITS and not kernel.round_each_axis)
            return _resampling(kernel.axes, type_name, exact=exact, anchored=False)
        case _:
            return f"it has no {type(kernel).__name__}"


def _resampling(axes: tuple[AxisMap | None, ...], type_name: str, *, exact: bool, anchored: bool) -> Make | str:
    maps = [axis for axis in axes if axis is not None]
    if any(max(axis.input_size, axis.output_size) > LONGEST_AXIS for axis in maps):
        return f"an axis has more than {LONGEST_AXIS} entries"
    gathers = [axis.most_taps(0, 1) == 1 and axis.taps(0, 1)[1] is None for axis in maps]
    if all(gathers):
        return lambda kernels: Gather(kernels, axes)
    if any(gathers):
        return "some axes are copied by index and others are summed"
    if type_name not in ("float32", "float16", "uint8", "int8"):
        return f"it sums float32, float16, uint8 and int8 only, not {type_name}"
    if type_name in ("int8", "uint8") and any(isinstance(axis, AdjointAxis) for axis in maps):
        return "gradients of integers are numpy's"
    if not exact:
        return "the exact result needs sums in float64"
    if max(map(most_taps, maps)) >= LONG_SUM:
        return f"sums of {LONG_SUM} or more elements are numpy's"
    if any(_density(axis) > DENSEST for axis in maps):
        return f"an axis that skips more than {DENSEST} entries between two is numpy's"
    return lambda kernels: Blend.of(kernels, axes, anchored=anchored)


def _density(axis: AxisMap) -> float:
    """Input entries from one output to the next, on average; an ONNX roi may be read from its end to its start."""
    size = axis.output_size
    ends = np.concatenate([axis.taps(0, 1)[0], axis.taps(size - 1, size)[0]])
    return (int(ends.max()) - int(ends.min())) / size

"""The CPU, through loops that numba compiled ahead of time: optional, and preferred to the numpy backend where it is.

It runs every plan. Compiled loops compute what gains by them: all copies and nearest neighbour for every type of fixed
size; linear, cubic, antialiased and gradients for float32, float16, uint8 and int8, summed in float32; expressions that
are computed in float32; sums, means, largest and smallest elements of lines (`reduction_plan.py` has the types). NumPy
computes everything else, exactly as the numpy backend does, so nothing is refused and `auto` never has a reason to
prefer that one. `library` tells which of both, and answers name the backend `numba+numpy` then.

Copies are the same to the bit; resampled elements are made of the same indices, the same float32 weights and in the
same order of taps as NumPy's; sums of lines are no less exact than NumPy's; exp, log, tanh, erf and GELU differ from
NumPy's by a few units in the last place (`kernels/float32_math.py`), other functions are within 0.51 of the exact
number (`kernels/float64_math.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout

from ...forms import Copies, Copy, Form, FusedLines, Lines, Pointwise, SqueezedLines
from ...forms.axes import AxisMap
from ...forms.axis_plans import LONG_SUM
from ...forms.base import Box, blocks, extents, whole_box
from ...forms.expression import Operand
from ...forms.onnx_axes import FilterMap
from ...forms.onnx_resize import OnnxResize
from ...forms.resample_axes import AdjointAxis
from ...forms.separable import Rounding, Separable
from ...planning import OutputSlice, Plan, PlanStep
from ..device_run import RunMemory
from ..numpy_ import NumpyBackend, slice_block
from . import library
from .copy_plan import CopyPlanner, GatherPlanner
from .expression_plan import ExpressionPlanner, Instructions, NoInstruction, is_truth, numeric_operands
from .fused_lines_plan import FusedLinesPlanner, SqueezedLinesPlanner
from .helper_threads import HelperThreads
from .launch_plan import FIRST_INPUT, KINDS, TARGET, Kernels, LaunchPlan, Planner, StridedBuffer
from .reduction_plan import ReductionPlanner
from .sum_plan import SumPlanner
from .tap_tables import most_taps

__all__ = ["NumbaBackend"]

LONGEST_AXIS = 1 << 27  # entries; with up to 16 channels an index still fits into int32
EXACT_WEIGHT_BITS = 16  # an 8-bit integer times weights of this many bits together is exact in float32

MOST_PLANS = 64  # plans that are kept for the next request
MOST_GRAPH_STEPS = 2048  # steps of graphs that are kept beside them
MOST_LAUNCH_PLANS = 64  # slices of one plan whose launch plans are kept
MOST_KEPT = 1 << 20  # bytes that the launch plans of one plan and their tables may hold
MOST_KEPT_OF_GRAPH = 1 << 16  # those of a graph's step
DENSEST = 64  # entries of the input for each of the output; more would make the kernels read much for little

PART_BYTES = {"expressions": 1 << 19, "reductions": 1 << 19}
"""Bytes that a part reads of an input, by the planner's group: 5 to 20 us of a core. Boxes of others have one part."""
LEAST_PARTS = 16  # of a step; the cost of helpers that wake and sleep again is more than less than 0.1 ms is worth
NARROWEST = 1024  # bytes of neighbours that a part reads, if it reads several rows: less takes longer

PlannerFactory = Callable[[Kernels], Planner]


_LaunchKey = tuple[int, int] | Box


@dataclass(slots=True)
class _Recipe:
    """What the backend knows about a step, for every request that comes with its plan.

    Attributes:
        step: the step; the same object for all of these requests.
        planner: makes launch plans; None if NumPy computes the step.
        reason: why NumPy does.
        sources: how each input lies in its block.
        targets: how a slice of each output lies in its block.
        launch_plans: launch plans made so far, by the slice's output and first byte, or by the box.
        kept: bytes of tables by identity, each as long as a launch plan needs it; and of launch plans, by their key.
    """

    step: PlanStep
    planner: Planner | None
    reason: str | None
    sources: tuple[StridedBuffer, ...]
    targets: tuple[StridedBuffer, ...]
    launch_plans: dict[_LaunchKey, LaunchPlan] = field(default_factory=dict[_LaunchKey, LaunchPlan])
    kept: dict[int | _LaunchKey, int] = field(default_factory=dict[int | _LaunchKey, int])

    def new_launch_plan(self, key: _LaunchKey, target: StridedBuffer, box: Box, output: int = 0) -> LaunchPlan:
        """The calls that compute a box of an output, kept for the next request if there is room."""
        assert self.planner is not None
        plan = self._planned(target, box, output)
        kept = {**self.kept, **{id(table): table.nbytes for table in plan.kept}, key: plan.nbytes}
        most = MOST_KEPT_OF_GRAPH if self.step.name else MOST_KEPT
        if len(self.launch_plans) < MOST_LAUNCH_PLANS and sum(kept.values()) <= most:
            self.launch_plans[key], self.kept = plan, kept
        return plan

    def _planned(self, target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        """The calls for a box, in parts that several threads compute where it is large enough."""
        assert self.planner is not None
        made = LaunchPlan()
        for part in blocks(box, self._most_elements(box, output)):
            steps = [(a - b) * step for (a, _), (b, _), step in zip(part, box, target.strides, strict=True)]
            made.add(self.planner.plan(self.sources, replace(target, offset=target.offset + sum(steps)), part, output))
        return made

    def _most_elements(self, box: Box, output: int) -> int:
        """Elements of the output in a part."""
        assert self.planner is not None
        elements, size_in_bytes = math.prod(extents(box)), PART_BYTES.get(self.planner.group)
        if size_in_bytes is None or not self.sources:
            return elements
        form, source, whole = self.step.form, self.sources[0], whole_box(self.step.outputs[output].layout.sizes)
        part = size_in_bytes // source.item
        if form.work(whole, output) < LEAST_PARTS * part:
            return elements
        has_columns = any(b - a > 1 and step == source.item for (a, b), step in zip(box, source.strides, strict=False))
        least = NARROWEST // source.item if has_columns else 1
        return max(least, part * elements // max(1, form.work(box, output)))


@dataclass(frozen=True, slots=True)
class NumbaBackend(NumpyBackend):
    """Runs any plan on the CPU, several times faster than NumPy where sums and expressions are involved.

    Opening it loads compiled kernels from the cache; it never compiles.

    Attributes:
        threads: slices computed at the same time; the kernels let go of the interpreter lock.

    Raises:
        ImportError: numba is not installed.
        CannotOpen: its kernels are not compiled yet (`tensorpost warmup` does it), cannot be read, or are not made
            for this kind of machine.
    """

    name: str = "numba"
    kernels: Kernels = field(default_factory=library.load, repr=False)
    helpers: HelperThreads = field(init=False, repr=False)
    _recipes: dict[int, _Recipe] = field(default_factory=dict[int, _Recipe], repr=False)
    _graph_recipes: dict[int, _Recipe] = field(default_factory=dict[int, _Recipe], repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "helpers", HelperThreads(self.kernels, self.threads))

    def uses_numpy(self, plan: Plan) -> str | None:
        """Why NumPy, or a library, computes some of the plan; None if compiled loops compute all of it."""
        reasons = [self._recipe(step).reason for step in plan.steps]
        return next((reason for reason in reasons if reason is not None), None)

    def library(self, plan: Plan) -> str:
        """NumPy and ONNX Runtime, where no compiled loops compute a step of the plan."""
        others = [step.form.library or "numpy" for step in plan.steps if self._recipe(step).reason is not None]
        return "+".join(dict.fromkeys(others))

    def divides(self, plan: Plan) -> bool:
        """Whether helpers compute parts of the plan's slices, if it is large enough."""
        planners = [self._recipe(step).planner for step in plan.steps]
        return all(planner is not None and planner.group in PART_BYTES for planner in planners)

    def compute_slice(
        self, step: PlanStep, inputs: Sequence[Any], uploaded: None, piece: OutputSlice, target: RunMemory | None
    ) -> memoryview:
        """Computed by compiled loops, or by NumPy."""
        recipe = self._recipes.get(id(step)) or self._recipe(step)
        if recipe.planner is None:
            return NumpyBackend.compute_slice(self, step, inputs, uploaded, piece, target)
        block = slice_block(step.outputs[piece.output].layout, piece, target)
        key = (piece.output, piece.begin)
        plan = recipe.launch_plans.get(key)
        if plan is None:
            plan = recipe.new_launch_plan(key, recipe.targets[piece.output], piece.box, piece.output)
        plan.run(self.helpers, *_addresses(block, inputs))
        return block.data

    def compute_box(self, step: PlanStep, inputs: Sequence[Any], uploaded: None, box: Box) -> Any:
        """Computed by compiled loops, or by NumPy."""
        recipe = self._recipe(step)
        if recipe.planner is None:
            return NumpyBackend.compute_box(self, step, inputs, uploaded, box)
        made = step.outputs[0].layout.data_type
        out = np.empty(extents(box), made.dtype)
        plan = recipe.launch_plans.get(box)
        if plan is None:
            plan = recipe.new_launch_plan(box, _buffer(Layout.row_major(made, extents(box)), TARGET), box)
        plan.run(self.helpers, *_addresses(out, inputs))
        return out

    def close(self) -> None:
        """End the helpers, and forget what is known about plans."""
        self.helpers.close()
        self._recipes.clear()
        self._graph_recipes.clear()

    def _recipe(self, step: PlanStep) -> _Recipe:
        # By identity, because equal plans are one object (`make_plan` keeps them) and comparing takes longer than this.
        # A recipe keeps its step, so that no other one has its identity.
        recipes, most = (self._graph_recipes, MOST_GRAPH_STEPS) if step.name else (self._recipes, MOST_PLANS)
        recipe = recipes.get(id(step))
        if recipe is None:
            recipe = self._new_recipe(step)
            if len(recipes) >= most:
                recipes.clear()
            recipes[id(step)] = recipe
        return recipe

    def fill(self, form: Form, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """Fill a box by NumPy; the parts of a fused form by what computes them alone."""
        if isinstance(form, SqueezedLines):
            box, out, form = form.with_axes(box), np.expand_dims(out, form.axes), form.lines
        if isinstance(form, FusedLines):
            form.fill_parts(np, inputs, box, out, self._fill_part)
        else:
            form.fill(np, inputs, box, out, output)

    def _fill_part(self, form: Form, inputs: Sequence[Any], box: Box, out: Any) -> None:
        planner = self._planner(form, tuple([x.dtype.name for x in inputs]), (out.dtype.name,))
        if isinstance(planner, str):
            form.fill(np, inputs, box, out)
            return
        source, target = [
            [StridedBuffer(x.strides, x.itemsize, KINDS.get(x.dtype.str, -1), block=first + number)
             for number, x in enumerate(arrays)]
            for arrays, first in ((inputs, FIRST_INPUT), ([out], TARGET))
        ]  # fmt: skip
        planner.plan(source, target[0], box, 0).run(self.helpers, *_addresses(out, inputs))

    def _planner(self, form: Form, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Planner | str:
        """What plans a form with inputs and outputs of these types, or why NumPy computes it."""
        if isinstance(form, SqueezedLines):
            inner = self._planner(form.lines, inputs, outputs)
            return inner if isinstance(inner, str) else SqueezedLinesPlanner(form, inner)
        if isinstance(form, FusedLines):
            prologue = self._planner(form.prologue, inputs, ("float32",))
            reduction = self._planner(form.lines, ("float32",), outputs)
            if isinstance(prologue, str) or isinstance(reduction, str):
                return prologue if isinstance(prologue, str) else str(reduction)
            return FusedLinesPlanner(form, prologue, reduction)
        made = _planner_for(form, inputs, outputs)
        if isinstance(made, str):
            return made
        planner = made(self.kernels)
        if library.GROUPS[planner.group][0] not in self.kernels:
            return f"the loops for {planner.group} are not compiled: run `tensorpost warmup`"
        return planner

    def _new_recipe(self, step: PlanStep) -> _Recipe:
        inputs, outputs = step.operands, [slot.layout for slot in step.outputs]
        names = [tuple([layout.data_type.numpy_name for layout in side]) for side in (inputs, outputs)]
        form = step.form
        if isinstance(form, Pointwise) and isinstance(form.expression, Operand) and names[0] == names[1]:
            sizes = outputs[0].sizes  # the elements as they are: a copy from one layout to another
            form = Copies((len(sizes),), ((Copy.of_box(sizes),),)) if 0 not in sizes else form
        empty = all(0 in layout.sizes for layout in outputs)
        made = "there is nothing to compute" if empty else self._planner(form, names[0], names[1])
        planner, reason = (None, made) if isinstance(made, str) else (made, None)
        sources = [_buffer(layout, FIRST_INPUT + number) for number, layout in enumerate(inputs)] if planner else []
        targets = [_buffer(layout, TARGET) for layout in outputs] if planner else []
        return _Recipe(step, planner, reason, tuple(sources), tuple(targets))


def _addresses(target: NDArray[Any], inputs: Sequence[NDArray[Any]]) -> list[int]:
    """Where they lie; a third of the time of `ctypes.data`."""
    return [array.__array_interface__["data"][0] for array in (target, *inputs)]


def _buffer(layout: Layout, block: int) -> StridedBuffer:
    item = layout.data_type.item_size
    kind = KINDS.get(layout.data_type.dtype.str, -1)
    return StridedBuffer(tuple([step * item for step in layout.strides]), item, kind, block=block)


def _planner_for(form: Form, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> PlannerFactory | str:
    """How the loops compute a form with inputs and outputs of these types, or why NumPy does."""
    if "str" in outputs:
        return "strings have no fixed size"
    match form:
        case Copies():
            element = None if form.fill_value is None else np.asarray(form.fill_element(data_type(outputs[0]).dtype))
            return lambda kernels: CopyPlanner(kernels, form, element)
        case Pointwise():
            return _expression(form, inputs, outputs[0])
        case Separable():
            exact = form.accumulate == "float32"
            return _resampling(form.axes, outputs[0], exact=exact, anchored=form.rounding is Rounding.TRUNCATE)
        case OnnxResize():
            if form.extrapolation_value is not None:
                return "it does not extrapolate"
            integer = outputs[0] in ("int8", "uint8")
            bits = sum([axis.weight_bits for axis in form.axes if isinstance(axis, FilterMap)])
            exact = not integer or (bits <= EXACT_WEIGHT_BITS and not form.round_each_axis)
            return _resampling(form.axes, outputs[0], exact=exact, anchored=False)
        case Lines() if 0 not in form.sizes:
            return ReductionPlanner.for_form(form, inputs[0])
        case _:
            return f"it has no {type(form).__name__}"


def _expression(form: Pointwise, inputs: tuple[str, ...], output: str) -> PlannerFactory | str:
    """What makes the planner of an expression, in float32 only, or why there is none.

    NumPy is at the copy limit with integers, and as fast in float64.
    """
    conversion = isinstance(form.expression, Operand) and form.types == inputs
    if not conversion:
        numbers = numeric_operands(form.expression)
        types = {name for index, name in enumerate(form.types) if index in numbers or name != inputs[index]}
        if {form.computed_in, *types} != {"float32"}:
            return f"it computes in float32 only, not {', '.join(sorted({form.computed_in, *types}))}"
    if not {*inputs} <= {"float32", "float16", "uint8", "int8"}:
        return f"it widens float16, uint8 and int8 only, not {', '.join(inputs)}"
    if output not in ("float32", "float16") and not (output == "uint8" and is_truth(form.expression)):
        return f"it rounds to float32 and float16 only, not {output}"
    try:
        instructions = Instructions.compiled(form.expression, len(inputs))
    except NoInstruction as error:
        return str(error)
    return lambda kernels: ExpressionPlanner(kernels, instructions)


@lru_cache(maxsize=1024)
def _resampling(
    axes: tuple[AxisMap | None, ...], type_name: str, *, exact: bool, anchored: bool
) -> PlannerFactory | str:
    maps = [axis for axis in axes if axis is not None]
    if any(max(axis.input_size, axis.output_size) > LONGEST_AXIS for axis in maps):
        return f"an axis has more than {LONGEST_AXIS} entries"
    gathers = [axis.most_taps(0, 1) == 1 and axis.taps(0, 1)[1] is None for axis in maps]
    if all(gathers):
        return lambda kernels: GatherPlanner(kernels, axes)
    if any(gathers):
        return "some axes are copied by index and others are summed"
    if type_name not in ("float32", "float16", "uint8", "int8"):
        return f"it sums float32, float16, uint8 and int8 only, not {type_name}"
    if type_name in ("int8", "uint8") and any(isinstance(axis, AdjointAxis) for axis in maps):
        return "gradients of integers are computed by numpy"
    if not exact:
        return "the exact result needs sums in float64"
    if max(map(most_taps, maps)) >= LONG_SUM:
        return f"sums of {LONG_SUM} or more elements are computed by numpy"
    if any(_density(axis) > DENSEST for axis in maps):
        return f"an axis that skips more than {DENSEST} entries between two is computed by numpy"
    return lambda kernels: SumPlanner.ordered(kernels, axes, anchored=anchored)


def _density(axis: AxisMap) -> float:
    """Input entries from one output to the next, on average; an ONNX roi may be read from its end to its start."""
    size = axis.output_size
    ends = np.concatenate([axis.taps(0, 1)[0], axis.taps(size - 1, size)[0]])
    return (int(ends.max()) - int(ends.min())) / size

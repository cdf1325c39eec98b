"""Which kernels compute a box of a form's output, or that CuPy's array operations do.

Our kernels take `Copies` of every type, `Pointwise` of every type but complex numbers, `Lines` that reduce numbers
(sums, means, products, extremes, norms and logarithms of sums; of integers only what is exact), and `Separable` forms
that copy elements of every type or sum float16, bfloat16, float32 and integers of up to 32 bits in float32. CuPy's own
array operations, through `Form.fill`, take the rest:

* every other form, and of `Lines` positions of extremes, and means, norms and logarithms of integers;
* `Separable`: sums in float64 (ONNX Resize of float64 and of most integers) and of complex numbers; 64-bit integers
  that are blended; an axis whose outputs share more than 2^23 taps, or one of whose outputs has more than 2^16;
* more loops than a launch has room for: more than 20 for `Copies` (Tile of DirectML's 8 dimensions needs 16) and
  `Pointwise`, more than about 10 dimensions that cannot be joined for `Separable`;
* more than 2^31 - 1 threads of work in one box of a `Separable` form, or an input row of more than 2 GiB.

Either way the result is the form's; only speed depends on the choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...forms import Box, Copies, Copy, Form, Lines, Pointwise
from ...forms.expression import Operand
from ...forms.onnx_resize import OnnxResize
from ...forms.separable import Separable
from .copy_kernels import plan_copies
from .dimensions import Step
from .launches import ArrayLayout, Launch
from .pointwise_kernels import plan_pointwise
from .reduce_kernels import cupy_is_faster, plan_reduction
from .resample_kernels import plan_resample


def plan(form: Form, inputs: Sequence[ArrayLayout], box: Box, out: ArrayLayout, output: int = 0) -> list[Step] | None:
    """The steps that fill a box that is not empty; None if CuPy must. OnnxResize.extrapolate is not among them.

    Args:
        form: what is computed.
        inputs: the input arrays.
        box: part of an output.
        out: the array that holds the box.
        output: which output.
    """
    launches: list[Launch] | None
    match form:
        case Copies():
            launches = plan_copies(form, inputs, box, out, output)
        case Pointwise() if _is_copy(form, inputs, out):
            whole = Copy.of_box([stop for _, stop in box])
            launches = plan_copies(Copies((len(box),), ((whole,),)), inputs, box, out)
        case Pointwise():
            launches = plan_pointwise(form, inputs, box, out)
        case Lines():
            return None if cupy_is_faster(form, inputs[0]) else plan_reduction(form, inputs, box, out)
        case Separable():
            return _plan_separable(form, inputs[0], box, out)
        case OnnxResize():
            separable = form.alone(out.dtype)
            return None if separable is None else _plan_separable(separable, inputs[0], box, out)
        case _:
            return None
    return None if launches is None else [Step(launch, {}) for launch in launches]


def _is_copy(form: Pointwise, inputs: Sequence[ArrayLayout], out: ArrayLayout) -> bool:
    """Whether elements stay what they are, only their layout changes: there is a better kernel for transposes."""
    if form.expression != Operand(0) or inputs[0].dtype != out.dtype:
        return False
    return form.types[0] == out.dtype.name or (form.types[0], out.dtype.name) == ("float32", "float16")


def _plan_separable(form: Separable, x: ArrayLayout, box: Box, out: ArrayLayout) -> list[Step] | None:
    # Sums in float64 are nothing for our kernels; copies do not sum.
    dtype = out.dtype.name if form.accumulate == "float32" else "float64"
    return plan_resample(form.axes, form.rounding, box, dtype, x, out)

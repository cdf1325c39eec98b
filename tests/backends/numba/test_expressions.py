"""Expressions by compiled instructions: near the exact numbers, and NumPy's bits where those are exact."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.batches import each
from tests.support.elementwise_oracles import packed_case

from tensorpost.descriptors import ActivationGeluOperatorDesc, BufferTensorDesc
from tensorpost.values.graph import Graph
from tensorpost.values.operation import Slot
from tensorpost_server.backends.numba_ import NumbaBackend, expression_plan, instructions, library
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms import Form, Pointwise
from tensorpost_server.forms.expression import Expression, call, operand, where
from tensorpost_server.operators import form_of
from tensorpost_server.planning import Plan, PlanStep, make_plan
from tensorpost_server.planning.slices import cut

X, Y = operand(0), operand(1)
REST = call("fmod", X, Y)
MOST_ULP = {"exp": 0.9, "log": 1.0, "tanh": 2.6, "erf": 2.6}  # of `kernels/float32_math.py`
MATH = {
    "expm1": math.expm1, "log1p": math.log1p, "sin": math.sin, "cos": math.cos, "tan": math.tan, "arcsin": math.asin,
    "arccos": math.acos, "arctan": math.atan, "sinh": math.sinh, "cosh": math.cosh, "arcsinh": math.asinh,
    "arccosh": math.acosh, "arctanh": math.atanh,
}  # fmt: skip
MOST_ULP |= dict.fromkeys(MATH, 0.51)  # of `kernels/float64_math.py`
POLES = {("log", 0.0): -math.inf, ("log1p", -1.0): -math.inf, ("arctanh", 1.0): math.inf, ("arctanh", -1.0): -math.inf}
EXACT: dict[str, Expression] = {
    "add": X + Y,
    "difference of products": X * X - Y * Y,
    "ratio": X / Y,
    "clip": call("minimum", call("maximum", X, -1.0), 1.0),
    "roots": call("sqrt", abs(X)) - Y,
    "choice": where(X < Y, X * 2.0, where(X >= 2.5, -Y, Y)),
    "logic": where((X <= Y) & ~(X > 1.0) | (Y < -1.0), X, Y),
    "integers": call("rint", X) + call("floor", Y) * call("ceil", X) - call("trunc", Y),
    "remainders": where(call("equal", REST, REST), REST, 1.0),  # the sign of a NaN is nobody's business
    "the same part twice": (X + Y) * (X + Y),
    "both zeros": where(X < Y, where(X < 0.0, -0.0, 0.0), where(X < 0.0, 0.0, -0.0)),
    "a constant": call("maximum", 2.5, 1.5),
    "a truth value as a number": X < Y,
}


def slot(name: str, array: NDArray[Any], strides: tuple[int, ...] | None = None) -> Slot:
    return Slot(name, BufferTensorDesc(data_type=array.dtype.name.upper(), sizes=array.shape, strides=strides).layout)


def plan_of(form: Form, inputs: list[Slot], output: Slot, slice_bytes: int = 1 << 20) -> Plan:
    """As `make_plan`, for a form without an operation."""
    step = PlanStep(form, (), tuple(inputs), (output,))
    return Plan(cast("Graph", None), (step,), cut(output.layout, slice_bytes), 1)  # backends never look at the graph


def computed(backend: Any, plan: Plan, inputs: list[bytes]) -> bytes:
    run = backend.start(plan, [memoryview(x) for x in inputs])
    return b"".join(bytes(run.compute(i)) + bytes(piece.padding) for i, piece in enumerate(plan.slices))


def every_magnitude() -> NDArray[np.float32]:
    """One of some hundred float32 of each exponent, all special ones, and many where functions bend."""
    bits = np.arange(0, 1 << 32, 20_011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.linspace(-12, 12, 100_001, dtype=np.float32)
    ends = np.array([0.99999994, -0.99999994, 1.0000001, 89.1, -89.5], np.float32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 88.72283, 88.72284, -103.97, -103.98, 1], np.float32)
    return np.concatenate([bits, near, ends, special])


def exact(name: str, x: float) -> float:
    try:
        return MATH.get(name, getattr(math, name, None))(x)  # pyright: ignore[reportOptionalCall] # one of them has it
    except OverflowError:
        return math.copysign(math.inf, x) if name == "sinh" else math.inf
    except ValueError:
        return POLES.get((name, x), math.nan)


@pytest.mark.parametrize("name", list(MOST_ULP))
def test_functions_are_near_the_exact_numbers(numba: NumbaBackend, name: str):
    x = every_magnitude()
    plan = plan_of(Pointwise(call(name, X), ("float32",), "float32"), [slot("x", x)], slot("y", x), 70_000)
    assert numba.uses_numpy(plan) is None

    result = np.frombuffer(computed(numba, plan, [x.tobytes()]), np.float32)

    with np.errstate(all="ignore"):  # of NaN and of numbers that float32 does not hold
        right = np.array([exact(name, value) for value in x.astype(np.float64)])
        rounded = right.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(result[~finite], rounded[~finite])
    ulp = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert (np.abs(result[finite] - right[finite]) / ulp).max() <= MOST_ULP[name]
    number = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(result[number]), np.signbit(rounded[number]))


@pytest.mark.parametrize("operator", ["ELEMENT_WISE_POW", "ELEMENT_WISE_ATAN_YX"])
def test_functions_of_two_numbers_are_near_the_exact_ones(numba: NumbaBackend, operator: str):
    case = packed_case(operator, "FLOAT32", {}, rank=2)
    plan = make_plan(case.desc, 5000)
    assert numba.uses_numpy(plan) is None

    result = computed(numba, plan, [bytes(x) for x in case.inputs])

    replace(case, ulp=1, absolute=0).check(result)  # of what was rounded itself


@pytest.mark.parametrize("expression", EXACT.values(), ids=list(EXACT))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("slice_bytes", [1 << 20, 700])
def test_exact_functions_have_numpys_bits(numba: NumbaBackend, expression: Expression, dtype: str, slice_bytes: int):
    random = np.random.default_rng(4)
    x, y = ((random.standard_normal((7, 301)) * 3).astype(dtype) for _ in range(2))
    x[0, :4] = np.nan, np.inf, -np.inf, -0.0
    y[0, 2:6] = np.nan, np.nan, 0.0, -np.inf
    form = Pointwise(expression, ("float32", "float32"), "float32")
    plan = plan_of(form, [slot("x", x), slot("y", y)], slot("z", x), slice_bytes)
    assert numba.uses_numpy(plan) is None

    mine, theirs = (
        np.frombuffer(computed(b, plan, [x.tobytes(), y.tobytes()]), dtype) for b in (numba, NumpyBackend())
    )

    np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(np.signbit(mine), np.signbit(theirs))


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_layouts(numba: NumbaBackend, data: st.DataObject):
    sizes = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 7, 40]), min_size=1, max_size=4)))
    elements = math.prod(sizes)
    slots: list[Slot] = []
    for name in "xyz":
        order = data.draw(st.permutations(range(len(sizes))))
        strides, reach = [0] * len(sizes), 1
        for axis in order:
            broadcast = name != "z" and data.draw(st.booleans())
            strides[axis] = 0 if broadcast else reach
            reach *= 1 if broadcast else sizes[axis] + data.draw(st.integers(0, 1))
        dtype = data.draw(st.sampled_from(["float32", "float16"]))
        slots.append(slot(name, np.empty(sizes, dtype), tuple(strides)))
    random = np.random.default_rng(elements)
    inputs = [
        random.standard_normal(s.layout.size_in_bytes // s.layout.data_type.item_size)
        .astype(s.layout.data_type.dtype)
        .tobytes()
        .ljust(s.layout.size_in_bytes, b"\0")
        for s in slots[:2]
    ]
    form = Pointwise(X * 2.0 - Y, ("float32", "float32"), "float32")
    plan = plan_of(form, slots[:2], slots[2], data.draw(st.sampled_from([1 << 20, 100, 5000])))
    assert numba.uses_numpy(plan) is None

    assert computed(numba, plan, inputs) == computed(NumpyBackend(), plan, inputs)


def test_a_condition_may_be_of_bytes(numba: NumbaBackend):
    condition = np.array([0, 1, 255, 0], np.uint8)
    x, y = np.array([1, np.nan, 3, 4], np.float32), np.array([5, 6, 7, np.inf], np.float32)
    form = Pointwise(where(X, Y, operand(2)), ("uint8", "float32", "float32"), "float32")
    plan = plan_of(form, [slot("c", condition), slot("x", x), slot("y", y)], slot("z", x))
    assert numba.uses_numpy(plan) is None

    result = computed(numba, plan, [condition.tobytes(), x.tobytes(), y.tobytes()])

    assert result == np.where(condition != 0, x, y).tobytes()


@pytest.mark.parametrize(
    ("form", "dtype", "output", "reason"),
    [
        (Pointwise(X + 1, ("int32",), "int32"), "int32", "int32", "computes in float32 only, not int32"),
        (Pointwise(X + 1.0, ("float32",), "float32"), "int32", "float32", "widens float16, uint8 and int8 only"),
        (Pointwise(X + 1.0, ("float32",), "float32"), "float32", "uint8", "rounds to float32 and float16 only"),
        (
            Pointwise(call("bitwise_and", X, 1), ("float32",), "float32"),
            "float32",
            "float32",
            "no loop for bitwise_and",
        ),
    ],
)
def test_numpy_computes_what_has_no_instructions(
    numba: NumbaBackend, form: Pointwise, dtype: str, output: str, reason: str
):
    plan = plan_of(form, [slot("x", np.empty(5, dtype))], slot("y", np.empty(5, output)))

    assert reason in (numba.uses_numpy(plan) or "")
    assert numba.refusal_reason(plan) is None


def test_gelu_is_one_instruction_near_the_exact_numbers(numba: NumbaBackend):
    """What cancels in the formula does not here: numbers below 0 have an absolute error of 1e-7 and no more."""
    x = np.concatenate([every_magnitude(), np.array([-11, -11.02, -3.4028235e38, 3.4028235e38], np.float32)])
    form = form_of(ActivationGeluOperatorDesc.completed({"InputTensor": BufferTensorDesc.packed(x.dtype, x.shape)}))
    assert isinstance(form, Pointwise)
    assert len(expression_plan.Instructions.compiled(form.expression, 1).code) == 1
    plan = plan_of(form, [slot("x", x)], slot("y", x), 70_000)

    result = np.frombuffer(computed(numba, plan, [x.tobytes()]), np.float32)

    finite = np.isfinite(x)
    right = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x[finite].astype(np.float64)])
    ulp = np.spacing(np.minimum(np.abs(right), 3e38).astype(np.float32)).astype(np.float64)
    off = np.abs(result[finite] - right)
    assert (off[right > 0] / ulp[right > 0]).max() <= 2.5
    assert off[right <= 0].max() <= 6e-8
    np.testing.assert_array_equal(np.signbit(result[finite]), np.signbit(x[finite]))
    np.testing.assert_array_equal(result[~finite], np.where(x[~finite] == -np.inf, np.float32(-0.0), x[~finite]))
    assert np.signbit(result[x == -np.inf]).all()


@each("dtype", ["float32", "float16"])
@pytest.mark.parametrize("apart", [256, 6000], ids=["in all parts", "in some"])
def test_large_numbers_between_small_ones_have_the_same_power_of_e(numba: NumbaBackend, dtype: str, apart: int):
    """Parts without large numbers have a loop of their own: the same bits."""
    x = np.linspace(-20, 20, 1 << 14, dtype=np.float32).astype(dtype)
    mixed = x.copy()
    large = np.array([np.nan, 100, -100, np.inf, -np.inf, 88, -88, 87.5], dtype)
    mixed[::apart] = np.resize(large, -(-x.size // apart))
    form = Pointwise(call("exp", X), ("float32",), "float32")
    plan = plan_of(form, [slot("x", x)], slot("y", x))

    alone, among = (np.frombuffer(computed(numba, plan, [each.tobytes()]), dtype) for each in (x, mixed))

    same = np.arange(x.size) % apart != 0
    assert alone[same].tobytes() == among[same].tobytes()
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(mixed[~same].astype(np.float64)).astype(dtype)
    np.testing.assert_allclose(
        among[~same].astype(np.float64), exact.astype(np.float64), rtol=1e-3 if dtype == "float16" else 2e-7
    )


@pytest.mark.parametrize("expression", [X + Y, call("maximum", X, 0.0), X * 0.1, call("exp", X)], ids=str)
@pytest.mark.parametrize("shape", [(3, 2500), (40, 300), (700, 5), (1, 70_000)])
@pytest.mark.parametrize("gap", [0, 3])
def test_one_instruction_in_place_and_in_registers_are_the_same(
    numba: NumbaBackend, expression: Expression, shape: tuple[int, int], gap: int
):
    """float16 is widened, computed in float32 and rounded once, whatever the lengths of rows and the gaps between."""
    random = np.random.default_rng(8)
    bits = random.integers(0, 1 << 16, (2, shape[0] * (shape[1] + gap))).astype(np.uint16)
    strides = (shape[1] + gap, 1)
    form = Pointwise(expression, ("float32", "float32"), "float32")
    halves = np.empty(shape, np.float16)
    plan = plan_of(form, [slot("x", halves, strides), slot("y", halves, strides)], slot("z", halves, strides))
    assert numba.uses_numpy(plan) is None

    wide = np.empty(shape, np.float32)
    slots = [slot("x", wide, strides), slot("y", wide, strides)]
    in_float32 = plan_of(form, slots, slot("z", wide, strides))
    widened = [row.view(np.float16).astype(np.float32).tobytes() for row in bits]

    result = np.frombuffer(computed(numba, plan, [row.tobytes() for row in bits]).ljust(bits[0].nbytes), np.float16)
    right = np.frombuffer(computed(numba, in_float32, widened).ljust(2 * bits[0].nbytes), np.float32)

    rows = (slice(None), slice(shape[1]))
    found, exact = (x.reshape(shape[0], -1)[rows] for x in (result, right))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, exact.astype(np.float16))
    np.testing.assert_array_equal(np.signbit(found[~np.isnan(found)]), np.signbit(exact[~np.isnan(found)]))


def test_every_instruction_has_its_loops():
    pytest.importorskip("numba")
    from tensorpost_server.backends.numba_.kernels import expression_kernel

    assert expression_kernel.INSTRUCTIONS.keys() == instructions.CODES.keys()
    assert expression_kernel.SHORT.keys() == set(instructions.SHORT)


def test_object_code_is_of_the_codes_that_it_was_made_with(monkeypatch: pytest.MonkeyPatch):
    """A function's row may move in its table, far from the kernels."""
    before = library.object_file("expressions")
    monkeypatch.setattr(library, "CODES", dict(reversed(instructions.CODES.items())))

    assert library.object_file("expressions") != before


@pytest.mark.parametrize("rows", [3, 4, 10, 40])
def test_a_row_that_is_repeated_is_only_read(numba: NumbaBackend, rows: int):
    """A block of one row reads it in place, one of several copies it: to a register, not to where it was read."""
    x, row = np.ones((2, rows, 300), np.float32), np.empty((2, 1, 300), np.float32)
    memory = np.arange(4000, dtype=np.float32)  # the row, and what lies behind it
    form = Pointwise(X + Y, ("float32", "float32"), "float32")
    plan = plan_of(form, [slot("x", x), slot("row", row)], slot("z", x))
    assert numba.uses_numpy(plan) is None

    run = numba.start(plan, [array.data.cast("B") for array in (x, memory[:600])])
    found = np.frombuffer(run.compute(0), np.float32).reshape(x.shape)

    np.testing.assert_array_equal(found, x + np.arange(600, dtype=np.float32).reshape(row.shape))
    np.testing.assert_array_equal(memory, np.arange(4000))

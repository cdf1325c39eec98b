"""Pointwise operators, copies and reductions beside NumPy, torch, ONNX Runtime and numexpr: 40 rows of `kernels`.

Each runs on matrices of 2048 columns and 16 MiB (two where there are two inputs), ours as in `kernels.py`, the peers on
the whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost import descriptors as dml
from tensorpost.descriptors import BufferTensorDesc, OperatorDesc
from tensorpost_server.backends import Backend
from tensorpost_server.planning import make_plan

from .bench import Bench
from .report import Cell, Figure, Table, Target
from .sockets import MIB
from .timing import in_turn

BYTES = 16 * MIB
COLUMNS = 2048
BLOCK = 4  # of space to depth
PEERS = ("numpy itself", "torch", "onnxruntime", "numexpr")
WITHIN = Target(
    "pointwise, copies, reductions, time against the fastest of NumPy, torch, ONNX Runtime, numexpr", 1.2, at_most=True
)
Array = NDArray[Any]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """One operator on given inputs.

    Attributes:
        name: name of the row in the table.
        inputs: how many matrices there are.
        types: types of the matrices, by NumPy's names.
        descriptor: makes the descriptor, given the matrices' tensors.
        numpy: the same with NumPy, on arrays.
        torch: the same with torch, given the module and tensors.
        onnx: the ONNX operator, its attributes, and further inputs of int64; None where one differs.
        numexpr: the same of float32 as text; None if it cannot be said.
        near: whether the results are sums or approximations, which may differ in the last places.
    """

    name: str
    inputs: int
    types: tuple[str, ...]
    descriptor: Callable[[list[BufferTensorDesc]], OperatorDesc]
    numpy: Callable[..., Any]
    torch: Callable[..., Any]
    onnx: tuple[str, dict[str, Any], dict[str, list[int]]] | None
    numexpr: str | None = None
    near: bool = False


def _binary(cls: Any) -> Callable[[list[BufferTensorDesc]], OperatorDesc]:
    return lambda tensors: cls.completed({"ATensor": tensors[0], "BTensor": tensors[1]})


def _unary(cls: Any, **fields: Any) -> Callable[[list[BufferTensorDesc]], OperatorDesc]:
    return lambda tensors: cls.completed({"InputTensor": tensors[0], **fields})


def _transposed(tensors: list[BufferTensorDesc]) -> OperatorDesc:
    (tensor,) = tensors
    rows, columns = tensor.sizes
    turned = BufferTensorDesc(data_type=tensor.data_type, sizes=(columns, rows), strides=(1, columns))
    packed = BufferTensorDesc.packed(tensor.dtype, turned.sizes)
    return dml.ElementWiseIdentityOperatorDesc.completed({"InputTensor": turned, "OutputTensor": packed})


def _slice(tensors: list[BufferTensorDesc]) -> OperatorDesc:
    rows, columns = tensors[0].sizes
    return dml.Slice1OperatorDesc.completed(
        {
            "InputTensor": tensors[0],
            "InputWindowOffsets": [5, 8],
            "InputWindowSizes": [rows - 10, columns - 16],
            "InputWindowStrides": [1, 1],
        }
    )


def _blocks(tensors: list[BufferTensorDesc]) -> OperatorDesc:
    (tensor,) = tensors
    image = BufferTensorDesc.packed(tensor.dtype, (1, 1, *tensor.sizes))
    return dml.SpaceToDepth1OperatorDesc.completed(
        {"InputTensor": image, "BlockSize": BLOCK, "Order": "COLUMN_ROW_DEPTH"}
    )


def _blocks_by_numpy(x: Array) -> Array:
    rows, columns = x.shape
    parts = x.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK).transpose(1, 3, 0, 2)
    return np.ascontiguousarray(parts).reshape(1, BLOCK * BLOCK, rows // BLOCK, columns // BLOCK)


def _gelu(x: Array) -> Array:
    """No function of NumPy's: the definition, evaluated in float64 where it is looked at."""
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel().tolist()]).reshape(x.shape)


FLOATS = ("float32", "float16")
MOVED = (*FLOATS, "uint8")
WORKS = (
    Work(
        "add", 2, (*FLOATS, "int32", "uint8"), _binary(dml.ElementWiseAddOperatorDesc), np.add, lambda _, a, b: a + b,
        ("Add", {}, {}), "a + b",
    ),
    Work(
        "multiply", 2, (*FLOATS, "int32"), _binary(dml.ElementWiseMultiplyOperatorDesc), np.multiply,
        lambda _, a, b: a * b, ("Mul", {}, {}), "a * b",
    ),
    Work(
        "exp", 1, FLOATS, _unary(dml.ElementWiseExpOperatorDesc), np.exp, lambda _, a: a.exp(), ("Exp", {}, {}),
        "exp(a)", near=True,
    ),
    Work(
        "gelu", 1, FLOATS, _unary(dml.ActivationGeluOperatorDesc), _gelu, lambda t, a: t.nn.functional.gelu(a),
        ("Gelu", {}, {}), near=True,
    ),
    Work(
        "tanh", 1, FLOATS, _unary(dml.ActivationTanhOperatorDesc), np.tanh, lambda _, a: a.tanh(), ("Tanh", {}, {}),
        "tanh(a)", near=True,
    ),
    Work(
        "relu", 1, FLOATS, _unary(dml.ActivationReluOperatorDesc), lambda a: np.maximum(a, a.dtype.type(0)),
        lambda _, a: a.relu(), ("Relu", {}, {}), "where(a > 0, a, 0)",
    ),
    Work(
        "transpose", 1, MOVED, _transposed, lambda a: np.ascontiguousarray(a.T), lambda _, a: a.t().contiguous(),
        ("Transpose", {"perm": [1, 0]}, {}),
    ),
    Work(
        "slice", 1, MOVED, _slice, lambda a: a[5:-5, 8:-8].copy(), lambda _, a: a[5:-5, 8:-8].contiguous(),
        ("Slice", {}, {"starts": [5, 8], "ends": [-5, -8]}),
    ),
    Work(
        "join", 2, MOVED, lambda tensors: dml.JoinOperatorDesc.completed({"InputTensors": tensors, "Axis": 1}),
        lambda a, b: np.concatenate([a, b], 1), lambda t, a, b: t.cat([a, b], 1), ("Concat", {"axis": 1}, {}),
    ),
    Work(
        "pad", 1, MOVED,
        _unary(dml.Padding1OperatorDesc, PaddingMode="CONSTANT", StartPadding=[3, 5], EndPadding=[3, 5]),
        lambda a: np.pad(a, ((3, 3), (5, 5))), lambda t, a: t.nn.functional.pad(a, (5, 5, 3, 3)),
        ("Pad", {}, {"pads": [3, 5, 3, 5]}),
    ),
    Work(
        "space to depth", 1, MOVED, _blocks, _blocks_by_numpy,
        lambda t, a: t.nn.functional.pixel_unshuffle(a[None, None], BLOCK), None,
    ),
    Work(
        "sum of rows", 1, (*FLOATS, "int32"), _unary(dml.ReduceOperatorDesc, Function="SUM", Axes=[1]),
        lambda a: a.sum(1, keepdims=True, dtype=a.dtype), lambda _, a: a.sum(1, keepdim=True, dtype=a.dtype),
        ("ReduceSum", {}, {"axes": [1]}), near=True,
    ),
    Work(
        "sum of columns", 1, FLOATS, _unary(dml.ReduceOperatorDesc, Function="SUM", Axes=[0]),
        lambda a: a.sum(0, keepdims=True, dtype=a.dtype), lambda _, a: a.sum(0, keepdim=True, dtype=a.dtype),
        ("ReduceSum", {}, {"axes": [0]}), near=True,
    ),
    Work(
        "maximum of rows", 1, MOVED, _unary(dml.ReduceOperatorDesc, Function="MAX", Axes=[1]),
        lambda a: a.max(1, keepdims=True), lambda _, a: a.amax(1, keepdim=True), ("ReduceMax", {}, {"axes": [1]}),
    ),
    Work(
        "argmax of rows", 1, FLOATS, _unary(dml.ReduceOperatorDesc, Function="ARGMAX", Axes=[1]),
        lambda a: a.argmax(1, keepdims=True), lambda _, a: a.argmax(1, keepdim=True), ("ArgMax", {"axis": 1}, {}),
    ),
)  # fmt: skip


def tables(
    bench: Bench,
    backends: Mapping[str, Backend],
    libraries: Any,
    pool: ThreadPoolExecutor,
    timed: Callable[..., tuple[Call, Callable[[], Array]]],
    rounds: tuple[int, int, float],
) -> Iterator[Table]:
    """One table of all works in all of their types.

    Args:
        bench: the run.
        backends: ours, opened, the one that `auto` prefers first.
        libraries: the peers' modules, by attribute; None for one that is not installed.
        pool: threads for our slices.
        timed: makes our call and one that returns the whole output.
        rounds: turns at the least, calls in a row, and seconds before each turn.
    """
    columns = ("work", "type", "ours", "copies", *PEERS, "ours / fastest", "of the copy limit")
    rows = [
        _row(bench, work, dtype, backends, libraries, pool, timed, rounds)
        for work in WORKS
        for dtype in (work.types[:1] if bench.quick else work.types)
    ]
    yield Table("Pointwise operators, copies and reductions", columns, tuple(rows))


def _row(
    bench: Bench,
    work: Work,
    dtype: str,
    backends: Mapping[str, Backend],
    libraries: Any,
    pool: ThreadPoolExecutor,
    timed: Callable[..., tuple[Call, Callable[[], Array]]],
    rounds: tuple[int, int, float],
) -> tuple[Cell, ...]:
    bench.doing(f"kernels: {work.name}, {dtype}")
    height = BYTES // np.dtype(dtype).itemsize // COLUMNS // (2 if work.name == "join" else 1)
    random, scale = np.random.default_rng(3), 1 if dtype in FLOATS else 50
    numbers = [random.standard_normal((height, COLUMNS), np.float32) * scale for _ in range(work.inputs)]
    inputs = [(abs(x) if dtype == "uint8" else x).astype(dtype) for x in numbers]
    desc = work.descriptor([BufferTensorDesc.packed(x.dtype, x.shape) for x in inputs])
    plan = make_plan(desc, 1 << 21)
    backend = next(backend for backend in backends.values() if backend.refusal_reason(plan) is None)
    ours, whole = timed(backend, desc, inputs, pool)
    result = whole()
    _check(work, inputs, result)
    (out,) = desc.outputs
    elements = max(inputs[0].size, math.prod(out.layout.sizes))
    copy = np.empty(elements, dtype)  # the copy limit: as many bytes as the larger side has, on as many threads
    source = np.ones_like(copy)
    calls: dict[str, Call] = {"ours": ours, "copies": _copying(source, copy, pool)}
    calls |= dict(_peers(bench, work, inputs, libraries))
    least, in_a_row, pause = rounds
    took = in_turn(calls, least=least, warm_up=in_a_row, in_a_row=in_a_row, pause=pause)
    figures: list[Cell] = [
        Figure(took[name].best / elements * 1e9, 3) if name in took else None for name in ("ours", "copies", *PEERS)
    ]
    fastest = min(took[name].best for name in PEERS if name in took)
    share = took["copies"].best / took["ours"].best
    return (work.name, dtype, *figures, Figure(took["ours"].best / fastest, target=WITHIN), Figure(share))


def _check(work: Work, inputs: Sequence[Array], result: Array) -> None:
    """Our result against NumPy's, computed in float64 where it is not exact."""
    if work.near and inputs[0].dtype.kind == "f":
        part = slice(3 if work.name in ("exp", "gelu", "tanh") else None)  # GELU takes long
        expected = work.numpy(*[x[part].astype(np.float64) for x in inputs])
        tolerance = (2e-3 if result.dtype == np.float16 else 1e-6) * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(result[part].astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(result, work.numpy(*inputs))


def _copying(source: Array, target: Array, pool: ThreadPoolExecutor) -> Call:
    parts = [slice(source.size * part // 2, source.size * (part + 1) // 2) for part in range(2)]

    def run() -> None:
        for done in [pool.submit(np.copyto, target[part], source[part]) for part in parts]:
            done.result()

    return run


def _peers(bench: Bench, work: Work, inputs: Sequence[Array], libraries: Any) -> Iterator[tuple[str, Call]]:
    if work.name != "gelu":
        yield "numpy itself", lambda: work.numpy(*inputs)
    if libraries.torch is not None:
        tensors = [libraries.torch.from_numpy(x) for x in inputs]
        yield "torch", lambda: work.torch(libraries.torch, *tensors)
    if libraries.numexpr is not None and work.numexpr is not None and inputs[0].dtype == np.float32:
        text, arrays = work.numexpr, dict(zip("ab", inputs, strict=False))
        yield "numexpr", lambda: libraries.numexpr.evaluate(text, arrays)
    if libraries.onnx is not None and libraries.onnxruntime is not None and work.onnx is not None:
        try:
            yield "onnxruntime", _onnxruntime(libraries, *work.onnx, inputs)
        except libraries.onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
            bench.leave_out(f"onnxruntime at {work.name} of {inputs[0].dtype.name}, for which it has no kernel")


def _onnxruntime(
    libraries: Any, kind: str, attributes: dict[str, Any], more: dict[str, list[int]], inputs: Sequence[Array]
) -> Call:
    helper, kinds, ort = libraries.onnx.helper, libraries.onnx.TensorProto, libraries.onnxruntime
    element = getattr(kinds, {"float32": "FLOAT"}.get(inputs[0].dtype.name, inputs[0].dtype.name.upper()))
    names = list("ab"[: len(inputs)])
    node = helper.make_node(kind, [*names, *more], ["y"], **attributes)
    tensors = [helper.make_tensor_value_info(n, element, x.shape) for n, x in zip(names, inputs, strict=True)]
    constants = [helper.make_tensor(name, kinds.INT64, [len(values)], values) for name, values in more.items()]
    output = [helper.make_tensor_value_info("y", kinds.INT64 if kind == "ArgMax" else element, None)]
    graph = helper.make_graph([node], "work", tensors, output, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 2, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = dict(zip(names, inputs, strict=True))
    return lambda: session.run(None, fed)

"""CPU kernels beside torch, ONNX Runtime, OpenCV and OpenVINO: the same work on the same tensors.

Ours is what a thread of the server runs: slices of the default size, each dropped when it is made as a server does that
has sent it, by the numba backend and by the numpy backend. A second thread takes slices too, unless the backend divides
each between the calling thread and a helper of its own. The peers get the whole tensor and two threads of their own.
What everybody returns is compared with the definition, evaluated in float64 at some thousand places.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.calls.resampling import resample_desc
from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, ResampleOperatorDesc, TileOperatorDesc
from tensorpost_server.backends import Backend
from tensorpost_server.backends.numba_ import NumbaBackend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan
from tensorpost_server.settings import Settings

from . import elementwise
from .bench import Bench
from .report import Cell, Figure, Table, Target
from .sockets import MIB
from .timing import in_turn

SLICE_BYTES: int = Settings.model_fields["slice_bytes"].default
THREADS = 2
OUTPUT_BYTES = 16 * MIB
PAUSE = 0.03  # seconds; the peers' threads spin for a while after their work and would take a core from whoever is next
IN_A_ROW = 5  # calls after each pause that count, behind as many that do not: until threads are spread over the cores
DTYPES = ("float32", "float16", "uint8")
OURS = ("numba", "numpy")
PEERS = ("torch", "torch copy_", "onnxruntime", "OpenCV", "OpenVINO")
TILE = Target("Tile kernel at 64 MiB, time against the fastest of torch, ONNX Runtime, OpenCV", 1.0, at_most=True)
TILE_16 = Target("Tile kernel at 16 MiB, time against the fastest of torch, ONNX Runtime, OpenCV", 1.3, at_most=True)
NEAREST = Target("nearest kernel, time against the fastest of torch, ONNX Runtime and OpenCV", 1.0, at_most=True)
LINEAR = Target("linear kernel, float32 and uint8, time against torch and ONNX Runtime", 0.6, at_most=True)
LINEAR_CV = Target("linear kernel x2, float32 and uint8, time against OpenCV", 1.2, at_most=True)
Run = Callable[[], NDArray[Any]]


# ---- what is computed ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resampling:
    """A resampling of the last axes, batch 1, three channels, pixel centres aligned: the rule that all share."""

    mode: str
    scale: float
    dims: int = 2

    def __str__(self) -> str:
        return f"{self.mode} x{self.scale:g}" + (", 3-D" if self.dims == 3 else "")

    def input(self, dtype: str) -> NDArray[Any]:
        """Random data whose output has about the wanted size; its sides divide by many numbers."""
        elements = OUTPUT_BYTES / np.dtype(dtype).itemsize / 3
        side = max(8, round((elements ** (1 / self.dims)) / self.scale / 8) * 8)
        return _random((1, 3, *[side] * self.dims), dtype)

    def descriptor(self, x: NDArray[Any]) -> OperatorDesc:
        if self.mode == "nearest":  # as the SDK asks: RESAMPLE's own nearest of uint8 rounds down, as DirectML's does
            return resample_desc(x, scales=self.scale, axes=(2, 3), mode="nearest")
        tensor = BufferTensorDesc.packed(x.dtype, x.shape)
        scales = [1, 1, *[self.scale] * self.dims]
        return ResampleOperatorDesc.completed({"InputTensor": tensor, "InterpolationMode": "LINEAR", "Scales": scales})

    def wrong(self, y: NDArray[Any], x: NDArray[Any]) -> str | None:
        """What is wrong with a result, at a few thousand random places."""
        shape = (1, 3, *(int(size * np.float32(self.scale)) for size in x.shape[2:]))
        if y.shape != shape:
            return f"shape {y.shape} instead of {shape}"
        random = np.random.default_rng(11)
        at = [random.integers(0, size, 4000) for size in shape]
        sources = [(index + 0.5) / float(np.float32(self.scale)) - 0.5 for index in at[2:]]
        # Where a source is nearly halfway between two, the choice hangs on the last bit of a scale like 1.7.
        tied = np.zeros(4000, bool)
        if self.mode == "nearest" and float(np.float32(self.scale)) != self.scale:
            tied = np.any([np.abs(source - np.floor(source) - 0.5) < 1e-3 for source in sources], axis=0)
        expected = np.zeros(4000)
        if self.mode == "nearest":
            nearest = [
                np.clip(np.floor(s + 0.5), 0, n - 1).astype(int) for s, n in zip(sources, x.shape[2:], strict=True)
            ]
            expected += x[at[0], at[1], *nearest]
        else:
            below = [np.floor(source) for source in sources]
            for corner in product((0, 1), repeat=self.dims):
                near = [
                    np.clip(b + c, 0, n - 1).astype(int) for b, c, n in zip(below, corner, x.shape[2:], strict=True)
                ]
                parts = [s - b if c else 1 - (s - b) for s, b, c in zip(sources, below, corner, strict=True)]
                expected += np.prod(parts, axis=0) * x[at[0], at[1], *near]
        apart = np.abs(y[tuple(at)].astype(np.float64) - expected)[~tied].max()
        # coordinates in float32; a last place of float16; a level of uint8, which some round and some cut off
        allowed = {"float32": 5e-4, "float16": 2e-3, "uint8": 1.05}[x.dtype.name] if self.mode == "linear" else 0.0
        return f"off by {apart:.3g}" if apart > allowed else None


@dataclass(frozen=True)
class Tiling:
    """A Tile of equal blocks, as many as make an output of so many MiB."""

    name: str
    block: tuple[int, ...]
    repeats: tuple[int, ...]
    mib: int = 16

    def __str__(self) -> str:
        return f"{self.name}, {self.mib} MiB"

    def input(self, dtype: str) -> NDArray[Any]:
        rows = self.mib * MIB // np.dtype(dtype).itemsize // int(np.prod(self.repeats)) // int(np.prod(self.block))
        return _random((rows, *self.block[1:]), dtype)

    def descriptor(self, x: NDArray[Any]) -> OperatorDesc:
        return TileOperatorDesc.of(BufferTensorDesc.packed(x.dtype, x.shape), self.repeats)

    def wrong(self, y: NDArray[Any], x: NDArray[Any]) -> str | None:
        """What is wrong with a result, anywhere."""
        return None if np.array_equal(y.reshape(-1), np.tile(x, self.repeats).reshape(-1)) else "other elements"


Case = Resampling | Tiling
TILINGS = tuple(
    Tiling(*case, mib)
    for mib in (16, 64)
    for case in (
        ("rows of 256, x2x2", (1, 256), (2, 2)),
        ("rows of 8, x2x2", (1, 8), (2, 2)),
        ("batch x8", (1, 512, 512), (8, 1, 1)),
    )
)
RESAMPLINGS = (
    *(Resampling("nearest", scale) for scale in (2, 1.7, 0.5)),
    *(Resampling("linear", scale) for scale in (2, 1.7, 0.5)),
    Resampling("linear", 2, dims=3),
)


def _random(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    values = np.random.default_rng(7).random(shape, np.float32)
    return (values * 255 if dtype == "uint8" else values).astype(dtype)


# ---- ours ------------------------------------------------------------------------------------------------------------


def ours(
    backend: Backend,
    desc: OperatorDesc,
    inputs: Sequence[NDArray[Any]],
    pool: ThreadPoolExecutor,
    threads: int = THREADS,
) -> tuple[Run, Run]:
    """The timed call, which drops each slice, and one that returns the whole."""
    plan = make_plan(desc, SLICE_BYTES)
    if (reason := backend.refusal_reason(plan)) is not None:
        raise RuntimeError(f"our own backend refuses the work: {reason}")
    sent = [np.ascontiguousarray(x).data.cast("B") for x in inputs]
    (output,) = desc.outputs
    divided = isinstance(backend, NumbaBackend) and backend.divides(plan)

    def timed() -> Any:
        run = backend.start(plan, sent)
        indices = iter(range(len(plan.slices)))  # a range iterator hands out each index once, whoever asks

        def work() -> None:
            for index in indices:
                run.compute(index)

        others = [pool.submit(work) for _ in range(0 if divided else threads - 1)]
        work()
        for other in others:
            other.result()

    def whole() -> NDArray[Any]:
        run = backend.start(plan, sent)
        flat = np.concatenate([np.frombuffer(run.compute(index), np.uint8) for index in range(len(plan.slices))])
        return flat.view(output.layout.data_type.dtype).reshape(output.layout.sizes)

    return timed, whole


# ---- the peers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Libraries:
    """The modules of the peers; None for one that is not installed."""

    torch: Any
    onnx: Any
    onnxruntime: Any
    cv2: Any
    openvino: Any
    numexpr: Any

    @classmethod
    def found(cls, bench: Bench) -> Libraries:
        """The libraries that are installed, with two threads each; the others are named."""
        modules: dict[str, Any] = {}
        for name in ("torch", "onnx", "onnxruntime", "cv2", "openvino", "numexpr"):
            try:
                modules[name] = importlib.import_module(name)
            except ModuleNotFoundError:
                modules[name] = None
                bench.leave_out(f"{name}, which is not installed")
        if modules["torch"] is not None:
            modules["torch"].set_num_threads(THREADS)
        if modules["numexpr"] is not None:
            modules["numexpr"].set_num_threads(THREADS)
        if modules["cv2"] is not None:
            modules["cv2"].setNumThreads(THREADS)
        return cls(**modules)

    def runs(self, case: Case, x: NDArray[Any]) -> Iterator[tuple[str, Run]]:
        """Every peer that can do this, by its name in the table."""
        if self.torch is not None:
            yield from _torch_tile(self.torch, case, x) if isinstance(case, Tiling) else _torch(self.torch, case, x)
        if self.cv2 is not None:
            yield from _opencv_tile(self.cv2, case, x) if isinstance(case, Tiling) else _opencv(self.cv2, case, x)
        if self.onnx is None:
            return
        model = onnx_model(self.onnx, case, x).SerializeToString()
        if self.onnxruntime is not None:
            yield "onnxruntime", _onnxruntime(self.onnxruntime, model, x)
        if self.openvino is not None and isinstance(case, Resampling):
            yield "OpenVINO", _openvino(self.openvino, model, x)


def _torch(torch: Any, case: Resampling, x: NDArray[Any]) -> Iterator[tuple[str, Run]]:
    """Torch's interpolate; it has no trilinear for uint8."""
    if case.dims == 3 and x.dtype == np.uint8:
        return
    tensor, scales = torch.from_numpy(x), (float(case.scale),) * case.dims
    mode = "nearest-exact" if case.mode == "nearest" else "bilinear" if case.dims == 2 else "trilinear"
    yield "torch", lambda: torch.nn.functional.interpolate(tensor, scale_factor=scales, mode=mode).numpy()


def _torch_tile(torch: Any, case: Tiling, x: NDArray[Any]) -> Iterator[tuple[str, Run]]:
    """torch.tile, and what one writes who has measured: a view of equal strides copied into memory that is there."""
    tensor = torch.from_numpy(x)
    yield "torch", lambda: torch.tile(tensor, case.repeats).numpy()
    into = torch.empty(
        [number for pair in zip(case.repeats, x.shape, strict=True) for number in pair], dtype=tensor.dtype
    )
    view = tensor.reshape([number for size in x.shape for number in (1, size)]).expand(into.shape)
    yield "torch copy_", lambda: into.copy_(view).numpy()


def _opencv(cv2: Any, case: Resampling, x: NDArray[Any]) -> Iterator[tuple[str, Run]]:
    """OpenCV's resize, plane by plane. It has no float16, no third axis, and another rule for scales below 1."""
    if case.dims == 3 or x.dtype == np.float16 or (case.mode == "linear" and case.scale < 1):
        return
    planes = x.reshape(-1, *x.shape[2:])
    height, width = (int(size * np.float32(case.scale)) for size in x.shape[2:])
    out = np.empty((len(planes), height, width), x.dtype)
    flag = cv2.INTER_LINEAR if case.mode == "linear" else cv2.INTER_NEAREST

    def run() -> NDArray[Any]:
        for plane, into in zip(planes, out, strict=True):
            cv2.resize(plane, (width, height), dst=into, interpolation=flag)
        return out[np.newaxis]

    yield "OpenCV", run


def _opencv_tile(cv2: Any, case: Tiling, x: NDArray[Any]) -> Iterator[tuple[str, Run]]:
    """OpenCV's repeat, which knows no float16 and copies it as int16."""
    flat = x.view(np.int16 if x.dtype == np.float16 else x.dtype).reshape(len(x), -1)
    down, across = case.repeats[0], case.repeats[-1]
    if across == 1:
        flat = flat.reshape(-1, 512)
    yield "OpenCV", lambda: cv2.repeat(flat, down, across).view(x.dtype)


def onnx_model(onnx: Any, case: Case, x: NDArray[Any]) -> Any:
    """The work as a model of one node: Tile-13, or Resize-18 with the rules that we follow too."""
    kind = {"float32": "FLOAT", "float16": "FLOAT16", "uint8": "UINT8"}[x.dtype.name]
    helper, kinds = onnx.helper, onnx.TensorProto
    if isinstance(case, Tiling):
        node = helper.make_node("Tile", ["x", "numbers"], ["y"])
        numbers = helper.make_tensor("numbers", kinds.INT64, [x.ndim], case.repeats)
    else:
        rules = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
        node = helper.make_node("Resize", ["x", "", "numbers"], ["y"], mode=case.mode, **rules)
        numbers = helper.make_tensor("numbers", kinds.FLOAT, [x.ndim], [1, 1, *[case.scale] * case.dims])
    tensors = [
        helper.make_tensor_value_info(name, getattr(kinds, kind), shape)
        for name, shape in (("x", x.shape), ("y", None))
    ]
    graph = helper.make_graph([node], "work", tensors[:1], tensors[1:], [numbers])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _onnxruntime(ort: Any, model: bytes, x: NDArray[Any]) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})[0]


def _openvino(openvino: Any, model: bytes, x: NDArray[Any]) -> Run:
    """OpenVINO, told to compute in the type of the tensor."""
    core = openvino.Core()
    kinds = {"float32": openvino.Type.f32, "float16": openvino.Type.f16}
    options = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}
    if x.dtype.name in kinds:
        options["INFERENCE_PRECISION_HINT"] = kinds[x.dtype.name]
    asked = core.compile_model(core.read_model(model), "CPU", options).create_infer_request()
    return lambda: asked.infer({0: x}, share_inputs=True, share_outputs=True)[0]


# ---- the run ---------------------------------------------------------------------------------------------------------


def measure(bench: Bench) -> Iterator[Table]:
    """Tile, the resamplings, then pointwise operators and copies."""
    bench.note(
        f"Nanoseconds per element, {THREADS} threads each, the fastest call; outputs of {OUTPUT_BYTES // MIB} MiB, if"
        " nothing else is said."
    )
    bench.note("torch copy_: a broadcast view copied into existing memory, torch's fastest way to tile.")
    bench.note(
        "OpenCV's nearest takes the floor of o / scale, and torch breaks ties upwards; both are timed all the same."
    )
    libraries = Libraries.found(bench)
    backends: dict[str, Backend] = {}
    for name, opened in zip(OURS, (NumbaBackend, NumpyBackend), strict=True):
        try:
            backends[name] = opened(threads=THREADS)
        except (ImportError, OSError, RuntimeError) as error:
            bench.leave_out(f"our {name} backend, which cannot be opened: {error}")
    columns = ("work", "type", *OURS, *PEERS, "numba / fastest", "numpy / fastest")
    last = ("numba / OpenCV",)
    with ThreadPoolExecutor(THREADS) as pool:
        for title, cases in (("Tile", TILINGS), ("Resample", RESAMPLINGS)):
            rows = tuple(
                _row(bench, case, dtype, backends, libraries, pool)
                for case in cases
                for dtype in DTYPES
                if not bench.quick or (dtype != "float16" and getattr(case, "mib", 16) == 16)
            )
            yield Table(title, columns + last, rows)
        rounds = (2, 3, PAUSE) if bench.quick else (5, IN_A_ROW, PAUSE)
        yield from elementwise.tables(bench, backends, libraries, pool, ours, rounds)


def _row(
    bench: Bench,
    case: Case,
    dtype: str,
    backends: Mapping[str, Backend],
    libraries: Libraries,
    pool: ThreadPoolExecutor,
) -> tuple[Cell, ...]:
    """Compare, then time."""
    bench.doing(f"kernels: {case}, {dtype}")
    x = case.input(dtype)
    runs: dict[str, Run] = {}
    for name, backend in backends.items():
        runs[name], whole = ours(backend, case.descriptor(x), [x], pool)
        if (wrong := case.wrong(whole(), x)) is not None:
            raise RuntimeError(f"our {name} at {case} of {dtype}: {wrong}")
    for name, run in libraries.runs(case, x):
        if comparable(name, case) and (wrong := case.wrong(run(), x)) is not None:
            bench.leave_out(f"{name} at {case} of {dtype}, whose result is another: {wrong}")
        else:
            runs[name] = run
    calls = 3 if bench.quick else IN_A_ROW
    took = in_turn(runs, least=2 if bench.quick else 5, warm_up=calls, in_a_row=calls, pause=PAUSE)
    elements = case.mib * MIB // x.dtype.itemsize if isinstance(case, Tiling) else _elements(case, x)
    figures: list[Cell] = [Figure(took[n].best / elements * 1e9, 3) if n in took else None for n in (*OURS, *PEERS)]
    target = target_of(case, dtype)
    judged = [name for name in ("torch", "torch copy_", "onnxruntime") if name in took]
    if (isinstance(case, Tiling) or target == NEAREST) and "OpenCV" in took:
        judged.append("OpenCV")
    fastest = min((took[name].best for name in judged), default=None)
    ratios: list[Cell] = [
        Figure(took[name].best / fastest, target=target if name == "numba" else None)
        if name in took and fastest is not None
        else None
        for name in OURS
    ]
    against: Cell = None
    if {"numba", "OpenCV"} <= took.keys() and isinstance(case, Resampling) and case.mode == "linear":
        ratio = took["numba"].best / took["OpenCV"].best
        against = Figure(ratio, target=LINEAR_CV if case.scale == 2 else None)
    return (str(case), dtype, *figures, *ratios, against)


def target_of(case: Case, dtype: str) -> Target | None:
    """What our numba kernel should reach."""
    if isinstance(case, Tiling):
        return TILE_16 if case.mib == 16 else TILE
    if case.mode == "nearest":
        return NEAREST
    return LINEAR if dtype in ("float32", "uint8") else None


def comparable(name: str, case: Case) -> bool:
    """Whether a peer follows the very rule. Not torch's and OpenCV's nearest, nor the scale that OpenCV takes."""
    if isinstance(case, Tiling):
        return True
    if case.mode == "nearest":
        return name in ("onnxruntime", "OpenVINO")
    return name != "OpenCV" or case.scale == int(case.scale)


def _elements(case: Resampling, x: NDArray[Any]) -> int:
    return 3 * int(np.prod([int(size * np.float32(case.scale)) for size in x.shape[2:]]))

"""CPU kernels beside torch, ONNX Runtime and OpenCV: same work, same machine, same run.

    python benchmarks/kernels.py
    python benchmarks/kernels.py resample --case "linear x2" --dtypes float32 --rounds 21

Ours is what the server runs: slices of the default size, on two threads, by the numba backend (run `tensorpost warmup`
first) and by the numpy backend. The peers get the whole tensor and two threads of their own. All are called in turn,
and each figure is the median over the rounds. What they return is compared, so that nobody is fast by being wrong. A
peer that is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, ResampleOperatorDesc, TileOperatorDesc
from tensorpost_server.backends import Backend, load_backend
from tensorpost_server.engine.plan import make_plan
from tensorpost_server.settings import Settings

MIB = 1 << 20
SLICE_BYTES: int = Settings.model_fields["slice_bytes"].default
THREADS = 2
PAUSE = 0.03  # seconds; the peers' threads spin for a while after their work and would take a core from whoever is next
UNTIMED = 5  # calls after each pause, until the scheduler has spread the threads over the cores again
TIMED = 5
POOL = ThreadPoolExecutor(THREADS)
Run = Callable[[], NDArray[Any]]


def peer(name: str) -> Any:
    """The module, or None and a line that says so."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        print(f"{name} is not installed: its column is left out")
        return None


def opened(names: str) -> dict[str, Backend]:
    """Our backends, those that can be opened; a line for each of the others."""
    found: dict[str, Backend] = {}
    for name in names.split(","):
        try:
            found[name] = load_backend(name)()
        except (ImportError, OSError, RuntimeError) as error:
            print(f"{name} cannot be opened, its column is left out: {error}")
    return found


def ours(backend: Backend, desc: OperatorDesc, x: NDArray[Any]) -> tuple[Run, Run]:
    """The timed call, which drops each slice as a server does that has sent it, and one that returns the whole."""
    plan = make_plan(desc, SLICE_BYTES)
    assert backend.refuses(plan) is None
    sent = memoryview(x.tobytes())

    def timed() -> Any:
        run = backend.start(plan, [sent])
        indices = iter(range(len(plan.slices)))  # a range iterator hands out each index once, whoever asks

        def work() -> None:
            for index in indices:
                run.compute(index)

        for thread in [POOL.submit(work) for _ in range(THREADS)]:
            thread.result()

    def whole() -> NDArray[Any]:
        run = backend.start(plan, [sent])
        flat = np.concatenate([np.frombuffer(run.compute(index), np.uint8) for index in range(len(plan.slices))])
        return flat.view(x.dtype).reshape(desc.tensors()["output_tensor"].sizes)

    return timed, whole


@dataclass(frozen=True)
class Case:
    """A resampling of the last axes of a batch of one with three channels."""

    mode: str
    scale: float
    dims: int = 2

    def __str__(self) -> str:
        return f"{self.mode} x{self.scale:g}" + (", 3-D" if self.dims == 3 else "")

    def input(self, dtype: str, megabytes: int) -> NDArray[Any]:
        """Random data whose output has about this size; the first side divides by many numbers."""
        elements = megabytes * MIB / np.dtype(dtype).itemsize / 3
        side = max(8, round((elements ** (1 / self.dims)) / self.scale / 8) * 8)
        values = np.random.default_rng(7).random((1, 3, *[side] * self.dims), np.float32)
        return (values * 255 if dtype == "uint8" else values).astype(dtype)

    def descriptor(self, x: NDArray[Any]) -> OperatorDesc:
        """Pixel centres aligned, the rule that all three share."""
        return ResampleOperatorDesc.completed(
            {
                "InputTensor": BufferTensorDesc.packed(x.dtype, x.shape),
                "InterpolationMode": "LINEAR" if self.mode == "linear" else "NEAREST_NEIGHBOR",
                "Scales": [1, 1, *[self.scale] * self.dims],
            }
        )


CASES = [
    *(Case("nearest", scale) for scale in (2, 1.7, 0.5)),
    *(Case("linear", scale) for scale in (2, 1.7, 0.5)),
    Case("linear", 2, dims=3),
]
NAMES = ("numba", "numpy", "torch", "ort", "cv2")
HEAD = ["case", "type", "MiB out", *(f"{name} ns" for name in NAMES), "numba / fastest", "numpy / fastest", "checked"]
TARGETS = "numba: Tile and nearest 1.0; linear float32 and uint8 0.6 of torch and ort, 1.2 of cv2"


def torch_run(torch: Any, case: Case, x: NDArray[Any]) -> Run | None:
    """Torch's interpolate; it has no trilinear for uint8."""
    if case.dims == 3 and x.dtype == np.uint8:
        return None
    tensor = torch.from_numpy(x)
    linear = "bilinear" if case.dims == 2 else "trilinear"
    mode = "nearest-exact" if case.mode == "nearest" else linear

    def run() -> NDArray[Any]:
        return torch.nn.functional.interpolate(tensor, scale_factor=(float(case.scale),) * case.dims, mode=mode).numpy()

    return run


def onnx_run(ort: Any, onnx: Any, case: Case, x: NDArray[Any]) -> Run:
    """ONNX Runtime's Resize-18."""
    kinds = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16, "uint8": onnx.TensorProto.UINT8}
    kind, helper = kinds[x.dtype.name], onnx.helper
    node = helper.make_node(
        "Resize",
        ["x", "", "scales"],
        ["y"],
        mode=case.mode,
        coordinate_transformation_mode="half_pixel",
        nearest_mode="round_prefer_ceil",
    )
    graph = helper.make_graph(
        [node],
        "resize",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [helper.make_tensor("scales", onnx.TensorProto.FLOAT, [x.ndim], [1, 1, *[case.scale] * case.dims])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run() -> NDArray[Any]:
        return session.run(None, {"x": x})[0]

    return run


def difference(mine: NDArray[Any], theirs: NDArray[Any]) -> str:
    """For nearest and integers the share of elements that differ, otherwise the largest difference."""
    if mine.shape != theirs.shape:
        return f"shape {theirs.shape}"
    apart = np.abs(mine.astype(np.float32) - theirs.astype(np.float32))
    return f"{apart.max():.2g} in {np.count_nonzero(apart) / apart.size:.1%}"


def interleaved(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Median seconds of each, called in turn, a few times in a row as in a busy server."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(PAUSE)
            for call in range(UNTIMED + TIMED):
                begin = time.perf_counter()
                run()
                if call >= UNTIMED:
                    times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def opencv_run(cv2: Any, case: Case, x: NDArray[Any]) -> Run | None:
    """OpenCV's resize, plane by plane. It has no float16, no third dimension, and another rule for scales below 1.

    INTER_NEAREST takes the floor of o / scale; nobody is compared with it, and it is timed all the same.
    """
    if case.dims == 3 or x.dtype == np.float16 or (case.mode == "linear" and case.scale < 1):
        return None
    planes = x.reshape(-1, *x.shape[2:])
    height, width = (int(size * case.scale) for size in x.shape[2:])
    out = np.empty((len(planes), height, width), x.dtype)
    flag = cv2.INTER_LINEAR if case.mode == "linear" else cv2.INTER_NEAREST

    def run() -> NDArray[Any]:
        for plane, into in zip(planes, out, strict=True):
            cv2.resize(plane, (width, height), dst=into, interpolation=flag)
        return out

    return run


def row(case: str, mine: dict[str, tuple[Run, Run]], peers: dict[str, Run], rounds: int, checked: str) -> list[str]:
    """Time everything in turn."""
    whole = next(iter(mine.values()))[1]()
    seconds = interleaved({**{name: timed for name, (timed, _) in mine.items()}, **peers}, rounds)
    fastest = min((seconds[name] for name in peers), default=float("nan"))
    figures = [f"{seconds[name] / whole.size * 1e9:.3f}" if name in seconds else "-" for name in NAMES]
    ratios = [f"{seconds[name] / fastest:.2f}" if name in seconds else "-" for name in ("numba", "numpy")]
    return [case, whole.dtype.name, f"{whole.nbytes / MIB:.1f}", *figures, *ratios, checked]


def resample(options: argparse.Namespace) -> Iterator[list[str]]:
    """One row per case and type."""
    torch, ort, onnx, cv2 = peer("torch"), peer("onnxruntime"), peer("onnx"), peer("cv2")
    if torch is not None:
        torch.set_num_threads(THREADS)
    if cv2 is not None:
        cv2.setNumThreads(THREADS)
    backends = opened(options.backends)
    yield HEAD
    for case in CASES:
        if options.case and options.case not in str(case):
            continue
        for dtype in options.dtypes.split(","):
            x = case.input(dtype, options.megabytes)
            mine = {name: ours(backend, case.descriptor(x), x) for name, backend in backends.items()}
            peers: dict[str, Run] = {}
            if torch is not None and (run := torch_run(torch, case, x)):
                peers["torch"] = run
            if ort is not None and onnx is not None:
                peers["ort"] = onnx_run(ort, onnx, case, x)
            if cv2 is not None and (run := opencv_run(cv2, case, x)):
                peers["cv2"] = run
            results = [whole() for _, whole in mine.values()]
            same = all(np.array_equal(result, results[0]) for result in results)
            apart = f"; ort: {difference(results[0], peers['ort']())}" if "ort" in peers else ""
            checked = ("ours: the same" if same else "OURS DIFFER") + apart
            yield row(str(case), mine, peers, options.rounds, checked)


TILES = {
    "rows of 256, x2x2": ((1, 256), (2, 2)),
    "rows of 8, x2x2": ((1, 8), (2, 2)),
    "batch x8": ((1, 512, 512), (8, 1, 1)),
}


def tile(options: argparse.Namespace) -> Iterator[list[str]]:
    """One row per case and type: whole rows, short rows, whole batches."""
    torch, ort, onnx, cv2 = peer("torch"), peer("onnxruntime"), peer("onnx"), peer("cv2")
    if torch is not None:
        torch.set_num_threads(THREADS)
    if cv2 is not None:
        cv2.setNumThreads(THREADS)
    backends = opened(options.backends)
    yield HEAD
    for name, (shape, repeats) in TILES.items():
        if options.case and options.case not in name:
            continue
        for dtype in options.dtypes.split(","):
            per_input = options.megabytes * MIB // np.dtype(dtype).itemsize // int(np.prod(repeats))
            sizes = (per_input // int(np.prod(shape)), *shape[1:])
            x = (np.random.default_rng(7).random(sizes, np.float32) * 255).astype(dtype)
            desc = TileOperatorDesc.of(BufferTensorDesc.packed(x.dtype, x.shape), repeats)
            mine = {key: ours(backend, desc, x) for key, backend in backends.items()}
            peers: dict[str, Run] = {}
            if torch is not None:
                tensor = torch.from_numpy(x)
                peers["torch"] = lambda tensor=tensor, repeats=repeats: torch.tile(tensor, repeats).numpy()
            if ort is not None and onnx is not None:
                peers["ort"] = onnx_tile(ort, onnx, repeats, x)
            if cv2 is not None:
                flat = x.view(np.int16 if dtype == "float16" else x.dtype).reshape(len(x), -1)
                if repeats[-1] > 1:
                    peers["cv2"] = lambda flat=flat, repeats=repeats: cv2.repeat(flat, *repeats)
                else:
                    peers["cv2"] = lambda flat=flat, repeats=repeats: cv2.repeat(flat.reshape(-1, 512), repeats[0], 1)
            expected = np.tile(x, repeats)
            same = all(np.array_equal(whole(), expected) for _, whole in mine.values())
            yield row(name, mine, peers, options.rounds, "numpy.tile's" if same else "WRONG")


def onnx_tile(ort: Any, onnx: Any, repeats: tuple[int, ...], x: NDArray[Any]) -> Run:
    """ONNX Runtime's Tile-13."""
    kinds = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16, "uint8": onnx.TensorProto.UINT8}
    kind, helper = kinds[x.dtype.name], onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Tile", ["x", "repeats"], ["y"])],
        "tile",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [helper.make_tensor("repeats", onnx.TensorProto.INT64, [x.ndim], repeats)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})[0]


def table(rows: Iterator[list[str]]) -> None:
    """Print rows as they come; the first is the head."""
    widths = [18, 8, 7, 8, 8, 8, 8, 8, 15, 15, 38]
    for number, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |", flush=True)
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tile", "resample", "all"], nargs="?", default="all")
    parser.add_argument("--case", default="", help='only cases whose name contains this, for instance "linear x2"')
    parser.add_argument("--dtypes", default="float32,float16,uint8")
    parser.add_argument("--megabytes", type=int, default=16, help="MiB of output")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--backends", default="numba,numpy", help="ours")
    options = parser.parse_args()
    if options.what != "resample":
        table(tile(options))
    if options.what != "tile":
        table(resample(options))
    print(f"Wanted: {TARGETS}.")


if __name__ == "__main__":
    main()

"""Products and convolutions on the CPU beside torch, ONNX Runtime and OpenCV: `python -m benchmarks.products`.

Ours is what the server runs, as in `benchmarks/kernels.py`: slices on two threads. The peers get the whole tensors and
two threads of their own. With `--one`, everybody has one thread, and its processor time counts, which hardly changes
with what else the machine does. Times are lower quartiles of calls in turn; results are compared with each other.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import BufferTensorDesc, ConvolutionOperatorDesc, GemmOperatorDesc, OperatorDesc
from tensorpost_server.backends import load_backend

from . import kernels
from .timing import Times, in_turn

Run = Callable[[], Any]


@dataclass(frozen=True)
class Convolving:
    """A convolution with padding that keeps the size at a step of 1, and a bias."""

    name: str
    shape: tuple[int, int, int, int]
    filters: tuple[int, int, int, int]
    step: int = 1
    groups: int = 1

    @property
    def inputs(self) -> list[NDArray[Any]]:
        return [_random(self.shape), _random(self.filters), _random((1, self.filters[0], 1, 1))]

    def descriptor(self, *tensors: BufferTensorDesc) -> OperatorDesc:
        names = dict(zip(("InputTensor", "FilterTensor", "BiasTensor"), tensors, strict=True))
        padding = [self.filters[2] // 2] * 2
        return ConvolutionOperatorDesc.completed(
            {**names, "Strides": [self.step] * 2, "StartPadding": padding, "EndPadding": padding,
             "GroupCount": self.groups}
        )  # fmt: skip

    def node(self) -> tuple[str, dict[str, Any]]:
        return "Conv", {"pads": [self.filters[2] // 2] * 4, "strides": [self.step] * 2, "group": self.groups}

    def torch(self, torch: Any, x: Any, w: Any, bias: Any) -> Any:
        return torch.nn.functional.conv2d(x, w, bias.reshape(-1), self.step, self.filters[2] // 2, 1, self.groups)

    def opencv(self, cv2: Any, x: NDArray[Any], w: NDArray[Any], bias: NDArray[Any]) -> Run | None:
        if self.groups != self.shape[1] or self.shape[0] != 1 or self.step != 1:
            return None
        planes = list(zip(x[0], w[:, 0], bias.ravel().tolist(), strict=True))
        border = cv2.BORDER_CONSTANT
        return lambda: np.stack([cv2.filter2D(a, -1, k, delta=b, borderType=border) for a, k, b in planes])[np.newaxis]


@dataclass(frozen=True)
class Multiplying:
    """A product of matrices of `rows` x `inner` and `inner` x `columns`; `turned`: the second one is transposed."""

    name: str
    rows: int
    inner: int
    columns: int
    batch: int = 1
    turned: bool = False

    @property
    def inputs(self) -> list[NDArray[Any]]:
        second = (self.columns, self.inner) if self.turned else (self.inner, self.columns)
        return [_random((1, self.batch, self.rows, self.inner)), _random((1, self.batch, *second))]

    def descriptor(self, a: BufferTensorDesc, b: BufferTensorDesc) -> OperatorDesc:
        turned = "TRANSPOSE" if self.turned else "NONE"
        return GemmOperatorDesc.completed({"ATensor": a, "BTensor": b, "TransB": turned})

    def node(self) -> tuple[str, dict[str, Any]] | None:
        return None if self.turned else ("MatMul", {})

    def torch(self, torch: Any, a: Any, b: Any) -> Any:
        return torch.matmul(a, b.mT if self.turned else b)

    def opencv(self, cv2: Any, *inputs: NDArray[Any]) -> Run | None:
        return None


def _random(shape: tuple[int, ...]) -> NDArray[Any]:
    return np.random.default_rng(sum(shape)).random(shape, np.float32) - np.float32(0.5)


CASES = (
    *[
        case
        for batch in (1, 16)
        for case in (
            Convolving(f"3x3, 64 to 64 channels, 56 x 56, batch {batch}", (batch, 64, 56, 56), (64, 64, 3, 3)),
            Convolving(f"1x1, 256 to 64 channels, 56 x 56, batch {batch}", (batch, 256, 56, 56), (64, 256, 1, 1)),
            Convolving(
                f"7x7, step 2, 3 to 64 channels, 224 x 224, batch {batch}", (batch, 3, 224, 224), (64, 3, 7, 7), 2
            ),
            Convolving(f"3x3, step 2, 128 channels, 56 x 56, batch {batch}", (batch, 128, 56, 56), (128, 128, 3, 3), 2),
            Convolving(f"3x3, 512 channels, 7 x 7, batch {batch}", (batch, 512, 7, 7), (512, 512, 3, 3)),
            Convolving(f"3x3, 96 channels each, 112 x 112, batch {batch}", (batch, 96, 112, 112), (96, 1, 3, 3), 1, 96),
            Convolving(f"3x3, 32 groups of 4, 56 x 56, batch {batch}", (batch, 128, 56, 56), (128, 4, 3, 3), 1, 32),
        )
    ],
    Convolving("3x3, one channel, 1920 x 1080", (1, 1, 1080, 1920), (1, 1, 3, 3)),
    Convolving("5x5, one channel, 1920 x 1080", (1, 1, 1080, 1920), (1, 1, 5, 5)),
    Convolving("3x3, 3 to 16 channels, 512 x 512", (1, 3, 512, 512), (16, 3, 3, 3)),
    Multiplying("128 x 128 x 128", 128, 128, 128),
    Multiplying("512 x 512 x 512", 512, 512, 512),
    Multiplying("1024 x 1024 x 1024", 1024, 1024, 1024),
    Multiplying("1024 x 1024 x 1024, transposed", 1024, 1024, 1024, turned=True),
    Multiplying("2048 x 2048 x 2048", 2048, 2048, 2048),
    Multiplying("1 x 4096 x 4096", 1, 4096, 4096),
    Multiplying("32 x 4096 x 4096", 32, 4096, 4096),
    Multiplying("4096 x 64 x 4096", 4096, 64, 4096),
    Multiplying("96 of 128 x 64 x 128, transposed", 128, 64, 128, 96, turned=True),
)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        print(f"without {name}, which is not installed")
        return None


def peers(case: Convolving | Multiplying, modules: Mapping[str, Any], threads: int) -> Iterator[tuple[str, Run]]:
    """The other libraries' calls, by their names."""
    inputs = case.inputs
    if torch := modules["torch"]:
        torch.set_num_threads(threads)
        tensors = [torch.from_numpy(x) for x in inputs]
        yield "torch", lambda: case.torch(torch, *tensors).numpy()
    onnx, ort, node = modules["onnx"], modules["onnxruntime"], case.node()
    if onnx and ort and node:
        inputs[2:] = [bias.ravel() for bias in inputs[2:]]
        names, kind = ["x", "w", "b"][: len(inputs)], onnx.TensorProto.FLOAT
        values = [
            onnx.helper.make_tensor_value_info(name, kind, x.shape) for name, x in zip(names, inputs, strict=True)
        ]
        made = onnx.helper.make_node(node[0], names, ["y"], **node[1])
        out = onnx.helper.make_tensor_value_info("y", kind, None)
        graph = onnx.helper.make_graph([made], "work", values, [out])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = dict(zip(names, inputs, strict=True))
        yield "onnxruntime", lambda: session.run(None, feeds)[0]
    if cv2 := modules["cv2"]:
        cv2.setNumThreads(threads)
        if (run := case.opencv(cv2, *case.inputs)) is not None:
            yield "OpenCV", run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__)
    parser.add_argument("--one", action="store_true", help="one thread each, and its processor time")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    chosen = parser.parse_args()
    threads = 1 if chosen.one else kernels.THREADS
    modules = {name: _library(name) for name in ("torch", "onnx", "onnxruntime", "cv2")}
    backend, columns = load_backend("numpy")(), ("ours", "torch", "onnxruntime", "OpenCV")
    print("| milliseconds |", " | ".join(columns), "| ours / fastest |")
    print("| --- |", " | ".join(["---:"] * 5), "|")
    for case in CASES:
        if chosen.only not in case.name:
            continue
        inputs = case.inputs
        desc = case.descriptor(*[BufferTensorDesc.packed(x.dtype, x.shape) for x in inputs])
        with ThreadPoolExecutor(threads) as pool:
            timed, whole = kernels.ours(backend, desc, inputs, pool, threads)
            runs: dict[str, Run] = {"ours": timed, **dict(peers(case, modules, threads))}
            for name, run in runs.items():
                if name != "ours":
                    np.testing.assert_allclose(whole(), run(), rtol=1e-3, atol=1e-3)
            took = in_turn(
                runs, least=5, warm_up=2, in_a_row=3, pause=kernels.PAUSE,
                clock=time.thread_time if chosen.one else time.perf_counter,
            )  # fmt: skip
        print(f"| {case.name} |", " | ".join(_cells(took, columns)), flush=True)


def _cells(took: Mapping[str, Times], columns: tuple[str, ...]) -> Iterator[str]:
    for name in columns:
        yield f"{took[name].quartile * 1e3:.3g}" if name in took else ""
    fastest = min([times.quartile for name, times in took.items() if name != "ours"], default=float("nan"))
    yield f"{took['ours'].quartile / fastest:.2f} |"


if __name__ == "__main__":
    main()

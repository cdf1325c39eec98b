"""Photographs made ready for a model: one graph, beside five calls, and beside OpenCV and torch in this process.

    python -m benchmarks.photographs cpu      one photograph of 12 megapixels, in this process
    python -m benchmarks.photographs gpu      64 photographs of 1080p on the GPU, by CUDA events
    python -m benchmarks.photographs fifty    fifty JPEGs through a server on this machine, bytes counted by a relay

The work: resized to 224 x 224 with a filter, float32, minus a mean, divided by a deviation, channels first; float16
at the end for `cpu` and `gpu`. torch, torchvision, OpenCV and scikit-image take part if they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost import Client, GraphBuilder
from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.graph import GraphConstant, NodeOutput, Ref
from tensorpost_server.backends import load_backend
from tensorpost_server.forms.base import whole_box
from tensorpost_server.planning import Plan, make_plan
from tensorpost_server.settings import Settings

from .servers import READY, answers, running
from .timing import in_turn

SIDE = 224
MEAN = np.array([123.7, 116.3, 103.5], np.float32)
DEVIATION = np.array([58.4, 57.1, 57.4], np.float32)
SLICE_BYTES: int = Settings.model_fields["slice_bytes"].default
THREADS = 2
IN_A_ROW = 5
PAUSE = 0.03  # the peers' threads spin for a while after their work


def pipeline(shape: Sequence[int | str], *, half: bool) -> dict[str, Any]:
    """The graph."""
    g = GraphBuilder()
    photo = g.input("photo", np.uint8, shape)
    small = g.onnx(
        "Resize", photo.astype(np.float32), sizes=[SIDE, SIDE], axes=[1, 2], mode="linear", antialias=1,
        exclude_outside=1,
    )  # fmt: skip
    image = ((small - MEAN) / DEVIATION).transpose(0, 3, 1, 2)
    return g.build(image=image.astype(np.float16) if half else image)


def module(name: str) -> Any:
    """A peer; None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        print(f"without {name}, which is not installed")
        return None


def table(rows: dict[str, float], results: dict[str, NDArray[Any]], like: str) -> None:
    """Print milliseconds, beside the fastest, and how far each result is from one of them."""
    fastest = min(rows.values())
    for name, seconds in rows.items():
        apart = np.abs(results[name].astype(np.float64) - results[like].astype(np.float64)).max()
        print(f"| {name} | {seconds * 1e3:.2f} ms | {seconds / fastest:.2f} of the fastest | differs by {apart:.3f} |")


# ---- on the processor ------------------------------------------------------------------------------------------------


def in_process(plan: Plan, backend: Any, pool: ThreadPoolExecutor, photo: NDArray[Any]) -> NDArray[Any]:
    """A plan as the server runs it, on some threads."""
    run = backend.start(plan, [photo.data.cast("B")])
    pieces: list[Any] = [None] * len(plan.slices)

    def each(count: int, call: Callable[[int], object]) -> None:
        indices = iter(range(count))
        for done in [pool.submit(lambda: [call(index) for index in indices]) for _ in range(THREADS)]:
            done.result()

    def piece(index: int) -> None:
        pieces[index] = bytes(run.compute(index))

    for stage in range(len(plan.stages)):
        each(run.parts(stage), lambda part, stage=stage: run.prepare(stage, part))
        run.finish(stage)
    each(len(pieces), piece)
    run.close()
    layout = plan.outputs[0].layout
    return np.frombuffer(b"".join(pieces), layout.data_type.dtype).reshape(layout.sizes)


def cpu(rounds: int) -> None:
    """One photograph of 12 megapixels."""
    photo = np.random.default_rng(1).integers(0, 255, (1, 3000, 4000, 3), np.uint8)
    plan = make_plan(read_graph(pipeline(photo.shape, half=True), None), SLICE_BYTES)
    backend, pool = load_backend("numba")(), ThreadPoolExecutor(THREADS)
    calls: dict[str, Callable[[], NDArray[Any]]] = {"one graph": lambda: in_process(plan, backend, pool, photo)}
    if (cv2 := module("cv2")) is not None:
        cv2.setNumThreads(THREADS)

        def opencv(picture: NDArray[Any]) -> NDArray[Any]:
            small = cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
            y = (small.astype(np.float32) - MEAN) / DEVIATION
            return np.ascontiguousarray(y.transpose(2, 0, 1)[None].astype(np.float16))

        calls["OpenCV INTER_AREA of uint8"] = lambda: opencv(photo[0])
        calls["OpenCV INTER_AREA of float32"] = lambda: opencv(photo[0].astype(np.float32))
    if (torch := module("torch")) is not None:
        torch.set_num_threads(THREADS)
        mean, deviation = (torch.from_numpy(x).view(1, 3, 1, 1) for x in (MEAN, DEVIATION))
        picture = torch.from_numpy(photo).permute(0, 3, 1, 2)

        def in_torch(x: Any) -> NDArray[Any]:
            small = torch.nn.functional.interpolate(x, size=(SIDE, SIDE), mode="bilinear", antialias=True)
            return ((small.float() - mean) / deviation).half().contiguous().numpy()

        calls["torch of uint8, rounded to 8 bits"] = lambda: in_torch(picture)
        calls["torch of float32"] = lambda: in_torch(picture.float())
    results = {name: call() for name, call in calls.items()}
    times = in_turn(calls, least=rounds, warm_up=IN_A_ROW, in_a_row=IN_A_ROW, pause=PAUSE)
    print(f"one photograph of {photo.shape[2]} x {photo.shape[1]}, {THREADS} threads each, lower quartile")
    rows = {name: took.quartile for name, took in times.items()}
    table(rows, results, "torch of float32" if torch is not None else "one graph")


# ---- on the GPU ------------------------------------------------------------------------------------------------------


def _array_of(source: Ref, made: Sequence[Any], photos: Any, constants: Sequence[Any]) -> Any:
    match source:
        case NodeOutput(step, _):
            return made[step]
        case GraphConstant(index):
            return constants[index]
        case _:
            return photos


def gpu(rounds: int, count: int) -> None:
    """Photographs of 1080p on the device."""
    cupy, torch = module("cupy"), module("torch")
    v2: Any = importlib.import_module("torchvision.transforms.v2.functional")
    compute: Any = importlib.import_module("tensorpost_server.backends.cuda.compute")
    photos = cupy.random.RandomState(1).randint(0, 255, (count, 1080, 1920, 3)).astype(np.uint8)
    graph = read_graph(pipeline(photos.shape, half=True), None)
    plan = make_plan(graph, SLICE_BYTES)
    constants = [cupy.asarray(np.frombuffer(data, np.float32)) for _, data in graph.constants]

    def ours() -> Any:
        made: list[Any] = []
        for step in plan.steps:
            (slot,) = step.outputs
            out = cupy.empty(slot.layout.sizes, slot.layout.data_type.dtype)
            inputs = [_array_of(source, made, photos, constants) for source in step.sources]
            operands = [cupy.broadcast_to(x, layout.sizes) for x, layout in zip(inputs, step.operands, strict=True)]
            compute.fill(step.form, operands, whole_box(slot.layout.sizes), out, 0)
            made.append(out)
        return made[-1]

    last = torch.as_tensor(photos, device="cuda").permute(0, 3, 1, 2)
    first = last.contiguous()
    mean, deviation = ([float(x) / 255 for x in values] for values in (MEAN, DEVIATION))

    def in_torch(x: Any, *, first_float: bool) -> Any:
        x = v2.to_dtype(x, torch.float32, scale=True) if first_float else x
        small = v2.resize(x, [SIDE, SIDE], antialias=True)
        small = small if first_float else v2.to_dtype(small, torch.float32, scale=True)
        return v2.normalize(small, mean, deviation).half()

    compiled = torch.compile(in_torch)
    calls: dict[str, Callable[[], Any]] = {"one graph": ours}
    for way, function in (("torchvision", in_torch), ("torchvision compiled", compiled)):
        for layout, x in (("channels last", last), ("channels first", first)):
            for kind, flag in (("uint8", False), ("float32", True)):
                calls[f"{way}, {layout}, {kind}"] = lambda function=function, x=x, flag=flag: function(
                    x, first_float=flag
                ).contiguous()
    results: dict[str, NDArray[Any]] = {}
    for name in [*calls]:
        try:
            results[name] = cupy.asnumpy(cupy.asarray(calls[name]()))
            calls[name]()
        except Exception as error:  # noqa: BLE001 # a peer that cannot run is a row without a figure
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            calls.pop(name)
    times: dict[str, list[float]] = {name: [] for name in calls}
    hosts: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            cupy.cuda.Device().synchronize()
            begun = time.perf_counter()
            begin.record()
            call()
            end.record()
            hosts[name].append(time.perf_counter() - begun)
            end.synchronize()
            times[name].append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    print(f"{count} photographs of 1920 x 1080, {len(plan.steps)} steps of ours, median of {rounds}")
    table(
        {name: statistics.median(each) for name, each in times.items()}, results, "torchvision, channels first, float32"
    )
    print(f"host time of ours: {statistics.median(hosts['one graph']) * 1e6:.0f} us")


# ---- through a server ------------------------------------------------------------------------------------------------


class Relay:
    """Passes connections on to a port, and counts the bytes of each direction."""

    def __init__(self, port: int) -> None:
        self.sent = self.received = 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(("127.0.0.1", self._to))
                for ends, name in (((ours, theirs), "sent"), ((theirs, ours), "received")):
                    threading.Thread(target=self._pass_on, args=(*ends, name), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, name, getattr(self, name) + len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def fifty_jpegs() -> list[bytes]:
    """Photographs of scikit-image, and variants of them: mirrored, turned, cut, brighter."""
    data: Any = importlib.import_module("skimage.data")
    image: Any = importlib.import_module("PIL.Image")
    rng = np.random.default_rng(5)
    originals = [getattr(data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket", "retina")]
    found: list[bytes] = []
    for number in range(50):
        pixels = originals[number % len(originals)]
        pixels = np.rot90(pixels, number // 5 % 4)[:, :: (-1 if number % 2 else 1)]
        pixels = pixels[rng.integers(0, 40) :, rng.integers(0, 40) :]
        pixels = np.clip(pixels * rng.uniform(0.7, 1.2), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=90)
        found.append(buffer.getvalue())
    return found


def by_graph(tp: Client, files: Sequence[bytes]) -> NDArray[Any]:
    """The lines that a user writes."""
    g = GraphBuilder()
    photo = g.input("photo", np.uint8, (1, "h", "w", 3)).astype(np.float32)
    small = g.onnx("Resize", photo, sizes=[224, 224], axes=[1, 2], mode="linear", antialias=1, exclude_outside=1)
    graph = g.build(image=((small - MEAN) / DEVIATION).transpose(0, 3, 1, 2))
    return np.concatenate([result["image"] for result in tp.map(graph, files)])


def by_calls(tp: Client, files: Sequence[bytes]) -> NDArray[Any]:
    """Five calls for each photograph, whose pixels are decoded here."""
    image: Any = importlib.import_module("PIL.Image")
    found: list[NDArray[Any]] = []
    for file in files:
        x = tp.astype(np.asarray(image.open(io.BytesIO(file)))[None], np.float32)
        x = tp.onnx("Resize", x, sizes=[224, 224], axes=[1, 2], mode="linear", antialias=1, exclude_outside=1)
        x = tp.divide(tp.subtract(x, MEAN), DEVIATION)
        found.append(tp.transpose(x, (0, 3, 1, 2)))
    return np.concatenate(found)


def here(files: Sequence[bytes], resized: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """The same in this process; Pillow decodes, as the server does."""
    image: Any = importlib.import_module("PIL.Image")
    found = [resized(np.asarray(image.open(io.BytesIO(file)))) for file in files]
    return ((np.stack(found) - MEAN) / DEVIATION).transpose(0, 3, 1, 2)


def peers_here(files: Sequence[bytes]) -> Iterator[tuple[str, Callable[[], NDArray[Any]]]]:
    """OpenCV and torch, if they are installed."""
    if (cv2 := module("cv2")) is not None:
        cv2.setNumThreads(THREADS)

        def area(x: NDArray[Any]) -> NDArray[Any]:
            return cv2.resize(x.astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_AREA)

        yield "here, Pillow and OpenCV", lambda: here(files, area)
    if (torch := module("torch")) is not None:
        torch.set_num_threads(THREADS)

        def filtered(x: NDArray[Any]) -> NDArray[Any]:
            tensor = torch.from_numpy(x.astype(np.float32)).permute(2, 0, 1)[None]
            small = torch.nn.functional.interpolate(tensor, size=(SIDE, SIDE), mode="bilinear", antialias=True)
            return small[0].permute(1, 2, 0).numpy()

        yield "here, Pillow and torch", lambda: here(files, filtered)


def fifty(rounds: int) -> None:
    """Fifty photographs to one batch."""
    files = fifty_jpegs()
    print(f"{len(files)} JPEGs, {sum(map(len, files)):,} bytes")

    def command(port: int) -> Sequence[str]:
        return [sys.executable, "-m", "tensorpost", "serve", "--port", str(port), "--log-level", "warning"]

    with running("tensorpost", command, answers(READY), wait=90) as server, Client(server.url) as tp:
        calls: dict[str, Callable[[], NDArray[Any]]] = {
            "one graph, map": lambda: by_graph(tp, files),
            "five calls each": lambda: by_calls(tp, files),
            **dict(peers_here(files)),
        }
        results = {name: call() for name, call in calls.items()}
        rows = {name: took.best for name, took in in_turn(calls, least=rounds, pause=PAUSE).items()}
        table(rows, results, "here, Pillow and torch" if len(rows) > 3 else "one graph, map")
        for name, call in (("one graph, map", by_graph), ("five calls each", by_calls)):
            relay = Relay(server.port)
            with Client(relay.url) as through:
                call(through, files)
            print(f"{name}: {relay.sent:,} bytes to the server, {relay.received:,} back")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cpu", "gpu", "fifty"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=64, help="photographs on the GPU")
    options = parser.parse_args()
    if options.what == "gpu":
        gpu(options.rounds, options.count)
    else:
        (cpu if options.what == "cpu" else fifty)(options.rounds)


if __name__ == "__main__":
    main()

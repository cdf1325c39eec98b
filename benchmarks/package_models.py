"""Models that Python packages carry: what ONNX Runtime in this process makes of them, and what a server does.

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install --no-deps magika silero-vad rapidocr-onnxruntime
    python -m benchmarks.package_models /tmp/peers/lib/python3.11/site-packages

They are no dependencies of tensorpost. Each model is called with random inputs of sizes that it is made for: by ONNX
Runtime here, with all threads and with one; by `run_model`, which reads the model and sends its weights each time; and
stored, which sends the inputs alone. Times are the best of a number of rounds in turns; differences are those of the
stored model, of all outputs together, relative to the largest element. Exits with 1 if one is above 1e-4.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorpost import Client

from . import servers

MOST_APART = 1e-4


class PackageModel(NamedTuple):
    """A model of a package.

    Attributes:
        path: a pattern of its file in the site-packages.
        inputs: an example of each input: arrays, or sizes of random float32.
    """

    path: str
    inputs: Mapping[str, tuple[int, ...] | NDArray[Any]]


BYTES = np.random.default_rng(1).integers(0, 257, (1, 2048), np.int32)
RATE = np.array(16000)
STATE = (2, 1, 128)
MODELS = (
    PackageModel("magika/models/*/model.onnx", {"bytes": BYTES}),
    PackageModel("rapidocr_onnxruntime/models/*_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    PackageModel("rapidocr_onnxruntime/models/*_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    PackageModel("rapidocr_onnxruntime/models/*_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    PackageModel("silero_vad/data/silero_vad.onnx", {"input": (1, 576), "state": STATE, "sr": RATE}),
    PackageModel("silero_vad/data/silero_vad_16k_op15.onnx", {"input": (1, 576), "state": STATE, "sr": RATE}),
    PackageModel("silero_vad/data/silero_vad_op18_ifless.onnx", {"input": (1, 576), "state": STATE, "sr": RATE}),
    PackageModel("silero_vad/data/silero_vad_half.onnx", {"input": (1, 576), "state": STATE}),
    PackageModel("silero_vad/data/silero_vad_16k_sequence.onnx", {
        "input": (8, 576), "h": (1, 1, 128), "c": (1, 1, 128)}),
)  # fmt: skip


def main() -> int:
    """Run and print."""
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="the folder site-packages with the packages")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of ONNX Runtime, of initializers that no node reads
    worst = 0.0
    print("| model, ms | ONNX Runtime here | one thread | run_model | stored | differs |")
    with (
        servers.tensorpost(max_graph_nodes=2000, max_graph_constant_bytes=1 << 30) as server,
        Client(f"http://127.0.0.1:{server.port}") as client,
    ):
        for each in MODELS:
            found = sorted(options.site.glob(each.path))
            if not found:
                print(f"| {each.path} | not installed |")
                continue
            content = found[0].read_bytes()
            chance = np.random.default_rng(0)
            inputs = {
                name: chance.random(what).astype(np.float32) if isinstance(what, tuple) else what
                for name, what in each.inputs.items()
            }
            calls: list[Callable[[], Sequence[Any]]] = []
            for threads in (0, 1):
                settings = onnxruntime.SessionOptions()
                settings.intra_op_num_threads, settings.log_severity_level = threads, 3
                session: Any = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
                calls.append(partial(session.run, None, inputs))
            calls.append(lambda c=content, i=inputs: [*client.run_model(c, i).values()])
            stored = client.store(content, found[0].stem.replace(".", "_")[-80:])
            calls.append(lambda s=stored, i=inputs: [*s(i).values()])
            expected, _, _, made = (call() for call in calls)
            apart = max([
                float(np.abs(one.astype(np.float64) - other).max() / max(1e-30, np.abs(other).max()))
                for one, other in zip(made, expected, strict=True)
            ])  # fmt: skip
            worst = max(worst, apart)
            times = " | ".join(best(calls, options.rounds))
            print(f"| {found[0].name} | {times} | {apart:.1e} |", flush=True)
    return int(worst > MOST_APART)


def best(calls: Sequence[Callable[[], object]], rounds: int) -> list[str]:
    """The best time of each call, milliseconds, in turns."""
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for place, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            least[place] = min(least[place], (time.perf_counter() - begin) * 1e3)
    return [f"{taken:.2f}" for taken in least]


if __name__ == "__main__":
    sys.exit(main())

"""What it gains that small plans are captured as CUDA graphs: time on the host of a call, both ways in turn.

    python -m benchmarks.gpu_captured

A call is what a worker's thread does for a request: inputs to the device, the kernels, outputs to host memory. The
same plan in the usual way waits for the device after each step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server.backends.base import Run
from tensorpost_server.backends.cuda.backend import CudaBackend
from tensorpost_server.backends.cuda.captured_plans import RUNS_BEFORE, CapturedRun
from tensorpost_server.backends.device_run import DeviceRun
from tensorpost_server.planning import Plan, make_plan

ROUNDS = 400
SIZES = ((32, 32), (256, 256), (512, 512))
"""4 KiB, 256 KiB and 1 MiB of float32."""


def chain(count: int, kinds: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    """A graph of so many nodes in a row, whose kinds take turns."""
    nodes = [
        {"name": f"n{at}", "inputs": [f"n{at - 1}" if at else "x"], **kinds[at % len(kinds)]} for at in range(count)
    ]
    return {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": f"n{count - 1}"}}


TRANSPOSE = {"op_type": "Transpose", "attributes": {"perm": [1, 0]}}
RELU = {"op_type": "Sigmoid"}
SOFTMAX = {"op_type": "Softmax", "attributes": {"axis": -1}}
GRAPHS: Mapping[str, tuple[int, tuple[Mapping[str, Any], ...]]] = {
    "1 Sigmoid": (1, (RELU,)),
    "5 of Sigmoid and Transpose": (5, (RELU, TRANSPOSE)),
    "20 of Sigmoid and Transpose": (20, (RELU, TRANSPOSE)),
    "6 of Softmax and Transpose": (6, (SOFTMAX, TRANSPOSE)),
}


def run_all(run: Run, plan: Plan) -> bytes:
    """The output."""
    try:
        return b"".join([run.compute(index) for index in range(len(plan.slices))])
    finally:
        run.close()


def main() -> None:
    """Print a line for each graph and size."""
    backend = CudaBackend()
    print(f"{backend.device}\ngraph | KiB | steps | usual, microseconds | captured | share")
    for name, (count, kinds) in GRAPHS.items():
        for sizes in SIZES:
            x = np.random.default_rng(0).random(sizes).astype(np.float32)
            layout = Layout.row_major(data_type("float32"), x.shape)
            plan = make_plan(read_graph(chain(count, kinds), {"x": layout}), 1 << 20)
            data = x.reshape(-1).view(np.uint8)

            def usual(plan: Plan = plan, data: Any = data) -> bytes:
                return run_all(DeviceRun(backend, plan, [data.data]), plan)

            def captured(plan: Plan = plan, data: Any = data) -> bytes:
                return run_all(backend.start(plan, [data.data]), plan)

            for _ in range(RUNS_BEFORE + 2):
                assert captured() == usual()
            run = backend.start(plan, [data.data])
            is_captured = isinstance(run, CapturedRun)
            run.close()
            times: dict[Callable[[], bytes], list[float]] = {usual: [], captured: []}
            for _ in range(ROUNDS):
                for way, each in times.items():
                    begin = time.perf_counter()
                    way()
                    each.append(time.perf_counter() - begin)
            took = [statistics.median(each) * 1e6 for each in times.values()]
            text = f"{took[1]:.0f} | {took[1] / took[0]:.2f}" if is_captured else "is not captured |"
            print(f"{name} | {x.nbytes >> 10} | {len(plan.steps)} | {took[0]:.0f} | {text}", flush=True)
    backend.close()


if __name__ == "__main__":
    main()

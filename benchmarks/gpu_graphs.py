"""A chain of element-wise nodes on the GPU: fused, node by node, and beside torch and torch.compile, in one run.

    python benchmarks/gpu_graphs.py
    python benchmarks/gpu_graphs.py --mebibytes 256 --rounds 21

Every figure is a share of the device's own copy of the same tensor: bytes of the input and of the output in the time
between two CUDA events. All take turns; a figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import GraphConstant
from tensorpost.values.layout import Layout
from tensorpost_server.forms.base import whole_box
from tensorpost_server.planning import PlanStep, make_plan

MIB = 1 << 20
CHAIN = (
    ("Mul", 1.01),
    ("Add", 0.5),
    ("Relu", None),
    ("Sub", 0.25),
    ("Sigmoid", None),
    ("Mul", 2.0),
    ("Tanh", None),
    ("Add", 1.0),
)
"""ONNX operators, each with the number that it takes beside the tensor."""


def document() -> dict[str, Any]:
    """The graph."""
    constants = {
        f"c{at}": {"dtype": "F32", "shape": [1], "data": [number]}
        for at, (_, number) in enumerate(CHAIN)
        if number is not None
    }
    nodes = [
        {
            "name": f"n{at}",
            "op_type": kind,
            "inputs": [f"n{at - 1}" if at else "x", *([] if number is None else [f"c{at}"])],
        }
        for at, (kind, number) in enumerate(CHAIN)
    ]
    return {"inputs": {"x": {}}, "constants": constants, "nodes": nodes, "outputs": {"y": f"n{len(CHAIN) - 1}"}}


def in_torch(torch: Any, x: Any) -> Any:
    """The same."""
    x = torch.sigmoid(torch.relu(x * 1.01 + 0.5) - 0.25)
    return torch.tanh(x * 2.0) + 1.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    cupy: Any = importlib.import_module("cupy")
    torch: Any = importlib.import_module("torch")
    compute: Any = importlib.import_module("tensorpost_server.backends.cuda.compute")
    count = options.mebibytes * MIB // 4
    layout = Layout.row_major(data_type("float32"), (count,))
    graph = read_graph(document(), {"x": layout})
    plan = make_plan(graph, 1 << 22)
    alone = [PlanStep.of(node) for node in graph.nodes]
    x = cupy.asarray(np.random.default_rng(1).normal(size=count).astype(np.float32))
    constants = [cupy.asarray(np.frombuffer(data, np.float32)) for _, data in graph.constants]
    buffers = [cupy.empty(count, np.float32) for _ in range(3)]

    def operand(at: int, slot_layout: Layout) -> Any:
        return cupy.broadcast_to(constants[at], slot_layout.sizes)

    def run(steps: list[PlanStep], out: Any) -> None:
        tensor = x
        for number, step in enumerate(steps):
            target = out if number == len(steps) - 1 else buffers[number % 2]
            inputs = [
                operand(source.index, slot) if isinstance(source, GraphConstant) else tensor
                for source, slot in zip(step.sources, step.operands, strict=True)
            ]
            compute.fill(step.form, inputs, whole_box((count,)), target, 0)
            tensor = target

    fused, nodes = cupy.empty(count, np.float32), cupy.empty(count, np.float32)
    at_torch = torch.as_tensor(x, device="cuda")
    compiled = torch.compile(in_torch)
    ways: dict[str, Callable[[], Any]] = {
        "copy": lambda: cupy.cuda.runtime.memcpyAsync(
            buffers[2].data.ptr, x.data.ptr, x.nbytes, 3, cupy.cuda.get_current_stream().ptr
        ),
        f"fused, {len(plan.steps)} step": lambda: run(list(plan.steps), fused),
        f"node by node, {len(alone)}": lambda: run(alone, nodes),
        "torch": lambda: in_torch(torch, at_torch),
        "torch.compile": lambda: compiled(torch, at_torch),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in ways.items():
        try:
            way()
        except Exception as error:  # noqa: BLE001 # a peer that cannot run is a row without a figure
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            times.pop(name)
    cupy.cuda.Device().synchronize()
    for _ in range(options.rounds):
        for name in times:
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            cupy.cuda.Device().synchronize()
            ways["copy"]()  # hides how long the host takes
            begin.record()
            ways[name]()
            end.record()
            end.synchronize()
            times[name].append(cupy.cuda.get_elapsed_time(begin, end))
    assert (fused.view(np.uint32) == nodes.view(np.uint32)).all(), "fused and node by node differ"
    largest = float(abs(fused - cupy.asarray(in_torch(torch, at_torch))).max())
    print(f"largest difference to torch: {largest:.2g}")
    copy = statistics.median(times["copy"])
    for name, each in times.items():
        took = statistics.median(each)
        print(f"| {name} | {took:.3f} ms | {2 * x.nbytes / took / 1e6:,.0f} GB/s | {copy / took:.3f} of the copy |")


if __name__ == "__main__":
    main()

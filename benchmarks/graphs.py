"""Graphs: a pipeline in one request, beside a request for each of its nodes, and beside torch in this process.

Every way is asked in turn over loopback, by the SDK, and the results are compared. A stored graph is called by its
name; a graph that is sent travels with each request.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorpost import Client, GraphBuilder
from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import GraphConstant, GraphInput, NodeOutput
from tensorpost.values.layout import Layout

from . import servers
from .bench import Bench
from .report import Cell, Figure, Table
from .timing import in_turn

COLUMNS = (
    "graph", "nodes", "stored, ms", "sent, ms", "node by node, ms", "node by node / stored", "torch here, ms",
    "stored / torch",
)  # fmt: skip
Arrays = Mapping[str, NDArray[Any]]


class GraphJob(NamedTuple):
    """A graph that is timed.

    Attributes:
        name: what it is.
        document: the graph.
        inputs: its inputs.
        torch: the same by torch, of the same inputs; None where there is no such thing.
    """

    name: str
    document: dict[str, Any]
    inputs: Arrays
    torch: Callable[[Any, Arrays], object] | None = None


def measure(bench: Bench) -> Iterator[Table]:
    """The table: a row for each graph."""
    bench.note("Figures are lower quartiles of rounds taken in turn; torch computes in this process, nothing travels.")
    torch: Any = None
    with suppress(ModuleNotFoundError):
        torch = importlib.import_module("torch")
    if torch is None:
        bench.leave_out("torch is not installed")
    with servers.tensorpost() as server, Client(server.url) as tp:
        yield Table("A graph in one request", COLUMNS, tuple(_row(bench, tp, job, torch) for job in jobs(bench)))


def jobs(bench: Bench) -> Iterator[GraphJob]:
    """The graphs."""
    rng = np.random.default_rng(0)
    side = (270, 480) if bench.quick else (1080, 1920)
    photo = rng.integers(0, 256, (1, *side, 3), np.uint8)
    g = GraphBuilder()
    small = g.onnx(
        "Resize", g.input("photo", np.uint8, (1, "h", "w", 3)).astype(np.float32), sizes=[224, 224], axes=[1, 2],
        mode="linear", antialias=1, exclude_outside=1,
    )  # fmt: skip
    scaled = (small - [123.675, 116.28, 103.53]) / [58.395, 57.12, 57.375]
    yield GraphJob(f"a photograph of {side[1]} x {side[0]}, made ready", g.build(image=scaled.transpose(0, 3, 1, 2)),
                   {"photo": photo}, _photo_by_torch)  # fmt: skip
    for count, shown in ((1 << 10, "4 KiB"), (1 << 18 if bench.quick else 1 << 22, "16 MiB")):
        g = GraphBuilder()
        y = g.input("x", np.float32, ("n",))
        for number in range(4):
            y = g.onnx("Relu", y * np.float32(0.5 + number) + np.float32(1))
        if bench.quick and shown != "4 KiB":
            shown = "1 MiB"  # noqa: PLW2901 # the quick one is smaller
        yield GraphJob(f"twelve element-wise nodes of {shown}", g.build(y=y),
                       {"x": rng.standard_normal(count).astype(np.float32)}, _chain_by_torch)  # fmt: skip
    g = GraphBuilder()
    x = g.input("x", np.float32, ("rows", 256))
    y = g.onnx("Softmax", g.onnx("LayerNormalization", x, np.ones(256, np.float32), axis=-1), axis=-1)
    yield GraphJob("LayerNormalization and Softmax of 64 rows", g.build(y=y.transpose(1, 0)),
                   {"x": rng.standard_normal((64, 256)).astype(np.float32)}, _norm_by_torch)  # fmt: skip


def _row(bench: Bench, tp: Client, job: GraphJob, torch: Any) -> tuple[Cell, ...]:
    bench.doing(job.name)
    stored = tp.store(job.document, "timed")
    expected = stored(job.inputs)
    ways: dict[str, Callable[[], object]] = {
        "stored": lambda: stored(job.inputs),
        "sent": lambda: tp.run_graph(job.document, job.inputs),
        "single": lambda: node_by_node(tp, job),
    }
    _agree(expected, tp.run_graph(job.document, job.inputs))
    _agree(expected, node_by_node(tp, job))
    if torch is not None and job.torch is not None:
        by_torch = job.torch
        ways["torch"] = lambda: by_torch(torch, job.inputs)
        np.testing.assert_allclose(next(iter(expected.values())), np.asarray(ways["torch"]()), rtol=1e-3, atol=2e-2)
    times = in_turn(ways, least=5 if bench.quick else 15, seconds=0.5 if bench.quick else 3.0, warm_up=2)
    tp.delete_graph("timed")
    took = {name: each.quartile * 1e3 for name, each in times.items()}
    here = took.get("torch")
    return (
        job.name, str(len(job.document["nodes"])), Figure(took["stored"]), Figure(took["sent"]), Figure(took["single"]),
        Figure(took["single"] / took["stored"]), None if here is None else Figure(here),
        None if here is None else Figure(took["stored"] / here),
    )  # fmt: skip


def node_by_node(tp: Client, job: GraphJob) -> dict[str, NDArray[Any]]:
    """The same in a request for each node; what lies between them comes here and goes back."""
    sent = {name: Layout.row_major(data_type(array.dtype), array.shape) for name, array in job.inputs.items()}
    graph, made = read_graph(job.document, sent), list[list[NDArray[Any]]]()
    for node in graph.nodes:
        taken: list[Any] = []
        for ref in node.inputs:
            match ref:
                case GraphInput(index):
                    taken.append(job.inputs[graph.inputs[index].name])
                case GraphConstant(index):
                    slot, data = graph.constants[index]
                    taken.append(slot.layout.view(data))
                case NodeOutput(number, index):
                    taken.append(made[number][index])
        found = tp.run(node.operation, taken)
        made.append(list(found.values()) if isinstance(found, dict) else [found])
    return {name: made[ref.node][ref.index] for name, ref in zip(graph.output_names, graph.outputs, strict=True)}


def _agree(expected: Arrays, found: Arrays) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name])


# ---- by torch --------------------------------------------------------------------------------------------------------


def _photo_by_torch(torch: Any, inputs: Arrays) -> Any:
    mean, deviation = (
        torch.tensor(each).view(1, 3, 1, 1) for each in ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    )
    photo = torch.from_numpy(inputs["photo"]).permute(0, 3, 1, 2).float()
    small = torch.nn.functional.interpolate(photo, (224, 224), mode="bilinear", antialias=True)
    return ((small - mean) / deviation).contiguous().numpy()


def _chain_by_torch(torch: Any, inputs: Arrays) -> Any:
    y = torch.from_numpy(inputs["x"])
    for number in range(4):
        y = torch.relu(y * (0.5 + number) + 1)
    return y.numpy()


def _norm_by_torch(torch: Any, inputs: Arrays) -> Any:
    x = torch.from_numpy(inputs["x"])
    return torch.softmax(torch.nn.functional.layer_norm(x, (256,)), -1).T.contiguous().numpy()

"""ONNX's own model tests through a server: how many give what they should, and why the others do not.

    python -m benchmarks.onnx_models                    single nodes, PyTorch's models, small models
    python -m benchmarks.onnx_models --kind simple
    python -m benchmarks.onnx_models --networks         published networks, beside ONNX Runtime in this process
    python -m benchmarks.onnx_models --networks --batch 32 --only resnet50 --rounds 4

Each case is a model with its inputs and outputs; it counts if every output has the type, the sizes and, within the
case's tolerance, the elements of the expected one. Needs the package onnx, whose tests these are.

The networks get random weights, since each of theirs is one number. A call is `run_model` with the bytes of the
model: it reads it, sends weights and input, and gets the output; of a stored model, it sends the input alone. Then the
computation alone is timed, in this process: each node by itself, with partitions, and as a whole, all with ONNX Runtime
in its child process; the first two must give the same bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from tensorpost import Client
from tensorpost.calls.model_calls import model_call
from tensorpost.graphs.graph_document import read_graph
from tensorpost.problems import TensorpostError
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.child_processes.libraries import ONNX_RUNTIME
from tensorpost_server.planning import Plan, make_plan
from tensorpost_server.planning import plan as plan_module

from . import servers

NETWORKS = ("resnet50", "squeezenet", "shufflenet")
ROUNDS = 12
SLICE_BYTES = 1 << 20
KINDS = ("node", "pytorch-converted", "pytorch-operator", "simple")
MOST_SHOWN = 110
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


def cases(kind: str) -> list[Any]:
    """The cases of a kind, as the package has them."""
    from onnx.backend.test.loader import load_model_tests

    found: Any = load_model_tests(kind=kind)
    return list(found)


def data_sets(case: Any) -> list[tuple[list[Any], list[Any]]]:
    """Inputs and outputs of a case, from its value or its folder."""
    from onnx import TensorProto, numpy_helper

    def read(path: Path) -> Any:
        return numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))

    if case.data_sets:
        return case.data_sets
    found: list[tuple[list[Any], list[Any]]] = []
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        inputs, outputs = len([*folder.glob("input_*.pb")]), len([*folder.glob("output_*.pb")])
        found.append((
            [read(folder / f"input_{at}.pb") for at in range(inputs)],
            [read(folder / f"output_{at}.pb") for at in range(outputs)],
        ))  # fmt: skip
    return found


def check(client: Client, case: Any) -> None:
    """Run a case.

    Raises:
        TensorpostError: the model is refused.
        AssertionError: an output is another one.
    """
    from onnx import ModelProto

    model = case.model
    if model is None:
        model = ModelProto.FromString((Path(case.model_dir) / "model.onnx").read_bytes())
    given = [each.name for each in model.graph.input]
    for inputs, outputs in data_sets(case):
        arrays = [as_array(value) for value in inputs]
        found = client.run_model(model, dict(zip(given, arrays, strict=False)))
        compare(case, found, model, [as_array(value) for value in outputs])


def as_array(value: Any) -> Any:
    """A tensor of the package as an array; anything else as it is."""
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def compare(case: Any, found: dict[str, Any], model: Any, outputs: list[Any]) -> None:
    """Compare results with the expected ones; a sequence tensor by tensor."""
    pairs = list[tuple[Any, Any]]()
    for output, wanted in zip(model.graph.output, outputs, strict=False):
        made = found[output.name]
        if isinstance(wanted, list) and isinstance(made, list):
            assert len(made) == len(wanted), f"{len(made)} tensors instead of {len(wanted)}"
            pairs += zip(made, wanted, strict=True)
        else:
            pairs.append((made, wanted))
    for made, wanted in pairs:
        expected = np.asarray(wanted)
        assert made.shape == expected.shape, f"shape {made.shape} instead of {expected.shape}"
        assert made.dtype == expected.dtype, f"{made.dtype} instead of {expected.dtype}"
        if data_type(made.dtype).kind == "f":
            wide, exact = made.astype(np.float64), expected.astype(np.float64)
            close = np.isclose(wide, exact, rtol=case.rtol, atol=case.atol, equal_nan=True)
        else:
            close = made == expected
        assert close.all(), "elements differ beyond the case's tolerance"


def network(name: str, batch: int = 1) -> Any:
    """A network of the package with random weights by value, each scaled by what its products sum.

    Args:
        name: its name in the package.
        batch: how many images it takes.
    """
    import onnx.backend.test

    import onnx
    from onnx import numpy_helper

    found = onnx.load(Path(onnx.backend.test.__path__[0]) / "data" / "light" / f"light_{name}.onnx")
    graph, chance = found.graph, np.random.default_rng(1)
    shapes = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    made = {node.output[0]: shapes[node.input[0]] for node in graph.node if node.op_type == "ConstantOfShape"}
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    variances = {node.input[4] for node in nodes if node.op_type == "BatchNormalization"}
    kept = [each for each in graph.initializer if any(each.name in node.input for node in nodes)]
    for key, shape in made.items():
        scale = 1.0 if len(shape) < 2 else 1.0 / np.sqrt(np.prod(shape[1:]))
        values = (chance.standard_normal([*map(int, shape)]) * scale).astype(np.float32)
        kept.append(numpy_helper.from_array(np.abs(values) + np.float32(0.5) if key in variances else values, key))
    given = [each for each in graph.input if each.name not in shapes]
    if batch > 1:
        given[0].type.tensor_type.shape.dim[0].dim_value = batch
        graph.output[0].type.tensor_type.shape.dim[0].dim_value = batch
        for each in kept:  # sizes of Reshape
            if (sizes := numpy_helper.to_array(each)).dtype == np.int64 and sizes[0] == 1:
                each.CopyFrom(numpy_helper.from_array(np.concatenate([[batch], sizes[1:]]), each.name))
    for field, values in (("node", nodes), ("initializer", kept), ("input", given)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    return found


def inputs_of(proto: Any) -> dict[str, NDArray[Any]]:
    """A random input of a network."""
    (given,) = proto.graph.input
    sizes = [size.dim_value for size in given.type.tensor_type.shape.dim]
    return {given.name: np.random.default_rng(0).random(sizes).astype(np.float32)}


def in_turns(calls: Sequence[Callable[[], list[Any]]], rounds: int = ROUNDS) -> tuple[list[list[Any]], list[str]]:
    """What the calls give, and the best and the median time of each, milliseconds."""
    results = [call() for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            taken.append((time.perf_counter() - begin) * 1e3)
    return results, [f"{min(taken):.1f} (median {sorted(taken)[rounds // 2]:.1f})" for taken in times]


def time_networks(
    client: Client, backends: Sequence[str | None], networks: Sequence[str], batch: int, rounds: int
) -> None:  # fmt: skip
    """Print the time of each network through a server, in turns, beside ONNX Runtime in this process."""
    import onnxruntime

    columns = [*[each or "auto" for each in backends], *[f"stored, {each or 'auto'}" for each in backends]]
    print(f"| network, ms | ONNX Runtime here | the same, one thread | {' | '.join(columns)} | differs |")
    for name in networks:
        proto = network(name, batch)
        inputs, model = inputs_of(proto), proto.SerializeToString()
        alone = onnxruntime.SessionOptions()
        alone.intra_op_num_threads = 1
        calls: list[Callable[[], list[Any]]] = []
        for options in (onnxruntime.SessionOptions(), alone):
            session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            calls.append(partial(session.run, None, inputs))
        for each in backends:
            calls.append(lambda b=each, m=model, i=inputs: [*client.run_model(m, i, backend=b).values()])
        stored = client.store(model, name)
        for each in backends:
            calls.append(lambda b=each, i=inputs, s=stored: [*s(i, backend=b).values()])
        (expected, _, *found), times = in_turns(calls, rounds)
        off = [float(np.abs(result[0] - expected[0]).max() / np.abs(expected[0]).max()) for result in found]
        print(f"| {name} | {' | '.join(times)} | {', '.join([f'{each:.1e}' for each in off])} |", flush=True)


def time_partitions() -> None:
    """Print the time of each network's computation in this process, in turns."""
    import onnxruntime

    ONNX_RUNTIME.threads = 1
    print("| computation alone, ms | ONNX Runtime here, one thread | node by node | partitions | as a whole |")
    for name in NETWORKS:
        proto = network(name)
        inputs, model = inputs_of(proto), proto.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session: Any = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        made = model_call(model, inputs, None)
        document, arrays = made.document, made.arrays
        layouts = {key: Layout.row_major(data_type(array.dtype), array.shape) for key, array in arrays.items()}
        graph = read_graph(document, layouts, most_nodes=5000)
        plans = [make_plan(graph, SLICE_BYTES + 1, by_onnx_runtime=whole) for whole in (False, True)]
        with patch.object(plan_module, "partitioned", lambda graph, steps: (steps, graph.outputs)):
            plans = [make_plan(graph, SLICE_BYTES), *plans]
        calls: list[Callable[[], list[Any]]] = [partial(session.run, None, inputs)]
        calls += [partial(computed, plan, arrays) for plan in plans]
        (_, alone, joined, _), times = in_turns(calls)
        assert alone == joined, "partitions give other bytes than their nodes"
        steps = ", ".join([f"{len(plan.steps)}" for plan in plans])
        print(f"| {name} (steps: {steps}) | {' | '.join(times)} |", flush=True)


def computed(plan: Plan, arrays: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """The bytes of every slice, by NumPy and ONNX Runtime."""
    blocks = [np.ascontiguousarray(arrays[slot.name]).reshape(-1).view(np.uint8).data for slot in plan.inputs]
    run = NumpyBackend().start(plan, blocks)
    try:
        return [bytes(run.compute(index)) for index in range(len(plan.slices))]
    finally:
        run.close()


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--batch", type=int, default=1, help="images that a network takes at a time")
    parser.add_argument("--only", choices=NETWORKS, action="append", help="the networks")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--backends", default="auto", help="backends for the networks, with commas between them")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of NumPy, while the cases are made
    reasons: dict[str, list[str]] = defaultdict(list)
    with servers.tensorpost(max_graph_nodes=2000, max_graph_constant_bytes=1 << 30) as server:
        url = f"http://127.0.0.1:{server.port}"
        if options.networks:
            with Client(url) as client:
                backends = [None if each == "auto" else each for each in options.backends.split(",")]
                time_networks(client, backends, options.only or NETWORKS, options.batch, options.rounds)
            if options.batch == 1:
                time_partitions()
            return 0
        for kind in options.kind or KINDS:
            count = right = 0
            begin = time.monotonic()
            with Client(url) as client:
                for case in cases(kind):
                    count += 1
                    try:
                        check(client, case)
                        right += 1
                    except (TensorpostError, AssertionError) as error:
                        text = " ".join(_VARIABLE.sub("_", f"{error}").split())
                        reasons[text[:MOST_SHOWN]].append(case.name)
            print(f"| {kind} | {right:,} of {count:,} | {time.monotonic() - begin:.0f} s |", flush=True)
    print()
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):4} {reason}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

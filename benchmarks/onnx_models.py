"""ONNX's own model tests through a server: how many give what they should, and why the others do not.

    python -m benchmarks.onnx_models                    single nodes, PyTorch's models, small models
    python -m benchmarks.onnx_models --kind simple
    python -m benchmarks.onnx_models --networks         published networks, beside ONNX Runtime in this process

Each case is a model with its inputs and outputs; it counts if every output has the type, the sizes and, within the
case's tolerance, the elements of the expected one. Needs the package onnx, whose tests these are.

The networks get random weights, since each of theirs is one number. A call is `run_model` with the bytes of the
model: it reads it, sends weights and input, and gets the output.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost import Client
from tensorpost.problems import TensorpostError

from . import servers

NETWORKS = ("resnet50", "squeezenet", "shufflenet")
ROUNDS = 12
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


def compare(case: Any, found: dict[str, NDArray[Any]], model: Any, outputs: list[Any]) -> None:
    """Compare results with the expected ones."""
    for output, wanted in zip(model.graph.output, outputs, strict=False):
        made, expected = found[output.name], np.asarray(wanted)
        assert made.shape == expected.shape, f"shape {made.shape} instead of {expected.shape}"
        assert made.dtype == expected.dtype, f"{made.dtype} instead of {expected.dtype}"
        if made.dtype.kind == "f" or made.dtype.name == "bfloat16":
            wide, exact = made.astype(np.float64), expected.astype(np.float64)
            close = np.isclose(wide, exact, rtol=case.rtol, atol=case.atol, equal_nan=True)
        else:
            close = made == expected
        assert close.all(), "elements differ beyond the case's tolerance"


def network(name: str) -> Any:
    """A network of the package with random weights by value, each scaled by what its products sum."""
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
    for field, values in (("node", nodes), ("initializer", kept), ("input", given)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    return found


def time_networks(client: Client, backends: Sequence[str | None]) -> None:
    """Print the best and the median time of each network, in turns, beside ONNX Runtime in this process."""
    import onnxruntime

    print("| network | ONNX Runtime here, ms | " + " | ".join([each or "auto" for each in backends]) + " | differs |")
    for name in NETWORKS:
        proto = network(name)
        (given,), model = proto.graph.input, proto.SerializeToString()
        sizes = [size.dim_value for size in given.type.tensor_type.shape.dim]
        inputs = {given.name: np.random.default_rng(0).random(sizes).astype(np.float32)}
        session: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        calls: list[Callable[[], Any]] = [lambda s=session, i=inputs: s.run(None, i)]
        calls += [lambda b=each, m=model, i=inputs: [*client.run_model(m, i, backend=b).values()] for each in backends]
        results = [call() for call in calls]
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(ROUNDS):
            for call, taken in zip(calls, times, strict=True):
                begin = time.perf_counter()
                call()
                taken.append((time.perf_counter() - begin) * 1e3)
        off = [
            max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(result, results[0], strict=True))
            for result in results[1:]
        ]
        shown = " | ".join([f"{min(taken):.1f} (median {sorted(taken)[ROUNDS // 2]:.1f})" for taken in times])
        print(f"| {name} | {shown} | {', '.join([f'{each:.1e}' for each in off])} |", flush=True)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--backends", default="auto", help="backends for the networks, with commas between them")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of NumPy, while the cases are made
    reasons: dict[str, list[str]] = defaultdict(list)
    with servers.tensorpost(max_graph_nodes=2000, max_graph_constant_bytes=1 << 30) as server:
        url = f"http://127.0.0.1:{server.port}"
        if options.networks:
            with Client(url) as client:
                time_networks(client, [None if each == "auto" else each for each in options.backends.split(",")])
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

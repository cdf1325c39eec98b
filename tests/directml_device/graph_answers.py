"""Graphs that DirectML compiles whole, beside their nodes one after another.

`tools/directml python -m tests.directml_device.graph_answers FIRST COUNT`, on Windows or under Wine.

Each drawn graph is computed by `IDMLDevice1::CompileGraph`, by DirectML node by node, and by NumPy. Printed are, as
JSON lines, the graphs that differ, and how many there were of each kind.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
from tests.conformance.test_graphs import node_by_node, outputs_of
from tests.support.graph_cases import drawn_graph

from tensorpost.values.graph import Graph
from tensorpost.values.problems import TensorpostError
from tensorpost_server.backends import load_backend
from tensorpost_server.planning import make_plan

SLICE_BYTES = 1 << 20
MOST_RELATIVE = 1e-3
"""Difference from NumPy that is told, relative to the largest element of the output; float16 has 2^-11."""


def apart(graph: Graph, found: Sequence[bytes], expected: Sequence[bytes]) -> float:
    """The largest difference of an output from another one, relative to its largest element; NaN count as equal."""
    worst = 0.0
    for slot, one, other in zip(graph.output_slots, found, expected, strict=True):
        x, y = (np.frombuffer(data, slot.layout.data_type.dtype).astype(np.float64) for data in (one, other))
        if not x.size or np.array_equal(x, y, equal_nan=True):
            continue
        with np.errstate(all="ignore"):
            difference = np.abs(x - y)
            difference[(x == y) | (np.isnan(x) & np.isnan(y))] = 0
            scale = np.max(np.abs(y[np.isfinite(y)]), initial=1e-30)
        worst = max(worst, float(np.max(np.nan_to_num(difference, nan=np.inf))) / float(scale))
    return worst


def main(first: int, count: int) -> None:
    """Compare graphs and print what was found."""
    directml, numpy, counts = load_backend("directml")(), load_backend("numpy")(), Counter[str]()
    for seed in range(first, first + count):
        case = drawn_graph(random.Random(f"directml {seed}"), 2 + seed % 9)
        graph = case.read()
        plan = make_plan(graph, SLICE_BYTES)
        inputs = [np.ascontiguousarray(case.inputs[slot.name]).tobytes() for slot in plan.inputs]
        reason = directml.refusal_reason(plan)
        if reason is not None:
            counts["not in DirectML's words"] += 1
            counts[f"not: {reason.partition(': ')[2][:60]}"] += 1
            continue
        try:
            whole = outputs_of(directml, graph, inputs, SLICE_BYTES)
        except TensorpostError as error:
            counts["refused"] += 1
            print(json.dumps({"seed": seed, "refused": str(error)[:300]}), flush=True)
            continue
        try:
            single = node_by_node(directml, graph, inputs)
        except (TensorpostError, ValueError) as error:  # ValueError: the plan is one that the backend does not take
            counts["a node refused by itself, the graph not"] += 1
            print(json.dumps({"seed": seed, "node": str(error)[:200]}), flush=True)
            single = whole
        counts["same bytes as node by node" if whole == single else "other bytes than node by node"] += 1
        for what, other in (("nodes", single), ("numpy", outputs_of(numpy, graph, inputs, SLICE_BYTES))):
            difference = apart(graph, whole, other)
            if difference > MOST_RELATIVE:
                names = [node.operation.name for node in graph.nodes]
                print(json.dumps({"seed": seed, "from": what, "apart": difference, "nodes": names}), flush=True)
                counts[f"more than {MOST_RELATIVE} from {what}"] += 1
    print(json.dumps(dict(counts)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

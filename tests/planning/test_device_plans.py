"""How devices compute what ONNX Runtime computes on processors: here on NumPy's arrays, beside ONNX's own answers."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.onnx.test_node_suite import cases, read
from tests.support.graph_cases import layouts_of
from tests.support.onnx_nodes import data_arrays, run_plan, runtime

from tensorpost.graphs.graph_document import read_graph
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.operators.onnx_device import DEVICE_FORMS
from tensorpost_server.planning import make_device_plan, make_plan

onnx = pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
RuntimeException: type[Exception] = importlib.import_module(
    "onnxruntime.capi.onnxruntime_pybind11_state"
).RuntimeException

LEAST = {
    "AveragePool": 15, "BatchNormalization": 2, "Conv": 6, "Dropout": 2, "GlobalAveragePool": 2, "GlobalMaxPool": 2,
 "InstanceNormalization": 2, "LRN": 2, "MaxPool": 12,
    "RMSNormalization": 8,
}  # fmt: skip
"""Cases of ONNX's node tests that each operator passes at least."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_the_node_tests_of_onnx():
    from onnx import TensorProto, numpy_helper

    passed = Counter[str]()
    for case in cases():
        (proto,) = case.model.graph.node
        if proto.op_type not in DEVICE_FORMS:
            continue
        (opset,) = [entry.version for entry in case.model.opset_import if entry.domain == ""]
        names = [value.name for value in case.model.graph.input]
        for given, expected in case.data_sets:
            arrays = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in given]
            values = dict(zip(names, arrays, strict=True))
            try:
                node = read(proto, opset, values)
            except InvalidDescriptor:  # functions of ONNX, whose sizes the package does not infer
                continue
            plan = make_device_plan(node, 1 << 20)
            if plan is None:
                continue
            found = run_plan(plan, data_arrays(node, proto.input, values), NumpyBackend())
            for ours, theirs in zip(found, expected, strict=True):
                wanted = numpy_helper.to_array(theirs) if isinstance(theirs, TensorProto) else np.asarray(theirs)
                assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), case.name
                np.testing.assert_allclose(ours, wanted, rtol=case.rtol, atol=case.atol, err_msg=case.name)
            passed[proto.op_type] += 1
    assert all(passed[name] >= least for name, least in LEAST.items()), passed


def drawn_windows(chance: random.Random, rank: int) -> dict[str, Any]:
    """Attributes of a window over so many axes."""
    attributes: dict[str, Any] = {
        "strides": [chance.randint(1, 3) for _ in range(rank)], "dilations": [chance.randint(1, 2) for _ in range(rank)]
    }  # fmt: skip
    mode = chance.choice(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if mode == "NOTSET":
        attributes["pads"] = [chance.randint(0, 2) for _ in range(2 * rank)]
    else:
        attributes["auto_pad"] = mode
        if mode != "VALID":
            attributes["dilations"] = [1] * rank  # ONNX Runtime's padding is another one with dilations
    return attributes


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_drawn_convolutions_and_pools_are_those_of_onnx_runtime(rank: int):
    chance, rng = random.Random(rank), np.random.default_rng(rank)
    compared = 0
    for turn in range(80):
        groups = chance.choice([1, 1, 2, 3])
        channels, filters = groups * chance.randint(1, 3), groups * chance.randint(1, 3)
        sizes = [chance.randint(5, 9) for _ in range(rank)]
        taps = [chance.randint(1, 3) for _ in range(rank)]
        dtype = chance.choice([np.float32, np.float32, np.float64])
        x = rng.standard_normal((chance.randint(1, 2), channels, *sizes)).astype(dtype)
        attributes = drawn_windows(chance, rank)
        op_type = chance.choice(["Conv", "Conv", "MaxPool", "AveragePool"])
        arrays: dict[str, NDArray[Any]] = {"X": x}
        if op_type == "Conv":
            dtype = np.float32
            arrays = {"X": x.astype(dtype)}
            arrays["W"] = rng.standard_normal((filters, channels // groups, *taps)).astype(dtype)
            if chance.random() < 0.6:
                arrays["B"] = rng.standard_normal(filters).astype(dtype)
            attributes["group"] = groups
        else:
            attributes["kernel_shape"] = taps
            if any(pad >= tap for pad, tap in zip(attributes.get("pads", []), [*taps, *taps], strict=False)):
                continue  # which ONNX Runtime refuses
            if op_type == "AveragePool":
                arrays = {"X": x.astype(np.float32)}
                attributes["dilations"] = [1] * rank
                attributes["count_include_pad"] = chance.randint(0, 1)
            if "auto_pad" not in attributes and not attributes.get("count_include_pad"):
                attributes["ceil_mode"] = chance.randint(0, 1)
        try:
            (expected,) = runtime(op_type, 19, [*arrays.values()], **attributes)
        except RuntimeException:  # it computes negative padding of `auto_pad`, and refuses that
            continue
        compared += 1
        node = OnnxNode.of(op_type, arrays, opset=19, **attributes)
        plan = make_device_plan(node, 300)
        if plan is None:
            assert attributes["ceil_mode"], "a window lies in the padding alone"
            continue
        (found,) = run_plan(plan, arrays, NumpyBackend())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=f"{turn} {node.to_json_text()}")
    assert compared > 40


def node(name: str, op_type: str, inputs: list[str], **attributes: Any) -> dict[str, Any]:
    return {"name": name, "op_type": op_type, "opset": 17, "inputs": inputs, "attributes": attributes}


def test_a_bias_a_normalization_and_an_activation_are_one_step():
    rng = np.random.default_rng(5)
    arrays = {
        "x": rng.standard_normal((2, 3, 8, 8)), "w": rng.standard_normal((4, 3, 3, 3)), "b": rng.standard_normal(4),
        "s": rng.standard_normal(4), "t": rng.standard_normal(4), "m": rng.standard_normal(4), "v": rng.random(4) + 1,
    }  # fmt: skip
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    nodes = [
        node("c", "Conv", ["x", "w", "b"], pads=[1, 1, 1, 1]),
        node("n", "BatchNormalization", ["c", "s", "t", "m", "v"]),
        node("r", "Relu", ["n"]),
        node("p", "MaxPool", ["r"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    document = {"inputs": {name: {} for name in arrays}, "nodes": nodes, "outputs": {"p": "p", "r": "r"}}
    graph = read_graph(document, layouts_of(arrays))
    on_device, on_processor = make_device_plan(graph, 1 << 20), make_plan(graph, 1 << 20)

    assert on_device is not None
    assert ([step.name for step in on_device.steps], on_device.libraries) == (["c", "r", "p"], ())
    assert on_processor.libraries
    found, expected = (run_plan(plan, arrays, NumpyBackend()) for plan in (on_device, on_processor))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_graph_with_a_node_that_no_device_computes_has_no_plan():
    x = np.ones((1, 1, 4, 4), np.float32)
    several = OnnxNode.of("MaxPool", {"X": x}, opset=17, outputs=2, kernel_shape=[2, 2])  # the places, too
    trains = OnnxNode.of("BatchNormalization", dict.fromkeys(["X"], x) | {
        name: np.ones(1, np.float32) for name in ("scale", "B", "input_mean", "input_var")
    }, opset=15, outputs=3, training_mode=1)  # fmt: skip
    assert make_device_plan(several, 1 << 20) is None
    assert make_device_plan(trains, 1 << 20) is None

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
from tests.support.onnx_nodes import compute, data_arrays, run_plan, runtime

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
    "Attention": 40, "AveragePool": 15, "BatchNormalization": 2, "Conv": 6, "ConvInteger": 2, "ConvTranspose": 8,
    "Dropout": 2, "Einsum": 5, "GRU": 3, "GlobalAveragePool": 2, "GlobalMaxPool": 2, "InstanceNormalization": 2,
    "LRN": 2, "LSTM": 3, "LpNormalization": 2, "LpPool": 8, "MaxPool": 12, "MeanVarianceNormalization": 1,
    "QLinearConv": 1, "RMSNormalization": 8, "RNN": 3, "RotaryEmbedding": 8,
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
            named = [array for array, name in zip(found, proto.output, strict=True) if name]
            for ours, theirs in zip(named, expected, strict=True):
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
        op_type = chance.choice(["Conv", "Conv", "MaxPool", "AveragePool", "LpPool"])
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
            if op_type in ("AveragePool", "LpPool"):
                arrays = {"X": x.astype(np.float32)}
                attributes["dilations"] = [1] * rank
                if op_type == "AveragePool":
                    attributes["count_include_pad"] = chance.randint(0, 1)
                elif attributes.get("auto_pad", "NOTSET").startswith("SAME"):
                    continue  # ONNX Runtime does not pad then, against the text
                else:
                    attributes["p"] = chance.randint(1, 3)
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


def test_drawn_transposed_convolutions_are_those_of_onnx_runtime():
    chance, rng, compared = random.Random(4), np.random.default_rng(4), 0
    for turn in range(120):
        rank, groups = chance.randint(1, 3), chance.choice([1, 1, 2, 3])
        sizes, taps = ([chance.randint(least, 4) for _ in range(rank)] for least in (2, 1))
        channels, filters = groups * chance.randint(1, 3), chance.randint(1, 3)
        arrays = {
            "X": rng.standard_normal((chance.randint(1, 2), channels, *sizes)).astype(np.float32),
            "W": rng.standard_normal((channels, filters, *taps)).astype(np.float32),
        }
        if chance.random() < 0.6:
            arrays["B"] = rng.standard_normal(filters * groups).astype(np.float32)
        strides = [chance.randint(1, 3) for _ in range(rank)]
        attributes: dict[str, Any] = {"strides": strides, "group": groups}
        match chance.choice(["pads", "shape", "SAME_UPPER", "SAME_LOWER", "VALID"]):
            case "pads":
                attributes["pads"] = [chance.randint(0, 1) for _ in range(2 * rank)]
                attributes["dilations"] = [chance.randint(1, 2) for _ in range(rank)]
                attributes["output_padding"] = [chance.randint(0, stride - 1) for stride in strides]
            case "shape":
                attributes["output_shape"] = [
                    max(1, (size - 1) * stride + tap - chance.randint(0, 2))
                    for size, stride, tap in zip(sizes, strides, taps, strict=True)
                ]
            case mode:
                attributes["auto_pad"] = mode
        try:
            (expected,) = runtime("ConvTranspose", 11, [*arrays.values()], **attributes)
            node = OnnxNode.of("ConvTranspose", arrays, opset=11, **attributes)
        except (RuntimeException, InvalidDescriptor):  # nothing is left, or sizes that the filter does not reach
            continue
        if expected.shape != node.output.shape or not expected.size:  # of `auto_pad`, the package infers other sizes
            continue
        compared += 1
        plan = make_device_plan(node, 300)
        assert plan is not None
        (found,) = run_plan(plan, arrays, NumpyBackend())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=f"{turn} {node.to_json_text()}")
    assert compared > 60, compared


@pytest.mark.parametrize("op_type", ["ConvInteger", "QLinearConv"])
def test_drawn_integer_convolutions_are_those_of_onnx_runtime(op_type: str):
    chance, rng, equal, count = random.Random(9), np.random.default_rng(9), 0, 0
    for turn in range(60):
        groups, dtype = chance.choice([1, 1, 2]), chance.choice([np.uint8, np.int8])
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        filters = groups * chance.randint(1, 3)
        arrays: dict[str, NDArray[Any]] = {
            "x": rng.integers(low, high + 1, (1, 2 * groups, 6, 5)).astype(dtype),
            "w": rng.integers(low, high + 1, (filters, 2, 3, 2)).astype(dtype),
        }
        attributes: dict[str, Any] = {"group": groups, "pads": [1, 0, 1, 1], "strides": [chance.randint(1, 2), 1]}
        zero, zeros = (rng.integers(low, high + 1, 1).astype(dtype).reshape(()) for _ in range(2))
        if op_type == "ConvInteger":
            arrays |= {"x_zero_point": zero, "w_zero_point": zeros}
        else:
            scales = rng.random(filters).astype(np.float32) / 100
            arrays = {
                "x": arrays["x"], "x_scale": np.array(0.02, np.float32), "x_zero_point": zero, "w": arrays["w"],
                "w_scale": scales, "w_zero_point": np.full(filters, zeros), "y_scale": np.array(0.5, np.float32),
                "y_zero_point": np.array((low + high) // 2, dtype),
                "B": rng.integers(-2000, 2000, filters).astype(np.int32),
            }  # fmt: skip
        try:
            (expected,) = runtime(op_type, 10, [*arrays.values()], **attributes)
        except RuntimeException:  # it has no kernel for int8
            continue
        node = OnnxNode.of(op_type, arrays, opset=10, **attributes)
        plan = make_device_plan(node, 300)
        assert plan is not None
        (found,) = run_plan(plan, arrays, NumpyBackend())
        # It scales in float32, so that a number near a half may be rounded the other way.
        most = 0 if op_type == "ConvInteger" else 1
        assert found.dtype == expected.dtype
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= most, f"{turn} {node.to_json_text()}"
        equal, count = equal + int((found == expected).sum()), count + found.size
    assert count > 500
    assert equal >= 0.99 * count


def test_integer_convolutions_have_a_zero_point_for_each_filter():
    rng = np.random.default_rng(3)
    x, w = rng.integers(0, 9, (1, 1, 4, 4)).astype(np.uint8), rng.integers(0, 9, (2, 1, 2, 2)).astype(np.uint8)
    zeros = np.array([3, 7], np.uint8)
    node = OnnxNode.of("ConvInteger", {"x": x, "w": w, "x_zero_point": np.uint8(2), "w_zero_point": zeros}, opset=10)
    (found,) = compute(node, {"x": x, "w": w, "x_zero_point": np.array(2, np.uint8), "w_zero_point": zeros})

    wide, filters = x.astype(int) - 2, w.astype(int) - zeros.reshape(2, 1, 1, 1)
    for channel, row, column in np.ndindex(2, 3, 3):
        window = wide[0, 0, row : row + 2, column : column + 2]
        assert found[0, channel, row, column] == (window * filters[channel, 0]).sum()


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_drawn_recurrent_networks_are_those_of_onnx_runtime(op_type: str):
    chance, rng = random.Random(6), np.random.default_rng(6)
    gates, names = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type], ["Y", "Y_h", "Y_c"]
    for turn in range(60):
        steps, batch, width, hidden = (chance.randint(1, 5) for _ in range(4))
        direction = chance.choice(["forward", "reverse", "bidirectional"])
        both = 2 if direction == "bidirectional" else 1
        drawn: dict[str, tuple[int, ...]] = {
            "X": (steps, batch, width), "W": (both, gates * hidden, width), "R": (both, gates * hidden, hidden),
            "B": (both, 2 * gates * hidden), "sequence_lens": (batch,), "initial_h": (both, batch, hidden),
        }  # fmt: skip
        attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
        if op_type == "LSTM":
            drawn |= {"initial_c": (both, batch, hidden), "P": (both, 3 * hidden)}
        if op_type == "GRU":
            attributes["linear_before_reset"] = chance.randint(0, 1)
        if chance.random() < 0.3:
            attributes["clip"] = 0.5
        given = {name for name in drawn if name in ("X", "W", "R") or chance.random() < 0.7}
        arrays: dict[str, NDArray[Any]] = {
            name: rng.standard_normal(drawn[name]).astype(np.float32) for name in drawn if name in given
        }
        if "sequence_lens" in arrays:
            arrays["sequence_lens"] = rng.integers(1, steps + 1, batch).astype(np.int32)
        count = chance.randint(1, 3 if op_type == "LSTM" else 2)
        listed = [arrays.get(name) for name in drawn]
        expected = runtime(op_type, 14, listed, outputs=count, **attributes)
        node = OnnxNode.of(op_type, arrays, opset=14, outputs=count, **attributes)
        plan = make_device_plan(node, 300)
        assert plan is not None
        found = run_plan(plan, arrays, NumpyBackend())
        for name, ours, theirs in zip(names, found, expected, strict=False):
            message = f"{turn} {name} {node.to_json_text()}"
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=message)
        # With the batch first, which ONNX Runtime does not compute: the same numbers in another order.
        turned = {name: array.swapaxes(0, 1) if name in ("X", "initial_h", "initial_c") else array
                  for name, array in arrays.items()}  # fmt: skip
        by_batch = OnnxNode.of(op_type, turned, opset=14, outputs=count, layout=1, **attributes)
        orders = {"Y": (2, 0, 1, 3), "Y_h": (1, 0, 2), "Y_c": (1, 0, 2)}
        for name, ours, theirs in zip(names, compute(by_batch, turned), found, strict=False):
            np.testing.assert_array_equal(ours, theirs.transpose(orders[name]), err_msg=f"{turn} {name}")


def test_drawn_attention_is_that_of_the_reference():
    from onnx.reference.ops.op_attention import Attention_25

    chance, rng, shown = random.Random(7), np.random.default_rng(7), Counter[str]()
    for turn in range(120):
        shared, times = chance.randint(1, 3), chance.randint(1, 2)
        batch, length, keys, past, size, wide = (chance.randint(1, 4) for _ in range(6))
        total, heads, is_flat = keys, shared * times, chance.random() < 0.4
        arrays: dict[str, NDArray[Any]] = {}
        for name, count, long, width in (
            ("Q", heads, length, size),
            ("K", shared, keys, size),
            ("V", shared, keys, wide),
        ):
            sizes = (batch, long, count * width) if is_flat else (batch, count, long, width)
            arrays[name] = rng.standard_normal(sizes).astype(np.float32)
        attributes: dict[str, Any] = {"is_causal": chance.randint(0, 1)}
        if is_flat:
            attributes |= {"q_num_heads": heads, "kv_num_heads": shared}
        cache = chance.choice(["none", "past", "static"])
        if cache == "past":
            arrays["past_key"] = rng.standard_normal((batch, shared, past, size)).astype(np.float32)
            arrays["past_value"] = rng.standard_normal((batch, shared, past, wide)).astype(np.float32)
            total += past
        elif cache == "static":
            arrays["nonpad_kv_seqlen"] = rng.integers(0, total + 1, batch)
        if chance.random() < 0.6:
            sizes = chance.choice([(length,), (1, length), (heads, length), (batch, 1, length), (batch, heads, length)])
            mask = rng.standard_normal((*sizes, chance.randint(1, total))).astype(np.float32)
            arrays["attn_mask"] = mask > 0 if chance.random() < 0.5 else mask
        for name, value in (("softcap", 1.5), ("scale", 0.3), ("left_window_size", 1), ("right_window_size", 1)):
            if chance.random() < 0.3:
                attributes[name] = value
        mode = attributes["qk_matmul_output_mode"] = chance.randint(0, 3)
        count = 1 if cache == "static" else 4  # what is present is the static cache itself
        node = OnnxNode.of("Attention", arrays, opset=25, outputs=count, **attributes)
        plan = make_device_plan(node, 300)
        assert plan is not None
        found = run_plan(plan, arrays, NumpyBackend())
        if mode == 0 and "softcap" in attributes:
            attributes["qk_matmul_output_mode"] = 1  # what the reference makes of 0, too; ONNX's text has it before
        reference: Any = Attention_25._run  # its only function
        expected = reference(type("Checked", (), {"_validate_attention25": True})(), **arrays, **attributes)
        for place, (ours, theirs) in enumerate(zip(found, expected[:count], strict=True)):
            if place < 3 or mode or "softcap" not in attributes:
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=f"{turn} {place} {attributes}")
        shown[cache] += 1
    assert min(shown.values()) > 20


def test_versions_that_onnx_runtime_has_not_are_computed_as_later_ones():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    window: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    (expected,) = runtime("AveragePool", 7, [x], **window)
    (found,) = compute(OnnxNode.of("AveragePool", {"X": x}, opset=1, **window), {"X": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    names = ["X", "scale", "B", "mean", "var"]
    arrays = dict(zip(names, [x, *[rng.random(3).astype(np.float32) for _ in range(4)]], strict=True))
    (expected,) = runtime("BatchNormalization", 7, [*arrays.values()])
    (found,) = compute(OnnxNode.of("BatchNormalization", arrays, opset=6, is_test=1), arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert make_device_plan(OnnxNode.of("BatchNormalization", arrays, opset=6), 300) is None  # it trains


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

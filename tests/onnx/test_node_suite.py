"""The onnx package's own node tests, for every operator that tensorpost computes, run on our plans and kernels.

Known differences stand in `node-deviations.txt`, each with its reason. The cases are made by the package when they are
asked for, which takes longer than running them, so they are run in one test.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.onnx_nodes import compute, data_arrays

from tensorpost.descriptors import OperatorDesc
from tensorpost.onnx import OnnxNode, Verdict, lower
from tensorpost.onnx.schemas import is_own
from tensorpost.values.problems import InvalidDescriptor, TensorpostError
from tensorpost_server.backends.base import Backend, CannotOpen
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

DEVIATIONS = Path(__file__).with_name("node-deviations.txt")
MISSING = importlib.util.find_spec("onnx") is None
NO_ONNX = "the package onnx is not installed; it has no wheel for every Python"
KNOWN_COUNT = 909  # of onnx 1.23; a newer release may bring more, none may vanish

pytestmark = [
    pytest.mark.skipif(MISSING, reason=NO_ONNX),
    # the package's own cases divide by zero, and cast what no type holds
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
]


@cache
def cases() -> list[Any]:
    """Cases of one node of the default domain; the same function as a model of several nodes is not our business."""
    from onnx.backend.test.case.node import collect_testcases

    found: list[Any] = collect_testcases(None)  # pyright: ignore[reportArgumentType] # None is for all, and documented
    models = [case for case in found if case.model is not None and len(case.model.graph.node) == 1]
    return [case for case in models if case.model.graph.node[0].domain == ""]


def is_ours(case: Any) -> bool:
    return is_own(case.model.graph.node[0].op_type)


@cache
def backends() -> list[Backend]:
    """Those that every machine has, and numba's where it is installed and its loops are compiled."""
    found: list[Backend] = [NumpyBackend()]
    if importlib.util.find_spec("numba"):
        from tensorpost_server.backends.numba_ import NumbaBackend

        with suppress(CannotOpen):  # `TEST_KERNELS=0`
            found.append(NumbaBackend())
    return found


def deviations() -> dict[str, str]:
    """Pattern of names to reason."""
    lines = [line for line in DEVIATIONS.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in (line.partition(":") for line in lines)}


def run_case(case: Any) -> None:
    """Run a case.

    Raises:
        Exception: it fails.
    """
    from onnx import TensorProto, numpy_helper

    (proto,) = case.model.graph.node
    (opset,) = [entry.version for entry in case.model.opset_import if entry.domain == ""]
    names = [value.name for value in case.model.graph.input]
    for given, expected in case.data_sets:
        arrays = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in given]
        values = dict(zip(names, arrays, strict=True))
        node = read(proto, opset, values)
        assert OnnxNode.from_json(json.loads(node.to_json_text())) == node
        wanted = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else np.asarray(x) for x in expected]
        for backend in backends() if is_ours(case) else backends()[:1]:
            found = compute(node, data_arrays(node, proto.input, values), backend)
            named = [array for array, name in zip(found, proto.output, strict=True) if name]
            for ours, theirs in zip(named, wanted, strict=True):
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
                np.testing.assert_allclose(ours, theirs, rtol=case.rtol, atol=case.atol)
        descriptor = lower(node).descriptor
        if descriptor is not None and lower(node).verdict is Verdict.EXACT:
            LOWERED.append(case.name)
            given_bytes = data_arrays(node, proto.input, values).values()
            for ours, slot, theirs in zip(computed(descriptor, given_bytes), node.outputs, wanted, strict=False):
                made = slot.layout.view(ours[: slot.layout.size_in_bytes])
                np.testing.assert_allclose(made, theirs, rtol=case.rtol, atol=case.atol, err_msg=descriptor.name)


LOWERED: list[str] = []
"""The cases whose DirectML operator has computed them too."""


def computed(descriptor: OperatorDesc, arrays: Iterable[NDArray[Any]]) -> list[bytes]:
    """The outputs of the operator, from the bytes of a node's tensors."""
    memory = [np.ascontiguousarray(x).tobytes().ljust(-(-x.nbytes // 4) * 4, b"\0") for x in arrays]
    plan = make_plan(descriptor, 1 << 22)
    run = NumpyBackend().start(plan, [memoryview(x) for x in memory])
    whole = b"".join([bytes(run.compute(i)) + bytes(piece.padding) for i, piece in enumerate(plan.slices)])
    run.close()
    found: list[bytes] = []
    for slot in descriptor.outputs:
        found.append(whole[: slot.layout.size_in_bytes])
        whole = whole[slot.layout.size_in_bytes :]
    return found


def read(proto: Any, opset: int, values: dict[str, Any]) -> OnnxNode:
    """The node; of an operator that is not ours small integers by value, if its outputs need them."""
    try:
        return OnnxNode.from_node_proto(proto, opset, values)
    except InvalidDescriptor as error:
        if "by value" not in error.detail:
            raise
    small = {name: x.tolist() if x.ndim <= 1 and x.dtype.kind == "i" else x for name, x in values.items()}
    return OnnxNode.from_node_proto(proto, opset, small)


def test_every_node_test_of_onnx() -> None:
    known, seen, failed, ours = deviations(), set[str](), dict[str, str](), list(filter(is_ours, cases()))
    for case in ours:
        pattern = next((pattern for pattern in known if fnmatch(case.name, pattern)), None)
        try:
            run_case(case)
        except Exception as error:  # noqa: BLE001 # every failure is counted, whatever it is
            if pattern is None:
                failed[case.name] = re.sub(r"\s+", " ", str(error))[:200]
            else:
                seen.add(pattern)
        else:
            assert pattern is None, f"{case.name} agrees, but is listed: {pattern}"
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
    assert seen == {*known}, "listed, but no test of the onnx package any more"
    assert len(ours) >= KNOWN_COUNT, "the suite has shrunk"
    assert len(LOWERED) >= 470, "cases that a DirectML operator has computed too"


OTHERWISE = {
    # of operators that ONNX Runtime computes: its answer is another one
    "test_attention_4d_causal_fp16": "ONNX Runtime rounds in float16 on the way",
    "test_attention_*_bf16": "the expected values are rounded to bfloat16 at each step, ours once",
    "test_dft*": "differences of 1e-4 of numbers that are 0, beyond the tolerance",
    "test_bernoulli*": "random",
    "test_training_dropout*": "random",
    "test_optional_get_element*": "sequences and optional values are no tensors",
    "test_regex*": "what computes with strings is not offered",
    "test_string*": "what computes with strings is not offered",
}


def test_all_other_operators_by_onnx_runtime() -> None:
    """It refuses some, for their types or since no shape is known before; what it answers is right, but for a few."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
    agreed, failed = 0, dict[str, str]()
    for case in cases():
        if is_ours(case) or any(fnmatch(case.name, pattern) for pattern in OTHERWISE):
            continue
        try:
            run_case(case)
            agreed += 1
        except TensorpostError:
            continue
        except Exception as error:  # noqa: BLE001 # every failure is counted, whatever it is
            failed[case.name] = re.sub(r"\s+", " ", str(error))[:200]
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
    assert agreed >= 330


def test_every_deviation_has_a_reason() -> None:
    for name, reason in deviations().items():
        assert len(reason) > 20, f"{name}: say why"

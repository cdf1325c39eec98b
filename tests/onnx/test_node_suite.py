"""The onnx package's own node tests, for every operator that tensorpost computes, run on our plans and kernels.

Known differences stand in `node-deviations.txt`, each with its reason. The cases are made by the package when they are
asked for, which takes longer than running them, so they are run in one test.
"""

from __future__ import annotations

import importlib.util
import json
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.onnx_nodes import compute, data_arrays

from tensorpost.onnx import ONNX_OPERATORS, OnnxNode
from tensorpost_server.backends.base import Backend
from tensorpost_server.backends.numpy_ import NumpyBackend

DEVIATIONS = Path(__file__).with_name("node-deviations.txt")
MISSING = importlib.util.find_spec("onnx") is None
NO_ONNX = "the package onnx is not installed; it has no wheel for every Python"
KNOWN_COUNT = 896  # of onnx 1.23; a newer release may bring more, none may vanish

pytestmark = [
    pytest.mark.skipif(MISSING, reason=NO_ONNX),
    # the package's own cases divide by zero, and cast what no type holds
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
]


@cache
def cases() -> list[Any]:
    """Cases of one node that tensorpost has; the same function as a model of several nodes is not its business."""
    from onnx.backend.test.case.node import collect_testcases

    names = {schema.op_type for schema in ONNX_OPERATORS}
    return [
        case
        for case in collect_testcases(None)  # pyright: ignore[reportArgumentType] # None is for all, and documented
        if case.model is not None and len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type in names
    ]


@cache
def backends() -> list[Backend]:
    """Those that every machine has, and numba's where it is installed."""
    found: list[Backend] = [NumpyBackend()]
    if importlib.util.find_spec("numba"):
        from tensorpost_server.backends.numba_ import NumbaBackend

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
        node = OnnxNode.from_node_proto(proto, opset, values)
        assert OnnxNode.from_json(json.loads(node.to_json_text())) == node
        for backend in backends():
            found = compute(node, data_arrays(node, proto.input, values), backend)
            for ours, theirs in zip(found, expected, strict=True):
                wanted = numpy_helper.to_array(theirs) if isinstance(theirs, TensorProto) else np.asarray(theirs)
                assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
                np.testing.assert_allclose(ours, wanted, rtol=case.rtol, atol=case.atol)


def test_every_node_test_of_onnx() -> None:
    known, seen, failed = deviations(), set[str](), dict[str, str]()
    for case in cases():
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
    assert len(cases()) >= KNOWN_COUNT, "the suite has shrunk"


def test_every_deviation_has_a_reason() -> None:
    for name, reason in deviations().items():
        assert len(reason) > 20, f"{name}: say why"

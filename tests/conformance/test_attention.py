"""MULTIHEAD_ATTENTION and MULTIHEAD_ATTENTION1 against ONNX Runtime's MultiHeadAttention and GroupQueryAttention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.suite import Case, check_bytes

from tensorpost.descriptors import OperatorDesc, operator_class
from tensorpost_server.backends import Backend

Arrays = dict[str, NDArray[Any]]


def described(operator: str, arrays: Arrays, attributes: Mapping[str, Any]) -> OperatorDesc:
    tensors = {
        name: {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape)} for name, array in arrays.items()
    }
    return operator_class(operator).completed({**tensors, **attributes})


def case(name: str, desc: OperatorDesc, arrays: Arrays, outputs: Sequence[NDArray[Any]]) -> Case:
    fields = [desc.names_of_fields()[path[0]] for path, _ in desc.tensors("input")]
    dtype = desc.outputs[0].layout.data_type.dtype
    expected = b"".join([output.astype(dtype).tobytes() for output in outputs])
    inputs = tuple([np.ascontiguousarray(arrays[field]).tobytes() for field in fields])
    return Case(name, desc, inputs, expected, ulp=2 if dtype == np.float16 else 16, absolute=4e-6)


def of_onnx(op_type: str, inputs: Sequence[Any], outputs: int, **attributes: Any) -> list[NDArray[Any]]:
    """ONNX Runtime's answer; inputs that are None are absent."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    helper = onnx.helper
    fed = {f"x{place}": x for place, x in enumerate(inputs) if x is not None}
    names = [f"x{place}" if x is not None else "" for place, x in enumerate(inputs)]
    answers = [f"y{place}" for place in range(outputs)]
    node = helper.make_node(op_type, names, answers, domain="com.microsoft", **attributes)
    typed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in fed.items()
    ]
    made = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in answers]
    graph = helper.make_graph([node], "one", typed, made)
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, fed)]


def present(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {f"OutputPresent{name}Tensor": {"DataType": "FLOAT32", "Sizes": list(array.shape)}}


def stacked(arrays: Arrays, which: str, heads: int) -> Arrays:
    """The same query, key and value in a stacked form."""
    names = {"StackedQueryKeyTensor": ("Query", "Key"), "StackedKeyValueTensor": ("Key", "Value")}
    members = names.get(which, ("Query", "Key", "Value"))
    split = [arrays[f"{name}Tensor"] for name in members]
    stack = np.stack([x.reshape(*x.shape[:2], heads, -1) for x in split], axis=3)
    return {which: stack, **{name: x for name, x in arrays.items() if name[: -len("Tensor")] not in members}}


def test_numbers_are_those_of_onnx_runtime(backend: Backend):
    random = np.random.default_rng(4)

    def normal(*shape: int) -> NDArray[Any]:
        return random.standard_normal(shape).astype(np.float32)

    for number in range(40):
        batch, queries, keys, heads, head = (int(random.integers(1, 5)) for _ in range(5))
        form = ["", "StackedQueryKeyTensor", "StackedKeyValueTensor", "StackedQueryKeyValueTensor"][number % 4]
        keys = queries if "StackedQueryKey" in form else keys
        value = head if form else int(random.integers(1, 4))
        past = int(random.integers(0, 3)) if value == head else 0
        total = past + keys
        plain: Arrays = {
            "QueryTensor": normal(batch, queries, heads * head),
            "KeyTensor": normal(batch, keys, heads * head),
            "ValueTensor": normal(batch, keys, heads * value),
        }
        optional: Arrays = {}
        if random.random() < 0.5:
            optional["BiasTensor"] = normal(heads * (2 * head + value))
        if past:
            optional |= {"PastKeyTensor": normal(batch, heads, past, head)}
            optional |= {"PastValueTensor": normal(batch, heads, past, value)}
        if random.random() < 0.5:
            optional["RelativePositionBiasTensor"] = normal(batch, heads, queries, total)
        attributes: dict[str, Any] = {"HeadCount": heads, "MaskFilterValue": -7.0}
        kept = None
        if random.random() < 0.5:
            kept = random.integers(0, 2, (batch, queries, total)).astype(np.int32)
            optional["MaskTensor"] = np.repeat(kept[:, None], heads, axis=1)
            attributes["MaskType"] = "BOOLEAN"
        theirs = [
            *plain.values(), optional.get("BiasTensor"), kept, optional.get("RelativePositionBiasTensor"),
            optional.get("PastKeyTensor"), optional.get("PastValueTensor"),
        ]  # fmt: skip

        expected = of_onnx("MultiHeadAttention", theirs, 3, num_heads=heads, mask_filter_value=-7.0)

        arrays = {**(stacked(plain, form, heads) if form else plain), **optional}
        attributes |= {**present("Key", expected[1]), **present("Value", expected[2])}
        check_bytes(backend, case(f"{number}", described("MULTIHEAD_ATTENTION", arrays, attributes), arrays, expected))


def test_grouped_heads_are_those_of_onnx_runtime(backend: Backend):
    """GroupQueryAttention with an empty cache: rows begin where they do, and queries see what comes before them."""
    random = np.random.default_rng(5)

    def normal(*shape: int) -> NDArray[Any]:
        return random.standard_normal(shape).astype(np.float32)

    for number in range(20):
        batch, shared, group, room = (int(random.integers(1, 4)) for _ in range(4))
        queries, head = 1 if number % 2 else int(random.integers(2, 5)), 8
        heads, buffer = shared * group, room + queries
        pasts = random.integers(1, room + 1, batch) if queries == 1 else np.zeros(batch, np.int64)
        query, key, value = normal(batch, queries, heads * head), *[normal(batch, queries, shared * head)] * 2
        caches = [np.zeros((batch, shared, buffer, head), np.float32)] * 2
        lengths = (pasts + queries - 1).astype(np.int32)
        total = np.array(int(pasts.max()) + queries, np.int32)

        expected = of_onnx(
            "GroupQueryAttention", [query, key, value, *caches, lengths, total], 3, num_heads=heads, kv_num_heads=shared
        )

        arrays: Arrays = {
            "QueryTensor": query, "KeyTensor": key, "ValueTensor": value,
            "PastSequenceLengthsTensor": pasts.astype(np.int32),
        }  # fmt: skip
        attributes = {"QueryHeadCount": heads, "KeyValueHeadCount": shared}
        attributes |= {**present("Key", expected[1]), **present("Value", expected[2])}
        check_bytes(backend, case(f"{number}", described("MULTIHEAD_ATTENTION1", arrays, attributes), arrays, expected))

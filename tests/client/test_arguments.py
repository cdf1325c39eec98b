"""Wrong arguments of a client and its calls: each is refused by name, before anything is sent, by both clients."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import Any

import numpy as np
import pytest

from tensorpost import AsyncClient, BufferTensorDesc, Client, Limits, TileOperatorDesc
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter

X = np.arange(6, dtype=np.float32).reshape(2, 3)
DESC = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2))
NOBODY = "http://127.0.0.1:9"


def in_both(name: str, *args: Any, **kwargs: Any) -> list[Exception]:
    """What a call raises, made with `Client` and with `AsyncClient`. Nobody listens there, so nothing can be sent."""

    async def in_asyncio() -> Any:
        async with AsyncClient(NOBODY, retries=0) as tp:
            called = getattr(tp, name)(*args, **kwargs)
            return [block async for block in called] if name == "stream" else await called

    raised: list[Exception] = []
    with Client(NOBODY, retries=0) as tp:
        for call in (lambda: getattr(tp, name)(*args, **kwargs), lambda: asyncio.run(in_asyncio())):
            try:
                call()
            except Exception as error:  # noqa: BLE001 # the tests say which one it must be
                raised.append(error)
    return raised


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "said"),
    [
        ("tile", (X, 2.5), {}, "repeats is 2.5; .*for each of x's 2 dimensions, for instance (1, 2)"),
        ("tile", (X[0], None), {}, "repeats is None; .*for instance (2,)"),
        ("tile", (X, "12"), {}, "repeats is '12'; "),
        ("tile", (X, {1: 2}), {}, "repeats is {1: 2}; "),
        ("tile", (X, True), {}, "repeats is True; "),
        ("run", (DESC, {"inputs": X}), {}, "TILE takes one input, named 'input'; got inputs. Pass the array"),
        ("resample", (X,), {"scales": "2", "axes": 0}, "scales is '2', a text; it must be a number"),
        ("resample", (X,), {"sizes": 2.5, "axes": 0}, "sizes[0] is 2.5; it must be a whole number"),
        ("resample", (X,), {"sizes": (1,)}, "sizes has 1 entry but x has 2 dimensions; "),
        ("tile", (X, (1, 2)), {"out": np.ma.zeros((2, 6), np.float32)}, "out is a masked array.*out.data"),
        ("tile", (X, (1, 2)), {"device": "0"}, "device is '0'; it must be a whole number of at least 0"),
        ("tile", (X, (1, 2)), {"device": 1.9}, "device is 1.9; "),
        ("tile", (X, (1, 2)), {"device": True}, "device is True; "),
        ("tile", (X, (1, 2)), {"device": -1}, "device is -1; "),
        ("tile", (X, (1, 2)), {"backend": 3}, "backend is 3; "),
        ("tile", (X, (1, 2)), {"backend": "\ud800"}, r"backend is '\ud800'; "),
        ("tile", (X, (1, 2)), {"progress": 3}, "progress is 3; it must be a function"),
        ("resample", (X,), {"scales": 2, "axes": 0, "out": [1]}, "out must be a NumPy array of float32 .*not list"),
        ("resample", (X,), {"scales": 2, "axes": 0, "out": np.ma.zeros((4, 3), np.float32)}, "out is a masked array"),
        ("resample", (np.ma.array(X),), {"scales": 2, "axes": 0}, "x is a masked array"),
        ("resample", (DESC.input_tensor,), {"scales": 2, "axes": 0}, "x must be the array itself"),
        ("run", ({"type": "TILE"}, X), {}, "desc must be an operator's descriptor .*not dict; parse_operator("),
        ("run", (None, X), {}, "desc must be an operator's descriptor .*not NoneType"),
        ("stream", (DESC, X), {"block_bytes": 1.5}, "block_bytes is 1.5; it must be a whole number of at least 1"),
        ("stream", (DESC, X), {"block_bytes": "1"}, "block_bytes is '1'; "),
        ("stream", (DESC, X), {"block_bytes": True}, "block_bytes is True; "),
        ("stream", (DESC, X), {"block_bytes": 0}, "block_bytes is 0; "),
        ("operator", (None,), {}, "name is None; it must be the name of an operator"),
        ("operator", ("",), {}, "name is ''; "),
        ("operator", ("\ud800",), {}, r"name is '\ud800'; "),
    ],
)
def test_an_argument_of_a_call_is_refused_by_name(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    raised = in_both(name, *args, **kwargs)

    assert [type(error) for error in raised] == [InvalidParameter] * 2
    for error in raised:
        assert re.match(".*".join(map(re.escape, said.split(".*"))), str(error)), error


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "place"),
    [
        ("tile", (X, [[1], [2]]), {}, "$.Repeats[0]"),
        ("tile", (X, np.array([[1], [2]])), {}, "$.Repeats[0]"),
        ("tile", (X, (1, 2.0)), {}, "$.Repeats[1]"),
        ("tile", (X, np.array([1.0, 2.0])), {}, "$.Repeats[0]"),
        ("tile", (X, (1, True)), {}, "$.Repeats[1]"),
        ("onnx", ("Tile", X, [1, 2]), {"opset": "13"}, "$.opset"),
        ("onnx", ("Tile", X, [1, 2]), {"opset": None}, "$.opset"),
        ("onnx", (None, X), {}, "$.op_type"),
        ("onnx", (["Tile"], X), {}, "$.op_type"),
    ],
)
def test_what_a_descriptor_has_a_rule_for_is_refused_by_that_rule(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], place: str
) -> None:
    raised = in_both(name, *args, **kwargs)

    assert [type(error) for error in raised] == [InvalidDescriptor] * 2
    for error in raised:
        assert str(error).startswith(f"{place}: ")


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"base_url": 5}, "base_url is 5; "),
        ({"base_url": b"http://x"}, "base_url is b'http://x'; "),
        ({"retries": "2"}, "retries is '2'; it must be a whole number of at least 0"),
        ({"retries": None}, "retries is None; "),
        ({"retries": 1.5}, "retries is 1.5; "),
        ({"retries": -1}, "retries is -1; "),
        ({"limits": None}, "limits is None; it must be tensorpost.Limits"),
        ({"limits": 5}, "limits is 5; "),
        ({"headers": None}, "headers is None; it must be a mapping"),
        ({"headers": [("a", "b")]}, "headers is [['a', 'b']]; "),
        ({"headers": {"a": 5}}, "header 'a' is 5; its name and its value must be texts"),
        ({"headers": {b"a": "b"}}, "header b'a' is 'b'; "),
        ({"uds": 5}, "uds is 5; it must be the path"),
        ({"uds": ""}, "uds is ''; "),
        ({"tls": None}, "tls is None; it must be an ssl.SSLContext"),
    ],
)
def test_an_argument_of_a_client_is_refused_by_name(client: Any, kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=re.escape(said)):
        client(**kwargs)


def test_numpy_s_whole_numbers_are_whole_numbers() -> None:
    numbers = {"retries": np.int64(0), "limits": Limits(max_connections=1)}
    with Client(NOBODY, **numbers) as tp:
        blocks = tp.stream(DESC, X, device=np.uint8(0), block_bytes=np.int32(7))  # pyright: ignore[reportArgumentType] # on purpose
        blocks.close()


def test_arguments_are_not_changed() -> None:
    headers = {"A": "b"}
    before = copy.deepcopy(headers)

    Client(NOBODY, headers=headers).close()

    assert headers == before

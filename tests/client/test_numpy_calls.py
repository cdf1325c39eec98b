"""The calls in NumPy's words against NumPy, over HTTP, through both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.live_server import default_server

from tensorpost import AsyncClient, Client
from tensorpost.calls.numpy_calls import NumpyCalls
from tensorpost.values.problems import InvalidParameter

RNG = np.random.default_rng(3)
X = RNG.uniform(-3, 3, (2, 3, 4)).astype(np.float32)
I8 = RNG.integers(-128, 127, (2, 3, 4)).astype(np.int8)
U16 = RNG.integers(0, 65535, (3, 4)).astype(np.uint16)
B = I8 > 0
HALF = X.astype(np.float16)
NONE = np.zeros((0, 3), np.float32)

# call, arguments, keywords; NumPy's function of the same name must give the same type, shape and elements
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("astype", (X, np.int8), {}), ("astype", (I8, "float16"), {}), ("astype", (I8.astype(int) * 3, np.uint8), {}),
    ("astype", (X, bool), {}),
    ("add", (X, 2), {}), ("add", (I8, U16[:, :]), {}), ("add", (HALF, X[0]), {}), ("add", (2.5, X[0, 0]), {}),
    ("subtract", (X, X[:, :1]), {}), ("multiply", (I8, 3), {}), ("divide", (I8, 4), {}), ("divide", (X, X + 9), {}),
    ("where", (B, X, 0), {}), ("where", (B[0, 0], I8, HALF), {}),
    ("clip", (X, -1, 1), {}), ("clip", (I8, None, 5), {}),
    ("transpose", (X,), {}), ("transpose", (X, (1, -1, 0)), {}),
    ("broadcast_to", (X[:, :1], (5, 2, 3, 4)), {}),
    ("pad", (X, 1), {}), ("pad", (I8, ((0, 1), (2, 0), (1, 1))), {"constant_values": 7}),
    ("pad", (X, (1, 2), "edge"), {}), ("pad", (X, 2, "reflect"), {}), ("pad", (X, (1, 3), "wrap"), {}),
    ("concatenate", ([X, X[:, :1]],), {"axis": 1}), ("concatenate", ([I8, U16], None), {}),
    ("take", (X, [[2, 0], [-1, 1]]), {"axis": 1}), ("take", (X, 5), {}),
    ("take_along_axis", (X, np.abs(I8.astype(int)) % 4), {"axis": 2}),
    *[(name, (x,), keywords) for name in ("sum", "prod", "mean", "max", "min") for x, keywords in (
        (X, {}), (X, {"axis": 1}), (I8, {"axis": (0, -1), "keepdims": True}), (HALF, {"axis": 2}), (X, {"axis": ()}),
    )],
    ("sum", (B,), {}), ("sum", (NONE,), {"axis": 0}), ("mean", (U16,), {}),
    *[(name, (x,), keywords) for name in ("argmax", "argmin") for x, keywords in (
        (X, {}), (I8, {"axis": 1}), (X, {"axis": -1, "keepdims": True}), (X, {"keepdims": True}),
    )],
    ("cumsum", (X,), {"axis": 1}), ("cumsum", (I8,), {}),
    ("matmul", (X, X.transpose(0, 2, 1)), {}), ("matmul", (X[0], X[0, 0]), {}), ("matmul", (X[0, 0], X[0, 0]), {}),
    ("matmul", (I8[0].astype(np.int32), I8[0].T.astype(np.int64)), {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with default_server() as address:
        yield address


def expected(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    with np.errstate(invalid="ignore"):
        return getattr(np, name)(*arguments, **keywords)


def test_the_blocking_client_answers_as_numpy(url: str) -> None:
    with Client(url) as tp:
        for name, arguments, keywords in CASES:
            found, wanted = getattr(tp, name)(*arguments, **keywords), expected(name, arguments, keywords)
            said = f"{name}{arguments} {keywords}"
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), said
            near = 2e-3 if found.dtype == np.float16 else 2e-6
            np.testing.assert_allclose(found, wanted, rtol=near, atol=1e-6, err_msg=said)


def test_both_clients_give_the_same(url: str) -> None:
    async def through_asyncio() -> list[Any]:
        async with AsyncClient(url) as tp:
            return [await getattr(tp, name)(*arguments, **keywords) for name, arguments, keywords in CASES]

    waiting = asyncio.run(through_asyncio())
    with Client(url) as tp:
        for (name, arguments, keywords), answer in zip(CASES, waiting, strict=True):
            np.testing.assert_array_equal(getattr(tp, name)(*arguments, **keywords), answer)


def test_what_numpy_has_under_another_name(url: str) -> None:
    with Client(url) as tp:
        for key in (
            np.s_[1:], np.s_[:, ::-1], np.s_[..., -2:], np.s_[::2, ..., 3:0:-2], np.s_[:, 5:1:-1, :], np.s_[:0],
            np.s_[...],
        ):  # fmt: skip
            np.testing.assert_array_equal(tp.slice(X, key), X[key], err_msg=str(key))
        for where in (3, [1], [1, 2]):
            for ours, theirs in zip(tp.split(X, where, 1), np.split(X, where, 1), strict=True):
                np.testing.assert_array_equal(ours, theirs)
        powers = np.exp(X - X.max(1, keepdims=True))
        np.testing.assert_allclose(tp.softmax(X, axis=1), powers / powers.sum(1, keepdims=True), rtol=1e-6)
        # what `calls/unknown_names.py` says of NumPy's functions that are no methods
        values, places = tp.topk(X, X.shape[-1], largest=False)
        np.testing.assert_array_equal(values, np.sort(X))
        np.testing.assert_array_equal(places, np.argsort(X, kind="stable"))
        np.testing.assert_array_equal(tp.resample(X, scales=2, axes=1, mode="nearest"), np.repeat(X, 2, 1))
        np.testing.assert_array_equal(tp.concatenate([x[np.newaxis] for x in (X, -X)]), np.stack([X, -X]))
        np.testing.assert_array_equal(tp.slice(X, np.s_[::-1]), np.flip(X, 0))
        np.testing.assert_array_equal(tp.onnx("Pow", X, np.float32(2)), np.power(X, 2))
        values, places = tp.topk(X, 2, axis=1)
        np.testing.assert_array_equal(places, np.argsort(-X, axis=1, kind="stable")[:, :2])
        np.testing.assert_array_equal(values, np.take_along_axis(X, places, 1))
        out = np.empty((2, 4), np.float32)
        assert tp.sum(X, 1, out=out, backend="numpy") is out
        np.testing.assert_allclose(out, X.sum(1), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("take", (X, [3], 1), "index 3 is outside of the axis, which has 3 elements: -3 to 2"),
        ("take", (X, [[0, 1], [-4, 9]], 1), "index -4 is outside"),
        ("take", (NONE, [0], 0), "index 0 is outside of the axis, which has 0 elements"),
        ("sum", ([[1, 2], [3]],), "x must be an array or what NumPy can make one of.*list"),
        ("sum", (np.array([None]),), "x is an array of objects that are not texts"),
        ("concatenate", ([X, "text"],), r"arrays\[1\] must be an array"),
        ("take", (X, [0.5], 1), "must be integers"),
        ("slice", (X, 1), "write i:i"),
        ("slice", (X, np.s_[:, :, :, :]), "4 slices"),
        ("split", (X, 5, 1), "3 elements cannot be split into 5 equal parts"),
        ("split", (X, [2, 1], 1), "make no parts"),
    ],
)
def test_arguments_that_are_refused(name: str, arguments: Any, words: str) -> None:
    with Client("http://127.0.0.1:9") as tp, pytest.raises(InvalidParameter, match=words):
        getattr(tp, name)(*arguments)


@pytest.mark.parametrize("client", [Client("localhost:1"), AsyncClient("localhost:1")])
def test_type_errors_name_the_method_as_it_was_written(client: Any) -> None:
    for call, said in (
        (lambda: client.sum(X, dtype=float), r"^sum\(\) got an unexpected keyword argument 'dtype'$"),
        (lambda: client.argmax(X, dtype=float), r"^argmax\(\) got an unexpected keyword argument 'dtype'$"),
        (lambda: client.slice(X, 0, 1), r"^slice\(\) takes 3 positional arguments but 4 were given$"),
    ):
        with pytest.raises(TypeError, match=said):
            call()


def test_every_call_is_tried() -> None:
    names = {name for name, _ in inspect.getmembers(NumpyCalls, inspect.isfunction) if not name.startswith("_")}
    assert names == {name for name, _, _ in CASES} | {"slice", "split", "softmax", "topk"}


MASKED = np.ma.array([1.0, 2.0, 9.0], mask=[False, False, True])
INDICES = np.ma.array([0, 1, 2], mask=[False, False, True])


@pytest.mark.parametrize(
    ("name", "arguments", "which"),
    [
        ("concatenate", ([X[0, 0], MASKED],), "arrays[1]"), ("sum", ([MASKED, MASKED],), "x"),
        ("add", (1, MASKED), "x2"), ("where", (MASKED > 1, 1, 2), "condition"), ("where", ([True], 1.5, MASKED), "y"),
        ("take", (X, INDICES), "indices"), ("astype", (MASKED, np.int8), "x"),
        *[(name, (MASKED, *arguments), "x") for name, arguments in (
            ("sum", ()), ("mean", ()), ("max", ()), ("argmax", ()), ("cumsum", ()), ("softmax", ()), ("topk", (1,)),
            ("clip", (0, 1)), ("transpose", ()), ("broadcast_to", ((2, 3),)), ("slice", (np.s_[1:],)), ("pad", (1,)),
            ("split", (3,)), ("take", ([0],)), ("tile", (2,)),
        )],
    ],
)  # fmt: skip
def test_masks_are_refused_and_not_forgotten(name: str, arguments: tuple[Any, ...], which: str) -> None:
    with Client("http://127.0.0.1:9") as tp, pytest.raises(InvalidParameter, match="fill it first") as refused:
        getattr(tp, name)(*arguments)

    assert refused.value.detail.startswith(f"{which} is a masked array")


@pytest.mark.parametrize(
    ("mode", "wanted"), [("P", "RGB"), ("CMYK", "RGB"), ("YCbCr", "RGB"), ("PA", "RGBA"), ("RGBa", "RGBA")]
)
def test_pictures_whose_numbers_are_not_colours_are_refused(mode: str, wanted: str) -> None:
    picture = Image.new(mode, (2, 2))
    with Client("http://127.0.0.1:9") as tp:
        for name, arguments in (("resample", {"scales": 2, "axes": (0, 1)}), ("tile", {"repeats": 2}), ("sum", {})):
            with pytest.raises(InvalidParameter, match=rf"mode {mode}, .*x\.convert\('{wanted}'\)"):
                getattr(tp, name)(picture, **arguments)

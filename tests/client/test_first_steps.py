"""The first things that people try, against a server: each gives what NumPy gives, or says what to write."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from PIL import Image
from tests.support.http_app import NPY, npy_array, npy_bytes, serving

import tensorpost
from tensorpost import Client, Timeout
from tensorpost.calls.array_like import as_array
from tensorpost.calls.caller_arrays import onnx_node
from tensorpost.onnx import package, schemas


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(backend="numpy") as server:
        yield server.url


@pytest.mark.parametrize("dtype", ["float64", "bool", "bfloat16", "complex64", "int64"])
@pytest.mark.parametrize("repeats", [(2, 2), 2])
def test_tile_takes_what_numpy_makes(url: str, dtype: str, repeats: Any):
    x = np.ones((2, 2), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    with Client(url.removeprefix("http://")) as tp:
        np.testing.assert_array_equal(tp.tile(x, repeats), np.tile(x, repeats), strict=True)


def test_tile_and_resample_take_what_is_like_an_array(url: str):
    picture = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    with Client(url) as tp:
        np.testing.assert_array_equal(tp.tile([1, 2], 2), [1, 2, 1, 2])
        assert tp.tile(3.5, ()).shape == ()
        np.testing.assert_array_equal(tp.tile(picture, (2, 1)), np.tile(np.asarray(picture), (2, 1)), strict=True)
        twice = np.asarray(picture).repeat(2, 0).repeat(2, 1)
        np.testing.assert_array_equal(tp.resample(picture, scales=(2, 2), mode="NEAREST"), twice)  # pyright: ignore[reportArgumentType] # in upper case
        np.testing.assert_array_equal(tp.onnx("Tile", [[1.5]], [2, 1]), [[1.5], [1.5]])
        out = np.empty((), np.float32)
        assert tp.tile(np.float32(3), (), out=out) is out
        assert out == 3


def test_words_may_be_in_either_case_and_are_the_same_everywhere(url: str):
    body = npy_bytes(np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4))
    answers = [
        httpx.post(f"{url}/v1/{path}", content=body, headers=NPY)
        for path in (
            "operators/resample?scales=1,1,1,2&interpolation_mode=LINEAR",
            "operators/resample?scales=1,1,1,2&interpolation_mode=linear",
            "onnx/Resize?scales=1,1,1,2&mode=LINEAR",
            "operators/resample?scales=1,1,1,2&interpolation_mode=nearest",
            "onnx/Resize?scales=1,1,1,2&mode=Nearest&nearest_mode=ROUND_PREFER_CEIL",
        )
    ]
    found = [npy_array(answer.content).ravel().tolist() for answer in answers]
    assert found[0] == found[1] == found[2] == [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]
    assert found[3] == found[4] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_package_says_its_version_and_only_its_names():
    assert tensorpost.__version__[0].isdigit()
    assert {name for name in dir(tensorpost) if not name.startswith("__")} == set(tensorpost.__all__)


def test_timeout_is_called_as_httpx_s_is():
    assert Timeout(5) == Timeout(connect=5, read=5, write=5, pool=5) == Timeout.from_value(5)
    assert Timeout(90, connect=1) == Timeout(connect=1, read=90, write=90, pool=90)
    assert Timeout(None, total=3) == Timeout(read=None, write=None, pool=None, total=3)


class Tensor:
    """What PyTorch's tensors do, as far as it matters here: they refuse NumPy while they have a gradient."""

    def __init__(self, array: np.ndarray, dtype: str, *, plain: bool = False) -> None:
        self.array, self.dtype, self.plain = array, f"torch.{dtype}", plain

    def detach(self) -> Tensor:
        return Tensor(self.array, self.dtype.removeprefix("torch."), plain=True)

    def cpu(self) -> Tensor:
        return self

    def view(self, dtype: str) -> Tensor:
        return Tensor(self.array, dtype, plain=self.plain)

    def numpy(self) -> np.ndarray:
        if not self.plain or self.dtype == "torch.bfloat16":
            raise RuntimeError("no array of this")
        return self.array


Tensor.__module__ = "torch"


def test_tensors_of_pytorch_are_detached_and_bfloat16_keeps_its_bits(monkeypatch: pytest.MonkeyPatch):
    module: Any = ModuleType("torch")
    module.int16 = "int16"
    monkeypatch.setitem(sys.modules, "torch", module)
    assert as_array("x", Tensor(np.array([1, 2], np.float32), "float32")).tolist() == [1, 2]
    bits = np.array([0x3F80, 0x4000], np.int16)
    found = as_array("x", Tensor(bits, "bfloat16"))
    assert (found.dtype.name, found.astype(float).tolist()) == ("bfloat16", [1, 2])


def test_what_only_has_array_is_an_array():
    like = SimpleNamespace()
    cls = type("Like", (), {"__array__": lambda *_, **__: np.arange(3)})
    assert as_array("x", cls()).tolist() == [0, 1, 2]
    with pytest.raises(tensorpost.problems.InvalidParameter, match="not SimpleNamespace"):
        as_array("x", like)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("relu", 'the ONNX operator is onnx("Relu", ...)'),
        ("join", "the method is concatenate"),
        ("resize", "the method is resample"),
        ("Tile", "did you mean tile?"),
        ("softmx", "did you mean softmax?"),
        ("power", 'the ONNX operator is onnx("Pow", ...)'),
        ("argsort", "topk(x, x.shape[-1], largest=False)"),
        ("flip", "slice(x, np.s_[::-1])"),
        ("stack", "give each array one more axis, as in x[np.newaxis], and concatenate"),
        ("repeat", "numpy.repeat repeats each element"),
        ("conv", "DirectML's CONVOLUTION is run with a descriptor"),
    ],
)
def test_a_method_that_is_not_there_says_which_one_is(name: str, said: str):
    for client in (Client("localhost:8000"), tensorpost.AsyncClient("localhost:8000")):
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute '{name}'; {said}")):
            getattr(client, name)
        assert not hasattr(client, "_repr_png_")


def test_a_name_that_the_package_has_not_says_where_it_is():
    for name, said in {
        "tile": "it is a method of a client: Client().tile(...)",
        "relu": 'the ONNX operator is onnx("Relu", ...), of a client',
        "Cliet": "did you mean Client?",
        "ReluOperatorDesc": "the other descriptors are in tensorpost.descriptors",
    }.items():
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute '{name}'; {said}")):
            getattr(tensorpost, name)
    with pytest.raises(AttributeError, match=r"no attribute '_private'\Z"):
        tensorpost._private  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]
    assert tensorpost.AsyncClient.__name__ in dir(tensorpost)


ONES = np.ones((2, 2), np.float32)
TEXT: Any = "a"


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "said"),
    [
        ("Sum", ([ONES, ONES],), {}, 'Sum takes its inputs one after another: onnx("Sum", a, b); for one stacked'),
        ("Concat", ((ONES, ONES),), {"axis": 0}, 'onnx("Concat", a, b)'),
        ("Relu", ([ONES, ONES],), {}, "Relu takes one array, not a list of them"),
        ("Add", (ONES.astype(np.int8), 300), {}, "B is 300, which int8, the type of the array beside it, cannot hold"),
        ("Add", (ONES, np.int64(1)), {}, "B is of int64, but the tensors before it are of float (float32)"),
        ("Cast", (ONES,), {"to": "x"}, "to is 'x'; it must be an ONNX type (float32, float16, "),
        ("Softmx", (ONES,), {}, "there is no ONNX operator 'Softmx' here; did you mean 'Softmax'?"),
        ("Conv", (ONES, ONES), {}, "Conv, and it needs the extra 'onnx' on the server, and here unless"),
        ("MaxPool", (ONES,), {}, "DirectML's own MAX_POOLING, for run, needs no extra"),
    ],
)
def test_an_onnx_call_that_is_wrong_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch, op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], said: str
):
    monkeypatch.setitem(sys.modules, "onnx.defs", None)  # as where the package onnx is not installed
    monkeypatch.setattr(package, "_calls", package.PackageCalls())  # the server of these tests has others
    schemas._of_package.cache_clear()  # pyright: ignore[reportPrivateUsage] # what it remembers is of the package
    kind = tensorpost.problems.NoBackend if "needs" in said else tensorpost.problems.InvalidRequest
    with pytest.raises(kind, match=re.escape(said)) as refused:
        onnx_node(op_type, inputs, 28, None, attributes)
    assert len(str(refused.value)) < 300


def test_numbers_and_type_names_are_read_as_numpy_reads_them(url: str):
    with Client(url) as tp:
        for x in (ONES, ONES.astype(np.int8)):
            np.testing.assert_array_equal(tp.onnx("Add", x, 1), x + 1, strict=True)
        np.testing.assert_array_equal(tp.onnx("Sub", 2.5, ONES), 2.5 - ONES, strict=True)
        for kind in (np.float16, np.dtype("f2"), "half", "float16"):
            np.testing.assert_array_equal(tp.onnx("Cast", ONES, to=kind), ONES.astype("f2"), strict=True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda url: Client(url).resample(ONES, scales=TEXT),
            "scales is 'a', a text; it must be a number or a sequence",
        ),
        (lambda url: Client(url).tile([10**30], 2), "x holds whole numbers that do not fit 64 bits"),
        (lambda url: Client(url).onnx("Relu", ONES, opset=TEXT), "opset is 'a'; Relu means different things at"),
        (lambda url: Client(f"{url}/v1"), "must be the server's address without /v1"),
        (lambda url: Client(url.replace("http:", "https:")).tile(ONES, 2), "it serves plain HTTP; write http://"),
    ],
)
def test_other_mistakes_say_what_to_write(url: str, call: Callable[[str], Any], said: str):
    with pytest.raises(tensorpost.TensorpostError, match=re.escape(said)):
        call(url)


def test_a_client_without_a_url_asks_the_environment(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TENSORPOST_URL", raising=False)
    assert "http://127.0.0.1:8000 " in repr(Client())
    monkeypatch.setenv("TENSORPOST_URL", url.removeprefix("http://"))
    with Client() as tp:
        assert tp.ready()
    monkeypatch.setenv("TENSORPOST_URL", "ftp://x")
    with pytest.raises(tensorpost.problems.InvalidParameter, match="the URL is the variable TENSORPOST_URL's"):
        tensorpost.AsyncClient()

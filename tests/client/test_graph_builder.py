"""Graphs that `GraphBuilder` writes, computed by a real server, against NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from tests.client.test_numpy_calls import CASES, X, expected
from tests.support.live_server import default_server

from tensorpost import Client, GraphBuilder
from tensorpost.problems import InvalidDescriptor, InvalidParameter, UnknownOperator
from tensorpost.resampling import Antialias

WRONG_SHAPE: Any = (1.5,)
ARRAY: Any = X
PHOTO = np.random.default_rng(4).integers(0, 255, (1, 6, 8, 3), np.uint8)


@pytest.fixture(scope="module")
def tp() -> Iterator[Client]:
    with default_server() as url, Client(url) as client:
        yield client


def as_inputs(g: GraphBuilder, value: Any, sent: dict[str, np.ndarray[Any, Any]]) -> Any:
    """The arguments of a call, with an input of the graph for each array."""
    if isinstance(value, np.ndarray):
        name = f"x{len(sent)}"
        sent[name] = value
        return g.input(name, value.dtype, value.shape)
    return [as_inputs(g, each, sent) for each in value] if isinstance(value, list) else value


def test_every_call_in_numpys_words_is_a_node_that_answers_as_numpy(tp: Client) -> None:
    for name, arguments, keywords in CASES:
        g, sent = GraphBuilder(), dict[str, np.ndarray[Any, Any]]()
        if name == "take":  # whose indices are a list of numbers
            first = as_inputs(g, arguments[0], sent)
            made = getattr(g, name)(first, *arguments[1:], **keywords)
        else:
            made = getattr(g, name)(*[as_inputs(g, each, sent) for each in arguments], **keywords)
        wanted, said = expected(name, arguments, keywords), f"{name}{arguments} {keywords}"
        assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape), said
        found = tp.run_graph(g.build(y=made), sent)["y"]
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), said
        near = 2e-3 if found.dtype == np.float16 else 2e-6
        np.testing.assert_allclose(found, wanted, rtol=near, atol=1e-6, err_msg=said)


def test_operators_of_python_are_nodes(tp: Client) -> None:
    def computed(x: Any, y: Any) -> Any:
        z = (2 - x) * 3 + y / np.float32(4) - 1
        z = -z[1:, ..., ::-1] @ np.full((4, 2), 0.5, np.float32)
        return (1 / (z.clip(-2, 2) + 5) + np.array([1, 2], np.float32) - z.sum(axis=1, keepdims=True)).transpose(
            2, 0, 1
        )

    g = GraphBuilder()
    x, y = g.input("x", np.float32, X.shape), g.input("y", np.float32, (4,))
    made = computed(x, y)
    row = np.arange(4, dtype=np.float32)
    wanted = computed(X, row)

    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(tp.run_graph(g.build(z=made), {"x": X, "y": row})["z"], wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_numbers_and_lists_beside_a_tensor_get_its_type(tp: Client, dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    g = GraphBuilder()
    t = g.input("x", dtype, [2, 3])
    made = {
        "a": t - [1, 2, 3], "b": g.add([1, 2, 3], t), "c": t * [2, 2, 2], "d": t + 1,
        "f": g.concatenate([t, [[1, 2, 3]]]),
    }  # fmt: skip
    if dtype != "int32":
        made |= {"g": t - [0.5, 1.5, 2.5], "h": t / [2.0, 4.0, 8.0]}
    found = tp.run_graph(g.build(**made), {"x": x})
    assert {name: array.dtype.name for name, array in found.items()} == dict.fromkeys(made, dtype)
    np.testing.assert_array_equal(found["a"], x - np.array([1, 2, 3], dtype))
    np.testing.assert_array_equal(found["f"], np.concatenate([x, np.array([[1, 2, 3]], dtype)]))


def test_reductions_reshapes_and_axes_in_any_notation(tp: Client) -> None:
    g = GraphBuilder()
    x = g.input("x", np.float32, X.shape)
    outputs = {
        "a": x.reshape(4, -1), "b": x.reshape((6, 4)), "c": x.transpose(), "d": x.transpose((1, 0, 2)), "e": x.mean(1),
        "f": x.max((0, 2)), "g": x.min(), "h": x.astype(np.float16), "i": g.tile(x, 2), "j": g.tile(x, (2, 1, 1, 3)),
    }  # fmt: skip
    wanted = {
        "a": X.reshape(4, -1), "b": X.reshape(6, 4), "c": X.transpose(), "d": X.transpose(1, 0, 2), "e": X.mean(1),
        "f": X.max((0, 2)), "g": X.min(), "h": X.astype(np.float16), "i": np.tile(X, 2), "j": np.tile(X, (2, 1, 1, 3)),
    }  # fmt: skip
    found = tp.run_graph(g.build(**outputs), {"x": X})

    assert [*found] == [*wanted]
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=1e-6, err_msg=name)


def test_sizes_may_be_names(tp: Client) -> None:
    g = GraphBuilder()
    photo = g.input("photo", np.uint8, (1, "h", "w", 3))
    flipped = photo[:, :, ::-1]
    smaller = photo[:, 1:-1]
    chw = (flipped.astype(np.float32) - 100).transpose(0, 3, 1, 2).named("chw")
    graph = g.build(image=chw, joined=g.concatenate([photo, photo], axis=2), smaller=smaller)
    assert flipped.shape == (1, "h", "w", 3)
    assert smaller.shape == (1, None, "w", 3)
    assert chw.shape == (1, 3, "h", "w")
    assert graph["inputs"] == {"photo": {"data_type": "uint8", "sizes": [1, "h", "w", 3]}}

    for photo_sent in (PHOTO, PHOTO[:, :5, 2:]):
        found = tp.run_graph(json.loads(json.dumps(graph)), {"photo": photo_sent})
        np.testing.assert_array_equal(
            found["image"], (photo_sent[:, :, ::-1].astype(np.float32) - 100).transpose(0, 3, 1, 2)
        )
        np.testing.assert_array_equal(found["joined"], np.concatenate([photo_sent] * 2, 2))
        np.testing.assert_array_equal(found["smaller"], photo_sent[:, 1:-1])


@pytest.mark.parametrize(("antialias", "kind"), [(True, "Resize"), ("directml", "RESAMPLE3")])
@pytest.mark.parametrize("lengths", [{"sizes": (3, 2)}, {"scales": (0.7, 0.3)}])
def test_resample_filters_as_the_client_does(
    tp: Client, antialias: Antialias, kind: str, lengths: dict[str, Any]
) -> None:
    array = np.random.default_rng(0).random((1, 1, 5, 8)).astype(np.float32)
    g = GraphBuilder()
    y = g.resample(g.input("x", np.float32, array.shape), **lengths, axes=(2, 3), antialias=antialias)
    graph = g.build(y=y)
    assert kind in json.dumps(graph)
    found = tp.run_graph(graph, {"x": array})["y"]
    np.testing.assert_array_equal(found, tp.resample(array, **lengths, axes=(2, 3), antialias=antialias))


def test_directml_operators_and_onnx_nodes_mix(tp: Client) -> None:
    g = GraphBuilder()
    x = g.input("x", np.float32, (1, 1, 4, 6))
    small = g.resample(x, scales=0.5, axes=(2, 3), mode="nearest")
    bounded = g.directml("ELEMENT_WISE_CLIP", small, Min=0, max=2)
    joined = g.directml("JOIN", [bounded, small], Axis=1)
    values, places = g.topk(joined.reshape(-1), 2)
    far = g.resample(g.input("v", np.float32, (2, 1, 1, 3, 3, 2)), sizes=(6, 6), axes=(3, 4), mode="nearest")
    graph = g.build(joined=joined, values=values, places=places, far=far)
    array = np.arange(-12, 12, dtype=np.float32).reshape(1, 1, 4, 6)
    volume = np.arange(36, dtype=np.float32).reshape(2, 1, 1, 3, 3, 2)
    found = tp.run_graph(graph, {"x": array, "v": volume})
    halves = array[:, :, 1::2, 1::2]  # x = (o + 1/2) / (1/2) - 1/2 = 2 o + 1/2, and halves go up
    both = np.concatenate([halves.clip(0, 2), halves], 1)

    assert (joined.shape, far.shape) == ((1, 2, 2, 3), (2, 1, 1, 6, 6, 2))
    np.testing.assert_array_equal(found["joined"], both)
    np.testing.assert_array_equal(found["values"], np.sort(both.reshape(-1))[::-1][:2])
    np.testing.assert_array_equal(found["places"], np.argsort(-both.reshape(-1), kind="stable")[:2])
    np.testing.assert_array_equal(found["far"], volume.repeat(2, 3).repeat(2, 4))


def test_what_no_output_needs_is_left_out() -> None:
    g = GraphBuilder()
    x, unread = g.input("x", np.float32, (2,)), g.input("unread", np.float32, (2,))
    y = x * 2
    _ = (unread * 3).named("other")
    graph = g.build(y=y)

    assert [*graph["inputs"]] == ["x"]
    assert [*graph["constants"]] == ["constant"]
    assert [node["name"] for node in graph["nodes"]] == ["mul"]
    assert graph["outputs"] == {"y": "mul"}


def test_names_are_given_and_counted() -> None:
    g = GraphBuilder()
    x = g.input("add", np.float32, (2,))
    first, second = x + x, x + x
    assert [first.reference, second.reference] == ["add_1", "add_2"]
    assert first.named("first") is first
    assert g.build(y=first + second)["nodes"][2]["inputs"] == {"A": "first", "B": "add_2"}
    assert repr(second) == "<GraphTensor 'add_2', float32, (2,)>"


class Lines(NamedTuple):
    """A graph in which a line is wrong: of a photograph with named sizes, and of a (2, 3)."""

    g: GraphBuilder
    photo: Any
    x: Any


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Lines], object]]] = {
    "wrong field": (
        InvalidDescriptor, "'Minn'; did you mean 'Min'",
        lambda c: c.g.directml("ELEMENT_WISE_CLIP", c.x, Minn=1),
    ),
    "wrong node": (
        InvalidDescriptor, "transpose.*h = 1009.*perm must list",
        lambda c: c.g.onnx("Transpose", c.photo, perm=[0]),
    ),
    "no operator": (
        UnknownOperator, "Resizes",
        lambda c: c.g.onnx("Resizes", c.x),
    ),
    "no type": (
        UnknownOperator, "RESAMPEL",
        lambda c: c.g.directml("RESAMPEL", c.x),
    ),
    "too many": (
        InvalidParameter, "Neg-13 has 1 input",
        lambda c: c.g.onnx("Neg", c.x, c.x),
    ),
    "too many of DirectML": (
        InvalidParameter, "has 1 input",
        lambda c: c.g.directml("TILE", c.x, c.x),
    ),
    "twice": (
        InvalidParameter, "by position and by name",
        lambda c: c.g.onnx("Tile", c.x, [1, 1], repeats=[1, 2]),
    ),
    "shapes": (
        InvalidDescriptor, "cannot be broadcast",
        lambda c: c.x + c.photo[:, :5],
    ),
    "option": (
        InvalidParameter, "out belongs to the call",
        lambda c: c.g.add(c.x, c.x, out=None),
    ),
    "taken": (
        InvalidParameter, "is used twice",
        lambda c: c.g.input("x", "float32", (1,)),
    ),
    "taken by a node": (
        InvalidParameter, "is used twice",
        lambda c: (c.x + c.x).named("x"),
    ),
    "no name": (
        InvalidParameter, "no dot",
        lambda c: (c.x + c.x).named("a.b"),
    ),
    "input renamed": (
        InvalidParameter, "is an input or a constant",
        lambda c: c.x.named("y"),
    ),
    "type": (
        InvalidParameter, "numbers and booleans",
        lambda c: c.g.input("t", "U3", (1,)),
    ),
    "size": (
        InvalidParameter, "a size is a number or a name",
        lambda c: c.g.input("t", "float32", WRONG_SHAPE),
    ),
    "names": (
        InvalidParameter, "at most 64 names .* write numbers",
        lambda c: c.g.input("t", "float32", [f"n{at}" for at in range(65)]),
    ),
    "another graph": (
        InvalidParameter, "of another graph",
        lambda c: GraphBuilder().onnx("Neg", c.x),
    ),
    "elements": (
        InvalidParameter, "no elements before it is run",
        lambda c: np.asarray(c.x),
    ),
    "truth": (
        InvalidParameter, "no elements before it is run",
        lambda c: bool(c.x),
    ),
    "iteration": (
        TypeError, "not iterable",
        lambda c: [*c.x],
    ),
    "nothing": (
        InvalidParameter, "needs an output",
        lambda c: c.g.build(),
    ),
    "input as output": (
        InvalidParameter, "the result of a node of this graph",
        lambda c: c.g.build(y=c.x),
    ),
    "array as output": (
        InvalidParameter, "the result of a node of this graph",
        lambda c: c.g.build(y=ARRAY),
    ),
    "named sizes": (
        InvalidParameter, 'onnx."Resize", x, scales=.*, axes=.*, mode="linear".,',
        lambda c: c.g.resample(c.photo, scales=2, axes=1),
    ),
    "named sizes and a filter": (
        InvalidParameter, 'onnx."Resize", x, sizes=.*, antialias=1, exclude_outside=1',
        lambda c: c.g.resample(c.photo, sizes=2, axes=1, antialias=True),
    ),
    "length": (
        InvalidParameter, "axis 1 of x has no number",
        lambda c: c.g.split(c.photo, 2, axis=1),
    ),
    "no method": (
        AttributeError, "the method is resample",
        lambda c: cast("Any", c.g).resize(c.x),
    ),
    "sent": (
        InvalidParameter, "no elements before it is run",
        lambda c: Client("localhost:1").add(c.x, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_line_is_refused_where_it_stands(name: str) -> None:
    kind, words, line = REFUSED[name]
    g = GraphBuilder()
    lines = Lines(g, g.input("photo", np.uint8, (1, "h", "w", 3)), g.input("x", np.float32, (2, 3)))
    with pytest.raises(kind, match=words):
        line(lines)

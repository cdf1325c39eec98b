"""Models whose sizes depend on elements, with inputs that the server holds, and with pictures."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx.parser import parse_model
from PIL import Image
from tests.support.http_app import AppClient, assert_problem, http_app, npy_array, npy_bytes
from typer.testing import CliRunner

import onnx
from tensorpost import AsyncClient, Client
from tensorpost.calls.model_calls import SentModel, model_request
from tensorpost.command_line.cli import app as command_line
from tensorpost.descriptors import NEWEST
from tensorpost.onnx.model_reader import read_model
from tensorpost.problems import InvalidParameter
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server.http.wires.graph_sources import StoredModel

X = np.array([[1, -2, 0], [0, 0, 4]], np.float32)
SHIFT = np.array([10, 20])
PLACES = np.argwhere(X) + SHIFT

HEAD = '<ir_version: 8, opset_import: ["": 17]> g'
SHIFTED = f"""{HEAD} (float[n,m] x, int64[k] shift) => (int64[a,b] y) {{
  nz = NonZero(x) t = Transpose(nz) y = Add(t, shift) }}"""
"""The places of what is not 0, and a number for each coordinate, which only the last part reads."""

RESHAPED = f"""{HEAD} (float[n,m] x, int64[r] shape) => (int64[a,b] y) {{
  line = Reshape(x, shape) nz = NonZero(line) y = Transpose(nz) }}"""

NPY = {"accept": "application/x-npy"}


def picture_model(of_type: str, sizes: str) -> bytes:
    text = f"{HEAD} ({of_type}[{sizes}] x) => (int64[a,b] y) {{ nz = NonZero(x) y = Transpose(nz) }}"
    return parse_model(text).SerializeToString()


def shifted() -> bytes:
    return parse_model(SHIFTED).SerializeToString()


@pytest.fixture(name="tp")
def a_client(server_url: str) -> Iterator[Client]:
    with Client(server_url) as client:
        yield client


@pytest.fixture(name="app")
def an_app() -> Iterator[AppClient]:
    with http_app() as client:
        yield client


def hold(app: AppClient, name: str, array: NDArray[Any]) -> None:
    content = npy_bytes(array, str(array.dtype))
    answer = app.request("PUT", f"/v1/tensors/{name}?replace=true", content=content,
                         headers={"content-type": "application/x-npy"})  # fmt: skip
    assert answer.status_code in (200, 201), answer.text


# ---- what decides, and what it is called -----------------------------------------------------------------------------


def test_computed_floats_decide(tp: Client) -> None:
    model = f"""{HEAD} (float k) => (float[n] y) <float zero = {{0}}, float step = {{0.5}}> {{
      limit = Abs(k) y = Range(zero, limit, step) }}"""
    found = tp.run_model(parse_model(model).SerializeToString(), {"k": np.float32(-2)})["y"]
    np.testing.assert_array_equal(found, np.array([0, 0.5, 1, 1.5], np.float32), strict=True)


@pytest.mark.parametrize(("count", "stacked"), [(0, 0), (-2, 2)])
def test_a_loop_of_no_iterations_stacks_nothing(tp: Client, count: int, stacked: int) -> None:
    model = f"""{HEAD} (int64 n, float[2,3] x) => (float[2,3] w, float[k,2,3] all) {{
      m = Abs(n)
      w, all = Loop(m, , x) <
        body = step (int64 i, bool going, float[2,3] v) => (bool goes, float[2,3] next, float[2,3] row) {{
        goes = Identity(going) next = Identity(v) row = Identity(v) }}> }}"""
    found = tp.run_model(parse_model(model).SerializeToString(), {"n": np.array(count), "x": X})
    assert (found["w"].shape, found["all"].shape) == ((2, 3), (stacked, 2, 3))


def test_an_output_may_have_a_comma_in_its_name(tp: Client) -> None:
    model = parse_model(f"{HEAD} (float[n,m] x) => (int64[a,b] y) {{ y = NonZero(x) }}")
    model.graph.node[0].output[0] = model.graph.output[0].name = "y,z"
    content = model.SerializeToString()
    np.testing.assert_array_equal(tp.run_model(content, {"x": X})["y,z"], np.argwhere(X).T)
    with pytest.raises(
        InvalidParameter, match="has a comma in its name, which a request cannot carry; leave outputs out"
    ):
        tp.run_model(content, {"x": X}, outputs=["y,z"])


def test_an_input_cannot_have_the_name_of_the_model_s_part(tp: Client) -> None:
    model = parse_model(f"{HEAD} (float[n,m] model) => (int64[a,b] y) {{ y = NonZero(model) }}").SerializeToString()
    with pytest.raises(InvalidParameter, match="'model' has the name of the part of a request that the model is"):
        tp.run_model(model, {"model": X})


# ---- held tensors, by the SDK ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [["x"], ["shift"], ["x", "shift"]])
def test_inputs_may_be_held(tp: Client, held: list[str]) -> None:
    inputs: dict[str, Any] = {"x": X, "shift": SHIFT}
    inputs |= {name: tp.put(inputs[name]) for name in held}
    np.testing.assert_array_equal(tp.run_model(shifted(), inputs)["y"], PLACES, strict=True)


def test_a_part_of_a_held_tensor_travels_as_its_name(tp: Client) -> None:
    volume = np.zeros((3, 4, 3), np.float32)
    volume[1, ::2] = X
    part = tp.put(volume).part(np.s_[1]).part(np.s_[::2])
    call = model_request(shifted(), {"x": part, "shift": SHIFT}, None)
    assert isinstance(call, SentModel)
    assert call.query == {"x": f"@{part.name}[{part.to_document()['box']}]"}
    assert b'name="x"' not in b"".join(call.parts())
    np.testing.assert_array_equal(tp.run_model(shifted(), {"x": part, "shift": SHIFT})["y"], PLACES, strict=True)


def test_outputs_of_held_inputs_are_kept(tp: Client) -> None:
    kept: Any = tp.run_model(shifted(), {"x": tp.put(X), "shift": SHIFT}, keep=True)["y"]
    np.testing.assert_array_equal(kept.get(), PLACES, strict=True)


def test_a_small_held_tensor_decides_a_size_of_the_first_part(tp: Client) -> None:
    inputs = {"x": tp.put(X), "shape": tp.put(np.array([3, 2]))}
    found = tp.run_model(parse_model(RESHAPED), inputs)["y"]
    np.testing.assert_array_equal(found, np.argwhere(X.reshape(3, 2)), strict=True)


def test_a_held_tensor_with_other_sizes_is_refused(tp: Client) -> None:
    turned = tp.put(X).reshape(3, 2)
    with pytest.raises(
        InvalidParameter, match=r"x is <HeldTensor .* other sizes than what the server holds.*held\.get"
    ):
        tp.run_model(shifted(), {"x": turned, "shift": SHIFT})


def test_a_held_input_with_the_name_of_a_parameter_is_refused(tp: Client) -> None:
    model = parse_model(SHIFTED.replace("shift", "rows"))
    with pytest.raises(InvalidParameter, match=r"'rows' has the name of a parameter of POST /v1/onnx.*held\.get"):
        tp.run_model(model, {"x": X, "rows": tp.put(SHIFT)})
    np.testing.assert_array_equal(tp.run_model(model, {"x": X, "rows": SHIFT})["y"], PLACES, strict=True)


def test_an_async_client_sends_the_name(server_url: str) -> None:
    async def call() -> Any:
        async with AsyncClient(server_url) as tp:
            return (await tp.run_model(shifted(), {"x": await tp.put(X), "shift": SHIFT}))["y"]

    np.testing.assert_array_equal(asyncio.run(call()), PLACES, strict=True)


def test_the_command_line_takes_the_name(tp: Client, server_url: str, tmp_path: Path) -> None:
    file, shift, y = (str(tmp_path / name) for name in ("m.onnx", "shift.npy", "y.npy"))
    onnx.save(parse_model(SHIFTED), file)
    np.save(shift, SHIFT)
    tp.put(X, "places-x", replace=True)
    arguments = ["model", "run", file, "x=@places-x", f"shift={shift}", "-o", f"y={y}", "--url", server_url]
    done = CliRunner().invoke(command_line, arguments)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(y), PLACES, strict=True)


# ---- held tensors, by HTTP -------------------------------------------------------------------------------------------


def test_a_query_names_held_inputs(app: AppClient) -> None:
    hold(app, "x", np.stack([X + 1, X]))
    hold(app, "shift", SHIFT)
    model, before = {"model": shifted()}, app.in_use()
    answer = app.request("POST", "/v1/onnx?x=@x[1]&shift=@shift", files=model, headers=NPY)
    np.testing.assert_array_equal(npy_array(answer.content), PLACES, strict=True)
    answer = app.request(
        "POST", "/v1/onnx?x=@x[1,:,::2]", files=model | {"shift": npy_bytes(SHIFT, "int64")}, headers=NPY
    )
    np.testing.assert_array_equal(npy_array(answer.content), np.argwhere(X[:, ::2]) + SHIFT, strict=True)
    assert app.in_use() == before


def test_held_inputs_that_are_wrong_are_refused(app: AppClient) -> None:
    hold(app, "x", X)
    hold(app, "shift", SHIFT)
    model, before = {"model": shifted()}, app.in_use()

    def detail(query: str, status: int, code: str, **parts: bytes) -> str:
        return assert_problem(app.request("POST", f"/v1/onnx?{query}", files=model | parts), status, code)["detail"]

    twice = detail("x=@x&shift=@shift", 400, "invalid-parameter", x=npy_bytes(X))
    assert twice == "the input 'x' is in the body, and refers to a held tensor as well"
    assert "'shift' is missing" in detail("x=@x", 400, "invalid-parameter")
    assert "no input 'X'" in detail("X=@x&shift=@shift", 400, "invalid-parameter")
    assert "'none'" in detail("x=@none&shift=@shift", 404, "tensor-not-found")
    assert "query parameter 'colour'" in detail("x=@x&shift=@shift&colour=red", 400, "invalid-parameter")
    assert app.in_use() == before


def test_rows_belong_to_the_held_tensors_that_they_were_made_of(app: AppClient) -> None:
    hold(app, "x", X)
    hold(app, "shift", SHIFT)
    head = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
    body, fields = head + shifted() + b"\r\n--b--\r\n", NPY | {"content-type": "multipart/form-data; boundary=b"}

    def rows(tag: str | None = None) -> Any:
        more = {} if tag is None else {"if-range": tag}
        return app.request("POST", "/v1/onnx?x=@x&shift=@shift&rows=1:", content=body, headers=fields | more)

    first = rows()
    np.testing.assert_array_equal(npy_array(first.content), PLACES[1:], strict=True)
    assert rows(first.headers["etag"]).status_code == 200
    hold(app, "shift", SHIFT + 1)
    assert_problem(rows(first.headers["etag"]), 412, "call-changed")


def test_versions_of_a_stored_model_take_held_inputs(app: AppClient) -> None:
    hold(app, "x", X)
    for version, text in (("1", SHIFTED), ("2", SHIFTED.replace("Add", "Sub"))):
        content, kind = parse_model(text).SerializeToString(), {"content-type": "application/onnx"}
        stored = app.request("PUT", f"/v1/graphs/places?version={version}", content=content, headers=kind)
        assert stored.status_code == 201, stored.text
    for query, expected in (("version=1&", PLACES), ("version=2&", PLACES - 2 * SHIFT), ("", PLACES - 2 * SHIFT)):
        answer = app.request("POST", f"/v1/graphs/places?{query}x=@x", files={"shift": npy_bytes(SHIFT, "int64")},
                             headers=NPY)  # fmt: skip
        assert answer.status_code == 200, answer.text
        np.testing.assert_array_equal(npy_array(answer.content), expected, strict=True)


# ---- pictures --------------------------------------------------------------------------------------------------------

COLOURS = np.random.default_rng(47).integers(0, 3, (4, 5, 3), np.uint8)


def png(pixels: NDArray[Any]) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("sizes", "pixels"), [("n,h,w,3", COLOURS[None]), ("1,4,5,3", COLOURS[None]), ("h,w,3", COLOURS)]
)
def test_a_picture_gets_the_axes_that_the_model_declares(
    tp: Client, app: AppClient, sizes: str, pixels: NDArray[Any]
) -> None:
    model = picture_model("uint8", sizes)
    answer = app.request("POST", "/v1/onnx", files={"model": model, "x": png(COLOURS)}, headers=NPY)
    assert answer.status_code == 200, answer.text
    np.testing.assert_array_equal(npy_array(answer.content), np.argwhere(pixels), strict=True)
    np.testing.assert_array_equal(tp.run_model(model, png(COLOURS))["y"], np.argwhere(pixels), strict=True)


def test_pictures_that_do_not_fit_are_explained(app: AppClient) -> None:
    def detail(model: bytes, pixels: NDArray[Any]) -> str:
        answer = app.request("POST", "/v1/onnx", files={"model": model, "x": png(pixels)})
        return assert_problem(answer, 400, "invalid-parameter")["detail"]

    assert "4 channels (RGBA)" in detail(picture_model("uint8", "n,h,w,3"), COLOURS[..., [0, 1, 2, 0]])
    assert "layout=NCHW" in detail(picture_model("float", "n,3,h,w"), COLOURS)


def test_the_rest_of_a_stored_model_keeps_the_constants_that_it_knows_by_identity() -> None:
    """A later array could have the identity of one that is gone, and would be sent as its bytes."""
    text = f"""{HEAD} (float[n,m] x) => (int64[a,b] y) <bool yes = {{1}}> {{
      chosen = If (yes) <
        then_branch = t () => (float[k] u) <float[3] w = {{1, 2, 3}}> {{ u = Mul(x, w) }},
        else_branch = e () => (float[k] u) {{ u = Neg(x) }}>
      nz = NonZero(chosen) y = Transpose(nz) }}"""
    source = StoredModel.of(read_model(parse_model(text).SerializeToString()))
    (constant,) = source.model.nodes[0].subgraphs["then_branch"].initializers.values()
    array, layout = weakref.ref(constant), Layout.row_major(data_type("float32"), (2, 3))
    rest = source.first_graph({"x": layout}, {}, None, NEWEST, 100).rest
    del source, constant
    gc.collect()
    assert rest is not None
    assert array() is not None

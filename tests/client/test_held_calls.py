"""Held tensors as users of the SDK see them, over a real server."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import Serving, eventually, serving
from tests.support.live_server import live_process

import tensorpost
from tensorpost import AsyncClient, BufferTensorDesc, Client, HeldTensor, TileOperatorDesc
from tensorpost.calls import held_calls
from tensorpost.problems import (
    InsufficientStorage,
    InvalidParameter,
    TensorExists,
    TensorGone,
    TensorNotFound,
    TensorpostError,
)
from tensorpost_server import commands

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
MUL: dict[str, Any] = {
    "inputs": {"x": {}, "w": {}},
    "nodes": [{"name": "y", "op_type": "Mul", "inputs": ["x", "w"]}],
    "outputs": {"y": "y"},
}


@pytest.fixture(scope="module", params=["numpy", "numba"])
def server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    with serving() as found:
        pool = found.app.state.service.pool
        if request.param not in pool.workers:
            pytest.skip(pool.refused[request.param])
        pool.default = request.param
        yield found


@pytest.fixture
def tp(server: Serving) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
        for tensor in client.tensors():
            client.delete_tensor(tensor)
    eventually(lambda: server.app.state.service.tensors.size_in_bytes == 0, "all memory is given back")


# ---- putting and getting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "bool", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_what_was_put_comes_back(tp: Client, dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).integers(0, 2, shape).astype(dtype)
    held = tp.put(x)
    assert (held.shape, held.dtype, held.ndim, held.size, held.nbytes) == (x.shape, x.dtype, x.ndim, x.size, x.nbytes)
    found = held.get()
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)
    np.testing.assert_array_equal(np.asarray(held), x)


def test_bfloat16_is_held(tp: Client) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(6).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(tp.put(x).get(), x)


def test_arrays_that_are_not_contiguous_and_of_other_byte_order(tp: Client) -> None:
    for x in (X.T, X[:, ::2], X.astype(">f4"), X.tolist(), 7.5):
        np.testing.assert_array_equal(tp.put(x).get(), np.asarray(x))


def test_the_file_of_a_picture(tp: Client, tmp_path: Path) -> None:
    picture = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(4).integers(0, 256, (4, 6, 3), np.uint8)
    picture.fromarray(pixels).save(tmp_path / "cat.png")
    held = tp.put(tmp_path / "cat.png", "cat")
    assert held.shape == (1, 4, 6, 3)
    np.testing.assert_array_equal(held[0], pixels)


@pytest.mark.parametrize("index", [0, -1, np.s_[1:], np.s_[:, 1, ::2], np.s_[..., 0], np.s_[5:], np.s_[1, 2, 3]])
def test_a_part_is_what_numpy_slices(tp: Client, index: Any) -> None:
    held = tp.put(X)
    np.testing.assert_array_equal(held[index], X[index])
    np.testing.assert_array_equal(held.get(index), X[index])
    np.testing.assert_array_equal(tp.get_tensor(held.name, index), X[index])
    part = held.part(index)
    assert part.shape == X[index].shape
    np.testing.assert_array_equal(part.get(), X[index])


def test_of_a_part_of_a_part_only_that_travels(tp: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tp.put(X)
    received: list[int] = []
    of_array = held_calls.bytes_of_array

    def recorded(array: np.ndarray[Any, Any]) -> memoryview:
        received.append(array.size)
        return of_array(array)

    monkeypatch.setattr(held_calls, "bytes_of_array", recorded)
    part = held.part(np.s_[1, ::2])
    np.testing.assert_array_equal(part[1:, ::2], X[1, ::2][1:, ::2])
    assert received == [2]
    inner = part.part(np.s_[..., 1:3])
    assert inner.shape == (2, 2)
    np.testing.assert_array_equal(inner.get(), X[1, ::2, 1:3])
    np.testing.assert_array_equal(tp.multiply(inner, inner), X[1, ::2, 1:3] ** 2)
    np.testing.assert_array_equal(inner.reshape(4).get(), X[1, ::2, 1:3].reshape(4))
    assert received == [2, 4, 4]


def test_what_is_no_part_is_refused_before_anything_is_sent(tp: Client) -> None:
    held = tp.put(X)
    wrong: list[Any] = [np.s_[::-1], 5, np.s_[0, 0, 0, 0], "a", 1.5]
    for index in wrong:
        for handle in (held, held.part(np.s_[:, 1:]), held.reshape(4, 6)):
            with pytest.raises(InvalidParameter):
                handle[index]
    new_axes: list[Any] = [None, np.s_[None, 0], np.s_[..., None]]
    for index in new_axes:
        for handle in (held, held.part(0), held.reshape(4, 6)):
            with pytest.raises(InvalidParameter, match="box has None, and parts have no new axes"):
                handle[index]
    with pytest.raises(InvalidParameter, match="take the part, then reshape"):
        held.reshape(4, 6).part(0)
    with pytest.raises(TypeError):
        iter(held)  # pyright: ignore[reportArgumentType, reportCallIssue] # what is tested
    with pytest.raises(ValueError, match="come as a copy"):
        np.asarray(held, copy=False)
    assert len(held) == 2


def test_sizes_of_a_handle(tp: Client) -> None:
    held = tp.put(X)
    assert held.reshape(4, -1).shape == (4, 6)
    np.testing.assert_array_equal(held.reshape((4, 6)).get(), X.reshape(4, 6))
    np.testing.assert_array_equal(held.reshape(4, 6)[1], X.reshape(4, 6)[1])
    for sizes in ((5,), (-1, -1), (-1, 5)):
        with pytest.raises(InvalidParameter, match="24 elements"):
            held.reshape(*sizes)


def test_dlpack_goes_through_this_process(tp: Client) -> None:
    held = tp.put(X)
    assert held.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(held), X)


@pytest.mark.parametrize(
    "x", [np.array(["a"]), np.array([object()]), {"a": 1}, None, np.array(["2020-01-01"], "M8[D]")]
)
def test_what_no_tensor_holds_is_refused(tp: Client, x: Any) -> None:
    with pytest.raises((InvalidParameter, TypeError)):
        tp.put(x)
    assert tp.tensors() == []


# ---- in calls --------------------------------------------------------------------------------------------------------


def test_every_method_takes_a_held_tensor(server: Serving, tp: Client) -> None:
    held, weights = tp.put(X), tp.put(np.array([1, 10, 100, 1000], np.float32))
    w = weights.get()
    np.testing.assert_array_equal(tp.tile(held, (1, 2, 1)), np.tile(X, (1, 2, 1)))
    np.testing.assert_array_equal(tp.tile(held, (2, 1, 1, 1)), np.tile(X, (2, 1, 1, 1)))
    np.testing.assert_array_equal(tp.multiply(held, weights), X * w)
    np.testing.assert_array_equal(tp.add(held, 1), X + 1)
    np.testing.assert_array_equal(tp.onnx("Neg", held), -X)
    np.testing.assert_array_equal(tp.onnx("Sub", X, held), X - X)
    np.testing.assert_array_equal(tp.transpose(held), X.T)
    np.testing.assert_array_equal(
        tp.resample(held.reshape(1, 2, 3, 4), scales=2, axes=(2, 3), mode="nearest").reshape(2, 6, 8),
        X.repeat(2, 1).repeat(2, 2),
    )
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 4)), (1, 2))
    np.testing.assert_array_equal(tp.run(desc, held.part(np.s_[:, 1])), np.tile(X[:, 1], (1, 2)))
    np.testing.assert_array_equal(tp.run(desc, {"input": held.part(np.s_[:, 2])}), np.tile(X[:, 2], (1, 2)))
    used = tp.call(desc, held.part(np.s_[:, 1])).backend
    assert used.partition("+")[0] == server.app.state.service.pool.default
    blocks = b"".join(bytes(block) for block in tp.stream(desc, held.part(np.s_[:, 1]), block_bytes=16))
    assert blocks == np.tile(X[:, 1], (1, 2)).tobytes()
    np.testing.assert_array_equal(tp.run_graph(MUL, {"x": held, "w": w})["y"], X * w)
    np.testing.assert_array_equal(tp.run_graph(MUL, {"x": held.part(1), "w": weights})["y"], X[1] * w)
    stored = tp.store(MUL, "mul")
    np.testing.assert_array_equal(stored({"x": X, "w": weights})["y"], X * w)
    np.testing.assert_array_equal(tp.run_stored(stored, {"x": held, "w": weights})["y"], X * w)
    found = [result["y"] for result in tp.map(MUL, [{"x": held, "w": np.float32(2)}, {"x": X, "w": weights}])]
    np.testing.assert_array_equal(found[0], X * 2)
    np.testing.assert_array_equal(found[1], X * w)


def test_a_model_takes_a_held_tensor(tp: Client) -> None:
    parser = pytest.importorskip("onnx.parser")
    text = '<ir_version: 8, opset_import: ["": 17]> neg (float[a, b, c] x) => (float[a, b, c] y) { y = Neg(x) }'
    model = parser.parse_model(text)
    np.testing.assert_array_equal(tp.run_model(model, tp.put(X))["y"], -X)


RESHAPE = """<ir_version: 8, opset_import: ["": 17]>
    m (float[n] x, int64[k] shape) => (float[a, b] y) { y = Reshape(x, shape) }"""


def test_a_small_held_tensor_decides_a_size_of_a_model(tp: Client) -> None:
    model = pytest.importorskip("onnx.parser").parse_model(RESHAPE)
    x = np.arange(6, dtype=np.float32)
    found = tp.run_model(model, {"x": tp.put(x), "shape": tp.put(np.array([2, 3]))})
    np.testing.assert_array_equal(found["y"], x.reshape(2, 3))


def test_an_async_client_says_that_it_needs_the_elements(server_url: str) -> None:
    model = pytest.importorskip("onnx.parser").parse_model(RESHAPE)

    async def call() -> None:
        async with AsyncClient(server_url) as tp:
            await tp.run_model(model, {"x": np.ones(6, np.float32), "shape": await tp.put(np.array([2, 3]))})

    with pytest.raises(
        InvalidParameter, match=r"elements of 'shape' may decide .* pass await held.get\(\) in its place"
    ):
        asyncio.run(call())


def test_a_notebook_shows_a_handle_and_fetches_nothing(tp: Client) -> None:
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3, 4)), (1, 1, 2))
    result = tp.call(desc, X, keep="tiled")
    tp.delete_tensor("tiled")
    assert "HeldTensor tiled: float32 of shape (2, 3, 8)" in result._repr_html_().replace("&lt;", "<")


def test_strides_of_a_descriptor_are_those_of_a_buffer(tp: Client) -> None:
    held = tp.put(X.reshape(-1))
    tensor = BufferTensorDesc(data_type="FLOAT32", sizes=(3, 2), strides=(2, 12))
    found = tp.run(TileOperatorDesc.of(tensor, (1, 1)), held)
    np.testing.assert_array_equal(found, np.lib.stride_tricks.as_strided(X, (3, 2), (8, 48)))
    with pytest.raises(InvalidParameter, match="a buffer of float32 or uint8 of at least"):
        tp.run(TileOperatorDesc.of(BufferTensorDesc(data_type="FLOAT32", sizes=(3, 3), strides=(2, 12)), (1, 1)), held)


def test_a_held_tensor_of_another_type_is_refused_here(tp: Client) -> None:
    held = tp.put(X)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 4)), (1, 2))
    with pytest.raises(InvalidParameter, match=r"held tensor of float32 and shape \(2, 3, 4\)"):
        tp.run(desc, held)
    with pytest.raises(InvalidParameter, match="keep=True"):
        tp.add(held, tp.put(X.astype(np.float64)))
    converted = tp.astype(held, "float64", keep=True)
    np.testing.assert_array_equal(tp.add(converted, X.astype(np.float64)), 2.0 * X)
    with pytest.raises(InvalidParameter, match="write_zarr"):
        tp.write_zarr(desc, held.part(np.s_[:, 0]), "never.zarr")


# ---- outputs that are kept -------------------------------------------------------------------------------------------


def test_outputs_stay_on_the_server(tp: Client) -> None:
    held = tp.put(X)
    squared = tp.multiply(held, held, keep=True)
    assert isinstance(squared, HeldTensor)
    root = tp.onnx("Sqrt", squared, keep="root")
    assert root.name == "root"
    np.testing.assert_array_equal(root.get(), X)
    one, two = tp.onnx("Split", held, axis=0, num_outputs=2, outputs=2, keep=True)
    np.testing.assert_array_equal(np.concatenate([one[:], two[:]]), X)
    one, two = tp.onnx("Split", held, axis=0, num_outputs=2, outputs=2, keep=["first", None])
    assert one.name == "first"
    kept = tp.run_graph(MUL, {"x": held, "w": squared}, keep={"y": "cube"})
    assert kept["y"].name == "cube"
    np.testing.assert_array_equal(kept["y"].get(), X**3)
    assert tp.call(TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3, 4)), (1, 1, 2)), held, keep=True).array
    with pytest.raises(TensorExists, match="'root' already; delete it first, or keep the output by another name"):
        tp.onnx("Neg", held, keep="root")


@pytest.mark.parametrize(
    ("keep", "words"),
    [(1, "must be True, a name"), (["a", "b"], "has 2 names"), ({"z": "a"}, "names the output 'z'"), ("", "keep")],
)
def test_what_names_no_output(tp: Client, keep: Any, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        tp.onnx("Neg", X, keep=keep)


def test_keep_and_out_exclude_each_other(tp: Client) -> None:
    with pytest.raises(InvalidParameter, match="leave one of them out"):
        tp.onnx("Neg", X, keep=True, out=np.empty_like(X))
    with pytest.raises(InvalidParameter, match="strings"):
        tp.onnx("Identity", np.array(["a"], object), keep=True)


# ---- lifetime --------------------------------------------------------------------------------------------------------


def test_names_and_replacing(tp: Client) -> None:
    held = tp.put(X, "mask")
    assert held.name == "mask"
    with pytest.raises(TensorExists, match="'mask' already; write replace=True to replace it, or choose another name"):
        tp.put(-X, "mask")
    tp.put(-X, "mask", replace=True)
    np.testing.assert_array_equal(held.get(), -X)
    (listed,) = tp.tensors()
    assert (listed.name, listed.shape, listed.dtype) == ("mask", X.shape, X.dtype)
    del held, listed
    gc.collect()
    tp.live()
    assert [each.name for each in tp.tensors()] == ["mask"]  # a name that somebody gave outlives its handles
    tp.delete_tensor("mask")
    with pytest.raises(TensorGone):
        tp.delete_tensor("mask")
    with pytest.raises(TensorNotFound):
        tp.get_tensor("never")
    with pytest.raises(InvalidParameter, match="held already"):
        tp.put(tp.put(X))


def test_a_collected_handle_is_freed_with_the_next_request(tp: Client) -> None:
    held = tp.put(X)
    part = held.part(0)
    del held
    gc.collect()
    tp.live()
    assert len(tp.tensors()) == 1  # the part still refers to it
    np.testing.assert_array_equal(part.get(), X[0])
    del part
    gc.collect()
    tp.devices()
    assert tp.tensors() == []


def test_a_closed_client_leaves_nothing_that_only_it_knew(server: Serving, tp: Client) -> None:
    with Client(server.url) as other:
        held, named, collected = other.put(X), other.put(X, "named"), other.put(X)
        del collected
        gc.collect()
        assert len(tp.tensors()) == 3
    assert [each.name for each in tp.tensors()] == ["named"]
    del held, named


def test_a_forked_process_frees_nothing_of_its_parent(tp: Client) -> None:
    held = tp.put(X)
    names = tp._transport.held  # pyright: ignore[reportAttributeAccessIssue] # one server's
    names._process += 1  # as it is in the child
    assert not names.end()
    lease = held._lease
    lease.__del__()
    assert not names.freed
    names._process -= 1
    lease.__del__()
    assert list(names.freed) == [held.name]
    names.freed.clear()


def test_a_health_check_frees_nothing_since_it_has_no_owner(tmp_path: Path) -> None:
    key = commands.add_key(tmp_path / "keys.json", "alice", scopes=("run", "tensors"))
    with serving(backend="numpy", keys_file=tmp_path / "keys.json") as server, Client(server.url, api_key=key) as tp:
        held = tp.put(X)
        del held
        gc.collect()
        assert tp.live()
        assert server.app.state.service.tensors.count == 1
        tp.devices()
        assert server.app.state.service.tensors.count == 0


def test_the_end_of_a_block_frees(tp: Client) -> None:
    with tp.put(X) as held, tp.put(X, "named"):
        assert len(tp.tensors()) == 2
    assert tp.tensors() == []
    with pytest.raises(TensorGone) as caught:
        held.get()
    assert caught.value.extra["reason"] == "deleted"
    with held:  # whoever freed it, the end of the block does not fail
        pass


def test_limits_come_as_they_are() -> None:
    with serving(backend="numpy", max_held_tensor_bytes=100) as server, Client(server.url) as tp:
        held = tp.put(X)
        with pytest.raises(InsufficientStorage, match="TENSORPOST_MAX_HELD_TENSOR_BYTES"):
            tp.put(X)
        del held
        gc.collect()
        tp.put(X)


def test_after_a_restart_a_handle_raises_gone_and_nothing_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    at_port = (
        "import tensorpost_server.commands as commands\nserve_at = commands.serve\n"
        f"commands.serve = lambda **options: serve_at(**{{**options, 'port': {port}}})\n"
    )
    tp = Client(f"http://127.0.0.1:{port}")
    with live_process(at_port, TENSORPOST_BACKEND="numpy"):
        held, named = tp.put(X), tp.put(X, "named")
    with live_process(at_port, TENSORPOST_BACKEND="numpy"), tp:
        calls: list[Any] = [held.get, lambda: named[0], lambda: tp.onnx("Neg", held), lambda: tp.tile(named, 2),
                            lambda: tp.run_graph(MUL, {"x": X, "w": held}), lambda: tp.delete_tensor(held),
                            lambda: np.asarray(held), lambda: tp.onnx("Neg", held, keep=True)]  # fmt: skip
        for call in calls:
            with pytest.raises(TensorGone, match="restarted") as caught:
                call()
            assert caught.value.extra["reason"] == "restarted"
        np.testing.assert_array_equal(tp.put(X).get(), X)


def test_a_client_of_several_servers_holds_nothing(server: Serving) -> None:
    with Client([server.url, server.url + "/"]) as tp, pytest.raises(InvalidParameter, match="one server"):
        tp.put(X)


def test_the_same_with_asyncio(server: Serving) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as tp:
            async with await tp.put(X) as held:
                np.testing.assert_array_equal(await held.get(), X)
                np.testing.assert_array_equal(await held[0, :, ::2], X[0, :, ::2])
                np.testing.assert_array_equal(await tp.add(held, held), X + X)
                kept = await tp.onnx("Neg", held, keep=True)
                np.testing.assert_array_equal(await kept.get(), -X)
                assert len(await tp.tensors()) == 2
                with pytest.raises(TypeError, match=r"await held\.get"):
                    np.asarray(held)
            await tp.delete_tensor(kept)
            assert await tp.tensors() == []

    asyncio.run(run())


# ---- two callers, one name -------------------------------------------------------------------------------------------


def test_two_callers_and_one_name_never_mix(tmp_path: Path) -> None:
    """Puts, calls, deletes and expiries from several threads of two keys; every element says whose it is."""
    file = tmp_path / "keys.json"
    keys = [commands.add_key(file, name, scopes=("run", "tensors")) for name in ("alice", "bob")]
    count, rounds, wrong = 25_000, 60, list[str]()

    def work(caller: int, seed: int) -> None:
        rng, mine = np.random.default_rng(seed), 100.0 * (caller + 1)
        with Client(server.url, api_key=keys[caller]) as tp:
            for turn in range(rounds):
                try:
                    match rng.integers(0, 6):
                        case 0 | 1:
                            tp.put(np.full(count, mine + turn % 7, np.float32), "shared", replace=True)
                        case 2:
                            found = tp.get_tensor("shared", np.s_[:: int(rng.integers(1, 5))])
                            check(found, mine)
                        case 3:
                            held = next((each for each in tp.tensors() if each.name == "shared"), None)
                            if held is not None:
                                check(-tp.onnx("Neg", held), mine)
                        case 4:
                            held = tp.put(np.full(count, mine, np.float32))
                            check(tp.add(held, held, keep=True).get() / 2, mine)
                        case _:
                            tp.delete_tensor("shared")
                except TensorNotFound:
                    pass  # deleted or expired; TensorGone is one
                except TensorpostError as error:
                    wrong.append(repr(error))

    def check(found: Any, mine: float) -> None:
        if found.size and not (mine <= found[0] <= mine + 6 and (found == found[0]).all()):
            wrong.append(f"{found[:3]} of {mine}")

    with serving(backend="numpy", keys_file=file, held_tensor_seconds=1) as server:
        service = server.app.state.service
        threads = [threading.Thread(target=work, args=(number % 2, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(1.01)
        server.on_loop(service.sweep)
        assert wrong == []
        dropped = server.on_loop(lambda: service.tensors.dropped)
        assert dropped["expired"] > 0
        assert dropped["replaced"] + dropped["deleted"] > 0
        server.on_loop(service.tensors.close)
        eventually(lambda: service.admission.bytes_in_flight == 0, "all memory is given back")
        assert service.tensors.size_in_bytes == 0


def test_a_reader_of_a_replaced_tensor_gets_the_old_one(server: Serving, tp: Client) -> None:
    x = np.arange(4 << 20, dtype=np.float32)
    held = tp.put(x, "large")
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", x.shape), (2,))
    blocks = tp.stream(desc, held, block_bytes=1 << 20)
    first = bytes(next(blocks))
    tp.put(np.zeros(3, np.float32), "large", replace=True)
    tp.delete_tensor("large")
    assert server.app.state.service.tensors.size_in_bytes == x.nbytes
    found = np.frombuffer(first + b"".join(bytes(block) for block in blocks), np.float32)
    np.testing.assert_array_equal(found, np.tile(x, 2))


def test_the_public_name() -> None:
    assert tensorpost.HeldTensor is HeldTensor

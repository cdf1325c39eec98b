"""The real `tritonclient.grpc`, unmodified, against a live server through every method it has; compared with NumPy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import Serving, eventually, serving
from tests.support.replays import count_replays

from tensorpost import Client
from tensorpost_server.http.grpc.grpc_messages import grpc_messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its code was generated for another major version of protobuf
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed; group dev has it")
    aio = pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient is not installed; group dev has it")
    service_pb2 = pytest.importorskip(
        "tritonclient.grpc.service_pb2", reason="tritonclient is not installed; group dev has it"
    )
    utils = pytest.importorskip("tritonclient.utils", reason="tritonclient is not installed; group dev has it")
    memory = pytest.importorskip(
        "tritonclient.utils.shared_memory", reason="tritonclient is not installed; group dev has it"
    )

RNG = np.random.default_rng(14)
PRESETS = {"tile.2x2": {"operator": "tile", "attributes": {"repeats": [2, 2]}, "shape": [2, 3]}}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(presets=PRESETS, grpc_port=0, shared_memory=True) as found:
        yield found
        eventually(found.idle, "all memory is released")


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[Any]:
    with grpc.InferenceServerClient(f"127.0.0.1:{server.app.state.grpc_port}") as found:
        yield found


def given(name: str, array: np.ndarray[Any, Any]) -> Any:
    tensor = grpc.InferInput(name, list(array.shape), utils.np_to_triton_dtype(array.dtype))
    return tensor.set_data_from_numpy(array)


def test_every_method_that_asks(client: Any):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tile", "1")
    assert not client.is_model_ready("tile", "2")
    assert "system_shared_memory" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("tile.2x2", as_json=True)
    assert metadata["outputs"] == [{"name": "output", "datatype": "FP32", "shape": ["4", "6"]}]
    config = client.get_model_config("onnx.tile").config
    assert (config.backend, config.input[0].data_type, [*config.input[0].dims]) == ("tensorpost", 11, [-1] * 4)
    assert "opset" in config.parameters["attributes_schema"].string_value
    assert {"tile", "tile.2x2"} <= {entry.name for entry in client.get_model_repository_index().models}
    client.load_model("tile")
    assert not client.get_cuda_shared_memory_status().regions
    client.unregister_cuda_shared_memory()


@pytest.mark.parametrize("dtype", [*"?bBhHiIqQefd", "bfloat16", "object"])
def test_every_datatype_both_ways(client: Any, dtype: str):
    x = RNG.integers(0, 2, (3, 5)).astype(utils.triton_to_np_dtype("BF16") if dtype == "bfloat16" else dtype)
    x = x.astype(str).astype(object) if dtype == "object" else x

    result = client.infer("onnx.tile", [given("input", x)], parameters={"repeats": "[2,1]"}, request_id="7")

    found = result.as_numpy("output")
    expected = np.tile(x, (2, 1))
    if dtype == "object":
        found = np.vectorize(bytes.decode, otypes=[object])(found)
    np.testing.assert_array_equal(found, expected)
    assert (result.get_response().id, result.get_output("output").shape) == ("7", [6, 5])


def test_large_tensors_attributes_as_tensors_and_statistics(client: Any):
    x = RNG.normal(size=(1 << 21,)).astype(np.float32)
    before = client.get_inference_statistics("tile").model_stats[0].inference_count

    found = client.infer("tile", [given("input", x), given("repeats", np.array([3]))], timeout=60_000_000,
                         outputs=[grpc.InferRequestedOutput("output")])  # fmt: skip
    small = client.infer("tile.2x2", [given("input", np.ones((2, 3), np.float32))])

    np.testing.assert_array_equal(found.as_numpy("output"), np.tile(x, 3))
    np.testing.assert_array_equal(small.as_numpy("output"), np.ones((4, 6)))
    stats = client.get_inference_statistics("tile").model_stats[0]
    assert stats.inference_count - before == 1 == stats.inference_stats.queue.count - before
    assert "tile" in {entry.name for entry in client.get_inference_statistics().model_stats}


def test_a_call_that_comes_again_has_its_own_elements_and_is_counted(client: Any, monkeypatch: pytest.MonkeyPatch):
    replayed = count_replays(monkeypatch)
    counts = [client.get_inference_statistics("top_k").model_stats[0].inference_count]
    for n in range(4):
        for k in ("1", "2"):  # their requests are of one length
            x = np.array([[n, 5 - n, 2]], np.float32)
            found = client.infer("top_k", [given("input", x)], parameters={"axis": "1", "k": k})
            expected = np.sort(x)[:, ::-1][:, : int(k)]
            np.testing.assert_array_equal(found.as_numpy("output_value"), expected)
            index = found.as_numpy("output_index").astype(np.int64)
            np.testing.assert_array_equal(np.take_along_axis(x, index, axis=1), expected)
    counts.append(client.get_inference_statistics("top_k").model_stats[0].inference_count)

    assert counts[1] - counts[0] == 8
    assert replayed[-4:] == [True] * 4


def test_typed_contents_as_other_clients_send_them(client: Any):
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="input", datatype="INT8", shape=[2])
    tensor.contents.int_contents.extend([-1, 7])
    request = service_pb2.ModelInferRequest(model_name="tile", inputs=[tensor])
    request.parameters["repeats"].string_param = "2"

    response = client._client_stub.ModelInfer(request)

    assert np.frombuffer(response.raw_output_contents[0], np.int8).tolist() == [-1, 7, -1, 7]


def test_an_input_is_a_held_tensor(client: Any, server: Serving):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with Client(server.url) as tp, tp.put(x, "mask"):
        tensor = service_pb2.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[3])
        tensor.parameters["tensor"].string_param = "mask"
        tensor.parameters["box"].string_param = "1"
        request = service_pb2.ModelInferRequest(model_name="tile", inputs=[tensor])
        request.parameters["repeats"].string_param = "2"

        response = client._client_stub.ModelInfer(request)

        assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == np.tile(x[1], 2).tolist()


def test_streams_and_async(client: Any):
    x = np.arange(3, dtype=np.float32)
    answers: queue.Queue[Any] = queue.Queue()

    client.start_stream(lambda result, error: answers.put((result, error)))
    for n in range(3):
        client.async_stream_infer("tile", [given("input", x + n)], parameters={"repeats": "2"}, request_id=str(n))
    client.async_stream_infer("tlie", [given("input", x)])
    found = [answers.get(timeout=20) for _ in range(4)]
    client.stop_stream()
    client.async_infer("tile", [given("input", x)], lambda result, error: answers.put((result, error)),
                       parameters={"repeats": "2"})  # fmt: skip
    last, _ = answers.get(timeout=20)

    for n in range(3):
        np.testing.assert_array_equal(found[n][0].as_numpy("output"), np.tile(x + n, 2))
    assert "did you mean 'tile'" in str(found[3][1])
    np.testing.assert_array_equal(last.as_numpy("output"), np.tile(x, 2))


SHARED = RNG.normal(size=(256, 4)).astype(np.float32)


@contextlib.contextmanager
def region_to_tile(name: str) -> Iterator[tuple[str, Any, Any]]:
    """The key of a region that begins with SHARED, its input and its output; checks what was written after it."""
    key, size = f"/tensorpost_test_{os.getpid()}_{name}", SHARED.nbytes
    region = memory.create_shared_memory_region(name, key, 3 * size)
    tensor, output = grpc.InferInput("input", [256, 4], "FP32"), grpc.InferRequestedOutput("output")
    tensor.set_shared_memory(name, size)
    output.set_shared_memory(name, 2 * size, offset=size)
    try:
        memory.set_shared_memory_region(region, [SHARED])
        yield key, tensor, output
        found = memory.get_contents_as_numpy(region, np.float32, [512, 4], offset=size)
        np.testing.assert_array_equal(found, np.tile(SHARED, (2, 1)))
        del found
    finally:
        memory.destroy_shared_memory_region(region)


def test_shared_memory(client: Any):
    with region_to_tile("both") as (key, tensor, output):
        client.register_system_shared_memory("both", key, 3 * SHARED.nbytes)
        assert client.get_system_shared_memory_status("both").regions["both"].byte_size == 3 * SHARED.nbytes
        client.infer("tile", [tensor], outputs=[output], parameters={"repeats": "[2,1]"})
        client.unregister_system_shared_memory("both")
        assert not client.get_system_shared_memory_status().regions
        with pytest.raises(utils.InferenceServerException, match="for callers on this host"):  # a proxy passed it on
            client.register_system_shared_memory("both", key, 64, headers={"x-forwarded-for": "192.0.2.7"})


def test_every_refusal_is_readable_in_the_clients_own_exception(client: Any):
    x = np.zeros((2, 2), np.float32)
    for call, status, says in (
        (lambda: client.infer("tlie", [given("input", x)]), "NOT_FOUND", "did you mean 'tile'"),
        (lambda: client.infer("tile", [given("input", x)]), "INVALID_ARGUMENT", "repeats is required"),
        (lambda: client.get_model_metadata("tile", "3"), "NOT_FOUND", "version 1 only"),
        (lambda: client.unload_model("tile"), "UNIMPLEMENTED", "cannot be unloaded"),
        (lambda: client.get_trace_settings(), "UNIMPLEMENTED", "not offered"),
        (lambda: client.update_trace_settings("tile", {}), "UNIMPLEMENTED", "not offered"),
        (lambda: client.get_log_settings(), "UNIMPLEMENTED", "not offered"),
        (lambda: client.update_log_settings({}), "UNIMPLEMENTED", "not offered"),
        (lambda: client.load_model("tile", config="{}"), "UNIMPLEMENTED", "configuration of an operator"),
        (lambda: client.register_cuda_shared_memory("a", b"QUJD", 0, 64), "UNIMPLEMENTED", "not offered"),
        (lambda: client.register_system_shared_memory("a", "/nothing", 64), "NOT_FOUND", "no shared memory obj"),
    ):  # fmt: skip
        with pytest.raises(utils.InferenceServerException) as refused:
            call()
        assert status in str(refused.value.status())
        assert says in str(refused.value)


def test_the_asynchronous_client(server: Serving):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    async def calls() -> None:
        async with aio.InferenceServerClient(f"127.0.0.1:{server.app.state.grpc_port}") as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("tile")
            assert (await client.get_server_metadata()).name == "tensorpost"
            assert (await client.get_model_metadata("tile")).platform == "dml_operator"
            assert (await client.get_model_config("tile")).config.name == "tile"
            assert (await client.get_model_repository_index()).models
            results = await asyncio.gather(
                *[client.infer("tile", [given("input", x * n)], parameters={"repeats": "[1,2]"}) for n in range(8)]
            )
            for n, result in enumerate(results):
                np.testing.assert_array_equal(result.as_numpy("output"), np.tile(x * n, (1, 2)))
            assert (await client.get_inference_statistics("tile")).model_stats[0].inference_count >= 8
            await client.load_model("tile")
            for says, call in (
                ("did you mean", client.infer("tlie", [given("input", x)])),
                ("cannot be unloaded", client.unload_model("tile")),
                ("not offered", client.get_trace_settings()),
                ("not offered", client.update_trace_settings("tile", {})),
                ("not offered", client.get_log_settings()),
                ("not offered", client.update_log_settings({})),
                ("not offered", client.register_cuda_shared_memory("a", b"QUJD", 0, 64)),
            ):
                with pytest.raises(utils.InferenceServerException, match=says):
                    await call

    asyncio.run(calls())


def test_the_asynchronous_client_streams(server: Serving):
    x = np.arange(3, dtype=np.float32)

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for n in range(3):
            yield {"model_name": "tile", "inputs": [given("input", x + n)], "parameters": {"repeats": "2"}}
        yield {"model_name": "tlie", "inputs": [given("input", x)]}

    async def calls() -> list[Any]:
        async with aio.InferenceServerClient(f"127.0.0.1:{server.app.state.grpc_port}") as client:
            return [answer async for answer in client.stream_infer(requests(), stream_timeout=20)]

    *found, (nothing, refusal) = asyncio.run(calls())

    assert [error for _, error in found] == [None] * 3
    for n, (result, _) in enumerate(found):
        np.testing.assert_array_equal(result.as_numpy("output"), np.tile(x + n, 2))
    assert nothing is None
    assert "did you mean 'tile'" in str(refusal)


def test_the_asynchronous_client_in_shared_memory(server: Serving):
    async def calls(key: str, tensor: Any, output: Any) -> None:
        async with aio.InferenceServerClient(f"127.0.0.1:{server.app.state.grpc_port}") as client:
            await client.register_system_shared_memory("w", key, 3 * SHARED.nbytes)
            status = await client.get_system_shared_memory_status("w")
            assert (status.regions["w"].key, status.regions["w"].byte_size) == (key, 3 * SHARED.nbytes)
            await client.infer("tile", [tensor], outputs=[output], parameters={"repeats": "[2,1]"})
            await client.unregister_system_shared_memory("w")
            assert not (await client.get_system_shared_memory_status()).regions
            assert not (await client.get_cuda_shared_memory_status()).regions
            await client.unregister_cuda_shared_memory()

    with region_to_tile("w") as found:
        asyncio.run(calls(*found))


def test_our_messages_are_the_published_ones():
    """Each field of ours has the name, number and type that Triton's compiled definitions have."""
    ours = {name: kind.DESCRIPTOR for name, kind in grpc_messages().items()}
    published = service_pb2.DESCRIPTOR.message_types_by_name
    pairs = {"ModelInferRequest": "ModelInferRequest", "ModelInferResponse": "ModelInferResponse",
             "InferTensorContents": "InferTensorContents", "InferParameter": "InferParameter",
             "InferStatistics": "InferStatistics", "Statistics": "ModelStatistics",
             "ServerMetadata": "ServerMetadataResponse", "ModelMetadata": "ModelMetadataResponse",
             "Region": "SystemSharedMemoryRegisterRequest", "RepositoryModel": "RepositoryModelLoadRequest",
             }  # fmt: skip
    for name, theirs in pairs.items():
        for field in ours[name].fields:
            other = published[theirs].fields_by_name[field.name]
            assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated), name

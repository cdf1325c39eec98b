"""The real `tritonclient`, unmodified, against a live server through every method it has; compared with NumPy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import Serving, eventually, request_bytes, serving

http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed; group dev has it")
aio = pytest.importorskip("tritonclient.http.aio", reason="tritonclient is not installed; group dev has it")
utils = pytest.importorskip("tritonclient.utils", reason="tritonclient is not installed; group dev has it")
memory = pytest.importorskip(
    "tritonclient.utils.shared_memory", reason="tritonclient is not installed; group dev has it"
)

RNG = np.random.default_rng(14)
PRESETS = {"tile.2x2": {"operator": "tile", "attributes": {"repeats": [2, 2]}, "shape": [2, 3]}}
NUMBERS = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BF16",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(presets=PRESETS) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[Any]:
    with http.InferenceServerClient(f"{server.host}:{server.port}", concurrency=4) as found:
        yield found


def given(name: str, array: np.ndarray[Any, Any], **options: Any) -> Any:
    tensor = http.InferInput(name, list(array.shape), utils.np_to_triton_dtype(array.dtype))
    return tensor.set_data_from_numpy(array, **options)


def some(datatype: str) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 2, (3, 5)).astype(utils.triton_to_np_dtype(datatype))


def test_every_method_that_asks_and_changes_nothing(client: Any):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tile")
    assert client.is_model_ready("tile.2x2", "1", headers={"x-test": "1"}, query_params={"a": 1})
    assert not client.is_model_ready("tile", "2")
    assert {"binary_tensor_data", "statistics"} <= {*client.get_server_metadata()["extensions"]}
    for version in ("", "1"):
        assert client.get_model_metadata("tile.2x2", version)["outputs"][0]["shape"] == [4, 6]
        config = client.get_model_config("onnx.resize", version)
        assert (config["max_batch_size"], config["input"][0]["data_type"]) == (0, "TYPE_FP32")
        schema = json.loads(config["parameters"]["attributes_schema"]["string_value"])
        assert schema["properties"]["scales"] == {"type": "array", "items": {"type": "number"}}
        config = client.get_model_config("convolution", version)
        properties = json.loads(config["parameters"]["attributes_schema"]["string_value"])["properties"]
        assert "group_count" in properties, "no array's count"
        assert "dimension_count" not in properties, "the count of an array follows from it"
    index = client.get_model_repository_index()
    assert {"name": "tile.2x2", "version": "1", "state": "READY", "reason": ""} in index
    client.load_model("tile")
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_datatype_both_ways(client: Any, datatype: str):
    x = some(datatype)

    result = client.infer("onnx.tile", [given("input", x)], parameters={"repeats": "[2,1]"})

    output = result.as_numpy("output")
    assert output.dtype == x.dtype
    np.testing.assert_array_equal(output, np.tile(x, (2, 1)))
    assert result.get_output("output")["datatype"] == datatype


def test_the_forms_of_inputs_and_outputs(client: Any):
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    repeats = np.array([1, 2])
    as_json = http.InferRequestedOutput("output", binary_data=False)

    for options in (
        {"parameters": {"repeats": [1, 2]}}, {"request_id": "a-7", "parameters": {"repeats": "[1,2]"}},
        {"request_compression_algorithm": "gzip", "parameters": {"repeats": "1,2"}},
        {"request_compression_algorithm": "deflate", "response_compression_algorithm": "deflate",
         "parameters": {"repeats": "1,2"}},
        {"response_compression_algorithm": "gzip", "parameters": {"repeats": "1,2"}, "model_version": "1"},
        {"outputs": [as_json], "parameters": {"repeats": "1,2"}, "timeout": 60_000_000, "priority": 1},
        {"query_params": {"a": "b"}, "headers": {"x-test": "1"}, "parameters": {"repeats": "1,2"}},
    ):  # fmt: skip
        for binary in (True, False):
            headers = dict(options.get("headers", {}))  # the client adds to it
            result = client.infer("tile", [given("input", x, binary_data=binary)], **(options | {"headers": headers}))
            np.testing.assert_array_equal(result.as_numpy("output"), np.tile(x, (1, 2)))
            assert result.get_response().get("id") == options.get("request_id")
    result = client.infer("tile", [given("input", x), given("repeats", repeats)])
    np.testing.assert_array_equal(result.as_numpy("output"), np.tile(x, (1, 2)))
    empty = client.infer("onnx.tile", [given("input", x[:0])], parameters={"repeats": "[1,2]"})
    assert empty.as_numpy("output").shape == (0, 6)
    np.testing.assert_array_equal(
        client.infer("tile.2x2", [given("input", x[:2])]).as_numpy("output"), np.tile(x[:2], (2, 2))
    )


def post(server: Serving, body: bytes, length: int) -> tuple[bytes, int]:
    """The answer to a body that a client made, sent by something else, and how long its JSON part is."""
    name = "inference-header-content-length"
    answer = server.ask(request_bytes("POST", "/v2/models/tile/infer", body, {name: length}))
    return answer.body, int(answer.headers[name])


def test_bodies_made_and_read_without_its_connection(server: Serving, client: Any):
    x = RNG.normal(size=(4, 3)).astype(np.float32)

    body, length = client.generate_request_body([given("input", x), given("repeats", np.array([1, 2]))])
    answer, header_length = post(server, body, length)
    result = client.parse_response_body(answer, header_length=header_length)

    np.testing.assert_array_equal(result.as_numpy("output"), np.tile(x, (1, 2)))


def test_large_tensors_stream_and_requests_run_beside_each_other(client: Any):
    x = RNG.normal(size=(1 << 21,)).astype(np.float32)

    waiting = [
        client.async_infer("tile", [given("input", x + index)], parameters={"repeats": "3"}) for index in range(4)
    ]

    for index, each in enumerate(waiting):
        np.testing.assert_array_equal(each.get_result().as_numpy("output"), np.tile(x + index, 3))


def test_statistics_grow_by_what_was_called(client: Any):
    before = client.get_inference_statistics("tile.2x2", "1")["model_stats"][0]
    for _ in range(3):
        client.infer("tile.2x2", [given("input", np.zeros((2, 3), np.float32))])
    after = client.get_inference_statistics("tile.2x2")["model_stats"][0]

    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"] == 3
    assert "tile.2x2" in {entry["name"] for entry in client.get_inference_statistics()["model_stats"]}


X = np.zeros((2, 2), np.float32)
REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "unknown model": (lambda c: c.infer("tlie", [given("input", X)]), "404", "did you mean 'tile'"),
    "unknown version": (lambda c: c.get_model_metadata("tile", "3"), "404", "version 1 only"),
    "missing attribute": (lambda c: c.infer("tile", [given("input", X)]), "400", "repeats is required"),
    "unknown parameter": (
        lambda c: c.infer("tile", [given("input", X)], parameters={"repeat": "[1,1]"}), "400", "did you mean 'repeats'",
    ),
    "wrong dtype": (
        lambda c: c.infer("element_wise_sqrt", [given("input", X.astype(np.int8))]), "400", "INT8",
    ),
    "unload": (lambda c: c.unload_model("tile"), "501", "cannot be unloaded"),
    "load with a configuration": (lambda c: c.load_model("tile", config="{}"), "501", "configuration of an operator"),
    "trace": (lambda c: c.get_trace_settings(), "501", "not offered"),
    "trace of a model": (lambda c: c.update_trace_settings("tile", {}), "501", "not offered"),
    "log": (lambda c: c.get_log_settings(), "501", "not offered"),
    "log settings": (lambda c: c.update_log_settings({}), "501", "not offered"),
    "classification": (
        lambda c: c.infer("tile", [given("input", X)], outputs=[http.InferRequestedOutput("output", class_count=2)]),
        "501", "TOP_K",
    ),
    "half as JSON": (
        lambda c: c.infer("tile", [given("input", X.astype(np.float16))], parameters={"repeats": "1,1"},
                          outputs=[http.InferRequestedOutput("output", binary_data=False)]),
        "400", "binary",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_every_refusal_is_readable_in_the_clients_own_exception(client: Any, case: str):
    call, status, says = REFUSED[case]

    with pytest.raises(utils.InferenceServerException) as refused:
        call(client)

    assert status in str(refused.value.status())
    assert says in str(refused.value)


def test_the_asynchronous_client(server: Serving):
    x = RNG.normal(size=(2, 3)).astype(np.float32)

    async def calls() -> None:
        async with aio.InferenceServerClient(f"{server.host}:{server.port}") as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("tile", "1")
            assert (await client.get_server_metadata())["name"] == "tensorpost"
            assert (await client.get_model_metadata("tile"))["platform"] == "dml_operator"
            assert (await client.get_model_config("tile"))["backend"] == "tensorpost"
            assert await client.get_model_repository_index()
            await client.load_model("tile")
            await client.unregister_system_shared_memory()
            await client.unregister_cuda_shared_memory()
            results = await asyncio.gather(
                *[client.infer("tile", [given("input", x * n)], parameters={"repeats": "[1,2]"}) for n in range(8)],
                client.infer("tile", [given("input", x)], parameters={"repeats": "[1,2]"},
                             request_compression_algorithm="gzip", response_compression_algorithm="gzip"),
            )  # fmt: skip
            for n, result in enumerate([*results]):
                np.testing.assert_array_equal(result.as_numpy("output"), np.tile(x * (n if n < 8 else 1), (1, 2)))
            as_json = [aio.InferRequestedOutput("output", binary_data=False)]
            result = await client.infer("tile", [given("input", x, binary_data=False)], outputs=as_json,
                                        parameters={"repeats": [1, 1]})  # fmt: skip
            np.testing.assert_array_equal(result.as_numpy("output"), x)
            assert (await client.get_inference_statistics("tile"))["model_stats"][0]["inference_count"] > 0
            body, length = client.generate_request_body([given("input", x)], parameters={"repeats": "[2,1]"})
            answer, header_length = await asyncio.to_thread(post, server, body, length)
            result = client.parse_response_body(answer, header_length=header_length)
            np.testing.assert_array_equal(result.as_numpy("output"), np.tile(x, (2, 1)))
            for says, call in (
                ("did you mean", client.infer("tlie", [given("input", x)])),
                ("version 1", client.get_model_metadata("tile", "2")),
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


# ---- shared memory ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharing_server() -> Iterator[Serving]:
    with serving(shared_memory=True) as found:
        yield found
        eventually(found.idle, "all memory is released")


@pytest.fixture(scope="module")
def sharing(sharing_server: Serving) -> Iterator[Any]:
    with http.InferenceServerClient(f"{sharing_server.host}:{sharing_server.port}") as found:
        yield found


@contextlib.contextmanager
def shared(name: str, size: int) -> Iterator[Any]:
    """An object of shared memory as tritonclient makes it, and its removal."""
    handle = memory.create_shared_memory_region(name, f"/tensorpost_test_{os.getpid()}_{name}", size)
    try:
        yield handle
    finally:
        memory.destroy_shared_memory_region(handle)


def test_inputs_and_outputs_in_shared_memory(sharing: Any):
    assert "system_shared_memory" in sharing.get_server_metadata()["extensions"]
    x = RNG.normal(size=(1 << 19, 2)).astype(np.float32)  # larger than a slice
    with shared("x", 8 + x.nbytes) as source, shared("y", 2 * x.nbytes + 64) as target:
        memory.set_shared_memory_region(source, [x], offset=8)
        key = f"/tensorpost_test_{os.getpid()}_x"
        sharing.register_system_shared_memory("x", key, 8 + x.nbytes)
        sharing.register_system_shared_memory("y", key[:-1] + "y", 2 * x.nbytes + 32, offset=32)
        assert {"name": "x", "key": key, "offset": 0, "byte_size": 8 + x.nbytes} == (
            sharing.get_system_shared_memory_status("x")[0]
        )
        assert {entry["name"] for entry in sharing.get_system_shared_memory_status()} == {"x", "y"}
        tensor = http.InferInput("input", list(x.shape), "FP32")
        tensor.set_shared_memory("x", x.nbytes, offset=8)
        output = http.InferRequestedOutput("output")
        output.set_shared_memory("y", 2 * x.nbytes + 8, offset=16)
        for _ in range(2):
            result = sharing.infer("tile", [tensor], outputs=[output], parameters={"repeats": "[1,2]"})
            assert result.get_output("output") == {"name": "output", "datatype": "FP32", "shape": [1 << 19, 4]}
            found = memory.get_contents_as_numpy(target, np.float32, [1 << 19, 4], offset=48)
            np.testing.assert_array_equal(found, np.tile(x, (1, 2)))
            del found
        mixed = sharing.infer("tile", [tensor], parameters={"repeats": "[1,1]"})
        np.testing.assert_array_equal(mixed.as_numpy("output"), x)
        # Two names of one region: it lives until the last request that uses it has ended.
        sharing.unregister_system_shared_memory("x")
        sharing.unregister_system_shared_memory("x")
        with pytest.raises(utils.InferenceServerException, match="no shared memory region 'x'"):
            sharing.infer("tile", [tensor], parameters={"repeats": "[1,1]"})
        sharing.unregister_system_shared_memory()
        assert sharing.get_system_shared_memory_status() == []


def test_the_asynchronous_client_in_shared_memory(sharing_server: Serving):
    x = RNG.normal(size=(64, 4)).astype(np.float32)
    key, size = f"/tensorpost_test_{os.getpid()}_w", 3 * x.nbytes
    tensor, output = aio.InferInput("input", [64, 4], "FP32"), aio.InferRequestedOutput("output")
    tensor.set_shared_memory("w", x.nbytes)
    output.set_shared_memory("w", 2 * x.nbytes, offset=x.nbytes)

    async def calls() -> None:
        async with aio.InferenceServerClient(f"{sharing_server.host}:{sharing_server.port}") as client:
            await client.register_system_shared_memory("w", key, size)
            assert await client.get_system_shared_memory_status("w") == [
                {"name": "w", "key": key, "offset": 0, "byte_size": size}
            ]
            await client.infer("tile", [tensor], outputs=[output], parameters={"repeats": "[2,1]"})
            await client.unregister_system_shared_memory("w")
            assert await client.get_system_shared_memory_status() == []
            assert await client.get_cuda_shared_memory_status() == []

    with shared("w", size) as region:
        memory.set_shared_memory_region(region, [x])
        asyncio.run(calls())
        found = memory.get_contents_as_numpy(region, np.float32, [128, 4], offset=x.nbytes)
        np.testing.assert_array_equal(found, np.tile(x, (2, 1)))
        del found


def test_what_shared_memory_refuses(sharing: Any, client: Any):
    key = f"/tensorpost_test_{os.getpid()}_z"
    with shared("z", 64):
        sharing.register_system_shared_memory("z", key, 64)
        tensor = http.InferInput("input", [16], "FP32")
        tensor.set_shared_memory("z", 64)
        beyond = http.InferInput("input", [16], "FP32")
        beyond.set_shared_memory("z", 64, offset=8)
        output = http.InferRequestedOutput("output")
        output.set_shared_memory("z", 64)
        refused = {
            "already in manager": lambda: sharing.register_system_shared_memory("z", key, 64),
            "do not lie": lambda: sharing.register_system_shared_memory("a", key, 65),
            "do not lie in the region": lambda: sharing.infer("tile", [beyond], parameters={"repeats": "1"}),
            "at least 128 bytes": lambda: sharing.infer(
                "tile", [tensor], outputs=[output], parameters={"repeats": "2"}
            ),
            "no shared memory object 'nothing'": lambda: sharing.register_system_shared_memory("a", "/nothing", 1),
            "letters, digits": lambda: sharing.register_system_shared_memory("a", "/../etc/passwd", 1),
            "is disabled": lambda: client.register_system_shared_memory("a", key, 64),
            "not offered": lambda: client.register_cuda_shared_memory("a", b"QUJD", 0, 64),
            "no shared memory region 'b'": lambda: sharing.get_system_shared_memory_status("b"),
        }
        for says, call in refused.items():
            with pytest.raises(utils.InferenceServerException, match=re.escape(says)):
                call()
        os.truncate(f"/dev/shm{key}", 32)  # the process that reads it must survive that
        with pytest.raises(utils.InferenceServerException, match="too short"):
            sharing.infer("tile", [tensor], parameters={"repeats": "1"})
        with pytest.raises(utils.InferenceServerException, match="too short"):
            sharing.infer("tile", [given("input", np.zeros(16, np.float32))], outputs=[output],
                          parameters={"repeats": "1"})  # fmt: skip
        sharing.unregister_system_shared_memory()
    assert client.get_cuda_shared_memory_status() == []
    assert client.get_system_shared_memory_status() == []

"""No method of the real `tritonclient` goes uncalled; and its plugins, by which all four clients send API keys."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import Serving, serving

from tensorpost_server import commands

utils = pytest.importorskip("tritonclient.utils", reason="tritonclient is not installed; group dev has it")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its code was generated for another major version of protobuf
    CLIENTS: dict[str, Any] = {
        name: pytest.importorskip(f"tritonclient.{name}", reason="tritonclient is not installed; group dev has it")
        for name in ("http", "http.aio", "grpc", "grpc.aio")
    }
FILES = {"http": "test_tritonclient.py", "grpc": "test_tritonclient_grpc.py"}
MOST_BODY_BYTES = 1 << 16
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def source_of(name: str) -> str:
    """The code that calls one client: its protocol's asynchronous tests or all the others, and the function below."""
    protocol, _, is_asynchronous = name.partition(".")
    text = Path(__file__).with_name(FILES[protocol]).read_text("utf-8")
    parts = [
        ast.unparse(node)
        for node in ast.parse(text).body
        if getattr(node, "name", "").startswith("test_the_asynchronous_client") is bool(is_asynchronous)
    ]
    return "\n".join([*parts, inspect.getsource(calls_with_and_without_a_key)])


@pytest.mark.parametrize("name", CLIENTS)
def test_every_method_is_called(name: str):
    client = CLIENTS[name].InferenceServerClient
    methods = [method for method in dir(client) if not method.startswith("_") and callable(getattr(client, method))]
    source = source_of(name)

    assert len(methods) > 20
    assert [method for method in methods if not re.search(rf"\.{method}\(", source)] == []


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.jsonl"


@pytest.fixture(scope="module")
def key(keys_file: Path) -> str:
    return commands.add_key(keys_file, "anna")


@pytest.fixture(scope="module")
def server(keys_file: Path, key: str) -> Iterator[Serving]:
    del key  # the file must be there
    with serving(
        keys_file=keys_file, grpc_port=0, max_body_bytes=MOST_BODY_BYTES, max_json_bytes=MOST_BODY_BYTES
    ) as found:
        yield found


def address(server: Serving, name: str) -> str:
    return f"127.0.0.1:{server.app.state.grpc_port if name.startswith('grpc') else server.port}"


async def whole(answer: Any) -> Any:
    """What a method of either kind of client answers."""
    return await answer if inspect.isawaitable(answer) else answer


async def calls_with_and_without_a_key(kind: Any, address: str, key: str) -> Any:
    """What `infer` answers with a plugin that adds the key, and the exceptions of the calls before and after it."""
    tensor = kind.InferInput("input", list(X.shape), "FP32").set_data_from_numpy(X)

    class KeyPlugin(kind.InferenceServerClientPlugin):
        def __call__(self, request: Any) -> None:
            request.headers["x-api-key"] = key

    plugin = KeyPlugin()
    client = kind.InferenceServerClient(address)
    refused: list[Any] = []
    result: Any = None
    try:
        for registered in (False, True, False):
            if registered:
                client.register_plugin(plugin)
                assert client.plugin() is plugin
                result = await whole(client.infer("tile", [tensor], parameters={"repeats": "[1,2]"}))
                client.unregister_plugin()
            else:
                with pytest.raises(utils.InferenceServerException) as refusal:
                    await whole(client.infer("tile", [tensor], parameters={"repeats": "[1,2]"}))
                refused.append(refusal.value)
            assert client.plugin() is None
    finally:
        await whole(client.close())
    return result, refused


@pytest.mark.parametrize("name", CLIENTS)
def test_a_plugin_sends_the_key(server: Serving, key: str, name: str):
    status = "UNAUTHENTICATED" if name.startswith("grpc") else "401"

    result, refused = asyncio.run(calls_with_and_without_a_key(CLIENTS[name], address(server, name), key))

    np.testing.assert_array_equal(result.as_numpy("output"), np.tile(X, (1, 2)))
    assert len(refused) == 2
    for refusal in refused:
        assert status in str(refusal.status())
        assert "key" in str(refusal)


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_keys_of_grpc_are_metadata(server: Serving, key: str, header: str):
    grpc = CLIENTS["grpc"]
    tensor = grpc.InferInput("input", list(X.shape), "FP32").set_data_from_numpy(X)
    form = "Bearer {}" if header == "authorization" else "{}"
    with grpc.InferenceServerClient(address(server, "grpc")) as client:
        result = client.infer("tile", [tensor], parameters={"repeats": "[2,1]"}, headers={header: form.format(key)})
        with pytest.raises(utils.InferenceServerException) as refused:
            client.infer(
                "tile", [tensor], parameters={"repeats": "[2,1]"}, headers={header: form.format("tp_" + "x" * 43)}
            )

    np.testing.assert_array_equal(result.as_numpy("output"), np.tile(X, (2, 1)))
    assert "UNAUTHENTICATED" in str(refused.value.status())


@pytest.mark.parametrize(("size", "says"), [
    (MOST_BODY_BYTES + 4, "MAX_BODY_BYTES"),  # counted by the server, as by HTTP
    (2 * MOST_BODY_BYTES, "MAX_BODY_BYTES"),  # refused by its length, before it is received
])  # fmt: skip
def test_a_message_over_the_limit_is_refused(server: Serving, key: str, size: int, says: str):
    grpc = CLIENTS["grpc"]
    tensor = grpc.InferInput("input", [size], "UINT8").set_data_from_numpy(np.zeros(size, np.uint8))
    with grpc.InferenceServerClient(address(server, "grpc")) as client:
        with pytest.raises(utils.InferenceServerException) as refused:
            client.infer("tile", [tensor], parameters={"repeats": "1"}, headers={"x-api-key": key})
        assert client.is_server_live(headers={"x-api-key": key})

    assert "RESOURCE_EXHAUSTED" in str(refused.value.status())
    assert says in str(refused.value)

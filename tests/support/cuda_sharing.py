"""The other process of `tests/open_inference/test_cuda_shared_memory.py`: it takes CUDA memory and shares it.

`python -m tests.support.cuda_sharing CHECK PORT [GRPC_PORT]` runs one function of this module, which asks the server
at that port of 127.0.0.1 and fails if an answer is wrong.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Asker", "infer_request", "region_input", "region_output"]

Array = np.ndarray[Any, Any]
NAMES = {"float32": "FP32", "uint8": "UINT8", "int64": "INT64", "int32": "INT32", "float16": "FP16"}


@dataclass
class Asker:
    """Requests to the server."""

    port: int

    def ask(self, method: str, path: str, document: Any = None, binary: bytes = b"") -> tuple[int, Any, bytes]:
        """Status, JSON part (None if there is none) and binary part; `last` has the header fields."""
        text = b"" if document is None else json.dumps(document).encode()
        headers = {"inference-header-content-length": str(len(text))} if binary else {}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, text + binary, headers)
            answer = connection.getresponse()
            body = answer.read()
        self.last = answer.headers
        length = int(answer.headers.get("inference-header-content-length", len(body)))
        return answer.status, json.loads(body[:length]) if length else None, body[length:]

    def done(self, method: str, path: str, document: Any = None, binary: bytes = b"") -> tuple[Any, bytes]:
        """As `ask`; the status must be 200."""
        status, found, rest = self.ask(method, path, document, binary)
        assert status == 200, found
        return found, rest

    def register(self, name: str, handle: bytes, size: int, device: int = 0) -> tuple[int, str]:
        """Status and the error's text."""
        document = {"raw_handle": {"b64": base64.b64encode(handle).decode()}, "device_id": device, "byte_size": size}
        status, found, _ = self.ask("POST", f"/v2/cudasharedmemory/region/{name}/register", document)
        return status, found["error"] if found else ""

    def unregister(self, name: str | None = None) -> None:
        """Unregister a region, or all."""
        middle = "" if name is None else f"/region/{name}"
        self.done("POST", f"/v2/cudasharedmemory{middle}/unregister")

    def status(self) -> Any:
        """What is registered."""
        return self.done("GET", "/v2/cudasharedmemory/status")[0]


def region_input(name: str, array: Array, region: str, offset: int = 0) -> Mapping[str, Any]:
    """An input that lies in a region."""
    parameters = {"shared_memory_region": region, "shared_memory_byte_size": array.nbytes}
    parameters |= {"shared_memory_offset": offset} if offset else {}
    return {"name": name, "datatype": NAMES[str(array.dtype)], "shape": list(array.shape), "parameters": parameters}


def region_output(name: str, region: str, size: int, offset: int = 0) -> Mapping[str, Any]:
    """An output that is put into a region."""
    parameters = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {"name": name, "parameters": parameters}


def infer_request(
    inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]], **parameters: Any
) -> Mapping[str, Any]:
    """The JSON part."""
    return {"inputs": [*inputs], "outputs": [*outputs], "parameters": parameters}


# ---- the checks; all that follows runs on a machine with a GPU -------------------------------------------------------


@dataclass
class Memory:
    """Memory on the first device."""

    size: int

    def __post_init__(self) -> None:
        import cupy  # pyright: ignore[reportMissingImports] # only where there is a device

        self.runtime: Any = cupy.cuda.runtime
        self.address: int = self.runtime.malloc(self.size)
        self.handle: bytes = self.runtime.ipcGetMemHandle(self.address)

    def put(self, array: Array, offset: int = 0) -> None:
        array = np.ascontiguousarray(array)
        self.runtime.memcpy(self.address + offset, array.ctypes.data, array.nbytes, self.runtime.memcpyHostToDevice)

    def get(self, like: Array, offset: int = 0) -> Array:
        found = np.empty_like(like, order="C")
        self.runtime.memcpy(found.ctypes.data, self.address + offset, found.nbytes, self.runtime.memcpyDeviceToHost)
        return found

    def free(self) -> None:
        self.runtime.free(self.address)


def share(port: int, grpc_port: int) -> None:
    """Register, infer in every way, unregister."""
    server, x = Asker(port), np.random.default_rng(5).normal(size=(257, 129)).astype(np.float32)
    source, target = Memory(x.nbytes + 64), Memory(8 << 20)
    assert "cuda_shared_memory" in server.done("GET", "/v2")[0]["extensions"]
    assert server.register("x", source.handle, source.size) == (200, "")
    assert server.register("y", target.handle, target.size) == (200, "")
    assert sorted(server.status(), key=lambda entry: entry["name"]) == [
        {"name": "x", "device_id": 0, "byte_size": source.size},
        {"name": "y", "device_id": 0, "byte_size": target.size},
    ]  # fmt: skip

    def infer(model: str, inputs: Any, outputs: Any, binary: bytes = b"", **parameters: Any) -> tuple[Any, bytes]:
        return server.done("POST", f"/v2/models/{model}/infer", infer_request(inputs, outputs, **parameters), binary)

    tiled = np.tile(x, (2, 3))
    # Offsets that no element is aligned at.
    for at, to, backend in ((0, 0, None), (3, 5, None), (64, 0, "cuda"), (1, 7, "numpy")):
        target.put(np.zeros(target.size, np.uint8))
        source.put(x, at)
        options: dict[str, Any] = {} if backend is None else {"backend": backend}
        found, _ = infer(
            "tile", [region_input("input", x, "x", at)], [region_output("output", "y", tiled.nbytes + 8, to)],
            repeats="[2,3]", **options,
        )  # fmt: skip
        assert server.last["tensorpost-backend"] == (backend or "cuda"), server.last["tensorpost-backend"]
        assert found["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [514, 387]}], found
        np.testing.assert_array_equal(target.get(tiled, to), tiled)
        assert not target.get(np.empty(8, np.uint8), to + tiled.nbytes).any(), "more was written than the output"
    source.put(x)
    # One of the two in the body.
    output = {"name": "output", "parameters": {"binary_data": True}}
    _, body = infer("tile", [region_input("input", x, "x")], [output], repeats="[2,3]")
    np.testing.assert_array_equal(np.frombuffer(body, np.float32).reshape(tiled.shape), tiled)
    target.put(np.zeros(target.size, np.uint8))
    given = {"name": "input", "datatype": "FP32", "shape": [257, 129], "parameters": {"binary_data_size": x.nbytes}}
    for _ in range(2):  # the second time, the call is known
        infer("tile", [given], [region_output("output", "y", tiled.nbytes)], x.tobytes(), repeats="[2,3]")
        np.testing.assert_array_equal(target.get(tiled), tiled)
        target.put(np.zeros(target.size, np.uint8))
    # An attribute as a tensor, several outputs, one of them in the body.
    target.put(np.array([2, 3], np.int64))
    small = region_input("repeats", np.array([2, 3]), "y")
    infer("tile", [region_input("input", x, "x"), small], [region_output("output", "y", tiled.nbytes, 64)])
    np.testing.assert_array_equal(target.get(tiled, 64), tiled)
    count = {"name": "K", "datatype": "INT64", "shape": [1], "data": [4]}
    order = np.argsort(-x, axis=1, kind="stable")[:, :4]
    best = np.take_along_axis(x, order, 1)
    for indices in (region_output("Indices", "y", order.nbytes, 8192), {"name": "Indices"}):
        wanted = [region_output("Values", "y", best.nbytes), indices]
        found, _ = infer("onnx.topk", [region_input("X", x, "x"), count], wanted, axis="1")
        np.testing.assert_array_equal(target.get(best), best)
        listed = found["outputs"][1].get("data")
        got = target.get(order, 8192) if listed is None else np.reshape(listed, order.shape)
        np.testing.assert_array_equal(got, order)
    infer("onnx.topk", [region_input("X", x, "x"), count], [region_output("Indices", "y", order.nbytes)], axis="1")
    np.testing.assert_array_equal(target.get(order), order)
    _refusals(server, source, target, x)
    _by_grpc(grpc_port, source)
    server.unregister("x")
    server.unregister("x")
    assert [entry["name"] for entry in server.status()] == ["y"]
    server.done("POST", "/v2/systemsharedmemory/unregister")
    assert len(server.status()) == 1, "the other kind was unregistered too"
    server.unregister()
    assert server.status() == []
    source.free()
    target.free()


def _refusals(server: Asker, source: Memory, target: Memory, x: Array) -> None:
    def infer(inputs: Any, outputs: Any) -> tuple[int, str]:
        status, found, _ = server.ask("POST", "/v2/models/tile/infer", infer_request(inputs, outputs, repeats="[1,2]"))
        return status, found["error"]

    for handle, size, device, status, says in (
        (target.handle, 1 << 40, 0, 400, "do not lie in the memory of the handle"),
        (bytes(64), 10, 0, 400, "cannot be opened"), (os.urandom(64), 10, 0, 400, "cannot be opened"),
        (b"QUJD", 10, 0, 400, "64 bytes"), (target.handle, 10, 99, 400, "no CUDA device 99"),
    ):  # fmt: skip
        found, text = server.register("z", handle, size, device)
        assert (found, says in text) == (status, True), text
    assert server.register("x", source.handle, 10)[0] == 400
    given, wanted = region_input("input", x, "x"), region_output("output", "y", 2 * x.nbytes)
    for inputs, outputs, status in (
        ([region_input("input", x, "x", 65)], [wanted], 400), ([region_input("input", x, "z")], [wanted], 404),
        ([given], [region_output("output", "y", target.size, 1)], 400),
        ([given], [region_output("output", "y", 2 * x.nbytes - 1)], 400),
        ([given], [region_output("output", "z", 2 * x.nbytes)], 404),
    ):  # fmt: skip
        found, text = infer(inputs, outputs)
        assert found == status, text


def _by_grpc(port: int, memory: Memory) -> None:
    import grpc

    from tensorpost_server.http.grpc.grpc_messages import METHODS, PACKAGE, grpc_messages

    messages: Any = grpc_messages()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def call(method: str, **fields: Any) -> Any:
            request, response = METHODS[method]
            unary: Any = channel.unary_unary(
                f"/{PACKAGE}.GRPCInferenceService/{method}",
                request_serializer=messages[request].SerializeToString,
                response_deserializer=messages[response].FromString,
            )
            return unary(messages[request](**fields))

        call("CudaSharedMemoryRegister", name="g", raw_handle=memory.handle, device_id=0, byte_size=memory.size)
        entry = call("CudaSharedMemoryStatus", name="g").regions["g"]
        assert (entry.name, entry.device_id, entry.byte_size) == ("g", 0, memory.size)
        call("CudaSharedMemoryUnregister", name="g")
        assert "g" not in call("CudaSharedMemoryStatus").regions


def leave(port: int, _grpc_port: int) -> None:
    """Register 8 GiB, infer, and be killed."""
    memory, x = Memory(8 << 30), np.arange(1000, dtype=np.float32)
    memory.put(x)
    server = Asker(port)
    assert server.register("left", memory.handle, memory.size) == (200, "")
    inputs, outputs = [region_input("input", x, "left")], [region_output("output", "left", 8000, 4096)]
    server.done("POST", "/v2/models/tile/infer", infer_request(inputs, outputs, repeats="[2]"))
    np.testing.assert_array_equal(memory.get(np.tile(x, 2), 4096), np.tile(x, 2))
    os.kill(os.getpid(), 9)


def triton(port: int, _grpc_port: int) -> None:
    """The same by tritonclient, which takes the memory with NVIDIA's own bindings."""
    import tritonclient.http as client_module
    import tritonclient.utils.cuda_shared_memory as shm

    x = np.random.default_rng(6).normal(size=(300, 200)).astype(np.float32)
    client = client_module.InferenceServerClient(f"127.0.0.1:{port}")
    given, wanted = client_module.InferInput("input", [*x.shape], "FP32"), client_module.InferRequestedOutput("output")
    region = shm.create_shared_memory_region("mine", 3 * x.nbytes, 0)
    shm.set_shared_memory_region(region, [x])
    client.register_cuda_shared_memory("mine", shm.get_raw_handle(region), 0, 3 * x.nbytes)
    assert [entry["name"] for entry in client.get_cuda_shared_memory_status()] == ["mine"]
    given.set_shared_memory("mine", x.nbytes)
    wanted.set_shared_memory("mine", 2 * x.nbytes, offset=x.nbytes)
    result = client.infer("tile", [given], outputs=[wanted], parameters={"repeats": "[2,1]"})
    output: Any = result.get_output("output")
    assert output["shape"] == [600, 200]
    found = shm.get_contents_as_numpy(region, np.float32, [900, 200])
    np.testing.assert_array_equal(found, np.concatenate([x, x, x]))
    client.unregister_cuda_shared_memory("mine")
    assert client.get_cuda_shared_memory_status() == []
    shm.destroy_shared_memory_region(region)
    client.close()


def speed(port: int, _grpc_port: int) -> None:
    """Milliseconds of a Tile of 32 MiB to 64 MiB, by where the tensors are: the median of 15 calls in turn."""
    from multiprocessing import shared_memory

    x = np.random.default_rng(7).normal(size=(4096, 2048)).astype(np.float32)
    server, memory = Asker(port), Memory(3 * x.nbytes)
    memory.put(x)
    assert server.register("device", memory.handle, memory.size) == (200, "")
    host = shared_memory.SharedMemory(create=True, size=3 * x.nbytes)
    assert host.buf is not None
    host.buf[: x.nbytes] = x.tobytes()
    document = {"key": host.name, "offset": 0, "byte_size": 3 * x.nbytes}
    server.done("POST", "/v2/systemsharedmemory/region/host/register", document)
    body = {"name": "input", "datatype": "FP32", "shape": [*x.shape], "parameters": {"binary_data_size": x.nbytes}}
    output = {"name": "output", "parameters": {"binary_data": True}}
    calls: dict[str, tuple[Any, Any, bytes]] = {
        name: (region_input("input", x, region), region_output("output", region, 2 * x.nbytes, x.nbytes), b"")
        for name, region in (("CUDA shared memory", "device"), ("system shared memory", "host"))
    }
    calls["HTTP"] = (body, output, x.tobytes())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(17):
        for name, (given, wanted, binary) in calls.items():
            begin = time.perf_counter()
            server.done(
                "POST",
                "/v2/models/tile/infer",
                infer_request([given], [wanted], repeats="[2,1]", backend="cuda"),
                binary,
            )
            times[name].append(1e3 * (time.perf_counter() - begin))
    sys.stdout.write(json.dumps({name: round(statistics.median(each[2:]), 2) for name, each in times.items()}))
    np.testing.assert_array_equal(memory.get(np.tile(x, (2, 1)), x.nbytes), np.tile(x, (2, 1)))
    server.unregister()
    server.done("POST", "/v2/systemsharedmemory/unregister")
    host.close()
    host.unlink()


if __name__ == "__main__":
    check, port, *rest = sys.argv[1:]
    {"share": share, "leave": leave, "triton": triton, "speed": speed}[check](int(port), int(rest[0]) if rest else 0)

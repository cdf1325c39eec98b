"""Held tensors and arrays on a GPU, over stand-ins for CuPy in server and client: what travels, and who frees."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.client_cupy import ClientCupy, GpuArray, as_client_cupy
from tests.support.fake_cupy import FakeCupy, using
from tests.support.http_app import Serving, eventually, serving
from tests.support.request_records import Records

from tensorpost import AsyncClient, Client
from tensorpost.calls import held_calls
from tensorpost.problems import InvalidParameter, TensorExists, TensorGone, Unavailable
from tensorpost.values.datatypes import data_type
from tensorpost_server.backends.cuda import ipc

X = np.random.default_rng(9).normal(size=(40, 60)).astype(np.float32)


class HostArray:
    """An array of a library that speaks DLPack only, and counts who reads it."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device, self.asked = array, device, list[Any]()

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options.get("dl_device"))
        options["dl_device"] = options["copy"] = None
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[FakeCupy]:
    found = FakeCupy()
    with using(found, tmp_path) as patch:
        patch.setattr(ipc, "allocation_of", found.allocation_of)
        yield found
    assert not found.allocations, "memory that was shared is left"
    assert not +found.opened


@pytest.fixture
def server(cupy: FakeCupy) -> Iterator[Serving]:
    with serving(cuda_shared_memory=True) as found:
        yield found
        found.on_loop(found.service.tensors.close)
        eventually(found.idle, "all memory is released")


@pytest.fixture
def client(cupy: FakeCupy) -> Iterator[ClientCupy]:
    found = ClientCupy(cupy)
    with as_client_cupy(found):
        yield found
    assert not found.opened, "the client has memory of the server open"


def test_a_held_tensor_comes_to_the_gpu_of_this_process(server: Serving, client: ClientCupy, cupy: FakeCupy) -> None:
    with Client(server.url, cuda_shared_memory=True) as tp:
        held = tp.put(X)
        found = tp.get_cupy(held)
        np.testing.assert_array_equal(found.host, X)
        assert (found.host.dtype, client.copies) == (np.float32, [3])
        eventually(lambda: not cupy.allocations, "the server's copy is freed when the client has its own")
        np.testing.assert_array_equal(tp.get_cupy(held.name).host, X)
        np.testing.assert_array_equal(
            tp.get_cupy(held.part(np.s_[3:9, ::2]).reshape(2, 90)).host, X[3:9, ::2].reshape(2, 90)
        )
        np.testing.assert_array_equal(tp.get_cupy(held.part(7)).host, X[7])
        np.testing.assert_array_equal(tp.get_cupy(held.reshape(-1)).host, X.reshape(-1))
        tp.delete_tensor(held)
        with pytest.raises(TensorGone):
            tp.get_cupy(held)


def test_dlpack_of_a_client_that_shares_the_gpu(server: Serving, client: ClientCupy, cupy: FakeCupy) -> None:
    with Client(server.url, cuda_shared_memory=True) as tp, Client(server.url) as plain:
        held, other = tp.put(X), plain.put(X)
        client.bus_ids = ("0000:77:00.0", "0000:1b:00.0")  # this process numbers it otherwise
        assert held.__dlpack_device__() == (2, 1)
        _, array, options = held.__dlpack__(stream=7, max_version=(1, 0))
        np.testing.assert_array_equal(array.host, X)
        assert options == {"stream": 7, "max_version": (1, 0)}
        assert len(client.copies) == 1, "what __dlpack_device__ copied was not used"
        assert held.__dlpack__()[1] is not array, "it belongs to its consumer"
        np.testing.assert_array_equal(np.from_dlpack(held, device="cpu"), X)
        with pytest.raises(BufferError, match="shares GPU 1"):
            held.__dlpack__(dl_device=(2, 0))
        assert other.__dlpack_device__() == (1, 0)
        np.testing.assert_array_equal(np.from_dlpack(other), X)
        np.testing.assert_array_equal(other.__dlpack__(dl_device=(2, 1))[1].host, X)  # who asks for it gets it
        refused: Any = ({"copy": False}, {"dl_device": (10, 0)})
        for wrong in refused:
            with pytest.raises(BufferError):
                held.__dlpack__(**wrong)
        eventually(lambda: not cupy.allocations, "nothing stays shared")


def test_an_array_on_the_gpu_is_put_without_its_elements(server: Serving, client: ClientCupy, cupy: FakeCupy) -> None:
    server.app.state.service.records = records = Records()
    with Client(server.url, cuda_shared_memory=True) as tp, Client(server.url) as plain:
        received: list[int] = []
        for each in (tp, plain):
            records.found.clear()
            held = each.put(GpuArray(X))
            np.testing.assert_array_equal(held.get(), X)
            received.append(sum([record.received_bytes for record in records.found]))
            assert held.device == "host memory"
        assert received[1] == X.nbytes
        assert received[0] == 0
        assert client.copies == [3], "within the device, into memory of its own"
        eventually(lambda: not cupy.allocations and not +cupy.opened, "it is unregistered and freed")
        named = tp.put(GpuArray(X.T[::2]), "turned")
        np.testing.assert_array_equal(named.get(), X.T[::2])
        with pytest.raises(TensorExists, match="replace=True"):
            tp.put(GpuArray(X), "turned")
        assert tp.put(GpuArray(np.zeros((0, 4), np.int8)), "turned", replace=True).shape == (0, 4)
        assert server.on_loop(lambda: server.service.regions.status(None, "anonymous", "cuda")) == []
        with pytest.raises(InvalidParameter, match="CuPy cannot share it"):
            tp.put(GpuArray(np.array(["2020-01-01"], "M8[D]")))
    eventually(lambda: not cupy.allocations, "what was refused is freed")


def test_what_speaks_dlpack_is_sent_from_where_it_lies(server: Serving) -> None:
    x = HostArray(np.arange(1 << 16, dtype=np.int16))
    (body,) = held_calls._sent(x).body
    address = np.frombuffer(body, np.uint8).__array_interface__["data"][0]
    assert address == x.array.__array_interface__["data"][0], "it was copied"
    elsewhere = HostArray(np.arange(6, dtype=np.float32), (2, 0))
    with Client(server.url) as tp:
        np.testing.assert_array_equal(tp.put(x).get(), x.array)
        np.testing.assert_array_equal(tp.put(elsewhere).get(), elsewhere.array)
        assert elsewhere.asked == [(1, 0)], "the producer is asked for a copy on the CPU"
        np.testing.assert_array_equal(tp.onnx("Neg", GpuArray(X)), -X)


def test_a_server_that_shares_nothing_says_so(cupy: FakeCupy, client: ClientCupy) -> None:
    with serving() as server, Client(server.url, cuda_shared_memory=True) as tp:
        held = tp.put(X)
        for call in (lambda: tp.get_cupy(held), lambda: tp.put(GpuArray(X)), held.__dlpack_device__):
            with pytest.raises(Unavailable, match="TENSORPOST_CUDA_SHARED_MEMORY=1"):
                call()
    with pytest.raises(InvalidParameter, match="cuda_shared_memory is 1"):
        Client("http://127.0.0.1:9", cuda_shared_memory=1)  # type: ignore[arg-type] # what is refused


def test_memory_that_cannot_be_opened_is_freed_by_the_server(
    server: Serving, client: ClientCupy, cupy: FakeCupy
) -> None:
    with Client(server.url, cuda_shared_memory=True) as tp:
        held = tp.put(X)
        client.bus_ids = ()
        with pytest.raises(InvalidParameter, match=r"0000:1b:00\.0.*CUDA_VISIBLE_DEVICES"):
            tp.get_cupy(held)
        small = tp.put(X.astype(data_type("bfloat16").dtype))
        with pytest.raises(InvalidParameter, match="CuPy has no bfloat16"):
            tp.get_cupy(small)
        eventually(lambda: not cupy.allocations, "it is freed at once")


def test_without_cupy_there_is_a_sentence(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(server.url, cuda_shared_memory=True) as tp:
        held = tp.put(X)
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(InvalidParameter, match="need CuPy in this process"):
            tp.get_cupy(held)


def test_the_asynchronous_client(server: Serving, client: ClientCupy) -> None:
    async def calls() -> None:
        async with AsyncClient(server.url, cuda_shared_memory=True) as tp:
            held = await tp.put(GpuArray(X))
            np.testing.assert_array_equal((await tp.get_cupy(held)).host, X)
            for call in (held.__dlpack__, held.__dlpack_device__):
                with pytest.raises(TypeError, match="await held"):
                    call()

    asyncio.run(calls())

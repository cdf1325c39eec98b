"""Pictures that take long to write: other callers' pictures, archives and nodes do not wait for them."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import httpx
import numpy as np
import pytest
from tests.support.http_app import NPY, npy_bytes
from tests.support.live_server import live_server

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")
SIDE, TIMES = 512, 7  # noise of 3584 x 3584, which takes AVIF some 10 s
GIB = 1 << 30


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, np.ones((2, 2), np.float32))
    return file.getvalue()


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return file.getvalue()


def test_pictures_that_take_long_hold_no_others() -> None:
    """Two calls of 0.8 MB held every picture, archive and ONNX node of others for 27 s; larger ones, for 120 s."""
    noise = npy_bytes(np.random.default_rng(0).integers(0, 256, (1, SIDE, SIDE, 3), np.uint8))
    json_type = {"content-type": "application/json"}
    others: Mapping[str, Callable[[httpx.Client], httpx.Response]] = {
        "picture": lambda client: client.post(
            "/v1/operators/tile?repeats=1,2,2,1", content=picture(), headers={"content-type": "image/png"}
        ),
        "archive": lambda client: client.post(
            "/v1/operators/tile?repeats=2,2", content=archive(), headers={"content-type": "application/x-npz"}
        ),
        "node": lambda client: client.post(
            "/v1/validate", content=b'{"op_type":"HannWindow","opset":17,"inputs":{"size":[10]}}', headers=json_type
        ),
    }
    with live_server(TENSORPOST_MEMORY_BYTES=8 * GIB) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert [call(client).status_code for call in others.values()] == [200] * len(others)  # the processes start
        ended = threading.Semaphore(0)

        def encode() -> None:
            with suppress(httpx.ReadTimeout):  # it leaves
                httpx.post(
                    f"{url}/v1/operators/tile?repeats=1,{TIMES},{TIMES},1", content=noise,
                    headers=NPY | {"accept": "image/avif"}, timeout=10,
                )  # fmt: skip
            ended.release()

        threads = [threading.Thread(target=encode) for _ in range(2)]
        for thread in threads:
            thread.start()
        ended.acquire(timeout=1.5)  # both are at it

        statuses = [call(client).status_code for call in others.values()]

        assert statuses == [200] * len(others)
        assert not ended.acquire(blocking=False), "others waited for the pictures"
        for thread in threads:
            thread.join()

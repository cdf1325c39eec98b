"""Every vectors file through the SDK against a real server in another process.

`Client.run` runs all cases, `AsyncClient.run` two of each file: both make and read the same messages, and differ in how
these travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.batches import each
from tests.support.live_server import default_server
from tests.support.vectors import Case, VectorsFile, all_hold, elements, vectors_files

from tensorpost import AsyncClient, Client

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with default_server() as found:
        yield found


@pytest.fixture(scope="module")
def sync_run(url: str) -> Iterator[Run]:
    with Client(url) as client:
        yield client.run


@pytest.fixture(scope="module")
def async_run(url: str) -> Iterator[Run]:
    with asyncio.Runner() as runner:
        client = AsyncClient(url)

        def run(*args: Any, **options: Any) -> Any:
            async def call() -> Any:
                return await client.run(*args, **options)

            return runner.run(call())

        yield run
        runner.run(client.close())


def check(run: Run, case: Case) -> None:
    """The outputs are what is expected, as arrays: gaps of strided outputs are not looked at."""
    inputs: dict[str, NDArray[Any]] = {}
    for slot, data in zip(case.desc.inputs, case.inputs, strict=True):
        inputs[slot.name] = elements(slot, data) if slot.layout.packed else np.frombuffer(data, np.uint8)
    made = run(case.desc, inputs, backend="numpy")
    assert isinstance(made, tuple) == (len(case.desc.outputs) > 1)
    outputs = made if isinstance(made, tuple) else (made,)
    for slot, found, expected in zip(case.desc.outputs, outputs, case.outputs(), strict=True):
        case.check_array(slot.name, found, expected)


@each("file", vectors_files(), ids=str)
def test_vectors_through_the_client(sync_run: Run, file: VectorsFile):
    all_hold(file.cases, lambda case: check(sync_run, case))


@each("file", vectors_files(), ids=str)
def test_vectors_through_the_async_client(async_run: Run, file: VectorsFile):
    all_hold(file.cases[:2], lambda case: check(async_run, case))

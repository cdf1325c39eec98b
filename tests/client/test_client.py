"""The clients against the real server."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.support.batches import each
from tests.support.live_server import live_server

from tensorpost import AsyncClient, BufferTensorDesc, Client, FeatureLevel, Progress, TileOperatorDesc, problems

Connect = Callable[..., Any]
MIB = 1 << 20
DTYPES = ("float32", "float16", "uint64", "int64", "uint32", "int32", "uint16", "int16", "uint8", "int8")


def tiled(x: np.ndarray, repeats: tuple[int, ...]) -> np.ndarray:
    """Output[c] = Input[c[i] mod Input.Sizes[i]], index by index."""
    sizes = [size * repeat for size, repeat in zip(x.shape, repeats, strict=True)]
    out = np.empty(sizes, x.dtype)
    for place in itertools.product(*map(range, sizes)):
        out[place] = x[tuple(c % size for c, size in zip(place, x.shape, strict=True))]
    return out


@pytest.fixture
def tp(connect: Connect, server_url: str) -> Any:
    return connect(server_url)


@pytest.fixture(scope="module")
def small_server() -> Iterator[str]:
    """A server that takes little: 1 MiB in, 1 MiB of memory."""
    with live_server(TENSORPOST_MAX_BODY_BYTES=MIB, TENSORPOST_MEMORY_BYTES=MIB) as url:
        yield url


# ---- arrays in, arrays out -------------------------------------------------------------------------------------------


@each("dtype", ["float32", "float16", "uint64", "int64", "uint32", "int32", "uint16", "int16", "uint8", "int8"])
@each("shape, repeats", [((3,), (2,)), ((2, 3), (1, 2)), ((1, 2, 1, 3), (2, 1, 3, 2))])
def test_tile(tp: Any, dtype: str, shape: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape)).astype(dtype).reshape(shape)

    y = tp.tile(x, repeats)

    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, tiled(x, repeats))


def test_every_bit_of_a_float_arrives(tp: Any) -> None:
    bits = np.array([0x00000001, 0x80000000, 0x7FC00001, 0xFFC12345, 0x7F800001, 0xFF800000], np.uint32)

    y = tp.tile(bits.view(np.float32), (2,))

    assert y.view(np.uint32).tolist() == [*bits.tolist(), *bits.tolist()]


def test_tile_into_out(tp: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    out = np.full((1, 1, 6, 9), -1, np.float32)

    y = tp.tile(x, (1, 1, 3, 3), out=out)

    assert y is out
    np.testing.assert_array_equal(out, tiled(x, (1, 1, 3, 3)))


def test_out_may_be_the_input(tp: Any) -> None:
    x = np.arange(6, dtype=np.float32)

    tp.tile(x, (1,), out=x)

    np.testing.assert_array_equal(x, np.arange(6))


def test_arrays_that_lie_otherwise_keep_their_values(tp: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)

    for other in (x.T, x[::-1, ::2], x.astype(">f4"), np.asfortranarray(x), np.broadcast_to(x[0], (3, 6))):
        np.testing.assert_array_equal(tp.tile(other, (2, 1)), tiled(np.array(other, np.float32), (2, 1)))


def test_strided_buffers_travel_as_they_are(tp: Any) -> None:
    desc = TileOperatorDesc(
        input_tensor=BufferTensorDesc(data_type="INT16", sizes=(2, 3), strides=(5, 1), total_tensor_size_in_bytes=20),
        output_tensor=BufferTensorDesc(data_type="INT16", sizes=(2, 6), strides=(1, 3), total_tensor_size_in_bytes=44),
        repeats=(1, 2),
    )
    buffer = np.array([1, 2, 3, -1, -1, 4, 5, 6, -1, -1], np.int16)

    y = tp.run(desc, buffer)

    assert y.tolist() == [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]]
    assert y.strides == (2, 6)
    out = np.full(44, 255, np.uint8)
    assert tp.run(desc, buffer.tobytes(), out=out).tolist() == y.tolist()
    # Column by column, 3 elements apart: both rows' elements, then a gap; and padding up to 22 elements.
    assert out.view(np.int16).tolist() == [1, 4, 0, 2, 5, 0, 3, 6, 0, 1, 4, 0, 2, 5, 0, 3, 6, 0, 0, 0, 0, 0]
    assert b"".join(tp.stream(desc, buffer)) == out.tobytes()


def test_a_broadcast_input_sends_only_what_there_is(tp: Any) -> None:
    desc = TileOperatorDesc.of(BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), strides=(0, 1)), (2, 1))

    assert tp.run(desc, np.array([1, 2, 3], np.float32)).tolist() == [[1, 2, 3]] * 4


def test_what_the_server_says_beside_the_result(tp: Any) -> None:
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (3,)), (2,))

    result = tp.call(desc, np.arange(3, dtype=np.float32), backend="numpy")

    assert result.array.tolist() == [0, 1, 2, 0, 1, 2]
    assert result.backend == "numpy"
    assert result.device
    assert result.request_id
    assert result.server_timing
    assert all(milliseconds >= 0 for milliseconds in result.server_timing.values())


def test_the_null_backend_is_really_asked(tp: Any) -> None:
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (3,)), (2,))

    result = tp.call(desc, np.ones(3, np.uint8), backend="null")

    assert (result.backend, result.array.tolist()) == ("null", [0] * 6)


@pytest.mark.parametrize("block_bytes", [1000, MIB])
def test_a_stream_is_the_output_in_order(tp: Any, block_bytes: int) -> None:
    x = np.random.default_rng(1).integers(0, 255, (3, 100_001), np.uint8)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", x.shape), (4, 3))

    blocks = [bytes(block) for block in tp.stream(desc, x, block_bytes=block_bytes)]

    assert b"".join(blocks) == np.tile(x, (4, 3)).tobytes()
    assert {len(block) for block in blocks[:-1]} == {block_bytes}


def test_blocks_stay_what_they_were(tp: Any) -> None:
    x = np.arange(100_000, dtype=np.uint32)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT32", x.shape), (3,))

    kept = list(tp.stream(desc, x, block_bytes=1 << 16))

    assert b"".join(kept) == x.tobytes() * 3


def test_progress_reaches_both_ends(tp: Any) -> None:
    seen: list[Progress] = []
    x = np.zeros(3 * MIB, np.uint8)

    tp.tile(x, (2,), progress=seen.append)

    assert seen[0].sent == 0
    assert seen[-1].sent == seen[-1].to_send > 3 * MIB
    assert seen[-1].received == seen[-1].to_receive
    assert seen[-1].received > 6 * MIB
    steps = [(p.sent, p.received) for p in seen]
    assert steps == sorted(steps)
    assert max(b[0] + b[1] - a[0] - a[1] for a, b in itertools.pairwise(steps)) <= MIB


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_what_the_server_refuses_comes_back_as_its_exception(tp: Any) -> None:
    x = np.zeros((2, 3), np.float32)

    with pytest.raises(problems.UnsupportedAtLevel, match="3_1") as caught:
        tp.tile(x, (1, 1), feature_level="2_1")
    assert {v.code for v in caught.value.violations} == {"dimension-count-unsupported"}
    assert caught.value.status == 422
    assert caught.value.request_id
    with pytest.raises(problems.TensorpostError, match="nonesuch"):
        tp.tile(x, (1, 1), backend="nonesuch")
    np.testing.assert_array_equal(tp.tile(x, (1, 1)), x)


def test_a_body_over_the_limit_is_refused_as_such_and_not_as_a_broken_pipe(connect: Connect, small_server: str) -> None:
    tp = connect(small_server, retries=0)

    for _ in range(5):
        with pytest.raises(problems.LimitExceeded) as caught:
            tp.tile(np.zeros(32 * MIB, np.uint8), (1,))
        assert caught.value.extra["limit"] == MIB
        assert caught.value.extra["setting"] == "TENSORPOST_MAX_BODY_BYTES"
        assert caught.value.status == 413
    assert tp.tile(np.zeros(3, np.uint8), (1,)).tolist() == [0, 0, 0]


def test_a_server_without_memory_for_it_is_busy_or_refuses(connect: Connect, small_server: str) -> None:
    tp = connect(small_server, retries=0)

    with pytest.raises((problems.TooBusy, problems.LimitExceeded)) as caught:
        tp.tile(np.zeros(MIB - 4096, np.uint8), (2,))
    assert caught.value.status in (413, 429)


# ---- questions -------------------------------------------------------------------------------------------------------

RANK_2 = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2))


def test_validate_accepts_what_the_level_supports(tp: Any) -> None:
    found = tp.validate(RANK_2, feature_level="3_1")

    assert found.operator == RANK_2
    assert found.feature_level is FeatureLevel.L3_1
    assert found.lowest_feature_level is FeatureLevel.L3_1
    assert (found.input_bytes, found.output_bytes) == (24, 48)
    assert found.document["valid"] is True


def test_validate_says_the_same_as_the_contract_offline(tp: Any) -> None:
    with pytest.raises(problems.UnsupportedAtLevel) as online:
        tp.validate(RANK_2, feature_level="2_1")
    with pytest.raises(problems.UnsupportedAtLevel) as offline:
        RANK_2.validate_for("2_1")

    assert [v.message for v in online.value.violations] == [v.message for v in offline.value.violations]
    assert online.value.extra["lowest_feature_level"] == "3_1"


def test_validate_takes_documents_that_are_no_descriptors(tp: Any) -> None:
    tensor = {"DataType": "FLOAT32", "Sizes": [2, 3]}

    assert tp.validate({"type": "TILE", "desc": {"InputTensor": tensor, "Repeats": [1, 2]}}).operator == RANK_2
    with pytest.raises(problems.InvalidDescriptor, match=r"\$\.desc\.Repeats\[1\]") as caught:
        tp.validate({"type": "TILE", "desc": {"InputTensor": tensor, "Repeats": [1, 0]}})
    assert type(caught.value) is problems.InvalidDescriptor
    with pytest.raises(problems.UnknownOperator):
        tp.validate({"type": "TILES", "desc": {}})


def test_the_catalogue_has_what_the_sdk_has(tp: Any) -> None:
    assert "DML_OPERATOR_TILE" in [entry["type"] for entry in tp.operators()["operators"]]
    assert tp.operator("DML_OPERATOR_TILE") == tp.operator("tile")
    with pytest.raises(problems.UnknownOperator, match="TILE"):
        tp.operator("til")
    with pytest.raises(problems.TensorpostError):
        tp.operator("../devices")


def test_devices_and_limits(tp: Any) -> None:
    assert "numpy" in [device["name"] for device in tp.devices()["devices"]]
    assert "max_body_bytes" in [limit["name"] for limit in tp.limits()["limits"]]


def test_health(connect: Connect, server_url: str) -> None:
    there, nowhere = connect(server_url), connect("http://127.0.0.1:9", timeout=1)

    assert (there.live(), there.ready()) == (True, True)
    assert (nowhere.live(), nowhere.ready()) == (False, False)


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [False, True], ids=["new array", "out"])
def test_64_mib_are_never_joined(connect: Connect, server_url: str, given: bool) -> None:
    tp = connect(server_url)
    x = np.zeros(64 * MIB, np.uint8)
    out = np.ones(64 * MIB, np.uint8) if given else None
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", x.shape), (1,))
    tp.run(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (1,)), (1,)), x[:1])  # connections and caches are made

    tracemalloc.start()
    try:
        y = tp.run(desc, x, out=out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert not y.any()
    assert peak < (0 if given else 64 * MIB) + 8 * MIB


def test_a_stream_needs_the_memory_of_a_few_blocks(connect: Connect, server_url: str) -> None:
    tp = connect(server_url)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (MIB,)), (64,))
    x = np.zeros(MIB, np.uint8)
    sum(map(len, tp.stream(desc, x)))

    tracemalloc.start()
    try:
        total = sum(map(len, tp.stream(desc, x)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert total == 64 * MIB
    assert peak < 8 * MIB


# ---- sharing ---------------------------------------------------------------------------------------------------------


def test_a_client_may_be_shared_between_threads(server_url: str) -> None:
    with Client(server_url) as tp, ThreadPoolExecutor(8) as threads:

        def work(number: int) -> bool:
            x = np.full((1, 1 + number % 7), number, np.int32)
            return np.array_equal(tp.tile(x, (2, 2)), np.full((2, 2 * x.shape[1]), number))

        assert all(threads.map(work, range(200)))


def test_an_async_client_may_be_shared_between_tasks(server_url: str) -> None:
    async def main() -> None:
        async with AsyncClient(server_url) as tp:

            async def work(number: int) -> bool:
                x = np.full((1, 1 + number % 7), number, np.int32)
                return np.array_equal(await tp.tile(x, (2, 2)), np.full((2, 2 * x.shape[1]), number))

            assert all(await asyncio.gather(*map(work, range(100))))

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_a_client_that_works(server_url: str) -> None:
    x = np.zeros(16 * MIB, np.uint8)

    async def main() -> None:
        in_time = 0
        async with AsyncClient(server_url) as tp:
            for delay in (0.0, 0.001, 0.005, 0.02):
                task = asyncio.create_task(tp.tile(x, (4,)))
                await asyncio.sleep(delay)
                if task.cancel():  # False if it was done by then, as it may be after the longest wait
                    in_time += 1
                    with pytest.raises(asyncio.CancelledError):
                        await task
                assert (await tp.tile(np.ones(3, np.uint8), (1,))).tolist() == [1, 1, 1]
        assert in_time >= 2

    asyncio.run(main())


FORKING = """
import os, sys
import numpy as np
from tensorpost import BufferTensorDesc, Client, TileOperatorDesc

desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (1 << 20,)), (4,))
with Client(sys.argv[1], timeout=20) as tp:
    tp.tile(np.zeros(100, np.uint8), (2,))
    begun = tp.stream(desc, np.zeros(1 << 20, np.uint8))
    next(begun)
    children = []
    for number in range(1, 5):
        if (child := os.fork()) == 0:
            try:
                for _ in range(10):
                    assert (tp.tile(np.full(5000, number, np.uint8), (3,)) == number).all()
                try:
                    next(begun)
                except RuntimeError as error:
                    assert "was forked" in str(error), error
                else:
                    raise AssertionError("the answer of another process was read")
                begun.close()
                assert (tp.tile(np.full(5000, number, np.uint8), (3,)) == number).all()
            except BaseException as error:
                print(number, repr(error))
                os._exit(1)
            os._exit(0)
        children.append(child)
    print([os.waitpid(child, 0)[1] for child in children], sum(len(block) for block in begun))
    print(tp.tile(np.zeros(1, np.uint8), (2,)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_forked_process_has_connections_of_its_own(server_url: str) -> None:
    arguments = [sys.executable, "-c", FORKING, server_url]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=120)

    assert done.stdout == f"[0, 0, 0, 0] {3 * MIB}\n[0 0]\n", done.stderr


def test_other_tasks_have_their_turn_while_an_answer_comes(server_url: str) -> None:
    x, out = np.zeros(8 * MIB, np.uint8), np.ones(128 * MIB, np.uint8)

    async def main() -> int:
        turns, over = 0, False

        async def count() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncClient(server_url) as tp:
            counting = asyncio.create_task(count())
            before = turns
            await tp.tile(x, (16,), out=out)
            over = True
            await counting
            return turns - before

    # 128 MiB take 20 ms at the least, and a turn comes every millisecond
    assert asyncio.run(main()) >= 10


def test_an_async_stream_is_read_with_async_for(server_url: str) -> None:
    x = np.arange(1000, dtype=np.uint16)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT16", x.shape), (3,))

    async def main() -> bytes:
        async with AsyncClient(server_url) as tp:
            return b"".join([bytes(block) async for block in tp.stream(desc, x)])

    assert asyncio.run(main()) == x.tobytes() * 3

"""`map`: fifty photographs through a graph, over several connections, in order, also while the server restarts."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from tests.support.live_server import live_process

from tensorpost import AsyncClient, Client, GraphBuilder, MapProgress, ProgressBar
from tensorpost.problems import ConnectFailed, InvalidDescriptor, InvalidFrame, InvalidParameter

RNG = np.random.default_rng(7)


def half_graph() -> dict[str, Any]:
    """Every other row and column of a photograph of any size, upside down."""
    g = GraphBuilder()
    return g.build(half=g.input("photo", np.uint8, (1, "h", "w", 3))[:, ::-2, ::2])


def half(photo: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return photo[np.newaxis, ::-2, ::2]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, np.ndarray[Any, Any]]:
    """Fifty PNGs of different sizes, and their pixels."""
    folder, found = tmp_path_factory.mktemp("photos"), dict[Path, np.ndarray[Any, Any]]()
    for number in range(50):
        pixels = RNG.integers(0, 255, (16 + number, 40, 3), np.uint8)
        path = folder / f"{number:02}.png"
        Image.fromarray(pixels).save(path)
        found[path] = pixels
    return found


def test_results_come_in_order_over_several_connections(
    connect: Callable[..., Any], server_url: str, photos: dict[Path, np.ndarray[Any, Any]]
) -> None:
    seen: list[MapProgress] = []
    results = [*connect(server_url).map(half_graph(), photos, in_flight=5, progress=seen.append)]

    assert [*results[0]] == ["half"]
    for result, pixels in zip(results, photos.values(), strict=True):
        np.testing.assert_array_equal(result["half"], half(pixels))
    assert seen == [MapProgress(done, 50) for done in range(1, 51)]


def test_inputs_are_arrays_pictures_and_paths(
    server_url: str, photos: dict[Path, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    path, pixels = next(iter(photos.items()))
    saved = tmp_path / "photo.npy"
    np.save(saved, pixels[np.newaxis])
    given: list[Any] = [path, str(path), path.read_bytes(), saved, pixels[np.newaxis], {"photo": path}]
    with Client(server_url) as tp:
        for result in tp.map(half_graph(), iter(given), in_flight=1):
            np.testing.assert_array_equal(result["half"], half(pixels))
        two = GraphBuilder()
        a, b = two.input("a", np.uint8, (1, "h", "w", 3)), two.input("b", np.uint8, (1, "h", "w", 3))
        joined = tp.run_graph(two.build(c=two.concatenate([a, b])), {"a": path, "b": pixels[np.newaxis]})["c"]
        np.testing.assert_array_equal(joined, np.stack([pixels, pixels]))


def test_a_picture_travels_as_it_is() -> None:
    """The bytes of a JPEG are the whole body, counted by the socket that takes them."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((300, 400, 3), np.uint8)).save(buffer, "JPEG")
    content = buffer.getvalue()
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            connection, _ = listener.accept()
            with connection:
                while content not in received:
                    received.extend(connection.recv(65536))

        taker = threading.Thread(target=take)
        taker.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, retries=0) as tp, pytest.raises(ConnectionError):
            tp.run_graph(half_graph(), {"photo": content})
        taker.join()
    head, _, body = bytes(received).partition(b"\r\n\r\n")

    assert body == content
    assert b"content-type: image/jpeg" in head.lower()
    assert len(received) < len(content) + 2000


def test_a_server_that_restarts_costs_time_and_no_result(photos: dict[Path, np.ndarray[Any, Any]]) -> None:
    with contextlib.ExitStack() as first, socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        reserved.close()
        url = f"http://127.0.0.1:{port}"
        at_port = (
            "import tensorpost_server.commands as commands\nserve_at = commands.serve\n"
            f"commands.serve = lambda **options: serve_at(**{{**options, 'port': {port}}})\n"
        )
        first.enter_context(live_process(at_port))
        results: list[Any] = []
        with Client(url) as tp:
            for result in tp.map(half_graph(), photos, in_flight=4):
                results.append(result["half"])
                if len(results) == 10:
                    first.close()  # the server ends
                    first.enter_context(live_process(at_port))
    assert len(results) == 50
    for result, pixels in zip(results, photos.values(), strict=True):
        np.testing.assert_array_equal(result, half(pixels))


def test_a_server_that_is_gone_is_reported_in_time() -> None:
    with Client("http://127.0.0.1:9", retries=0) as tp, pytest.raises(ConnectFailed):
        next(tp.map(half_graph(), [np.zeros((1, 2, 2, 3), np.uint8)], retry_seconds=0.5))


def test_what_is_wrong_is_said(server_url: str, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no picture")
    graph, photo = half_graph(), np.zeros((1, 2, 2, 3), np.uint8)
    two = GraphBuilder()
    both = two.build(y=two.input("a", np.uint8, (1,)) + two.input("b", np.uint8, (1,)))
    with Client(server_url) as tp:
        refused: list[tuple[dict[str, Any], str]] = [
            ({"in_flight": 0}, "in_flight"),
            ({"retry_seconds": -1}, "retry_seconds is -1"),
            ({"progress": 3}, "takes a MapProgress"),
        ]
        for options, words in refused:
            with pytest.raises(InvalidParameter, match=words):
                tp.map(graph, [photo], **options)
        with pytest.raises(InvalidParameter, match="must be an iterable"):
            tp.map(graph, cast("Any", 3))
        with pytest.raises(InvalidParameter, match="inputs a, b; each item must be a mapping"):
            next(tp.map(both, [photo]))
        with pytest.raises(InvalidFrame, match=r"notes.txt is not a picture"):
            next(tp.map(graph, [text]))
        with pytest.raises(FileNotFoundError, match=r"nothing\.png"):
            next(tp.map(graph, ["nothing.png"]))
        results = tp.map(graph, [photo, photo[0], photo])
        np.testing.assert_array_equal(next(results)["half"], half(photo[0]))
        with pytest.raises(InvalidDescriptor, match="3 dimensions as it was sent"):
            next(results)


def test_leaving_early_ends_the_calls(server_url: str) -> None:
    def endless() -> Iterator[np.ndarray[Any, Any]]:
        while True:
            yield np.zeros((1, 2, 2, 3), np.uint8)

    with Client(server_url) as tp:
        for result in tp.map(half_graph(), endless(), in_flight=3):
            assert result["half"].shape == (1, 1, 1, 3)
            break
        assert tp.run_graph(half_graph(), {"photo": next(endless())})["half"].shape == (1, 1, 1, 3)

    async def in_asyncio() -> int:
        async with (
            AsyncClient(server_url) as client,
            contextlib.aclosing(client.map(half_graph(), endless(), in_flight=3)) as results,
        ):
            async for _ in results:
                break
        return len(asyncio.all_tasks())

    assert asyncio.run(in_asyncio()) == 1


def test_progress_bars_count_results() -> None:
    file, times = io.StringIO(), iter([0.0, 0.0, 2.0, 4.0])
    bar = ProgressBar(file, lambda: next(times))
    for done in (1, 2, 4):
        bar(MapProgress(done, 4))
    lines = [line.strip() for line in file.getvalue().split("\r")]

    assert lines[1].startswith("[######..................] 1 of 4")
    assert lines[-1] == "[########################] 4 of 4, 2.0/s"

"""Versions of stored graphs through both clients and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.command_line import invoke
from tests.support.http_app import Serving, serving

from tensorpost import AsyncClient, Client
from tensorpost.problems import GraphNotFound, InvalidParameter

X = np.array([[1, -2, 3]], np.float32)


def graph(op_type: str, name: str = "x") -> dict[str, Any]:
    return {
        "inputs": {name: {}},
        "nodes": [{"name": "y", "op_type": op_type, "inputs": [name]}],
        "outputs": {"y": "y"},
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(backend="numpy") as found:
        yield found


def test_each_version_is_called_by_its_number(server: Serving) -> None:
    with Client(server.url) as tp:
        newest = tp.store(graph("Neg"), "net")
        assert (newest.version, newest.versions) == (None, (1,))
        np.testing.assert_array_equal(newest(X)["y"], -X)
        second = tp.store(graph("Abs"), "net", version=2)
        assert (second.version, second.versions) == (2, (1, 2))
        third = tp.store(graph("Relu", "renamed"), "net", version=3)
        assert (third.version, third.inputs) == (3, ("renamed",))
        for _ in range(3):  # the third is replayed
            np.testing.assert_array_equal(second(X)["y"], np.abs(X))
            np.testing.assert_array_equal(third(X)["y"], np.maximum(X, 0))
            np.testing.assert_array_equal(tp.run_stored("net", X)["y"], np.maximum(X, 0))
            np.testing.assert_array_equal(tp.run_stored("net", X, version=1)["y"], -X)
            np.testing.assert_array_equal(tp.run_stored(third, X, version=2)["y"], np.abs(X))
        np.testing.assert_array_equal(tp.stored_graph("net", 1)({"x": X})["y"], -X)
        np.testing.assert_array_equal(tp.run_graph(second, {"x": X})["y"], np.abs(X))
        assert [result["y"].tolist() for result in tp.map(second, [X, -X])] == [np.abs(X).tolist()] * 2
        assert [(each.name, each.version) for each in tp.stored_graphs()] == [("net", 1), ("net", 2), ("net", 3)]

        tp.delete_graph("net", 3)
        np.testing.assert_array_equal(newest(X)["y"], np.abs(X))
        with pytest.raises(GraphNotFound, match="has no version '3'; it has the versions 1, 2") as caught:
            third(X)
        assert caught.value.extra["versions"] == [1, 2]
        tp.delete_graph("net")
        with pytest.raises(GraphNotFound, match="no stored graph 'net'"):
            second(X)


def test_a_version_that_is_none_is_not_sent(server: Serving) -> None:
    with Client(server.url) as tp:
        for version in (0, -1, 1.5, "2", True):
            wrong: Any = version
            with pytest.raises(InvalidParameter, match=r"version is .*; it must be a whole number of at least 1"):
                tp.store(graph("Neg"), "net", version=wrong)
            with pytest.raises(InvalidParameter, match="version is"):
                tp.run_stored("net", X, version=wrong)
        with pytest.raises(InvalidParameter, match="a version needs a name"):
            tp.store(graph("Neg"), version=2)
        assert tp.stored_graphs() == []


def test_the_same_from_asyncio(server: Serving) -> None:
    async def call() -> Any:
        async with AsyncClient(server.url) as tp:
            first = await tp.store(graph("Neg"), "net", version=1)
            await tp.store(graph("Abs"), "net", version=2)
            found = await first(X), await tp.run_stored("net", X), await tp.run_stored("net", X, version=1)
            await tp.delete_graph("net", version=2)
            versions = (await tp.stored_graph("net")).versions
            await tp.delete_graph("net")
            return [each["y"].tolist() for each in found], versions

    assert asyncio.run(call()) == ([(-X).tolist(), np.abs(X).tolist(), (-X).tolist()], (1,))


def test_the_command_line_stores_calls_lists_and_deletes_versions(server: Serving, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    at = ("--url", server.url)
    for version, op_type in (("1", "Neg"), ("2", "Abs")):
        file = tmp_path / f"{version}.json"
        file.write_text(json.dumps(graph(op_type)))
        said = invoke("graph", "store", str(file), "--name", "cli", "--version", version, *at)
        assert f"cli, version {version}: inputs x; outputs y" in said.stdout
    rows = [line.split()[:2] for line in invoke("graph", "list", *at).stdout.splitlines()]
    assert [row for row in rows if row[:1] == ["cli"]] == [["cli", "1"], ["cli", "2"]]
    for options, expected in (((), np.abs(X)), (("--version", "1"), -X)):
        output = tmp_path / "y.npy"
        invoke("graph", "call", "cli", f"x={tmp_path / 'x.npy'}", "-o", f"y={output}", *options, *at)
        np.testing.assert_array_equal(np.load(output), expected)
        output.unlink()
    assert "version 2 of cli is deleted" in invoke("graph", "delete", "cli", "--version", "2", *at).stdout
    assert "cli is deleted" in invoke("graph", "delete", "cli", *at).stdout

"""What the SDK promises to the outside: its names, its types, how light it is."""

from __future__ import annotations

import inspect
import runpy
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import tensorpost
from tensorpost import AsyncClient, Client
from tensorpost.calls.numpy_calls import NumpyCalls

CALLS = [name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")]


def test_the_public_names_are_exactly_these_and_sorted() -> None:
    assert sorted(tensorpost.__all__) == tensorpost.__all__
    assert {name for name in dir(tensorpost) if name in tensorpost.__all__} == set(tensorpost.__all__)
    for name in tensorpost.__all__:
        assert getattr(tensorpost, name) is not None
    with pytest.raises(AttributeError, match="Clients"):
        _ = tensorpost.Clients


def test_the_issue_s_import_line_works() -> None:
    from tensorpost import AsyncClient, BufferTensorDesc, Client, TensorDataType, TileOperatorDesc

    names = [cls.__name__ for cls in (Client, AsyncClient, BufferTensorDesc, TileOperatorDesc, TensorDataType)]
    assert names == ["Client", "AsyncClient", "BufferTensorDesc", "TileOperatorDesc", "TensorDataType"]


def test_both_clients_have_the_same_calls() -> None:
    async_calls = [name for name, _ in inspect.getmembers(AsyncClient, inspect.isfunction) if not name.startswith("_")]

    assert async_calls == CALLS
    assert {"tile", "run", "call", "stream", "validate", "operators", "operator", "devices", "limits"} < set(CALLS)


@pytest.mark.parametrize("name", ["__init__", *CALLS])
def test_each_call_has_the_same_signature_in_both(name: str) -> None:
    blocking = inspect.signature(getattr(Client, name))
    waiting = inspect.signature(getattr(AsyncClient, name))

    for other, own in zip(blocking.parameters.values(), waiting.parameters.values(), strict=True):
        if own.name == "http_client":
            assert (other.annotation, own.annotation) == ("httpx.Client | None", "httpx.AsyncClient | None")
        else:
            assert other == own
    if name in ("stream", "stream_graph", "map"):
        assert (blocking.return_annotation, waiting.return_annotation) == (
            "Generator[Any, None, None]",
            "AsyncGenerator[Any, None]",
        )
    else:
        assert blocking.return_annotation == waiting.return_annotation
        # Those in NumPy's words return what `run` does: an awaitable.
        awaits = name != "__init__" and name not in vars(NumpyCalls)
        assert inspect.iscoroutinefunction(getattr(AsyncClient, name)) == awaits


def test_the_asynchronous_client_is_what_the_script_makes_of_the_blocking_one() -> None:
    folder = Path(tensorpost.__file__).parent
    generate = runpy.run_path(str(folder.parent / "generate_async_client.py"))["generate"]

    assert generate((folder / "client.py").read_text("utf-8")) == (folder / "async_client.py").read_text("utf-8")


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_documented_and_fully_typed(name: str) -> None:
    call = getattr(Client, name)

    assert inspect.getdoc(call)
    assert inspect.getdoc(getattr(AsyncClient, name))
    assert set(call.__annotations__) == {*inspect.signature(call).parameters, "return"} - {"self"}


def test_the_package_is_marked_as_typed() -> None:
    assert (files("tensorpost") / "py.typed").is_file()


def in_a_fresh_interpreter(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def loaded(statement: str, *modules: str) -> list[str]:
    """Which of these modules a fresh interpreter has loaded after this statement."""
    code = f"import sys; {statement}; print(*[m for m in {modules!r} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_the_values_alone_load_no_network() -> None:
    statement = "import tensorpost; tensorpost.TileOperatorDesc; tensorpost.problems"

    assert loaded(statement, "tensorpost.values.problems", "httpx", "h11", "asyncio", "ssl", "typer") == [
        "tensorpost.values.problems"
    ]


def test_a_client_for_plain_http_loads_no_httpx_and_no_other_package_s_code() -> None:
    statement = "from tensorpost import Client; Client('http://127.0.0.1:8000')"

    unwanted = ("httpx", "asyncio", "ssl", "urllib.request", "tensorpost_server", "fastapi", "typer", "rich", "PIL")
    assert loaded(statement, "tensorpost.transport.http1", "h11", *unwanted) == ["tensorpost.transport.http1"]


def test_a_client_builds_no_operator_before_one_is_named() -> None:
    families = (
        "pydantic",
        "tensorpost.descriptors.activation",
        "tensorpost.descriptors.tile",
        "tensorpost.onnx.lowering",
    )
    statement = "from tensorpost import Client; Client('http://127.0.0.1:8000')"

    assert not loaded(statement, *families)
    assert not loaded("import tensorpost.command_line.cli", *families)
    tile = "import tensorpost; assert tensorpost.descriptors.operator_class('TILE') is tensorpost.TileOperatorDesc"
    assert loaded(tile, *families) == ["pydantic", "tensorpost.descriptors.tile"]


def test_a_client_for_tls_loads_no_httpx_either() -> None:
    statement = "from tensorpost import Client; Client('https://127.0.0.1:9', tls=False, retries=0).live()"

    assert loaded(statement, "tensorpost.transport.http1", "httpx", "h11") == ["tensorpost.transport.http1"]


def test_the_version_is_said_without_the_commands() -> None:
    statement = "sys.argv[1:] = ['--version']; from tensorpost.__main__ import main; main()"

    assert loaded(statement, "tensorpost.__main__", "typer", "numpy", "pydantic")[-1] == "tensorpost.__main__"

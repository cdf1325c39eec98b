"""Writes `tensorpost/async_client.py` from `tensorpost/client.py`: python client/generate_async_client.py.

Both clients have the same calls. Where `Client` runs a coroutine to its end, `AsyncClient` awaits it; its docstrings
refer to those of `Client`. A test compares the written file with what this script makes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

__all__ = ["generate"]

PACKAGE = Path(__file__).parent / "tensorpost"
HEADER = '"""`AsyncClient`: the calls of `Client`, for asyncio. Written by `generate_async_client.py`."""'
CLASS_DOCSTRING = '''    """A connection to a tensorpost server, for asyncio. The same calls as `Client`, to be awaited.

    May be shared between tasks of one event loop. A task that is cancelled closes its connection. `progress` functions
    are called on the event loop and must not block.

    Args:
{arguments}

    Examples:
        >>> async def three_by_three(x):
        ...     async with AsyncClient("http://127.0.0.1:8000") as tp:
        ...         return await tp.tile(x, (1, 1, 3, 3))

    Raises:
        InvalidParameter: an argument is malformed.
    """'''
STREAM_NOTE = (
    "        Python closes an asynchronous generator that is left early only some time later. To close the connection\n"
    "        at once: `async with contextlib.aclosing(tp.stream(...)) as blocks`."
)
NAMES = (
    ("class Client(", "class AsyncClient("),
    ('__all__ = ["Client"]', '__all__ = ["AsyncClient"]'),
    ("httpx.Client", "httpx.AsyncClient"),
    ("from collections.abc import Callable, Generator,", "from collections.abc import AsyncGenerator, Callable,"),
    ("Generator[Any, None, None]", "AsyncGenerator[Any, None]"),
    ("import ThreadRuntime, iterate_blocking, run_blocking", "import AsyncioRuntime"),
    ("ThreadRuntime()", "AsyncioRuntime()"),
    ("__enter__", "__aenter__"),
    ("__exit__", "__aexit__"),
    ("self.close()", "await self.close()"),
    ("self.run(", "await self.run("),
    ("self.call(", "await self.call("),
)


def generate(source: str) -> str:
    """The text of `async_client.py` for a text of `client.py`."""
    tree = ast.parse(source)
    lines: list[str | None] = list(source.splitlines())
    (client,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    _replace(lines, tree.body[0], HEADER)
    methods = [node for node in client.body if isinstance(node, ast.FunctionDef)]
    (init,) = (method for method in methods if method.name == "__init__")
    names = [argument.arg for argument in (*init.args.args[1:], *init.args.kwonlyargs)]
    own = {"http_client": "an `httpx.AsyncClient`; see `Client`."}
    arguments = [f"        {name}: {own.get(name, 'see `Client`.')}" for name in names]
    _replace(lines, client.body[0], CLASS_DOCSTRING.format(arguments="\n".join(arguments)))
    for method in methods:
        statements = method.body[1:] if ast.get_docstring(method) else method.body
        text = "\n".join(source.splitlines()[statements[0].lineno - 1 : method.end_lineno])
        waits = re.search(r"run_blocking\(|self\.(run|call|close)\(", text) or method.name == "__enter__"
        line = lines[method.lineno - 1]
        assert line is not None
        if waits:
            lines[method.lineno - 1] = line.replace("    def ", "    async def ")
        if (docstring := ast.get_docstring(method)) and method.name != "close":
            _replace(lines, method.body[0], _docstring(method.name, docstring))
    text = "\n".join(line for line in lines if line is not None) + "\n"
    for old, new in NAMES:
        text = text.replace(old, new)
    return _unwrapped(_unwrapped(text, "run_blocking(", "await "), "iterate_blocking(", "")


def _docstring(name: str, text: str) -> str:
    """What the method does, as the docstring of `Client`'s begins, and where the rest stands."""
    summary, *rest = text.splitlines()
    if not rest:
        return f'        """{summary}"""'
    notes = [f"        See `Client.{name}`.", *([STREAM_NOTE] if name == "stream" else [])]
    return "\n".join([f'        """{summary}', "", *notes, '        """'])


def _replace(lines: list[str | None], node: ast.stmt, text: str) -> None:
    end = node.end_lineno or node.lineno
    lines[node.lineno - 1 : end] = [text, *[None] * (end - node.lineno)]


def _unwrapped(text: str, call: str, prefix: str) -> str:
    """`call(x)` as `prefix x`."""
    while (start := text.find(call)) >= 0:
        depth, end = 1, start + len(call)
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = f"{text[:start]}{prefix}{text[start + len(call) : end - 1]}{text[end:]}"
    return text


if __name__ == "__main__":
    (PACKAGE / "async_client.py").write_text(generate((PACKAGE / "client.py").read_text("utf-8")), "utf-8")

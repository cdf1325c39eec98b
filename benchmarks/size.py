"""How large the project is and how long the way of a call: `make size`.

Prints the operators that are served, lines of Python of both packages, files of `http/`, lines of the backend directml
and of the SDK's transport, lines that an operator takes (its descriptor class, and what makes its form with the private
functions that are used for it), and how many of our functions, in how many files, the first small Tile passes in the
server. Only counts: nothing here depends on speed.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
# Everything of the SDK between `Client` and the socket; `_results.py` is what calls give back.
TRANSPORT = (
    "_api_calls", "_connection", "_connection_pool", "_deadline", "_http1", "_httpx_sender", "_origin",
    "_response", "_results", "_runtime", "_socket_sender", "_transport",
)  # fmt: skip
PACKAGES = (ROOT / "client" / "tensorpost", ROOT / "app" / "tensorpost_server")


def main() -> None:
    from tensorpost.descriptors import OPERATORS, operator_names
    from tensorpost.onnx import ONNX_OPERATORS

    files = [path for package in PACKAGES for path in package.rglob("*.py")]
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in files}
    rooms = {path.parent for path in files if "http" in path.parts}
    http = {room: [path for path in files if path.parent == room] for room in sorted(rooms)}
    each = operator_lines()
    calls, passed = way_of_a_small_tile()
    onnx = {schema.op_type for schema in ONNX_OPERATORS}
    print(f"operators served: {len(OPERATORS)} of DirectML's {len(operator_names())}; {len(onnx)} of ONNX")
    print(f"lines of Python in both packages: {sum(lines.values()):,}, in {len(files)} files")
    for room, inside in http.items():
        name = "/".join(room.parts[room.parts.index("http") :])
        inside_lines = sum(lines[path] for path in inside)
        print(f"files in {name}/: {len(inside)}, with {inside_lines:,} lines")
    directml = [lines[path] for path in files if path.parent == PACKAGES[1] / "backends" / "directml"]
    print(f"lines of the backend directml: {sum(directml):,}, in {len(directml)} files")
    transport = [lines[PACKAGES[0] / f"{name}.py"] for name in TRANSPORT]
    print(f"lines between the SDK's Client and the socket: {sum(transport):,}, in {len(transport)} files")
    print(f"lines of an operator, class and form: median {median(each.values()):g}, most {max(each.values())}", end=" ")
    print(f"({max(each, key=lambda name: each[name])})")
    print(f"a first small Tile: {calls} calls of our functions, in {len(passed)} files")


def operator_lines() -> dict[str, int]:
    """Lines of each operator: descriptor class, and everything in the server that is there for its form."""
    from tensorpost.descriptors import OPERATORS

    classes: dict[str, int] = {}
    for path in (PACKAGES[0] / "descriptors").glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = _extent(node)
    forms: Counter[str] = Counter()
    for path in (PACKAGES[1] / "operators").glob("*.py"):
        body = ast.parse(path.read_text("utf-8")).body
        private = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        for node in body:
            decorated = isinstance(node, ast.FunctionDef) and node.decorator_list
            if not decorated and not isinstance(node, ast.Expr):
                continue
            named = node.decorator_list if isinstance(node, ast.FunctionDef) else [node]
            operators = {name for part in named for name in _names(part) if name.endswith("OperatorDesc")}
            for operator in operators:
                used = _reachable(node, private)
                forms[operator] += (_extent(node) + sum(_extent(private[name]) for name in used)) // len(operators)
    return {cls.operator_type: classes[cls.__name__] + forms[cls.__name__] for cls in OPERATORS}


def _extent(node: ast.stmt) -> int:
    first = min([node.lineno, *[part.lineno for part in getattr(node, "decorator_list", [])]])
    return (node.end_lineno or first) - first + 1


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Name):
            yield part.id


def _reachable(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> set[str]:
    found: set[str] = set()
    waiting = [node]
    while waiting:
        for name in _names(waiting.pop()):
            if name.startswith("_") and name in functions and name not in found:
                found.add(name)
                waiting.append(functions[name])
    return found


def way_of_a_small_tile() -> tuple[int, set[str]]:
    """Calls of our functions, and the files they are in, for the first request of a server that has just started.

    Counted is what begins on the event loop's thread, as `sys.setprofile` reports it: functions, comprehensions and
    generators, each time that one is entered again. The kernel runs on another thread the first time.
    """
    import numpy as np

    from tensorpost.npy import encode_npy_head
    from tensorpost_server.main import create_app
    from tensorpost_server.settings import Settings

    x = np.ones((1, 1, 2, 3), np.float32)
    from tensorpost.datatypes import data_type

    body = encode_npy_head(data_type("float32"), x.shape) + x.tobytes()
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(tuple(map(str, PACKAGES))):
            calls[name] += 1

    async def run() -> int:
        app = create_app(Settings(backend="numpy"))
        scope = {
            "type": "http", "method": "POST", "path": "/v1/operators/tile", "query_string": b"repeats=1,1,3,3",
            "root_path": "", "scheme": "http", "server": ("localhost", 80), "http_version": "1.1",
            "headers": [
                (b"host", b"localhost"), (b"content-type", b"application/x-npy"),
                (b"content-length", str(len(body)).encode()),
            ],
        }  # fmt: skip
        status: list[int] = []

        received: list[bool] = []

        async def receive() -> dict[str, Any]:
            if received:
                await asyncio.Event().wait()  # the caller stays
            received.append(True)
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            status.extend([message["status"]] if message["type"] == "http.response.start" else [])

        async with app.router.lifespan_context(app):
            await asyncio.sleep(0)  # the application's own tasks begin
            app.middleware_stack = app.build_middleware_stack()  # as a server's lifespan messages would have made it
            sys.setprofile(count)
            try:
                await app(scope, receive, send)
            finally:
                sys.setprofile(None)
        return status[0]

    assert asyncio.run(run()) == 200
    return sum(calls.values()), set(calls)


if __name__ == "__main__":
    main()

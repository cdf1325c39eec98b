"""How large the project is, how it is layered, and how long the way of a small call is: `make size`, in Markdown.

    python -m benchmarks.size --tree DIR    the same of another checkout, with the packages that are installed here

Only counts: nothing here depends on speed.

**Lines**, by folder, of Python files: a docstring is any string that is a statement of its own; comments are lines that
hold nothing else; blanks stand outside of strings. The rest is code.

**Layers**, by folder: what lies in it, files and folders, each folder as one, and who of them imports whom (all import
statements, also those inside functions). Floors are the longest chain of imports. Where some import each other in a
circle, arrows back up are the imports, as pairs of files, that have to go before there is an order; the fewest.

**Calls** of a Tile of 2 x 3 floats by each of the four wires: how often functions, comprehensions and generators of the
two packages are entered, on every thread, as `sys.setprofile` sees it, and the files that these are in. The server is
a real one (`tensorpost serve`'s function, backend numpy, without an access log) that is sent requests over a socket in
a process that has answered nothing but its own first Tile and is quiet: the first call, and the least of ten that
repeat it, which replays answer. Of the SDK, which calls such a server in another process, its own functions are
counted, connecting included. Counting ends a twentieth of a second after the answer. What a server does from time to
time adds to it on a busy machine, so each row is the least of three processes.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ROOTS = ("client/tensorpost", "app/tensorpost_server")
KINDS = ("code", "docstrings", "comments", "blanks")
REPEATS, PROCESSES = 10, 3
AFTER = 0.05  # seconds; what a server does once its answer is sent
QUIET, AT_MOST = 0.3, 60  # seconds in which a server that has started does next to nothing; how long that may take
MOST_IN_A_CIRCLE = 16  # of which every order is looked at


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size", description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout; by default this one")
    parser.add_argument("--calls", choices=[*WIRES, "sdk"], help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.calls:
        (calls_of_the_sdk if options.calls == "sdk" else calls_of_a_server)(options.tree, options.calls)
        return
    files = sorted(path for root in ROOTS for path in (options.tree / root).rglob("*.py"))
    print_lines(options.tree, files)
    print_layers(imports_of(options.tree, files))
    print_calls(options.tree)


def table(*rows: Sequence[object]) -> None:
    head, *body = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    print("", *["| " + " | ".join(row) + " |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *body)], sep="\n")


# ---- lines ----------------------------------------------------------------------------------------------------------


def print_lines(tree: Path, files: Sequence[Path]) -> None:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path in files:
        inside = path.parent.relative_to(tree).as_posix()
        of_file = lines_of(path.read_text("utf-8")) + Counter(files=1)
        for name in (inside, "both packages"):
            found[name] += of_file
    rows = [(name, of["files"], *[of[kind] for kind in KINDS], of.total() - of["files"]) for name, of in found.items()]
    table(("folder", "files", *KINDS, "lines"), *sorted(rows))


def lines_of(text: str) -> Counter[str]:
    """Lines of each of `KINDS`."""
    kinds = ["blanks" if not line.strip() else "code" for line in text.splitlines()]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first, last = token.start[0] - 1, token.end[0]
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            kinds[first] = "comments"
        elif last - first > 1 and token.type not in (tokenize.NEWLINE, tokenize.NL):
            kinds[first:last] = ["code"] * (last - first)  # a string of several lines, with its empty ones
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            kinds[first:last] = ["docstrings"] * (last - first)
    return Counter(kinds)


# ---- layers ---------------------------------------------------------------------------------------------------------

Module = tuple[str, ...]  # `("tensorpost_server", "http", "execution")`; a folder's own file ends with `__init__`
Imports = Mapping[Module, frozenset[Module]]


def imports_of(tree: Path, files: Sequence[Path]) -> Imports:
    """Which of our modules each module imports."""
    modules: dict[Module, Path] = {}
    for path in files:
        root = next(tree / root for root in ROOTS if path.is_relative_to(tree / root))
        modules[path.relative_to(root.parent).with_suffix("").parts] = path

    def module_of(parts: Module) -> Module | None:
        return next((each for each in (parts, (*parts, "__init__")) if each in modules), None)

    found: dict[Module, frozenset[Module]] = {}
    for module, path in modules.items():
        targets: set[Module | None] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {module_of(tuple(name.name.split("."))) for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                parts = tuple(node.module.split(".")) if node.module else ()
                base = (*module[: len(module) - node.level], *parts) if node.level else parts
                targets |= {module_of((*base, name.name)) or module_of(base) for name in node.names}
        found[module] = frozenset(target for target in targets if target is not None and target != module)
    return found


def print_layers(imports: Imports) -> None:
    rows: list[Sequence[object]] = []
    said: list[str] = []
    for folder in sorted({module[:depth] for module in imports for depth in range(1, len(module))}):
        depth = len(folder)
        edges: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for module, targets in imports.items():
            if module[:depth] == folder:
                inside = [target[depth] for target in targets if target[:depth] == folder]
                edges[module[depth]].update(each for each in inside if each != module[depth])
        circles = [circle for circle in strongly_connected(edges) if len(circle) > 1]
        back = [arrow for circle in circles for arrow in arrows_back(edges, circle)]
        if len(edges) > 1:
            rows.append(("/".join(folder), len(edges), floors(edges), len(circles), sum(n for _, _, n in back)))
        said += [f"- `{'/'.join(folder)}`: `{low}` imports `{high}`: {n}" for low, high, n in back]
    table(("folder", "files and folders", "floors", "circles", "arrows back up"), *rows)
    print("", *(said or ["No arrow runs back up."]), sep="\n")


Edges = Mapping[str, Counter[str]]


def strongly_connected(edges: Edges) -> list[tuple[str, ...]]:
    """What can reach each other, in groups, importers first."""
    reached: dict[str, set[str]] = {}
    for name in edges:
        seen, todo = {name}, [name]
        while todo:
            new = set(edges[todo.pop()]) - seen
            seen |= new
            todo += new
        reached[name] = seen
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in edges}
    return sorted(groups, key=lambda group: (-len(reached[group[0]]), group))


def floors(edges: Edges) -> int:
    """The longest chain of imports; what imports each other stands on one floor."""
    group_of = {name: group for group in strongly_connected(edges) for name in group}
    height: dict[tuple[str, ...], int] = {}
    for group in reversed(strongly_connected(edges)):  # fewest reached first: below all that import it
        below = {group_of[target] for name in group for target in edges[name]} - {group}
        height[group] = 1 + max([height[each] for each in below], default=0)
    return max(height.values())


def arrows_back(edges: Edges, circle: Sequence[str]) -> list[tuple[str, str, int]]:
    """The fewest imports without which there is an order: importer, imported, files; found by trying every order."""
    if len(circle) > MOST_IN_A_CIRCLE:
        raise ValueError(f"a circle of {len(circle)}: {', '.join(circle)}")
    places = range(len(circle))
    up = [[edges[circle[low]][circle[high]] for high in places] for low in places]
    best: list[tuple[int, int]] = [(0, -1)] * (1 << len(circle))  # by what stands above: the cost, the lowest of these
    for above in range(1, len(best)):
        inside = [place for place in places if above >> place & 1]
        best[above] = min(
            (best[above & ~(1 << low)][0] + sum(up[low][high] for high in inside if high != low), low) for low in inside
        )
    order, above = list[str](), len(best) - 1
    while above:
        order.insert(0, circle[best[above][1]])
        above &= ~(1 << best[above][1])
    pairs = [(low, high) for place, low in enumerate(order) for high in order[:place]]
    return [(low, high, edges[low][high]) for low, high in pairs if edges[low][high]]


# ---- calls ----------------------------------------------------------------------------------------------------------

X = b"".join(
    [b"\x93NUMPY\x01\x00v\x00", b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2, 3), }".ljust(117) + b"\n"]
) + bytes(24)
INFER = {
    "inputs": [{"name": "input", "shape": [1, 1, 2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}],
    "parameters": {"repeats": "1,1,3,3", "binary_data_output": True},
}
HEAD = json.dumps(INFER)
WIRES: Mapping[str, tuple[str, str, bytes]] = {
    "v1": ("/v1/operators/tile?repeats=1,1,3,3", "application/x-npy", X),
    "onnx": ("/v1/onnx/Tile?repeats=1,1,3,3", "application/x-npy", X),
    "v2": (
        "/v2/models/tile/infer",
        f"application/octet-stream\r\ninference-header-content-length: {len(HEAD)}",
        HEAD.encode() + bytes(24),
    ),
}


def print_calls(tree: Path) -> None:
    paths = os.pathsep.join(str(tree / Path(root).parent) for root in ROOTS)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TENSORPOST_")}
    environment = {**plain, "PYTHONPATH": paths, "TENSORPOST_BACKEND": "numpy", "TENSORPOST_ACCESS_LOG": "off"}
    rows: list[Sequence[object]] = []
    for wire in (*WIRES, "sdk"):
        command = [sys.executable, "-P", __file__, "--tree", str(tree), "--calls", wire]
        found: list[Sequence[int]] = []
        for _ in range(PROCESSES):
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
            if ran.returncode not in (0, -signal.SIGTERM):  # which ends the server
                raise SystemExit(f"{' '.join(command)} ended with status {ran.returncode}:\n{ran.stderr}")
            found.append(json.loads(ran.stdout.splitlines()[-1]))
        rows.append((wire, *map(min, zip(*found, strict=True))))
    table(("wire", "calls, first", "files, first", "calls, repeated", "files, repeated"), *rows)


class Counted:
    """Counts what is entered in files of the tree's packages while it is on, on every thread that began after it."""

    def __init__(self, tree: Path) -> None:
        self._folders = tuple(f"{(tree / root).resolve()}{os.sep}" for root in ROOTS)
        self._calls: Counter[str] | None = None
        threading.setprofile(self._count)
        sys.setprofile(self._count)

    def _count(self, frame: Any, event: str, _: object) -> None:
        calls = self._calls
        if calls is not None and event == "call" and frame.f_code.co_filename.startswith(self._folders):
            calls[frame.f_code.co_filename] += 1

    def of(self, call: Callable[[], object], after: float = AFTER) -> tuple[int, int]:
        """Calls and files of one call, until a little after it."""
        self._calls = calls = Counter[str]()
        call()
        time.sleep(after)
        self._calls = None
        return calls.total(), len(calls)

    def told(self, call: Callable[[], object]) -> None:
        """Print those of the first call, once nothing else goes on, and of a repeated one."""
        end = time.monotonic() + AT_MOST
        while self.of(lambda: None, QUIET)[0] > 10 and time.monotonic() < end:
            pass
        first = self.of(call)
        print(json.dumps([*first, *min(self.of(call) for _ in range(REPEATS))]), flush=True)


def calls_of_a_server(tree: Path, wire: str) -> None:
    """Serve in this process, and ask it from a thread that is not counted."""
    path, kind, body = WIRES[wire]
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ask_it() -> None:
        sys.setprofile(None)
        try:
            with connected(port) as connection:
                counted.told(lambda: exchange(connection, head.encode() + body))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    from tensorpost_server.commands import serve

    counted = Counted(tree)
    threading.Thread(target=ask_it).start()
    serve(host="127.0.0.1", port=port, log_level="warning")


def connected(port: int) -> socket.socket:
    """A connection to a server that may be starting still."""
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError("the server did not start in half a minute")


def exchange(connection: socket.socket, request: bytes) -> None:
    """Send a request and read its answer, which has a length and must be 200."""
    connection.sendall(request)
    with connection.makefile("rb") as answer:
        status = answer.readline()
        fields = dict(line.decode().lower().rstrip().split(": ", 1) for line in iter(answer.readline, b"\r\n"))
        told = answer.read(int(fields["content-length"]))
    assert b" 200 " in status, (status, told)


def calls_of_the_sdk(tree: Path, _: str) -> None:
    """Call a server that is a process of its own, from this thread and those that the SDK starts."""
    command = [sys.executable, "-m", "tensorpost", "serve", "--port", "0", "--log-level", "warning"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        import numpy as np

        from tensorpost import Client

        assert server.stdout is not None
        url, x = server.stdout.readline().split()[-1], np.zeros((1, 1, 2, 3), np.float32)
        counted = Counted(tree)
        with Client(url) as client:
            counted.told(lambda: client.tile(x, (1, 1, 3, 3)))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()

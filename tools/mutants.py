# ruff: noqa: T201, S311, S603, S607  # it prints; chance, not secrecy; it runs the tests of this project
"""Break the code in one place at a time, and see whether a test turns red: `make mutants`, for instance with COUNT=50.

Mutants are drawn at random (`--seed`) from planning, engine, http, forms and the SDK without its command line: another
operator of comparison or arithmetic, `and` for `or`, a condition negated, a number one larger or 0, `return None`, a
statement removed, two arguments swapped. Docstrings, annotations, decorators, `__all__`, asserts, log messages, strings
and what a `raise` says are left alone.

Each is made in a copy of the tree, build/mutants/tree-N (`--jobs` of them at a time), where tests run until the first
red one: those that are named as the mutated module, import it or name it first, then all of the folders that belong to
it (`FOLDERS`) and of http, conformance and attacks. What was found is kept in build/mutants/results.jsonl; what was
killed is not tried again until its file changes. A test that takes a minute hangs, which is red; a mutant whose tests
are not through after `--limit` seconds is listed as survived so far.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "mutants"
SERVER, SDK = "app/tensorpost_server", "client/tensorpost"
FOLDERS: Mapping[str, Sequence[str]] = {  # the first prefix that fits
    f"{SERVER}/planning": ("engine", "forms"),
    f"{SERVER}/engine": ("engine",),
    f"{SERVER}/http/open_inference": ("open_inference",),
    f"{SERVER}/http": ("http",),
    f"{SERVER}/forms": ("forms", "operators", "onnx"),
    f"{SDK}/onnx": ("onnx",),
    f"{SDK}/descriptors": ("contract",),
    SDK: ("contract", "client"),
}
ALWAYS = ("http", "conformance", "attacks")
COMMAND_LINE = re.compile(r"command|__main__|progress_bar")
OTHER: Mapping[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file of the tree with one place replaced."""

    path: str
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The file with it."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def key(self, source: bytes) -> str:
        """What it is known by; another one once the file changes."""
        return hashlib.sha256(self.path.encode() + b"\0" + self.apply(source)).hexdigest()[:16]


def mutants_of(path: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    source = (ROOT / path).read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    for node, texts in _replaced(ast.parse(source), inside=False):
        start = begins[node.lineno - 1] + node.col_offset
        end = begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        for text in texts:
            yield Mutant(path, start, end, text)


def _replaced(node: Any, *, inside: bool) -> Iterator[tuple[Any, list[str]]]:
    """Each node below this one with what it may become; `inside` a function."""
    inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _left_alone(child):
                if hasattr(child, "lineno") and (found := _texts(child, inside=inside)):
                    yield child, found
                if isinstance(child, (ast.If, ast.While, ast.IfExp)):
                    yield child.test, [f"(not ({ast.unparse(child.test)}))"]
                yield from _replaced(child, inside=inside)


def _left_alone(node: ast.AST) -> bool:
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or bool(re.match(r"(_?log|logger)\.", ast.unparse(node)))
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("__")


def _texts(node: Any, *, inside: bool) -> list[str]:
    """What a node may become."""
    changed = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OTHER:
            changed.ops = [OTHER[type(operator)]()]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in OTHER:
            changed.op = OTHER[type(operator)]()
        case ast.Constant(value=bool(value)):
            return [str(not value)]
        case ast.Constant(value=int() | float() as value):
            return [f"({value + 1!r})", *(["0"] if value else [])]
        case ast.Return(value=ast.AST()) if ast.unparse(node) != "return None":
            return ["return None"]
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Assign() | ast.AugAssign() | ast.Delete() if inside:
            return ["pass"]
        case ast.Call(args=[first, second, *_]) if not any(isinstance(each, ast.Starred) for each in (first, second)):
            changed.args[:2] = [second, first]
        case _:
            return []
    text = ast.unparse(changed)
    return [] if text == ast.unparse(node) else [f"({text})"]


def drawn(count: int, seed: int) -> list[Mutant]:
    """Mutants that Python can compile, of all files that are meant."""
    folders = [f"{SERVER}/{name}" for name in ("planning", "engine", "http", "forms")]
    paths = [path.relative_to(ROOT).as_posix() for name in (*folders, SDK) for path in (ROOT / name).rglob("*.py")]
    every = [mutant for path in sorted(paths) if not COMMAND_LINE.search(path) for mutant in mutants_of(path)]
    random.Random(seed).shuffle(every)
    found: list[Mutant] = []
    for mutant in every:
        try:
            compile(mutant.apply((ROOT / mutant.path).read_bytes()), mutant.path, "exec")
        except SyntaxError:
            continue
        found.append(mutant)
        if len(found) == count:
            break
    return found


def tests_of(path: str, *, named_only: bool) -> list[str]:
    """The files of tests that may turn red: named as the module, then those that import it, name it, and all others."""
    own = next(folders for prefix, folders in FOLDERS.items() if path.startswith(f"{prefix}/"))
    folders = list(dict.fromkeys([*own, *ALWAYS]))
    files = [file for folder in folders for file in sorted((ROOT / "tests" / folder).rglob("test_*.py"))]
    module = path.removesuffix(".py").removesuffix("/__init__").partition("/")[2].removeprefix("tensorpost_server/")
    stem, words = module.rpartition("/")[2], {file: file.read_text("utf-8") for file in files}
    imported = re.compile(rf"{module.replace('/', '.')}( import|\b)|import [^\n]*\b{stem}\b")
    orders = (
        lambda file: stem.strip("_") in file.stem,
        lambda file: imported.search(words[file]),
        lambda file: re.search(rf"\b{stem}\b", words[file]),
        lambda _: not named_only,
    )
    found = [file for order in orders for file in files if order(file)]
    return [file.relative_to(ROOT).as_posix() for file in dict.fromkeys(found or files)]


def copied(number: int) -> Path:
    """The tree as it is here, without what git ignores, in a folder of its own."""
    tree = WORK / f"tree-{number}"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def tried(tree: Path, mutant: Mutant, limit: float, *, named_only: bool) -> dict[str, Any]:
    """Whether a test turns red: `killed` with what pytest says last, `survived`, or `survived so far`."""
    source = (ROOT / mutant.path).read_bytes()
    before, after = (text.decode().splitlines() for text in (source, mutant.apply(source)))
    files, begin = tests_of(mutant.path, named_only=named_only), time.monotonic()
    command = [
        "nice", "-n", "10", sys.executable, "-B", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider",
        "-o", "faulthandler_timeout=60", "-o", "faulthandler_exit_on_timeout=true", *files,
    ]  # fmt: skip
    paths = os.pathsep.join(str(tree / name) for name in ("client", "app", "."))
    kernels = str(ROOT / "build" / "test-kernels")
    environment = {**os.environ, "PYTHONPATH": paths, "TEST_KERNELS": "0", "NUMBA_CACHE_DIR": kernels}
    try:
        (tree / mutant.path).write_bytes(mutant.apply(source))
        with subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                said = process.communicate(timeout=limit)[0].splitlines()
                state = "killed" if process.returncode else "survived"
            except subprocess.TimeoutExpired:
                process.terminate()
                said, state = process.communicate()[0].splitlines(), "survived so far"
    finally:
        (tree / mutant.path).write_bytes(source)
    red = [line for line in said if line.startswith(("FAILED", "ERROR"))]
    return {
        "state": state, "path": mutant.path, "seconds": round(time.monotonic() - begin), "files": files,
        "said": (red or said[-1:] or [""])[0], "diff": list(difflib.unified_diff(before, after, lineterm="", n=0))[2:],
    }  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="tools/mutants.py")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no mutant after that")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the tests of one mutant")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time; tests that wait want a core each")
    parser.add_argument("--named-only", action="store_true", help="only tests that name the module: a first look")
    options = parser.parse_args()
    mutants, end = drawn(options.count, options.seed), time.monotonic() + options.seconds
    trees, results = queue.SimpleQueue[Path](), WORK / "results.jsonl"
    for number in range(options.jobs):
        trees.put(copied(number))
    known = (
        {row["key"]: row for row in map(json.loads, results.read_text("utf-8").splitlines())}
        if results.exists()
        else {}
    )

    def result_of(mutant: Mutant) -> dict[str, Any] | None:
        key = mutant.key((ROOT / mutant.path).read_bytes())
        if known.get(key, {}).get("state") == "killed":
            return known[key]
        if time.monotonic() > end:
            return None
        tree = trees.get()
        try:
            return {"key": key, **tried(tree, mutant, options.limit, named_only=options.named_only)}
        finally:
            trees.put(tree)

    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs) as threads, results.open("a", encoding="utf-8") as file:
        tasks = [threads.submit(result_of, mutant) for mutant in mutants]
        for row in filter(None, (task.result() for task in as_completed(tasks))):
            if row is not known.get(row["key"]):
                print(json.dumps(row), file=file, flush=True)
            found.append(row)
            print(f"{len(found):4} {row['state']:15} {row['seconds']:4} s  {row['path']}", flush=True)
    alive = [row for row in found if row["state"] != "killed"]
    for row in alive:
        print(
            "",
            f"{row['state']}: {row['path']}, after {row['seconds']} s of {len(row['files'])} files of tests",
            sep="\n",
        )
        print(*row["diff"], sep="\n")
        print(f"tests: {', '.join(row['files'][:8])} ...")
    share = 1 - len(alive) / len(found) if found else 0.0
    print(f"\n{len(found)} of {len(mutants)} mutants tried, {len(found) - len(alive)} killed: {share:.0%}")


if __name__ == "__main__":
    main()

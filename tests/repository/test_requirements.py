"""The pinned requirements: each with hashes, no index named, nothing left out that pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS, GROUPS = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
PINNED = {
    "dev.txt": (["server", "images", "numba", "otel", "jwt", "grpc"], ["dev"]),
    "demo.txt": (["server", "images", "numba"], ["demo", "build"]),
    "server.txt": (["server", "numba", "otel", "jwt", "grpc"], []),
    "slim.txt": (["server", "otel", "jwt"], []),
    "cuda.txt": (["server", "numba", "otel", "jwt", "grpc", "cuda12"], []),
}
"""Which extras and groups each file is made from; build.txt is made from the group `build` alone."""
TEXTS = {
    ".md", ".py", ".yaml", ".yml", ".tpl", ".txt", ".toml", ".json", ".ipynb", ".html", ".js", ".service", ".socket"
}  # fmt: skip
FROM_INDEX = re.compile(
    r"""(?:install|uv add)(?: +-\S+)* +['"`]?tensorpost(?:\[|[ '"`=<>~]|$)|uvx +tensorpost""", re.MULTILINE
)
"""A command that installs tensorpost by its name, which pip and uv look up in an index."""


def pins(name: str) -> list[Requirement]:
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [Requirement(line.split("--hash", 1)[0].strip()) for line in lines]


def asked(extras: Sequence[str], groups: Sequence[str]) -> list[Requirement]:
    """What pyproject.toml asks for by name, its own extras and groups resolved."""
    found: list[Requirement] = []
    for entry in [line for extra in extras for line in EXTRAS[extra]] + [x for group in groups for x in GROUPS[group]]:
        if isinstance(entry, dict):
            found += asked([], [entry["include-group"]])
        elif (requirement := Requirement(entry)).name == PROJECT["project"]["name"]:
            found += asked(sorted(requirement.extras), [])
        else:
            found.append(requirement)
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").iterdir()), ids=lambda path: path.name)
def test_every_line_is_a_pin_with_hashes_and_no_address(path: Path) -> None:
    text = path.read_text()

    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash=sha256:[0-9a-f]{64})", text, re.MULTILINE)
    for pin in pins(path.name):
        assert [specifier.operator for specifier in pin.specifier] == ["=="], pin
    assert len(re.findall(r"^\S+==\S+ ", text, re.MULTILINE)) == len(pins(path.name))
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=[a-z0-9])", text))


@pytest.mark.parametrize("name", PINNED)
def test_everything_asked_for_is_pinned_within_its_range(name: str) -> None:
    versions: dict[str, list[str]] = {}
    for pin in pins(name):
        versions.setdefault(canonicalize_name(pin.name), []).append(next(iter(pin.specifier)).version)

    wanted = [Requirement(line) for line in PROJECT["project"]["dependencies"]] + asked(*PINNED[name])
    for requirement in wanted:
        found = versions.get(canonicalize_name(requirement.name))
        assert found, f"{requirement.name} is not pinned in {name}: run make requirements"
        assert all(requirement.specifier.contains(version) for version in found), (requirement, found)


def test_all_files_pin_the_same_versions() -> None:
    names = (*PINNED, "build.txt")
    pinned = {name: {(pin.name, str(pin.specifier), str(pin.marker)) for pin in pins(name)} for name in names}

    for name in ("demo.txt", "server.txt", "build.txt"):
        assert pinned[name] <= pinned["dev.txt"], name
    assert pinned["slim.txt"] <= pinned["server.txt"] <= pinned["cuda.txt"], (
        "the image installs each on top of the last"
    )
    assert pinned["cuda.txt"] - pinned["dev.txt"] == pinned["cuda.txt"] - pinned["server.txt"]


def test_the_build_needs_what_the_build_group_pins() -> None:
    assert sorted(PROJECT["build-system"]["requires"]) == sorted(GROUPS["build"])


def test_installations_that_are_named_exist_and_need_no_index() -> None:
    """`pip install 'tensorpost[...]'` would ask an index, and where anybody could take the name."""
    files = [path for path in ROOT.iterdir() if path.suffix in ("", ".md", ".yml") and path.is_file()]
    for folder in ("docs", "deploy", "examples", "app", "client"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS]
    assert {"README.md", "Dockerfile", "tensorpost.service", "rayservice.yaml", "extras.py"} <= {f.name for f in files}
    named: set[str] = set()
    for path in files:
        text = path.read_text()
        assert not FROM_INDEX.search(text), path
        for extras in re.findall(r"""['"`]\.\[([a-z0-9,]+)\]""", text):
            named |= set(extras.split(","))
        for arguments in re.findall(r"install_command\(([^)]*)\)", text):
            named |= set(re.findall(r"""['"]([a-z0-9]+)['"]""", arguments))
    assert named <= EXTRAS.keys()
    assert {"server", "cuda13", "onnx", "numba", "images"} <= named

"""The bill of materials says what `requirements/server.txt` says, and `make audit` says what it lacks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "requirements" / "server.txt").read_text("utf-8")
SMALL = """\
alpha==1.0 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
    # via tensorpost (pyproject.toml)
Beta.two==2.1 ; sys_platform == 'win32' \\
    --hash=sha256:{c}
    # via
    #   -c requirements/dev.txt
    #   alpha
    #   tensorpost (pyproject.toml)
""".format(a="a" * 64, b="b" * 64, c="c" * 64)


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "tools" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sbom"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_a_small_file(sbom: ModuleType) -> None:
    document = sbom.bill_of_materials(SMALL, "tensorpost", "0.1.0")
    root, alpha, beta = "pkg:pypi/tensorpost@0.1.0", "pkg:pypi/alpha@1.0", "pkg:pypi/beta-two@2.1"

    assert [component["purl"] for component in document["components"]] == [alpha, beta]
    assert document["dependencies"] == [
        {"ref": alpha, "dependsOn": [beta]},
        {"ref": beta, "dependsOn": []},
        {"ref": root, "dependsOn": [alpha, beta]},
    ]
    hashes = [reference["hashes"] for reference in document["components"][0]["externalReferences"]]
    assert [found["content"] for found in hashes[0]] == ["a" * 64, "b" * 64]
    assert document["components"][1]["properties"] == [{"name": "python:marker", "value": "sys_platform == 'win32'"}]


@pytest.mark.parametrize("line", ["--index-url https://x", "alpha>=1", "    --hash=md5:00"])
def test_a_line_that_is_not_understood_is_not_left_out(sbom: ModuleType, line: str) -> None:
    with pytest.raises(ValueError, match="no line of a requirements file"):
        sbom.bill_of_materials(SMALL + line + "\n", "tensorpost", "0.1.0")


def test_every_pin_of_the_image_is_there_and_needed(sbom: ModuleType) -> None:
    document = sbom.bill_of_materials(TEXT, "tensorpost", "0.1.0")
    lines = [line for line in TEXT.replace("\\\n", " ").splitlines() if line[:1].strip(" #")]
    pins = [Requirement(line.split("--hash", 1)[0].strip()) for line in lines]

    found = {(component["name"], component["version"]) for component in document["components"]}
    assert found == {(canonicalize_name(pin.name), next(iter(pin.specifier)).version) for pin in pins}
    assert TEXT.count("--hash=") == sum(
        len(component["externalReferences"][0]["hashes"]) for component in document["components"]
    )
    needed = {part for dependency in document["dependencies"] for part in dependency["dependsOn"]}
    assert needed == {component["bom-ref"] for component in document["components"]}


def test_the_audit_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "audit.py", tmp_path / "tools")
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "tools" / "audit.py"), "none.txt"],
        env={**os.environ, **offline}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert ran.returncode == 2
    assert "pip-audit cannot be installed" in ran.stderr

"""What `make dist` packs: a description that needs no file beside it, and every file that the code reads."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def hatchling(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "hatchling", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_description_has_no_relative_link_or_picture() -> None:
    description = hatchling("metadata", "readme")
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", description)
    assert "tutorial (`docs/tutorial.md`)" in description
    readme = (ROOT / "README.md").read_text("utf-8")
    assert re.findall(r"^#+ .*$", description, re.MULTILINE) == re.findall(r"^#+ .*$", readme, re.MULTILINE)


def test_the_wheel_has_the_two_packages_and_what_they_read(tmp_path: Path) -> None:
    hatchling("build", "--target", "wheel", "--directory", tmp_path)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if ".dist-info/" not in name}
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in file.namelist())
    folders = {ROOT / "client": "tensorpost", ROOT / "app": "tensorpost_server"}
    command = ["git", "ls-files", *(f"{folder.name}/{package}" for folder, package in folders.items())]
    if (ROOT / ".git").exists():
        tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        assert not {name.partition("/")[2] for name in tracked} - packed
    assert {name.partition("/")[0] for name in packed} == set(folders.values())
    assert {"tensorpost/py.typed", "tensorpost_server/py.typed", "tensorpost_server/playground/index.html"} <= packed

"""The light install is light, importing opens no device, and imports point one way; each guard is seen to fail once."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WEB = {"fastapi", "starlette", "uvicorn"}
DEVICES = {"cupy", "llvmlite", "numba", "onnxruntime", "ray", "torch", "tensorflow"}
HEAVY = {"httpx", "ml_dtypes", "PIL", "rich", "typer", "skimage", "ray"}

REPORT = """
import json, os, sys, threading
fds = []
if os.path.isdir("/proc/self/fd"):
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
modules = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({"modules": sorted(modules), "threads": threading.active_count(), "files": fds}))
"""


def fresh(code: str, *paths: Path) -> dict[str, Any]:
    """Run the code in a new interpreter; what is loaded and open afterwards."""
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), *before])}
    command = [sys.executable, "-c", code + REPORT]
    ran = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture
def alarms(tmp_path: Path) -> Path:
    """A folder where the libraries of devices are modules that fail when they are imported."""
    for name in DEVICES:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n", "utf-8")
    return tmp_path


def test_the_package_alone_loads_nothing(alarms: Path) -> None:
    assert not {"numpy", "pydantic", "httpx", "h11", "asyncio"} & set(fresh("import tensorpost", alarms)["modules"])


def test_the_descriptors_load_no_server_no_device_and_nothing_heavy(alarms: Path) -> None:
    report = fresh("from tensorpost import TileOperatorDesc", alarms)
    assert not (WEB | DEVICES | HEAVY | {"tensorpost_server"}) & set(report["modules"])
    assert {"tensorpost", "numpy", "pydantic"} <= set(report["modules"])


def test_a_client_loads_no_server_and_httpx_only_where_it_is_needed(alarms: Path) -> None:
    """HTTP goes over sockets, with TLS and without; httpx is for proxies and for a caller's own client."""
    plain = fresh("from tensorpost import Client; Client('http://127.0.0.1:9').close()", alarms)
    secure = fresh("from tensorpost import Client; Client('https://127.0.0.1:9').close()", alarms)
    assert "tensorpost" in plain["modules"]
    assert not {"httpx", "h11", "ssl"} & set(plain["modules"])
    assert not {"httpx", "h11"} & set(secure["modules"])
    report = secure
    assert not (WEB | DEVICES | {"tensorpost_server"}) & set(report["modules"])


@pytest.mark.parametrize("name", ["descriptors", "onnx", "frame", "problems", "datatypes", "layout"])
def test_the_contract_loads_no_http_library(name: str) -> None:
    assert not (WEB | {"httpx", "tensorpost_server"}) & set(fresh(f"import tensorpost.{name}")["modules"])


def test_models_are_read_without_ml_dtypes() -> None:
    """Only types of `ml_dtypes` need the package: a Cast to float16 is folded without it, one to bfloat16 is left."""
    code = """
import sys
sys.modules["ml_dtypes"] = None  # an import of it fails
import numpy as np
import tensorpost.graphs.model_graph
from tensorpost.graphs.constant_folding import folded
from tensorpost.onnx.model_reader import ModelNode
cast = lambda code: ModelNode("y", "Cast", "", 21, ("x",), ("y",), {"to": code})
assert folded(cast(10), [np.array([1, 2])])[0].dtype == np.float16
assert folded(cast(16), [np.array([1, 2])]) is None
"""
    assert "tensorpost" in fresh(code)["modules"]


def test_building_the_application_opens_no_device(alarms: Path) -> None:
    report = fresh("from tensorpost_server.main import create_app; app = create_app()", alarms)
    assert not DEVICES & set(report["modules"])
    assert report["threads"] == 1
    assert not [name for name in report["files"] if "/dev/nvidia" in name or "/dev/dri" in name or "socket:" in name]
    assert "fastapi" in report["modules"]


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_the_alarm_goes_off(alarms: Path, name: str) -> None:
    with pytest.raises(AssertionError, match=f"{name} was imported"):
        fresh(f"import tensorpost; import {name}", alarms)


def test_the_report_sees_what_is_loaded_and_running() -> None:
    code = "import threading, socket, fastapi; s = socket.socket(); e = threading.Event()"
    report = fresh(code + "; threading.Thread(target=e.wait, daemon=True).start()")
    assert "fastapi" in report["modules"]
    assert report["threads"] == 2
    if sys.platform == "linux":
        assert any("socket:" in name for name in report["files"])


# The direction of imports


def contracts() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return [contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]]


def lint_imports(root: Path) -> tuple[int, str]:
    paths = os.pathsep.join([str(root / "client"), str(root / "app")])
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    command += ["--no-cache", "--config", str(root / "pyproject.toml")]
    env = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
    ran = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=120, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_imports_point_one_way() -> None:
    status, output = lint_imports(ROOT)
    assert status == 0, output
    for name in contracts():
        assert f"{name} KEPT" in output


# One import for every contract, each in a place where it is forbidden.
PLANTS = {
    "app/tensorpost_server/operators/tile.py": "import tensorpost_server.planning.plan",
    "app/tensorpost_server/backends/numpy_.py": "import tensorpost_server.operators.registry",
    "client/tensorpost/values/datatypes.py": "import fastapi\nimport httpx",
    "app/tensorpost_server/engine/pool.py": "import tensorpost.client\nimport starlette",
    "client/tensorpost/network/deadline.py": "import httpx\nimport tensorpost.calls.results",
    "app/tensorpost_server/operators/onnx_runtime.py": "import onnxruntime",
}


@pytest.mark.parametrize("package", ["client/tensorpost", "app/tensorpost_server"])
def test_every_folder_has_a_layer(package: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = [contract.get("layers", []) for contract in settings["tool"]["importlinter"]["contracts"]]
    named = {name for several in layers for layer in several for name in re.split(r" [|:] ", layer)}
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}

    assert {f"{Path(package).name}.{folder}" for folder in folders} <= named


def test_a_forbidden_import_is_found(tmp_path: Path) -> None:
    for name in ("client", "app"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, line in PLANTS.items():
        path = tmp_path / name
        path.write_text(path.read_text("utf-8") + f"\n{line}\n", "utf-8")
    status, output = lint_imports(tmp_path)
    assert status != 0
    for name in contracts():
        assert f"{name} BROKEN" in output, "plant an import that breaks this contract in PLANTS"

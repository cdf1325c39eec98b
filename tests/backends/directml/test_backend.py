"""The backend: when it opens, what it refuses, how it is chosen, and how its bytes come out."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.fake_onnxruntime import FakeRuntime

from tensorpost import descriptors as dml
from tensorpost.datatypes import data_type
from tensorpost.descriptors import BufferTensorDesc, InterpolationMode, TileOperatorDesc
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.problems import NoBackend
from tensorpost_server.backends import BACKENDS, DeviceOptions, load_backend
from tensorpost_server.backends.directml import DirectmlBackend, Node, TensorType, runtime
from tensorpost_server.engine import Pool, pool
from tensorpost_server.planning import make_plan

CPU = "CPUExecutionProvider"
needs_onnxruntime = pytest.mark.skipif(
    find_spec("onnxruntime") is None, reason="onnxruntime has no wheel for every Python"
)

TILE = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (4,)), (3,)), 1 << 20)
GRADIENT = make_plan(
    dml.ResampleGradOperatorDesc(
        input_gradient_tensor=BufferTensorDesc.packed("FLOAT32", (1, 1, 1, 4)),
        output_gradient_tensor=BufferTensorDesc.packed("FLOAT32", (1, 1, 1, 2)),
        interpolation_mode=InterpolationMode.LINEAR,
        scales=(1, 1, 1, 2), input_pixel_offsets=(0.5,) * 4, output_pixel_offsets=(-0.5,) * 4,
    ),
    1 << 20,
)  # fmt: skip
EMPTY = make_plan(OnnxNode.of("Tile", {"input": OnnxTensor("float32", (2, 3)), "repeats": [2, 0]}, opset=13), 1 << 20)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRuntime]:
    """Makes this look like Windows with a fake ONNX Runtime."""

    def make(**changes: Any) -> FakeRuntime:
        fake = FakeRuntime(**changes)
        monkeypatch.setattr(runtime, "SYSTEM", "win32")
        monkeypatch.setattr(runtime, "import_module", {"onnxruntime": fake}.__getitem__)
        return fake

    return make


# Opening


def test_it_stands_before_numpy_and_auto_may_choose_it() -> None:
    names = list(BACKENDS)

    assert names.index("directml") < names.index("numpy")
    assert BACKENDS["directml"].auto
    assert load_backend("directml") is DirectmlBackend


@pytest.mark.skipif(sys.platform == "win32", reason="it says what is wrong with other systems")
def test_on_other_systems_it_says_what_to_do_without_importing_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(RuntimeError, match=r"^DirectML runs on Windows only .*; there, pip install 'tensorpost\[dire"):
        DirectmlBackend()


def test_without_onnxruntime_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "SYSTEM", "win32")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(ImportError, match=r"pip install 'tensorpost\[directml\]'"):
        DirectmlBackend()


def test_the_plain_package_in_the_way_is_named(windows: Callable[..., FakeRuntime]) -> None:
    windows(providers=["AzureExecutionProvider", CPU])

    with pytest.raises(RuntimeError, match=r"has no DmlExecutionProvider, only Azure.*pip uninstall onnxruntime"):
        DirectmlBackend()


@pytest.mark.parametrize("package", ["onnxruntime-directml", "onnxruntime-windowsml"])
def test_either_package_will_do(
    package: str, windows: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if name != package:
            raise runtime.PackageNotFoundError
        return "1.24.4"

    windows()
    monkeypatch.setattr(runtime, "version", installed)

    backend = DirectmlBackend(device_id=1)

    assert backend.device == f"adapter 1 (DirectML of the system, {package} 1.24.4)"
    assert (backend.name, backend.threads) == ("directml", 1)


@needs_onnxruntime
def test_on_the_cpu_it_says_that_it_is_no_directml() -> None:
    device = DirectmlBackend(provider=CPU).device

    assert device.startswith("cpu (onnxruntime ")
    assert device.endswith(", no DirectML)")


def test_a_provider_that_is_not_there_is_named(windows: Callable[..., FakeRuntime]) -> None:
    windows()
    with pytest.raises(RuntimeError, match=r"has no CudaProvider, only Dml.*; choose one of these"):
        DirectmlBackend(provider="CudaProvider")


# The version of DirectML.dll


def resource(*numbers: int) -> bytes:
    """A VS_FIXEDFILEINFO as it stands in a file's version resource (page of VS_FIXEDFILEINFO)."""
    major, minor, build, revision = numbers
    fixed = (0xFEEF04BD, 0x00010000, major << 16 | minor, build << 16 | revision)
    return b"MZ" + bytes(99) + struct.pack("<4I", *fixed) + bytes(40)


def test_the_version_is_read_from_the_library(
    windows: Callable[..., FakeRuntime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "DirectML.dll").write_bytes(resource(1, 15, 4, 0))
    windows(__file__=str(tmp_path / "__init__.py"))

    assert "(DirectML 1.15.4.0, " in DirectmlBackend().device


@pytest.mark.parametrize("content", [b"", b"MZ" * 50, resource(1, 2, 3, 4)[:112]])
def test_a_library_without_a_version(content: bytes) -> None:
    assert runtime.file_version(content) is None


# Refusing, and being chosen


@needs_onnxruntime
def test_what_it_refuses_and_what_not() -> None:
    backend = DirectmlBackend(provider=CPU, most_bytes=12)
    longer = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (8,)), (2,)), 1 << 20)

    assert backend.refuses(TILE) is None
    assert backend.refuses(EMPTY) is None
    assert backend.refuses(GRADIENT) is not None
    assert backend.refuses(longer) == "it moves 16 bytes, and directml makes outputs whole; its limit is 12"
    with pytest.raises(ValueError, match="directml refuses this plan: no ONNX node is known"):
        DirectmlBackend(provider=CPU).start(GRADIENT, [memoryview(bytes(16))])


@needs_onnxruntime
def test_auto_takes_it_where_it_can_and_the_cpu_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        return (lambda threads: DirectmlBackend(threads, provider=CPU)) if name == "directml" else load_backend(name)

    monkeypatch.setattr(pool, "load_backend", load)
    opened = Pool.open("auto", DeviceOptions(), 2, minimum_work=0)
    try:
        assert opened.choose(TILE).backend.name == "directml"
        assert opened.choose(GRADIENT).backend.name in ("numba", "numpy")
        with pytest.raises(NoBackend, match="no ONNX node is known that computes RESAMPLE_GRAD"):
            opened.choose(GRADIENT, "directml")
    finally:
        opened.close()


@needs_onnxruntime
def test_a_node_that_the_provider_did_not_take_is_refused_from_then_on() -> None:
    """All four axes of a linear: DirectML's provider takes them, the CPU's does not."""
    desc = dml.Resample1OperatorDesc(
        input_tensor=BufferTensorDesc.packed("FLOAT32", (2, 2, 2, 2)),
        output_tensor=BufferTensorDesc.packed("FLOAT32", (4, 4, 4, 4)), interpolation_mode=InterpolationMode.LINEAR,
        scales=(2,) * 4, input_pixel_offsets=(0.5,) * 4, output_pixel_offsets=(-0.5,) * 4,
    )  # fmt: skip
    backend, plan = DirectmlBackend(provider=CPU), make_plan(desc, 1 << 20)
    assert backend.refuses(plan) is None

    with pytest.raises(NoBackend, match="ask for another backend, or for auto"):
        backend.start(plan, [memoryview(bytes(64))])

    assert str(backend.refuses(plan)).startswith("CPUExecutionProvider does not take this Resize: ")


@needs_onnxruntime
def test_nothing_is_printed_when_a_session_cannot_be_made(capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime's Python class would print that it goes on with the CPU, and do so."""
    backend = DirectmlBackend(provider=CPU)
    node = Node("Nonsense", 13, (TensorType(data_type("uint8"), (1,)),), (TensorType(data_type("uint8"), (1,)),))

    with pytest.raises(NoBackend, match="CPUExecutionProvider does not take this Nonsense"):
        backend._sessions.get(node)

    assert capfd.readouterr() == ("", "")


# Bytes


def test_an_empty_output_needs_no_session(windows: Callable[..., FakeRuntime]) -> None:
    fake = windows()
    run = DirectmlBackend().start(EMPTY, [memoryview(bytes(24))])
    run.close()

    assert len(EMPTY.slices) == 0
    assert fake.made == fake.uploads == []


def test_the_input_goes_up_once_and_the_node_runs_once(windows: Callable[..., FakeRuntime]) -> None:
    fake = windows()
    plan = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (4,)), (3,)), 4)
    run = DirectmlBackend(device_id=2).start(plan, [memoryview(b"abcd")])

    blocks = [run.compute(index) for index in (2, 0, 1, 0)]

    assert len(plan.slices) == 3
    assert [bytes(block) for block in blocks] == [b"\1" * 4] * 4
    assert fake.uploads == [("dml", 2)]
    assert len(fake.made) == 1


@needs_onnxruntime
def test_slices_of_a_packed_output_cannot_be_written_to() -> None:
    run = DirectmlBackend(provider=CPU).start(TILE, [memoryview(b"abcd")])

    assert bytes(run.compute(0)) == b"abcd" * 3
    assert run.compute(0).readonly


@needs_onnxruntime
def test_a_closed_backend_holds_no_session() -> None:
    backend = DirectmlBackend(provider=CPU)
    backend.start(TILE, [memoryview(b"abcd")]).close()
    (kept,) = backend._sessions._kept.values()
    gone = weakref.ref(kept._session)
    del kept

    backend.close()
    gc.collect()

    assert gone() is None


def test_importing_the_package_imports_no_onnxruntime() -> None:
    code = "import sys, tensorpost_server.backends.directml; assert 'onnxruntime' not in sys.modules"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@needs_onnxruntime
def test_a_broadcast_input_is_packed_and_a_strided_output_has_zeros_in_its_gaps() -> None:
    desc = TileOperatorDesc(
        input_tensor=BufferTensorDesc(data_type="INT16", sizes=(2, 2), strides=(0, 1)),
        output_tensor=BufferTensorDesc(data_type="INT16", sizes=(2, 4), strides=(6, 1)),
        repeats=(1, 2),
    )
    plan = make_plan(desc, 1 << 20)
    run = DirectmlBackend(provider=CPU).start(plan, [memoryview(np.array([7, 8], np.int16).tobytes())])

    assert np.frombuffer(run.compute(0), np.int16).tolist() == [7, 8, 7, 8, 0, 0, 7, 8, 7, 8]

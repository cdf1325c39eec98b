"""Kernels compiled ahead: which there are, which file is taken for which GPU, never one of another source."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.backends import CannotOpen
from tensorpost_server.backends.cuda import kernel_files
from tensorpost_server.backends.cuda.launch_plan import plan
from tensorpost_server.backends.cuda.launches import ArrayLayout
from tensorpost_server.backends.cuda.variants import VARIANTS, Variant
from tensorpost_server.operators import form_of

KERNEL = VARIANTS[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def ahead() -> set[Variant]:
    return set(kernel_files.variants_ahead())


def write(*architectures: int) -> None:
    for architecture in architectures:
        kernel_files._write(KERNEL, architecture, b"code for %d" % architecture)


@pytest.mark.parametrize(
    ("capability", "found"),
    [("75", b"code for 75"), ("80", b"code for 80"), ("89", b"code for 80"), ("90", b"code for 90"), ("61", None),
     ("72", None), ("121", None)],
)  # fmt: skip
def test_code_runs_on_later_minor_versions_only(capability: str, found: bytes | None) -> None:
    write(75, 80, 90)

    assert kernel_files.find(KERNEL, capability) == found


def test_another_source_has_another_file() -> None:
    write(90)

    assert kernel_files.find(replace(KERNEL, prelude="int x;"), "90") is None
    assert kernel_files.find(replace(KERNEL, defines=(*KERNEL.defines, ("MORE", "1"))), "90") is None


def test_a_damaged_file_is_none(folder: Path) -> None:
    write(90)
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1])

    assert kernel_files.find(KERNEL, "90") is None
    assert kernel_files.find(KERNEL, "900") is None


@pytest.mark.parametrize(
    ("version", "architectures"),
    [((12, 0), {70, 75, 80, 90}), ((12, 8), {70, 75, 80, 90, 100, 120}), ((13, 0), {75, 80, 90, 100, 120})],
    ids=str,
)
def test_architectures_that_the_compiler_does_not_know_are_left_out(
    version: tuple[int, int], architectures: set[int], folder: Path, monkeypatch: pytest.MonkeyPatch
):
    # NVRTC 13 refuses sm_70 as an invalid option (seen on an H200), and 12.0 has sm_90 as its newest.
    options: list[Sequence[str]] = []
    nvrtc = SimpleNamespace(
        getVersion=lambda: version, createProgram=lambda *_: None, destroyProgram=lambda _: None,
        compileProgram=lambda _, given: options.append(given), getCUBIN=lambda _: b"code",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nvrtc=nvrtc))  # pyright: ignore[reportArgumentType] # a stand-in
    monkeypatch.setattr(kernel_files, "variants_ahead", lambda: [KERNEL])

    assert kernel_files.build() == (folder, len(architectures))
    assert {given[-1] for given in options} == {f"-arch=sm_{number}" for number in architectures}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("operator", "names", "sizes"),
    [("Add", "AB", (2, 3, 8, 8)), ("Sub", "AB", (5, 7)), ("Mul", "AB", (1, 3, 224, 224)), ("Div", "AB", (9, 2)),
     ("Relu", "X", (1, 3, 224, 224)), ("Sigmoid", "X", (3,)), ("Tanh", ["input"], (1, 1000))],
)  # fmt: skip
def test_the_first_call_of_a_common_operator_compiles_nothing(
    ahead: set[Variant], dtype: str, operator: str, names: Sequence[str], sizes: tuple[int, ...]
):
    for second in (sizes, (*sizes[:-1], 1), sizes[-1:], ()):
        assert used(operator, dtype, dict(zip(names, (sizes, second), strict=False)), sizes) <= ahead


def used(operator: str, dtype: str, given: dict[str, tuple[int, ...]], sizes: tuple[int, ...]) -> set[Variant]:
    """The kernels of an ONNX node with these inputs."""
    type_ = "float" if dtype == "float32" else dtype
    node = OnnxNode(operator, {name: OnnxTensor(type_, shape) for name, shape in given.items()}, {}, opset=14)
    arrays = [np.broadcast_to(np.empty(shape, dtype), sizes) for shape in (*given.values(), sizes)]
    *inputs, out = [ArrayLayout(array.dtype, array.strides, 0) for array in arrays]

    steps = plan(form_of(node), inputs, tuple([(0, size) for size in sizes]), out)

    assert steps
    return {step.launch.variant for step in steps}


def test_expressions_are_rounded_as_in_numpy():
    assert kernel_files.options_of(replace(KERNEL, prelude="int x;"))[-1] == "-fmad=false"
    assert kernel_files.options_of(KERNEL)[-1] == "-ftz=true"


def test_what_cupy_compiles_needs_a_folder_or_memory(folder: Path, monkeypatch: pytest.MonkeyPatch):
    kernel_files.check_writable()
    with monkeypatch.context() as without:
        without.setattr(tempfile, "tempdir", str(folder / "nothing"))
        with pytest.raises(CannotOpen, match=r"No such file.*CUPY_CACHE_IN_MEMORY=1 .*TMPDIR"):
            kernel_files.check_writable()
        without.setenv("CUPY_CACHE_IN_MEMORY", "1")
        kernel_files.check_writable()

    (folder / "file").touch()
    monkeypatch.setenv("CUPY_CACHE_DIR", str(folder / "file" / "kernels"))
    with pytest.raises(CannotOpen, match="Not a directory"):
        kernel_files.check_writable()

"""Kernels that are compiled in part: what is there is used, and NumPy computes the rest and says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.test_graphs import node_by_node, outputs_of
from tests.support.batches import each
from tests.support.graph_cases import layouts_of

from tensorpost.descriptors import OperatorDesc, parse_operator
from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.problems import InvalidParameter, NoBackend
from tensorpost_server import commands
from tensorpost_server.backends.numba_ import NumbaBackend, library
from tensorpost_server.backends.numba_.kernels import KERNELS
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms import FusedLines
from tensorpost_server.planning import make_plan

X = np.arange(6, dtype=np.float32).reshape(2, 3)
TENSOR = {"DataType": "FLOAT32", "Sizes": [2, 3]}


def operator(name: str, **fields: object) -> OperatorDesc:
    return parse_operator({"type": name, "desc": {"InputTensor": TENSOR, **fields}}, complete=True)


TILE, EXP = operator("TILE", Repeats=[1, 2]), operator("ELEMENT_WISE_EXP")


FUNCTIONS = ("ELEMENT_WISE_EXP", "ELEMENT_WISE_LOG", "ACTIVATION_TANH", "ACTIVATION_GELU", "ELEMENT_WISE_ERF")
AXES = ([0], [1], [0, 1])


@pytest.fixture
def narrow(numba: NumbaBackend, monkeypatch: pytest.MonkeyPatch) -> NumbaBackend:
    """A backend that uses no wider vectors than every processor has that runs the kernels."""
    del numba  # skipped where it cannot be opened
    monkeypatch.setattr(library, "_LOADED", dict[Path, object]())
    with monkeypatch.context() as patch:
        patch.setattr(library, "WIDE", ())
        patch.setattr(library, "object_file", {group: library.object_file(group) for group in library.GROUPS}.get)
        return NumbaBackend()


@pytest.fixture
def copies_only(numba: NumbaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that holds the kernels for copies, and no others."""
    del numba  # skipped where it cannot be opened
    shutil.copy(library.object_file("copies"), tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def computed(backend: NumbaBackend, desc: OperatorDesc) -> np.ndarray:
    run = backend.start(make_plan(desc, 1 << 20), [X.data.cast("B")])
    try:
        return np.frombuffer(run.compute(0), np.float32)
    finally:
        run.close()


def test_every_kernel_is_in_one_group_or_in_all() -> None:
    names = [name for names in library.GROUPS.values() for name in names]
    assert sorted([*names, *library.RUNNERS]) == sorted(KERNELS)


@pytest.mark.usefixtures("copies_only")
def test_what_is_compiled_is_used_and_numpy_computes_the_rest() -> None:
    backend = NumbaBackend()
    plans = [make_plan(desc, 1 << 20) for desc in (TILE, EXP)]

    assert [backend.uses_numpy(plan) for plan in plans] == [
        None, "the loops for expressions are not compiled: run `tensorpost warmup`",
    ]  # fmt: skip
    assert [backend.library(plan) for plan in plans] == ["", "numpy"]
    np.testing.assert_array_equal(computed(backend, TILE), np.tile(X, (1, 2)).ravel())
    np.testing.assert_array_equal(computed(backend, EXP), np.exp(X).ravel())


@pytest.mark.usefixtures("copies_only")
def test_doctor_names_what_is_not_compiled() -> None:
    (row,) = [row for row in commands.doctor() if row["name"] == "numba"]
    assert (row["available"], row["not_compiled"]) == (True, ["expressions", "resampling", "reductions"])


def test_warmup_compiles_only_what_is_asked_for_and_missing(copies_only: Path) -> None:
    said: list[str] = []

    assert commands.warmup(said.append, ["copies"])["compiled"] == []
    assert said == []
    with pytest.raises(InvalidParameter, match="no kernels 'sums'; there are expressions, copies, resampling"):
        commands.warmup(said.append, ["sums"])
    assert len(list(copies_only.iterdir())) == 1


def test_a_file_that_was_cut_is_compiled_anew(copies_only: Path) -> None:
    (file,) = copies_only.iterdir()
    os.truncate(file, 100)

    assert library.missing_groups(["copies"]) == ["copies"]
    with pytest.raises(library.NotCompiled, match="run `tensorpost warmup`"):
        library.load()


def test_a_compilation_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "numba.py").write_text('raise OSError("a library is missing")')
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "broken"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    with pytest.raises(NoBackend, match=r"of reductions ended with status 1: OSError: a library is missing$"):
        commands.warmup(lambda _: None, ["reductions"])
    assert not (tmp_path / "cache").exists()


@each(
    "kind, dtype, fields",
    [
        *[(kind, dtype, {}) for kind in FUNCTIONS for dtype in ("float32", "float16")],
        *[("REDUCE", dtype, {"Function": "SUM", "Axes": axes}) for dtype in ("float32", "float16") for axes in AXES],
        *[("REDUCE", dtype, {"Function": f, "Axes": axes})
          for dtype in ("float32", "float16", "uint8") for f in ("MAX", "MIN") for axes in AXES],
    ],
)  # fmt: skip
def test_wider_vectors_make_the_same_bytes(
    numba: NumbaBackend, narrow: NumbaBackend, kind: str, dtype: str, fields: dict[str, object]
) -> None:
    """On a processor that has them; where it has none, both backends run the same code."""
    x = (np.random.default_rng(5).standard_normal((37, 2100)) * 30).astype(dtype)
    tensor = {"DataType": dtype.upper(), "Sizes": [*x.shape]}
    plan = make_plan(parse_operator({"type": kind, "desc": {"InputTensor": tensor, **fields}}, complete=True), 1 << 20)

    def bytes_of(backend: NumbaBackend) -> bytes:
        assert backend.uses_numpy(plan) is None
        run = backend.start(plan, [x.data.cast("B")])
        return b"".join([bytes(run.compute(index)) for index in range(len(plan.slices))])

    assert bytes_of(narrow) == bytes_of(numba)


def test_what_is_fused_uses_what_is_compiled(numba: NumbaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The loops' powers of e, and NumPy's sums: the bytes of both nodes with the same loops."""
    shutil.copy(library.object_file("expressions"), tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    x = np.random.default_rng(3).normal(size=(5, 700)).astype(np.float32)
    nodes = [
        {"name": "e", "op_type": "Exp", "inputs": "x"},
        {"name": "y", "op_type": "ReduceSum", "inputs": {"data": "e", "axes": [1]}},
    ]
    document = {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": "y"}}
    graph = read_graph(document, layouts_of({"x": x}))
    backend = NumbaBackend()
    assert [type(step.form) for step in make_plan(graph, 1 << 20).steps] == [FusedLines]

    found = outputs_of(backend, graph, [x.tobytes()], 1 << 20)

    assert found == node_by_node(backend, graph, [x.tobytes()])
    assert found != outputs_of(NumpyBackend(), graph, [x.tobytes()], 1 << 20), "the functions differ in some last bits"
    assert backend.library(make_plan(graph, 1 << 20)) == "numpy"

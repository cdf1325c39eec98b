"""The conformance suite on the same sessions, run by ONNX Runtime's CPU provider.

A case may be refused, by its row in `to_onnx` or by the provider. One that is answered is right, or it stands in
`cpu-provider-xfails.txt` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.conformance.suite import Case, check_bytes, expected_failures
from tests.conformance.test_backends import *  # noqa: F403 # every test of the suite, whatever their names
from tests.support.vectors import VectorsFile, all_hold, cases_of, vectors_files

from tensorpost.problems import NoBackend
from tensorpost_server.backends.directml import DirectmlBackend
from tensorpost_server.backends.directml.to_onnx import _ROWS
from tensorpost_server.planning import make_plan

pytestmark = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime has no wheel for every Python")
LISTED = expected_failures(Path(__file__).with_name("cpu-provider-xfails.txt").read_text("utf-8"))

test_any_call = None
"""Not run: drawn calls are full of NaN and of indices outside the axis, which the list above is about."""


@pytest.fixture(scope="module")
def backend() -> Iterator[DirectmlBackend]:
    opened = DirectmlBackend(provider="CPUExecutionProvider")
    yield opened
    opened.close()


def answered(backend: DirectmlBackend, case: Case, slice_bytes: int = 1 << 20) -> bool:
    """Whether the case was not refused; its answer is right then."""
    if backend.refuses(make_plan(case.desc, slice_bytes)) is not None:
        return False
    try:
        check_bytes(backend, case, slice_bytes)
    except NoBackend:
        return False
    return True


@pytest.mark.parametrize("slice_bytes", [1 << 20, 1])
@pytest.mark.parametrize("file", vectors_files(), ids=str)
def test_vectors(backend: DirectmlBackend, file: VectorsFile, slice_bytes: int) -> None:
    known = {case.name: LISTED[f"{file} [{case}]"] for case in file.cases if f"{file} [{case}]" in LISTED}

    all_hold(file.cases, lambda case: answered(backend, case, slice_bytes), known)


test_vectors_in_the_smallest_slices = None
"""Above."""


@pytest.mark.parametrize("operator", sorted(_ROWS))
def test_every_row_answers_most_of_its_cases(backend: DirectmlBackend, operator: str) -> None:
    cases = [case for case in cases_of(operator) if not any(f"[{case}]" in entry for entry in LISTED)]

    assert sum(answered(backend, case) for case in cases) > len(cases) // 3

"""What every backend that computes must do: the checks, their cases, and the lists of known failures.

A check takes an opened backend and a case, and fails by assertion. Expected bytes are numbers worked by hand
(tests/vectors, read by tests/support/vectors.py) or come from evaluators that share no code with the packages
(tests/support/oracles.py, tests/support/operator_cases.py).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import itertools
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from tests.directml_device.deviations import Compared, explained
from tests.support import oracles
from tests.support import strategies as ours
from tests.support.vectors import Case, cases_of, elements

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, TileOperatorDesc, parse_operator
from tensorpost.values.problems import InvalidDescriptor, NoBackend
from tensorpost_server.backends import BACKENDS, Backend, Run
from tensorpost_server.planning import Plan, make_plan

__all__ = [
    "COMPUTING",
    "ORACLES",
    "Case",
    "check_bytes",
    "check_explained",
    "expected_failures",
    "known_failures",
    "layouts",
    "running",
    "vectors",
]

DO_NOT_COMPUTE = frozenset({"null"})  # answers zeros by design; tests/backends/test_null.py shows that it does
COMPUTING = tuple(name for name in BACKENDS if name not in DO_NOT_COMPUTE)
ORACLES: Mapping[type[OperatorDesc], Callable[[Any, bytes], bytes]] = {TileOperatorDesc: oracles.tile_oracle}
HERE = Path(__file__).parent
WINE = sys.platform == "win32" and hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")
"""Whether Windows is Wine."""


def vectors(*operators: str) -> list[Case]:
    """The cases of tests/vectors: of these operators, by default of all."""
    return cases_of(*operators)


# ---- every type in every kind of layout ------------------------------------------------------------------------------

_SIZES, _REPEATS, _TILED = (2, 3, 4), (3, 1, 2), (6, 3, 8)
_INPUTS: Mapping[str, tuple[int, ...] | None] = {
    "packed": None,
    "padded rows": (20, 5, 1),
    "channels last": (12, 1, 3),
    "broadcast": (0, 1, 0),
    "one element": (0, 0, 0),
    "overlapping": (1, 1, 1),
    "elements apart": (30, 10, 3),
}
_OUTPUTS: Mapping[str, tuple[int, ...] | None] = {
    "packed": None,
    "padded rows": (40, 9, 1),
    "channels last": (24, 1, 3),
    "columns first": (1, 6, 18),
    "elements apart": (100, 30, 3),
}


@cache
def layouts() -> list[Case]:
    """Tile in ten types, seven input layouts and five output layouts, with any bits as elements."""
    found: list[Case] = []
    for data_type, (source, strides), (target, out_strides) in itertools.product(
        ours.TILE_DATA_TYPES, _INPUTS.items(), _OUTPUTS.items()
    ):
        desc = TileOperatorDesc(
            input_tensor=BufferTensorDesc(data_type=data_type, sizes=_SIZES, strides=strides),
            output_tensor=BufferTensorDesc(data_type=data_type, sizes=_TILED, strides=out_strides),
            repeats=_REPEATS,
        )
        bits = random.Random(data_type + source).randbytes(desc.input_tensor.total_tensor_size_in_bytes)
        name = f"{data_type}, {source} to {target}"
        found.append(Case(name, desc, (bits,), oracles.tile_oracle(desc, bits)))
    return found


# ---- the checks ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(backend: Backend, case: Case, slice_bytes: int) -> Iterator[tuple[Plan, Run]]:
    """A run of the case, closed afterwards; its inputs must then be as they were."""
    plan = make_plan(case.desc, slice_bytes)
    assert backend.refusal_reason(plan) is None
    memory = [memoryview(bytearray(data)) for data in case.inputs]
    run = backend.start(plan, memory)
    try:
        yield plan, run
    finally:
        run.close()
    assert list(case.inputs) == [bytes(block) for block in memory], f"{case.name}: an input was written to"


def check_bytes(backend: Backend, case: Case, slice_bytes: int = 1 << 20, *, at_once: bool = False) -> None:
    """The slices, one after the other with their padding, are the outputs to the last byte.

    Args:
        backend: opened.
        case: what to run.
        slice_bytes: how it is cut.
        at_once: ask for up to `Backend.threads` slices at the same time.
    """
    case.check(answer_of(backend, case, slice_bytes, at_once=at_once))


def in_other_layout(case: Case, draw: random.Random) -> Case | None:
    """The same call with other strides: permuted, some with gaps between lines, each tensor in its own way.

    Returns:
        None for a node, whose tensors have no strides, for elements of 4 bits, and where a rule demands packed tensors.
    """
    if not isinstance(case.desc, OperatorDesc):
        return None

    def laid_out(part: Any) -> Any:
        if isinstance(part, list):
            return [laid_out(entry) for entry in cast("list[Any]", part)]
        if not isinstance(part, dict):
            return part
        members = cast("dict[str, Any]", part)
        if not {"DataType", "Sizes"} <= members.keys():
            return {name: laid_out(member) for name, member in members.items()}
        sizes: list[int] = members["Sizes"]
        strides, step = [0] * len(sizes), draw.choice([1, 2, 3])
        for axis in draw.sample(range(len(sizes)), len(sizes)):
            strides[axis], step = step, step * sizes[axis] + draw.choice([0, 1])
        kept = {name: member for name, member in members.items() if name != "TotalTensorSizeInBytes"}
        return {**kept, "Strides": strides}

    slots, document = (*case.desc.inputs, *case.desc.outputs), case.desc.to_document()
    if re.search("'U?INT4'", str(document)):
        return None
    try:
        desc = parse_operator(laid_out(document), complete=True)
    except InvalidDescriptor as error:
        assert "packed" in str(error), error  # noqa: PT017 # whose message is looked at
        return None
    old = (*case.inputs, *case.split(case.expected))
    new: list[bytes] = []
    for slot, target, buffer in zip(slots, (*desc.inputs, *desc.outputs), old, strict=True):
        memory = bytearray(target.layout.size_in_bytes)
        elements(target, memory)[...] = elements(slot, buffer)
        new.append(bytes(memory))
    count = len(case.inputs)
    return replace(case, desc=desc, inputs=tuple(new[:count]), expected=b"".join(new[count:]))


def check_explained(backend: Backend, case: Case, slice_bytes: int, *, at_once: bool) -> None:
    """As `check_bytes`, but for what `tests/directml_device/deviations.py` explains and Wine cannot compile."""
    try:
        refused = backend.refusal_reason(make_plan(case.desc, slice_bytes)) or ""
        answer = b"" if refused else answer_of(backend, case, slice_bytes, at_once=at_once)
    except NoBackend as error:
        refused, answer = str(error), b""
    except InvalidDescriptor as error:
        assert {violation.code for violation in error.violations} == {"index-out-of-bounds"}, error  # noqa: PT017 # whose violations are looked at
        return
    if refused:
        assert WINE, refused
        assert "0x80004005" in refused, refused  # E_FAIL of the compilation, remembered from then on
        return
    assert isinstance(case.desc, OperatorDesc)
    inputs = [elements(slot, data) for slot, data in zip(case.desc.inputs, case.inputs, strict=True)]
    for slot, got, want in zip(case.desc.outputs, case.split(answer), case.split(case.expected), strict=True):
        seen = Compared(case.desc, inputs, elements(slot, want), elements(slot, got))
        _, left = explained(seen)
        left &= ~(seen.distance() <= case.absolute)
        at = tuple(np.argwhere(left)[0]) if left.any() else ()
        assert not left.any(), f"{case.name}: {seen.theirs[at]!r} for {seen.mine[at]!r} at {at}"


def answer_of(backend: Backend, case: Case, slice_bytes: int, *, at_once: bool) -> bytes:
    """The outputs of a case, slice by slice."""
    with running(backend, case, slice_bytes) as (plan, run):
        indices = range(len(plan.slices))
        if at_once and len(indices) > 1:
            with concurrent.futures.ThreadPoolExecutor(backend.threads) as threads:
                blocks = list(threads.map(run.compute, indices))
        else:
            blocks = [run.compute(index) for index in indices]
        answer = b""
        # Joined only when all of them are there: memory that is used twice would show.
        for block, piece in zip(blocks, plan.slices, strict=True):
            assert piece.computed == block.nbytes, f"{case.name}: a slice has {block.nbytes} bytes"
            assert block.c_contiguous
            answer += bytes(block) + bytes(piece.padding)
        assert plan.output_bytes == len(answer), f"{case.name}: {len(answer)} bytes in all"
        return answer


# ---- known failures --------------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"(?P<case>test_\w+|[\w/]+ \[.+\]): (?P<reason>\S.{9,})")


def known_failures(backend: str) -> Mapping[str, str]:
    """The entries of the backend's list `<backend>-xfails.txt`, if it has one; those of Wine only where Wine is.

    What fails "at times" is expected neither to fail nor to pass.
    """
    path = HERE / f"{backend}-xfails.txt"
    entries = expected_failures(path.read_text("utf-8")) if path.is_file() else {}
    return {entry: reason for entry, reason in entries.items() if WINE or not reason.startswith("under Wine")}


def expected_failures(text: str) -> dict[str, str]:
    """The entries of a backend's list of known failures: `test_name` or `file [case]`, to the reason.

    Raises:
        ValueError: a line that is neither a comment nor an entry with a reason; an entry that stands there twice.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None or entry["case"] in found:
            raise ValueError(f"{line!r} is no new entry of the form 'file [case]: reason'")
        found[entry["case"]] = entry["reason"]
    return found

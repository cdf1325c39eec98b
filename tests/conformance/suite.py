"""What every backend that computes must do: the checks, their cases, and the lists of known failures.

A check takes an opened backend and a case, and fails by assertion. Expected bytes are numbers worked by hand
(tests/vectors) or come from slow evaluators that share no code with the packages (tests/support/oracles.py).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import random
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import oracles
from tests.support import strategies as ours

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, TileOperatorDesc, parse_operator
from tensorpost_server.backends import BACKENDS, Backend, Run
from tensorpost_server.planning import Plan, make_plan

__all__ = ["COMPUTING", "ORACLES", "Case", "check_bytes", "expected_failures", "layouts", "running", "vectors"]

DO_NOT_COMPUTE = frozenset({"null"})  # answers zeros by design; tests/backends/test_null.py shows that it does
COMPUTING = tuple(name for name in BACKENDS if name not in DO_NOT_COMPUTE)
ORACLES: Mapping[type[OperatorDesc], Callable[[Any, bytes], bytes]] = {TileOperatorDesc: oracles.tile_oracle}
_VECTORS = Path(__file__).parents[1] / "vectors"


@dataclass(frozen=True)
class Case:
    """One call whose answer is known.

    Attributes:
        name: in test ids and in the lists of known failures.
        desc: the operator.
        inputs: the input tensors' whole buffers.
        expected: the output's whole buffer; what is cut off behind the last element is zeros.
    """

    name: str
    desc: OperatorDesc
    inputs: tuple[bytes, ...]
    expected: bytes

    def __str__(self) -> str:
        return self.name


def vectors() -> list[Case]:
    """Tile, by hand."""
    found: list[Case] = []
    for vector in json.loads((_VECTORS / "tile" / "by_hand.json").read_text())["vectors"]:
        desc = parse_operator(vector["op"])
        assert isinstance(desc, TileOperatorDesc)
        found.append(
            Case(
                vector["name"],
                desc,
                (_elements(desc.input_tensor, vector["input"]),),
                _elements(desc.output_tensor, vector["output"]),
            )
        )
    return found


def _elements(tensor: BufferTensorDesc, numbers: list[int | str]) -> bytes:
    """A buffer of these elements: numbers, or the bits of floating-point ones in hexadecimal."""
    code = {"FLOAT32": "I", "FLOAT16": "H"}.get(tensor.data_type.name)
    if code is not None:
        data = b"".join(struct.pack(f"<{code}", int(str(bits), 16)) for bits in numbers)
    else:
        data = oracles.pack_elements(tensor.data_type, numbers)
    return data.ljust(tensor.total_tensor_size_in_bytes, b"\0")


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


def layouts() -> list[Case]:
    """Ten types, seven input layouts and five output layouts, with any bits as elements."""
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
    assert backend.refuses(plan) is None
    memory = [memoryview(bytearray(data)) for data in case.inputs]
    run = backend.start(plan, memory)
    try:
        yield plan, run
    finally:
        run.close()
    assert list(case.inputs) == [bytes(block) for block in memory], "an input was written to"


def check_bytes(backend: Backend, case: Case, slice_bytes: int = 1 << 20, *, at_once: bool = False) -> None:
    """The slices, one after the other with their padding, are the output to the last byte.

    Args:
        backend: opened.
        case: what to run.
        slice_bytes: how it is cut.
        at_once: ask for up to `Backend.threads` slices at the same time.
    """
    with running(backend, case, slice_bytes) as (plan, run):
        indices = range(len(plan.slices))
        if at_once:
            with concurrent.futures.ThreadPoolExecutor(backend.threads) as threads:
                blocks = list(threads.map(run.compute, indices))
        else:
            blocks = [run.compute(index) for index in indices]
        output = b""
        # Joined only when all of them are there: memory that is used twice would show.
        for block, piece in zip(blocks, plan.slices, strict=True):
            assert piece.computed == block.nbytes
            assert block.c_contiguous
            output += bytes(block) + bytes(piece.padding)
        assert plan.output_bytes == len(output)
        assert case.expected[: len(output)] == output, f"{case.name}: wrong from byte {_first_difference(case, output)}"
        assert not any(case.expected[len(output) :])


def _first_difference(case: Case, output: bytes) -> int | None:
    return next((at for at, (a, b) in enumerate(zip(case.expected, output, strict=False)) if a != b), None)


# ---- known failures --------------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"(?P<test>test_\w+(?: \[.+\])?): (?P<reason>\S.{9,})")


def expected_failures(text: str) -> dict[str, str]:
    """The entries of a backend's list of known failures, test to reason.

    Raises:
        ValueError: a line that is neither a comment nor an entry with a reason; a test that stands there twice.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None or entry["test"] in found:
            raise ValueError(f"{line!r} is no new entry of the form 'test_name [case]: reason'")
        found[entry["test"]] = entry["reason"]
    return found

"""Operators whose data decide what they read and write, on a CUDA device: nothing outside of an array is touched.

    compute-sanitizer --tool memcheck --error-exitcode 9 python -m benchmarks.gpu_indices --cases 2000 --seconds 500

Every case of the vectors of these operators, as it is and with other data, then calls of drawn sizes. Each array is an
allocation of its own: a memory pool would hide what is read beside one, because its neighbours are legal memory. What
NumPy computes is compared: operators that move elements bit for bit, others loosely, whose differences are counted.

Needs NumPy, CuPy and Pydantic beside this repository, run from its root with PYTHONPATH=client:app:. and a device.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.support.index_cases import ADDRESSING, INDEXED, drawn_case, hostile_vectors
from tests.support.vectors import Case, cases_of

from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.backends.base import Backend
from tensorpost_server.backends.cuda.backend import CudaBackend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

MOVING = {
    "GATHER", "GATHER_ELEMENTS", "GATHER_ND", "GATHER_ND1", "ONE_HOT", "REVERSE_SUBSEQUENCES", "NONZERO_COORDINATES",
    "RANDOM_GENERATOR", "Gather", "GatherElements", "GatherND", "OneHot", "ReverseSequence",
}  # fmt: skip
"""Operators whose answers have the same bits on every device. Those that scatter may keep any of several updates."""
SLICES = (1 << 20, 64)


class Unpooled:
    """Device memory without a pool: what `CudaBackend` asks of CuPy's `MemoryPool`.

    Args:
        cupy: the module.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.allocations = 0

    def set_limit(self, size: int) -> None:
        """Every call fits: the largest takes some KiB."""

    def malloc(self, size_in_bytes: int) -> Any:
        """An allocation of its own, freed with its last use."""
        self.allocations += 1
        return self._cupy.cuda.MemoryPointer(self._cupy.cuda.Memory(size_in_bytes), 0)

    def free_all_blocks(self) -> None:
        """Nothing is kept."""

    def total_bytes(self) -> int:
        """Nothing is kept."""
        return 0

    def used_bytes(self) -> int:
        """It is not counted."""
        return 0


def computed(backend: Backend, case: Case, slice_bytes: int) -> bytes | str:
    """The outputs; or why there are none, in a word."""
    plan = make_plan(case.desc, slice_bytes)
    if backend.refusal_reason(plan) is not None:
        return "refused"
    memory = [memoryview(data) for data in case.inputs]
    try:
        plan.check_indices(memory)
    except InvalidDescriptor:
        return "index refused"
    run = backend.start(plan, memory)
    try:
        return b"".join([bytes(run.compute(index)) + bytes(piece.padding) for index, piece in enumerate(plan.slices)])
    finally:
        run.close()


def cases(count: int, seed: int) -> Iterator[Case]:
    """The vectors, the vectors with other data, then so many drawn calls."""
    random = np.random.default_rng(seed)
    for operator in ADDRESSING:
        yield from cases_of(operator)
        yield from hostile_vectors(random, operator)
    for number in range(count):
        yield drawn_case(np.random.default_rng([seed, number]), INDEXED[number % len(INDEXED)])


def differs(case: Case, found: bytes, wanted: bytes) -> bool:
    """Whether two devices' answers are not the same."""
    if found == wanted:
        return False
    moving = case.desc.name in MOVING
    loosely = Case(case.name, case.desc, case.inputs, wanted, 0 if moving else 64, 0 if moving else 1e-3, True)
    try:
        loosely.check(found)
    except AssertionError:
        return True
    return False


def main(arguments: list[str] | None = None) -> int:
    """Run the cases, and say how many ran; 1 if one failed, or if elements were moved otherwise than by NumPy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_indices", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="drawn calls, after those of the vectors")
    parser.add_argument("--seconds", type=float, default=540, help="after which no further call begins; default 540")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    cupy: Any = importlib.import_module("cupy")
    pool = Unpooled(cupy)
    cupy.cuda.MemoryPool = lambda *_: pool
    device, host = CudaBackend(), NumpyBackend()
    outcomes, wrong, loose = Counter[str](), list[str](), Counter[str]()
    begin, ran = time.monotonic(), 0
    for ran, case in enumerate(cases(options.cases, options.seed), 1):
        if time.monotonic() - begin > options.seconds:
            outcomes["out of time"] += 1
            break
        slice_bytes = SLICES[ran % 2]
        found = computed(device, case, slice_bytes)
        if isinstance(found, str):
            outcomes[found] += 1
            continue
        outcomes["computed"] += 1
        wanted = computed(host, case, slice_bytes)
        assert isinstance(wanted, bytes)
        if differs(case, found, wanted):
            if case.desc.name in MOVING:
                wrong.append(f"call {ran}, {case.desc.name} [{case.name}]: other elements than NumPy's")
            else:
                loose[case.desc.name] += 1
        if ran % 200 == 0:
            print(f"{ran} calls, {time.monotonic() - begin:.0f} s", flush=True)
    device.close()
    spelled = ", ".join(f"{number} {what}" for what, number in outcomes.items())
    print(f"{device.device}: {ran} calls: {spelled}; {pool.allocations} allocations of their own")
    print(f"numbers further from NumPy's than rounding (NaN, infinities, updates that meet): {dict(loose) or 'none'}")
    for line in wrong[:20]:
        print(line)
    print(f"{len(wrong)} wrong, {time.monotonic() - begin:.0f} s")
    return int(bool(wrong) or not outcomes["computed"])


if __name__ == "__main__":
    sys.exit(main())

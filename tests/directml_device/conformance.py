"""Compare what operators compute with DirectML: `python -m tests.directml_device.conformance COMMAND`.

* `answer START STOP`: on Windows or under Wine; DirectML's outputs of random legal calls, one JSON line each.
* `ask COUNT`: the same from Linux, in Windows processes of `CHUNK` calls each (DIRECTML_PYTHON as in `validation`).
* `compare [BACKEND...]`: compute the same calls here, by default on numpy, and print where and how much they differ.
  Fails where an element has no reason in `deviations`.
* `keep`: write the fixture that `tests/conformance/test_directml_answers.py` reads.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import gzip
import json
import os
import random
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.vectors import elements

from tensorpost.descriptors import OperatorDesc, operator_class
from tensorpost.values.operation import Slot
from tensorpost.values.problems import TensorpostError
from tensorpost_server.backends import Backend, load_backend
from tensorpost_server.planning import make_plan

from .descriptor_cases import OPERATORS, DescriptorCase, legal_case
from .deviations import Compared, explained
from .validation import ours

__all__ = ["FIXTURE", "UNANSWERED", "Answer", "Difference", "computed", "difference", "kept", "told_answers"]

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "build" / "directml" / "answers.jsonl.gz"
FIXTURE = ROOT / "tests" / "directml_device" / "answers.jsonl.gz"
UNANSWERED = {"RANDOM_GENERATOR": "CompileOperator returns E_FAIL under Wine for each of its calls"}
"""Operators of which there are no answers, with the reason."""
CHUNK = 170
MOST_ELEMENTS = 3000
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 100.0, 1e-3, 1e4, -6e4, np.inf, -np.inf, np.nan)


@dataclass(frozen=True)
class Answer:
    """A call and what DirectML answered.

    Attributes:
        operator: short name.
        fields: its descriptor.
        inputs: the inputs' buffers, base64.
        outputs: DirectML's output buffers one after the other, base64; empty if there are none.
        error: why there are none.
    """

    operator: str
    fields: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: str = ""
    error: str = ""

    @property
    def desc(self) -> OperatorDesc:
        """The descriptor."""
        return operator_class(self.operator)(**self.fields)


# ---- calls -----------------------------------------------------------------------------------------------------------


def calls(start: int, stop: int) -> Iterable[tuple[int, Answer]]:
    """Random legal calls with their inputs, all operators in turn, and their numbers."""
    for index in range(start, stop):
        operator = OPERATORS[index % len(OPERATORS)]
        for attempt in range(200):
            case = legal_case(index, attempt, operator)
            if not ours(case.operator, case.fields) and _is_small(case):
                break
        else:
            raise AssertionError(f"no legal call of {operator}")
        desc = operator_class(case.operator)(**case.fields)
        random_numbers = np.random.default_rng([20261122, index])
        inputs = [_filled(random_numbers, desc, slot) for slot in desc.inputs]
        yield index, Answer(operator, case.fields, tuple([base64.b64encode(data).decode() for data in inputs]))


def _is_small(case: DescriptorCase) -> bool:
    desc = operator_class(case.operator)(**case.fields)
    return sum(slot.layout.size_in_bytes for slot in (*desc.inputs, *desc.outputs)) <= 4 * MOST_ELEMENTS


def _filled(rng: np.random.Generator, desc: OperatorDesc, slot: Slot) -> bytes:
    """A buffer for an input: whatever stands between the elements is random too."""
    layout = slot.layout
    data = bytearray(rng.bytes(layout.size_in_bytes))
    dtype = np.dtype(layout.data_type.numpy_name)
    values: Any = np.frombuffer(data, dtype, layout.size_in_bytes // dtype.itemsize)
    if slot.name == "indices":
        values[:] = _indices(rng, desc, dtype, len(values))
        if desc.operator_type == "SCATTER_ELEMENTS":
            _scatter_indices(rng, desc, elements(slot, data))
    elif dtype.kind == "f":
        wide = rng.random() < 0.4  # whole numbers and eighths otherwise: sums of them are exact
        drawn = rng.standard_normal(len(values)) * 10 if wide else rng.integers(-32, 33, len(values)) / 8
        if rng.random() < 0.35:
            chosen = rng.random(len(values)) < 0.3
            drawn[chosen] = rng.choice(SPECIAL, np.count_nonzero(chosen))
        with np.errstate(over="ignore"):
            values[:] = drawn.astype(dtype)
    elif rng.random() < 0.7:
        low = 0 if dtype.kind == "u" else -9
        values[:] = rng.integers(low, 10, len(values)).astype(dtype)
    return bytes(data)


def _indices(rng: np.random.Generator, desc: Any, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    sizes = getattr(desc, "input_tensor", desc.outputs[0].layout).sizes
    whole = hasattr(desc, "axis") and len(sizes) > desc.axis
    length = sizes[desc.axis] if whole else min(sizes)  # of several dimensions that indices may be of
    low = -length if dtype.kind == "i" else 0
    beyond = int(rng.random() < 0.15)
    return rng.integers(low - beyond * (dtype.kind == "i"), length + beyond, count).astype(dtype)


def _scatter_indices(rng: np.random.Generator, desc: Any, indices: NDArray[Any]) -> None:
    """Distinct along the axis: of two updates of one element DirectML does not say which wins."""
    axis, length = desc.axis, desc.input_tensor.sizes[desc.axis]
    for line in np.ndindex(*[1 if other == axis else size for other, size in enumerate(indices.shape)]):
        at = tuple(slice(None) if other == axis else index for other, index in enumerate(line))
        chosen = rng.permutation(length)[: indices.shape[axis]]
        indices[at] = chosen - length * (rng.random(len(chosen)) < 0.3) * (indices.dtype.kind == "i")


# ---- answers ---------------------------------------------------------------------------------------------------------


def computed(backend: Backend, call: Answer) -> bytes:
    """The output buffers of a call on an opened backend, one after the other."""
    plan = make_plan(call.desc, 1 << 24)
    refusal = backend.refusal_reason(plan)
    if refusal is not None:
        raise ValueError(refusal)
    run = backend.start(plan, [memoryview(bytearray(base64.b64decode(data))) for data in call.inputs])
    try:
        blocks = [run.compute(index) for index in range(len(plan.slices))]
        return b"".join(bytes(block) + bytes(piece.padding) for block, piece in zip(blocks, plan.slices, strict=True))
    finally:
        run.close()


def answer(start: int, stop: int) -> None:
    """See the module; on Windows."""
    from tensorpost_server.backends.directml import DirectmlBackend  # on Windows only

    backend: Any = DirectmlBackend(0)
    for index, call in calls(start, stop):
        print(json.dumps({"asking": index}), flush=True)
        try:
            outputs, error = base64.b64encode(computed(backend, call)).decode(), ""
        except (ValueError, TensorpostError) as problem:
            outputs, error = "", f"{type(problem).__name__}: {problem}"
        print(json.dumps({"call": index, "outputs": outputs, "error": error}), flush=True)


def ask(count: int) -> None:
    """See the module."""
    command = shlex.split(os.environ["DIRECTML_PYTHON"])
    answers: dict[int, dict[str, str]] = {}
    start = 0
    while start < count:
        stop = min(count, start + CHUNK)
        told = subprocess.run(
            [*command, "-m", "tests.directml_device.conformance", "answer", str(start), str(stop)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace", check=False, timeout=1800,
        ).stdout  # fmt: skip
        asked = None
        for line in told.splitlines():
            if line.startswith("{"):
                said = json.loads(line)
                asked = said.get("asking", asked)
                if "call" in said:
                    answers[said["call"]] = {"outputs": said["outputs"], "error": said["error"]}
        if asked is None:
            sys.exit(f"DirectML answered nothing: {told[-2000:]}")
        missing = [index for index in range(start, stop) if index not in answers]
        if missing:
            answers[missing[0]] = {"outputs": "", "error": "the process ended"}
            print(f"the process ended at call {missing[0]}", flush=True)
        start = missing[0] + 1 if missing else stop
        print(f"{len(answers)} of {count}", flush=True)
        known = max(answers) + 1
        _write(ANSWERS, [dataclasses.replace(call, **answers[index]) for index, call in calls(0, known)])


def _write(file: Path, items: Sequence[Answer]) -> None:
    lines = [json.dumps(dataclasses.astuple(item), separators=(",", ":")) for item in items]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def _read(file: Path) -> list[Answer]:
    found: list[Answer] = []
    for line in gzip.decompress(file.read_bytes()).decode().splitlines():
        operator, fields, inputs, outputs, error = json.loads(line)
        found.append(Answer(operator, fields, tuple(inputs), outputs, error))
    return found


# ---- comparing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """How the outputs of a backend differ from DirectML's.

    Attributes:
        same: every byte, but for bits of a NaN and the sign of a zero.
        reasons: of `DEVIATIONS`, where numbers differ by more than rounding.
        unexplained: elements that no reason covers, and outputs whose bytes between the elements differ.
    """

    same: bool
    reasons: tuple[str, ...]
    unexplained: int


def difference(call: Answer, found: bytes) -> Difference:
    """Compare the outputs of a backend with DirectML's."""
    desc, wanted = call.desc, base64.b64decode(call.outputs)
    inputs = [elements(slot, base64.b64decode(data)) for slot, data in zip(desc.inputs, call.inputs, strict=True)]
    same, reasons, unexplained = True, list[str](), 0
    for slot in desc.outputs:
        size = slot.layout.size_in_bytes
        mine, theirs = bytearray(found[:size]), bytearray(wanted[:size])
        found, wanted = found[size:], wanted[size:]
        seen = Compared(desc, inputs, elements(slot, mine), elements(slot, theirs), slot.name)
        known, left = explained(seen)
        same &= bool(np.array_equal(seen.mine, seen.theirs, equal_nan=seen.mine.dtype.kind == "f"))
        reasons += known
        unexplained += int(np.count_nonzero(left))
        elements(slot, mine)[...] = 0
        elements(slot, theirs)[...] = 0
        unexplained += mine != theirs
    return Difference(same, tuple(dict.fromkeys(reasons)), unexplained)


def told_answers() -> list[Answer]:
    """What was asked, in order."""
    return _read(ANSWERS)


def compare(backends: Sequence[str], examples: int) -> int:
    """See the module; how many calls nobody has explained."""
    calls_made, unexplained = told_answers(), 0
    for name in backends:
        opened = load_backend(name)()
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for call in calls_made:
            if call.error:
                found[call.operator]["no answer"] += 1
                continue
            seen = difference(call, computed(opened, call))
            words = seen.reasons or (("same" if seen.same else "rounding"),)
            found[call.operator].update([*words, *["not explained"] * bool(seen.unexplained)])
            unexplained += bool(seen.unexplained)
            if seen.unexplained and found[call.operator]["not explained"] <= examples:
                print(call.operator, json.dumps(call.fields))
        for operator, counts in found.items():
            print(name, operator, dict(counts))
    print(f"{len(calls_made)} calls, {unexplained} not explained")
    return unexplained


def keep(most: int) -> None:
    """See the module: of every operator the smallest, of every deviation one that shows it, if need be as before."""
    calls_made = sorted([call for call in told_answers() if call.outputs], key=lambda call: len(str(call)))
    counts: Counter[str] = Counter()
    shown: set[str] = set()
    chosen: list[Answer] = []
    opened = load_backend("numpy")()
    for place, call in enumerate([*calls_made, *kept()]):
        reasons = set(difference(call, computed(opened, call)).reasons)
        if (counts[call.operator] < most and place < len(calls_made)) or reasons - shown:
            counts[call.operator] += 1
            shown |= reasons
            chosen.append(call)
    _write(FIXTURE, chosen)
    print(f"{len(chosen)} calls, {FIXTURE.stat().st_size} bytes")


def kept() -> list[Answer]:
    """The calls of the fixture."""
    return _read(FIXTURE)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.directml_device.conformance")
    commands = parser.add_subparsers(dest="command", required=True)
    of_answer = commands.add_parser("answer")
    of_answer.add_argument("start", type=int)
    of_answer.add_argument("stop", type=int)
    commands.add_parser("ask").add_argument("count", type=int)
    of_compare = commands.add_parser("compare")
    of_compare.add_argument("backends", nargs="*", default=["numpy"])
    of_compare.add_argument("--examples", type=int, default=1)
    commands.add_parser("keep").add_argument("--most", type=int, default=4)
    options = parser.parse_args()
    random.seed(0)
    match options.command:
        case "answer":
            answer(options.start, options.stop)
        case "ask":
            ask(options.count)
        case "compare":
            sys.exit(int(compare(options.backends, options.examples) > 0))
        case _:
            keep(options.most)


if __name__ == "__main__":
    main()

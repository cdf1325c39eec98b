"""Ask DirectML twelve questions that its documents leave open: `python -m tests.directml_device.probes`.

For a machine with DirectML, or `tools/directml probes`. Each probe states tensorpost's present choice, so that the
answers show what has to change. The answers are one JSON document, with versions, adapter and driver; what is not as
tensorpost has it is said on standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import BufferTensorDesc, InterpolationMode, OperatorDesc
from tensorpost.values.datatypes import TensorDataType, data_type
from tensorpost_server.backends import CannotOpen
from tensorpost_server.backends.directml.c_structs import OperatorStruct
from tensorpost_server.backends.directml.com import ComError
from tensorpost_server.backends.directml.d3d12 import BindingProperties
from tensorpost_server.backends.directml.device import Device, binding_properties
from tensorpost_server.backends.directml.directml_dll import Libraries, open_libraries
from tensorpost_server.backends.directml.operators import CompiledOperators, dispatch

__all__ = ["PROBES", "Probe", "compute", "run_probes"]

NEAREST, LINEAR = InterpolationMode.NEAREST_NEIGHBOR, InterpolationMode.LINEAR
OTHER = "something else"
_RAMP4, _RAMP8 = (0.0, 1.0, 2.0, 3.0), tuple(map(float, range(8)))


@dataclass(frozen=True, slots=True)
class Probe:
    """One question.

    Attributes:
        number: the question's number in the list of open points.
        question: the question in words.
        probe: what is sent, and how an answer is to be read.
        choice: what tensorpost does at present: one of the readings.
        read: names what was found; `something else` if it is none of the expected readings.
        ask: puts the question.
    """

    number: int
    question: str
    probe: str
    choice: str
    read: Callable[[Any], str]
    ask: Callable[[Device], Any]


def run_probes(index: int = 0, libraries: Libraries | None = None) -> dict[str, Any]:
    """Ask everything.

    Args:
        index: DXGI's index of the adapter.
        libraries: where DirectML is; None for this machine's.

    Returns:
        A JSON document: versions, device and driver as far as they can be read, and one answer per probe.

    Raises:
        CannotOpen: DirectML is not there, or the adapter; the message says what to do.
    """
    libraries = open_libraries() if libraries is None else libraries
    try:
        device = Device(libraries, index)
    except ComError as error:
        raise CannotOpen(f"adapter {index} cannot be opened for DirectML: {error}") from error
    with closing(device):
        return {
            "format": "tensorpost directml probes 2",
            "asked_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "system": {
                "platform": platform.platform(), "machine": platform.machine(), "python": platform.python_version()
            },
            "directml_library": libraries.version,
            "adapter": {**asdict(device.adapter), "feature_level": str(device.level)},
            "answers": [_answer(probe, device) for probe in PROBES],
        }  # fmt: skip


def _answer(probe: Probe, device: Device) -> dict[str, Any]:
    """A probe's entry of the document: `state` is `answered`, or `failed` with a `reason`."""
    entry: dict[str, Any] = {
        "number": probe.number, "question": probe.question, "probe": probe.probe, "state": "failed",
        "choice": probe.choice, "found": None, "reading": None, "agrees": None, "reason": None,
    }  # fmt: skip
    try:
        found = probe.ask(device)
        json.dumps(found, allow_nan=False)  # an infinity or NaN is neither an answer nor JSON
        reading = probe.read(found)
    except Exception as error:  # noqa: BLE001 # one probe that fails must not cost the answers of the others
        return entry | {"reason": f"{type(error).__name__}: {error}"}
    return entry | {"state": "answered", "found": found, "reading": reading, "agrees": reading == probe.choice}


def compute(device: Device, desc: OperatorDesc, *inputs: bytes) -> list[bytes]:
    """An operator's outputs, whatever tensorpost's rules say of its descriptor.

    Args:
        device: the adapter, opened.
        desc: what is computed.
        inputs: the bytes of the tensors that are there, in binding order.

    Raises:
        ComError: DirectML refuses it, or the device fails.
    """
    operators = CompiledOperators(device)
    try:
        operator = operators.get(desc)
        made = [bytearray(size) for size in operator.outputs if size is not None]
        buffers = dispatch(device, operator, [memoryview(data) for data in inputs], clear=True)
        for buffer, block in zip(buffers, made, strict=True):
            device.queue.read(buffer, 0, memoryview(block))
            device.buffers.give(buffer)
        return [bytes(block) for block in made]
    finally:
        operators.clear()


# -- reading --


@dataclass(frozen=True, slots=True)
class _OneOf:
    """Reads an answer that is one of a few known ones."""

    known: tuple[tuple[str, Any], ...]
    tolerance: float = field(default=1e-4, kw_only=True)

    def __call__(self, found: Any) -> str:
        for reading, expected in self.known:
            if np.shape(found) == np.shape(expected) and np.allclose(found, expected, rtol=0, atol=self.tolerance):
                return reading
        return OTHER


def _by_both(readings: _OneOf) -> Callable[[Any], str]:
    """Reads two answers that should be the same."""

    def read(found: dict[str, Any]) -> str:
        meanings = {name: readings(value) for name, value in found.items()}
        same = set(meanings.values())
        return same.pop() if len(same) == 1 else ", ".join(f"{name} {said}" for name, said in meanings.items())

    return read


def _refused_or_not(found: dict[str, str]) -> str:
    accepted = [what for what, said in found.items() if said == "accepted"]
    if not accepted:
        return "refuse"
    return "accept" if len(accepted) == len(found) else f"accept {', '.join(accepted)}"


# -- asking: descriptors are made without looking at tensorpost's rules, since some probes ask for DirectML's own --


def _tensor(*sizes: int, kind: str = "float32", strides: tuple[int, ...] | None = None) -> BufferTensorDesc:
    """A tensor whose buffer has room for the packed elements, at least one."""
    size = max(1, math.prod(sizes)) * data_type(kind).item_size
    return BufferTensorDesc.model_construct(
        data_type=TensorDataType[kind.upper()], sizes=sizes, strides=strides,
        total_tensor_size_in_bytes=-(-size // 4) * 4,
    )  # fmt: skip


def _numbers(device: Device, desc: OperatorDesc, values: Sequence[float], count: int, kind: str = "float32") -> Any:
    (made,) = compute(device, desc, np.array(values, kind).tobytes())
    return np.frombuffer(made, kind, count).astype(float).tolist()


def _resampled(device: Device, values: Sequence[float], scales: Sequence[float], *, kind: str = "float32",
               cls: type[OperatorDesc] = dml.Resample2OperatorDesc, offsets: tuple[float, float] = (0.5, -0.5),
               output: int | None = None, **fields: Any) -> Any:  # fmt: skip
    """A resampled square of numbers, or a row of them if one scale is given, of `output` elements."""
    length = len(values) if len(scales) == 1 else math.isqrt(len(values))
    sizes, scales = (1,) * (4 - len(scales)) + (length,) * len(scales), (1.0,) * (4 - len(scales)) + tuple(scales)
    made = tuple([math.floor(size * scale) for size, scale in zip(sizes, scales, strict=True)])
    made = made if output is None else (*made[:-1], output)
    fields = {"interpolation_mode": LINEAR, "rounding_direction": dml.AxisDirection.DECREASING, **fields}
    desc = cls.model_construct(
        input_tensor=_tensor(*sizes, kind=kind), output_tensor=_tensor(*made, kind=kind), scales=scales,
        input_pixel_offsets=offsets[:1] * 4, output_pixel_offsets=offsets[1:] * 4, **fields,
    )  # fmt: skip
    return _numbers(device, desc, values, math.prod(made), kind)


def _integers(device: Device) -> Any:
    return _resampled(device, (1, 2), (3.0,), kind="uint8")


_FILTERED: dict[str, Any] = {"cls": dml.Resample3OperatorDesc, "antialiased": True}


def _filter(device: Device) -> Any:
    return _resampled(device, (0, 0, 8, 0, 0, 0, 0, 0), (0.25,), **_FILTERED)


def _threshold(device: Device) -> dict[str, Any]:
    rows = [float(column) for _ in range(8) for column in range(8)]
    return {
        "0.5 alone": _resampled(device, _RAMP8, (0.5,), **_FILTERED),
        "0.5 beside 0.25": _resampled(device, rows, (0.25, 0.5), **_FILTERED)[:4],
    }


def _read_threshold(found: dict[str, Any]) -> str:
    alone, beside = (np.allclose(values, [0.5, 2.5, 4.5, 6.5], rtol=0, atol=1e-4) for values in found.values())
    if alone and beside:
        return "unfiltered, per axis"
    return "unfiltered, whole operator" if alone else "filtered"


def _precision(device: Device) -> Any:
    return _resampled(device, _RAMP4, (float(np.float32(0.6)),), interpolation_mode=NEAREST)[1]


def _corners(device: Device) -> Any:
    scale = float(np.float32(1 / 7))
    return _resampled(device, _RAMP8, (scale,), interpolation_mode=NEAREST, offsets=(0.0, 0.0), output=2)[1]


def _tile(source: BufferTensorDesc, target: BufferTensorDesc, *repeats: int) -> OperatorDesc:
    return dml.TileOperatorDesc.model_construct(input_tensor=source, output_tensor=target, repeats=repeats)


def _resample1(size: int, output: int, scale: float, mode: InterpolationMode) -> OperatorDesc:
    return dml.Resample1OperatorDesc.model_construct(
        input_tensor=_tensor(1, 1, 1, size), output_tensor=_tensor(1, 1, 1, output), interpolation_mode=mode,
        scales=(1.0, 1.0, 1.0, scale), input_pixel_offsets=(0.5,) * 4, output_pixel_offsets=(-0.5,) * 4,
    )  # fmt: skip


def _ties(device: Device) -> dict[str, Any]:
    plain = dml.ResampleOperatorDesc(
        input_tensor=_tensor(1, 1, 1, 4), output_tensor=_tensor(1, 1, 1, 2), interpolation_mode=NEAREST,
        scales=(1, 1, 1, 0.5),
    )  # fmt: skip
    operators = {"RESAMPLE": plain, "RESAMPLE1": _resample1(4, 2, 0.5, NEAREST)}
    return {name: _numbers(device, operator, _RAMP4, 2) for name, operator in operators.items()}


def _upsample(device: Device) -> Any:
    operator = dml.Upsample2DOperatorDesc(
        input_tensor=_tensor(1, 1, 1, 2), output_tensor=_tensor(1, 1, 1, 4),
        scale_size=dml.Size2D(width=2, height=1), interpolation_mode=LINEAR,
    )  # fmt: skip
    return _numbers(device, operator, (0, 4), 4)


def _gradient(device: Device) -> Any:
    operator = dml.ResampleGradOperatorDesc(
        input_gradient_tensor=_tensor(1, 1, 1, 4), output_gradient_tensor=_tensor(1, 1, 1, 2),
        interpolation_mode=NEAREST, scales=(1, 1, 1, 2), input_pixel_offsets=(0.5,) * 4,
        output_pixel_offsets=(-0.5,) * 4,
    )  # fmt: skip
    return _numbers(device, operator, (1, 2, 3, 4), 2)


def _created(device: Device, operators: dict[str, OperatorDesc]) -> dict[str, str]:
    """Whether DirectML creates each of the operators."""
    found: dict[str, str] = {}
    for what, operator in operators.items():
        try:
            device.create_operator(OperatorStruct.from_desc(operator)).release()
        except ComError as refused:
            found[what] = f"refused: 0x{refused.code:08X}"
        else:
            found[what] = "accepted"
    return found


def _scales(device: Device) -> dict[str, str]:
    scales = {"0": 0.0, "-1": -1.0, "NaN": math.nan, "infinity": math.inf}
    return _created(device, {name: _resample1(2, 4, scale, LINEAR) for name, scale in scales.items()})


def _strides(device: Device) -> dict[str, str]:
    sizes, strides = (1, 1, 2, 2), {"overlapping": (4, 4, 1, 1), "0": (4, 4, 0, 1)}
    outputs = {name: _tensor(*sizes, strides=steps) for name, steps in strides.items()}
    return _created(device, {name: _tile(_tensor(*sizes), output, 1, 1, 1, 1) for name, output in outputs.items()})


def _repeats(device: Device) -> dict[str, str]:
    source = _tensor(1, 1, 1, 2)
    outputs = {"output of the input's sizes": source, "output of size 0": _tensor(1, 1, 1, 0)}
    return _created(device, {name: _tile(source, output, 1, 1, 1, 0) for name, output in outputs.items()})


def _properties(device: Device) -> Any:
    desc = _tile(_tensor(1, 1, 1, 2), _tensor(1, 1, 1, 6), 1, 1, 1, 3)
    compiled = device.compile_operator(OperatorStruct.from_desc(desc))
    found = binding_properties(compiled)
    compiled.release()
    return {name: int(getattr(found, name)) for name, *_ in BindingProperties._fields_}


def _plausible(found: dict[str, int]) -> str:
    small = 0 < found["RequiredDescriptorCount"] < 1 << 16 and max(found.values()) < 1 << 32
    return "plausible" if small else OTHER


PROBES: tuple[Probe, ...] = (
    Probe(
        1, "the tie rule of RESAMPLE and RESAMPLE1 nearest", "0 1 2 3, Scale 0.5, output 2: 1 3 half up, 0 2 half down",
        "half up", _by_both(_OneOf((("half up", [1, 3]), ("half down", [0, 2])))), ask=_ties,
    ),
    Probe(
        2, "how 8-bit integers are rounded by linear", "1 2 UINT8, Scale 3: 1 1 1 1 2 2 truncated, 1 1 1 2 2 2 rounded",
        "truncate", _OneOf((("truncate", [1, 1, 1, 1, 2, 2]), ("round", [1, 1, 1, 2, 2, 2]))), ask=_integers,
    ),
    Probe(
        3, "the arithmetic of antialiasing", "0 0 8 0 0 0 0 0, Scale 0.25: 1.75 0.25 triangle, 2 0 halved in steps",
        "halved in steps", _OneOf((("triangle", [1.75, 0.25]), ("halved in steps", [2, 0]))), ask=_filter,
    ),
    Probe(
        4, "whether antialiasing filters at exactly 0.5, and whether per axis or for the whole operator",
        "0 to 7, Scale 0.5, alone and beside an axis of Scale 0.25: 0.5 2.5 4.5 6.5 if unfiltered",
        "unfiltered, per axis", _read_threshold, ask=_threshold,
    ),
    Probe(
        5, "the coordinates of UPSAMPLE_2D linear", "0 4, width times 2: 0 1 3 4 half pixel, 0 2 4 4 top left",
        "half pixel", _OneOf((("half pixel", [0, 1, 3, 4]), ("top left", [0, 2, 4, 4]))), ask=_upsample,
    ),
    Probe(
        6, "whose tensors the offsets of RESAMPLE_GRAD belong to", "1 2 3 4 nearest, Scale 2, offsets 0.5 and -0.5",
        "its own", _OneOf((("its own", [1, 9]), ("the forward operator's", [3, 7]))), ask=_gradient,
    ),
    Probe(
        7, "whether an operator is created with a Scale of 0, -1, NaN or infinity", "RESAMPLE1, CreateOperator",
        "refuse", _refused_or_not, ask=_scales,
    ),
    Probe(
        8, "whether an operator is created with overlapping output strides, or with stride 0 in an output",
        "TILE, CreateOperator", "refuse", _refused_or_not, ask=_strides,
    ),
    Probe(
        9, "whether TILE is created with Repeats 0", "CreateOperator", "refuse", _refused_or_not, ask=_repeats,
    ),
    Probe(
        10, "the precision of coordinates", "0 1 2 3, Scale 0.6, DECREASING, output 1: 2 in float32, 1 in double",
        "float32", _OneOf((("float32", 2.0), ("double", 1.0))), ask=_precision,
    ),
    Probe(
        11, "aligned corners through Scale 1/7", "0 to 7 to 2 elements, floor: the last is 6 by float32 division, or 7",
        "float32 division", _OneOf((("float32 division", 6.0), ("exact", 7.0))), ask=_corners,
    ),
    Probe(
        12, "whether a method that returns a struct is called rightly", "GetBindingProperties of TILE",
        "plausible", _plausible, ask=_properties,
    ),
)  # fmt: skip
"""The probes, in the order of the open points."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.directml_device.probes", description=__doc__)
    parser.add_argument("--output", type=Path, help="JSON file to write; by default standard output")
    parser.add_argument("--device", type=int, default=0, help="DXGI's index of the adapter")
    options = parser.parse_args()
    try:
        document = run_probes(options.device)
    except CannotOpen as error:
        sys.exit(f"error: {error}")
    text = json.dumps(document, indent=2) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, "utf-8")
    states = [answer["state"] for answer in document["answers"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("answered", "failed"))
    print(f"DirectML {document['directml_library'] or 'of the system'}: {counts}", file=sys.stderr)
    others = [str(answer["number"]) for answer in document["answers"] if answer["agrees"] is False]
    if others:
        print(f"not as tensorpost has it: {', '.join(others)}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Twelve questions that documents leave open and a machine with DirectML can answer.

Questions that an ONNX node can put run through the same sessions as every plan (route `onnx`). The others need an
operator that ONNX Runtime never creates, or one that DirectML should refuse; they call DirectML itself (route
`directml`). Each probe states tensorpost's present choice, so that the answers show what has to change. The answers are
one JSON document, which is kept as a test fixture.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.datatypes import TensorDataType, data_type
from tensorpost.descriptors import BufferTensorDesc, InterpolationMode, OperatorDesc

from .model import Constant, Node, TensorType
from .raw import Libraries, RawDevice, Refused, open_libraries
from .runtime import DIRECTML, adapters, directml_version, load_runtime, package_of
from .sessions import Sessions

__all__ = ["PROBES", "Probe", "run_probes"]

NEAREST, LINEAR = InterpolationMode.NEAREST_NEIGHBOR, InterpolationMode.LINEAR
OTHER = "something else"
_RAMP4, _RAMP8 = (0.0, 1.0, 2.0, 3.0), tuple(map(float, range(8)))

Ask = Callable[[Node, Sequence[float]], list[float]]
"""Runs a node on numbers."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One question.

    Attributes:
        number: in the list of open points.
        question: in words.
        probe: what is sent, and how an answer is to be read.
        choice: what tensorpost does at present: one of the readings.
        onnx: puts the question through sessions; None if it goes to DirectML itself.
        directml: puts the question to DirectML itself; None if it goes through sessions.
        read: names what was found; `something else` if it is none of the expected readings.
    """

    number: int
    question: str
    probe: str
    choice: str
    read: Callable[[Any], str]
    onnx: Callable[[Ask], Any] | None = None
    directml: Callable[[RawDevice], Any] | None = None


def run_probes(provider: str = DIRECTML, device_id: int = 0, libraries: Libraries | None = None) -> dict[str, Any]:
    """Ask everything that can be asked here.

    Args:
        provider: the execution provider of the sessions. With the CPU provider the answers are a check of the command
            itself and say nothing of DirectML; the document says so.
        device_id: DXGI's index of the adapter.
        libraries: where DirectML itself is; None for this machine's.

    Returns:
        A JSON document: versions, device and driver as far as they can be read, and one answer per probe.

    Raises:
        CannotOpen: the provider is not there; the message says what to install.
        ImportError: no ONNX Runtime.
    """
    runtime = load_runtime(provider)
    sessions = Sessions(runtime, provider, device_id)

    def ask(node: Node, values: Sequence[float]) -> list[float]:
        session = sessions.get(node)
        (tensor,) = node.fed.values()
        array = np.array(values, tensor.data_type.dtype).reshape(tensor.shape)
        (made,) = sessions.run(session, sessions.upload(session, [array]))
        return made.astype(float).ravel().tolist()

    with _device(provider, device_id, libraries, runtime) as (device, facts):
        answers = [_answer(probe, ask, device, str(facts.get("reason", ""))) for probe in PROBES]
    library = directml_version(runtime)
    return {
        "format": "tensorpost probe-directml 1",
        "self_check": provider != DIRECTML,
        "meaning": (
            "answers of DirectML"
            if provider == DIRECTML
            else f"a check of the command itself on {provider}: these answers say nothing of DirectML"
        ),
        "asked_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": {"platform": platform.platform(), "machine": platform.machine(), "python": platform.python_version()},
        "onnxruntime": {
            "package": package_of(provider),
            "version": str(runtime.__version__),
            "provider": provider,
            "available_providers": list(runtime.get_available_providers()),
            "devices": adapters(runtime),
        },
        "directml_library": library,
        "adapter": {"index": device_id, **facts},
        "answers": answers,
    }


@contextmanager
def _device(
    provider: str, device_id: int, libraries: Libraries | None, runtime: Any
) -> Generator[tuple[RawDevice | None, Mapping[str, object]]]:
    """DirectML itself with what it says of its adapter; or None with the reason why not."""
    if provider != DIRECTML and libraries is None:
        yield None, {"reason": f"needs DirectML itself, which {provider} is not"}
        return
    bundled = Path(str(runtime.__file__)).parent / "capi" / "DirectML.dll"
    try:
        device = RawDevice(libraries or open_libraries(bundled if bundled.is_file() else None), device_id)
    except (OSError, Refused) as error:
        yield None, {"reason": f"DirectML itself cannot be opened: {error}"}
        return
    with device:
        try:
            facts = device.facts()
        except Refused as refused:
            facts = {"not_told": str(refused)}
        yield device, facts


def _answer(probe: Probe, ask: Ask, device: RawDevice | None, no_device: str) -> dict[str, Any]:
    """A probe's entry of the document: `state` is `answered`, `not asked` or `failed`, the last two with a `reason`."""
    entry: dict[str, Any] = {
        "number": probe.number, "question": probe.question, "probe": probe.probe,
        "route": "directml" if probe.directml else "onnx", "state": "not asked", "choice": probe.choice,
        "found": None, "reading": None, "agrees": None, "reason": None,
    }  # fmt: skip
    try:
        if probe.onnx is not None:
            found = probe.onnx(ask)
        elif device is None:
            return entry | {"reason": no_device}
        else:
            assert probe.directml is not None  # a probe has one of the two
            found = probe.directml(device)
        json.dumps(found, allow_nan=False)  # an infinity or NaN is no answer, and no JSON
        reading = probe.read(found)
    except Exception as error:  # noqa: BLE001 # one probe that fails must not cost the answers of the others
        return entry | {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    return entry | {"state": "answered", "found": found, "reading": reading, "agrees": reading == probe.choice}


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


# -- asking through sessions --


def _resize(ask: Ask, sizes: tuple[int, ...], scales: tuple[float, ...], values: Sequence[float], **how: Any) -> Any:
    """Resize-19 of a small tensor; `how` has its attributes, `data_type`, and `output` in place of the scales."""
    row = data_type(how.pop("data_type", "float32"))
    output: tuple[int, ...] | None = how.pop("output", None)
    constants = (None, Constant.vector("float32", scales))
    if output is not None:
        constants = (None, None, Constant.vector("int64", output))
    made = output or tuple(math.floor(size * scale) for size, scale in zip(sizes, scales, strict=True))
    inputs = (TensorType(row, sizes), *constants)
    return ask(Node("Resize", 19, inputs, (TensorType(row, made),), tuple(how.items())), values)


_HALF_PIXEL = {"coordinate_transformation_mode": "half_pixel"}


def _integers(ask: Ask) -> Any:
    return _resize(ask, (1, 2), (1.0, 3.0), (1, 2), data_type="uint8", mode="linear", **_HALF_PIXEL)


def _filter(ask: Ask) -> Any:
    values = (0, 0, 8, 0, 0, 0, 0, 0)
    return _resize(ask, (1, 8), (1.0, 0.25), values, mode="linear", antialias=1, **_HALF_PIXEL)


def _threshold(ask: Ask) -> dict[str, Any]:
    how: dict[str, Any] = {"mode": "linear", "antialias": 1, **_HALF_PIXEL}
    rows = [float(column) for _ in range(8) for column in range(8)]
    return {
        "0.5 alone": _resize(ask, (1, 8), (1.0, 0.5), _RAMP8, **how),
        "0.5 beside 0.25": _resize(ask, (8, 8), (0.25, 0.5), rows, **how)[:4],
    }


def _read_threshold(found: dict[str, Any]) -> str:
    alone, beside = (np.allclose(values, [0.5, 2.5, 4.5, 6.5], rtol=0, atol=1e-4) for values in found.values())
    if alone and beside:
        return "unfiltered, per axis"
    return "unfiltered, whole operator" if alone else "filtered"


def _precision(ask: Ask) -> Any:
    scales = (1.0, float(np.float32(0.6)))
    return _resize(ask, (1, 4), scales, _RAMP4, mode="nearest", nearest_mode="floor", **_HALF_PIXEL)[1]


def _corners(ask: Ask) -> Any:
    how = {"mode": "nearest", "coordinate_transformation_mode": "align_corners", "nearest_mode": "floor"}
    return _resize(ask, (1, 8), (), _RAMP8, output=(1, 2), **how)[1]


# -- asking DirectML itself --


# Descriptors are made without looking at tensorpost's rules: some probes ask whether DirectML has the same ones.


def _float32(*sizes: int, strides: tuple[int, ...] | None = None) -> BufferTensorDesc:
    """A tensor whose buffer has room for the packed elements, at least one."""
    size_in_bytes = 4 * max(1, math.prod(sizes))
    return BufferTensorDesc.model_construct(
        data_type=TensorDataType.FLOAT32, sizes=sizes, strides=strides, total_tensor_size_in_bytes=size_in_bytes
    )


def _tile(source: BufferTensorDesc, target: BufferTensorDesc, *repeats: int) -> OperatorDesc:
    return dml.TileOperatorDesc.model_construct(input_tensor=source, output_tensor=target, repeats=repeats)


def _resample1(size: int, output: int, scale: float, mode: InterpolationMode) -> OperatorDesc:
    return dml.Resample1OperatorDesc.model_construct(
        input_tensor=_float32(1, 1, 1, size), output_tensor=_float32(1, 1, 1, output), interpolation_mode=mode,
        scales=(1.0, 1.0, 1.0, scale), input_pixel_offsets=(0.5,) * 4, output_pixel_offsets=(-0.5,) * 4,
    )  # fmt: skip


def _ties(device: RawDevice) -> dict[str, Any]:
    plain = dml.ResampleOperatorDesc(
        input_tensor=_float32(1, 1, 1, 4), output_tensor=_float32(1, 1, 1, 2), interpolation_mode=NEAREST,
        scales=(1, 1, 1, 0.5),
    )  # fmt: skip
    operators = {"RESAMPLE": plain, "RESAMPLE1": _resample1(4, 2, 0.5, NEAREST)}
    return {name: device.run(operator, _RAMP4, 2) for name, operator in operators.items()}


def _upsample(device: RawDevice) -> Any:
    operator = dml.Upsample2DOperatorDesc(
        input_tensor=_float32(1, 1, 1, 2), output_tensor=_float32(1, 1, 1, 4),
        scale_size=dml.Size2D(width=2, height=1), interpolation_mode=LINEAR,
    )  # fmt: skip
    return device.run(operator, (0, 4), 4)


def _gradient(device: RawDevice) -> Any:
    operator = dml.ResampleGradOperatorDesc(
        input_gradient_tensor=_float32(1, 1, 1, 4), output_gradient_tensor=_float32(1, 1, 1, 2),
        interpolation_mode=NEAREST, scales=(1, 1, 1, 2), input_pixel_offsets=(0.5,) * 4,
        output_pixel_offsets=(-0.5,) * 4,
    )  # fmt: skip
    return device.run(operator, (1, 2, 3, 4), 2)


def _created(device: RawDevice, operators: dict[str, OperatorDesc]) -> dict[str, str]:
    """For each operator whether DirectML creates it."""
    found: dict[str, str] = {}
    for what, operator in operators.items():
        try:
            device.create(operator)
        except Refused as refused:
            found[what] = f"refused: 0x{refused.code:08X}"
        else:
            found[what] = "accepted"
    return found


def _scales(device: RawDevice) -> dict[str, str]:
    scales = {"0": 0.0, "-1": -1.0, "NaN": math.nan, "infinity": math.inf}
    return _created(device, {name: _resample1(2, 4, scale, LINEAR) for name, scale in scales.items()})


def _strides(device: RawDevice) -> dict[str, str]:
    sizes, strides = (1, 1, 2, 2), {"overlapping": (4, 4, 1, 1), "0": (4, 4, 0, 1)}
    outputs = {name: _float32(*sizes, strides=steps) for name, steps in strides.items()}
    return _created(device, {name: _tile(_float32(*sizes), output, 1, 1, 1, 1) for name, output in outputs.items()})


def _repeats(device: RawDevice) -> dict[str, str]:
    source = _float32(1, 1, 1, 2)
    outputs = {"output of the input's sizes": source, "output of size 0": _float32(1, 1, 1, 0)}
    return _created(device, {name: _tile(source, output, 1, 1, 1, 0) for name, output in outputs.items()})


def _properties(device: RawDevice) -> Any:
    return device.binding_properties(_tile(_float32(1, 1, 1, 2), _float32(1, 1, 1, 6), 1, 1, 1, 3))


def _plausible(found: dict[str, int]) -> str:
    small = 0 < found["RequiredDescriptorCount"] < 1 << 16 and max(found.values()) < 1 << 32
    return "plausible" if small else OTHER


PROBES: tuple[Probe, ...] = (
    Probe(
        1, "the tie rule of RESAMPLE and RESAMPLE1 nearest", "0 1 2 3, Scale 0.5, output 2: 1 3 half up, 0 2 half down",
        "half up", _by_both(_OneOf((("half up", [1, 3]), ("half down", [0, 2])))), directml=_ties,
    ),
    Probe(
        2, "how 8-bit integers are rounded by linear", "1 2 UINT8, Scale 3: 1 1 1 1 2 2 truncated, 1 1 1 2 2 2 rounded",
        "truncate", _OneOf((("truncate", [1, 1, 1, 1, 2, 2]), ("round", [1, 1, 1, 2, 2, 2]))), onnx=_integers,
    ),
    Probe(
        3, "the arithmetic of antialiasing", "0 0 8 0 0 0 0 0, Scale 0.25: 1.75 0.25 triangle, 2 0 halved in steps",
        "triangle", _OneOf((("triangle", [1.75, 0.25]), ("halved in steps", [2, 0]))), onnx=_filter,
    ),
    Probe(
        4, "whether antialiasing filters at exactly 0.5, and whether per axis or for the whole operator",
        "0 to 7, Scale 0.5, alone and beside an axis of Scale 0.25: 0.5 2.5 4.5 6.5 if unfiltered",
        "unfiltered, per axis", _read_threshold, onnx=_threshold,
    ),
    Probe(
        5, "the coordinates of UPSAMPLE_2D linear", "0 4, width times 2: 0 1 3 4 half pixel, 0 2 4 4 top left",
        "half pixel", _OneOf((("half pixel", [0, 1, 3, 4]), ("top left", [0, 2, 4, 4]))), directml=_upsample,
    ),
    Probe(
        6, "the sign of the offsets of RESAMPLE_GRAD", "1 2 3 4 nearest, Scale 2, offsets 0.5 and -0.5: 3 7 if forward",
        "forward meaning", _OneOf((("forward meaning", [3, 7]),)), directml=_gradient,
    ),
    Probe(
        7, "whether an operator is created with a Scale of 0, -1, NaN or infinity", "RESAMPLE1, CreateOperator",
        "refuse", _refused_or_not, directml=_scales,
    ),
    Probe(
        8, "whether an operator is created with overlapping output strides, or with stride 0 in an output",
        "TILE, CreateOperator", "refuse", _refused_or_not, directml=_strides,
    ),
    Probe(
        9, "whether TILE is created with Repeats 0", "CreateOperator", "refuse", _refused_or_not, directml=_repeats,
    ),
    Probe(
        10, "the precision of coordinates", "0 1 2 3, Scale 0.6, DECREASING, output 1: 2 in float32, 1 in double",
        "float32", _OneOf((("float32", 2.0), ("double", 1.0))), onnx=_precision,
    ),
    Probe(
        11, "aligned corners through Scale 1/7", "0 to 7 to 2 elements, floor: the last is 6 by float32 division, or 7",
        "float32 division", _OneOf((("float32 division", 6.0), ("exact", 7.0))), onnx=_corners,
    ),
    Probe(
        12, "whether a method that returns a struct is called rightly", "GetBindingProperties of TILE",
        "plausible", _plausible, directml=_properties,
    ),
)  # fmt: skip
"""In the order of the open points."""

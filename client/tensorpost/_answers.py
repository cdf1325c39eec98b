"""What calls give back beside arrays: plain values, re-exported by `tensorpost`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from .descriptors import FeatureLevel, OperatorDesc
from .onnx import OnnxNode

__all__ = ["Progress", "Result", "Validation"]

Scalar_co = TypeVar("Scalar_co", bound=np.generic, covariant=True)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call has come, in bytes of the request's and the answer's body (heads of frames included).

    A retry starts again at 0 sent bytes.

    Attributes:
        sent: bytes of the request handed to the operating system.
        to_send: bytes of the whole request.
        received: bytes of the answer received.
        to_receive: bytes of the whole answer; None until its headers are here.
    """

    sent: int
    to_send: int
    received: int = 0
    to_receive: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Result(Generic[Scalar_co]):
    """An output tensor and how it came about.

    Attributes:
        array: the output, as `Client.run` returns it.
        backend: name of the backend that computed it, for instance `numpy`.
        device: the device that computed it, in the server's words.
        server_timing: milliseconds by stage, from the `Server-Timing` header (W3C Server Timing).
        request_id: the server's `X-Request-ID`; None if it sent none.
    """

    array: NDArray[Scalar_co]
    backend: str
    device: str
    server_timing: Mapping[str, float]
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Validation:
    """What a server says about a descriptor that it would accept.

    Attributes:
        operator: the descriptor or ONNX node as the server understood it, with everything filled in that may be left
            out. For a node, `document["lowering"]` says how well DirectML can express it.
        feature_level: the level it was checked against.
        lowest_feature_level: the lowest level at which it is legal.
        input_bytes: bytes of all input tensors together.
        output_bytes: bytes of the output tensor.
        document: the whole answer.
    """

    operator: OperatorDesc | OnnxNode
    feature_level: FeatureLevel
    lowest_feature_level: FeatureLevel | None
    input_bytes: int
    output_bytes: int
    document: Mapping[str, Any]

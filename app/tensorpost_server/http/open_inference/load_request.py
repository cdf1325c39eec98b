"""Triton's request to load a model: its files and its configuration as parameters.

Source: Triton's "model repository" extension. `config` is the configuration as JSON, `file:1/model.onnx` the file of
version 1: base64 over HTTP, bytes over gRPC, which arrive here as base64 too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tensorpost.bodies.strict_json import read_json
from tensorpost.values.problems import InvalidParameter

from ..wires.call_parser import MOST_JSON_CONTAINERS
from ..wires.graph_folder import GRAPH_SUFFIXES, LARGEST_VERSION

LOAD_MEMORY_FACTOR = 3
"""Memory of a byte of such a request beside its body: the text, the parameter's text, and the file."""

_FILE = re.compile(r"file:(0*[1-9][0-9]{0,9})/([^/]+)")


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What is to be loaded.

    Attributes:
        version: the version of the file; 1 without one.
        file_name: the file's name; None without one.
        content: the file; None to load what the server has.
        config: the model's configuration, JSON; None for the model's own.
    """

    version: int = 1
    file_name: str | None = None
    content: bytes | None = None
    config: str | None = None


def read_load_request(body: bytes) -> LoadRequest:
    """Read the body of a request to load a model.

    Raises:
        InvalidJson: it is no JSON.
        InvalidParameter: a parameter is unknown or malformed, or there are several files.
    """
    document: object = read_json(body, max_containers=MOST_JSON_CONTAINERS) if body.strip() else {}
    parameters: object = cast("Mapping[str, Any]", document).get("parameters", {}) if isinstance(document, dict) else 0
    if not isinstance(parameters, Mapping):
        raise InvalidParameter("the body must be a JSON object, or empty, and its parameters must be an object")
    found = cast("Mapping[str, Any]", parameters)
    files = {name: value for name, value in found.items() if name.startswith("file:")}
    for name in found:
        if name != "config" and name not in files:
            raise InvalidParameter(
                f"unknown parameter {name[:60]!r}; a model is loaded with config (JSON) and file:1/model.onnx (base64)",
                extra={"parameter": name[:60]},
            )
    config = found.get("config")
    if config is not None and not isinstance(config, str):
        raise InvalidParameter(
            "the parameter config must be a text that holds JSON, such as Triton's ModelConfig",
            extra={"parameter": "config"},
        )
    if len(files) > 1:
        raise InvalidParameter(
            f"a model is loaded from one file of one version, and there are {len(files)}: "
            + ", ".join([name[:60] for name in sorted(files)][:4])
            + "; send one (a model with external data cannot be loaded)"
        )
    if not files:
        return LoadRequest(config=config)
    ((name, value),) = files.items()
    version, file_name = _version_and_name(name)
    return LoadRequest(version, file_name, _decoded(name, value), config)


def _version_and_name(parameter: str) -> tuple[int, str]:
    match = _FILE.fullmatch(parameter)
    suffix = "" if match is None else match[2][match[2].rfind(".") :]
    if match is None or suffix not in GRAPH_SUFFIXES or int(match[1]) > LARGEST_VERSION:
        raise InvalidParameter(
            f"the parameter {parameter[:80]!r} names no model file; it must be file:VERSION/NAME, such as "
            f"file:1/model.onnx, with a version from 1 to {LARGEST_VERSION:,} and a name that ends in "
            + ", ".join(GRAPH_SUFFIXES),
            extra={"parameter": parameter[:80]},
        )
    return int(match[1]), match[2]


def _decoded(parameter: str, value: object) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except binascii.Error:
        pass
    raise InvalidParameter(
        f"the parameter {parameter[:80]!r} must hold the file's bytes in base64", extra={"parameter": parameter[:80]}
    )

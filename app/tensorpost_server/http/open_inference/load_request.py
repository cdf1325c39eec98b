"""Triton's request to load a model: its files and its configuration as parameters.

Source: Triton's "model repository" extension. `config` is the configuration as JSON, `file:1/model.onnx` the file of
version 1: base64 over HTTP, bytes over gRPC, which arrive here as base64 too. Of several versions, those are loaded
that the `version_policy` of the configuration chooses; the latest without one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tensorpost.bodies.strict_json import read_json
from tensorpost.values.problems import InvalidParameter

from ..wires.call_parser import MOST_JSON_CONTAINERS
from ..wires.graph_folder import GRAPH_SUFFIXES
from ..wires.model_config import read_model_config
from ..wires.version_policy import LARGEST_VERSION, VersionPolicy, read_version_policy, version_number

LOAD_MEMORY_FACTOR = 3
"""Memory of a byte of such a request beside its body: the text, the parameter's text, and the file."""

_FILE = re.compile(r"file:0*([1-9][0-9]{0,9})/([^/]+)")


@dataclass(frozen=True, slots=True)
class VersionFile:
    """The file of a version of a model.

    Attributes:
        version: its version.
        name: its name.
        content: its bytes.
    """

    version: int
    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What is to be loaded.

    Attributes:
        files: the files of the versions that are to be served; empty to load what the server has.
        config: the model's configuration; None for the model's own.
        policy: which versions are to be served; None if the configuration says nothing of it.
    """

    files: Sequence[VersionFile] = ()
    config: Mapping[str, Any] | None = None
    policy: VersionPolicy | None = None


def read_load_request(body: bytes) -> LoadRequest:
    """Read the body of a request to load a model.

    Raises:
        InvalidJson: it is no JSON.
        InvalidParameter: a parameter is unknown or malformed, there are several files of one version, or a version
            that the policy names has none.
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
    document_of_config = None if config is None else read_model_config(config)
    policy = read_version_policy(document_of_config)
    by_version: dict[int, tuple[str, str]] = {}
    for name in files:
        version, file_name = _version_and_name(name)
        if version in by_version:
            raise InvalidParameter(
                f"a version of a model is loaded from one file, and version {version} has two: "
                f"{by_version[version][0][:60]} and {name[:60]}; send one (a model with external data cannot be loaded)"
            )
        by_version[version] = name, file_name
    chosen: Sequence[int] = (policy or VersionPolicy()).choose(by_version.keys()) if files else ()
    decoded: list[VersionFile] = []
    for version in chosen:
        name, file_name = by_version[version]
        decoded.append(VersionFile(version, file_name, _decoded(name, files[name])))
    return LoadRequest(decoded, document_of_config, policy)


def _version_and_name(parameter: str) -> tuple[int, str]:
    match = _FILE.fullmatch(parameter)
    suffix = "" if match is None else match[2][match[2].rfind(".") :]
    version = None if match is None else version_number(match[1])
    if match is None or suffix not in GRAPH_SUFFIXES or version is None:
        raise InvalidParameter(
            f"the parameter {parameter[:80]!r} names no model file; it must be file:VERSION/NAME, such as "
            f"file:1/model.onnx, with a version from 1 to {LARGEST_VERSION:,} and a name that ends in "
            + ", ".join(GRAPH_SUFFIXES),
            extra={"parameter": parameter[:80]},
        )
    return version, match[2]


def _decoded(parameter: str, value: object) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except binascii.Error:
        pass
    raise InvalidParameter(
        f"the parameter {parameter[:80]!r} must hold the file's bytes in base64", extra={"parameter": parameter[:80]}
    )

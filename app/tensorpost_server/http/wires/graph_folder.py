"""The folder with the server's own graphs: files `{name}.onnx`, and models as Triton's repositories have them.

A model is a folder `{name}` with a folder for each version, `{name}/1/model.onnx`, and optionally its configuration,
`{name}/config.json`, whose `version_policy` says which versions are served: the newest by default.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorpost.values.problems import InvalidParameter, TensorpostError

from ...settings import Settings
from ..calls.batch_settings import BatchSettings
from .graph_sources import GraphSource, read_source
from .model_config import configured_batches, read_model_config
from .version_policy import VersionPolicy, read_version_policy, version_number

GRAPH_SUFFIXES = (".json", ".onnx", ".safetensors")
"""How the names of files with graphs end."""

_CONFIG = "config.json"
_OTHER_CONFIG = "config.pbtxt"
_MOST_CONFIG_BYTES = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class FolderGraph:
    """A version of a graph of the folder that was read.

    Attributes:
        name: its name.
        version: its version.
        path: the file.
        digest: the SHA-256 of the file, hexadecimal.
        source: what is in it.
        batches: what its configuration says of batches.
        modified: when the file was changed last, seconds since 1970.
    """

    name: str
    version: int
    path: Path
    digest: str
    source: GraphSource
    batches: BatchSettings | None
    modified: float


def read_graph_folder(folder: Path, settings: Settings, only: str | None = None) -> Sequence[FolderGraph]:
    """Read the graphs of a folder, each with the versions that are served.

    Args:
        folder: the folder.
        settings: limits of a graph.
        only: the name of the only graph to read; None for all.

    Raises:
        InvalidParameter: the folder or a file cannot be used, or two graphs have one name.
    """
    found: dict[str, Sequence[FolderGraph]] = {}
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise InvalidParameter(
            f"the folder {folder} (setting TENSORPOST_GRAPHS) cannot be read: {error.strerror or error}"
        ) from None
    for path in paths:
        files: Sequence[FolderGraph] = ()
        if path.is_dir():
            if only in (None, path.name):
                files = _read_model(path, settings)
        elif path.suffix in GRAPH_SUFFIXES and only in (None, path.stem):
            files = [_read_file(path.stem, 1, path, None, settings)]
        if not files:
            continue
        name = files[0].name
        if name in found:
            raise InvalidParameter(
                f"{found[name][0].path} and {files[0].path} are two graphs of one name; rename one of them"
            )
        found[name] = files
    return [file for files in found.values() for file in files]


def _read_model(folder: Path, settings: Settings) -> Sequence[FolderGraph]:
    """The versions of a model that are served; none if the folder has no folder of a version."""
    versions = {
        number: path
        for path in folder.iterdir()
        if path.is_dir() and (number := version_number(path.name)) is not None
    }  # fmt: skip
    if not versions or folder.name.startswith("."):
        return []
    at, config = folder / _CONFIG, None
    if at.exists():
        config = _read_config(at)
    elif (folder / _OTHER_CONFIG).exists():
        _log.warning("%s is not read; write what differs from the model as JSON to %s", folder / _OTHER_CONFIG, _CONFIG)
    try:
        chosen = (read_version_policy(config) or VersionPolicy()).choose(versions.keys())
    except InvalidParameter as error:
        raise InvalidParameter(f"{at}: {error.detail}") from None
    return [_read_file(folder.name, each, _model_file(versions[each]), config, settings) for each in chosen]


def _model_file(version: Path) -> Path:
    files = sorted([path for path in version.iterdir() if path.suffix in GRAPH_SUFFIXES and path.is_file()])
    if len(files) != 1:
        names = ", ".join([path.name for path in files]) or "none"
        raise InvalidParameter(
            f"{version} must contain one model (a file {', '.join(GRAPH_SUFFIXES)}), and it has {names}"
        )
    return files[0]


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _MOST_CONFIG_BYTES:
            raise InvalidParameter(f"a configuration has at most {_MOST_CONFIG_BYTES:,} bytes")
        return read_model_config(path.read_bytes())
    except OSError as error:
        raise InvalidParameter(f"{path}: {error.strerror or error}") from None
    except TensorpostError as error:
        raise InvalidParameter(f"{path} cannot be used: {error.detail}") from None


def _read_file(
    name: str, version: int, path: Path, config: Mapping[str, Any] | None, settings: Settings
) -> FolderGraph:  # fmt: skip
    at = path
    try:
        content = path.read_bytes()
        source = read_source(content, None, settings)
        at = path if config is None else path.parent.parent / _CONFIG
        batches = configured_batches(config, name, source, path.name)
        digest = hashlib.sha256(content).hexdigest()
        return FolderGraph(name, version, path, digest, source, batches, path.stat().st_mtime)
    except OSError as error:
        raise InvalidParameter(f"{at}: {error.strerror or error}") from None
    except TensorpostError as error:
        raise InvalidParameter(f"{at} cannot be used as a graph: {error.detail}") from None

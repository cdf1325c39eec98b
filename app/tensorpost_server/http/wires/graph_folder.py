"""The folder with the server's own graphs: files `{name}.onnx`, and models as Triton's repositories have them.

A model is a folder `{name}` with a folder for each version, `{name}/1/model.onnx`, and optionally its configuration,
`{name}/config.json`. The newest version is served, which is Triton's default policy.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorpost.values.problems import InvalidParameter, TensorpostError

from ...settings import Settings
from ..calls.batch_settings import BatchSettings
from .graph_sources import GraphSource, read_source
from .model_config import read_model_config

GRAPH_SUFFIXES = (".json", ".onnx", ".safetensors")
"""How the names of files with graphs end."""
LARGEST_VERSION = 2**31 - 1
"""The largest number of a version."""

_CONFIG = "config.json"
_OTHER_CONFIG = "config.pbtxt"
_MOST_CONFIG_BYTES = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class FolderGraph:
    """A graph of the folder that was read.

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
    """Read the graphs of a folder.

    Args:
        folder: the folder.
        settings: limits of a graph.
        only: the name of the only graph to read; None for all.

    Raises:
        InvalidParameter: the folder or a file cannot be used, or two graphs have one name.
    """
    found: dict[str, FolderGraph] = {}
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise InvalidParameter(
            f"the folder {folder} (setting TENSORPOST_GRAPHS) cannot be read: {error.strerror or error}"
        ) from None
    for path in paths:
        if path.is_dir():
            file = None if only not in (None, path.name) else _read_model(path, settings)
        elif path.suffix in GRAPH_SUFFIXES and only in (None, path.stem):
            file = _read_file(path.stem, 1, path, None, settings)
        else:
            file = None
        if file is None:
            continue
        if file.name in found:
            raise InvalidParameter(
                f"{found[file.name].path} and {file.path} are two graphs of one name; rename one of them"
            )
        found[file.name] = file
    return [*found.values()]


def _read_model(folder: Path, settings: Settings) -> FolderGraph | None:
    """The newest version of a model; None if the folder has no folder of a version."""
    versions = {
        int(path.name): path
        for path in folder.iterdir()
        if path.is_dir() and path.name.isascii() and path.name.isdigit() and 1 <= int(path.name) <= LARGEST_VERSION
    }
    if not versions or folder.name.startswith("."):
        return None
    version = max(versions)
    files = sorted([path for path in versions[version].iterdir() if path.suffix in GRAPH_SUFFIXES and path.is_file()])
    if len(files) != 1:
        names = ", ".join([path.name for path in files]) or "none"
        raise InvalidParameter(
            f"{versions[version]} must contain one model (a file {', '.join(GRAPH_SUFFIXES)}), and it has {names}"
        )
    if (folder / _OTHER_CONFIG).exists() and not (folder / _CONFIG).exists():
        _log.warning("%s is not read; write what differs from the model as JSON to %s", folder / _OTHER_CONFIG, _CONFIG)
    return _read_file(folder.name, version, files[0], folder / _CONFIG, settings)


def _read_file(name: str, version: int, path: Path, config: Path | None, settings: Settings) -> FolderGraph:
    at, batches = path, None
    try:
        content = path.read_bytes()
        source = read_source(content, None, settings)
        if config is not None and config.exists():
            at = config
            if config.stat().st_size > _MOST_CONFIG_BYTES:
                raise InvalidParameter(f"a configuration has at most {_MOST_CONFIG_BYTES:,} bytes")
            batches = read_model_config(config.read_bytes(), name, source, version, path.name)
        digest = hashlib.sha256(content).hexdigest()
        return FolderGraph(name, version, path, digest, source, batches, path.stat().st_mtime)
    except OSError as error:
        raise InvalidParameter(f"{at}: {error.strerror or error}") from None
    except TensorpostError as error:
        raise InvalidParameter(f"{at} cannot be used as a graph: {error.detail}") from None

"""An output as a Zarr array on disk, written chunk by chunk, and continued where an earlier process stopped.

Source: the Zarr core specification, version 3: `zarr.json`, a regular grid of chunks, the `default` encoding of their
names, the codec `bytes`. A chunk is a run of consecutive bytes of the output, so that it is written as it arrives.

While it is written, the array is in a folder with `.part` behind its name, which says of which call it is. It gets its
name when it is complete.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ..bodies.strict_json import read_json
from ..transport.http1 import Request
from ..transport.many_servers import ManyServers
from ..transport.one_server import Transport
from ..values.checks import shown
from ..values.datatypes import DataType
from ..values.problems import CallChanged, InvalidJson, InvalidParameter
from .caller_arrays import RequestTemplate
from .resumed_answer import RequestDigest, ResumedAnswer

_OURS = "tensorpost"  # the attribute that says of which call the array is
_DATA_TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """What is written.

    Attributes:
        data_type: the type of its elements.
        shape: its sizes.
        chunks: sizes of a chunk; those at the end of an axis are filled up.
    """

    data_type: DataType
    shape: tuple[int, ...]
    chunks: tuple[int, ...]

    @classmethod
    def of(cls, template: RequestTemplate, shape: Sequence[int] | None, chunk_bytes: int) -> ZarrArray:
        """The array of an operation's only output.

        Args:
            template: the requests of the operation.
            shape: its sizes, if they are not those of the output, in the same order of elements.
            chunk_bytes: the most bytes of a chunk, but for a single element.

        Raises:
            InvalidParameter: there are several outputs, or Zarr has no such arrays.
        """
        if len(template.outputs) != 1:
            names = ", ".join([slot.name for slot in template.outputs])
            raise InvalidParameter(f"{template.name} has the outputs {names}, and a Zarr array is one output")
        layout = template.outputs[0].layout
        if not layout.packed:
            raise InvalidParameter("a Zarr array is packed, and this output has strides or padding")
        if layout.data_type.numpy_name not in _DATA_TYPES:
            raise InvalidParameter(
                f"Zarr has no {layout.data_type.numpy_name}; cast the output to one of {', '.join(_DATA_TYPES)}"
            )
        sizes = layout.sizes if shape is None else tuple(shape)
        if math.prod(sizes) != math.prod(layout.sizes):
            raise InvalidParameter(f"shape is {sizes}, and the output has the sizes {layout.sizes}")
        return cls(layout.data_type, sizes, _chunk_sizes(sizes, layout.data_type.item_size, chunk_bytes))

    @property
    def pieces(self) -> Iterator[tuple[str, int, int]]:
        """The chunks in the order of the output's bytes: the name of the file, its bytes, and those in the output."""
        item = self.data_type.item_size
        full = math.prod(self.chunks) * item
        grid = [-(-size // part) for size, part in zip(self.shape, self.chunks, strict=True)]
        for place in np.ndindex(*grid):
            inside = [
                min(part, size - at * part) for at, part, size in zip(place, self.chunks, self.shape, strict=True)
            ]
            yield "/".join(["c", *map(str, place)]), full, math.prod(inside) * item

    def document(self, call: str, backend: str) -> dict[str, Any]:
        """The content of `zarr.json`.

        Args:
            call: the digest of the call.
            backend: what computed it.
        """
        kind = self.data_type.numpy_name
        codec: dict[str, Any] = {"name": "bytes"}
        if self.data_type.item_size > 1:
            codec["configuration"] = {"endian": "little"}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [*self.shape],
            "data_type": kind,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*self.chunks]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": False if kind == "bool" else [0.0, 0.0] if kind.startswith("complex") else 0,
            "codecs": [codec],
            "attributes": {_OURS: {"call": call, "backend": backend}},
        }


def _chunk_sizes(sizes: Sequence[int], item_bytes: int, most_bytes: int) -> tuple[int, ...]:
    """The largest box of at most so many bytes that is a run of the output: 1s, a part of an axis, whole axes."""
    left = max(1, most_bytes // item_bytes)
    chunks = [1] * len(sizes)
    for axis in reversed(range(len(sizes))):
        chunks[axis] = max(1, min(sizes[axis], left))
        if chunks[axis] < sizes[axis]:
            break
        left //= chunks[axis]
    return tuple(chunks)


def part_of(path: str | os.PathLike[str]) -> Path:
    """Where an array is while it is written."""
    target = Path(path)
    return target.with_name(target.name + ".part")


def check_store(path: str | os.PathLike[str]) -> None:
    """Refuse a place where no array can be written.

    Raises:
        OSError: its folder does not exist or cannot be written to, or there is something of this name.
    """
    target = Path(path)
    if target.exists():
        raise FileExistsError(17, "exists; remove it or name another place", str(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(2, "its folder does not exist", str(path))
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(13, "its folder is not writeable", str(path))


async def write_zarr(
    transport: Transport | ManyServers, template: RequestTemplate, request: Request, array: ZarrArray,
    path: str | os.PathLike[str],
) -> None:  # fmt: skip
    """Write the output of a call as a Zarr array; a part that is there of the same call is not asked for again.

    Raises:
        OSError: whatever `check_store` refuses, or the disk is full.
        InvalidParameter: `.part` is of no call of ours.
        CallChanged: it is of another call, or of other inputs.
        TensorpostError: what the server refused, or `ConnectionProblem`s.
    """
    check_store(path)
    part, digest = part_of(path), RequestDigest(request)
    try:
        await digest.done(transport)
        call = str(digest.value)
        backend = _backend_of(part, array, call)
        pieces = [*array.pieces]
        there = 0 if backend is None else len([*takewhile(lambda piece: _is_whole(part / piece[0], piece[1]), pieces)])
        if backend is None or there < len(pieces) or not pieces:
            await _receive(transport, template, request, array, part, digest, backend, there)
    finally:
        digest.stop()
    part.rename(path)


async def _receive(
    transport: Transport | ManyServers, template: RequestTemplate, request: Request, array: ZarrArray, part: Path,
    digest: RequestDigest, backend: str | None, there: int,
) -> None:  # fmt: skip
    """Receive the chunks from this one on."""
    pieces = [*array.pieces]
    begin = sum([count for _, _, count in pieces[:there]])
    if begin and backend is not None:
        try:
            answered = await ResumedAnswer.ask_from(transport, template, request, digest, begin, backend)
        except CallChanged as error:
            raise _not_continued(part, backend, error) from error
    else:
        answered = await ResumedAnswer.ask(transport, template, request, digest=digest)
    async with answered as answer:
        if not begin:
            part.mkdir(exist_ok=True)
            _write(
                part / "zarr.json", json.dumps(array.document(str(digest.value), answer.metadata.get("backend", "")))
            )
        memory = memoryview(bytearray(max([full for _, full, _ in pieces], default=0)))
        for name, full, count in pieces[there:]:
            await answer.fill(memory[:count])
            memory[count:full] = bytes(full - count)
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            _write(part / name, memory[:full])
        await answer.finish()


def _not_continued(part: Path, backend: str, error: CallChanged) -> CallChanged:
    """What to say where a server refuses the rest."""
    if error.extra.get("reason") == "backend":
        wanted = backend.partition("+")[0]
        message = f"{part} was computed by {backend}, and the rest would be by another backend; choose {wanted}"
    else:
        message = f"{part} belongs to another call, as the server reports; repeat that call"
    return CallChanged(f"{message}, or remove {part} to begin again", extra=error.extra, request_id=error.request_id)


def _is_whole(chunk: Path, size_in_bytes: int) -> bool:
    return chunk.is_file() and chunk.stat().st_size == size_in_bytes


def _write(path: Path, content: str | memoryview) -> None:
    """Write a file that appears under its name when it is complete."""
    unfinished = path.with_name(path.name + ".part")
    if isinstance(content, str):
        unfinished.write_text(content, "utf-8")
    else:
        unfinished.write_bytes(content)
    unfinished.replace(path)


def _backend_of(part: Path, array: ZarrArray, call: str) -> str | None:
    """What computed the part of this call's answer that is there; None if there is none.

    Raises:
        InvalidParameter: there is something else.
        CallChanged: it is of another call.
    """
    if not part.exists():
        return None
    try:
        document: Any = read_json((part / "zarr.json").read_bytes())
        said: Any = document["attributes"][_OURS]
        found, backend = said["call"], said["backend"]
    except FileNotFoundError:
        if part.is_dir() and not any(part.iterdir()):
            return None
        raise InvalidParameter(f"{part} is not an incomplete array that tensorpost began; remove it") from None
    except (OSError, InvalidJson, KeyError, TypeError):
        raise InvalidParameter(f"{part} is not an incomplete array that tensorpost began; remove it") from None
    if not isinstance(backend, str) or document != array.document(found, backend):
        raise CallChanged(
            f"{part} is of an array with other sizes ({shown(document.get('shape'))}), chunks or elements than the "
            "result of this call; remove it to begin again",
            extra={"reason": "call"},
        )
    if found != call:
        raise CallChanged(
            f"{part} is a part of the result of another call: its operation or its inputs are others; "
            "remove it to begin again",
            extra={"reason": "call"},
        )
    return backend

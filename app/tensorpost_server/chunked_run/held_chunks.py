"""An array that the nodes of a cluster hold: its chunks are objects in Ray's object stores.

Each chunk is the result of a task, so it lies where the task ran, its reference belongs to the process that asked for
it, and Ray makes it again from what the task was given if its node is lost. What a caller put cannot be made again.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidParameter, TensorGone, Unavailable
from tensorpost.values.tensor_box import box_ranges, box_text

from ..forms import Box, extents
from .chunks import Chunks, TakenPart, aligned_shape, chunk_shape, dtype_of, indices
from .cluster import Placement, TasksInFlight, connected_ray, module, nodes_of, on_node, task, this_node

_DIGITS = 12  # of a node's name in messages
_MOST_PARTS = 64  # that one task cuts,
_CUT_BYTES = 4 << 20  # and their bytes, but for the last one
_CAUSES = 8  # errors of which each was the cause of the one before


class HeldChunks:
    """The references of an array's chunks.

    Args:
        chunks: the cut.
        origin: where the elements come from, for messages: `put` and the like.
        advice: what to do if they are lost.
        sources: held arrays that the tasks read, for messages: what Ray needs to make a chunk again, it keeps.

    Attributes:
        chunks: the cut.
        origin: see above.
        advice: see above.
        refs: the chunks.
        nodes: where each was made first.
    """

    def __init__(self, chunks: Chunks, origin: str, advice: str, sources: Sequence[HeldChunks] = ()) -> None:
        self.chunks, self.origin, self.advice = chunks, origin, advice
        self._sources = [*map(weakref.ref, sources)]
        self.refs: list[Any] = [None] * len(chunks)
        self.nodes = [""] * len(chunks)  # where each was made
        self._deleted = ""

    def set(self, index: int, ref: Any, node: str) -> None:
        """Keep a chunk, which was made on this node."""
        self.refs[index], self.nodes[index] = ref, node

    @property
    def layout(self) -> Layout:
        """The array's, packed."""
        return self.chunks.layout

    def bytes_by_node(self) -> dict[str, int]:
        """Bytes of the chunks that lie in each node's object store; of small ones, which Ray keeps elsewhere, none.

        Raises:
            TensorGone: it was deleted.
        """
        self.check()
        found = Counter[str]()
        for index, nodes in enumerate(nodes_of(self.refs)):
            for node in nodes:
                found[node] += self.chunks.bytes(index)
        return dict(found)

    def read(self, items: Sequence[int | slice | EllipsisType]) -> NDArray[Any]:
        """A box of the array; tasks take it from the chunks where they lie, so nothing else travels.

        Args:
            items: see `tensorpost.values.tensor_box.read_box`.

        Raises:
            InvalidParameter: there is no such box.
            TensorGone: it was deleted, or chunks of it are lost and cannot be made again.
        """
        self.check()
        ranges, kept = box_ranges(self.layout.sizes, items)
        out = np.empty([len(each) for each in ranges], dtype_of(self.layout))
        ray = module("ray")

        def ended(_: Any, pieces: Sequence[tuple[TakenPart, Any]]) -> None:
            for taken, ref in pieces:
                out[(*taken.target, ...)] = ray.get(ref)

        with lost_as_gone([self], computes=False):
            flight = TasksInFlight(ended)
            for pieces in self.cut([*self.chunks.taken(ranges)]):
                flight.add(pieces[0][1], pieces)
            flight.finish()
        return out.reshape([len(each) for each, is_kept in zip(ranges, kept, strict=True) if is_kept])

    def cut(self, parts: Sequence[TakenPart]) -> Iterator[Sequence[tuple[TakenPart, Any]]]:
        """Parts of chunks, each with the reference of its elements; those that come together are cut by one task.

        The task begins when its parts are asked for, on the node of the chunks. A whole chunk is the part itself.
        """
        together: dict[tuple[str, ...], list[TakenPart]] = {}
        most = _CUT_BYTES // self.layout.data_type.item_size
        where = nodes_of([self.refs[part.index] for part in parts]) if parts else []
        for part, nodes in zip(parts, where, strict=True):
            sizes = extents(self.chunks.box(part.index))
            if part.part == tuple([slice(0, size, 1) for size in sizes]):
                yield [(part, self.refs[part.index])]
                continue
            group = together.setdefault(nodes[:1], [])
            group.append(part)
            if len(group) == _MOST_PARTS or sum([each.elements for each in group]) > most:
                yield self._cut(nodes, together.pop(nodes[:1]))
        for nodes, group in together.items():
            yield self._cut(nodes, group)

    def _cut(self, nodes: Sequence[str], parts: Sequence[TakenPart]) -> Sequence[tuple[TakenPart, Any]]:
        cut = task(_cut, num_returns=len(parts), **on_node(nodes))
        refs = cut.remote([part.part for part in parts], *[self.refs[part.index] for part in parts])
        return [*zip(parts, refs if len(parts) > 1 else [refs], strict=True)]

    def write_zarr(self, store: str | Path) -> Any:
        """Write it as a Zarr array, each chunk from where it lies; the array, opened.

        Raises:
            TensorGone: see `read`.
        """
        zarr = module("zarr")
        self.check()
        ray, target = module("ray"), str(store)
        zarr.create_array(
            target, shape=self.layout.sizes, chunks=self.chunks.shape, dtype=dtype_of(self.layout), compressors=None
        )

        def ended(ref: Any, _: None) -> None:
            ray.get(ref)

        with lost_as_gone([self]):
            flight = TasksInFlight(ended)
            for index, nodes in enumerate(nodes_of(self.refs)):
                written = task(_write, **on_node(nodes)).remote(self.refs[index], target, self.chunks.box(index))
                flight.add(written, None)
            flight.finish()
        return zarr.open_array(target, mode="r")

    def delete(self) -> None:
        """Free the chunks; again, nothing."""
        if not self._deleted:
            self._deleted = _clock()
            self.refs = []

    def check(self) -> None:
        """Refuse to go on with an array that was deleted.

        Raises:
            TensorGone: it was.
        """
        if self._deleted:
            raise TensorGone(
                f"the held array {self.origin} was deleted at {self._deleted}; {self.advice}",
                extra={"reason": "deleted"},
            )

    def gone(self, ref: str, error: BaseException) -> TensorGone | None:
        """The error for a lost object, if it is one of these chunks or of those that they were computed from.

        Args:
            ref: the object, in Ray's hexadecimal digits.
            error: Ray's error.
        """
        known = {each.hex(): index for index, each in enumerate(self.refs)}
        if ref in known:
            return self._gone_chunk(known[ref], error)
        for source in self._sources:
            if (each := source()) is not None and (found := each.gone(ref, error)) is not None:
                detail = f"the held array {self.origin} cannot be computed again where it was lost: {found.detail}"
                return TensorGone(detail, extra=found.extra)
        return None

    def _gone_chunk(self, index: int, error: BaseException) -> TensorGone:
        box = box_text(tuple([slice(*span) for span in self.chunks.box(index)]))
        node, why = self.nodes[index], f"is lost: {str(error).strip().splitlines()[-1]}"
        for each in module("ray").nodes():
            if each["NodeID"] == node and not each["Alive"]:
                reason = each["DeathReasonMessage"] or "the cluster says no reason"
                why = f"lay on node {node[:_DIGITS]} ({each['NodeManagerAddress']}), which was lost ({reason})"
        return TensorGone(
            f"the chunk [{box}] of the held array {self.origin} {why}, as was found at {_clock()}. {self.advice}",
            extra={"reason": "lost", "box": box, "node": node},
        )


@contextmanager
def lost_as_gone(arrays: Sequence[HeldChunks], *, computes: bool = True) -> Generator[None]:
    """Raise `TensorGone` where Ray says that a chunk of one of these arrays is lost.

    Args:
        arrays: what is read.
        computes: whether tasks may fail for other reasons; otherwise one that fails could not make a chunk again.
    """
    ray = module("ray")
    names = " or ".join(dict.fromkeys([each.origin for each in arrays]))
    lost = f"a chunk of the held array {names} was lost, and"
    try:
        yield
    except ray.exceptions.ObjectLostError as error:
        cause: Any = error
        for _ in range(_CAUSES):
            ref = getattr(cause, "object_ref_hex", None)
            found = [gone for each in arrays if ref and (gone := each.gone(ref, cause)) is not None]
            if found:
                raise found[0] from error
            cause = getattr(cause, "cause", None) or getattr(cause, "__cause__", None)
        # Of an array that was deleted, and that one of these was computed from.
        detail = f"{lost} what it was computed from was deleted and is lost, too, as was found at {_clock()}"
        raise TensorGone(f"{detail}; compute it again", extra={"reason": "lost"}) from error
    except ray.exceptions.RayTaskError as error:
        if computes:
            raise
        detail = f"{lost} making it again failed at {_clock()}: {error.cause}"
        raise TensorGone(f"{detail}. {arrays[0].advice}", extra={"reason": "lost"}) from error


def _clock() -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime())


# ---- where arrays come from ------------------------------------------------------------------------------------------


def put(array: Any, layout: Layout, chunk_bytes: int, chunks: tuple[int, ...] | None) -> HeldChunks:
    """See `tensorpost.distributed.put`; `array` has boxes of elements of the layout's type in any byte order."""
    ray = connected_ray()
    cut = Chunks(layout, chunks or chunk_shape(layout.sizes, layout.data_type.item_size, chunk_bytes))
    held = HeldChunks(
        cut, "that was put", "It came from this program, so nothing can make it again: put the array again"
    )
    flight, placement = TasksInFlight(_setter(held)), Placement()
    try:
        for index in range(len(cut)):
            # As an object, and without retries: what a task may be given again, Ray keeps for as long as the chunk.
            sent = ray.put(np.asarray(array[indices(cut.box(index))], dtype_of(layout), order="C"))
            options = {"num_returns": 2, "max_retries": 0, **placement.next(cut.bytes(index))}
            ref, node = task(_kept, **options).remote(sent)
            flight.add(node, (index, ref))
        flight.finish()
    except (ray.exceptions.NodeDiedError, ray.exceptions.WorkerCrashedError) as error:
        raise Unavailable(
            f"a process of a task, or its node, ended while the array was put: put it again ({error})"
        ) from error
    return held


def read_zarr(store: str | Path, chunk_bytes: int, chunks: Sequence[int] | None) -> HeldChunks:
    """See `tensorpost.distributed.read_zarr`."""
    zarr, source = module("zarr"), str(store)
    connected_ray()
    array = zarr.open_array(source, mode="r")
    try:
        kind = data_type(array.dtype)
    except KeyError:
        raise InvalidParameter(f"{source} is an array of {array.dtype}; held arrays are numbers and booleans") from None
    layout = Layout.row_major(kind, array.shape)
    if chunks is not None and len(chunks) != len(layout.sizes):
        raise InvalidParameter(f"chunks is {tuple(chunks)}, and {source} has the sizes {layout.sizes}")
    unit = array.shards or array.chunks
    shape = tuple(chunks or aligned_shape(layout.sizes, kind.item_size, chunk_bytes, unit))
    cut = Chunks(layout, shape)
    held = HeldChunks(cut, f"of {source}", "Read the store again, if it is still there")
    flight, placement = TasksInFlight(_setter(held)), Placement()
    for index in range(len(cut)):
        read = task(_read, num_returns=2, **placement.next(cut.bytes(index)))
        ref, node = read.remote(source, cut.box(index), dtype_of(layout))
        flight.add(node, (index, ref))
    flight.finish()
    return held


def _setter(held: HeldChunks) -> Any:
    """What `TasksInFlight` calls when a chunk is there. Its node is a second result: the chunk is not fetched."""
    ray = module("ray")

    def ended(node: Any, what: tuple[int, Any]) -> None:
        index, ref = what
        held.set(index, ref, ray.get(node))

    return ended


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _kept(chunk: NDArray[Any]) -> tuple[NDArray[Any], str]:
    return chunk.copy(), this_node()


def _read(store: str, box: Box, dtype: np.dtype[Any]) -> tuple[NDArray[Any], str]:
    array = module("zarr").open_array(store, mode="r")
    return np.asarray(array[indices(box)], dtype, order="C"), this_node()


def _cut(parts: Sequence[tuple[slice, ...]], *chunks: NDArray[Any]) -> NDArray[Any] | Sequence[NDArray[Any]]:
    cut = [np.asarray(chunk[(*part, ...)], order="C") for part, chunk in zip(parts, chunks, strict=True)]
    return cut if len(cut) > 1 else cut[0]


def _write(chunk: NDArray[Any], store: str, box: Box) -> None:
    module("zarr").open_array(store, mode="r+")[indices(box)] = chunk

"""Held tensors that come from a region of shared memory: `PUT /v1/tensors/{name}?region=...`.

The elements are copied, although they lie on this host already: their owner may change or shorten the memory at any
time, while those of a held tensor never change (docs/decisions/0020-shared-memory-is-copied.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidParameter

from ..background_threads import CallerThreads
from ..raw_tensor import DTYPE_FIELD, SHAPE_FIELD, RawTensor
from .infer_request import RegionPart
from .shared_memory import SharedMemory, read_region

_MOST_DIGITS = 18


class RegionUpload(NamedTuple):
    """What the query says of a tensor in a region.

    Attributes:
        part: where it lies.
        layout: its type and sizes; packed.
    """

    part: RegionPart
    layout: Layout

    @classmethod
    def of(cls, parameters: dict[str, str]) -> RegionUpload | None:
        """Take `region`, `offset`, `data_type` and `sizes` out of a query's parameters; None if no region is named.

        Raises:
            InvalidParameter: the offset stands alone or is no number of bytes; type or sizes are missing or malformed.
        """
        region, offset = parameters.pop("region", None), parameters.pop("offset", None)
        if region is None:
            if offset is not None:
                raise InvalidParameter("offset goes with region=NAME", extra={"parameter": "offset"})
            return None
        offset = "0" if offset is None else offset
        if not (offset.isascii() and offset.isdigit() and len(offset) <= _MOST_DIGITS):
            raise InvalidParameter(
                f"offset is {offset[:40]!r}; it must be a number of bytes from the begin of the region",
                extra={"parameter": "offset"},
            )
        given: dict[bytes, bytes] = {}
        for name, field, example in (("data_type", DTYPE_FIELD, "FLOAT32"), ("sizes", SHAPE_FIELD, "1,3,64,64")):
            if name not in parameters:
                raise InvalidParameter(
                    f"region={region[:60]} needs {name}, as in {name}={example}: a region is bytes without a type",
                    extra={"parameter": name},
                )
            given[field.lower().encode()] = parameters.pop(name).encode()
        raw = RawTensor.from_headers(given)
        part = RegionPart(region, int(offset), raw.size_in_bytes)
        return cls(part, Layout.row_major(raw.data_type, raw.shape))

    async def receive(
        self, regions: SharedMemory, owner: str, room: Callable[[Layout], Awaitable[memoryview]], threads: CallerThreads
    ) -> None:
        """Copy the tensor.

        Args:
            regions: the regions of all callers.
            owner: whose region it is.
            room: returns memory for the tensor, or refuses it.
            threads: the caller's threads for copies that take long.

        Raises:
            RegionNotFound: the caller has no such region.
            InvalidRequest: the tensor does not lie in it, or the object has become too short.
        """
        region = regions.use(self.part, owner)
        try:
            await read_region(region, await room(self.layout), self.part.offset, threads)
        finally:
            region.release()

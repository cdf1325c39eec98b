"""A volume that the server holds, read slice by slice.

    python -m benchmarks.held_tensors [--mebibytes 1024] [--slices 200] [--sent 3]

A volume of float32 is put once. Slices along each axis are then read through the service over loopback, with `box`;
beside that the volume is sent with each request, which takes the slice (DML_OPERATOR_SLICE), and the same slices are
read with zarr from a local disk, not compressed, in chunks of 64 x 64 x 64, whose files are in the page cache. The
results are compared. Times are medians of calls taken in turn; bytes are those of the bodies both ways.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import servers
from tensorpost import BufferTensorDesc, Client
from tensorpost.descriptors import SliceOperatorDesc

_CHUNK = 64


def timed(call: Callable[[], NDArray[Any]], took: list[float]) -> NDArray[Any]:
    """The result of a call, whose milliseconds are noted."""
    begin = time.perf_counter()
    found = call()
    took.append((time.perf_counter() - begin) * 1e3)
    return found


def sent(tp: Client, volume: NDArray[Any], axis: int, at: int) -> NDArray[Any]:
    """A slice by a call that sends the whole volume."""
    sizes, offsets = [*volume.shape], [0, 0, 0]
    sizes[axis], offsets[axis] = 1, at
    tensor = BufferTensorDesc.packed("FLOAT32", volume.shape)
    desc = SliceOperatorDesc.completed({
        "InputTensor": tensor.to_json(), "Offsets": offsets, "Sizes": sizes, "Strides": [1, 1, 1]
    })  # fmt: skip
    return tp.run(desc, volume).squeeze(axis)


def on_disk(folder: Path, volume: NDArray[Any]) -> Any:
    """The volume as a zarr array; None without zarr."""
    with suppress(ModuleNotFoundError):
        zarr: Any = importlib.import_module("zarr")
        array = zarr.create_array(
            folder / "volume.zarr", shape=volume.shape, dtype="float32", chunks=(_CHUNK,) * 3, compressors=None
        )
        array[:] = volume
        return array
    print("zarr is not installed, and is left out")
    return None


def row(tp: Client, held: Any, stored: Any, volume: NDArray[Any], axis: int, counts: tuple[int, int]) -> None:
    """Print the line of an axis."""
    rng, slices, most_sent = np.random.default_rng(axis), *counts
    ways: dict[str, list[float]] = {"held": [], "sent": [], "zarr": []}
    size = 0
    for number in range(slices):
        at = int(rng.integers(volume.shape[axis]))
        box = (*[slice(None)] * axis, at)
        expected = volume[box]
        found = {"held": timed(lambda box=box: held[box], ways["held"])}
        if stored is not None and number < max(10, slices // 10):
            found["zarr"] = timed(lambda box=box: stored[box], ways["zarr"])
        if number < most_sent:
            found["sent"] = timed(lambda at=at: sent(tp, volume, axis, at), ways["sent"])
        size = expected.nbytes
        for array in found.values():
            np.testing.assert_array_equal(array, expected)
    by_way = {name: f"{statistics.median(took):9.2f}" if took else "        -" for name, took in ways.items()}
    whole = volume.nbytes + size
    print(f"{axis} | {size:13,} | {by_way['held']} | {whole:13,} | {by_way['sent']} | {by_way['zarr']}", flush=True)


def main() -> None:
    """Print how long putting takes, and a line for each axis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the volume")
    parser.add_argument("--slices", type=int, default=200, help="slices along each axis")
    parser.add_argument("--sent", type=int, default=3, help="of which so many by sending the volume")
    asked = parser.parse_args()
    side = round((asked.mebibytes * (1 << 18)) ** (1 / 3))
    shape = (side, side, asked.mebibytes * (1 << 18) // side**2)
    volume = np.random.default_rng(0).random(shape, np.float32)
    limits = {
        "max_body_bytes": volume.nbytes + (1 << 20),
        "memory_bytes": 4 * volume.nbytes + (1 << 28),
        "max_held_tensor_bytes": 2 * volume.nbytes,
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.tensorpost(**limits) as server,
        Client(server.url, timeout=600) as tp,
    ):
        begin = time.perf_counter()
        stored = on_disk(Path(folder), volume)
        print(f"float32 of {shape}, {volume.nbytes:,} bytes; written by zarr in {time.perf_counter() - begin:.2f} s")
        begin = time.perf_counter()
        with tp.put(volume) as held:
            print(f"put in {time.perf_counter() - begin:.2f} s")
            print("axis | bytes, held | held, ms | bytes, sent | sent, ms | zarr, ms")
            for axis in range(3):
                row(tp, held, stored, volume, axis, (asked.slices, asked.sent))


if __name__ == "__main__":
    main()

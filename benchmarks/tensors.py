"""Streams of several tensors, JOIN of two large inputs and SPLIT into three outputs: `python -m benchmarks.tensors`.

Each goes through the SDK, through HTTP (http.client, frames written and read by hand) and through `tensorpost run`, in
pieces, and every byte of every answer is compared. Printed are seconds, and the growth of the server and of the client
beyond the bytes of the inputs, from the kernel's peaks in /proc (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from tensorpost import Client, OperatorDesc, parse_operator
from tensorpost.bodies.frame import MEDIA_TYPE, encode_head
from tensorpost.values.datatypes import data_type

from . import servers
from .sockets import MIB

PARTS = 3
PIECE = 1 << 20

Blocks = Iterable[tuple[str, memoryview]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024, help="of each input; default 1024")
    size = parser.parse_args().mebibytes * MIB // 4 // PARTS * PARTS
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{index}.npy" for index in range(2)]
        for index, path in enumerate(paths):
            made = np.lib.format.open_memmap(path, "w+", np.float32, (size,))
            for start in range(0, size, PIECE):
                made[start : start + PIECE] = np.arange(start, min(size, start + PIECE)) % 1048573 + index
            made.flush()
        inputs = [np.load(path, mmap_mode="r") for path in paths]
        tensor = {"DataType": "FLOAT32", "Sizes": [size]}
        join = parse_operator({"type": "JOIN", "desc": {"InputTensors": [tensor] * 2, "Axis": 0}}, complete=True)
        parts = {"InputTensor": tensor, "OutputCount": PARTS, "Axis": 0}
        split = parse_operator({"type": "SPLIT", "desc": parts}, complete=True)
        limits = {"max_body_bytes": 16 << 30, "max_output_bytes": 16 << 30, "memory_bytes": 16 << 30, "pool_bytes": 0}
        with servers.tensorpost(**limits) as server:
            for name, desc, arrays, expected in (
                ("JOIN", join, inputs, [inputs]),
                ("SPLIT", split, inputs[:1], [[part] for part in np.split(inputs[0], PARTS)]),
            ):
                for way, run in (("SDK", by_sdk), ("HTTP", by_http)):
                    report(f"{name}, {way}", server, run(server.url, server.port, desc, arrays), arrays, desc, expected)
                command_line(name, server, desc, paths[: len(arrays)], expected, Path(folder))


def by_sdk(url: str, _port: int, desc: OperatorDesc, arrays: list[Any]) -> Blocks:
    """The blocks of the SDK's stream."""
    with Client(url) as tp:
        for block in tp.stream(desc, arrays):
            yield ("output", block) if isinstance(block, memoryview) else (block.output, block.data)


def by_http(_url: str, port: int, desc: OperatorDesc, arrays: list[Any]) -> Blocks:
    """A frame sent and received with the standard library."""
    row = data_type("float32")
    head = encode_head([(slot.name, row, slot.layout.sizes) for slot in desc.inputs], {"op": desc.to_document_text()})
    connection = HTTPConnection("127.0.0.1", port)
    connection.putrequest("POST", desc.endpoint)
    connection.putheader("Content-Type", MEDIA_TYPE)
    connection.putheader("Accept", MEDIA_TYPE)
    connection.putheader("Content-Length", str(len(head) + sum(array.nbytes for array in arrays)))
    connection.endheaders(head)
    for array in arrays:
        for start in range(0, len(array), PIECE):
            connection.send(np.ascontiguousarray(array[start : start + PIECE]).data)
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read(2000).decode())
    length = int.from_bytes(answer.read(8), "little")
    entries = json.loads(answer.read(length))
    outputs = {name: entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"}
    for name, (begin, end) in sorted(outputs.items(), key=lambda item: item[1]):
        for at in range(begin, end, PIECE):
            yield name, memoryview(answer.read(min(PIECE, end - at)))
    connection.close()


def report(
    name: str, server: Any, blocks: Blocks, arrays: list[Any], desc: OperatorDesc, expected: list[list[Any]]
) -> None:
    processes = {"server": server.process, "client": os.getpid()}
    before = {side: servers.resident(process) for side, process in processes.items()}
    for process in processes.values():
        Path(f"/proc/{process}/clear_refs").write_text("5")
    begin = time.perf_counter()
    compare(blocks, dict(zip([slot.name for slot in desc.outputs], expected, strict=True)))
    took = time.perf_counter() - begin
    sent = sum(array.nbytes for array in arrays)
    held = {"server": sent, "client": 0}
    growth = {
        side: (servers.resident(process, "VmHWM") - before[side] - held[side]) / MIB
        for side, process in processes.items()
    }
    received = sum(slot.layout.size_in_bytes for slot in desc.outputs)
    print(
        f"{name}: {sent / 2**30:.2f} GiB in, {received / 2**30:.2f} GiB out in {len(desc.outputs)}, {took:.1f} s; "
        f"growth of the server beyond the inputs {growth['server']:.0f} MiB, "
        f"of the client with its mapped inputs {growth['client']:.0f} MiB"
    )


def compare(blocks: Blocks, expected: dict[str, list[Any]]) -> None:
    """Every byte, output by output in order."""
    ways: dict[str, Callable[[int], memoryview]] = {}
    for name, arrays in expected.items():
        ways[name] = _reader(iter(arrays))
    for name, block in blocks:
        at = 0
        while at < len(block):
            want = ways[name](len(block) - at)
            if block[at : at + len(want)] != want:
                raise RuntimeError(f"wrong bytes in {name}")
            at += len(want)


def _reader(arrays: Iterator[Any]) -> Callable[[int], memoryview]:
    current = memoryview(b"")

    def read(count: int) -> memoryview:
        nonlocal current
        if not current:
            current = memoryview(next(arrays)).cast("B")
        taken, current = current[:count], current[count:]
        return taken

    return read


def command_line(
    name: str, server: Any, desc: OperatorDesc, paths: list[Path], expected: list[list[Any]], folder: Path
) -> None:
    document = {"type": desc.operator_type, "desc": {"Axis": 0, **({"OutputCount": PARTS} if name == "SPLIT" else {})}}
    (folder / "op.json").write_text(json.dumps(document))
    outputs = [folder / f"out{index}.npy" for index in range(len(expected))]
    command = [sys.executable, "-m", "tensorpost", "run", str(folder / "op.json"), *map(str, paths)]
    command += [part for path in outputs for part in ("-o", str(path))] + ["--url", server.url]
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    took = time.perf_counter() - begin
    for path, arrays in zip(outputs, expected, strict=True):
        found = np.load(path, mmap_mode="r")
        blocks = (("output", memoryview(found[at : at + PIECE]).cast("B")) for at in range(0, len(found), PIECE))
        compare(blocks, {"output": arrays})
        path.unlink()
    print(f"{name}, command line: {took:.1f} s, every byte as it must be")


if __name__ == "__main__":
    main()

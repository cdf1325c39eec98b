"""Triton's perf_analyzer, unmodified, against our server: `make perf-analyzer`.

It calls a preset over HTTP, synchronously, asynchronously and with system shared memory, the model `tile` over gRPC,
since it sends parameters over gRPC only, and a stored graph with dynamic batching over both. Its reports are printed
as they are. The program needs glibc 2.38 or newer; on an older system, `--command` may begin with the dynamic loader of
a newer one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

from tensorpost import Client

from .machine import Machine
from .servers import ROOT, free_port, tensorpost

INSTALLED = ROOT / "build" / "perf-analyzer" / "perf_analyzer" / "bin" / "perf_analyzer"
PRESETS = {
    "thumb_224": {
        "operator": "onnx.resize",
        "attributes": {"sizes": [1, 3, 224, 224], "mode": "linear"},
        "datatype": "FP32",
        "shape": [1, 3, 448, 448],
    }
}
THUMB = ["-m", "thumb_224", "-i", "http"]
TILE = ["-m", "tile", "-i", "grpc", "--shape", "input:1,3,64,64", "--request-parameter", "repeats:[1,1,2,2]:string"]
SHARED_THUMB = ["--shared-memory", "system", "--output-shared-memory-size", str(3 * 224 * 224 * 4)]
SHARED_TILE = ["--shared-memory", "system", "--output-shared-memory-size", str(3 * 128 * 128 * 4)]
RUNS = (
    [*THUMB, "--concurrency-range", "1:4:3"],
    [*THUMB, "-a", "--concurrency-range", "4"],
    [*THUMB, "-x", "1", *SHARED_THUMB, "--concurrency-range", "1:4:3"],
    [*TILE, "--concurrency-range", "1:4:3"],
    [*TILE, "-a", "--concurrency-range", "4"],
    [*TILE, *SHARED_TILE, "--concurrency-range", "1:4:3"],
    ["-m", "joined", "-i", "http", "-b", "2", "--concurrency-range", "1:16:15"],
    ["-m", "joined", "-i", "grpc", "-a", "--concurrency-range", "16"],
)
"""Concurrency 1:4:3 is 1, then 4."""
SIDE = 1024
JOINED = {
    "inputs": {
        "x": {"data_type": "FLOAT32", "sizes": ["n", SIDE]},
        "w": {"data_type": "FLOAT32", "sizes": [SIDE, SIDE]},
    },
    "nodes": [{"name": "y", "op_type": "MatMul", "inputs": ["x", "w"]}],
    "outputs": {"y": "y"},
}
"""A stored graph whose calls are joined."""
PATIENCE = 300.0  # seconds for one of them


def main(arguments: list[str] | None = None) -> int:
    """Run every row of `RUNS`; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perf_analyzer", description=__doc__)
    parser.add_argument("--command", default=str(INSTALLED), help="the program, with what has to stand before it")
    parser.add_argument(
        "--window", type=int, default=2000, metavar="MS", help="a measurement takes so long; %(default)s"
    )
    options = parser.parse_args(arguments)
    command = shlex.split(options.command)
    if not Path(command[0]).exists():
        print(f"{command[0]} is not there: `make perf-analyzer` installs it, or see --command", file=sys.stderr)
        return 1
    # Its report is the mean of three windows, however far apart: on a shared machine they are rarely within its 10 %.
    usual = ["--measurement-interval", str(options.window), "--stability-percentage", "999", "--max-trials", "6"]
    print("\n".join(Machine.here({}).lines()), flush=True)
    port, failed = free_port(), 0
    with tensorpost(presets=json.dumps(PRESETS), shared_memory=True, grpc_port=port, access_log="off") as server:
        with Client(server.url) as tp:
            tp.store(JOINED, "joined", weights={"w": np.ones((SIDE, SIDE), np.float32)}, max_batch_size=16)
        for run in RUNS:
            url = f"127.0.0.1:{port if 'grpc' in run else server.port}"
            print(f"\n$ perf_analyzer -u {url} {shlex.join(run)}", flush=True)
            done = subprocess.run([*command, "-u", url, *run, *usual], timeout=PATIENCE, check=False)
            failed |= done.returncode != 0
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

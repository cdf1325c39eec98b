"""Two callers with one name for their held tensors: whether anything of one ever reaches the other.

    python -m benchmarks.held_mix [--processes 16] [--rounds 625]
    TENSORPOST_WORKERS=2 python -m benchmarks.held_mix

Processes of two API keys put, read, compute on and delete tensors of 1,000,000 bytes called `shared`, while tensors
expire after a second. Each element says whose it is, and every answer is checked. At the end the memory must be back.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import servers
from tensorpost import Client
from tensorpost.problems import InsufficientStorage, TensorNotFound, TensorpostError, TooBusy
from tensorpost_server import commands

_COUNT = 250_000  # elements of float32
_PATTERNS = 7


def work(url: str, key: str, caller: int, seed: int, rounds: int, results: Any) -> None:
    """Do things in a random order; tell what was done, and what was wrong."""
    rng, mine, done = np.random.default_rng(seed), 100.0 * (caller + 1), Counter[str]()
    with Client(url, api_key=key, timeout=120) as tp:
        for turn in range(rounds):
            operation = ("put", "put", "get", "compute", "keep", "delete")[int(rng.integers(6))]
            found: Any = None
            try:
                match operation:
                    case "put":
                        tp.put(np.full(_COUNT, mine + turn % _PATTERNS, np.float32), "shared", replace=True)
                    case "get":
                        found = tp.get_tensor("shared", slice(None, None, int(rng.integers(1, 5))))
                    case "compute":
                        found = -tp.onnx("Neg", tp.tensor("shared"))
                    case "keep":
                        held = tp.put(np.full(_COUNT, mine, np.float32))
                        found = tp.add(held, held, keep=True).get() / 2
                    case _:
                        tp.delete_tensor("shared")
            except TensorNotFound:
                operation = "gone"
            except (TooBusy, InsufficientStorage):
                operation = "busy"
            except TensorpostError as error:
                operation = f"wrong: {error!r}"
            if found is not None and not (mine <= found[0] < mine + _PATTERNS and (found == found[0]).all()):
                operation = f"wrong: {found[:3]} of {mine}"
            done[operation] += 1
        tp.live()  # which frees what was collected
    results.put(done)


def metrics(server: servers.Server, key: str) -> list[str]:
    """The lines of held tensors and of memory."""
    request = urllib.request.Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if line.startswith(("tensorpost_held_tensor", "tensorpost_memory_reserved"))]


def resident_mebibytes(process: int) -> float:
    """Resident memory of a process and of those that it has started, with what they share counted for each."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text("utf-8").split()
    return _resident(process) + sum(resident_mebibytes(int(child)) for child in children)


def _resident(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def main() -> None:
    """Print what was done and what is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=625, help="things that each process does")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        keys = [commands.add_key(file, name, scopes=("run", "tensors")) for name in ("alice", "bob")]
        admin = commands.add_key(file, "ops", scopes=("admin",))
        with servers.tensorpost(keys_file=file, held_tensor_seconds=1, held_tensor_idle_seconds=1) as server:
            print(f"resident before: {resident_mebibytes(server.process):.0f} MiB")
            results: Any = multiprocessing.Queue()
            begin = time.perf_counter()
            processes = [
                multiprocessing.Process(
                    target=work, args=(server.url, keys[number % 2], number % 2, number, asked.rounds, results)
                )
                for number in range(asked.processes)
            ]
            for process in processes:
                process.start()
            done = sum([results.get() for _ in processes], Counter[str]())
            for process in processes:
                process.join()
            wrong = [what for what in done if what.startswith("wrong")]
            print(f"{done.total():,} in {time.perf_counter() - begin:.0f} s, {len(wrong)} kinds of wrong: {dict(done)}")
            time.sleep(15)  # until the sweep has dropped what has expired
            print("\n".join(metrics(server, admin)))
            print(f"resident after: {resident_mebibytes(server.process):.0f} MiB")


if __name__ == "__main__":
    main()

"""Post every vector to `tensorpost serve` on Windows Python: `python -m tests.directml_device.requests [COUNT]`.

The server runs with the backend directml alone, started by DIRECTML_PYTHON as in `validation`; the client is this
process. First every case of tests/vectors, whose bytes are those of numpy, or which `directml-xfails.txt` lists; then
the same requests again, but for the slowest, until there were COUNT, with the memory of the server's process on the
way. Prints one JSON document, and keeps it in `build/directml/requests.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conformance.suite import expected_failures
from tests.conformance.wire import Request, Server, answer_bytes, requests
from tests.support.vectors import Case, VectorsFile, vectors_files

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "directml" / "requests.json"
LISTED = ROOT / "tests" / "conformance" / "directml-xfails.txt"
SLOW = 5  # seconds; a request that took longer is not repeated
PATIENCE = 900  # seconds for one answer: shaders are compiled for the first one
SERVE = 'from tensorpost_server.commands import serve; serve(host="127.0.0.1", port=0, log_level="warning")'


@contextlib.contextmanager
def windows_server() -> Iterator[tuple[str, int]]:
    """The server's URL and the id of its process; it ends with the block.

    Raises:
        RuntimeError: it did not start.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*shlex.split(os.environ["DIRECTML_PYTHON"]), "-c", SERVE],
            env={**os.environ, "TENSORPOST_BACKENDS": "directml"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                url = line.strip().rpartition(" ")[2]
                if url.startswith("http://"):
                    yield url, _python_of(process.pid)
                    return
            log.seek(0)
            raise RuntimeError(f"the server did not start: {''.join(said)}{log.read()[-3000:]}")
        finally:
            os.kill(_python_of(process.pid), signal.SIGTERM)
            process.wait(30)
            process.stdout.close()


def _python_of(parent: int) -> int:
    """The process among the descendants that is Windows Python."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [parent]
    for pid in found:
        found += children.get(pid, [])
    return max(found, key=resident)


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def posted() -> list[tuple[VectorsFile, Case, Request]]:
    """Every case as a frame that asks for the backend directml."""
    return [
        (file, case, dataclasses.replace(request, path=request.path.replace("backend=numpy", "backend=directml")))
        for file in vectors_files()
        for case in file.cases
        for request in requests(case, "frame")
    ]


def outcome(server: Server, case: Case, request: Request) -> str:
    """`same`, `refused`, `not compiled`, or how the answer differs."""
    status, media_type, body = server.post(request)
    if status != 200:
        text = body.decode(errors="replace")
        return "not compiled" if "0x80004005" in text else "refused" if "no-backend" in text else f"{status} {text}"
    try:
        case.check(answer_bytes(case, media_type, body))
    except AssertionError as error:
        return f"differs: {error}"
    return "same"


def run(count: int) -> dict[str, Any]:
    """See the module."""
    listed = expected_failures(LISTED.read_text("utf-8"))
    cases = posted()
    operators: dict[str, Counter[str]] = {}
    surprises: list[str] = []
    quick: list[Request] = []
    with windows_server() as (url, pid), contextlib.closing(Server(url, PATIENCE)) as server:
        begin = time.monotonic()
        statuses: Counter[int] = Counter()
        for number, (file, case, request) in enumerate(cases, 1):
            sent = time.monotonic()
            entry, found = f"{file} [{case}]", outcome(server, case, request)
            if time.monotonic() - sent < SLOW:
                quick.append(request)
            if found == "same":
                word = "same"
                if entry in listed:
                    surprises.append(f"{entry}: is listed, and agrees")
            else:
                word = found if found in ("refused", "not compiled") else found.partition(":")[0]
                if entry not in listed:
                    surprises.append(f"{entry}: {found}")
            operators.setdefault(str(file), Counter())[word] += 1
            print(f"{number} {entry}: {word}, {resident(pid) >> 20} MiB", file=sys.stderr, flush=True)
        memory = {len(cases): resident(pid)}
        for number, request in zip(range(len(cases), count), itertools.cycle(quick), strict=False):
            statuses[server.post(request)[0]] += 1
            if (number + 1) % 1000 == 0:
                memory[number + 1] = resident(pid)
                print(f"{number + 1}: {memory[number + 1] >> 20} MiB, {dict(statuses)}", file=sys.stderr, flush=True)
        seconds = time.monotonic() - begin
    totals = Counter[str]()
    for counts in operators.values():
        totals.update(counts)
    return {
        "operators": len(operators), "cases": len(cases), "outcomes": dict(totals), "surprises": surprises,
        "requests": max(count, len(cases)), "seconds": round(seconds), "statuses": dict(statuses),
        "memory_mib": {number: size >> 20 for number, size in memory.items()},
        "by_operator": {name: dict(counts) for name, counts in operators.items()},
    }  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.directml_device.requests")
    parser.add_argument("count", type=int, nargs="?", default=0)
    found = run(parser.parse_args().count)
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
    del found["by_operator"]
    print(json.dumps(found, indent=1))
    if found["surprises"]:
        sys.exit(1)


if __name__ == "__main__":
    main()

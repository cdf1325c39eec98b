"""How long one waits before anything is computed: imports, and a server that serves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np

from tensorpost import Client

from . import servers
from .bench import Bench
from .report import Cell, Figure, Table, Target
from .timing import in_turn

IMPORT = Target("`from tensorpost import Client`, seconds", 0.25, at_most=True)
RATIO = Target("`from tensorpost import Client`, in times of `import httpx, numpy, pydantic`", 1.3, at_most=True)
READY = Target("server ready to serve, seconds", 1.5, at_most=True)
LIBRARIES = "import httpx, numpy, pydantic"
STATEMENTS = {
    "pass": None,
    "import tensorpost": None,
    "from tensorpost import Client": IMPORT,
    "import numpy, pydantic": None,
    "import httpx": None,
    LIBRARIES: None,
}
COMMANDS = "tensorpost --help"


def measure(bench: Bench) -> Iterator[Table]:
    """Imports in fresh interpreters, then servers in fresh processes; the fastest of several, all modules compiled."""
    bench.note("Seconds of the fastest of several fresh processes; compiled modules and kernels are on disk by then.")
    bench.note("`import tensorpost` loads a name when it is asked for; `Client` brings NumPy.")
    bench.note("Operators, and Pydantic with them, are loaded when one is named.")
    bench.note("Ready: from the start of the process until GET /v2/health/ready is answered with 200.")
    calls = {text: partial(subprocess.run, [sys.executable, "-c", text], check=True) for text in STATEMENTS}
    calls[COMMANDS] = partial(
        subprocess.run, [sys.executable, "-m", "tensorpost", "--help"], check=True, stdout=subprocess.DEVNULL
    )
    took = in_turn(calls, least=3 if bench.quick else 9)
    rows: list[tuple[Cell, ...]] = [(text, Figure(took[text].best, 3, target)) for text, target in STATEMENTS.items()]
    rows.append((COMMANDS, Figure(took[COMMANDS].best, 3)))
    ratio = took["from tensorpost import Client"].best / took[LIBRARIES].best
    rows.append(("`Client` in times of the three libraries", Figure(ratio, 2, RATIO)))
    ready = min(_seconds_until_ready() for _ in range(2 if bench.quick else 7))
    rows.append(("tensorpost serve", Figure(ready, 3, READY)))
    yield Table("Waiting for the first call", ("what", "seconds"), tuple(rows))


def _seconds_until_ready() -> float:
    """Start a server, ask it for a Tile, end it."""
    x = np.ones((1, 1, 2, 2), np.float32)
    with servers.tensorpost() as server, Client(server.url) as tp:
        if tp.tile(x, (1, 1, 2, 2)).shape != (1, 1, 4, 4):
            raise RuntimeError("the first answer is wrong")
        return server.seconds

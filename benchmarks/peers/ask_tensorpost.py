"""Our SDK, as the products' own clients are run."""

from __future__ import annotations

import sys

from tensorpost import Client

from .ask import Call, converse
from .jobs import REPEATS


def connect() -> Call:
    client = Client(f"http://127.0.0.1:{sys.argv[1]}")
    return lambda x: client.tile(x, REPEATS)


if __name__ == "__main__":
    converse("tensorpost", connect)

"""Start an image, wait until it is ready, send it two real requests, stop it: `make image-check`.

What comes after `--` is the command that runs the container in the foreground. Exit status 0 if everything is right.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time

import numpy as np

from tensorpost import Client


def main() -> int:
    """Run the check and print one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--backend", default="auto", help="the one that must compute, for instance cuda")
    parser.add_argument("--unused", help="a backend that must not be used, with a reason, for instance cuda")
    parser.add_argument("--seconds", type=float, default=60, help="longest time to start")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    begin = time.monotonic()
    container = subprocess.Popen(arguments.command)  # noqa: S603 # the caller's own command
    try:
        with Client(arguments.url, api_key="") as tp:
            while not tp.ready():
                if container.poll() is not None or time.monotonic() > begin + arguments.seconds:
                    sys.exit(f"it did not get ready within {arguments.seconds:g} s")
                time.sleep(0.02)
            seconds = time.monotonic() - begin
            x = np.arange(3 * 256 * 256, dtype=np.float32).reshape(3, 256, 256)
            y = tp.tile(x, (1, 2, 2), backend=arguments.backend)
            total = tp.onnx("Add", x, x, backend=arguments.backend)
            unused = {row["name"]: row["reason"] for row in tp.devices()["devices"] if row["reason"]}
        if not np.array_equal(y, np.tile(x, (1, 2, 2))):
            sys.exit("its Tile is wrong")
        if not np.array_equal(total, x + x):
            sys.exit("its Add is wrong")
        if arguments.unused and arguments.unused not in unused:
            sys.exit(f"it does not say why it does not use {arguments.unused}")
        said = f"ready in {seconds:.1f} s; a Tile and an Add of {x.nbytes} bytes are right"
        print("; ".join([said, *[f"not used: {name} ({reason})" for name, reason in unused.items()]]))  # noqa: T201 # what it is for
    finally:
        container.send_signal(signal.SIGTERM)
        container.wait(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Install the other products: `python -m benchmarks.peers install --into DIR`, one virtual environment for each."""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

from .products import PRODUCTS


def main() -> int:
    """Install what is asked for; the exit status is 1 if something could not be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("do", choices=["install"])
    parser.add_argument("--into", type=Path, required=True, help="folder for the environments; about 2.5 GB for all")
    names = sorted({product.environment for product in PRODUCTS})
    parser.add_argument("--only", default=",".join(names), help=f"some of them, with commas; default {','.join(names)}")
    chosen = parser.parse_args()
    wanted: list[str] = chosen.only.split(",")
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(names)}")
    packages = {product.environment: product.packages for product in PRODUCTS}
    failed: list[str] = []
    for name in wanted:
        print(f"{name}: {' '.join(packages[name])}", flush=True)
        folder: Path = chosen.into / name
        if not folder.exists():
            venv.create(folder, with_pip=True, symlinks=sys.platform != "win32")
        python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages[name]]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"not installed: {', '.join(failed)}; the benchmark goes on without them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

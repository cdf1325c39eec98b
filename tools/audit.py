"""Look for known vulnerabilities of what is pinned: `make audit`. It needs the network.

pip-audit is installed into an environment of its own, and asks PyPI's advisories about each pinned package.
Exit status: 0 if none is known, 1 if there are some, 2 if it could not be found out; then it says what is missing.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / "build" / "audit"
NOT_FOUND_OUT = 2


def main(files: list[str]) -> int:
    """Audit these requirements files; by default all of them."""
    scripts = ENVIRONMENT / ("Scripts" if sys.platform == "win32" else "bin")
    if not (scripts / "pip-audit").exists() and not (scripts / "pip-audit.exe").exists():
        venv.create(ENVIRONMENT, with_pip=True)
        said = _run(str(scripts / "python"), "-m", "pip", "install", "--quiet", "pip-audit>=2.9")
        if said is not None:
            return _missing("pip-audit cannot be installed: is a package index reachable?", said)
    chosen = files or sorted(map(str, (ROOT / "requirements").glob("*.txt")))
    named = [argument for file in chosen for argument in ("--requirement", file)]
    command = [str(scripts / "pip-audit"), "--require-hashes", "--disable-pip", "--progress-spinner=off", *named]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 # a fixed program
    if ran.returncode and not ran.stdout.startswith("Name"):  # it begins the table of what it found
        return _missing("the advisories cannot be asked for: is https://pypi.org reachable?", ran.stderr)
    sys.stdout.write(ran.stdout + ran.stderr)
    if not ran.returncode and "Skip Reason" in ran.stdout:
        return _missing("some packages are not known to the advisories that were asked", "see the table above")
    return ran.returncode


def _run(*command: str) -> str | None:
    """None if the command succeeds, else what it said."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 # a fixed program
    return None if ran.returncode == 0 else ran.stdout + ran.stderr


def _missing(what: str, said: str) -> int:
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    sys.stderr.write(f"not audited: {what}\n  {last.strip()[:300]}\n")
    return NOT_FOUND_OUT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

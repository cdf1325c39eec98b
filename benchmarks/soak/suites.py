"""Rows that are tests already: they are run, with more or other cases than in `make test`, and counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from ..servers import ROOT
from .finding import Finding

ATTACKS = {
    "callers that leave, on three protocol classes": ("tests/attacks/test_leaving_callers.py",),
    "smuggling, lock-out, half-closed callers, second signals": (
        "tests/attacks/test_connection_attacks.py", "tests/attacks/test_http_attacks.py",
    ),
    "memory that is missing, address-space limit": ("tests/attacks/test_memory_attacks.py",),
    "nodes that end ONNX Runtime, or take its memory and time": (
        "tests/attacks/test_onnx_runtime_attacks.py", "tests/child_processes/test_process_pool.py",
    ),
    "endless interim responses, deadlines of the SDK": ("tests/client/test_deadlines.py",),
}  # fmt: skip
ACCESS = {
    "keys: wrong, expired, rotated, revoked, scopes, quotas": (
        "tests/http/test_access.py",
        "tests/commands/test_keys.py",
    ),
    "tokens: wrong, expired, rotated issuers": ("tests/http/test_json_web_tokens.py",),
    "cross-site posts, rebinding": ("tests/attacks/test_browser_attacks.py",),
}


def suite(name: str, *files: str, most_seconds: float = 300, variables: Mapping[str, str] | None = None) -> Finding:
    """Run test files."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **(variables or {})}, capture_output=True, text=True,
            timeout=most_seconds + 240, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Finding(name, f"not done after {most_seconds + 240:.0f} s", holds=False)
    found = re.findall(r"(\d+) (passed|failed|errors?|skipped)", ran.stdout)
    failed = re.findall(r"^FAILED (\S+)", ran.stdout, re.MULTILINE)
    seen = ", ".join(f"{count} {what}" for count, what in found) or ran.stdout[-300:] + ran.stderr[-300:]
    return Finding(
        f"tests: {name}", f"{seen} in {time.monotonic() - begin:.0f} s {' '.join(failed)}", ran.returncode == 0
    )


def attack_suites(_seconds: float) -> Iterator[Finding]:
    """What is tried without a clock."""
    for name, files in ATTACKS.items():
        yield suite(name, *files)


def access_suites(_seconds: float) -> Iterator[Finding]:
    """Who may call."""
    for name, files in ACCESS.items():
        yield suite(name, *files)

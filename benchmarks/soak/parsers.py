"""Parsers and paths under schemathesis, atheris and Hypothesis; `make soak` makes an environment for the first two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .. import servers
from ..servers import ROOT
from .finding import SMALL, Finding, ask
from .suites import suite

TOOLS = ROOT / "build" / "soak-tools"
MISSING = f"{TOOLS.relative_to(ROOT)} is not there; `make soak` makes it"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
PARSERS = ("frame", "npy", "json", "descriptor", "picture")  # of fuzz.py, which imports atheris
CONFIGURATION = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501", "503", "504"]  # those that the document declares
"""
MOST_CASES = 50
"""The most cases of each path. There are hundreds of paths, so mostly the time ends before."""


def parsers(seconds: float) -> Iterator[Finding]:
    """Half of the time for atheris, the rest for the others."""
    yield openapi(seconds / 4)
    for name in PARSERS:
        yield fuzzed(name, seconds / 2 / len(PARSERS))
    yield suite(
        "hypothesis on the parsers, with new cases", "tests/attacks/test_frame_attacks.py",
        "tests/attacks/test_descriptor_attacks.py", "tests/attacks/test_parse_attacks.py", "--hypothesis-profile=new",
    )  # fmt: skip
    count = max(500, round(seconds * 15))
    yield suite(
        f"{count:,} mutated documents of every operator", "tests/attacks/test_mutated_documents.py",
        variables={"MUTATIONS": str(count)},
    )  # fmt: skip


def openapi(seconds: float) -> Finding:
    """Requests that schemathesis makes of the OpenAPI document of a running server."""
    done = "schemathesis on the whole OpenAPI document"
    program = TOOLS / "bin" / "st"
    if not program.exists():
        return Finding(done, MISSING, holds=None)
    with (
        servers.tensorpost(max_output_bytes=1 << 24, max_work=10**7) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        Path(folder, "schemathesis.toml").write_text(CONFIGURATION)
        ran = subprocess.run(
            [program, "run", f"{server.url}/openapi.json", "--checks", CHECKS, "--continue-on-failure", "--no-color",
             "--max-examples", str(MOST_CASES), "--max-time", str(max(10, round(seconds))),
             "--phases", "coverage,fuzzing"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        alive = ask(server.port, SMALL).status == 200
    cases = re.search(r"(\d+) generated.*", ran.stdout)
    failures = re.findall(r"^  ❌ (ST.+)$", ran.stdout, re.MULTILINE)
    seen = (
        f"{cases[0] if cases else ran.stdout[-200:] + ran.stderr[-200:]}{'; ' if failures else ''}{', '.join(failures)}"
    )
    return Finding(done, seen, ran.returncode == 0 and alive)


def fuzzed(name: str, seconds: float) -> Finding:
    """A parser under atheris, in a process of its own; what it found is kept for the next time."""
    done = f"atheris on the parser of {name}"
    program = TOOLS / "bin" / "python"
    if not program.exists():
        return Finding(done, MISSING, holds=None)
    corpus = ROOT / "build" / "soak-corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    installed = next(Path(folder) for folder in sys.path if folder.endswith("site-packages"))
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "client", ROOT / "app", installed))),
    }
    begin = time.monotonic()
    ran = subprocess.run(
        [program, "-m", "benchmarks.soak.fuzz", name, f"-max_total_time={max(1, round(seconds))}",
         "-rss_limit_mb=4096", f"-artifact_prefix={corpus}-", str(corpus)],
        cwd=ROOT, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    runs = re.search(r"Done (\d+) runs", ran.stderr)
    wrong = " ".join(ran.stderr.strip().splitlines()[-8:])[-400:]
    seen = f"{int(runs[1]):,} inputs in {time.monotonic() - begin:.0f} s" if runs else wrong
    return Finding(done, seen, ran.returncode == 0)

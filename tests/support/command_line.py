"""The command line in this process, without the half second that a process of its own takes to start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from tensorpost.command_line.cli import app

__all__ = ["Done", "invoke"]


@dataclass(frozen=True)
class Done:
    """What a command did, in the words of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def invoke(*arguments: object, cwd: Path | None = None, env: Mapping[str, object] | None = None) -> Done:
    """Run `tensorpost` with these arguments and environment variables, and no other ones of ours."""
    ours: dict[str, str | None] = {name: None for name in os.environ if name.startswith("TENSORPOST_")}
    with contextlib.chdir(cwd or Path.cwd()):
        found = CliRunner().invoke(
            app, [*map(str, arguments)], env={**ours, **{name: str(value) for name, value in (env or {}).items()}}
        )
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return Done(found.exit_code, found.stdout, found.stderr)

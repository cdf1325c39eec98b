"""How the container is started: for this machine only, in one command. Compose: tests/deploy/test_compose.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorpost_server.settings import Settings, setting_variable

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
ANONYMOUS = setting_variable("allow_anonymous")
RUN = re.compile(r"docker run (.*?)tensorpost\b(?![-_.])")


def instructions(text: str) -> list[str]:
    """The lines that Docker reads."""
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def variables(text: str) -> set[str]:
    return set(re.findall(r"TENSORPOST_[A-Z_]+", text))


def test_the_image_lets_nobody_call_by_itself() -> None:
    lines = "\n".join(instructions(DOCKERFILE))
    assert ANONYMOUS not in lines
    assert f"{setting_variable('host')}=0.0.0.0" in lines, "so it does not start without keys or the variable"


def test_variables_of_the_container_are_settings() -> None:
    known = {setting_variable(name) for name in Settings.model_fields}

    assert variables(DOCKERFILE) <= known


@pytest.mark.parametrize("page", ["README.md", "Dockerfile"])
def test_docker_run_as_it_is_written_starts_and_is_published_on_loopback(page: str) -> None:
    options = RUN.findall((ROOT / page).read_text("utf-8"))

    assert options
    for found in options:
        assert "--publish 127.0.0.1:8000:8000 " in found
        assert f"--env {ANONYMOUS}=1 " in found

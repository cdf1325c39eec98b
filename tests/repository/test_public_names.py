"""What users import of the SDK stays importable: `public_names.json` has every name that ever was, each tried anew."""

import json
import subprocess
import sys
from collections.abc import Mapping

from tests.support.public_names import NAMES, check, public_names

KNOWN: Mapping[str, list[str]] = json.loads(NAMES.read_text("utf-8"))


def test_every_public_name_can_be_imported() -> None:
    command = [sys.executable, "-m", "tests.support.public_names", "--check"]  # where nothing is loaded yet
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == ""
    assert len(KNOWN) >= 70
    assert sum(map(len, KNOWN.values())) >= 700


def test_new_public_names_are_in_the_file() -> None:
    for module, names in public_names().items():
        assert set(names) <= set(KNOWN.get(module, [])), f"{module}: run python -m tests.support.public_names"


def test_a_name_that_is_gone_is_found() -> None:
    gone = {"tensorpost": ["Client", "Klient"], "tensorpost.problem": ["TooBusy"], "tensorpost.problems": ["TooBusy"]}

    assert check(gone) == ["tensorpost.Klient", "tensorpost.problem"]

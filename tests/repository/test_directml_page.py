"""docs/directml.md says what docs/directml.json says, and the run left no difference without a reason."""

import json

from tests.directml_device.page import JSON, PAGE, written


def test_the_tables_are_the_runs() -> None:
    page = PAGE.read_text()
    assert written(page, json.loads(JSON.read_text())) == page


def test_every_difference_of_the_run_is_explained() -> None:
    run = json.loads(JSON.read_text())
    assert run["descriptors"] == 20_000
    assert "not explained" not in run["differences"]
